// Cross-entropies: between classes, by label or by probabilities, and of single yes-or-no outputs.
#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>

#include "tutti/base/error.h"
#include "tutti/sync/device/upload.h"
#include "tutti/train/losses/detail/loss_parts.h"
#include "tutti/train/losses/detail/samples.h"

namespace tutti {

namespace {

constexpr const char* kSparse = "sparse_categorical_crossentropy";

void require_smoothing(std::string_view loss, double smoothing) {
  detail::require_option(smoothing >= 0 && smoothing < 1, loss, "label_smoothing", smoothing,
                         "0 <= label_smoothing < 1");
}

at::Tensor kept_probabilities(const at::Tensor& values) {
  return values.clamp(detail::kLossEpsilon, 1 - detail::kLossEpsilon);
}

/// log of the classes' probabilities, over the last axis.
at::Tensor log_probabilities(const at::Tensor& output, bool from_logits) {
  if (from_logits) return output.log_softmax(-1);
  return kept_probabilities(output / output.sum(-1, /*keepdim=*/true)).log();
}

[[noreturn]] void bad_label(int64_t row, int64_t label, int64_t classes) {
  throw detail::RowError(kSparse, row,
                         fmt::format("label {}, but the model gives {} classes (labels 0 to {})",
                                     label, classes, classes - 1));
}

/// Loss of one row; with `gradient`, (softmax - one hot) * scale goes there.
double crossentropy_row(const float* logits, int64_t classes, int64_t label, float scale,
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

class SparseCrossentropy : public LossKernel {
 public:
  explicit SparseCrossentropy(const losses::SparseCrossentropyOptions& options)
      : options_(options) {
    require_smoothing(kSparse, options.label_smoothing);
    for (size_t c = 0; c < options.class_weights.size(); ++c) {
      const double weight = options.class_weights[c];
      detail::require_option(weight >= 0 && std::isfinite(weight), kSparse,
                             fmt::format("class_weights[{}]", c), weight, "a finite number >= 0");
    }
  }

  std::optional<bool> from_logits() const override { return options_.from_logits; }

  at::Tensor per_sample(const at::Tensor& output, const at::Tensor& given) const override {
    const at::Tensor target = labels_of(output, given);
    at::Tensor losses = unweighted(output, target);
    if (options_.class_weights.empty()) return losses;
    const at::Tensor weights =
        torch::tensor(options_.class_weights, losses.options().device(torch::kCPU));
    return losses * on_device(weights, losses.device()).index_select(0, target);
  }

  void check_targets(const at::Tensor& output, const at::Tensor& target) const override {
    labels_of(output, target);
  }

  at::Tensor scaled_sum(const at::Tensor& output, const at::Tensor& given, double scale,
                        double& total, const at::Tensor& weights) const override {
    const at::Tensor target = labels_of(output, given);
    if (!fused(output, target)) {
      return LossKernel::scaled_sum(output, target, scale, total, weights);
    }
    at::Tensor gradient = at::empty(output.sizes(), output.options());
    const double sum =
        rows(output, target, scale, gradient.data_ptr<float>(), row_weights(target, weights));
    total += sum;
    return detail::with_gradient(output, gradient, sum * scale);
  }

  void add_to(const at::Tensor& output, const at::Tensor& given, double& total,
              const at::Tensor& weights) const override {
    const at::Tensor target = labels_of(output, given);
    if (!fused(output, target)) return LossKernel::add_to(output, target, total, weights);
    total += rows(output, target, 1.0, nullptr, row_weights(target, weights));
  }

 private:
  bool fused(const at::Tensor& output, const at::Tensor& target) const {
    return options_.from_logits && options_.label_smoothing == 0 && detail::plain_floats(output) &&
           target.is_cpu() && target.is_contiguous();
  }

  at::Tensor unweighted(const at::Tensor& output, const at::Tensor& target) const {
    const double smoothing = options_.label_smoothing;
    if (options_.from_logits) {
      constexpr int64_t kIgnoreNoLabel = -100;  // the default; check() has refused such labels
      return torch::cross_entropy_loss(output, target, {}, at::Reduction::None, kIgnoreNoLabel,
                                       smoothing);
    }
    const at::Tensor each = -log_probabilities(output, false);
    const at::Tensor own = each.gather(1, target.unsqueeze(1)).squeeze(1);
    return smoothing == 0 ? own : own * (1 - smoothing) + each.mean(1) * smoothing;
  }

  /// The product of the sample's weight and its class's; empty: all 1.
  std::vector<double> row_weights(const at::Tensor& target, const at::Tensor& weights) const {
    std::vector<double> each = detail::sample_weights(weights, target.size(0));
    if (options_.class_weights.empty()) return each;
    const int64_t* labels = target.data_ptr<int64_t>();
    each.resize(static_cast<size_t>(target.size(0)), 1.0);
    for (size_t i = 0; i < each.size(); ++i) {
      each[i] *= options_.class_weights[static_cast<size_t>(labels[i])];
    }
    return each;
  }

  static double rows(const at::Tensor& output, const at::Tensor& target, double scale,
                     float* gradient, const std::vector<double>& weights) {
    const int64_t classes = output.size(1);
    const float* logits = output.data_ptr<float>();
    const int64_t* labels = target.data_ptr<int64_t>();
    double sum = 0;
    for (int64_t i = 0; i < output.size(0); ++i) {
      const double weight = weights.empty() ? 1.0 : weights[static_cast<size_t>(i)];
      sum += weight * crossentropy_row(logits + i * classes, classes, labels[i],
                                       static_cast<float>(scale * weight),
                                       gradient == nullptr ? nullptr : gradient + i * classes);
    }
    return sum;
  }

  /// `target`, of any integers and maybe of one column, as int64 [batch]: itself where it is so.
  at::Tensor labels_of(const at::Tensor& output, const at::Tensor& target) const {
    const bool integers = at::isIntegralType(target.scalar_type(), /*includeBool=*/false);
    const bool one_each = target.dim() == 1 || (target.dim() == 2 && target.size(1) == 1);
    const bool fits = output.dim() == 2 && one_each && output.is_floating_point() && integers &&
                      output.size(0) == target.size(0);
    if (!fits) {
      throw UsageError(fmt::format(
          "{}: got output {} and target {}, expected floating [batch, classes] and integers [batch]"
          "{}",
          kSparse, detail::tensor_words(output), detail::tensor_words(target),
          integers ? "" : "; labels are numbers of classes: make them int64"));
    }
    at::Tensor labels = target.dim() == 1 ? target : target.flatten();
    if (labels.scalar_type() != torch::kInt64) labels = labels.to(torch::kInt64);
    check(output, labels);
    return labels;
  }

  void check(const at::Tensor& output, const at::Tensor& target) const {
    if (options_.from_logits) detail::warn_of_probabilities(kSparse, output);
    const auto num_weights = static_cast<int64_t>(options_.class_weights.size());
    if (num_weights != 0 && num_weights != output.size(1)) {
      throw UsageError(
          fmt::format("{}: got {} class_weights for output {}, expected {}, one a "
                      "class",
                      kSparse, num_weights, detail::tensor_words(output), output.size(1)));
    }
    if (!target.is_cpu()) return;
    const at::Tensor labels = target.contiguous();
    const int64_t* label = labels.data_ptr<int64_t>();
    for (int64_t i = 0; i < labels.numel(); ++i) {
      if (label[i] < 0 || label[i] >= output.size(1)) bad_label(i, label[i], output.size(1));
    }
  }

  losses::SparseCrossentropyOptions options_;
};

/// `smoothing` of each target goes to `share`, the target that knows nothing.
at::Tensor smoothed(const at::Tensor& target, double smoothing, double share) {
  return smoothing == 0 ? target : target * (1 - smoothing) + smoothing * share;
}

}  // namespace

namespace losses {

Loss sparse_categorical_crossentropy(const SparseCrossentropyOptions& options) {
  return {kSparse, std::make_shared<SparseCrossentropy>(options)};
}

Loss categorical_crossentropy(const CrossentropyOptions& options) {
  require_smoothing("categorical_crossentropy", options.label_smoothing);
  return detail::loss_over_classes(
      "categorical_crossentropy",
      [options](const at::Tensor& y, const at::Tensor& t) {
        const double share = 1.0 / static_cast<double>(y.size(-1));
        const at::Tensor wanted = smoothed(t, options.label_smoothing, share);
        return -(wanted * log_probabilities(y, options.from_logits)).sum(-1);
      },
      options.from_logits);
}

Loss binary_crossentropy(const CrossentropyOptions& options) {
  require_smoothing("binary_crossentropy", options.label_smoothing);
  return detail::loss_of_elements(
      "binary_crossentropy",
      [options](const at::Tensor& y, const at::Tensor& t) {
        const at::Tensor wanted = smoothed(t, options.label_smoothing, 0.5);
        if (options.from_logits) {
          return at::binary_cross_entropy_with_logits(y, wanted, {}, {}, at::Reduction::None);
        }
        const at::Tensor yes = kept_probabilities(y).log();
        const at::Tensor no = kept_probabilities(1 - y).log();
        return -(wanted * yes + (1 - wanted) * no);
      },
      options.from_logits);
}

}  // namespace losses
}  // namespace tutti
