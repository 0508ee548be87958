// Shares that move in loops of one's own: as a file says, and by speed; then by what that recorded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <chrono>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/comm/shm/shm.h"
#include "tutti/strategy/moving_shares.h"
#include "tutti/sync/detail/gradient_listener.h"

#include "tests/support/message_of.h"
#include "tests/support/small_training.h"
#include "tests/support/temp_folder.h"

namespace tutti {
namespace {

using test::options_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Batches of 16, 16, 16 and 2: a change within an epoch, at its begin, and before its last batch.
const data::ShareSchedule kChanges{{{2, {9, 3, 4}}, {4, {1, 1, 14}}, {7, {5, 6, 5}}}};

struct SharesFile {
  explicit SharesFile(const data::ShareSchedule& schedule, int replicas = 3) {
    test::put_bytes(path, schedule.to_json(replicas));
  }
  test::TempFolder folder{};
  std::string path = folder / "shares.json";
};

StrategyOptions by_file(const std::string& kind, const SharesFile& file) {
  auto options = options_of(kind, 3);
  options.shares_file = file.path;
  return options;
}

test::MakeOptimizer optimizer_of(const optim::Recipe& recipe) {
  return [=](const ReplicatedModules& modules) { return Optimizer(modules, recipe); };
}

// Rows that each replica had, step by step, cut by hand.
std::vector<std::vector<int64_t>> rows_of(Strategy strategy, int loader_workers) {
  Replicated<torch::nn::Sequential> net(strategy, test::small_cnn);
  Optimizer optimizer(net, optim::sgd({.learning_rate = 0.1}));
  auto batches = strategy.distribute(test::small_data(), {.loader = {.workers = loader_workers}});
  std::vector<std::vector<int64_t>> rows;
  for (int epoch = 0; epoch < 2; ++epoch)
    for (auto&& batch : batches.epoch(epoch)) {
      const auto own = strategy.run([&](ReplicaContext& replica) {
        auto [x, y] = batch.local(replica);
        EXPECT_EQ(x.size(0), batch.local_size(replica));
        const auto each =
            torch::cross_entropy_loss(net.local(replica)->forward(x), y, {}, at::Reduction::None);
        optimizer.minimize(replica, average_loss(each, batch.global_size()));
        return x.size(0);
      });
      rows.push_back(own.values());
    }
  return rows;
}

TEST(SharesOfAFile, AreThoseOfEachStep) {
  const SharesFile file(kChanges);
  for (const char* kind : {"mirrored", "one_device"})
    for (const int workers : {0, 2})
      EXPECT_THAT(rows_of(Strategy(by_file(kind, file)), workers),
                  ElementsAre(ElementsAre(6, 5, 5), ElementsAre(6, 5, 5), ElementsAre(9, 3, 4),
                              ElementsAre(1, 0, 1), ElementsAre(1, 1, 14), ElementsAre(1, 1, 14),
                              ElementsAre(1, 1, 14), ElementsAre(1, 1, 0)))
          << kind << " with " << workers;
}

// Slices, momentum and what is summed before the update follow; the bits are those of the parts in
// turn, which no slice has.
TEST(SharesOfAFile, HaveTheBitsOfThePartsInTurn) {
  const SharesFile file(kChanges);
  const optim::Recipe recipes[] = {
      optim::sgd({.learning_rate = 0.1, .momentum = 0.9}),
      optim::adam({.learning_rate = 0.01}),
      {optim::adamw({.learning_rate = 0.01}), {.global_norm = 0.1}},
      optim::adagrad({.learning_rate = 0.05, .initial_accumulator = 0.1}),
      optim::lamb({.learning_rate = 0.01})};
  for (const optim::Recipe& recipe : recipes) {
    const auto trained = [&](const StrategyOptions& options) {
      return test::train(Strategy(options), optimizer_of(recipe)).parameters;
    };
    const auto in_turn = trained(by_file("one_device", file));
    for (const char* kind : {"mirrored", "central_storage"})
      EXPECT_TRUE(bits_equal(in_turn, trained(by_file(kind, file)))) << kind;
    auto reduced = by_file("mirrored", file);
    reduced.reduction = "all_reduce";
    EXPECT_TRUE(bits_equal(in_turn, trained(reduced)));
    auto sharded = by_file("mirrored", file);
    for (const char* shard : {"state", "gradients", "parameters"}) {
      sharded.shard = shard;
      EXPECT_TRUE(bits_equal(in_turn, trained(sharded))) << shard;
    }
    EXPECT_FALSE(bits_equal(in_turn, trained(options_of("one_device", 3)))) << "nothing has moved";
  }
}

// What replica 0 owns it updates as soon as both have its gradient, here while backward goes on.
TEST(SlicesOfTheFusedStep, FollowTheShares) {
  constexpr int64_t kBlocks = 8;
  World world{{.size = 2, .local = 2}};
  for (auto& engine : make_shm_threads(2)) world.groups.emplace_back(std::move(engine));
  world.shape = world.groups[0].reduction_shape();
  const auto zeros = [] {
    return NamedTensors{{"w", at::zeros({kBlocks * kBlockElements}).set_requires_grad(true)}};
  };
  const auto updater =
      make_shared_updater(world, optim::sgd({.learning_rate = 1}), {zeros(), zeros()});
  const auto* const values =
      static_cast<const volatile float*>(updater->parameters(0)[0].data_ptr());
  const at::Tensor gradient = at::ones({kBlocks * kBlockElements});
  const auto updated = [&](double value) {
    int64_t count = 0;
    for (int64_t i = 0; i < gradient.numel(); ++i) count += values[i] == value ? 1 : 0;
    return count;
  };
  double value = 0;
  for (const int64_t blocks : {4, 6, 1}) {
    const auto first = static_cast<double>(blocks);
    if (blocks != 4) updater->parts().slices->share_out({first, kBlocks - first});
    value -= 2;
    std::array<detail::GradientListener*, 2> listeners{};
    for (const int replica : {0, 1}) {
      listeners[replica] = updater->begin(replica, Overlap::on);
      EXPECT_TRUE(listeners[replica]->take(updater->parameters(replica)[0], gradient));
    }
    listeners[0]->go_on();
    EXPECT_EQ(updated(value), blocks * kBlockElements);
    EXPECT_EQ(values[blocks * kBlockElements - 1], value);
    const auto step = [&](int replica) {
      updater->step(replica, {}, {}, Deadline(Millis{30'000}));
    };
    std::jthread other([&] { step(0); });
    step(1);
    other.join();
    EXPECT_EQ(updated(value), kBlocks * kBlockElements);
  }
}

// One that is kept across a change has the rows that it had.
TEST(SharesOfAFile, ABatchStaysAsItWasCut) {
  const SharesFile file({{{1, {1, 1, 14}}}});
  Strategy strategy(by_file("mirrored", file));
  Replicated<torch::nn::Sequential> net(strategy, test::small_cnn);
  Optimizer optimizer(net, optim::sgd({.learning_rate = 0.1}));
  auto data = strategy.distribute(test::small_data());
  const auto batches = data.epoch(0);
  auto at = batches.begin();
  const DistributedBatch first = *at;
  const auto samples_of = [&](const DistributedBatch& batch) {
    const auto parts = strategy.run([&](ReplicaContext& replica) {
      EXPECT_EQ(batch.local(replica).first.size(0), batch.local_size(replica));
      return batch.local(replica).first;
    });
    return strategy.gather(parts);
  };
  const at::Tensor before = samples_of(first);
  test::train_step(strategy, net, optimizer, first);
  ++at;
  EXPECT_EQ(strategy.world().shares, (std::vector<double>{1, 1, 14}));
  EXPECT_TRUE(at::equal(before, samples_of(first)));
  strategy.run([&](ReplicaContext& replica) {
    EXPECT_EQ(first.local_size(replica), replica.rank() == 0 ? 6 : 5);
    EXPECT_EQ((*at).local_size(replica), replica.rank() == 2 ? 14 : 1);
  });
}

// Rows of replica 0 take a thirtieth of the others' time, which is longer than a busy machine keeps
// a thread from its core.
struct SleepingNet : torch::nn::Module {
  SleepingNet() { layers = register_module("layers", test::small_cnn()); }
  at::Tensor forward(const at::Tensor& x) {
    const bool fast = ReplicaContext::current()->rank() == 0;
    std::this_thread::sleep_for(x.size(0) * std::chrono::microseconds(fast ? 200 : 6000));
    return layers->forward(x);
  }
  torch::nn::Sequential layers{nullptr};
};

std::vector<at::Tensor> train_sleeping(Strategy strategy, bool accumulates = false) {
  Replicated<SleepingNet> net(strategy, [] { return std::make_shared<SleepingNet>(); });
  Optimizer optimizer(net, optim::sgd({.learning_rate = 0.1, .momentum = 0.9}));
  auto batches = strategy.distribute(test::small_data());
  const int count = accumulates ? 2 : 1;
  for (int epoch = 0; epoch < 4 * count; ++epoch)
    for (auto&& batch : batches.epoch(epoch))
      strategy.run([&](ReplicaContext& replica) {
        auto [x, y] = batch.local(replica);
        const auto each =
            torch::cross_entropy_loss(net.local(replica)->forward(x), y, {}, at::Reduction::None);
        const auto loss = average_loss(each, batch.group_size(count));
        batch.ends_group(count) ? optimizer.minimize(replica, loss)
                                : optimizer.accumulate(replica, loss);
      });
  return test::copy_of(optimizer.updater().parameters(0));
}

// On whatever machine: any spread will do.
BySpeed quick(const std::string& record) {
  return {.first_look = 10, .rarest_look = 10, .most_error = 10, .record = record};
}

TEST(SharesBySpeed, AreRecordedAndGiveTheBitsOfThePartsInTurn) {
  for (const bool accumulates : {false, true}) {
    const test::TempFolder folder;
    auto options = options_of("mirrored", 3);
    options.by_speed = quick(folder / "shares.json");
    const Strategy strategy(options);
    const auto trained = train_sleeping(strategy, accumulates);
    const data::ShareSchedule schedule = strategy.moving_shares()->schedule();
    ASSERT_THAT(schedule.changes, Not(IsEmpty()));
    EXPECT_EQ(schedule.changes[0].step, 10);
    const auto& shares = schedule.changes[0].shares;
    EXPECT_GT(shares[0], shares[1]);
    EXPECT_GT(shares[0], shares[2]);
    EXPECT_EQ(shares[0] + shares[1] + shares[2], 16);
    const std::string text = test::get_bytes(folder / "shares.json");
    EXPECT_EQ(data::ShareSchedule::from_json(text, 3, "shares.json"), schedule);

    auto in_turn = options_of("one_device", 3);
    in_turn.shares_file = folder / "shares.json";
    EXPECT_TRUE(bits_equal(trained, train_sleeping(Strategy(in_turn), accumulates)));
    EXPECT_FALSE(
        bits_equal(trained, train_sleeping(Strategy(options_of("one_device", 3)), accumulates)));
  }
}

// What comes of noise: nothing, and the record says so.
TEST(SharesBySpeed, StayWhereTimesAreTooNoisy) {
  const test::TempFolder folder;
  auto options = options_of("mirrored", 3);
  options.by_speed = quick(folder / "shares.json");
  options.by_speed->most_error = 0;
  const Strategy strategy(options);
  train_sleeping(strategy);
  EXPECT_THAT(strategy.moving_shares()->schedule().changes, IsEmpty());
  EXPECT_EQ(test::get_bytes(folder / "shares.json"), data::ShareSchedule().to_json(3));
}

TEST(MovingShares, AreOfOneOptimizer) {
  const SharesFile file(kChanges);
  Strategy strategy(by_file("mirrored", file));
  Replicated<torch::nn::Sequential> net(strategy, test::small_cnn),
      other(strategy, test::small_cnn);
  auto batches = strategy.distribute(test::small_data());
  {
    const Optimizer one(net, optim::sgd({.learning_rate = 0.1}));
    batches.epoch(0).begin();
    const Optimizer two(other, optim::sgd({.learning_rate = 0.1}));
    EXPECT_THAT(test::message_of<UsageError>([&] { batches.epoch(0).begin(); }),
                HasSubstr("of one optimizer, and this strategy has two"));
  }
  const Optimizer third(net, optim::sgd({.learning_rate = 0.1}));
  EXPECT_THAT(test::message_of<UsageError>([&] { batches.epoch(0).begin(); }),
              HasSubstr("another than that of the steps before"));
}

TEST(MovingShares, MoveBetweenRuns) {
  const SharesFile file(kChanges);
  Strategy strategy(by_file("mirrored", file));
  auto batches = strategy.distribute(test::small_data());
  const auto epoch = batches.epoch(0);
  EXPECT_THAT(
      test::message_of<UsageError>([&] { strategy.run([&](ReplicaContext&) { epoch.begin(); }); }),
      HasSubstr("give each batch a run() of its own"));
}

TEST(MovingShares, AreRefusedWhereTheyMeanNothing) {
  const SharesFile file(kChanges);
  const auto refusal = [](StrategyOptions options) {
    return test::message_of<UsageError>([&] { const Strategy strategy(options); });
  };
  auto speed = options_of("mirrored", 3);
  speed.by_speed.emplace();
  speed.by_speed->first_look = 9;
  EXPECT_THAT(refusal(speed), HasSubstr("first_look is 9; expected 10 to"));
  speed.by_speed = {.least_gain = -1};
  EXPECT_THAT(refusal(speed), HasSubstr("least_gain is -1"));
  speed.by_speed = {.record = file.folder / "no/such/folder.json"};
  EXPECT_THAT(refusal(speed), HasSubstr("no/such"));
  speed.by_speed = BySpeed{};
  speed.mesh = "data=2,stage=2";
  speed.replicas = 0;
  EXPECT_THAT(refusal(speed), HasSubstr("whose stages wait for each other"));

  auto filed = by_file("mirrored", file);
  filed.replicas = 2;
  EXPECT_THAT(refusal(filed), HasSubstr("replicas is 3, but here are 2"));
  filed.shares_file = file.folder / "none.json";
  EXPECT_THAT(refusal(filed), HasSubstr("none.json"));
  Strategy strategy(by_file("mirrored", file));
  EXPECT_THAT(test::message_of<UsageError>([&] { strategy.resize(2); }), HasSubstr("resize: "));
  EXPECT_THAT(test::message_of<UsageError>(
                  [&] { strategy.distribute(test::small_data(), {.auto_shard = AutoShard::off}); }),
              HasSubstr("each worker has batches of its own"));
}

TEST(Shares, ThatLeaveAReplicaNothingAreRefused) {
  auto options = options_of("mirrored", 3);
  options.shares = {100, 1, 1};
  Strategy strategy(options);
  EXPECT_THAT(
      test::message_of<UsageError>([&] { strategy.distribute(test::small_data()); }),
      AllOf(
          HasSubstr("distribute: the shares [100, 1, 1] leave replica 1 of 3 none of the 16 rows"),
          HasSubstr("nearer to each other, a larger batch, or fewer replicas")));
  const SharesFile file({{{4, {1000, 1, 1}}}});
  Strategy filed(by_file("one_device", file));
  EXPECT_THAT(test::message_of<UsageError>([&] { filed.distribute(test::small_data()); }),
              HasSubstr("the shares from step 4 on [1000, 1, 1] leave replica 1"));
}

}  // namespace
}  // namespace tutti
