// Cuts of layers into stages: as good as the best of all, and the earliest of those.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>

#include "tutti/base/error.h"
#include "tutti/parallel/stages/balance.h"

#include "tests/support/message_of.h"

namespace tutti::parallel {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Cuts = std::vector<size_t>;

/// Tries all cuts, in the order of their numbers. Nothing: none fits.
std::optional<Cuts> best_of_all(const std::vector<LayerCost>& layers, int stages, LinkCost link,
                                int64_t limit) {
  std::optional<Cuts> best;
  double least = 0;
  Cuts cuts{0};
  const auto go_on = [&](const auto& self, double slowest) -> void {
    if (static_cast<int>(cuts.size()) == stages + 1) {
      if (cuts.back() == layers.size() && (!best || slowest < least)) {
        best = cuts;
        least = slowest;
      }
      return;
    }
    double seconds = 0;
    int64_t bytes = 0;
    for (size_t end = cuts.back() + 1; end <= layers.size(); ++end) {
      seconds += layers[end - 1].seconds;
      bytes += layers[end - 1].bytes_memory;
      if (bytes > limit) return;
      const double sending =
          end == layers.size() ? 0
                               : link.latency + link.seconds_per_byte *
                                                    static_cast<double>(layers[end - 1].bytes_out);
      cuts.push_back(end);
      self(self, std::max(slowest, seconds + sending));
      cuts.pop_back();
    }
  };
  go_on(go_on, 0);
  return best;
}

TEST(Balance, IsTheBestOfAllCuts) {
  std::mt19937 random(5);
  int fitting = 0, without = 0;
  for (int i = 0; i < 400; ++i) {
    const auto below = [&](unsigned end) { return static_cast<int>(random() % end); };
    std::vector<LayerCost> layers(static_cast<size_t>(1 + below(9)));
    for (LayerCost& layer : layers)  // small whole numbers: many cuts are as good as others
      layer = {.seconds = static_cast<double>(below(6)),
               .bytes_out = below(5),
               .bytes_memory = below(10)};
    const int stages = 1 + below(static_cast<unsigned>(layers.size()));
    const LinkCost link{.latency = static_cast<double>(below(2)),
                        .seconds_per_byte = static_cast<double>(below(3))};
    const int64_t limit = 10 + below(30);
    const auto expected = best_of_all(layers, stages, link, limit);
    if (expected) {
      ++fitting;
      EXPECT_EQ(balanced(layers, stages, link, limit), *expected) << i;
    } else {
      ++without;
      EXPECT_THROW(balanced(layers, stages, link, limit), UsageError) << i;
    }
  }
  EXPECT_GT(fitting, 50);
  EXPECT_GT(without, 30);
}

TEST(Balance, CutsWhereLittleIsSent) {
  const std::vector<LayerCost> layers{{1, 100}, {1, 1}, {1, 100}, {1, 100}};
  EXPECT_EQ(balanced(layers, 2), (Cuts{0, 2, 4}));
  EXPECT_EQ(balanced(layers, 3, {.seconds_per_byte = 0.01}), (Cuts{0, 1, 2, 4}));
  EXPECT_EQ(balanced({layers.data(), 3}, 2, {.latency = 1, .seconds_per_byte = 1}),
            (Cuts{0, 2, 3}));
}

TEST(Balance, SaysWhichStageDoesNotFit) {
  const std::vector<LayerCost> layers{{1, 0, 10}, {1, 0, 50}, {1, 0, 10}, {1, 0, 10}};
  EXPECT_THAT(message_of<UsageError>([&] { (void)balanced(layers, 2, {}, 40); }),
              AllOf(HasSubstr("4 layers into 2 stages"), HasSubstr("40 bytes"),
                    HasSubstr("stage 0 (layers 0 to 1) takes 60")));
  EXPECT_EQ(balanced(layers, 2, {}, 60), (Cuts{0, 2, 4}));
}

TEST(Balance, RefusesMoreStagesThanLayers) {
  const std::vector<LayerCost> layers(3);
  EXPECT_THAT(message_of<UsageError>([&] { (void)balanced(layers, 4); }),
              HasSubstr("4 stages of 3 layers"));
  EXPECT_THROW((void)balanced(layers, 0), UsageError);
}

}  // namespace
}  // namespace tutti::parallel
