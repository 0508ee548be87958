#include "tutti/train/losses/losses.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <algorithm>
#include <initializer_list>
#include <map>
#include <numeric>
#include <sstream>
#include <typeinfo>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/base/suggest.h"
#include "tutti/nn/detail/lowering.h"
#include "tutti/train/losses/detail/loss_parts.h"
#include "tutti/train/losses/overlap.h"

namespace tutti {

namespace {

class FunctionKernel : public LossKernel {
 public:
  FunctionKernel(std::string name, Loss::Function function, std::optional<bool> from_logits,
                 detail::LoweredFormula lowered = {})
      : name_(std::move(name)),
        function_(std::move(function)),
        from_logits_(from_logits),
        lowered_(std::move(lowered)) {
    if (!function_) throw UsageError(fmt::format("loss {}: its function is empty", name_));
  }

  std::optional<bool> from_logits() const override { return from_logits_; }

  std::optional<hlo::Value> lower(const hlo::Value& output,
                                  const hlo::Value& target) const override {
    if (!lowered_) return {};
    return lowered_(output, target);
  }

  at::Tensor per_sample(const at::Tensor& output, const at::Tensor& target) const override {
    if (from_logits_.value_or(false)) detail::warn_of_probabilities(name_, output);
    at::Tensor losses = function_(output, target);
    const int64_t samples = target.dim() == 0 ? 1 : target.size(0);
    if (losses.dim() != 1 || losses.size(0) != samples)
      throw UsageError(
          fmt::format("loss {}: got {} of an output {} for {} samples, expected one value a sample",
                      name_, detail::tensor_words(losses), detail::tensor_words(output), samples));
    return losses;
  }

 private:
  std::string name_;
  Loss::Function function_;
  std::optional<bool> from_logits_;
  detail::LoweredFormula lowered_;
};

struct KnownGradient : torch::autograd::Function<KnownGradient> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& output,
                            const at::Tensor& gradient, double value) {
    context->save_for_backward({gradient});
    at::Tensor scalar = at::empty({}, output.options());
    *scalar.data_ptr<float>() = static_cast<float>(value);
    return scalar;
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list above) {
    const at::Tensor gradient = context->get_saved_variables()[0];
    const bool is_root = above[0].is_cpu() && *above[0].data_ptr<float>() == 1.0F;
    return {is_root ? gradient : gradient * above[0], {}, {}};
  }
};

Loss loss_of(std::string name, bool over_classes, detail::LossFormulas formulas,
             std::optional<bool> from_logits) {
  const auto per_sample = [name, over_classes, formula = std::move(formulas.of_tensors)](
                              const at::Tensor& output, const at::Tensor& target) {
    detail::require_pair(name, output, target, over_classes);
    const auto own = output.scalar_type();
    const bool half = own == torch::kFloat16 || own == torch::kBFloat16;
    const auto dtype = half ? torch::kFloat32 : own;
    const at::Tensor values = formula(output.to(dtype), target.to(dtype).reshape(output.sizes()));
    return values.dim() == 1 ? values : values.flatten(1).mean(1);
  };
  const auto lowered = [formula = std::move(formulas.lowered)](hlo::Value output,
                                                               hlo::Value target) {
    const hlo::Value wanted = hlo::reshape(hlo::convert(target, DType::float32), output.shape());
    return detail::mean_of_samples(formula(output, wanted));
  };
  auto kernel = std::make_shared<FunctionKernel>(name, per_sample, from_logits, lowered);
  return {std::move(name), std::move(kernel)};
}

/// All losses with default options, by name.
const std::map<std::string, Loss, std::less<>>& known_losses() {
  static const auto known = [] {
    using namespace losses;
    std::map<std::string, Loss, std::less<>> by_name;
    for (const Loss& loss : {sparse_categorical_crossentropy(),
                             categorical_crossentropy(),
                             binary_crossentropy(),
                             mean_squared_error(),
                             mean_absolute_error(),
                             mean_absolute_percentage_error(),
                             mean_squared_logarithmic_error(),
                             huber(),
                             log_cosh(),
                             hinge(),
                             squared_hinge(),
                             categorical_hinge(),
                             kl_divergence(),
                             poisson(),
                             cosine_similarity(),
                             binary_focal_crossentropy(),
                             categorical_focal_crossentropy(),
                             dice(),
                             tversky(),
                             ctc()}) {
      by_name.emplace(loss.name(), loss);
    }
    return by_name;
  }();
  return known;
}

}  // namespace

