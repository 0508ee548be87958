// Cross-entropies: between classes, by label or by probabilities, and of single yes-or-no outputs.
#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>

#include "tutti/base/error.h"
#include "tutti/base/typed.h"
#include "tutti/nn/detail/lowering.h"
#include "tutti/queues/upload.h"
#include "tutti/train/losses/detail/crossentropy_of_row.h"
#include "tutti/train/losses/detail/loss_parts.h"
#include "tutti/train/losses/detail/samples.h"

namespace tutti {

namespace {

constexpr const char* kSparse = "sparse_categorical_crossentropy";

void require_smoothing(std::string_view loss, double smoothing) {
  detail::require_option(smoothing >= 0 && smoothing < 1, loss, "label_smoothing", smoothing,
                         "0 <= label_smoothing < 1");
}

void require_gamma(std::string_view loss, double gamma) {
  detail::require_option(gamma >= 0 && fits_float32(gamma), loss, "gamma", gamma,
                         "a finite number >= 0");
}

at::Tensor kept_probabilities(const at::Tensor& values) {
  return values.clamp(detail::kLossEpsilon, 1 - detail::kLossEpsilon);
}

/// missing^gamma. Below 1 its slope at 0 is infinite.
at::Tensor focused(const at::Tensor& missing, double gamma) {
  return gamma < 1 ? missing.clamp_min(detail::kLossEpsilon).pow(gamma) : missing.pow(gamma);
}
hlo::Value focused(hlo::Value missing, double gamma) {
  return hlo::power(gamma < 1 ? detail::at_least(missing, detail::kLossEpsilon) : missing, gamma);
}

/// log of the classes' probabilities, over the last axis.
at::Tensor log_probabilities(const at::Tensor& output, bool from_logits) {
  if (from_logits) return output.log_softmax(-1);
  return kept_probabilities(output / output.sum(-1, /*keepdim=*/true)).log();
}

hlo::Value kept_probabilities(hlo::Value values) {
  return detail::clamped(values, detail::kLossEpsilon, 1 - detail::kLossEpsilon);
}

hlo::Value log_probabilities(hlo::Value output, bool from_logits) {
  if (from_logits) return nn::detail::log_softmax(output);
  const hlo::Value sums = detail::along_last(detail::sum_over_last(output), output.shape());
  return hlo::log(kept_probabilities(output / sums));
}

/// Numbers of the last axis of `output`, along all of it.
hlo::Value one_a_class(hlo::Value output, const std::vector<double>& numbers) {
  std::vector<hlo::Value> each;
  for (const double number : numbers)
    each.push_back(hlo::constant(output.program(), {DType::float32, {1}}, number));
  return hlo::broadcast(hlo::concatenate(each, 0), output.shape(),
                        {static_cast<int64_t>(output.shape().size()) - 1});
}

/// The cross-entropy of single answers.
at::Tensor yes_or_no(const at::Tensor& y, const at::Tensor& wanted, bool from_logits) {
  if (from_logits)
    return at::binary_cross_entropy_with_logits(y, wanted, {}, {}, at::Reduction::None);
  const at::Tensor yes = kept_probabilities(y).log();
  const at::Tensor no = kept_probabilities(1 - y).log();
  return -(wanted * yes + (1 - wanted) * no);
}
hlo::Value yes_or_no(hlo::Value y, hlo::Value wanted, bool from_logits) {
  if (from_logits) return detail::softplus(y) - y * wanted;
  const hlo::Value yes = hlo::log(kept_probabilities(y));
  const hlo::Value no = hlo::log(kept_probabilities(1 - y));
  return -(wanted * yes + (1 - wanted) * no);
}

void require_alpha(std::string_view loss, const std::vector<double>& alpha) {
  for (size_t c = 0; c < alpha.size(); ++c)
    detail::require_option(alpha[c] >= 0 && fits_float32(alpha[c]), loss,
                           fmt::format("alpha[{}]", c), alpha[c], "a finite number >= 0");
  if (alpha.empty())
    throw UsageError(
        fmt::format("loss {}: alpha is empty; expected one number, or one a class", loss));
}

void require_one_a_class(std::string_view loss, const std::vector<double>& alpha, int64_t classes) {
  if (alpha.size() == 1 || std::ssize(alpha) == classes) return;
  throw UsageError(fmt::format("{}: got {} numbers of alpha for {} classes, expected 1 or {}", loss,
                               alpha.size(), classes, classes));
}

/// Labels one by one: how many a sample has.
int64_t positions_of(const at::Tensor& output) {
  int64_t positions = 1;
  for (int64_t axis = 1; axis + 1 < output.dim(); ++axis) positions *= output.size(axis);
  return positions;
}

[[noreturn]] void bad_label(int64_t place, int64_t positions, int64_t label, int64_t classes) {
  throw detail::RowError(
      kSparse, place / positions,
      fmt::format("label {}{}, but the model gives {} classes (labels 0 to {}){}", label,
                  positions == 1 ? "" : fmt::format(" at position {}", place % positions), classes,
                  classes - 1,
                  label < 0 ? "; what should not count: set .ignore_label of the loss" : ""));
}

void require_weights(const std::vector<double>& weights) {
  for (size_t c = 0; c < weights.size(); ++c)
    detail::require_option(weights[c] >= 0 && fits_float32(weights[c]), kSparse,
                           fmt::format("class_weights[{}]", c), weights[c],
                           "a finite number >= 0, that a float32 holds");
  if (!weights.empty() && std::ranges::all_of(weights, [](double weight) { return weight == 0; }))
    throw UsageError(fmt::format(
        "loss {}: all {} class_weights are 0, so that nothing is trained; give one of them more",
        kSparse, weights.size()));
}

class SparseCrossentropy : public LossKernel {
 public:
  explicit SparseCrossentropy(const losses::SparseCrossentropyOptions& options)
      : options_(options) {
    require_smoothing(kSparse, options.label_smoothing);
    require_weights(options.class_weights);
    require_gamma(kSparse, options.gamma);
    if (options.gamma != 0 && options.label_smoothing != 0)
      throw UsageError(fmt::format(
          "loss {}: gamma = {} and label_smoothing = {}: of a smoothed target no one probability "
          "says how right an output is; give one of them, or categorical_focal_crossentropy",
          kSparse, options.gamma, options.label_smoothing));
  }

