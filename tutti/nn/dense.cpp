#include "tutti/nn/dense.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/init.h>
#include <torch/types.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <optional>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"
#include "tutti/nn/detail/layers.h"
#include "tutti/nn/weight_gradients.h"
#include "tutti/sync/before_use.h"

namespace tutti::nn {
namespace {

using detail::CpuMaker;

using Product = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                           c10::string_view, c10::List<std::optional<at::Scalar>>,
                           std::optional<c10::string_view>);

// oneDNN's product behind torch.compile; other ways to it want tensors in its own layout.
const std::optional<c10::TypedOperatorHandle<Product>>& onednn_product() {
  static const auto found = []() -> std::optional<c10::TypedOperatorHandle<Product>> {
    const auto schema = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
    if (!schema || !at::hasMKLDNN() || !at::globalContext().userEnabledMkldnn() ||
        !schema->hasKernelForDispatchKey(c10::DispatchKey::CPU))
      return std::nullopt;
    return schema->typed<Product>();
  }();
  return found;
}

// Below this, what oneDNN's call costs (8 us) is more than it gains.
constexpr int64_t kSmallProduct = 1 << 19;

CpuMaker cpu_maker() {
#if defined(__x86_64__)
  if (__builtin_cpu_is("intel")) return CpuMaker::intel;
  if (__builtin_cpu_is("amd")) return CpuMaker::amd;
#endif
  return CpuMaker::other;
}

DenseKernel by_rule() {
  return detail::fastest_kernel({.onednn = onednn_product().has_value(),
                                 .mkl = at::hasMKL(),
                                 .maker = cpu_maker(),
                                 .variant = runnable_variants().back()});
}

std::atomic<DenseKernel>& chosen() {
  static std::atomic<DenseKernel> kernel{by_rule()};
  return kernel;
}

bool by_onednn(int64_t rows, int64_t inner, int64_t columns) {
  return rows * inner * columns >= kSmallProduct && dense_kernel() == DenseKernel::onednn;
}

// a [m, k] times b' of [n, k], either of any strides, plus `bias` [n].
at::Tensor times_transposed(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  // A list each, since threads would contend for the count of its readers.
  thread_local const c10::List<std::optional<at::Scalar>> kNoScalars;
  return onednn_product()->call(a, b, bias.defined() ? std::optional(bias) : std::nullopt, "none",
                                kNoScalars, "");
}

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != at::kBFloat16 && by_onednn(a.size(0), a.size(1), b.size(1)))
    return times_transposed(a, b.t(), {});
  return at::mm(a, b);
}

// What LibTorch makes of these is oneDNN's already, but for the bias, which it adds by itself.
at::Tensor forward_in_bfloat16(const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& bias, bool relu) {
  static const bool by_onednn =
      onednn_product() && runnable_variants().back() == CpuVariant::avx512;
  at::Tensor y = by_onednn ? times_transposed(x, weight, bias) : at::linear(x, weight, bias);
  if (relu) at::relu_(y);
  return y;
}

detail::DenseGradients backward_in_bfloat16(const at::Tensor& gradient, const at::Tensor& x,
                                            const at::Tensor& weight, const at::Tensor& y,
                                            Activation activation, detail::DenseNeeds needs) {
  detail::DenseGradients of;
  of.sum = activation == Activation::relu ? at::threshold_backward(gradient, y, 0) : gradient;
  if (needs.bias) of.bias = at::sum(of.sum, {0}, /*keepdim=*/false, at::kFloat);
  if (needs.x) of.x = detail::dense_input_gradient(of.sum, weight);
  if (needs.weight) of.weight = detail::dense_weight_gradient(of.sum, x);
  return of;
}

struct DenseFunction : torch::autograd::Function<DenseFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight, const std::optional<at::Tensor>& given_bias,
                            Activation activation) {
    const at::Tensor bias = given_bias.value_or(at::Tensor());
    const at::Tensor y = detail::dense_forward(x, weight, bias, activation);
    context->save_for_backward(
        {x, weight, bias, activation == Activation::none ? at::Tensor() : y});
    context->saved_data["activation"] = static_cast<int64_t>(activation);
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto activation = static_cast<Activation>(context->saved_data["activation"].toInt());
    const at::Tensor &x = saved[0], &weight = saved[1], &y = saved[3];
    detail::DenseNeeds needs{.x = context->needs_input_grad(0),
                             .weight = context->needs_input_grad(1),
                             .bias = saved[2].defined() && context->needs_input_grad(2)};
    if (at::GradMode::is_enabled()) {
      const auto of = differentiable(gradients[0], x, weight, y, activation, needs);
      return {of.x, of.weight, of.bias, {}};
    }
    WeightGradients* const later = WeightGradients::current();
    const bool put_off = needs.weight && later != nullptr && later->takes(weight);
    needs.weight = needs.weight && !put_off;
    const auto of =
        detail::dense_backward(gradients[0].contiguous(), x, weight, y, activation, needs);
    if (put_off)
      later->put_off(weight,
                     [sum = of.sum, x = x] { return detail::dense_weight_gradient(sum, x); });
    return {of.x, of.weight, of.bias, {}};
  }

 private:
  // For a backward pass that is itself to have gradients.
  static detail::DenseGradients differentiable(const at::Tensor& gradient, const at::Tensor& x,
                                               const at::Tensor& weight, const at::Tensor& y,
                                               Activation activation, detail::DenseNeeds needs) {
    const at::Tensor dz =
        activation == Activation::relu ? at::threshold_backward(gradient, y, 0) : gradient;
    return {needs.x ? dz.mm(weight) : at::Tensor(), needs.weight ? dz.t().mm(x) : at::Tensor(),
            needs.bias ? dz.sum(0) : at::Tensor(), dz};
  }
};

}  // namespace

