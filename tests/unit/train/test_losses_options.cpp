// Losses: weights of samples, options, and input that does not fit.
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tutti/train/losses/overlap.h"
#include "tutti/train/metrics/metrics.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

/// Output and target, [6, 3], that every loss but the sparse one takes.
struct Pair {
  at::Tensor output, target;
};

Pair pair_for(const Loss& loss, torch::Dtype dtype) {
  torch::manual_seed(8);
  const auto output = torch::rand({6, 3}, dtype) * 0.9 + 0.05;
  if (loss.name() == "sparse_categorical_crossentropy") {
    return {output, torch::randint(3, {6}, torch::kInt64)};
  }
  if (loss.name() == "ctc")  // of readings, 4 steps of 3 classes
    return {torch::randn({6, 4, 3}, dtype), torch::randint(1, 3, {6, 2}, torch::kInt64)};
  return {output, torch::rand({6, 3}, dtype) * 0.9 + 0.05};
}

TEST(LossWeights, MultiplyEachSamplesLossInEveryLoss) {
  const auto weights = torch::tensor({0.0F, 1.0F, 2.5F, 0.25F, 1.0F, 3.0F});
  const double scale = 1.0 / 7;
  for (const auto& name : losses::loss_names()) {
    for (const auto dtype : {torch::kFloat32, torch::kFloat64}) {
      SCOPED_TRACE(name);
      const Loss loss = losses::loss_by_name(name);
      const auto [output, target] = pair_for(loss, dtype);
      double sum = 0;
      auto gradient = torch::zeros_like(output);
      for (int64_t i = 0; i < 6; ++i) {
        const auto row = output.slice(0, i, i + 1).clone().requires_grad_();
        const auto one = loss.kernel().per_sample(row, target.slice(0, i, i + 1)).sum();
        one.backward();
        sum += one.item<double>() * weights[i].item<double>();
        gradient[i] = row.grad()[0] * weights[i] * scale;
      }
      const auto leaf = output.clone().requires_grad_();
      double total = 1000;  // what is there stays
      const auto value = loss.kernel().scaled_sum(leaf, target, scale, total, weights);
      value.backward();
      EXPECT_NEAR(total, 1000 + sum, 3e-6 * std::max(1.0, std::abs(sum)));
      EXPECT_NEAR(value.item<double>(), sum * scale, 1e-6 * std::max(1.0, std::abs(sum)));
      EXPECT_TRUE(torch::allclose(leaf.grad(), gradient, 1e-5, 1e-7));
      double evaluated = 0;
      loss.kernel().add_to(output, target, evaluated, weights.to(torch::kFloat64));
      EXPECT_NEAR(evaluated, total - 1000, 1e-9 * std::max(1.0, std::abs(sum)));
    }
  }
}

TEST(LossWeights, AreTakenByAFunctionOfTheUsersOwn) {
  const Loss absolute("absolute", [](const at::Tensor& y, const at::Tensor& t) {
    return (y - t).abs().flatten(1).sum(1);
  });
  const auto output = torch::tensor({{1.0F, 2.0F}, {3.0F, 4.0F}}).requires_grad_();
  double total = 0;
  const auto value = absolute.kernel().scaled_sum(output, torch::zeros({2, 2}), 0.5, total,
                                                  torch::tensor({2.0F, 0.5F}));
  value.backward();
  EXPECT_EQ(total, 2 * 3 + 0.5 * 7);
  EXPECT_EQ(value.item<double>(), total / 2);
  EXPECT_TRUE(torch::equal(output.grad(), torch::tensor({{1.0F, 1.0F}, {0.25F, 0.25F}})));
}

