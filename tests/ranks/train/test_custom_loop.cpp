// What a loop of one's own calls, with replicas as processes, and as threads of several processes:
// the bits of threads of one.
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/base/error.h"

#include "tests/support/collective_cases.h"
#include "tests/support/run_workers.h"
#include "tests/support/small_training.h"
#include "tests/support/synchronized_model.h"

namespace tutti {
namespace {

using test::lines_after;
using test::run_workers;
using ::testing::HasSubstr;

struct Job {
  int workers = 1;
  int replicas = 1;
};
constexpr Job kJobs[] = {{2, 2}, {3, 3}, {2, 4}};

// Gradients of all cases, of the local replicas.
std::vector<std::string> gradients_of_cases(Strategy& strategy) {
  std::vector<std::vector<at::Tensor>> all(strategy.world().local);
  for (const auto& one : test::collective_cases()) {
    const auto each = test::backward_gradients(
        strategy, one.input_of(strategy.num_replicas_in_sync()), one.loss());
    for (size_t local = 0; local < each.size(); ++local) all[local].push_back(each[local]);
  }
  std::vector<std::string> shas;
  for (size_t local = 0; local < all.size(); ++local)
    shas.push_back(
        fmt::format("{} {}", strategy.world().first_rank + local, test::sha_of(all[local])));
  return shas;
}

RANK_PROGRAM(differentiate) {
  Strategy strategy = test::strategy_of("multi_worker", std::stoi(rank.arguments.at(0)));
  for (const auto& one : test::collective_cases())
    test::expect_gradients(strategy, one.input_of(strategy.num_replicas_in_sync()), one.loss());
  if (::testing::Test::HasFailure()) throw Error("gradients differ from finite differences");
  for (const auto& sha : gradients_of_cases(strategy)) rank.mark("gradients " + sha);
}

TEST(CollectivesOfProcesses, HaveGradientsOfFiniteDifferencesAndTheBitsOfThreads) {
  for (const auto& [workers, replicas] : kJobs) {
    const auto out = run_workers(workers, "differentiate", {std::to_string(replicas)});
    ASSERT_EQ(out.exit_code, 0) << out.log;
    Strategy threads = test::strategy_of("mirrored", replicas);
    EXPECT_THAT(lines_after(out.log, "gradients "),
                ::testing::UnorderedElementsAreArray(gradients_of_cases(threads)))
        << out.log;
  }
}

RANK_PROGRAM(unlike_shapes) {
  Strategy strategy = test::strategy_of("multi_worker", 3);
  strategy.run([](ReplicaContext& replica) {
    nn::all_reduce(replica, at::ones({replica.rank() == 1 ? 5 : 4}));
  });
}

TEST(CollectivesOfProcesses, UnlikeShapesAreNamedOnEachWorker) {
  const auto out = run_workers(3, "unlike_shapes");
  EXPECT_EQ(out.exit_code, 1);
  for (int worker = 0; worker < 3; ++worker)
    EXPECT_THAT(out.log, HasSubstr(fmt::format(
                             "[{}] error: all_reduce: replica 1 calls all_reduce (sum) of Float "
                             "[5], replica 0 calls all_reduce (sum) of Float [4]",
                             worker)));
}

// ---- SyncBatchNorm under fit ----

std::string synchronized_training(const Strategy& strategy) {
  Model model = test::synchronized_model(strategy);
  model.fit(test::synchronized_data(), {.epochs = 2, .verbose = 0});
  return model.weights_sha256();
}

RANK_PROGRAM(train_synchronized) {
  rank.mark("sha " + synchronized_training(
                         test::strategy_of("multi_worker", std::stoi(rank.arguments.at(0)))));
}

TEST(SyncBatchNormOfProcesses, HasTheBitsOfThreads) {
  for (const auto& [workers, replicas] : kJobs) {
    const auto out = run_workers(workers, "train_synchronized", {std::to_string(replicas)});
    ASSERT_EQ(out.exit_code, 0) << out.log;
    EXPECT_THAT(
        lines_after(out.log, "sha "),
        ::testing::AllOf(::testing::SizeIs(workers), ::testing::Each(synchronized_training(
                                                         test::strategy_of("mirrored", replicas)))))
        << out.log;
  }
}

}  // namespace
}  // namespace tutti
