// The gradient noise scale over processes and hosts: the bits of the parts in turn.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/hosts.h"
#include "tests/support/run_workers.h"
#include "tests/support/uneven.h"

namespace tutti {
namespace {

// Uneven batches, by a rule that is applied while backward goes on, and by one that needs norms.
std::string noise_story(const std::string& kind, int replicas, const std::string& shape = "") {
  std::string story;
  for (const OptimizerChoice& optimizer : {OptimizerChoice(optim::adam({.learning_rate = 0.05})),
                                           OptimizerChoice(optim::lamb({.learning_rate = 0.05}))}) {
    const Strategy strategy({.kind = kind,
                             .replicas = replicas,
                             .reduction_shape = shape,
                             .threads_per_replica = 1,
                             .seed = 7});
    Model model(strategy, [] { return test::FeaturesNet(); });
    model.compile({.optimizer = optimizer,
                   .loss = losses::sparse_categorical_crossentropy(),
                   .measures = {.noise_scale = true}});
    const History history = model.fit(test::NumberedSamples(34).plain().shuffle().batch(8),
                                      {.epochs = 3, .verbose = 0});
    for (const double scale : history.column("noise_scale")) story += fmt::format("{} ", scale);
    story += model.weights_sha256() + " ";
  }
  return story;
}

RANK_PROGRAM(tell_of_noise) {
  rank.mark("noise: " + noise_story("multi_worker", std::stoi(rank.arguments[0])));
}

TEST(NoiseScaleOfWorkers, HasTheBitsOfThePartsInTurn) {
  for (const auto& [workers, replicas] : {std::pair{2, 2}, std::pair{3, 3}, std::pair{2, 4}}) {
    const auto out = test::run_workers(workers, "tell_of_noise", {std::to_string(replicas)});
    ASSERT_EQ(out.exit_code, 0) << out.log;
    EXPECT_THAT(test::lines_after(out.log, "noise: "),
                ::testing::AllOf(::testing::SizeIs(workers),
                                 ::testing::Each(noise_story("one_device", replicas))));
  }
}

TEST(NoiseScaleOverTwoHosts, HasTheBitsOfThePartsInTurn) {
  if (const std::string why = test::TestHosts::why_not(); !why.empty()) GTEST_SKIP() << why;
  const test::TestHosts hosts(2);
  const std::string expected = noise_story("one_device", 4, "2x2");
  for (const auto& node : test::run_nodes(hosts, 2, "tell_of_noise", {"4"})) {
    ASSERT_EQ(node.exit_code, 0) << node.log;
    EXPECT_THAT(test::lines_after(node.log, "noise: "),
                ::testing::AllOf(::testing::SizeIs(2), ::testing::Each(expected)));
  }
}

}  // namespace
}  // namespace tutti