TEST(OwnLosses, OnesThatCannotBeAreRefused) {
  EXPECT_THAT(message_of<UsageError>([] { Loss("mine", Loss::Function()); }),
              HasSubstr("loss mine: its function is empty"));
  EXPECT_THAT(message_of<UsageError>([] { Loss("mine", std::shared_ptr<const LossKernel>()); }),
              HasSubstr("loss mine: its kernel is null"));
  EXPECT_THAT(message_of<UsageError>([] { Metric("mine", Metric::Function()); }),
              HasSubstr("metric mine: its function is empty"));
  // A model that lost a row on the way.
  const Loss loss("mine", [](const at::Tensor& y, const at::Tensor&) { return y.sum(1); });
  double total = 0;
  EXPECT_THAT(message_of<UsageError>([&] {
                loss.kernel().add_to(torch::zeros({3, 2}), torch::zeros({4, 2}), total, {});
              }),
              AllOf(HasSubstr("loss mine: got "), HasSubstr("for 4 samples")));
}

TEST(LossWeights, OfAnotherLengthOrDtypeAreRefused) {
  for (const auto& name : losses::loss_names()) {
    const Loss loss = losses::loss_by_name(name);
    const auto [output, target] = pair_for(loss, torch::kFloat32);
    for (const auto& weights : {torch::ones({5}), torch::ones({6, 1}), torch::ones({}),
                                torch::ones({6}, torch::kInt64)}) {
      double total = 0;
      const auto message = message_of<UsageError>(
          [&] { loss.kernel().scaled_sum(output, target, 1, total, weights); });
      EXPECT_THAT(message, HasSubstr("expected floating [6], one a sample"));
      EXPECT_THROW(loss.kernel().add_to(output, target, total, weights), UsageError);
    }
  }
}

TEST(LossWeights, OfClassesMultiplyTheWholeLossOfTheirSamples) {
  torch::manual_seed(10);
  const auto labels = torch::tensor({2, 0, 2, 1}, torch::kInt64);
  const auto of_samples = torch::tensor({1.0F, 0.5F, 2.0F, 4.0F});
  const auto together = of_samples * torch::tensor({3.0F, 0.5F, 3.0F, 0.0F});
  for (const bool from_logits : {true, false}) {
    for (const double smoothing : {0.0, 0.2}) {
      const auto plain = losses::sparse_categorical_crossentropy(
          {.from_logits = from_logits, .label_smoothing = smoothing});
      const auto weighted = losses::sparse_categorical_crossentropy(
          {.from_logits = from_logits, .label_smoothing = smoothing, .class_weights = {0.5, 0, 3}});
      const auto sum_and_gradient = [&](const Loss& loss, const at::Tensor& weights) {
        const auto output = (torch::ones({4, 3}) / torch::arange(2, 5)).requires_grad_();
        double total = 0;
        loss.kernel().scaled_sum(output, labels, 1, total, weights).backward();
        return std::pair(total, output.grad());
      };
      const auto [expected, slope] = sum_and_gradient(plain, together);
      const auto [got, gradient] = sum_and_gradient(weighted, of_samples);
      EXPECT_NEAR(got, expected, 1e-5);
      EXPECT_TRUE(torch::allclose(gradient, slope, 1e-5, 1e-6));
    }
  }
}