  bool takes_labels() const override { return true; }

  std::optional<bool> from_logits() const override { return options_.from_logits; }

  std::optional<int64_t> ignored_label() const override { return options_.ignore_label; }

  std::optional<int64_t> classes() const override {
    if (options_.class_weights.empty()) return {};
    return std::ssize(options_.class_weights);
  }

  std::optional<int64_t> counted(const at::Tensor& target) const override {
    const bool some_do_not =
        options_.ignore_label ||
        std::ranges::find(options_.class_weights, 0.0) != options_.class_weights.end();
    if (!some_do_not) return {};
    if (!target.defined() || !at::isIntegralType(target.scalar_type(), /*includeBool=*/false))
      return 0;  // per_sample() says what is wrong with it
    const at::Tensor labels = target.to(torch::kInt64).contiguous();
    const int64_t* const first = labels.const_data_ptr<int64_t>();
    return std::count_if(first, first + labels.numel(), [this](int64_t label) {
      const auto c = static_cast<size_t>(label);
      return !ignores(label) &&
             (c >= options_.class_weights.size() || options_.class_weights[c] != 0);
    });
  }

  at::Tensor per_sample(const at::Tensor& output, const at::Tensor& given) const override {
    const at::Tensor target = labels_of(output, given);
    at::Tensor losses = unweighted(output.dim() == 2 ? output : output.flatten(0, -2), target);
    if (options_.gamma != 0) losses = losses * focused(-(-losses).expm1(), options_.gamma);
    if (!options_.class_weights.empty()) {
      const at::Tensor weights =
          torch::tensor(options_.class_weights, losses.options().device(torch::kCPU));
      losses = losses * on_device(weights, losses.device()).index_select(0, classes_of(target));
    }
    return output.dim() == 2 ? losses : losses.view({output.size(0), positions_of(output)}).mean(1);
  }