// MKL runs its AVX2 kernels on AMD's processors, whatever they can do.
DenseKernel detail::fastest_kernel(const DenseFacts& facts) {
  if (!facts.onednn || facts.variant == CpuVariant::baseline) return DenseKernel::blas;
  const bool mkl_is_best =
      facts.mkl && (facts.maker == CpuMaker::intel ||
                    (facts.maker == CpuMaker::amd && facts.variant == CpuVariant::avx2));
  return mkl_is_best ? DenseKernel::blas : DenseKernel::onednn;
}

const std::vector<std::string>& dense_kernel_names() {
  static const std::vector<std::string> names = {"blas", "onednn"};
  return names;
}

std::string_view name_of(DenseKernel kernel) {
  return dense_kernel_names().at(static_cast<size_t>(kernel));
}

DenseKernel dense_kernel_by_name(std::string_view name) {
  const auto& names = dense_kernel_names();
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) throw UsageError(unknown_message("dense kernel", name, names));
  return static_cast<DenseKernel>(found - names.begin());
}

DenseKernel dense_kernel() { return chosen().load(std::memory_order_relaxed); }

void use_dense_kernel(DenseKernel kernel) {
  if (kernel == DenseKernel::onednn && !onednn_product())
    throw UsageError("dense kernel onednn: this LibTorch does not carry it; it has blas");
  chosen() = kernel;
}

at::Tensor dense(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                 Activation activation) {
  if (!detail::dense_takes(x, weight, bias)) {
    const at::Tensor y = torch::linear(x, weight, bias);
    return activation == Activation::relu ? torch::relu(y) : y;
  }
  const bool flat = x.dim() == 2;
  const at::Tensor rows = flat && x.is_contiguous() ? x : x.reshape({-1, x.size(-1)}).contiguous();
  at::Tensor y =
      at::GradMode::is_enabled()
          ? DenseFunction::apply(rows, weight, bias.defined() ? std::optional(bias) : std::nullopt,
                                 activation)
          : detail::dense_forward(rows, weight, bias, activation);
  if (flat) return y;
  auto sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  return y.view(sizes);
}

LinearImpl::LinearImpl(const torch::nn::LinearOptions& options_in) : options(options_in) {
  reset();  // NOLINT(clang-analyzer-optin.cplusplus.VirtualCall): as torch's modules do
}

void LinearImpl::reset() {
  weight =
      register_parameter("weight", torch::empty({options.out_features(), options.in_features()}));
  bias = options.bias() ? register_parameter("bias", torch::empty(options.out_features()))
                        : register_parameter("bias", {}, /*requires_grad=*/false);
  reset_parameters();
}

void LinearImpl::reset_parameters() {
  torch::nn::init::kaiming_uniform_(weight, std::sqrt(5.0));
  if (!bias.defined()) return;
  const double bound = 1 / std::sqrt(static_cast<double>(options.in_features()));
  torch::nn::init::uniform_(bias, -bound, bound);
}

void LinearImpl::pretty_print(std::ostream& stream) const {
  stream << "tutti::nn::Linear(in_features=" << options.in_features()
         << ", out_features=" << options.out_features() << std::boolalpha
         << ", bias=" << options.bias() << ")";
}

