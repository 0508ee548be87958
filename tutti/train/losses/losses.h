/// Losses: what training makes small, one value per sample.
///
/// Training divides the sum over samples by the true global batch, so that gradients summed over
/// replicas are those of the mean. Values are added in double, in row order.
/// Thread rule: a Loss is immutable; any thread may use any copy.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace at {
class Tensor;
}

namespace tutti {

namespace hlo {
class Value;
}

/// What stands behind a Loss. Derive from it to bring a fused kernel; else give Loss a function.
///
/// `weights`, [batch] of any floating dtype, multiply the samples' losses: the sum becomes
/// sum_i weights[i] * loss[i]. Undefined: all 1. The caller still divides by the number of samples,
/// not by the sum of the weights. Another shape or dtype of them throws UsageError.
class LossKernel {
 public:
  virtual ~LossKernel() = default;

  /// Losses of the samples, [batch], with a graph, without weights of samples. Throws UsageError
  /// when shapes or dtypes do not fit.
  virtual at::Tensor per_sample(const at::Tensor& output, const at::Tensor& target) const = 0;

  /// Throws DataError, naming the row, for a value that targets of such an output cannot have; as
  /// per_sample() does for targets on the CPU. Asked before they are used on a device, where nobody
  /// could say which it was. Of `output` only shape and dtype count; `target` is on the CPU.
  virtual void check_targets(const at::Tensor& output, const at::Tensor& target) const;

  /// scale * sum of the samples' losses: a scalar with a graph, ready for backward(). Adds the sum,
  /// unscaled, to `total`. One node of the graph where a kernel is fused.
  virtual at::Tensor scaled_sum(const at::Tensor& output, const at::Tensor& target, double scale,
                                double& total, const at::Tensor& weights) const;
  at::Tensor scaled_sum(const at::Tensor& output, const at::Tensor& target, double scale,
                        double& total) const;

  /// Adds the sum of the samples' losses to `total`; no graph.
  virtual void add_to(const at::Tensor& output, const at::Tensor& target, double& total,
                      const at::Tensor& weights) const;
  void add_to(const at::Tensor& output, const at::Tensor& target, double& total) const;

  /// per_sample() as StableHLO: float32 [batch], of an output in float32 and a target. Unset: it is
  /// not written so, and no accelerator that compiles its step can train by it.
  virtual std::optional<hlo::Value> lower(const hlo::Value& output, const hlo::Value& target) const;

  /// Whether targets are numbers of classes, int64 without the outputs' last dimension.
  virtual bool takes_labels() const { return false; }

  /// Whether it takes outputs for logits (true) or for probabilities (false): metrics that do not
  /// say so themselves follow it. Unset: for neither.
  virtual std::optional<bool> from_logits() const { return {}; }

  /// The label that does not count, where there is one: metrics of the same output leave it out.
  virtual std::optional<int64_t> ignored_label() const { return {}; }

  /// How many classes outputs have, where the loss knows: compile() tells a graph that has others.
  virtual std::optional<int64_t> classes() const { return {}; }

  /// How many labels of `target`, on the CPU, count; 0 of an undefined one. For losses that leave
  /// some out: what fit() and evaluate() make of them is the mean over those that count, of the
  /// whole batch and all replicas; per_sample() is still a mean over all positions of a sample, in
  /// which the others are 0. Unset: the mean is over samples.
  virtual std::optional<int64_t> counted(const at::Tensor& target) const {
    (void)target;
    return {};
  }
};

/// What becomes of the samples' losses, as of Keras and PyTorch.
enum class Reduction {
  none,  ///< [batch]
  sum,   ///< a scalar, of weighted losses
  mean,  ///< the sum over how many samples there are; where labels do not count, over those that do
};

/// A named loss. Cheap to copy.
class Loss {
 public:
  using Function = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;

  /// UsageError where there is none.
  Loss(std::string name, std::shared_ptr<const LossKernel> kernel);

  /// `per_sample` gives one loss a sample, [batch], made of differentiable operations.
  /// `from_logits` as LossKernel has it.
  Loss(std::string name, Function per_sample, std::optional<bool> from_logits = {});

  const std::string& name() const noexcept { return name_; }
  const LossKernel& kernel() const noexcept { return *kernel_; }

  /// In loops of one's own: the loss with a graph, of these samples alone. fit() makes the mean
  /// over the global batch; a replica's own mean is of its part, so that replicas of unequal parts
  /// take `none` and average_loss(). `weights` as LossKernel has them. UsageError for what does not
  /// fit.
  at::Tensor operator()(const at::Tensor& output, const at::Tensor& target,
                        Reduction reduction = Reduction::mean) const;
  at::Tensor operator()(const at::Tensor& output, const at::Tensor& target, Reduction reduction,
                        const at::Tensor& weights) const;