  std::optional<hlo::Value> lower(const hlo::Value& output,
                                  const hlo::Value& target) const override {
    hlo::Shape places = output.shape();
    places.pop_back();
    const hlo::Value labels = hlo::reshape(target, places);
    const auto last = static_cast<int64_t>(places.size());
    const hlo::Type as_labels{labels.dtype(), output.shape()};
    const hlo::Value own =
        hlo::convert(hlo::compare(hlo::iota(output.program(), as_labels, last), hlo::Comparison::eq,
                                  detail::along_last(labels, output.shape())),
                     DType::float32);
    const hlo::Value each = -log_probabilities(output, options_.from_logits);
    hlo::Value losses = detail::sum_over_last(each * own);
    if (const double smoothing = options_.label_smoothing; smoothing != 0)
      losses =
          losses * (1 - smoothing) +
          detail::sum_over_last(each) * (smoothing / static_cast<double>(output.shape().back()));
    if (options_.gamma != 0)
      losses = losses * focused(detail::at_least(1 - hlo::exp(-losses), 0), options_.gamma);
    if (options_.ignore_label)
      losses = losses * hlo::convert(hlo::compare(labels, hlo::Comparison::ne,
                                                  static_cast<double>(*options_.ignore_label)),
                                     DType::float32);
    if (!options_.class_weights.empty())
      losses = losses * detail::sum_over_last(own * one_a_class(output, options_.class_weights));
    return detail::mean_of_samples(losses);
  }

  void check_targets(const at::Tensor& output, const at::Tensor& target) const override {
    labels_of(output, target);
  }

  at::Tensor scaled_sum(const at::Tensor& output, const at::Tensor& given, double scale,
                        double& total, const at::Tensor& weights) const override {
    const at::Tensor target = labels_of(output, given);
    if (!fused(output, target)) {
      return LossKernel::scaled_sum(output, given, scale, total, weights);
    }
    at::Tensor gradient = at::empty(output.sizes(), output.options());
    const double sum = rows(output, target, scale, gradient.data_ptr<float>(),
                            row_weights(output, target, weights));
    total += sum;
    return detail::with_gradient(output, gradient, sum * scale);
  }

  void add_to(const at::Tensor& output, const at::Tensor& given, double& total,
              const at::Tensor& weights) const override {
    const at::Tensor target = labels_of(output, given);
    if (!fused(output, target)) return LossKernel::add_to(output, given, total, weights);
    total += rows(output, target, 1.0, nullptr, row_weights(output, target, weights));
  }

 private:
  bool fused(const at::Tensor& output, const at::Tensor& target) const {
    return options_.from_logits && options_.label_smoothing == 0 && options_.gamma == 0 &&
           detail::plain_floats(output) && target.is_cpu() && target.is_contiguous();
  }

  at::Tensor unweighted(const at::Tensor& output, const at::Tensor& target) const {
    const double smoothing = options_.label_smoothing;
    if (options_.from_logits) {
      constexpr int64_t kNoLabel = -100;  // the default; check() has refused such labels
      return torch::cross_entropy_loss(output, target, {}, at::Reduction::None,
                                       options_.ignore_label.value_or(kNoLabel), smoothing);
    }
    const at::Tensor each = -log_probabilities(output, false);
    at::Tensor own = each.gather(1, classes_of(target).unsqueeze(1)).squeeze(1);
    if (smoothing != 0) own = own * (1 - smoothing) + each.mean(1) * smoothing;
    return options_.ignore_label ? own.masked_fill(target.eq(*options_.ignore_label), 0) : own;
  }

  bool ignores(int64_t label) const { return options_.ignore_label == label; }

  /// Labels that may be looked up: any class in place of the ignored label.
  at::Tensor classes_of(const at::Tensor& target) const {
    return options_.ignore_label ? target.masked_fill(target.eq(*options_.ignore_label), 0)
                                 : target;
  }