namespace detail {

at::Tensor rows_of(const at::Tensor& x) {
  return x.dim() == 2 ? x.contiguous() : x.reshape({-1, x.size(-1)}).contiguous();
}

at::Tensor shaped_as(const at::Tensor& x, const at::Tensor& rows) {
  if (x.dim() == 2) return rows;
  auto sizes = x.sizes().vec();
  sizes.back() = rows.size(1);
  return rows.view(sizes);
}

bool dense_takes(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const auto plain = [](const at::Tensor& tensor) {
    return tensor.is_cpu() && tensor.scalar_type() == at::kFloat &&
           tensor.layout() == at::kStrided && tensor.is_contiguous();
  };
  return x.defined() && x.dim() >= 2 && x.is_cpu() && x.scalar_type() == at::kFloat &&
         x.layout() == at::kStrided && x.numel() > 0 && weight.dim() == 2 && plain(weight) &&
         x.size(-1) == weight.size(1) && (!bias.defined() || (plain(bias) && bias.dim() == 1)) &&
         !at::autocast::is_autocast_enabled(at::kCPU);
}

at::Tensor dense_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         Activation activation) {
  const int64_t rows = x.size(0), units = weight.size(0);
  const bool relu = activation == Activation::relu;
  if (x.scalar_type() == at::kBFloat16) return forward_in_bfloat16(x, weight, bias, relu);
  if (!by_onednn(rows, x.size(1), units)) {
    at::Tensor y = at::linear(x, weight, bias);
    if (relu) layer_kernels().bias_relu(y.mutable_data_ptr<float>(), nullptr, rows, units);
    return y;
  }
  at::Tensor y = times_transposed(x, weight, relu ? at::Tensor() : bias);
  if (relu && bias.defined()) require_ready(bias);
  if (relu)
    layer_kernels().bias_relu(y.mutable_data_ptr<float>(),
                              bias.defined() ? bias.const_data_ptr<float>() : nullptr, rows, units);
  return y;
}

DenseGradients dense_backward(const at::Tensor& gradient, const at::Tensor& x,
                              const at::Tensor& weight, const at::Tensor& y, Activation activation,
                              DenseNeeds needs) {
  if (gradient.scalar_type() == at::kBFloat16)
    return backward_in_bfloat16(gradient, x, weight, y, activation, needs);
  const LayerKernels& kernels = layer_kernels();
  const int64_t rows = gradient.size(0), units = gradient.size(1);
  DenseGradients of;
  if (needs.bias) of.bias = at::empty({units}, gradient.options());
  float* const sums = needs.bias ? of.bias.mutable_data_ptr<float>() : nullptr;
  const auto* const dy = gradient.const_data_ptr<float>();
  at::Tensor dz = gradient;
  if (activation == Activation::relu) {
    dz = at::empty(gradient.sizes(), gradient.options());
    auto* const out = dz.mutable_data_ptr<float>();
    if (needs.bias)
      kernels.relu_gradient_sums(dy, y.const_data_ptr<float>(), out, sums, rows, units);
    else
      kernels.relu_gradient(dy, y.const_data_ptr<float>(), out, rows * units);
  } else if (needs.bias) {
    kernels.column_sums(dy, sums, rows, units);
  }
  if (needs.x) of.x = dense_input_gradient(dz, weight);
  if (needs.weight) of.weight = dense_weight_gradient(dz, x);  // last: an update reads it next
  of.sum = std::move(dz);
  return of;
}

at::Tensor dense_input_gradient(const at::Tensor& of_sum, const at::Tensor& weight) {
  return product(of_sum, weight);
}

at::Tensor dense_weight_gradient(const at::Tensor& of_sum, const at::Tensor& x) {
  return product(of_sum.t(), x);
}

at::Tensor add_relu(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != at::kFloat || b.scalar_type() != at::kFloat || a.sizes() != b.sizes() ||
      a.strides() != b.strides() || !a.is_non_overlapping_and_dense())
    return (a + b).relu_();
  constexpr int64_t kWorthAThread = 1 << 15;
  // Of one channel a + b has torch's order, whatever the strides say.
  at::Tensor y = a.is_contiguous() ? at::empty(a.sizes(), a.options()) : at::empty_like(a);
  const auto *const left = a.const_data_ptr<float>(), *const right = b.const_data_ptr<float>();
  auto* const out = y.mutable_data_ptr<float>();
  at::parallel_for(0, a.numel(), kWorthAThread, [&](int64_t begin, int64_t end) {
    layer_kernels().add_relu(left + begin, right + begin, out + begin, end - begin);
  });
  return y;
}

bool is_dense(const torch::autograd::Node& node) {
  return dynamic_cast<const torch::autograd::CppNode<DenseFunction>*>(&node) != nullptr;
}

const LayerKernels& layer_kernels([[maybe_unused]] CpuVariant variant) noexcept {
  if constexpr (kHasX86Variants) {
    if (variant == CpuVariant::avx512) return avx512::kernels;
    if (variant == CpuVariant::avx2) return avx2::kernels;
  }
  return baseline::kernels;
}

const LayerKernels& layer_kernels() {
  static const LayerKernels& best = layer_kernels(best_variant());
  return best;
}

}  // namespace detail
}  // namespace tutti::nn
