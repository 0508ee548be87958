#include "tutti/parallel/stages/detail/stage_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/autograd.h>

#include <algorithm>
#include <numeric>
#include <ranges>
#include <string_view>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/data/detail/row_error.h"
#include "tutti/strategy/detail/own_random_numbers.h"
#include "tutti/sync/tensors.h"

namespace tutti::parallel::detail {
namespace {

size_t place_among(const std::vector<at::Tensor>& tensors, const at::Tensor& one) {
  return static_cast<size_t>(
      std::ranges::find_if(tensors, [&](const at::Tensor& other) { return other.is_same(one); }) -
      tensors.begin());
}

// A second forward pass would move them twice.
void require_no_running_statistics(const torch::nn::Module& layer, const std::string& stage) {
  const auto buffers = layer.named_buffers(/*recurse=*/false);
  if (layer.is_training() && buffers.contains("running_mean") && buffers["running_mean"].defined())
    throw UsageError(fmt::format(
        "pipeline: {} has {}, whose running statistics a second forward pass would move again; "
        "leave recompute off, or put the layer into evaluation mode",
        stage, layer.name()));
}

uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor._version();
}

at::Tensor generator_state() { return tutti::detail::generator_of_operators().get_state(); }

/// For what is computed again: numbers are drawn as they were in F, and then on from where it was.
class DrawnAgain {
 public:
  explicit DrawnAgain(const at::Tensor& state) {
    if (!state.defined()) return;
    generator_ = tutti::detail::generator_of_operators();
    now_ = generator_.get_state();
    generator_.set_state(state);
  }
  DrawnAgain(const DrawnAgain&) = delete;
  ~DrawnAgain() {
    if (now_.defined()) generator_.set_state(now_);
  }

 private:
  at::Generator generator_;
  at::Tensor now_;
};

// A parameter that two spans read: autograd, too, adds to what came first from behind.
void add_gradient(at::Tensor& sum, at::Tensor gradient) {
  if (!gradient.defined()) return;
  sum = sum.defined() ? sum + gradient : std::move(gradient);
}

}  // namespace

