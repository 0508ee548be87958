// Model::summary(): what a model is made of, and what a replica of it takes.
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include <algorithm>
#include <sstream>

#include "tutti/base/error.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/model/detail/adapters.h"
#include "tutti/train/model/detail/model_state.h"
#include "tutti/train/model/detail/placement.h"

namespace tutti {
namespace {

struct Layer {
  std::string name;   ///< in the module: "block.fc"; "" where it is the module
  std::string kind;   ///< with its options: "Linear(in_features=4, out_features=3, bias=true)"
  std::string shape;  ///< of its output
  int64_t parameters = 0;
};

std::string kind_of(const torch::nn::Module& module) {
  std::ostringstream out;
  if (module.children().empty())
    module.pretty_print(out);
  else
    out << module.name();
  std::string kind = std::move(out).str();
  constexpr std::string_view kPrefix = "torch::nn::";
  return kind.starts_with(kPrefix) ? kind.substr(kPrefix.size()) : kind;
}

/// Modules without parts, and those with parameters of their own beside them.
std::vector<Layer> layers_of(const torch::nn::Module& module) {
  std::vector<Layer> layers;
  const auto add = [&](const std::string& name, const torch::nn::Module& part) {
    const auto own = part.parameters(/*recurse=*/false);
    if (!part.children().empty() && own.empty()) return;
    int64_t elements = 0;
    for (const at::Tensor& parameter : own) elements += parameter.numel();
    layers.push_back({name, kind_of(part), "", elements});
  };
  add("", module);
  for (const auto& part : module.named_modules("", /*include_self=*/false))
    add(part.key(), *part.value());
  return layers;
}

/// What each of the layers makes of zeros of that shape; in evaluation mode.
std::vector<std::string> shapes_of(torch::nn::SequentialImpl& layers,
                                   const std::vector<int64_t>& sample) {
  const at::NoGradGuard no_grad;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes;
  for (const auto& part : layers.modules()) modes.emplace_back(part, part->is_training());
  const auto put_back = [&] {
    for (const auto& [part, training] : modes) part->train(training);
  };
  layers.eval();
  std::vector<int64_t> batch{1};
  batch.insert(batch.end(), sample.begin(), sample.end());
  std::vector<std::string> shapes;
  try {
    at::Tensor x = at::zeros(batch, detail::device_of(layers));
    for (auto& layer : layers) {
      at::Tensor next = layer.forward<at::Tensor>(x);
      x = std::move(next);
      shapes.push_back(nn::to_string(x.sizes().slice(1).vec()));
    }
  } catch (const std::exception& error) {
    put_back();
    const auto* const torch_error = dynamic_cast<const c10::Error*>(&error);
    throw UsageError(
        fmt::format("summary: layer \"{}\" does not take what samples of {} become: {}",
                    shapes.size(), nn::to_string(sample),
                    torch_error != nullptr ? torch_error->what_without_backtrace() : error.what()));
  }
  put_back();
  return shapes;
}

std::vector<Layer> layers_with_shapes(torch::nn::Module& module,
                                      const std::vector<int64_t>& sample) {
  auto* const sequence = dynamic_cast<torch::nn::SequentialImpl*>(&module);
  if (sequence == nullptr)
    throw UsageError(
        "summary: output shapes are known of an nn::Graph, and of a Sequential when it is told the "
        "shape of a sample; this is another module: leave the shape out");
  std::vector<Layer> layers;
  const auto parts = module.named_children();
  const auto shapes = shapes_of(*sequence, sample);
  for (size_t i = 0; i < shapes.size(); ++i) {
    int64_t elements = 0;
    for (const at::Tensor& parameter : parts[i].value()->parameters())
      elements += parameter.numel();
    layers.push_back({parts[i].key(), kind_of(*parts[i].value()), shapes[i], elements});
  }
  return layers;
}

std::string table_of(const std::vector<Layer>& layers) {
  size_t name = 5;
  size_t kind = 4;
  size_t shape = 0;
  for (const Layer& layer : layers) {
    name = std::max(name, layer.name.size());
    kind = std::max(kind, layer.kind.size());
    if (!layer.shape.empty()) shape = std::max({shape, layer.shape.size(), size_t{12}});
  }
  const auto line = [&](const auto& first, const auto& second, const auto& third,
                        const auto& last) {
    const std::string middle = shape == 0 ? "" : fmt::format("  {:<{}}", third, shape);
    return fmt::format("{:<{}}  {:<{}}{}  {:>12}\n", first, name, second, kind, middle, last);
  };
  std::string out = line("layer", "kind", "output shape", "parameters");
  for (const Layer& layer : layers)
    out += line(layer.name, layer.kind, layer.shape,
                with_commas(static_cast<double>(layer.parameters)));
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

std::string Model::summary(const std::vector<int64_t>& sample) const {
  torch::nn::Module& module = *state_->modules.module(0);
  if (state_->graph && !sample.empty())
    throw UsageError("summary: a graph knows its shapes; leave that of a sample out");
  const NamedTensors parameters = unique_parameters(module);
  Sizes trained;
  Sizes frozen;
  Sizes buffers;
  for (const auto& [name, tensor] : parameters)
    (tensor.requires_grad() ? trained : frozen).add(tensor);
  if (const auto* const own = detail::adapted(module))
    for (const auto& [name, tensor] : detail::base_of(*own).parameters) frozen.add(tensor);
  for (const auto& [name, tensor] : unique_buffers(module)) buffers.add(tensor);
  const detail::Compiled* compiled = state_->compiled ? &*state_->compiled : nullptr;
  return fmt::format(
      "{}parameters: {} trained, {} frozen\n"
      "bytes a replica: {} parameters, {} gradients, {} buffers, {}\n",
      state_->graph    ? state_->graph->summary()
      : sample.empty() ? table_of(layers_of(module))
                       : table_of(layers_with_shapes(module, sample)),
      words(trained.elements), words(frozen.elements), words(trained.bytes + frozen.bytes),
      words(trained.bytes), words(buffers.bytes), states_in_words(compiled, trained.bytes));
}

}  // namespace tutti