  /// Of each label, the product of its sample's weight, its class's, and its share of the sample;
  /// empty: all 1.
  std::vector<double> row_weights(const at::Tensor& output, const at::Tensor& target,
                                  const at::Tensor& weights) const {
    std::vector<double> samples = detail::sample_weights(weights, output.size(0));
    const int64_t positions = positions_of(output);
    if (options_.class_weights.empty() && positions == 1) return samples;
    std::vector<double> each(static_cast<size_t>(target.size(0)),
                             1.0 / static_cast<double>(positions));
    const int64_t* labels = target.data_ptr<int64_t>();
    for (size_t i = 0; i < each.size(); ++i) {
      if (!samples.empty()) each[i] *= samples[i / static_cast<size_t>(positions)];
      if (!options_.class_weights.empty() && !ignores(labels[i]))
        each[i] *= options_.class_weights[static_cast<size_t>(labels[i])];
    }
    return each;
  }

  double rows(const at::Tensor& output, const at::Tensor& target, double scale, float* gradient,
              const std::vector<double>& weights) const {
    const int64_t classes = output.size(-1);
    const float* logits = output.data_ptr<float>();
    const int64_t* labels = target.data_ptr<int64_t>();
    double sum = 0;
    for (int64_t i = 0; i < target.size(0); ++i) {
      if (ignores(labels[i])) {
        if (gradient != nullptr) std::fill_n(gradient + i * classes, classes, 0.0F);
        continue;
      }
      const double weight = weights.empty() ? 1.0 : weights[static_cast<size_t>(i)];
      sum += weight *
             detail::crossentropy_of_row(logits + i * classes, classes, labels[i],
                                         static_cast<float>(scale * weight),
                                         gradient == nullptr ? nullptr : gradient + i * classes);
    }
    return sum;
  }