StageRun::StageRun(Stage stage, Place place, bool split)
    : stage_(std::move(stage)), place_(place), split_(split) {
  if (stage_.spans.empty()) stage_.spans = {{.forward = stage_.forward}};
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
  for (const Span& span : stage_.spans) {
    if (!span.recompute) continue;
    for (const torch::nn::Module* layer : span.layers)
      require_no_running_statistics(*layer, name());
    if (span.layers.empty())
      for (const auto& layer : stage_.module->modules())
        require_no_running_statistics(*layer, name());
  }
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

int64_t StageRun::rows_before(int microbatch) const {
  return std::accumulate(sizes_.begin(), sizes_.begin() + microbatch, int64_t{0});
}

Parcel StageRun::in_context(int microbatch, int64_t calls,
                            const std::function<std::vector<at::Tensor>()>& run) {
  if (!sample_place_) return {.tensors = run()};
  nn::SamplePlace place = *sample_place_;
  place.first_row += rows_before(microbatch);
  nn::SampleContext context(place);
  for (int64_t call = 0; call < calls; ++call) context.next_call();
  Parcel outputs{.tensors = run()};
  outputs.calls = context.next_call();
  return outputs;
}

std::vector<at::Tensor> StageRun::loss_of(int microbatch, at::TensorList outputs) const {
  const at::Tensor loss = loss_(microbatch, outputs);
  if (!loss.defined() || loss.numel() != 1)
    throw UsageError(fmt::format(
        "pipeline: the loss of microbatch {} is {}, expected one element", microbatch,
        loss.defined() ? fmt::format("[{}]", fmt::join(loss.sizes(), ", ")) : "undefined"));
  return {loss};
}

std::vector<at::Tensor> StageRun::forward_of(int microbatch, size_t span,
                                             const std::vector<at::Tensor>& inputs) const {
  try {
    return stage_.spans[span].forward(inputs);
  } catch (const tutti::detail::RowError& error) {
    throw error.of_part(rows_before(microbatch));
  }
}

Parcel StageRun::compute(int microbatch, size_t span, const std::vector<at::Tensor>& inputs,
                         int64_t calls) {
  return in_context(microbatch, calls, [&] {
    auto outputs = forward_of(microbatch, span, inputs);
    if (ends(span)) return loss_of(microbatch, outputs);
    if (span + 1 == stage_.spans.size()) require_borders(microbatch, outputs);
    return outputs;
  });
}

Parcel StageRun::evaluate(int microbatch, const Parcel& inputs) {
  const at::NoGradGuard no_gradient;
  return in_context(microbatch, inputs.calls, [&] {
    auto outputs = stage_.forward(inputs.tensors);
    if (!place_.last) require_borders(microbatch, outputs);
    return outputs;
  });
}

Parcel StageRun::forward(int microbatch, Parcel inputs) {
  kept_[microbatch].resize(stage_.spans.size());
  for (size_t span = 0; span < stage_.spans.size(); ++span)
    inputs = forward_span(microbatch, span, std::move(inputs));
  return inputs;
}

Parcel StageRun::forward_span(int microbatch, size_t span, Parcel inputs) {
  Kept& kept = kept_[microbatch][span];
  kept.calls = inputs.calls;
  kept.inputs = std::move(inputs.tensors);
  const bool again = stage_.spans[span].recompute;
  if (!begins(span))
    for (at::Tensor& input : kept.inputs) {
      input = input.detach();
      if (input.is_floating_point()) input.requires_grad_();
    }
  if (again && ends(span)) return {};  // nobody waits for it: B does it all
  const at::AutoGradMode graph(!again);
  const at::Tensor before = again ? generator_state() : at::Tensor();
  Parcel outputs = compute_from_kept(microbatch, span);
  if (again && !at::equal(before, generator_state())) kept.drawn_from = before;
  if (!again) kept.outputs = outputs.tensors;
  if (ends(span)) return {};
  return outputs;
}

// LibTorch refuses to write into what needs a gradient; what is to be computed again does not need
// one yet.
Parcel StageRun::compute_from_kept(int microbatch, size_t span) {
  const Kept& kept = kept_[microbatch][span];
  const auto refuse = [&] {
    throw UsageError(fmt::format(
        "pipeline: span {} of {} writes into its inputs, which backward needs; begin it "
        "before the layer that they come from",
        span, name()));
  };
  std::vector<uint32_t> versions;
  for (const at::Tensor& input : kept.inputs) versions.push_back(version_of(input));
  Parcel outputs;
  try {
    outputs = compute(microbatch, span, kept.inputs, kept.calls);
  } catch (const c10::Error& error) {
    if (std::string_view(error.what()).find("in-place operation") != std::string_view::npos &&
        !begins(span))
      refuse();
    throw;
  }
  if (stage_.spans[span].recompute && !std::ranges::equal(kept.inputs, versions, {}, version_of))
    refuse();
  return outputs;
}

Parcel StageRun::backward(int microbatch, Parcel of_outputs) {
  for (size_t span = stage_.spans.size(); span-- > 0;)
    of_outputs = backward_span(microbatch, span, std::move(of_outputs));
  return of_outputs;
}

Parcel StageRun::backward_span(int microbatch, size_t span, Parcel of_outputs) {
  Kept& kept = kept_.at(microbatch)[span];
  if (stage_.spans[span].recompute) {
    const at::AutoGradMode graph(true);
    const DrawnAgain numbers(std::exchange(kept.drawn_from, at::Tensor()));
    kept.outputs = compute_from_kept(microbatch, span).tensors;
  }
  std::vector<at::Tensor> roots, root_gradients;
  auto gradient = of_outputs.tensors.begin();
  for (const at::Tensor& output : std::exchange(kept.outputs, {})) {
    if (!output.is_floating_point()) continue;
    at::Tensor of_output = ends(span) ? at::ones_like(output) : *gradient++;
    if (!output.requires_grad() || !of_output.defined()) continue;
    roots.push_back(output);
    root_gradients.push_back(std::move(of_output));
  }
  std::vector<at::Tensor> targets;
  if (!begins(span))
    std::ranges::copy_if(kept.inputs, std::back_inserter(targets),
                         [](const at::Tensor& input) { return input.requires_grad(); });
  const size_t inputs = targets.size();
  targets.insert(targets.end(), parameters_.begin(), parameters_.end());
  std::vector<at::Tensor> all(targets.size());
  if (!roots.empty() && !targets.empty()) {
    std::optional<nn::WeightGradients::Active> active;
    if (split_) active.emplace(kept.later.emplace(roots));
    all = torch::autograd::grad(roots, targets, root_gradients, /*retain_graph=*/std::nullopt,
                                /*create_graph=*/false, /*allow_unused=*/true);
  }
  kept.inputs.clear();
  kept.gradients.assign(all.begin() + static_cast<ptrdiff_t>(inputs), all.end());
  all.resize(inputs);
  return {.tensors = std::move(all)};
}

std::vector<at::Tensor> StageRun::gradients(int microbatch) {
  auto node = kept_.extract(microbatch);
  std::vector<at::Tensor> sums(parameters_.size());
  for (Kept& span : node.mapped() | std::views::reverse) {
    if (span.later)
      for (auto& [weight, gradient] : span.later->take())
        if (const size_t place = place_among(parameters_, weight); place < parameters_.size())
          span.gradients[place] = std::move(gradient);
    for (size_t i = 0; i < sums.size(); ++i) add_gradient(sums[i], std::move(span.gradients[i]));
  }
  return sums;
}

}  // namespace tutti::parallel::detail
