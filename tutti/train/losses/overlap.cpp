// Losses by what outputs and targets share: Dice and Tversky of masks, CTC of sequences of labels.
#include "tutti/train/losses/overlap.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/typed.h"
#include "tutti/nn/detail/lowering.h"
#include "tutti/queues/upload.h"
#include "tutti/train/losses/detail/loss_parts.h"
#include "tutti/train/losses/detail/reads_labels.h"
#include "tutti/train/losses/detail/samples.h"

namespace tutti {

namespace {

using detail::kLossEpsilon;

// ---- of masks ----

at::Tensor sum_of_sample(const at::Tensor& values) {
  return values.dim() == 1 ? values : values.flatten(1).sum(1);
}
hlo::Value sum_of_sample(hlo::Value values) {
  const int64_t batch = values.shape()[0], each = hlo::num_elements(values.type()) / batch;
  return hlo::reduce_sum(hlo::reshape(values, {batch, each}), {1});
}

/// What both losses are made of, sums over each sample.
template <class Values>
struct MaskSums {
  Values both, output, target;
};

template <class Options>
at::Tensor shares_of(const Options& options, const at::Tensor& y) {
  if (!options.from_logits) return y;
  return options.softmax ? y.softmax(-1) : y.sigmoid();
}
template <class Options>
hlo::Value shares_of(const Options& options, hlo::Value y) {
  if (!options.from_logits) return y;
  return options.softmax ? hlo::exp(nn::detail::log_softmax(y)) : hlo::sigmoid(y);
}

/// 1 - agreement(sums) / all(sums).
template <class Options, class Loss_>
Loss overlap_loss(const std::string& name, const Options& options, Loss_ loss) {
  detail::require_option(options.smooth >= 0 && fits_float32(options.smooth), name, "smooth",
                         options.smooth, "a finite number >= 0");
  if (options.softmax && !options.from_logits)
    throw UsageError(fmt::format(
        "loss {}: softmax of outputs that are no logits; leave .softmax out, or .from_logits",
        name));
  const auto formula = [options, loss](auto y, auto t) {
    const auto p = shares_of(options, y);
    return loss(MaskSums<decltype(p)>{sum_of_sample(t * p), sum_of_sample(p), sum_of_sample(t)});
  };
  return detail::loss_of_elements(
      name,
      {.of_tensors = [formula](const at::Tensor& y, const at::Tensor& t) { return formula(y, t); },
       .lowered = [formula](hlo::Value y, hlo::Value t) { return formula(y, t); }},
      options.from_logits);
}

void require_share(std::string_view field, double value) {
  detail::require_option(value >= 0 && fits_float32(value), "tversky", field, value,
                         "a finite number >= 0");
}

// ---- of sequences of labels ----

class Ctc : public LossKernel, public detail::ReadsLabels {
 public:
  explicit Ctc(const losses::CtcOptions& options) : options_(options) {
    detail::require_option(options.blank >= 0, kName, "blank", static_cast<double>(options.blank),
                           "a class, 0 or more");
  }

  std::optional<bool> from_logits() const override { return options_.from_logits; }

  at::Tensor per_sample(const at::Tensor& output, const at::Tensor& target) const override {
    require(output, target);
    if (options_.from_logits) detail::warn_of_probabilities(kName, output);
    const at::Tensor labels = target.to(torch::kCPU, torch::kInt64).contiguous();
    const std::vector<int64_t> lengths = lengths_of(output, labels);
    const std::vector<int64_t> steps(lengths.size(), output.size(1));
    const auto own = output.scalar_type();
    const bool half = own == torch::kFloat16 || own == torch::kBFloat16;
    const at::Tensor y = half ? output.to(torch::kFloat32) : output;
    if (lengths.empty()) return y.sum({1, 2});
    return at::ctc_loss(logs_of(y).transpose(0, 1), on_device(labels, output.device()), steps,
                        lengths, options_.blank, at::Reduction::None);
  }

  void check_targets(const at::Tensor& output, const at::Tensor& target) const override {
    require(output, target);
    lengths_of(output, target.to(torch::kInt64).contiguous());
  }

 private:
  static constexpr const char* kName = "ctc";

  at::Tensor logs_of(const at::Tensor& y) const {
    if (options_.from_logits) return y.log_softmax(-1);
    return (y / y.sum(-1, /*keepdim=*/true)).clamp(kLossEpsilon, 1 - kLossEpsilon).log();
  }

  void require(const at::Tensor& output, const at::Tensor& target) const {
    const bool fits = output.dim() == 3 && output.is_floating_point() && target.dim() == 2 &&
                      at::isIntegralType(target.scalar_type(), /*includeBool=*/false) &&
                      target.size(0) == output.size(0) && output.size(1) > 0;
    if (!fits)
      throw UsageError(fmt::format(
          "{}: got output {} and target {}, expected floating [batch, steps, classes] and integers "
          "[batch, most labels]",
          kName, detail::tensor_words(output), detail::tensor_words(target)));
    if (options_.blank >= output.size(2))
      throw UsageError(fmt::format("{}: blank = {}, but the model gives {} classes", kName,
                                   options_.blank, output.size(2)));
  }

  /// How many labels each sample has.
  std::vector<int64_t> lengths_of(const at::Tensor& output, const at::Tensor& labels) const {
    std::vector<int64_t> lengths;
    for (int64_t row = 0; row < labels.size(0); ++row)
      lengths.push_back(length_of(row, labels.const_data_ptr<int64_t>() + row * labels.size(1),
                                  labels.size(1), output.size(1), output.size(2)));
    return lengths;
  }

  int64_t length_of(int64_t row, const int64_t* labels, int64_t most, int64_t steps,
                    int64_t classes) const {
    const int64_t length = std::find(labels, labels + most, options_.blank) - labels;
    int64_t repeats = 0;
    for (int64_t i = 0; i < most; ++i) {
      if (i >= length ? labels[i] != options_.blank : labels[i] < 0 || labels[i] >= classes)
        throw detail::RowError(
            kName, row,
            i >= length
                ? fmt::format("label {} at position {} stands behind the blank ({}) at {}, with "
                              "which labels are padded",
                              labels[i], i, options_.blank, length)
                : fmt::format("label {} at position {}, but the model gives {} classes (0 to {}, "
                              "{} is the blank)",
                              labels[i], i, classes, classes - 1, options_.blank));
      if (i > 0 && i < length) repeats += labels[i] == labels[i - 1];
    }
    if (length + repeats > steps)
      throw detail::RowError(
          kName, row,
          fmt::format(
              "{} labels, {} of them like the one before, need {} steps; the model gives {}",
              length, repeats, length + repeats, steps));
    return length;
  }

  losses::CtcOptions options_;
};

}  // namespace

namespace losses {

Loss dice(const DiceOptions& options) {
  return overlap_loss("dice", options, [smooth = options.smooth](const auto& sums) {
    return 1 - (sums.both * 2 + smooth) / (sums.target + sums.output + (smooth + kLossEpsilon));
  });
}

Loss tversky(const TverskyOptions& options) {
  require_share("alpha", options.alpha);
  require_share("beta", options.beta);
  return overlap_loss("tversky", options, [options](const auto& sums) {
    const auto all = sums.both + (sums.output - sums.both) * options.alpha +
                     (sums.target - sums.both) * options.beta;
    return 1 - (sums.both + options.smooth) / (all + (options.smooth + kLossEpsilon));
  });
}

Loss ctc(const CtcOptions& options) { return {"ctc", std::make_shared<Ctc>(options)}; }

}  // namespace losses
}  // namespace tutti
