#include "tutti/train/model/staged_model.h"

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/data/share.h"
#include "tutti/strategy/modules/whole_model.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/model/detail/laid_out.h"
#include "tutti/train/model/detail/model_state.h"

namespace tutti {
namespace {

/// Rows that all of them have.
int64_t rows_in(const char* operation, const detail::Tensors& tensors) {
  int64_t rows = -1;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.dim() < 1)
      throw UsageError(fmt::format("{}: a tensor has no rows; expected [rows, ...]", operation));
    if (rows >= 0 && tensor.size(0) != rows)
      throw UsageError(fmt::format("{}: tensors of {} and of {} rows; expected the same", operation,
                                   rows, tensor.size(0)));
    rows = tensor.size(0);
  }
  if (rows < 1)
    throw UsageError(fmt::format(
        "{}: no rows; a replica without samples calls Optimizer::abstain(replica)", operation));
  return rows;
}

}  // namespace

struct StagedModel::State {
  State(const Strategy& strategy, std::function<detail::ErasedModel()> factory,
        const parallel::ModelLayout& layout)
      : laid_out(std::make_shared<detail::LaidOut>(strategy, layout)),
        modules(detail::dealt_out(strategy, laid_out, std::move(factory), {})) {}

  std::shared_ptr<detail::LaidOut> laid_out;
  ReplicatedModules modules;
};

StagedModel::StagedModel(Strategy strategy, ErasedFactory factory,
                         const parallel::ModelLayout& layout, Erased /*tag*/)
    : state_(std::make_shared<State>(strategy, std::move(factory), layout)) {}

const ReplicatedModules& StagedModel::modules() const noexcept { return state_->modules; }

std::vector<at::Tensor> StagedModel::step(ReplicaContext& replica,
                                          const std::vector<at::Tensor>& inputs,
                                          const std::vector<at::Tensor>& targets, const Loss& loss,
                                          const StagedStep& options) {
  const auto& module = *state_->modules.module(replica);
  if (options.microbatches < 1 || options.microbatches > detail::kMostMicrobatches)
    throw UsageError(fmt::format("StagedModel::step: microbatches is {}, must be from 1 to {}",
                                 options.microbatches, detail::kMostMicrobatches));
  detail::Tensors all = inputs;
  all.insert(all.end(), targets.begin(), targets.end());
  const int64_t rows = rows_in("StagedModel::step", all);
  detail::StepInParts parts{.rows = {}, .inputs = inputs, .loss = {}, .place = options.place};
  for (int i = 0; i < options.microbatches; ++i)
    parts.rows.push_back(data::share(rows, options.microbatches, i));
  parts.loss = [&](int number, at::TensorList outputs) {
    return loss(outputs, detail::rows_of(targets, parts.rows[static_cast<size_t>(number)]));
  };
  return state_->laid_out->step(replica, module, parts);
}

void StagedModel::updated(ReplicaContext& replica) { state_->laid_out->send_ties(replica); }

std::vector<at::Tensor> StagedModel::forward(ReplicaContext& replica,
                                             const std::vector<at::Tensor>& inputs) {
  const int at_once = state_->laid_out->batches_at_once();
  std::vector<int64_t> sizes(static_cast<size_t>(at_once));
  sizes[0] = rows_in("StagedModel::forward", inputs);
  std::vector<at::Tensor> given;
  state_->laid_out->pipeline(replica, at_once)
      .forward({.sizes = sizes,
                .inputs = [&](int /*number*/) { return inputs; },
                .loss = {},
                .place = {}},
               [&](int number, std::vector<at::Tensor> outputs) {
                 if (number == 0) given = std::move(outputs);
               });
  return given;
}

bool StagedModel::gives_outputs(const ReplicaContext& replica) const {
  return state_->laid_out->gives_outputs(replica);
}

ModelState StagedModel::whole() const {
  const WholeModel* const whole = state_->modules.whole();
  return {
      whole != nullptr ? whole->gather_parameters() : unique_parameters(*state_->modules.module(0)),
      state_->modules.merged_buffers()};
}

}  // namespace tutti
