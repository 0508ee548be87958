// Whether outputs are logits: metrics follow the loss, and probabilities that a loss takes for
// logits are a warning.
#include <torch/torch.h>

#include "tutti/train/model/model.h"

#include "tests/support/expect.h"
#include "tests/unit/train/small_model.h"

namespace tutti {
namespace {

// y = x, or sigmoid(x).
struct Same : torch::nn::Module {
  explicit Same(bool sigmoid_in) : sigmoid(sigmoid_in) {
    w = register_parameter("w", torch::ones({1}));
  }
  at::Tensor forward(const at::Tensor& x) { return sigmoid ? (w * x).sigmoid() : w * x; }
  at::Tensor w;
  bool sigmoid;
};

// Logits, all on the right side, and none beyond the probability of one half.
Scores scores_with(const Loss& loss, std::vector<Metric> metrics, bool sigmoid = false) {
  Model model(strategy_of("mirrored", 1), [sigmoid] { return Same(sigmoid); });
  model.compile({.loss = loss, .metrics = std::move(metrics)});
  return model.test_on_batch(torch::tensor({0.25F, -0.25F, 0.4F, -2.0F}).unsqueeze(1),
                             torch::tensor({1.0F, 0.0F, 1.0F, 0.0F}).unsqueeze(1));
}

std::vector<Metric> all_metrics() {
  return {metrics::binary_accuracy(),
          metrics::precision(),
          metrics::recall(),
          metrics::f1(),
          metrics::auc(),
          metrics::average_precision()};
}

void expect_all_right(const Scores& scores) {
  EXPECT_EQ(scores.metrics.size(), 6U);
  for (const auto& [name, value] : scores.metrics) EXPECT_EQ(value, 1) << name;
}

TEST(Logits, MetricsFollowTheLoss) {
  expect_all_right(scores_with(losses::binary_crossentropy(), all_metrics()));
  expect_all_right(
      scores_with(losses::binary_crossentropy({.from_logits = false}), all_metrics(), true));
  const auto own = [](const at::Tensor& y, const at::Tensor& t) { return (y - t).abs().flatten(); };
  expect_all_right(scores_with(Loss("own", own, true), all_metrics()));
  const auto matrix = scores_with(losses::binary_crossentropy(), {metrics::confusion_matrix()});
  EXPECT_EQ(matrix.matrix("confusion_matrix"), (Matrix{{2, 0}, {0, 2}}));
}

TEST(Logits, MetricsFollowTheLossOfTheirOutput) {
  struct Both : Same {
    Both() : Same(false) {}
    std::vector<at::Tensor> forward(const at::Tensor& x) { return {w * x, (w * x).sigmoid()}; }
  };
  Model model(strategy_of("mirrored", 1), [] { return Both(); });
  const auto hits = metrics::recall().named("hits");
  model.compile(
      {.outputs = {{.name = "a", .loss = losses::binary_crossentropy(), .metrics = {hits}},
                   {.name = "b",
                    .loss = losses::binary_crossentropy({.from_logits = false}),
                    .metrics = {hits}}}});
  const auto y = torch::ones({3, 1});
  const auto scores =
      model.test_on_batch({torch::tensor({0.25F, 0.4F, -1.0F}).unsqueeze(1)}, {y, y});
  EXPECT_FLOAT_EQ(static_cast<float>(scores.at("a_hits")), 2.0F / 3);
  EXPECT_FLOAT_EQ(static_cast<float>(scores.at("b_hits")), 2.0F / 3);
}

// Where a loss says nothing of it, metrics are as they were told, else of probabilities.
TEST(Logits, OtherLossesLeaveMetricsAlone) {
  const Loss loss = losses::mean_squared_error();
  EXPECT_EQ(scores_with(loss, {metrics::binary_accuracy()}).at("binary_accuracy"), 0.5);
  EXPECT_EQ(
      scores_with(loss, {metrics::binary_accuracy({.from_logits = true})}).at("binary_accuracy"),
      1);
  EXPECT_EQ(scores_with(loss, {metrics::binary_accuracy({.threshold = 0})}).at("binary_accuracy"),
            1);
}

TEST(Logits, WhatContradictsTheLossIsRefused) {
  const auto refused = [](const Metric& metric, bool from_logits) {
    return message_of<UsageError>([&] {
      scores_with(losses::binary_crossentropy({.from_logits = from_logits}),
                  {metric.named("mine")});
    });
  };
  EXPECT_THAT(refused(metrics::binary_accuracy({.from_logits = false}), true),
              HasSubstr("metric mine: from_logits is false, but the loss of the same output has "
                        "true"));
  EXPECT_THAT(refused(metrics::auc({.from_logits = true}), false), HasSubstr("has false"));
  EXPECT_THAT(refused(metrics::f1({.threshold = 0}), true),
              AllOf(HasSubstr("metric f1: threshold is 0"), HasSubstr("logits")));
  expect_all_right(scores_with(
      losses::binary_crossentropy(),
      {metrics::binary_accuracy({.from_logits = true}), metrics::precision({.from_logits = true}),
       metrics::recall(), metrics::f1(), metrics::auc(), metrics::average_precision()}));
}

std::string said_of(const Loss& loss, const std::function<at::Tensor(const at::Tensor&)>& last,
                    const at::Tensor& target) {
  const at::Tensor x = torch::tensor({{0.5F, -1.0F}, {2.0F, 0.1F}}).requires_grad_();
  ::testing::internal::CaptureStderr();
  double total = 0;
  for (int step = 0; step < 2; ++step)
    loss.kernel().scaled_sum(last(x), target, 1, total).backward();
  return ::testing::internal::GetCapturedStderr();
}

// Each loss warns once in a process: one case for each.
TEST(Logits, ProbabilitiesThatALossTakesForLogitsAreAWarning) {
  const auto labels = torch::tensor({0, 1});
  const auto shares = torch::tensor({{1.0F, 0.0F}, {0.0F, 1.0F}});
  const auto softmax = [](const at::Tensor& x) { return x.softmax(1); };
  const auto sigmoid = [](const at::Tensor& x) { return x.unsqueeze(2).sigmoid().squeeze(2); };
  const auto logits = [](const at::Tensor& x) { return x * 2; };
  const auto log_softmax = [](const at::Tensor& x) { return x.log_softmax(1); };  // as good as x
  const auto sparse = losses::sparse_categorical_crossentropy();
  const auto binary = losses::binary_crossentropy();
  const auto between = losses::categorical_crossentropy();
  EXPECT_EQ(said_of(sparse, logits, labels) + said_of(sparse, log_softmax, labels) +
                said_of(binary, logits, shares) + said_of(between, log_softmax, shares),
            "");
  EXPECT_EQ(
      said_of(losses::sparse_categorical_crossentropy({.from_logits = false}), softmax, labels) +
          said_of(losses::binary_crossentropy({.from_logits = false}), sigmoid, shares),
      "");
  EXPECT_THAT(said_of(sparse, softmax, labels),
              AllOf(HasSubstr("loss sparse_categorical_crossentropy: it takes outputs for logits"),
                    HasSubstr("from a softmax"), HasSubstr(".from_logits = false")));
  EXPECT_THAT(said_of(binary, sigmoid, shares), HasSubstr("from a sigmoid"));
  EXPECT_THAT(said_of(between, softmax, shares), HasSubstr("loss categorical_crossentropy"));
  EXPECT_EQ(said_of(between, softmax, shares), "") << "once";
}

}  // namespace
}  // namespace tutti