namespace detail {

std::string tensor_words(const at::Tensor& tensor) {
  std::ostringstream out;
  out << tensor.scalar_type() << " " << tensor.sizes();
  return out.str();
}

void require_option(bool in_range, std::string_view loss, std::string_view field, double value,
                    std::string_view range) {
  if (in_range) return;
  throw UsageError(
      fmt::format("loss {}: {} = {} is out of range; expected {}", loss, field, value, range));
}

void require_pair(std::string_view loss, const at::Tensor& output, const at::Tensor& target,
                  bool of_one_shape) {
  const bool dtypes_fit =
      output.is_floating_point() && (target.scalar_type() == output.scalar_type() ||
                                     at::isIntegralType(target.scalar_type(), true));
  const bool elements_fit = output.dim() >= 1 && target.dim() >= 1 &&
                            output.size(0) == target.size(0) && output.numel() == target.numel();
  const bool shapes_fit =
      of_one_shape ? output.dim() >= 2 && output.sizes() == target.sizes() : elements_fit;
  if (dtypes_fit && shapes_fit) return;
  throw UsageError(fmt::format(
      "{}: got output {} and target {}, expected a floating output, a target of the same dtype or "
      "integers, and {}",
      loss, tensor_words(output), tensor_words(target),
      of_one_shape ? "both [batch, ..., classes] of one shape" : "as many elements a sample"));
}

bool plain_floats(const at::Tensor& tensor) {
  return tensor.scalar_type() == torch::kFloat32 && tensor.is_cpu() && tensor.is_contiguous();
}

std::vector<double> sample_weights(const at::Tensor& weights, int64_t samples) {
  if (!weights.defined()) return {};
  if (weights.dim() != 1 || weights.size(0) != samples || !weights.is_floating_point()) {
    throw UsageError(fmt::format("weights of samples: got {}, expected floating [{}], one a sample",
                                 tensor_words(weights), samples));
  }
  const at::Tensor wide = weights.detach().to(torch::kCPU, torch::kFloat64).contiguous();
  const double* first = wide.data_ptr<double>();
  return {first, first + samples};
}

double sum_in_order(const at::Tensor& per_sample, const std::vector<double>& weights) {
  const at::Tensor values = per_sample.detach().to(torch::kCPU, torch::kFloat64).contiguous();
  const double* value = values.data_ptr<double>();
  double sum = 0;
  for (int64_t i = 0; i < values.numel(); ++i) {
    sum += weights.empty() ? value[i] : weights[static_cast<size_t>(i)] * value[i];
  }
  return sum;
}

at::Tensor with_gradient(const at::Tensor& output, const at::Tensor& gradient, double value) {
  return KnownGradient::apply(output, gradient, value);
}

Loss loss_of_elements(std::string name, LossFormulas formulas, std::optional<bool> from_logits) {
  return loss_of(std::move(name), false, std::move(formulas), from_logits);
}

Loss loss_over_classes(std::string name, LossFormulas formulas, std::optional<bool> from_logits) {
  return loss_of(std::move(name), true, std::move(formulas), from_logits);
}

hlo::Value mean_of_samples(hlo::Value values) {
  const int64_t batch = values.shape()[0], each = hlo::num_elements(values.type()) / batch;
  if (values.shape().size() == 1) return values;
  return hlo::reduce_sum(hlo::reshape(values, {batch, each}), {1}) / static_cast<double>(each);
}

hlo::Value sum_over_last(hlo::Value values) {
  return hlo::reduce_sum(values, {static_cast<int64_t>(values.shape().size()) - 1});
}

hlo::Value along_last(hlo::Value values, const hlo::Shape& shape) {
  std::vector<int64_t> dimensions(values.shape().size());
  std::iota(dimensions.begin(), dimensions.end(), 0);
  return hlo::broadcast(values, shape, dimensions);
}

hlo::Value at_least(hlo::Value values, double least) {
  // By select, through which the gradient goes at the bound, as LibTorch's clamp has it.
  return hlo::select(hlo::compare(values, hlo::Comparison::lt, least),
                     hlo::constant(values.program(), values.type(), least), values);
}

hlo::Value clamped(hlo::Value values, double least, double most) {
  const hlo::Value above = at_least(values, least);
  return hlo::select(hlo::compare(above, hlo::Comparison::gt, most),
                     hlo::constant(values.program(), values.type(), most), above);
}

hlo::Value softplus(hlo::Value x) { return nn::detail::softplus(x); }

namespace {

bool begins_with(const std::string& name, std::initializer_list<std::string_view> all) {
  return std::ranges::any_of(all, [&](std::string_view one) { return name.starts_with(one); });
}

}  // namespace

// What reshapes or converts may stand between a layer and its loss. Names cost a microsecond; the
// last one that was harmless is known by its type.
void warn_of_probabilities(std::string_view loss, const at::Tensor& output) {
  thread_local const std::type_info* harmless = nullptr;
  for (const auto* node = output.grad_fn().get(); node != nullptr;
       node = node->next_edge(0).function.get()) {
    if (harmless != nullptr && typeid(*node) == *harmless) return;
    const std::string name = node->name();
    if (begins_with(name, {"Squeeze", "View", "UnsafeView", "Reshape", "ToCopy"})) continue;
    const bool softmax = begins_with(name, {"Softmax"});
    if (softmax || begins_with(name, {"Sigmoid"}))
      log_once(fmt::format("loss {} of probabilities", loss), LogLevel::warning,
               "loss {}: it takes outputs for logits, but these come from a {}, which it applies "
               "itself: leave that out of the model, or set .from_logits = false",
               loss, softmax ? "softmax" : "sigmoid");
    else
      harmless = &typeid(*node);
    return;
  }
}

}  // namespace detail

