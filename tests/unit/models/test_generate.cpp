#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "tutti/base/error.h"
#include "tutti/models/generate.h"
#include "tutti/models/gpt.h"
#include "tutti/train/model/model.h"

#include "tests/support/message_of.h"

namespace tutti {
namespace {

using models::draw_token;
using models::GenerateOptions;
using ::testing::HasSubstr;

TEST(Generate, TokensComeAsOftenAsTheirProbabilitiesSay) {
  const std::vector<float> logits{0.0F, 1.5F, -1.0F, 1.5F, 0.5F};
  constexpr int kDraws = 20'000;
  for (const double temperature : {0.5, 1.0, 2.0})
    for (const int64_t top_k : {0, 2, 3}) {
      const GenerateOptions options{.temperature = temperature, .top_k = top_k, .seed = 3};
      std::map<int64_t, int> drawn;
      for (int number = 0; number < kDraws; ++number) ++drawn[draw_token(logits, number, options)];
      // The likeliest are 1 and 3, then 4.
      const std::set<int64_t> kept = top_k == 2   ? std::set<int64_t>{1, 3}
                                     : top_k == 3 ? std::set<int64_t>{1, 3, 4}
                                                  : std::set<int64_t>{0, 1, 2, 3, 4};
      double sum = 0;
      for (const int64_t token : kept)
        sum += std::exp(logits[static_cast<size_t>(token)] / temperature);
      for (int64_t token = 0; token < 5; ++token) {
        const double share = kept.contains(token)
                                 ? std::exp(logits[static_cast<size_t>(token)] / temperature) / sum
                                 : 0;
        EXPECT_NEAR(drawn[token] / double{kDraws}, share, 0.015) << token << " " << temperature;
      }
    }
}

TEST(Generate, OfEqualOnesTheFirstAreKept) {
  const std::vector<float> logits(4, 1.0F);
  for (int number = 0; number < 50; ++number) {
    EXPECT_EQ(draw_token(logits, number, {.top_k = 1}), 0);
    EXPECT_LE(draw_token(logits, number, {.top_k = 2}), 1);
  }
}

TEST(Generate, WhatIsOutOfRangeIsRefused) {
  const std::vector<float> logits{1, 2};
  const auto refusal = [&](GenerateOptions options) {
    return test::message_of<UsageError>([&] { draw_token(logits, 0, options); });
  };
  EXPECT_THAT(refusal({.temperature = 0}), HasSubstr("temperature is 0, must be finite and above"));
  EXPECT_THAT(refusal({.temperature = -1}), HasSubstr("temperature is -1"));
  EXPECT_THAT(refusal({.temperature = INFINITY}), HasSubstr("temperature is inf"));
  EXPECT_THAT(refusal({.top_k = -1}), HasSubstr("top_k is -1"));
  EXPECT_THAT(refusal({.tokens = -1}), HasSubstr("tokens is -1"));
  EXPECT_THAT(refusal({.context = 0}), HasSubstr("context is 0"));
  const std::vector<float> bad{1, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_THROW(draw_token(bad, 0, {}), DataError);
}

class Writing : public testing::Test {
 protected:
  Writing()
      : model_(Strategy({.threads_per_replica = 1, .seed = 2}), [] {
          return models::gpt(
              {.vocabulary = 7, .context = 4, .layers = 1, .heads = 1, .features = 8});
        }) {
    at::set_num_threads(1);  // two have nothing to share here, and wait for each other
    const torch::NoGradGuard no_grad;
    torch::manual_seed(1);
    for (auto& parameter : model_.modules().module(0)->parameters())
      parameter.add_(torch::randn_like(parameter) * 0.5);
  }
  std::vector<int64_t> written(const std::vector<int64_t>& prompt, GenerateOptions options) {
    options.context = 4;
    return models::generate(model_, prompt, options);
  }
  ~Writing() override { at::set_num_threads(threads_before_); }

  const int threads_before_ = at::get_num_threads();
  Model model_;
};

TEST_F(Writing, TheSameSeedWritesTheSame) {
  const auto text = written({1, 2}, {.tokens = 40, .seed = 5});
  EXPECT_EQ(text.size(), 40U);
  EXPECT_EQ(written({1, 2}, {.tokens = 40, .seed = 5}), text);
  EXPECT_NE(written({1, 2}, {.tokens = 40, .seed = 6}), text);
  const auto less = written({1, 2}, {.tokens = 12, .seed = 5});
  EXPECT_EQ(less, std::vector<int64_t>(text.begin(), text.begin() + 12));
  EXPECT_TRUE(written({1, 2}, {.tokens = 0}).empty());
}

// With the whole text before each token that fits the context, and not a token more.
TEST_F(Writing, TheLikeliestIsTheOneAfterTheTextSoFar) {
  std::vector<int64_t> all{3};
  for (int i = 0; i < 12; ++i) {
    const auto seen = std::min<int64_t>(std::ssize(all), 4);
    std::vector<int64_t> window(all.end() - seen, all.end());
    window.resize(4, 6);  // any token
    const auto logits = model_.predict(torch::tensor(window, torch::kLong).view({1, 4}));
    all.push_back(logits[0][seen - 1].argmax().item<int64_t>());
  }
  std::vector<int64_t> one_by_one;
  const std::vector<int64_t> prompt{3};
  const auto text = models::generate(model_, prompt, {.context = 4, .tokens = 12, .top_k = 1},
                                     [&](int64_t token) { one_by_one.push_back(token); });
  EXPECT_EQ(text, std::vector<int64_t>(all.begin() + 1, all.end()));
  EXPECT_EQ(one_by_one, text);
}

TEST_F(Writing, AnEmptyPromptIsRefused) {
  EXPECT_THAT(test::message_of<UsageError>([&] { written({}, {}); }),
              HasSubstr("the prompt is empty"));
}

}  // namespace
}  // namespace tutti
