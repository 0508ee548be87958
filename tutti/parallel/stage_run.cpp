#include "tutti/parallel/detail/stage_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/autograd.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/sync/tensors.h"

namespace tutti::parallel::detail {
namespace {

size_t place_among(const std::vector<at::Tensor>& tensors, const at::Tensor& one) {
  return static_cast<size_t>(
      std::ranges::find_if(tensors, [&](const at::Tensor& other) { return other.is_same(one); }) -
      tensors.begin());
}

// Recompute would move them twice.
void require_no_running_statistics(const torch::nn::Module& module, const std::string& stage) {
  for (const auto& layer : module.modules()) {
    const auto buffers = layer->named_buffers(/*recurse=*/false);
    if (layer->is_training() && buffers.contains("running_mean") &&
        buffers["running_mean"].defined())
      throw UsageError(fmt::format(
          "pipeline: {} has {}, whose running statistics a second forward pass would move again; "
          "leave recompute off, or put the layer into evaluation mode",
          stage, layer->name()));
  }
}

}  // namespace

StageRun::StageRun(Stage stage, Place place, bool split, Recompute recompute)
    : stage_(std::move(stage)), place_(place), split_(split), recompute_(recompute) {
  const auto add = [&](const at::Tensor& parameter) {
    if (parameter.requires_grad() && place_among(parameters_, parameter) == parameters_.size())
      parameters_.push_back(parameter);
  };
  for (const at::Tensor& parameter : stage_.module->parameters()) add(parameter);
  num_of_module_ = parameters_.size();
  for (const Tie& tie : stage_.ties) add(tie.parameter);
}

void StageRun::begin(std::vector<int64_t> sizes, std::optional<nn::SamplePlace> place, Loss loss) {
  sizes_ = std::move(sizes);
  sample_place_ = place;
  loss_ = std::move(loss);
  kept_.clear();
  if (recompute_ == Recompute::full) require_no_running_statistics(*stage_.module, name());
}

void StageRun::require_borders(int microbatch, const std::vector<at::Tensor>& outputs) const {
  const auto& borders = stage_.outputs;
  if (outputs.size() != borders.size())
    throw UsageError(fmt::format("pipeline: {} gave {} outputs, its border has {}", name(),
                                 outputs.size(), borders.size()));
  for (size_t i = 0; i < borders.size(); ++i) {
    auto shape = borders[i].shape;
    shape.insert(shape.begin(), sizes_[static_cast<size_t>(microbatch)]);
    if (outputs[i].sizes() != at::IntArrayRef(shape) ||
        dtype_of(outputs[i].scalar_type()) != borders[i].dtype)
      throw UsageError(fmt::format(
          "pipeline: output {} of {}, microbatch {}, is {} [{}]; its border has {} [{}]", i, name(),
          microbatch, name_of(dtype_of(outputs[i].scalar_type())),
          fmt::join(outputs[i].sizes(), ", "), name_of(borders[i].dtype), fmt::join(shape, ", ")));
  }
}

Parcel StageRun::compute(int microbatch, const std::vector<at::Tensor>& inputs, int64_t calls,
                         bool with_loss) {
  std::optional<nn::SampleContext> context;
  if (sample_place_) {
    nn::SamplePlace place = *sample_place_;
    place.first_row = std::accumulate(sizes_.begin(), sizes_.begin() + microbatch, place.first_row);
    context.emplace(place);
    for (int64_t call = 0; call < calls; ++call) context->next_call();
  }
  Parcel outputs{.tensors = stage_.forward(inputs)};
  if (!place_.last) require_borders(microbatch, outputs.tensors);
  if (with_loss) {
    const at::Tensor loss = loss_(microbatch, outputs.tensors);
    if (!loss.defined() || loss.numel() != 1)
      throw UsageError(fmt::format(
          "pipeline: the loss of microbatch {} is {}, expected one element", microbatch,
          loss.defined() ? fmt::format("[{}]", fmt::join(loss.sizes(), ", ")) : "undefined"));
    outputs.tensors = {loss};
  }
  if (context) outputs.calls = context->next_call();
  return outputs;
}

Parcel StageRun::forward(int microbatch, Parcel inputs) {
  Kept& kept = kept_[microbatch];
  kept.calls = inputs.calls;
  kept.inputs = std::move(inputs.tensors);
  const bool again = recompute_ == Recompute::full;
  if (!place_.first)
    for (at::Tensor& input : kept.inputs) {
      input = input.detach();
      if (input.is_floating_point()) input.requires_grad_();
    }
  if (again && place_.last) return {};  // nobody waits for it: B does it all
  const at::AutoGradMode graph(!again);
  Parcel outputs = compute(microbatch, kept.inputs, kept.calls, place_.last);
  if (!again) kept.outputs = outputs.tensors;
  if (place_.last) return {};
  return outputs;
}

Parcel StageRun::evaluate(int microbatch, const Parcel& inputs) {
  const at::NoGradGuard no_gradient;
  return compute(microbatch, inputs.tensors, inputs.calls, /*with_loss=*/false);
}

Parcel StageRun::backward(int microbatch, Parcel of_outputs) {
  Kept& kept = kept_.at(microbatch);
  if (recompute_ == Recompute::full) {
    const at::AutoGradMode graph(true);
    kept.outputs = compute(microbatch, kept.inputs, kept.calls, place_.last).tensors;
  }
  std::vector<at::Tensor> roots, root_gradients;
  auto gradient = of_outputs.tensors.begin();
  for (const at::Tensor& output : std::exchange(kept.outputs, {})) {
    if (!output.is_floating_point()) continue;
    at::Tensor of_output = place_.last ? at::ones_like(output) : *gradient++;
    if (!output.requires_grad() || !of_output.defined()) continue;
    roots.push_back(output);
    root_gradients.push_back(std::move(of_output));
  }
  std::vector<at::Tensor> targets;
  if (!place_.first)
    std::ranges::copy_if(kept.inputs, std::back_inserter(targets),
                         [](const at::Tensor& input) { return input.requires_grad(); });
  const auto inputs = static_cast<ptrdiff_t>(targets.size());
  targets.insert(targets.end(), parameters_.begin(), parameters_.end());
  std::vector<at::Tensor> all(targets.size());
  if (!roots.empty() && !targets.empty()) {
    std::optional<nn::WeightGradients::Active> active;
    if (split_) active.emplace(kept.later.emplace(roots));
    all = torch::autograd::grad(roots, targets, root_gradients, /*retain_graph=*/std::nullopt,
                                /*create_graph=*/false, /*allow_unused=*/true);
  }
  kept.inputs.clear();
  kept.gradients.assign(all.begin() + inputs, all.end());
  all.resize(static_cast<size_t>(inputs));
  return {.tensors = std::move(all)};
}

std::vector<at::Tensor> StageRun::gradients(int microbatch) {
  auto node = kept_.extract(microbatch);
  Kept& kept = node.mapped();
  if (kept.later)
    for (auto& [weight, gradient] : kept.later->take())
      if (const size_t place = place_among(parameters_, weight); place < parameters_.size())
        kept.gradients[place] = std::move(gradient);
  return std::move(kept.gradients);
}

}  // namespace tutti::parallel::detail
