/// Losses: what training makes small, one value per sample.
///
/// Training divides the sum over samples by the true global batch, so that gradients summed over
/// replicas are those of the mean. Values are added in double, in row order.
/// Thread rule: a Loss is immutable; any thread may use any copy.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace at {
class Tensor;
}

namespace tutti {

/// What stands behind a Loss. Derive from it to bring a fused kernel; else give Loss a function.
class LossKernel {
 public:
  virtual ~LossKernel() = default;

  /// Losses of the samples, [batch], with a graph. Throws UsageError when shapes or dtypes do not
  /// fit.
  virtual at::Tensor per_sample(const at::Tensor& output, const at::Tensor& target) const = 0;

  /// scale * sum of the samples' losses: a scalar with a graph, ready for backward(). Adds the sum,
  /// unscaled, to `total`. One node of the graph where a kernel is fused.
  virtual at::Tensor scaled_sum(const at::Tensor& output, const at::Tensor& target, double scale,
                                double& total) const;

  /// Adds the sum of the samples' losses to `total`; no graph.
  virtual void add_to(const at::Tensor& output, const at::Tensor& target, double& total) const;
};

/// A named loss. Cheap to copy.
class Loss {
 public:
  using Function = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;

  Loss(std::string name, std::shared_ptr<const LossKernel> kernel)
      : name_(std::move(name)), kernel_(std::move(kernel)) {}

  /// `per_sample` gives one loss a sample, [batch], made of differentiable operations.
  Loss(std::string name, Function per_sample);

  const std::string& name() const noexcept { return name_; }
  const LossKernel& kernel() const noexcept { return *kernel_; }

 private:
  std::string name_;
  std::shared_ptr<const LossKernel> kernel_;
};

namespace losses {

/// -log softmax(output)[target]. output: logits [batch, classes], float32 or another floating
/// dtype; target: int64 [batch] in 0 .. classes - 1 (else DataError that names row and label).
Loss sparse_categorical_crossentropy();

/// Mean over the features of (output - target)^2. Both [batch, ...] with equally many elements and
/// of one dtype; [batch] stands for [batch, 1].
Loss mean_squared_error();

}  // namespace losses
}  // namespace tutti
