#include "tutti/train/model/predictor.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/nn/graph_module.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/model/saved_model.h"

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

}  // namespace

Predictor Predictor::load(const std::filesystem::path& place) {
  const auto module = module_of(find_saved_model(place));
  module->eval();
  for (at::Tensor& parameter : module->parameters()) parameter.set_requires_grad(false);
  return Predictor(std::make_shared<const Parts>(Parts{
      module->graph(), [module](at::TensorList inputs) { return module->forward_all(inputs); }}));
}

std::vector<at::Tensor> Predictor::predict_all(const std::vector<at::Tensor>& inputs) const {
  for (size_t i = 0; i < std::min(inputs.size(), graph().inputs().size()); ++i)
    require_dtype(graph(), i, inputs[i]);
  const at::NoGradGuard no_grad;
  return parts_->forward(inputs);
}

at::Tensor Predictor::predict(const at::Tensor& batch) const {
  if (graph().outputs().size() != 1)
    throw UsageError(fmt::format("predict: the model has {} outputs; use predict_all()",
                                 graph().outputs().size()));
  return std::move(predict_all({batch}).front());
}

}  // namespace tutti
