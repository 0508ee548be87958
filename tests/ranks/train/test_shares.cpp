// Shares by speed, of replicas in processes of their own: one device trains their bits by what they
// have recorded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "tutti/strategy/moving_shares.h"
#include "tutti/train/model/model.h"

#include "tests/support/run_workers.h"
#include "tests/support/temp_folder.h"

namespace tutti {
namespace {

using test::lines_after;
using test::run_workers;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// The last replica takes ten times as long for a row.
struct UnlikeReplica : torch::nn::Module {
  UnlikeReplica() {
    layers = register_module("layers",
                             torch::nn::Sequential(torch::nn::Linear(16, 700), torch::nn::ReLU(),
                                                   torch::nn::Linear(700, 3)));
  }
  at::Tensor forward(const at::Tensor& x) {
    const ReplicaContext* const replica = ReplicaContext::current();
    if (is_training() && replica != nullptr) {
      const bool slow = replica->rank() + 1 == replica->num_replicas_in_sync();
      std::this_thread::sleep_for(x.size(0) * std::chrono::microseconds(slow ? 2000 : 200));
    }
    return layers->forward(x);
  }
  torch::nn::Sequential layers{nullptr};
};

data::Dataset rows_for_speed() {
  std::vector<float> x;
  std::vector<int64_t> y;
  for (int64_t i = 0; i < 72; ++i) {
    y.push_back(i % 3);
    for (int64_t k = 0; k < 16; ++k) x.push_back(std::sin(static_cast<float>(i * 16 + k)));
  }
  return data::from_arrays({data::array_of(x, {72, 16}), data::array_of(y, {72})})
      .shuffle()
      .batch(20);
}

std::string sha_by_shares(const StrategyOptions& options, const std::string& checkpoints = "",
                          int64_t max_steps = 0) {
  Model model(Strategy(options), [] { return UnlikeReplica(); });
  model.compile(
      {.optimizer = optim::Recipe(optim::adam({.learning_rate = 0.01}), {.global_norm = 0.5}),
       .loss = losses::sparse_categorical_crossentropy()});
  FitOptions fit{.epochs = 8, .max_steps = max_steps, .verbose = 0};
  if (!checkpoints.empty())
    fit.checkpoints = {.folder = checkpoints, .every_steps = 3, .resume = true};
  model.fit(rows_for_speed(), fit);
  return model.weights_sha256();
}

StrategyOptions shared_by(const std::string& kind, int replicas) {
  return {.kind = kind, .replicas = replicas, .threads_per_replica = 1, .seed = 11};
}

StrategyOptions measured(int replicas, const std::string& record) {
  StrategyOptions options = shared_by("multi_worker", replicas);
  options.by_speed = {.first_look = 10, .rarest_look = 10, .most_error = 10, .record = record};
  return options;
}

RANK_PROGRAM(train_by_speed) {
  const auto options = measured(std::stoi(rank.arguments[0]), rank.arguments[1]);
  if (rank.arguments[2] == "cut") sha_by_shares(options, rank.arguments[3], 12);
  rank.mark("sha " + sha_by_shares(options, rank.arguments[3]));
}

TEST(SharesOfProcesses, HaveTheBitsOfOneDeviceByTheirRecord) {
  struct Case {
    int workers, replicas;
    const char* how;
  };
  for (const auto& [workers, replicas, how] :
       {Case{2, 2, "whole"}, Case{2, 2, "cut"}, Case{2, 4, "whole"}}) {
    const test::TempFolder folder;
    const std::string record = folder / "shares.json";
    const auto out = run_workers(
        workers, "train_by_speed",
        {std::to_string(replicas), record, how,
         how == std::string("cut") ? (folder / "checkpoints").string() : std::string()});
    ASSERT_EQ(out.exit_code, 0) << out.log;
    const auto schedule = data::ShareSchedule::from_json(test::get_bytes(record), replicas, record);
    ASSERT_THAT(schedule.changes, Not(IsEmpty())) << out.log;
    EXPECT_EQ(schedule.changes[0].step, 10);
    EXPECT_LT(schedule.changes[0].shares.back(), schedule.changes[0].shares.front());
    StrategyOptions in_turn = shared_by("one_device", replicas);
    in_turn.shares_file = record;
    EXPECT_THAT(lines_after(out.log, "sha "), AllOf(SizeIs(workers), Each(sha_by_shares(in_turn))))
        << out.log;
  }
}

}  // namespace
}  // namespace tutti
