#include "tutti/parallel/stages/sequential_stages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>

#include "tutti/base/error.h"
#include "tutti/parallel/stages/detail/evaluation_mode.h"
#include "tutti/parallel/stages/detail/layer_spans.h"
#include "tutti/sync/tensors.h"

namespace tutti::parallel {
namespace {

using Children = std::vector<torch::nn::AnyModule>;

void require_cuts(const std::vector<size_t>& cuts, size_t children) {
  const bool rises = std::ranges::adjacent_find(cuts, std::greater_equal()) == cuts.end();
  if (cuts.size() < 2 || cuts.front() != 0 || cuts.back() != children || !rises)
    throw UsageError(fmt::format(
        "sequential_stages: got cuts [{}], expected rising numbers from 0 to the {} children",
        fmt::join(cuts, ", "), children));
}

void require_parameters_apart(const std::vector<Stage>& stages) {
  std::map<const at::TensorImpl*, size_t> owners;
  for (size_t s = 0; s < stages.size(); ++s)
    for (const auto& parameter : stages[s].module->named_parameters()) {
      const auto [owner, is_new] = owners.try_emplace(parameter.value().unsafeGetTensorImpl(), s);
      if (!is_new && owner->second != s)
        throw UsageError(fmt::format(
            "sequential_stages: {} of stage {} is a parameter of stage {} too; cut behind both, or "
            "make stages with a Tie",
            parameter.key(), s, owner->second));
    }
}

auto in_a_row(Children children) {
  return [children = std::move(children)](at::TensorList inputs) mutable {
    at::Tensor x = inputs[0];
    for (torch::nn::AnyModule& child : children) x = child.forward(x);
    return std::vector<at::Tensor>{x};
  };
}

// Who knows how often each child reads it, and so how autograd adds.
void require_own_parameters(const Children& children, const std::vector<std::string>& names) {
  std::map<const at::TensorImpl*, size_t> readers;
  for (size_t i = 0; i < children.size(); ++i)
    for (const auto& parameter : children[i].ptr()->named_parameters()) {
      const auto [reader, is_new] = readers.try_emplace(parameter->unsafeGetTensorImpl(), i);
      if (!is_new && reader->second != i)
        throw UsageError(
            fmt::format("recompute: {}.{} is a parameter of child {} too, so that its gradients "
                        "may be added in "
                        "another order; take full",
                        names[i], parameter.key(), names[reader->second]));
    }
}

std::vector<Span> spans_of(const Children& children, const std::vector<std::string>& names,
                           const Recompute& recompute) {
  std::vector<detail::LayerUnit> units;
  for (size_t i = 0; i < children.size(); ++i) {
    const auto module = children[i].ptr();
    const bool trained = !module->parameters().empty();
    units.push_back({.name = names[i], .parameters = trained ? module.get() : nullptr});
  }
  const auto cut = detail::layer_spans(units, recompute);
  if (cut.size() > 1) require_own_parameters(children, names);
  std::vector<Span> spans;
  for (const auto& [begin, end, again] : cut) {
    Children part(children.begin() + static_cast<ptrdiff_t>(begin),
                  children.begin() + static_cast<ptrdiff_t>(end));
    Span span{.recompute = again};
    for (const torch::nn::AnyModule& child : part)
      for (const auto& layer : child.ptr()->modules()) span.layers.push_back(layer.get());
    span.forward = in_a_row(std::move(part));
    spans.push_back(std::move(span));
  }
  return spans;
}

}  // namespace

std::vector<Stage> sequential_stages(torch::nn::Sequential whole, const Border& input,
                                     const std::vector<size_t>& cuts, const Recompute& recompute) {
  const std::vector<std::string> names = whole->named_children().keys();
  require_cuts(cuts, names.size());
  detail::require_layers(names, recompute);
  const at::NoGradGuard no_gradient;
  const detail::EvaluationMode evaluation(*whole);
  auto shape = input.shape;
  shape.insert(shape.begin(), 1);
  at::Tensor value = at::zeros(shape, scalar_type_of(input.dtype));
  std::vector<Stage> stages;
  for (size_t s = 0; s + 1 < cuts.size(); ++s) {
    Stage stage{.module = std::make_shared<torch::nn::Module>("SequentialStage")};
    Children children;
    for (size_t i = cuts[s]; i < cuts[s + 1]; ++i) {
      children.push_back(*(whole->begin() + static_cast<ptrdiff_t>(i)));
      stage.module->register_module(names[i], children.back().ptr());
    }
    stage.forward = in_a_row(children);
    stage.spans = spans_of(children, {names.begin() + static_cast<ptrdiff_t>(cuts[s]), names.end()},
                           recompute);
    value = stage.forward(value)[0];
    if (s > 0) stage.inputs = stages.back().outputs;
    if (s + 2 < cuts.size())
      stage.outputs = {{value.sizes().slice(1).vec(), dtype_of(value.scalar_type())}};
    stages.push_back(std::move(stage));
  }
  require_parameters_apart(stages);
  return stages;
}

}  // namespace tutti::parallel