TEST(LossOptions, OutOfRangeAreNamedWithTheRange) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinite = std::numeric_limits<double>::infinity();
  for (const double smoothing : {-0.1, 1.0, nan}) {
    const auto names_it = AllOf(HasSubstr(fmt::format("label_smoothing = {}", smoothing)),
                                HasSubstr("0 <= label_smoothing < 1"));
    const losses::CrossentropyOptions options{.label_smoothing = smoothing};
    EXPECT_THAT(message_of<UsageError>([&] { losses::categorical_crossentropy(options); }),
                AllOf(HasSubstr("categorical_crossentropy"), names_it));
    EXPECT_THAT(message_of<UsageError>([&] { losses::binary_crossentropy(options); }),
                AllOf(HasSubstr("binary_crossentropy"), names_it));
    EXPECT_THAT(message_of<UsageError>([&] {
                  losses::sparse_categorical_crossentropy({.label_smoothing = smoothing});
                }),
                AllOf(HasSubstr("sparse_categorical_crossentropy"), names_it));
  }
  for (const double gamma : {-1.0, infinite, nan}) {
    const auto names_it = AllOf(HasSubstr(fmt::format("focal_crossentropy: gamma = {}", gamma)),
                                HasSubstr("a finite number >= 0"));
    EXPECT_THAT(
        message_of<UsageError>([&] { losses::binary_focal_crossentropy({.gamma = gamma}); }),
        names_it);
    EXPECT_THAT(
        message_of<UsageError>([&] { losses::categorical_focal_crossentropy({.gamma = gamma}); }),
        names_it);
    EXPECT_THAT(
        message_of<UsageError>([&] { losses::sparse_categorical_crossentropy({.gamma = gamma}); }),
        HasSubstr("gamma = "));
    EXPECT_THAT(message_of<UsageError>([&] { losses::dice({.smooth = gamma}); }),
                HasSubstr("dice: smooth = "));
    EXPECT_THAT(message_of<UsageError>([&] { losses::tversky({.beta = gamma}); }),
                HasSubstr("tversky: beta = "));
    EXPECT_THAT(
        message_of<UsageError>([&] { losses::categorical_focal_crossentropy({.alpha = {gamma}}); }),
        HasSubstr("alpha[0] = "));
  }
  for (const double alpha : {-0.1, 1.5, nan})
    EXPECT_THAT(
        message_of<UsageError>([&] { losses::binary_focal_crossentropy({.alpha = alpha}); }),
        HasSubstr("0 <= alpha <= 1"));
  EXPECT_THAT(message_of<UsageError>([] { losses::categorical_focal_crossentropy({.alpha = {}}); }),
              HasSubstr("alpha is empty"));
  EXPECT_THAT(message_of<UsageError>([] {
                losses::sparse_categorical_crossentropy({.label_smoothing = 0.1, .gamma = 2});
              }),
              HasSubstr("gamma = 2 and label_smoothing = 0.1"));
  EXPECT_THAT(message_of<UsageError>([] { losses::dice({.from_logits = false, .softmax = true}); }),
              HasSubstr("softmax of outputs that are no logits"));
  EXPECT_THAT(message_of<UsageError>([] { losses::ctc({.blank = -1}); }), HasSubstr("blank = -1"));
  for (const double delta : {0.0, -1.0, infinite, nan}) {
    EXPECT_THAT(message_of<UsageError>([&] { losses::huber({.delta = delta}); }),
                AllOf(HasSubstr(fmt::format("huber: delta = {}", delta)),
                      HasSubstr("a finite number > 0")));
  }
  for (const double weight : {-1.0, infinite, nan}) {
    EXPECT_THAT(message_of<UsageError>([&] {
                  losses::sparse_categorical_crossentropy({.class_weights = {1, weight}});
                }),
                AllOf(HasSubstr(fmt::format("class_weights[1] = {}", weight)),
                      HasSubstr("a finite number >= 0")));
  }
}

TEST(LossOptions, ThereIsOneWeightAClass) {
  const auto loss = losses::sparse_categorical_crossentropy({.class_weights = {1, 2}});
  double total = 0;
  EXPECT_THAT(message_of<UsageError>([&] {
                loss.kernel().scaled_sum(torch::zeros({2, 3}), torch::zeros({2}, torch::kInt64), 1,
                                         total);
              }),
              AllOf(HasSubstr("got 2 class_weights"), HasSubstr("expected 3, one a class")));
}

