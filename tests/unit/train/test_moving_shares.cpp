// fit() with shares that move: by speed, by what that recorded, and from a checkpoint on.
#include <torch/torch.h>

#include <chrono>
#include <thread>

#include "tutti/strategy/moving_shares.h"

#include "tests/support/expect.h"
#include "tests/unit/train/checkpointed.h"

namespace tutti {
namespace {

// Replica 0 computes a row in a tenth of the others' time.
struct UnlikeNet : torch::nn::Module {
  UnlikeNet() {
    layers = register_module("layers",
                             torch::nn::Sequential(torch::nn::Flatten(), torch::nn::Linear(4, 8),
                                                   torch::nn::ReLU(), torch::nn::Linear(8, 3)));
  }
  at::Tensor forward(const at::Tensor& x) {
    const ReplicaContext* const replica = ReplicaContext::current();
    if (is_training() && replica != nullptr)
      std::this_thread::sleep_for(x.size(0) *
                                  std::chrono::microseconds(replica->rank() == 0 ? 100 : 1000));
    return layers->forward(x);
  }
  torch::nn::Sequential layers{nullptr};
};

// Batches of 16, 16 and 8.
data::Dataset shared_samples() { return pictures(40).shuffle().batch(16); }

FitOptions ten_epochs(CheckpointOptions checkpoints = {}) {
  return {.epochs = 10,
          .validation = pictures(9).batch(9),
          .verbose = 0,
          .checkpoints = std::move(checkpoints)};
}

StrategyOptions two_replicas(const std::string& kind) {
  return {.kind = kind, .replicas = 2, .threads_per_replica = 1, .seed = 7};
}

StrategyOptions by_speed_into(const std::string& record) {
  StrategyOptions options = two_replicas("mirrored");
  options.by_speed = {.first_look = 10, .rarest_look = 10, .most_error = 10, .record = record};
  return options;
}

StrategyOptions as_recorded(const std::string& kind, const std::string& record) {
  StrategyOptions options = two_replicas(kind);
  options.shares_file = record;
  return options;
}

Model unlike_model(const StrategyOptions& options) {
  Model model(Strategy(options), [] { return UnlikeNet(); });
  model.compile({.optimizer = optim::adam({.learning_rate = 0.01}),
                 .loss = losses::sparse_categorical_crossentropy(),
                 .metrics = {metrics::accuracy()}});
  return model;
}

Trained unlike_training(const StrategyOptions& options, const FitOptions& fit = ten_epochs()) {
  Model model = unlike_model(options);
  const History history = model.fit(shared_samples(), fit);
  return trained_of(model, history);
}

data::ShareSchedule recorded(const std::string& path) {
  return data::ShareSchedule::from_json(get_bytes(path), 2, path);
}

TEST(FitBySpeed, HasTheBitsOfOneDeviceByItsRecord) {
  const TempFolder folder;
  const std::string record = folder / "shares.json";
  const Trained trained = unlike_training(by_speed_into(record));
  const data::ShareSchedule schedule = recorded(record);
  ASSERT_THAT(schedule.changes, Not(IsEmpty()));
  EXPECT_EQ(schedule.changes[0].step % 10, 0);  // the first look, or one later on a busy machine
  EXPECT_GT(schedule.changes[0].shares[0], schedule.changes[0].shares[1]);
  EXPECT_EQ(unlike_training(as_recorded("one_device", record)), trained);
  EXPECT_EQ(unlike_training(as_recorded("mirrored", record)), trained);
  EXPECT_NE(unlike_training(two_replicas("one_device")), trained);
}

// What was cut off by a change is as much as what a checkpoint cuts off.
TEST(FitBySpeed, GoesOnFromACheckpointWithTheSharesThatItHad) {
  for (const int64_t step : {4, 11, 13}) {
    const TempFolder folder;
    const std::string record = folder / "shares.json";
    const CheckpointOptions checkpoints{
        .folder = folder / "checkpoints", .every_steps = 2, .resume = true};
    {
      Model model = unlike_model(by_speed_into(record));
      FitOptions options = ten_epochs(checkpoints);
      options.callbacks = cut_after(step);
      EXPECT_THROW(model.fit(shared_samples(), options), Cut);
    }
    const data::ShareSchedule before = recorded(record);
    const Trained trained = unlike_training(by_speed_into(record), ten_epochs(checkpoints));
    const data::ShareSchedule after = recorded(record);
    ASSERT_THAT(after.changes, Not(IsEmpty()));
    if (step > 12) {
      ASSERT_THAT(before.changes, Not(IsEmpty()));
      EXPECT_EQ(after.changes[0], before.changes[0]) << "not that of the checkpoint";
    }
    EXPECT_EQ(unlike_training(as_recorded("one_device", record)), trained) << step;
    // One device goes on from the same checkpoints, too.
    EXPECT_EQ(unlike_training(as_recorded("one_device", record), ten_epochs(checkpoints)).sha256,
              trained.sha256);
  }
}

// Of which shares a training was, and which it is to go on with.
struct Shares {
  std::vector<double> numbers{};
  bool by_speed = false;
  std::string file{};
};

StrategyOptions with_shares(const Shares& shares) {
  StrategyOptions options = two_replicas(shares.by_speed ? "mirrored" : "one_device");
  options.shares = shares.numbers;
  if (shares.by_speed) options.by_speed = BySpeed{};
  options.shares_file = shares.file;
  return options;
}

// What is said as it goes on after 4 steps.
std::string said_as_it_goes_on(const Shares& then, const Shares& now) {
  const TempFolder folder;
  const auto fit = [&](const Shares& shares, int64_t steps) {
    Model model(Strategy(with_shares(shares)), [] { return graph_with_state(); });
    model.compile(adam_and_accuracy());
    FitOptions options{.max_steps = steps, .verbose = 1};
    options.epochs = 10;
    options.checkpoints = {.folder = folder.path(), .resume = true};
    model.fit(shared_samples(), options);
  };
  testing::internal::CaptureStdout();
  fit(then, 4);
  testing::internal::GetCapturedStdout();
  testing::internal::CaptureStdout();
  fit(now, 5);
  return testing::internal::GetCapturedStdout();
}

TEST(CheckpointsOfShares, SayWhereOthersMakeOtherBits) {
  const TempFolder folder;
  const auto file_of = [&](const char* name, const data::ShareSchedule& schedule) {
    put_bytes(folder / name, schedule.to_json(2));
    return Shares{.file = folder / name};
  };
  const Shares equal, two_one{.numbers = {2, 1}}, one_two{.numbers = {1, 2}},
      by_speed{.by_speed = true}, a = file_of("a", {{{2, {5, 3}}}}),
                                  b = file_of("b", {{{2, {5, 3}}, {5, {1, 1}}}}),
                                  later = file_of("later", {{{9, {5, 3}}}});
  const struct {
    Shares then, now;
    const char* says;
  } cases[] = {
      {two_one, two_one, nullptr},
      {equal, equal, nullptr},
      {a, a, nullptr},
      {by_speed, by_speed, nullptr},
      {a, by_speed, nullptr},      // goes on with the shares that it had
      {by_speed, later, nullptr},  // which has none of its own so far
      {by_speed, a, "its shares are by speed, here they are those of a file"},
      {two_one, one_two, "its shares are 2, 1, here they are 1, 2"},
      {two_one, equal, "its shares are 2, 1, here they are equal"},
      {equal, two_one, "its shares are equal, here they are 2, 1"},
      {two_one, by_speed, "its shares are 2, 1, here they are by speed"},
      {two_one, a, "its shares are 2, 1, here they are those of a file"},
      {a, equal, "its shares are those of a file, here they are equal"},
      {a, b, "its shares are those of a file, here they are those of a file"},
  };
  for (const auto& c : cases) {
    const std::string said = said_as_it_goes_on(c.then, c.now);
    EXPECT_THAT(said, HasSubstr("goes on from step-000000000004"));
    if (c.says == nullptr)
      EXPECT_THAT(said, Not(HasSubstr("bits differ")));
    else
      EXPECT_THAT(said, HasSubstr(std::string(c.says) + ": the same samples follow, bits differ"));
  }
}

// Changes before the first batch of an epoch, within it, and in the middle of an update's batches,
// which is none.
TEST(FitByAFile, IsTheSameEverywhere) {
  const TempFolder folder;
  const std::string record = folder / "shares.json";
  for (const int64_t accumulate : {1, 2}) {
    put_bytes(record,
              data::ShareSchedule{{{0, {5, 3}}, {2, {3, 5}}, {3, {7, 9}}, {7, {1, 1}}}}.to_json(2));
    FitOptions options = ten_epochs();
    options.accumulate = accumulate;
    const Trained in_turn = unlike_training(as_recorded("one_device", record), options);
    EXPECT_EQ(unlike_training(as_recorded("mirrored", record), options), in_turn);
    EXPECT_EQ(unlike_training(as_recorded("central_storage", record), options), in_turn);
    options.loader.workers = 2;
    EXPECT_EQ(unlike_training(as_recorded("mirrored", record), options), in_turn);
    EXPECT_NE(unlike_training(two_replicas("one_device"), options), in_turn);
  }
}

// Weights of one device, where shares are what they always were.
TEST(FitByAFile, WithoutChangesIsTheTrainingWithEqualShares) {
  const TempFolder folder;
  const std::string record = folder / "shares.json";
  put_bytes(record, data::ShareSchedule().to_json(2));
  EXPECT_EQ(unlike_training(as_recorded("mirrored", record)),
            unlike_training(two_replicas("mirrored")));
}

std::string refusal_of_fit(Model& model, const data::Dataset& data, const FitOptions& options) {
  return message_of<UsageError>([&] { model.fit(data, options); });
}

TEST(FitWithShares, RefusesThoseThatLeaveAReplicaNothing) {
  StrategyOptions options = two_replicas("mirrored");
  options.shares = {1000, 1};
  Model model = unlike_model(options);
  EXPECT_THAT(refusal_of_fit(model, shared_samples(), {.verbose = 0}),
              HasSubstr("fit: the shares [1000, 1] leave replica 1 of 2 none of the 16 rows"));
  const TempFolder folder;
  Model alone = unlike_model(by_speed_into(folder / "shares.json"));
  EXPECT_THAT(refusal_of_fit(alone, pictures(9).batch(1), {.verbose = 0}),
              AllOf(HasSubstr("a global batch of 1 has less than a row for each of the 2"),
                    HasSubstr("expected 2 or more")));
  FitOptions parts{.verbose = 0, .microbatches = 2};
  EXPECT_THAT(refusal_of_fit(alone, shared_samples(), parts), HasSubstr("microbatches 2"));
}

TEST(FitWithShares, RefusesASingleRowForABatchNorm) {
  const TempFolder folder;
  const std::string record = folder / "shares.json";
  put_bytes(record, data::ShareSchedule{{{3, {15, 1}}}}.to_json(2));
  Model model(Strategy(as_recorded("mirrored", record)), [] {
    const auto input = nn::input({1, 2, 2});
    return nn::Graph(input,
                     nn::linear(3)(nn::flatten()(nn::batch_norm2d()(nn::conv2d(6, 2)(input)))));
  });
  model.compile(adam_and_accuracy());
  EXPECT_THAT(
      refusal_of_fit(model, shared_samples(), {.verbose = 0}),
      AllOf(HasSubstr("batch norm over one pixel"), HasSubstr("1 sample of batches of 16")));
}

}  // namespace
}  // namespace tutti