 private:
  std::string name_;
  std::shared_ptr<const LossKernel> kernel_;
};

/// The losses of Keras, with its formulas. y is the output, t the target, e is 1e-7 throughout.
///
/// Outputs are of a floating dtype. Those of float16 and bfloat16 are computed in float32, except
/// in the two losses with kernels of their own (sparse_categorical_crossentropy and
/// mean_squared_error). Targets are of the output's dtype or of an integer one, which is converted.
/// *Element by element*: output and target are [batch, ...] with equally many elements, the loss of
/// a sample is the mean over its elements, and [batch] stands for [batch, 1]. *Over classes*: both
/// are [batch, ..., classes] of one shape; what the formula gives is averaged over the axes
/// between. Anything else throws UsageError that names the loss, what it got and what it expected.
/// Options out of range throw UsageError when the loss is made.
namespace losses {

/// Cross-entropies are from logits unless told otherwise, since networks of ours end in logits;
/// the default of Keras is the other one. Metrics follow (CompileOptions). Outputs of a softmax or
/// sigmoid taken for logits are a warning, once.
struct CrossentropyOptions {
  /// true: y are logits, and the form is stable for large ones. false: y are probabilities, kept
  /// within e and 1 - e; those of classes are divided by their sum first.
  bool from_logits = true;
  double label_smoothing = 0;  ///< >= 0, < 1: how much of a target goes to all classes alike
};

struct SparseCrossentropyOptions {
  bool from_logits = true;     ///< as in CrossentropyOptions
  double label_smoothing = 0;  ///< as in CrossentropyOptions
  /// One a class, finite and >= 0, not all 0: multiplies the whole loss of samples (of sequences:
  /// positions) with this label, smoothed or not. Those of a weight of 0 do not count either: the
  /// mean is over the others. Empty: all 1.
  std::vector<double> class_weights{};
  /// Samples (of sequences: positions) with this label do not count: they have no loss and no
  /// gradient, the mean is over the others, and metrics leave them out (torch's ignore_index,
  /// Keras's ignore_class). -100 or another number that is no class, or a class: that of padding.
  std::optional<int64_t> ignore_label{};
  double gamma = 0;  ///< >= 0: focal, each loss times (1 - p[t])^gamma; not beside label_smoothing
};

/// Focal losses: Lin et al. 2017, arXiv:1708.02002. What is right already counts less.
struct BinaryFocalOptions {
  bool from_logits = true;        ///< as in CrossentropyOptions
  double label_smoothing = 0;     ///< as in CrossentropyOptions
  double gamma = 2;               ///< >= 0; 0: a cross-entropy
  std::optional<double> alpha{};  ///< 0 to 1: weight of targets 1; of targets 0 it is 1 - alpha
};

struct CategoricalFocalOptions {
  bool from_logits = true;
  double label_smoothing = 0;
  double gamma = 2;
  std::vector<double> alpha{0.25};  ///< finite, >= 0: one number for all classes, or one a class
};

struct HuberOptions {
  double delta = 1;  ///< > 0: errors beyond it count linearly
};

/// -log p[t], p = softmax(y). y: [batch, classes]; t: integers [batch] in 0 .. classes - 1 (else
/// DataError that names row and label). Of sequences y: [batch, ..., classes], t: [batch, ...]; the
/// loss of a sample is the mean over its positions. With smoothing s:
/// (1 - s) * -log p[t] + s * mean(-log p). From logits and without smoothing it is one fused pass.
Loss sparse_categorical_crossentropy(const SparseCrossentropyOptions& options = {});

/// -sum(t * log softmax(y)), over classes; t are probabilities or one-hot. With smoothing s,
/// t * (1 - s) + s / classes stands for t.
Loss categorical_crossentropy(const CrossentropyOptions& options = {});

/// -(t * log p + (1 - t) * log(1 - p)), p = sigmoid(y), element by element; t in 0 .. 1. With
/// smoothing s, t * (1 - s) + s / 2 stands for t.
Loss binary_crossentropy(const CrossentropyOptions& options = {});

/// a (1 - q)^gamma times the cross-entropy of binary_crossentropy(), with q = t p + (1 - t) (1 - p)
/// and a = t alpha + (1 - t) (1 - alpha), or 1; element by element.
Loss binary_focal_crossentropy(const BinaryFocalOptions& options = {});

/// sum(alpha * (1 - p)^gamma * t * -log p), over classes, smoothed as categorical_crossentropy().
/// Of labels in place of one-hot targets: `gamma` of sparse_categorical_crossentropy().
Loss categorical_focal_crossentropy(const CategoricalFocalOptions& options = {});

/// (y - t)^2, element by element. One fused pass for float32.
Loss mean_squared_error();

/// |y - t|, element by element.
Loss mean_absolute_error();

/// 100 * |t - y| / max(|t|, e), element by element.
Loss mean_absolute_percentage_error();

/// (log(1 + max(y, e)) - log(1 + max(t, e)))^2, element by element.
Loss mean_squared_logarithmic_error();

/// With d = |y - t|: d^2 / 2 up to delta, then delta * (d - delta / 2); element by element.
Loss huber(const HuberOptions& options = {});

/// log(cosh(y - t)), element by element.
Loss log_cosh();

/// max(1 - t * y, 0), element by element; t is 1 or -1, and 0 stands for -1 (in Keras only in
/// batches that have no -1: here a sample's loss does not depend on its neighbours).
Loss hinge();

/// max(1 - t * y, 0)^2, element by element; t as for hinge().
Loss squared_hinge();

/// max(max((1 - t) * y) - sum(t * y) + 1, 0), over classes; t is one-hot.
Loss categorical_hinge();

/// sum(t * log(t / y)), over classes; t and y are probabilities, kept within e and 1.
Loss kl_divergence();

/// y - t * log(y + e), element by element; y >= 0 is the rate, t the count.
Loss poisson();

/// -sum(y * t) / (max(|y|, e) * max(|t|, e)), over classes: -1 for one direction, 1 for opposite
/// ones.
Loss cosine_similarity();

/// Names that loss_by_name() knows, sorted: those of the functions above, and of overlap.h.
const std::vector<std::string>& loss_names();

/// The loss of this name with default options; unknown names throw UsageError with the nearest
/// known one.
Loss loss_by_name(std::string_view name);

}  // namespace losses
}  // namespace tutti