TEST(LossInput, ThatDoesNotFitIsDescribed) {
  const auto try_it = [](const Loss& loss, const at::Tensor& output, const at::Tensor& target) {
    double total = 0;
    const auto message =
        message_of<UsageError>([&] { loss.kernel().scaled_sum(output, target, 1, total); });
    EXPECT_THAT(message, HasSubstr(loss.name() + ": got output"));
    EXPECT_EQ(total, 0);
    return message;
  };
  const auto integers = torch::zeros({4, 3}, torch::kInt64);
  for (const auto& name : losses::loss_names()) {
    const Loss loss = losses::loss_by_name(name);
    try_it(loss, torch::zeros({4, 3}), torch::zeros({5, 3}));
    try_it(loss, torch::zeros({4, 3}), torch::zeros({4, 2}));
    try_it(loss, torch::zeros({4, 3}), torch::zeros({4, 3}, torch::kFloat64));
    try_it(loss, torch::zeros({}), torch::zeros({}));
    try_it(loss, integers, integers);
  }
  // Over classes, rows must be rows.
  for (const char* name : {"categorical_crossentropy", "categorical_focal_crossentropy",
                           "categorical_hinge", "kl_divergence", "cosine_similarity"}) {
    const Loss loss = losses::loss_by_name(name);
    EXPECT_THAT(try_it(loss, torch::zeros({4, 3, 2}), torch::zeros({4, 6})),
                HasSubstr("Float [4, 6], expected"));
    try_it(loss, torch::zeros({4}), torch::zeros({4}));
  }
}

TEST(LossInput, IntegersAndBoolsAreTargetsToo) {
  const auto output = torch::tensor({{0.5F}, {2.0F}, {0.25F}});
  const auto yes = torch::tensor({true, false, false});
  for (const auto& name : losses::loss_names()) {
    if (name == "sparse_categorical_crossentropy" || name == "ctc") continue;
    const Loss loss = losses::loss_by_name(name);
    const auto wanted = loss.kernel().per_sample(output, yes.unsqueeze(1).to(torch::kFloat32));
    for (const auto dtype : {torch::kBool, torch::kUInt8, torch::kInt64}) {
      EXPECT_TRUE(
          torch::equal(loss.kernel().per_sample(output, yes.unsqueeze(1).to(dtype)), wanted))
          << name;
    }
  }
  const auto entropy = losses::binary_crossentropy();
  EXPECT_TRUE(torch::equal(entropy.kernel().per_sample(output, yes),
                           entropy.kernel().per_sample(output.squeeze(1), yes)));
}

TEST(LossInput, OfSixteenBitsIsComputedInFloat32) {
  for (const auto dtype : {torch::kFloat16, torch::kBFloat16}) {
    const auto output = torch::tensor({{0.0F, 0.5F}, {1.0F, 0.25F}}).to(dtype).requires_grad_();
    const auto target = torch::tensor({{1.0F, 0.0F}, {0.0F, 1.0F}}).to(dtype);
    double total = 0;
    losses::binary_crossentropy({.from_logits = false})
        .kernel()
        .scaled_sum(output, target, 1, total)
        .backward();
    EXPECT_NEAR(total, (-2 * std::log(1e-7) - std::log(0.5) - std::log(0.25)) / 2, 1e-4);
    EXPECT_EQ(output.grad().scalar_type(), dtype);
  }
}

TEST(LossInput, LargeLogitsGiveFiniteLossesAndGradients) {
  for (const auto& loss :
       {losses::binary_crossentropy(), losses::categorical_crossentropy(),
        losses::categorical_crossentropy({.label_smoothing = 0.1}), losses::log_cosh()}) {
    const auto output = torch::tensor({{1e4F, -1e4F}, {-1e4F, 1e4F}}).requires_grad_();
    double total = 0;
    loss.kernel().scaled_sum(output, torch::eye(2), 1, total).backward();
    EXPECT_TRUE(std::isfinite(total)) << loss.name();
    EXPECT_TRUE(output.grad().isfinite().all().item<bool>()) << loss.name();
  }
}

TEST(LossNames, GiveTheLossOrTheNearestName) {
  EXPECT_EQ(losses::loss_by_name("huber").name(), "huber");
  EXPECT_EQ(losses::loss_names().size(), 20U);
  EXPECT_TRUE(std::ranges::is_sorted(losses::loss_names()));
  const auto message = message_of<UsageError>([] { losses::loss_by_name("log_kosh"); });
  EXPECT_THAT(message, AllOf(HasSubstr("unknown loss \"log_kosh\""),
                             HasSubstr("did you mean \"log_cosh\""), HasSubstr("poisson")));
}

}  // namespace
}  // namespace tutti
