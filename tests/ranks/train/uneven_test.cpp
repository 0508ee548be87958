// Uneven inputs with replicas in several processes: what the parts in turn give, for every case.
#include "tests/support/uneven.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/run_workers.h"

namespace tutti {
namespace {

// Adam by the fused step, and a global norm by reduction.
std::string uneven_stories(const Strategy& strategy, const test::Uneven& uneven) {
  return test::uneven_story(strategy, uneven, optim::adam({.learning_rate = 0.05})) + " / " +
         test::uneven_story(strategy, uneven,
                            optim::Recipe(optim::sgd({.learning_rate = 0.1}), {.global_norm = 0.3}),
                            {.class_weight = {{1, 2.0}}});
}

Strategy uneven_strategy(const std::string& kind, int replicas) {
  return Strategy({.kind = kind, .replicas = replicas, .threads_per_replica = 1, .seed = 7});
}

RANK_PROGRAM(tell_uneven_stories) {
  const int replicas = std::stoi(rank.arguments[0]);
  const Strategy strategy = uneven_strategy("multi_worker", replicas);
  for (const test::Uneven& uneven : test::uneven_cases({replicas}))
    rank.mark(uneven.words() + ": " + uneven_stories(strategy, uneven));
}

TEST(UnevenWorkers, TellTheStoriesOfThePartsInTurn) {
  for (const auto& [workers, replicas] : {std::pair{2, 2}, std::pair{3, 3}, std::pair{2, 4}}) {
    const auto out = test::run_workers(workers, "tell_uneven_stories", {std::to_string(replicas)});
    ASSERT_EQ(out.exit_code, 0) << out.log;
    for (const test::Uneven& uneven : test::uneven_cases({replicas})) {
      const auto expected = uneven_stories(uneven_strategy("one_device", replicas), uneven);
      EXPECT_THAT(test::lines_after(out.log, uneven.words() + ": "),
                  testing::AllOf(testing::SizeIs(workers), testing::Each(expected)));
    }
  }
}

}  // namespace
}  // namespace tutti
