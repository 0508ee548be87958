#include "tutti/nn/detail/batch_norm.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "tutti/nn/detail/graph_step.h"
#include "tutti/nn/detail/layers.h"
#include "tutti/sync/before_use.h"
#include "tutti/sync/detail/gradients.h"

namespace tutti::nn {
namespace {

constexpr int64_t kColumnsOfAPart = 16;  // a cache line
constexpr int64_t kWorthAThread = 1 << 15;

// Rows and columns of images with channels innermost.
struct Pixels {
  explicit Pixels(const at::Tensor& x) : rows(x.numel() / x.size(1)), columns(x.size(1)) {}
  int64_t rows, columns;

  /// Each column in one thread, so that a sum does not depend on how many there are.
  void by_columns(const std::function<void(int64_t begin, int64_t end)>& work) const {
    const int64_t parts = (columns + kColumnsOfAPart - 1) / kColumnsOfAPart;
    const int64_t grain = std::max<int64_t>(1, kWorthAThread / (rows * kColumnsOfAPart));
    at::parallel_for(0, parts, grain, [&](int64_t begin, int64_t end) {
      work(begin * kColumnsOfAPart, std::min(end * kColumnsOfAPart, columns));
    });
  }
  /// `begin` is the first element of the rows.
  void by_rows(const std::function<void(int64_t begin, int64_t count)>& work) const {
    const int64_t grain = std::max<int64_t>(1, kWorthAThread / columns);
    at::parallel_for(0, rows, grain,
                     [&](int64_t begin, int64_t end) { work(begin * columns, end - begin); });
  }
};

detail::NormOfColumns norm_of(const at::Tensor& columns) {
  const auto* const first = columns.const_data_ptr<float>();
  const int64_t channels = columns.size(1);
  return {.mean = first, .scale = first + channels, .shift = first + 2 * channels};
}

struct Sums {
  explicit Sums(int64_t columns)
      : first(static_cast<size_t>(columns)), second(static_cast<size_t>(columns)) {}
  std::vector<double> first, second;
};

// A NaN stays one.
double not_negative(double squares) { return squares < 0 ? 0 : squares; }

void move_statistics(torch::nn::BatchNorm2dImpl& layer, const Sums& moments, double rows) {
  require_ready(layer.running_mean);
  require_ready(layer.running_var);
  const double momentum = layer.options.momentum().value();
  auto* const mean = layer.running_mean.mutable_data_ptr<float>();
  auto* const variance = layer.running_var.mutable_data_ptr<float>();
  for (size_t c = 0; c < moments.first.size(); ++c) {
    const double now = moments.first[c] / rows;
    const double squares = not_negative(moments.second[c] - now * moments.first[c]);
    mean[c] = static_cast<float>(momentum * now + (1 - momentum) * mean[c]);
    variance[c] =
        static_cast<float>(momentum * squares / (rows - 1) + (1 - momentum) * variance[c]);
  }
  tutti::detail::bump_versions({layer.running_mean, layer.running_var});
  layer.num_batches_tracked += 1;
}

struct BatchNormFunction : torch::autograd::Function<BatchNormFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight, const at::Tensor& bias,
                            torch::nn::BatchNorm2dImpl& layer) {
    const auto of = detail::batch_norm_forward(x, layer, Activation::none);
    context->save_for_backward({x, weight, bias, of.columns});
    context->saved_data["epsilon"] = layer.options.eps();
    return of.y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &columns = saved[3];
    const detail::NormNeeds needs{.x = context->needs_input_grad(0),
                                  .weight = context->needs_input_grad(1),
                                  .bias = context->needs_input_grad(2)};
    if (!at::GradMode::is_enabled()) {
      const auto of =
          detail::batch_norm_backward(gradients[0], x.contiguous(at::MemoryFormat::ChannelsLast),
                                      columns, Activation::none, needs);
      return {of.x, of.weight, of.bias, {}};
    }
    const auto of = at::native_batch_norm_backward(  // which has gradients itself
        gradients[0], x, weight, {}, {}, columns[0], columns[3], /*train=*/true,
        context->saved_data["epsilon"].toDouble(), {needs.x, needs.weight, needs.bias});
    return {std::get<0>(of), std::get<1>(of), std::get<2>(of), {}};
  }
};

}  // namespace

namespace detail {

bool has_plain_state(const torch::nn::BatchNorm2dImpl& layer) {
  const auto plain = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.is_cpu() && tensor.scalar_type() == at::kFloat &&
           tensor.layout() == at::kStrided && tensor.is_contiguous();
  };
  return plain(layer.weight) && plain(layer.bias) && plain(layer.running_mean) &&
         plain(layer.running_var);
}

bool batch_norm_takes(const at::Tensor& x, const torch::nn::BatchNorm2dImpl& layer) {
  return layer.is_training() && x.is_cpu() && x.scalar_type() == at::kFloat &&
         x.layout() == at::kStrided && x.dim() == 4 && x.numel() > x.size(1) &&
         layer.options.momentum().has_value() && has_plain_state(layer);
}

