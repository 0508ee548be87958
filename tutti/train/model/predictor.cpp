#include "tutti/train/model/predictor.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/exported/module.h"
#include "tutti/exported/report.h"
#include "tutti/nn/detail/graph_step.h"
#include "tutti/nn/graph_module.h"
#include "tutti/sync/detail/vector_math.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/model/detail/adapters.h"
#include "tutti/train/model/detail/joined_predictions.h"
#include "tutti/train/model/saved_model.h"
#include "tutti/train/model/weights_found.h"

namespace tutti {
namespace {

void require_dtype(const nn::Graph& graph, size_t number, const at::Tensor& input) {
  const nn::Port& port = graph.inputs()[number];
  const auto& op = std::get<nn::op::Input>(graph.nodes()[static_cast<size_t>(port.node)].op);
  if (!input.defined())
    throw UsageError(fmt::format("predict: input \"{}\" is an undefined tensor", port.name));
  const auto wanted = scalar_type_of(op.dtype);
  if (input.scalar_type() == wanted && input.is_cpu()) return;
  throw UsageError(fmt::format("predict: input \"{}\" is {} on {}, expected {} on cpu", port.name,
                               at::toString(input.scalar_type()), input.device().str(),
                               at::toString(wanted)));
}

std::vector<std::string> names_of(const std::vector<nn::Port>& ports) {
  std::vector<std::string> names;
  for (const nn::Port& port : ports) names.push_back(port.name);
  return names;
}

void require_independent_calls(const FromExport& network) {
  network.require_evaluation();
  if (network.evaluation() == nullptr) return;
  const auto differences = exported::report_of(*network.evaluation()).differs_in_evaluation;
  if (differences.empty()) return;
  const auto& [name, reason, line] = differences.front();
  throw UsageError(fmt::format(
      "predict: {}: {} {}{}{}, so that an answer would depend on those before it; was it exported "
      "after eval()?",
      network.evaluation_path().string(), name, reason, line.empty() ? "" : " at ", line));
}

/// As many of each input: else the model says what is wrong.
bool are_rows(at::TensorList inputs) {
  return std::ranges::all_of(inputs, [&](const at::Tensor& input) {
    return input.defined() && input.dim() > 0 && input.size(0) == inputs.front().size(0);
  });
}

template <class Module>
void prepare(Module& module) {
  detail::settle_vector_math();  // many threads may predict
  module.eval();
  for (at::Tensor& parameter : module.parameters()) parameter.set_requires_grad(false);
}

}  // namespace

Predictor Predictor::load(const std::filesystem::path& place) {
  if (place.extension() == ".pt2") return load(from_export(place));
  if (const auto saved = find_saved_export(place)) return load(saved->network, saved->weights);
  const auto module = module_of(find_saved_model(place));
  prepare(*module);
  return Predictor({module->graph(), names_of(module->graph().inputs()),
                    names_of(module->graph().outputs()),
                    [module](at::TensorList inputs) { return module->forward_all(inputs); }});
}

Predictor Predictor::load(const FromExport& network, const std::filesystem::path& weights) {
  require_independent_calls(network);
  const auto module = network();
  if (!weights.empty()) {
    const auto found = weights_in(weights);
    if (found.empty())
      throw UsageError(fmt::format("predict: {}: no weights are there", weights.string()));
    const at::NoGradGuard no_grad;
    detail::load_module(*module, found.back().path);
  }
  prepare(*module);
  return Predictor({std::nullopt, module->input_names(), module->output_names(),
                    [module](at::TensorList inputs) { return module->forward_all(inputs); },
                    module});
}

Predictor Predictor::batched(const BatchingOptions& options) const {
  if (parts_->exported) detail::require_joinable(*parts_->exported, options.max_batch);
  Parts parts = *parts_;
  parts.joined = std::make_shared<detail::JoinedPredictions>(parts.forward, options);
  return Predictor(std::move(parts));
}

CallCounts Predictor::joined() const {
  if (parts_->joined) return parts_->joined->counts();
  throw UsageError("predict: joined(): each call is a pass of its own; see batched()");
}

const nn::Graph& Predictor::graph() const {
  if (parts_->graph) return *parts_->graph;
  throw UsageError("predict: graph(): the network was written in Python, and is no nn::Graph");
}

std::vector<at::Tensor> Predictor::predict_all(const std::vector<at::Tensor>& inputs) const {
  return outputs_of(inputs);
}

at::Tensor Predictor::predict(const at::Tensor& batch) const {
  if (parts_->outputs.size() != 1)
    throw UsageError(fmt::format("predict: the model has {} outputs; use predict_all()",
                                 parts_->outputs.size()));
  return std::move(outputs_of(batch).front());
}

std::vector<at::Tensor> Predictor::outputs_of(at::TensorList inputs) const {
  const size_t known = parts_->graph ? parts_->inputs.size() : 0;  // others check their own
  for (size_t i = 0; i < std::min(inputs.size(), known); ++i) require_dtype(graph(), i, inputs[i]);
  if (parts_->joined && inputs.size() == parts_->inputs.size() && are_rows(inputs)) {
    if (parts_->graph) nn::detail::check_inputs(graph(), graph().inputs(), inputs);
    const auto while_it_waits = parts_;
    return while_it_waits->joined->ask(inputs);
  }
  const at::NoGradGuard no_grad;
  return parts_->forward(inputs);
}

}  // namespace tutti
