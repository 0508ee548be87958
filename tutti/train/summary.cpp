// Model::summary(): what a model is made of, and what a replica of it takes.
#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>

#include "tutti/sync/tensors.h"
#include "tutti/train/model_state.h"

namespace tutti {
namespace {

/// Names, shapes and elements of parameters, for modules whose layers cannot be read.
std::string parameter_table(const NamedTensors& parameters) {
  size_t name_width = 9;
  size_t shape_width = 5;
  for (const auto& [name, tensor] : parameters) {
    name_width = std::max(name_width, name.size());
    shape_width = std::max(shape_width, nn::to_string(tensor.sizes().vec()).size());
  }
  std::string out = fmt::format("{:<{}}  {:<{}}  {:>12}\n", "parameter", name_width, "shape",
                                shape_width, "elements");
  for (const auto& [name, tensor] : parameters)
    out += fmt::format("{:<{}}  {:<{}}  {:>12}\n", name, name_width,
                       nn::to_string(tensor.sizes().vec()), shape_width,
                       with_commas(static_cast<double>(tensor.numel())));
  return out;
}

struct Sizes {
  int64_t elements = 0;
  int64_t bytes = 0;
  void add(const at::Tensor& tensor) {
    elements += tensor.numel();
    bytes += static_cast<int64_t>(tensor.nbytes());
  }
};

std::string words(int64_t number) { return with_commas(static_cast<double>(number)); }

std::string states_in_words(const detail::Compiled* compiled, int64_t trained_bytes) {
  if (compiled == nullptr) return "optimizer states: after compile()";
  if (!compiled->num_states) return "optimizer states: a torch optimizer's own";
  return fmt::format("{} optimizer states", words(*compiled->num_states * trained_bytes));
}

}  // namespace

std::string Model::summary() const {
  const torch::nn::Module& module = *state_->modules.module(0);
  const NamedTensors parameters = unique_parameters(module);
  Sizes trained;
  Sizes frozen;
  Sizes buffers;
  for (const auto& [name, tensor] : parameters)
    (tensor.requires_grad() ? trained : frozen).add(tensor);
  for (const auto& [name, tensor] : unique_buffers(module)) buffers.add(tensor);
  const detail::Compiled* compiled = state_->compiled ? &*state_->compiled : nullptr;
  return fmt::format(
      "{}parameters: {} trained, {} frozen\n"
      "bytes a replica: {} parameters, {} gradients, {} buffers, {}\n",
      state_->graph ? state_->graph->summary() : parameter_table(parameters),
      words(trained.elements), words(frozen.elements), words(trained.bytes + frozen.bytes),
      words(trained.bytes), words(buffers.bytes), states_in_words(compiled, trained.bytes));
}

}  // namespace tutti