NormedBatch batch_statistics(const at::Tensor& given, torch::nn::BatchNorm2dImpl& layer) {
  const at::Tensor x = given.contiguous(at::MemoryFormat::ChannelsLast);
  const Pixels pixels(x);
  const auto* const values = x.const_data_ptr<float>();
  Sums moments(pixels.columns);
  const LayerKernels& kernels = layer_kernels();
  pixels.by_columns([&](int64_t begin, int64_t end) {
    kernels.column_moments(values, pixels.rows, pixels.columns, begin, end, moments.first.data(),
                           moments.second.data());
  });
  require_ready(layer.weight);
  require_ready(layer.bias);
  at::Tensor columns = at::empty({4, pixels.columns}, x.options());
  auto* const mean = columns.mutable_data_ptr<float>();
  const auto* const weight = layer.weight.const_data_ptr<float>();
  const auto* const bias = layer.bias.const_data_ptr<float>();
  const auto rows = static_cast<double>(pixels.rows);
  for (int64_t c = 0; c < pixels.columns; ++c) {
    const auto at = static_cast<size_t>(c);
    const double middle = moments.first[at] / rows;
    const double variance = not_negative(moments.second[at] - middle * moments.first[at]) / rows;
    const double inverse = 1 / std::sqrt(variance + layer.options.eps());
    mean[c] = static_cast<float>(middle);
    mean[c + pixels.columns] = static_cast<float>(inverse * weight[c]);
    mean[c + 2 * pixels.columns] = bias[c];
    mean[c + 3 * pixels.columns] = static_cast<float>(inverse);
  }
  move_statistics(layer, moments, rows);
  return {x, {}, columns};
}

at::Tensor apply_norm(const at::Tensor& x, const at::Tensor& columns, const at::Tensor& plus,
                      Activation activation) {
  const Pixels pixels(x);
  const bool relu = activation == Activation::relu;
  const at::Tensor ordered =
      plus.defined() ? plus.contiguous(at::MemoryFormat::ChannelsLast) : at::Tensor();
  const auto* const values = x.const_data_ptr<float>();
  const auto* const other = plus.defined() ? ordered.const_data_ptr<float>() : nullptr;
  at::Tensor y = at::empty(x.sizes(), x.options().memory_format(at::MemoryFormat::ChannelsLast));
  auto* const out = y.mutable_data_ptr<float>();
  pixels.by_rows([&](int64_t begin, int64_t count) {
    layer_kernels().normalise(values + begin, norm_of(columns),
                              other == nullptr ? nullptr : other + begin, relu, out + begin, count,
                              pixels.columns);
  });
  return y;
}

NormedBatch batch_norm_forward(const at::Tensor& x, torch::nn::BatchNorm2dImpl& layer,
                               Activation activation) {
  NormedBatch of = batch_statistics(x, layer);
  of.y = apply_norm(of.x, of.columns, {}, activation);
  return of;
}

NormGradients batch_norm_backward(const at::Tensor& gradient, const at::Tensor& x,
                                  const at::Tensor& columns, Activation activation,
                                  NormNeeds needs) {
  const at::Tensor ordered = gradient.contiguous(at::MemoryFormat::ChannelsLast);
  const auto* const dy = ordered.const_data_ptr<float>();
  const auto* const values = x.const_data_ptr<float>();
  const bool relu = activation == Activation::relu;
  const NormOfColumns by = norm_of(columns);
  const Pixels pixels(x);
  Sums of(pixels.columns);
  const LayerKernels& kernels = layer_kernels();
  pixels.by_columns([&](int64_t begin, int64_t end) {
    kernels.norm_gradient_sums(dy, values, by, relu, pixels.rows, pixels.columns, begin, end,
                               of.first.data(), of.second.data());
  });
  NormGradients out;
  const at::Tensor inverses = columns[3];
  const auto* const inverse = inverses.const_data_ptr<float>();
  const auto channels = static_cast<size_t>(pixels.columns);
  if (needs.weight) {
    out.weight = at::empty({pixels.columns}, x.options());
    auto* const weight = out.weight.mutable_data_ptr<float>();
    for (size_t c = 0; c < channels; ++c) weight[c] = static_cast<float>(of.second[c] * inverse[c]);
  }
  if (needs.bias) {
    out.bias = at::empty({pixels.columns}, x.options());
    auto* const bias = out.bias.mutable_data_ptr<float>();
    for (size_t c = 0; c < channels; ++c) bias[c] = static_cast<float>(of.first[c]);
  }
  if (!needs.x) return out;
  std::vector<float> offset(channels), slope(channels);
  const auto rows = static_cast<double>(pixels.rows);
  for (size_t c = 0; c < channels; ++c) {
    offset[c] = static_cast<float>(of.first[c] / rows);
    slope[c] = static_cast<float>(of.second[c] * inverse[c] * inverse[c] / rows);
  }
  out.x = at::empty(x.sizes(), x.options().memory_format(at::MemoryFormat::ChannelsLast));
  auto* const dx = out.x.mutable_data_ptr<float>();
  pixels.by_rows([&](int64_t begin, int64_t count) {
    kernels.norm_gradient(dy + begin, values + begin, by, relu, offset.data(), slope.data(),
                          dx + begin, count, pixels.columns);
  });
  return out;
}

at::Tensor batch_norm(const at::Tensor& x, torch::nn::BatchNorm2dImpl& layer) {
  if (!batch_norm_takes(x, layer)) return layer.forward(x);
  return BatchNormFunction::apply(x, layer.weight, layer.bias, layer);
}

}  // namespace detail
}  // namespace tutti::nn
