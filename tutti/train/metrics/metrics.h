/// Metrics: what is watched while training. Each is a state of doubles that add up over samples,
/// and a value made of them, so that it is exact over replicas, workers and partial batches.
///
/// They are loops over plain memory: three tensor operations would be 2 % of a small network's
/// step. Thread rule: a Metric is immutable; any thread may use any copy.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

/// Outputs of some samples beside what is right, row by row. Targets are labels or floats. Of
/// sequences with a label a position, each position is a row.
struct SampleRows {
  const float* outputs = nullptr;   ///< rows * width
  const int64_t* labels = nullptr;  ///< one a row; null when the targets are no integers
  int64_t rows = 0;
  int64_t width = 0;               ///< elements of one sample's output
  const float* targets = nullptr;  ///< rows * target_width; null when the targets are no floats
  int64_t target_width = 0;
  const float* weights = nullptr;  ///< one a row, how much it counts; null: 1 each
};

/// value() is sum / count; sums of replicas are added.
struct MetricSum {
  double sum = 0;
  double count = 0;  ///< of samples, or of their weights
  double value() const noexcept { return count == 0 ? 0 : sum / count; }
};

/// Rows of equal length.
using Matrix = std::vector<std::vector<double>>;

class Metric;

/// What a metric is made of. States of zeros are those of no samples; states of two sets of
/// samples, added element by element, are those of both.
struct MetricDefinition {
  std::string name;
  /// How many doubles, for outputs of `width` elements a sample.
  std::function<int64_t(int64_t width)> num_states;
  /// Adds some samples' share. Not called without samples.
  std::function<void(const SampleRows& rows, std::span<double> state)> add;
  /// One number; left out by a metric that is a matrix.
  std::function<double(std::span<const double> state)> value{};
  std::function<Matrix(std::span<const double> state)> matrix{};
  /// Where it matters whether outputs are logits: makes it for those that are, or are not; and what
  /// it was told itself.
  std::function<Metric(bool from_logits)> of_outputs{};
  std::optional<bool> from_logits{};
  std::optional<int64_t> ignored{};  ///< label of the rows that are left out (Metric::ignoring)
  bool weighted = false;             ///< Metric::weighted()
};

/// A named metric. Cheap to copy.
class Metric {
 public:
  /// Adds some samples' share to a sum: what is a mean over samples needs no more.
  using Function = std::function<void(const SampleRows& rows, MetricSum& into)>;

  Metric(std::string name, Function add);
  /// UsageError unless there is `num_states`, `add`, and one of `value` and `matrix`.
  explicit Metric(MetricDefinition definition);

  const std::string& name() const noexcept { return definition_->name; }
  /// The same under another name, as two of one kind need; its errors keep the old one.
  Metric named(std::string name) const;
  /// The same for outputs as a loss takes them (LossKernel::from_logits): itself where that is
  /// unset, or does not matter. UsageError when it was told otherwise.
  Metric following(std::optional<bool> from_logits) const;
  /// The same of the rows with other labels than this one: padding does not count. compile() asks
  /// for it where the loss of the same output has an ignore_label and the metric none of its own.
  Metric ignoring(std::optional<int64_t> label) const;
  /// The same with the weights of samples and classes that the loss of the output has (the data's
  /// last column, FitOptions::class_weight), as in Keras's weighted_metrics; else they are 1 each.
  Metric weighted() const;
  bool is_weighted() const noexcept { return definition_->weighted; }
  /// Whether it is one number, which is shown and kept; else it is a matrix (Scores::matrix).
  bool scalar() const noexcept { return definition_->value != nullptr; }

  int64_t num_states(int64_t width) const { return definition_->num_states(width); }
  /// UsageError or DataError, which name the metric, when it cannot be had from these samples.
  void add(const SampleRows& rows, std::span<double> state) const;
  /// 0 where a quotient has no samples to count.
  double value(std::span<const double> state) const;
  Matrix matrix(std::span<const double> state) const;

 private:
  std::shared_ptr<const MetricDefinition> definition_;
};

