#include "tutti/train/losses.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "tutti/base/error.h"

namespace tutti {

namespace {

std::string words(const at::Tensor& tensor) {
  std::ostringstream out;
  out << tensor.scalar_type() << " " << tensor.sizes();
  return out.str();
}

/// Adds [batch] losses in double, in row order.
double sum_in_order(const at::Tensor& per_sample) {
  const at::Tensor values = per_sample.detach().to(torch::kCPU, torch::kFloat64).contiguous();
  const double* value = values.data_ptr<double>();
  double sum = 0;
  for (int64_t i = 0; i < values.numel(); ++i) sum += value[i];
  return sum;
}

class FunctionKernel : public LossKernel {
 public:
  FunctionKernel(std::string name, Loss::Function function)
      : name_(std::move(name)), function_(std::move(function)) {}

  at::Tensor per_sample(const at::Tensor& output, const at::Tensor& target) const override {
    at::Tensor losses = function_(output, target);
    if (losses.dim() != 1 || losses.size(0) != output.size(0)) {
      throw UsageError(fmt::format("loss {}: got {} for {} samples, expected one value a sample",
                                   name_, words(losses), output.size(0)));
    }
    return losses;
  }

 private:
  std::string name_;
  Loss::Function function_;
};

bool plain_floats(const at::Tensor& tensor) {
  return tensor.scalar_type() == torch::kFloat32 && tensor.is_cpu() && tensor.is_contiguous();
}

/// A scalar whose gradient with respect to the output was computed beside it. One node of the graph
/// instead of eight: a step of a small network is 0.4 ms, and each node costs 2 to 4 us.
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

// ---- cross-entropy ----

[[noreturn]] void bad_label(int64_t row, int64_t label, int64_t classes) {
  throw DataError(fmt::format(
      "sparse_categorical_crossentropy: row {} of the batch has label {}, but the model gives {} "
      "classes (labels 0 to {})",
      row, label, classes, classes - 1));
}

/// Loss of one row; with `gradient`, (softmax - one hot) * scale goes there.
double cross_entropy_row(const float* logits, int64_t classes, int64_t label, float scale,
                         float* gradient) {
  float largest = logits[0];
  for (int64_t c = 1; c < classes; ++c) largest = std::max(largest, logits[c]);
  double sum = 0;
  for (int64_t c = 0; c < classes; ++c) {
    const float e = std::exp(logits[c] - largest);
    if (gradient != nullptr) gradient[c] = e;
    sum += e;
  }
  if (gradient != nullptr) {
    const auto factor = static_cast<float>(static_cast<double>(scale) / sum);
    for (int64_t c = 0; c < classes; ++c) gradient[c] *= factor;
    gradient[label] -= scale;
  }
  return std::log(sum) + static_cast<double>(largest) - static_cast<double>(logits[label]);
}

class CrossEntropy : public LossKernel {
 public:
  at::Tensor per_sample(const at::Tensor& output, const at::Tensor& target) const override {
    check(output, target);
    return torch::cross_entropy_loss(output, target, {}, at::Reduction::None);
  }

  at::Tensor scaled_sum(const at::Tensor& output, const at::Tensor& target, double scale,
                        double& total) const override {
    if (!plain_floats(output) || !target.is_contiguous()) {
      return LossKernel::scaled_sum(output, target, scale, total);
    }
    check(output, target);
    at::Tensor gradient = at::empty(output.sizes(), output.options());
    const double sum = rows(output, target, static_cast<float>(scale), gradient.data_ptr<float>());
    total += sum;
    return KnownGradient::apply(output, gradient, sum * scale);
  }

  void add_to(const at::Tensor& output, const at::Tensor& target, double& total) const override {
    if (!plain_floats(output) || !target.is_contiguous()) {
      return LossKernel::add_to(output, target, total);
    }
    check(output, target);
    total += rows(output, target, 1.0F, nullptr);
  }

 private:
  static double rows(const at::Tensor& output, const at::Tensor& target, float scale,
                     float* gradient) {
    const int64_t classes = output.size(1);
    const float* logits = output.data_ptr<float>();
    const int64_t* labels = target.data_ptr<int64_t>();
    double sum = 0;
    for (int64_t i = 0; i < output.size(0); ++i) {
      sum += cross_entropy_row(logits + i * classes, classes, labels[i], scale,
                               gradient == nullptr ? nullptr : gradient + i * classes);
    }
    return sum;
  }