  /// `target`, of any integers and any shape that fits, as int64 in one row: itself where it is so.
  at::Tensor labels_of(const at::Tensor& output, const at::Tensor& target) const {
    const bool integers = at::isIntegralType(target.scalar_type(), /*includeBool=*/false);
    const bool one_column = output.dim() == 2 && target.dim() == 2 && target.size(1) == 1 &&
                            output.size(0) == target.size(0);
    const bool fits =
        output.dim() >= 2 && output.is_floating_point() && integers &&
        (one_column ||
         output.sizes().slice(0, static_cast<size_t>(output.dim() - 1)) == target.sizes());
    if (!fits) {
      throw UsageError(fmt::format(
          "{}: got output {} and target {}, expected floating [batch, classes] and integers "
          "[batch], or of sequences [batch, length, classes] and [batch, length]{}",
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
    if (num_weights != 0 && num_weights != output.size(-1)) {
      throw UsageError(
          fmt::format("{}: got {} class_weights for output {}, expected {}, one a "
                      "class",
                      kSparse, num_weights, detail::tensor_words(output), output.size(-1)));
    }
    if (!target.is_cpu()) return;
    const at::Tensor labels = target.contiguous();
    const int64_t* label = labels.data_ptr<int64_t>();
    for (int64_t i = 0; i < labels.numel(); ++i) {
      if ((label[i] < 0 || label[i] >= output.size(-1)) && !ignores(label[i]))
        bad_label(i, positions_of(output), label[i], output.size(-1));
    }
  }

  losses::SparseCrossentropyOptions options_;
};

/// `smoothing` of each target goes to `share`, the target that knows nothing.
template <class Values>
Values smoothed(Values target, double smoothing, double share) {
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
      {.of_tensors =
           [options](const at::Tensor& y, const at::Tensor& t) {
             const double share = 1.0 / static_cast<double>(y.size(-1));
             const at::Tensor wanted = smoothed(t, options.label_smoothing, share);
             return -(wanted * log_probabilities(y, options.from_logits)).sum(-1);
           },
       .lowered =
           [options](hlo::Value y, hlo::Value t) {
             const double share = 1.0 / static_cast<double>(y.shape().back());
             const hlo::Value wanted = smoothed(t, options.label_smoothing, share);
             return -detail::sum_over_last(wanted * log_probabilities(y, options.from_logits));
           }},
      options.from_logits);
}

Loss binary_crossentropy(const CrossentropyOptions& options) {
  require_smoothing("binary_crossentropy", options.label_smoothing);
  return detail::loss_of_elements(
      "binary_crossentropy",
      {.of_tensors =
           [options](const at::Tensor& y, const at::Tensor& t) {
             return yes_or_no(y, smoothed(t, options.label_smoothing, 0.5), options.from_logits);
           },
       .lowered =
           [options](hlo::Value y, hlo::Value t) {
             return yes_or_no(y, smoothed(t, options.label_smoothing, 0.5), options.from_logits);
           }},
      options.from_logits);
}

Loss binary_focal_crossentropy(const BinaryFocalOptions& options) {
  const char* const name = "binary_focal_crossentropy";
  require_smoothing(name, options.label_smoothing);
  require_gamma(name, options.gamma);
  const double alpha = options.alpha.value_or(0.5);
  detail::require_option(alpha >= 0 && alpha <= 1, name, "alpha", alpha, "0 <= alpha <= 1");
  const auto wanted_of = [=](auto t) { return smoothed(t, options.label_smoothing, 0.5); };
  const auto factor_of = [=](auto yes, auto no, auto wanted) {
    const auto factor = focused(wanted * no + (1 - wanted) * yes, options.gamma);
    return options.alpha ? factor * (wanted * alpha + (1 - wanted) * (1 - alpha)) : factor;
  };
  const bool logits = options.from_logits;
  return detail::loss_of_elements(
      name,
      {.of_tensors =
           [=](const at::Tensor& y, const at::Tensor& t) {
             const at::Tensor wanted = wanted_of(t);
             const at::Tensor yes = logits ? y.sigmoid() : y.clamp(0, 1);
             return factor_of(yes, logits ? (-y).sigmoid() : 1 - yes, wanted) *
                    yes_or_no(y, wanted, logits);
           },
       .lowered =
           [=](hlo::Value y, hlo::Value t) {
             const hlo::Value wanted = wanted_of(t);
             const hlo::Value yes = logits ? hlo::sigmoid(y) : detail::clamped(y, 0, 1);
             return factor_of(yes, logits ? hlo::sigmoid(-y) : 1 - yes, wanted) *
                    yes_or_no(y, wanted, logits);
           }},
      logits);
}

Loss categorical_focal_crossentropy(const CategoricalFocalOptions& options) {
  const char* const name = "categorical_focal_crossentropy";
  require_smoothing(name, options.label_smoothing);
  require_gamma(name, options.gamma);
  require_alpha(name, options.alpha);
  return detail::loss_over_classes(
      name,
      {.of_tensors =
           [=](const at::Tensor& y, const at::Tensor& t) {
             const int64_t classes = y.size(-1);
             require_one_a_class(name, options.alpha, classes);
             const double share = 1.0 / static_cast<double>(classes);
             const at::Tensor logs = log_probabilities(y, options.from_logits);
             const at::Tensor alpha = on_device(
                 torch::tensor(options.alpha, y.options().device(torch::kCPU)), y.device());
             return -(smoothed(t, options.label_smoothing, share) * logs *
                      focused(-logs.expm1(), options.gamma) * alpha)
                         .sum(-1);
           },
       .lowered =
           [=](hlo::Value y, hlo::Value t) {
             require_one_a_class(name, options.alpha, y.shape().back());
             const double share = 1.0 / static_cast<double>(y.shape().back());
             const hlo::Value logs = log_probabilities(y, options.from_logits);
             const hlo::Value missing = detail::at_least(1 - hlo::exp(logs), 0);
             const hlo::Value each = smoothed(t, options.label_smoothing, share) * logs *
                                     focused(missing, options.gamma);
             if (options.alpha.size() == 1) return -detail::sum_over_last(each * options.alpha[0]);
             return -detail::sum_over_last(each * one_a_class(y, options.alpha));
           }},
      options.from_logits);
}

}  // namespace losses
}  // namespace tutti