/// For all of them: weights that they are given count. Of equal outputs the first is the largest. A
/// sample with an output that is not a number is never right: no class is predicted for it; where
/// there is one output, it stands for the wrong answer. Labels are integers [batch] or [batch, 1],
/// 0 to width -
/// 1. *Binary*: one output a sample and targets 0 or 1, integers or floats. Others of the wrong
/// shape are a UsageError, values out of range a DataError. *from_logits*: whether outputs are
/// logits. Unset: compile() makes it what the loss of the same output has; elsewhere they are not.
namespace metrics {

/// Share of samples whose largest output is the label's. Named "accuracy". Needs labels.
Metric accuracy();

/// Share of samples whose label is among the k (>= 1) largest outputs. Named "top_5_accuracy".
Metric top_k_accuracy(int k = 5);

/// Share of samples whose largest output is where the largest target is. Float targets as wide as
/// the outputs, one-hot or not. Named "categorical_accuracy".
Metric categorical_accuracy();

/// Mean average precision at k (>= 1) with one right label a sample: 1 / its place among the k
/// largest outputs, 0 when it is not there. Named "map_at_3". Needs labels.
Metric map_at_k(int k = 3);

struct PerplexityOptions {
  std::optional<bool> from_logits{};  ///< not: outputs are probabilities
};

/// exp of the mean cross-entropy: among how many equally likely classes the model hesitates. Named
/// "perplexity". Needs labels.
Metric perplexity(PerplexityOptions options = {});

struct BinaryOptions {
  double threshold = 0.5;  ///< above it an output says yes; of logits, of their sigmoid
  std::optional<bool> from_logits{};
};

/// Share of outputs on their target's side of the threshold: binary, or several outputs a sample
/// with as many float targets, each 0 or 1. Named "binary_accuracy".
Metric binary_accuracy(BinaryOptions options = {});

/// Over classes.
enum class Average : uint8_t {
  macro,     ///< mean over the classes that occur as label or as prediction
  micro,     ///< of the counts of all classes
  weighted,  ///< mean weighted by how often each class is the label
};

struct ClassOptions {
  Average average = Average::macro;  ///< labels; of no account when binary, and with `only`
  int64_t only = -1;                 ///< >= 0: of this class alone
  double threshold = 0.5;            ///< binary: as in BinaryOptions
  std::optional<bool> from_logits{};
};

/// With tp right predictions of a class, fp wrong ones, and fn samples of it that were given to
/// others: tp / (tp + fp), tp / (tp + fn), and 2 tp / (2 tp + fp + fn); 0 / 0 is 0. Labels, or
/// binary: of the answer 1. Named "precision", "micro_precision", "precision_of_2" and so on.
Metric precision(ClassOptions options = {});
Metric recall(ClassOptions options = {});
Metric f1(ClassOptions options = {});

/// With b = beta^2, beta > 0: (1 + b) tp / ((1 + b) tp + b fn + fp); recall counts beta times as
/// much as precision. Named "f_beta_2", "weighted_f_beta_0.5", "f_beta_2_of_1" and so on.
Metric f_beta(double beta, ClassOptions options = {});

/// Intersection over union, tp / (tp + fp + fn), as of the pixels of a segmentation; of several
/// classes their mean (Keras's MeanIoU). Named "iou", "micro_iou", "iou_of_2" and so on.
Metric iou(ClassOptions options = {});

/// Mean of that of the answers 1 and 0, those that occur. *Answers*: binary, or several outputs a
/// sample with as many float targets, each 0 or 1: a mask. Named "binary_iou".
Metric binary_iou(BinaryOptions options = {});

struct CountOptions {
  int64_t only = -1;       ///< >= 0, for labels: a sample's answer is 1 where it is of this class
  double threshold = 0.5;  ///< as in BinaryOptions
  std::optional<bool> from_logits{};
};

/// How many answers, or the weights of how many samples' answers, are 1 and are said to be; are 0
/// and said to be 1; and so on. Answers, or labels with `only`. Named "true_positives",
/// "false_positives_of_2" and so on.
Metric true_positives(CountOptions options = {});
Metric false_positives(CountOptions options = {});
Metric true_negatives(CountOptions options = {});
Metric false_negatives(CountOptions options = {});

/// How often each label (row) was predicted as each class (column). A matrix. Labels, or binary
/// (two classes). Samples that are not predicted are in no column. Named "confusion_matrix".
Metric confusion_matrix(BinaryOptions options = {});

enum class Curve : uint8_t {
  roc,  ///< true over false positive rate
  pr,   ///< precision over recall
};

struct AucOptions {
  Curve curve = Curve::roc;
  int num_thresholds = 200;  ///< 2 to 1,000,000: evenly from 0 to 1, the outer ones just outside
  Average average = Average::macro;  ///< over classes; binary: of no account
  bool multi_label =
      false;  ///< float targets as wide as outputs, 0 or 1, each an answer of its own
  std::optional<bool> from_logits{};  ///< not: outputs are 0 to 1; logits of labels: of a softmax
};

/// Area under a curve by its points at fixed thresholds: straight lines between those of ROC;
/// between those of PR, true positives grow evenly with predicted ones. Binary; or labels, or
/// multi_label: each class against all others, averaged over the classes that have samples of both
/// kinds (PR: of theirs). 0 where there is none. 2 (num_thresholds - 1) doubles of state a class.
/// Named "auc", "pr_auc", "weighted_auc" and so on.
Metric auc(AucOptions options = {});

struct AveragePrecisionOptions {
  int bins = 10'000;                 ///< 1 to 1,000,000; 2 (bins + 1) doubles of state a class
  Average average = Average::macro;  ///< this and the rest as in AucOptions
  bool multi_label = false;
  std::optional<bool> from_logits{};
};

/// Sum over thresholds of precision times the growth of recall. Outputs are first rounded to
/// multiples of 1 / bins: exact for those, else what ties of that width make of it. Of what auc()
/// is, averaged so. Named "average_precision", "weighted_average_precision" and so on.
Metric average_precision(AveragePrecisionOptions options = {});

// Regression: float targets as wide as the outputs.

/// Mean of squared, and of absolute differences; the root of the first.
Metric mean_squared_error();
Metric root_mean_squared_error();
Metric mean_absolute_error();

/// 1 - (squared residuals) / (squared distances of targets from their mean), averaged over the
/// outputs of a sample. From sums of y and y^2 in double: relative error of the distances about
/// 1e-16 (mean / deviation)^2. Targets that deviate by less than 1e-6 of their mean count as
/// constant: then 1 when there is no residual, else 0.
Metric r2_score();

}  // namespace metrics

/// The metric of that name with its usual options: those of metric_names(), top_K_accuracy and
/// map_at_K of any K, (micro_, weighted_)f_beta_B of any B. UsageError with the nearest name.
Metric metric_by_name(std::string_view name);
std::vector<std::string> metric_names();

}  // namespace tutti