  static void check(const at::Tensor& output, const at::Tensor& target) {
    const bool fits = output.dim() == 2 && target.dim() == 1 &&
                      target.scalar_type() == torch::kInt64 && output.size(0) == target.size(0);
    if (!fits) {
      throw UsageError(fmt::format(
          "sparse_categorical_crossentropy: got output {} and target {}, expected floating "
          "[batch, classes] and Long [batch]",
          words(output), words(target)));
    }
    if (!target.is_cpu()) return;
    const at::Tensor labels = target.contiguous();
    const int64_t* label = labels.data_ptr<int64_t>();
    for (int64_t i = 0; i < labels.numel(); ++i) {
      if (label[i] < 0 || label[i] >= output.size(1)) bad_label(i, label[i], output.size(1));
    }
  }
};

// ---- mean squared error ----

class SquaredError : public LossKernel {
 public:
  at::Tensor per_sample(const at::Tensor& output, const at::Tensor& target) const override {
    check(output, target);
    const auto difference = output - target.reshape(output.sizes());
    const auto squares = difference * difference;
    return output.dim() == 1 ? squares : squares.flatten(1).mean(1);
  }

  at::Tensor scaled_sum(const at::Tensor& output, const at::Tensor& target, double scale,
                        double& total) const override {
    if (!plain_floats(output) || !plain_floats(target)) {
      return LossKernel::scaled_sum(output, target, scale, total);
    }
    check(output, target);
    at::Tensor gradient = at::empty(output.sizes(), output.options());
    const double sum = rows(output, target, scale, gradient.data_ptr<float>());
    total += sum;
    return KnownGradient::apply(output, gradient, sum * scale);
  }

  void add_to(const at::Tensor& output, const at::Tensor& target, double& total) const override {
    if (!plain_floats(output) || !plain_floats(target)) {
      return LossKernel::add_to(output, target, total);
    }
    check(output, target);
    total += rows(output, target, 1.0, nullptr);
  }

 private:
  static double rows(const at::Tensor& output, const at::Tensor& target, double scale,
                     float* gradient) {
    const int64_t batch = output.size(0);
    if (batch == 0) return 0;
    const int64_t features = output.numel() / batch;
    const float* out = output.data_ptr<float>();
    const float* wanted = target.data_ptr<float>();
    const auto factor = static_cast<float>(2.0 * scale / static_cast<double>(features));
    double total = 0;
    for (int64_t row = 0; row < batch; ++row) {
      double sum = 0;
      for (int64_t i = row * features; i < (row + 1) * features; ++i) {
        const float difference = out[i] - wanted[i];
        sum += static_cast<double>(difference) * difference;
        if (gradient != nullptr) gradient[i] = factor * difference;
      }
      total += sum / static_cast<double>(features);
    }
    return total;
  }

  static void check(const at::Tensor& output, const at::Tensor& target) {
    const bool fits = output.dim() >= 1 && target.dim() >= 1 && output.size(0) == target.size(0) &&
                      output.numel() == target.numel() &&
                      output.scalar_type() == target.scalar_type();
    if (!fits) {
      throw UsageError(fmt::format(
          "mean_squared_error: got output {} and target {}, expected the same dtype and as many "
          "elements a sample",
          words(output), words(target)));
    }
  }
};

}  // namespace

at::Tensor LossKernel::scaled_sum(const at::Tensor& output, const at::Tensor& target, double scale,
                                  double& total) const {
  const at::Tensor losses = per_sample(output, target);
  total += sum_in_order(losses);
  return losses.sum() * scale;
}

void LossKernel::add_to(const at::Tensor& output, const at::Tensor& target, double& total) const {
  torch::NoGradGuard no_grad;
  total += sum_in_order(per_sample(output, target));
}

Loss::Loss(std::string name, Function per_sample)
    : name_(name),
      kernel_(std::make_shared<FunctionKernel>(std::move(name), std::move(per_sample))) {}

namespace losses {

Loss sparse_categorical_crossentropy() {
  return {"sparse_categorical_crossentropy", std::make_shared<CrossEntropy>()};
}

Loss mean_squared_error() { return {"mean_squared_error", std::make_shared<SquaredError>()}; }

}  // namespace losses
}  // namespace tutti