std::optional<hlo::Value> LossKernel::lower(const hlo::Value& output,
                                            const hlo::Value& target) const {
  (void)output, (void)target;
  return {};
}

void LossKernel::check_targets(const at::Tensor& output, const at::Tensor& target) const {
  (void)output, (void)target;
}

at::Tensor LossKernel::scaled_sum(const at::Tensor& output, const at::Tensor& target, double scale,
                                  double& total, const at::Tensor& weights) const {
  const at::Tensor losses = per_sample(output, target);
  total += detail::sum_in_order(losses, detail::sample_weights(weights, losses.numel()));
  if (!weights.defined()) return losses.sum() * scale;
  return (losses * weights.detach().to(losses.options())).sum() * scale;
}

at::Tensor LossKernel::scaled_sum(const at::Tensor& output, const at::Tensor& target, double scale,
                                  double& total) const {
  return scaled_sum(output, target, scale, total, at::Tensor());
}

void LossKernel::add_to(const at::Tensor& output, const at::Tensor& target, double& total,
                        const at::Tensor& weights) const {
  torch::NoGradGuard no_grad;
  const at::Tensor losses = per_sample(output, target);
  total += detail::sum_in_order(losses, detail::sample_weights(weights, losses.numel()));
}

void LossKernel::add_to(const at::Tensor& output, const at::Tensor& target, double& total) const {
  add_to(output, target, total, at::Tensor());
}

Loss::Loss(std::string name, std::shared_ptr<const LossKernel> kernel)
    : name_(std::move(name)), kernel_(std::move(kernel)) {
  if (!kernel_) throw UsageError(fmt::format("loss {}: its kernel is null", name_));
}

Loss::Loss(std::string name, Function per_sample, std::optional<bool> from_logits)
    : name_(name),
      kernel_(
          std::make_shared<FunctionKernel>(std::move(name), std::move(per_sample), from_logits)) {}

at::Tensor Loss::operator()(const at::Tensor& output, const at::Tensor& target, Reduction reduction,
                            const at::Tensor& weights) const {
  at::Tensor losses = kernel_->per_sample(output, target);
  detail::sample_weights(weights, losses.numel());  // refuses what does not fit
  if (weights.defined()) losses = losses * weights.detach().to(losses.options());
  if (reduction == Reduction::none) return losses;
  const at::Tensor sum = losses.sum();
  if (reduction == Reduction::sum) return sum;
  const auto counted = kernel_->counted(target.cpu());
  if (!counted) return sum / static_cast<double>(std::max<int64_t>(losses.numel(), 1));
  const int64_t positions = losses.numel() == 0 ? 1 : target.numel() / losses.numel();
  return sum *
         (*counted == 0 ? 0.0 : static_cast<double>(positions) / static_cast<double>(*counted));
}

at::Tensor Loss::operator()(const at::Tensor& output, const at::Tensor& target,
                            Reduction reduction) const {
  return (*this)(output, target, reduction, at::Tensor());
}

namespace losses {

const std::vector<std::string>& loss_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> sorted;
    for (const auto& [name, loss] : known_losses()) sorted.push_back(name);
    return sorted;
  }();
  return names;
}

Loss loss_by_name(std::string_view name) {
  const auto found = known_losses().find(name);
  if (found == known_losses().end()) throw UsageError(unknown_message("loss", name, loss_names()));
  return found->second;
}

}  // namespace losses
}  // namespace tutti
