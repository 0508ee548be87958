/// What the sources of losses share; not for users. Thread rule: pure functions.
#pragma once

#include <torch/types.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/hlo/ops.h"
#include "tutti/train/losses/losses.h"

namespace tutti::detail {

/// What Keras keeps logarithms and divisions away from zero with.
inline constexpr double kLossEpsilon = 1e-7;

/// "Float [3, 2]".
std::string tensor_words(const at::Tensor& tensor);

/// Throws UsageError that names loss, field, value and range, unless in range.
void require_option(bool in_range, std::string_view loss, std::string_view field, double value,
                    std::string_view range);

/// Throws UsageError unless `output` is [batch, ...] of a floating dtype, and `target` of the same
/// or an integer dtype with as many samples and elements; `of_one_shape`: the same shape, of two
/// axes or more.
void require_pair(std::string_view loss, const at::Tensor& output, const at::Tensor& target,
                  bool of_one_shape);

/// Whether a fused kernel can read it: float32 that lies in a row in memory.
bool plain_floats(const at::Tensor& tensor);

/// Weights of `samples` samples in double; empty for undefined ones. Throws UsageError when they
/// do not fit.
std::vector<double> sample_weights(const at::Tensor& weights, int64_t samples);

/// The sum of [batch] losses in double, in row order. No weights: all 1.
double sum_in_order(const at::Tensor& per_sample, const std::vector<double>& weights);

/// A float32 scalar whose gradient with respect to `output` was computed beside it. One node of the
/// graph instead of eight: a step of a small network is 0.4 ms, and each node costs 2 to 4 us.
at::Tensor with_gradient(const at::Tensor& output, const at::Tensor& gradient, double value);

/// From output and target, of one shape and dtype, to values.
using LossFormula = std::function<at::Tensor(const at::Tensor& y, const at::Tensor& t)>;

/// The same, as StableHLO.
using LoweredFormula = std::function<hlo::Value(hlo::Value y, hlo::Value t)>;

/// One formula, for LibTorch and as StableHLO.
struct LossFormulas {
  LossFormula of_tensors;
  LoweredFormula lowered;
};

/// A loss from what a formula gives for each element, averaged over those of a sample.
Loss loss_of_elements(std::string name, LossFormulas formulas,
                      std::optional<bool> from_logits = {});

/// A loss from what a formula makes of the last axis, averaged over the axes between.
Loss loss_over_classes(std::string name, LossFormulas formulas,
                       std::optional<bool> from_logits = {});

/// [batch, ...] to [batch]: means over what a sample has.
hlo::Value mean_of_samples(hlo::Value values);

/// The sum over the last axis, and a value of fewer axes repeated along it to `shape`.
hlo::Value sum_over_last(hlo::Value values);
hlo::Value along_last(hlo::Value values, const hlo::Shape& shape);

/// Kept from below one number, and within two.
hlo::Value at_least(hlo::Value values, double least);
hlo::Value clamped(hlo::Value values, double least, double most);
/// log(1 + exp(x)), for any x.
hlo::Value softplus(hlo::Value x);

/// Warns, once for each loss, of an `output` that a softmax or sigmoid has made.
void warn_of_probabilities(std::string_view loss, const at::Tensor& output);

}  // namespace tutti::detail
