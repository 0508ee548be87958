/// Metrics: what is watched while training. Each is a sum over samples and a count, so that it is
/// exact over replicas and partial batches.
///
/// They are loops over plain memory: three tensor operations would be 2 % of a small network's
/// step. Thread rule: a Metric is immutable; any thread may use any copy.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace tutti {

/// Outputs of some samples beside their labels, row by row.
struct SampleRows {
  const float* outputs = nullptr;   ///< rows * width
  const int64_t* labels = nullptr;  ///< one a row; null when the targets are no int64 [batch]
  int64_t rows = 0;
  int64_t width = 0;  ///< elements of one sample's output
};

/// value() is sum / count; sums of replicas are added.
struct MetricSum {
  double sum = 0;
  int64_t count = 0;
  double value() const noexcept { return count == 0 ? 0 : sum / static_cast<double>(count); }
};

class Metric {
 public:
  /// Adds some samples' share to a sum.
  using Function = std::function<void(const SampleRows& rows, MetricSum& into)>;

  Metric(std::string name, Function add) : name_(std::move(name)), add_(std::move(add)) {}

  const std::string& name() const noexcept { return name_; }
  void add(const SampleRows& rows, MetricSum& into) const { add_(rows, into); }

 private:
  std::string name_;
  Function add_;
};

namespace metrics {

/// Share of samples whose largest output is the label's. The first of equal outputs counts as the
/// largest; an output that is not a number is never right. Named "accuracy". Needs labels.
Metric accuracy();

/// Share of samples whose label is among the k (>= 1) largest outputs. Named "top_5_accuracy".
Metric top_k_accuracy(int k = 5);

}  // namespace metrics
}  // namespace tutti
