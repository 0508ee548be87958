// Model with replicas in several processes: everything it does gives what the parts in turn give.
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <csignal>

#include "tutti/base/error.h"
#include "tutti/base/stop.h"
#include "tutti/train/model/model.h"

#include "tests/support/run_workers.h"
#include "tests/support/temp_folder.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

// Batches of 10 over 27 samples: the last one has 7, so shares are unequal.
data::Dataset images(int64_t count) {
  std::vector<float> x;
  std::vector<int64_t> y;
  for (int64_t i = 0; i < count; ++i) {
    y.push_back(i % 3);
    for (int64_t k = 0; k < 16; ++k) x.push_back(std::sin(static_cast<float>(i * 16 + k)));
  }
  return data::from_arrays({data::array_of(x, {count, 1, 4, 4}), data::array_of(y, {count})})
      .batch(10);
}

Model make_model(const Strategy& strategy) {
  Model model(strategy, [] {
    const auto input = nn::input({1, 4, 4});
    auto x = nn::batch_norm2d()(nn::conv2d(4, 3, {.padding = 1})(input));
    x = nn::dropout(0.25)(nn::flatten()(nn::relu()(x)));
    return nn::Graph(input, nn::linear(3)(x));
  });
  model.compile({.optimizer = optim::adam({.learning_rate = 0.01}),
                 .loss = losses::sparse_categorical_crossentropy(),
                 .metrics = {metrics::accuracy(), metrics::f1(), metrics::confusion_matrix()}});
  return model;
}

/// Everything a Model says about one training, as text with all digits.
std::string story(const Strategy& strategy, const std::string& path) {
  Model model = make_model(strategy);
  const History history =
      model.fit(images(27).batch(10), {.epochs = 2, .validation = images(7), .verbose = 0});
  std::string out;
  for (const auto* name : {"train_loss", "accuracy", "f1", "val_loss", "val_accuracy", "val_f1"}) {
    for (double value : history.column(name)) out += fmt::format("{:.17g} ", value);
  }
  // One sample: all replicas but one do not know how wide outputs are.
  for (const auto& row : model.evaluate(images(1)).matrix("confusion_matrix"))
    out += fmt::format("{} ", fmt::join(row, " "));
  const at::Tensor outputs = model.predict(images(7)).contiguous();
  for (int64_t i = 0; i < outputs.numel(); ++i) {
    out += fmt::format("{:.9g} ", outputs.data_ptr<float>()[i]);
  }
  model.save(path);
  const std::string before = model.weights_sha256();
  model.fit(images(10), {.verbose = 0});
  if (model.weights_sha256() == before) out += "did not learn ";
  model.load(path);
  if (model.weights_sha256() != before) out += "did not load ";
  return out + before;
}

Strategy seeded(const std::string& kind, int replicas) {
  return Strategy({.kind = kind, .replicas = replicas, .threads_per_replica = 1, .seed = 11});
}

RANK_PROGRAM(tell_story) {
  rank.mark("story " +
            story(seeded("multi_worker", std::stoi(rank.arguments[0])), rank.arguments[1]));
}

RANK_PROGRAM(save_in_vain) {
  Model model = make_model(seeded("multi_worker", 2));
  try {
    model.save("/no/such/folder/model.safetensors");
  } catch (const Error& error) {
    rank.mark(std::string("save failed: ") + error.what());
  }
  model.fit(images(10), {.verbose = 0});
  rank.mark("trained on");
}

// Only worker 1 sees the signal; both end after the same step.
RANK_PROGRAM(one_is_asked_to_end) {
  install_stop_handler();
  const Strategy strategy = seeded("multi_worker", 2);
  Model model(strategy,
              [] { return torch::nn::Sequential(torch::nn::Flatten(), torch::nn::Linear(16, 3)); });
  const bool mine = strategy.world().first_rank == 1;
  int calls = 0;
  const Loss loss("asks", [&](const at::Tensor& y, const at::Tensor& labels) {
    if (mine && ++calls == 2) std::raise(SIGTERM);
    return torch::cross_entropy_loss(y, labels, {}, at::Reduction::None);
  });
  model.compile({.optimizer = optim::sgd(), .loss = loss});
  try {
    model.fit(images(27), {.epochs = 5, .verbose = 0});
  } catch (const Interrupted& interrupted) {
    rank.mark(fmt::format("ended by {} after {} updates", interrupted.signal(),
                          model.optimizer().version()));
  }
}

// The weights after the best epoch, which are put back at the end; from a checkpoint on.
std::string best_weights(const Strategy& strategy, const std::string& folder, int64_t max_steps) {
  Model model = make_model(strategy);
  FitOptions options{.epochs = 6, .validation = images(7), .verbose = 0};
  options.max_steps = max_steps;
  options.callbacks = {callbacks::early_stopping(
      {.monitor = "val_loss", .min_delta = 0.5, .patience = 3, .restore_best_weights = true})};
  if (!folder.empty()) options.checkpoints = {.folder = folder, .every_steps = 1, .resume = true};
  model.fit(images(27), std::move(options));
  return model.weights_sha256();
}

RANK_PROGRAM(go_on_to_the_best_weights) {
  const Strategy strategy = seeded("multi_worker", 2);
  best_weights(strategy, rank.arguments[0], 7);
  rank.mark("best " + best_weights(strategy, rank.arguments[0], 0));
}

// The chief's callback stops, then one throws; both workers do the same steps and end.
RANK_PROGRAM(callbacks_decide) {
  Model model = make_model(seeded("multi_worker", 2));
  const auto stops =
      callbacks::lambda("stops", {.on_step_end =
                                      [](Training& t) {
                                        if (t.step() == 4) t.stop("enough");
                                      },
                                  .on_epoch_end = [](Training& t) { t.set_learning_rate(0.5); }});
  model.fit(images(27), {.epochs = 5, .callbacks = {stops}, .verbose = 0});
  rank.mark(fmt::format("stopped after {} at {}", model.optimizer().version(),
                        model.optimizer().learning_rate()));
  const auto fails = [](Training& t) {
    if (t.step() == 2) throw Error("no disk");
  };
  for (const auto& callback :
       {callbacks::lambda("mine", {.on_step_end = fails}),
        callbacks::lambda("mine", {.on_epoch_end = [](Training&) { throw Error("no disk"); }})}) {
    try {
      model.fit(images(27), {.epochs = 5, .callbacks = {callback}, .verbose = 0});
    } catch (const Error& error) {
      rank.mark(std::string("failed: ") + error.what());
    }
  }
}

// Callbacks on every worker: all see each step; what they decide elsewhere does nothing.
RANK_PROGRAM(callbacks_everywhere) {
  Model model = make_model(seeded("multi_worker", 2));
  const bool chief = model.strategy().world().chief;
  int64_t steps = 0, begun = 0, tested = 0, predicted = 0;
  const auto everywhere =
      callbacks::lambda("counts", {.on_step_begin = [&](Training&) { ++begun; },
                                   .on_step_end =
                                       [&](Training& t) {
                                         ++steps;
                                         if (t.step() == 4 && !chief) t.stop("worker 1 alone");
                                       },
                                   .on_test_step_end = [&](const PassFacts&) { ++tested; },
                                   .on_predict_step_end = [&](const PassFacts&) { ++predicted; },
                                   .on_every_worker = true});
  model.fit(images(27),
            {.epochs = 2, .validation = images(9), .callbacks = {everywhere}, .verbose = 0});
  model.predict(images(9), {everywhere});
  rank.mark(fmt::format("saw {} {} {} {}", begun, steps, tested, predicted));
  const auto fails = callbacks::lambda("mine", {.on_test_end =
                                                    [&](const PassFacts&) {
                                                      if (!chief) throw Error("no disk");
                                                    },
                                                .on_every_worker = true});
  try {
    model.evaluate(images(9), {}, 0, {fails});
  } catch (const Error& error) {
    rank.mark(std::string("failed: ") + error.what());
  }
  const auto step = callbacks::lambda("mine", {.on_step_end =
                                                   [&](Training&) {
                                                     if (!chief) throw Error("no disk");
                                                   },
                                               .on_every_worker = true});
  try {
    model.fit(images(27), {.callbacks = {step}, .verbose = 0});
  } catch (const Error& error) {
    rank.mark(std::string("failed: ") + error.what());
  }
}

TEST(ModelWorkers, RunCallbacksThatAskForItOnAll) {
  const auto out = test::run_workers(2, "callbacks_everywhere", {});
  ASSERT_EQ(out.exit_code, 0) << out.log;
  EXPECT_THAT(test::lines_after(out.log, "saw "),
              ::testing::AllOf(SizeIs(2), ::testing::Each("6 6 2 1")));
  EXPECT_THAT(
      test::lines_after(out.log, "failed: "),
      ::testing::UnorderedElementsAre(::testing::EndsWith("batch 1 of 1, callback mine: no disk"),
                                      HasSubstr("failed on another worker"),
                                      HasSubstr("step 1 of 3, callback mine: no disk"),
                                      HasSubstr("a callback failed on another worker")));
}

// Counts steps, those before a checkpoint too.
class Counts final : public Callback {
 public:
  std::string_view name() const override { return "counts"; }
  bool on_every_worker() const override { return true; }
  void on_step_end(Training&) override { ++steps; }
  std::string state() const override { return std::to_string(steps); }
  void restore(const std::string& state) override { steps = std::stoll(state); }
  int64_t steps = 0;
};

RANK_PROGRAM(count_on_every_worker) {
  for (const int epochs : {1, 2}) {
    Model model = make_model(seeded("multi_worker", 2));
    const auto counts = std::make_shared<Counts>();
    model.fit(images(27), {.epochs = epochs,
                           .callbacks = {counts},
                           .verbose = 0,
                           .checkpoints = {.folder = rank.arguments[0], .resume = epochs == 2}});
    rank.mark(fmt::format("counted {}", counts->steps));
  }
}

TEST(ModelWorkers, GiveEachOfThemTheStateOfACallbackThatRunsOnAll) {
  const test::TempFolder folder;
  const auto out = test::run_workers(2, "count_on_every_worker", {folder.path()});
  ASSERT_EQ(out.exit_code, 0) << out.log;
  EXPECT_THAT(test::lines_after(out.log, "counted "),
              ::testing::UnorderedElementsAre("3", "3", "6", "6"));
}

TEST(ModelWorkers, DoWhatTheChiefsCallbacksDecide) {
  const auto out = test::run_workers(2, "callbacks_decide", {});
  ASSERT_EQ(out.exit_code, 0) << out.log;
  EXPECT_THAT(test::lines_after(out.log, "stopped after "),
              ::testing::AllOf(SizeIs(2), ::testing::Each("4 at 0.5")));
  EXPECT_THAT(test::lines_after(out.log, "failed: "),
              ::testing::UnorderedElementsAre(::testing::EndsWith(" steps, callback mine: no disk"),
                                              HasSubstr("step 2 of 3, callback mine: no disk"),
                                              HasSubstr("a callback failed on another worker"),
                                              HasSubstr("a callback failed on another worker")));
}

TEST(ModelWorkers, GoOnFromACheckpointToTheBestWeights) {
  const test::TempFolder folder;
  const auto out = test::run_workers(2, "go_on_to_the_best_weights", {folder / "checkpoints"});
  ASSERT_EQ(out.exit_code, 0) << out.log;
  const std::string straight = best_weights(seeded("one_device", 2), "", 0);
  EXPECT_THAT(test::lines_after(out.log, "best " + straight), SizeIs(2)) << straight << out.log;
}

TEST(ModelWorkers, TellTheStoryOfThePartsInTurn) {
  const test::TempFolder folder;
  const std::pair<int, int> worlds[] = {{2, 2}, {3, 3}, {2, 4}};
  for (const auto& [workers, replicas] : worlds) {
    const auto out = test::run_workers(workers, "tell_story",
                                       {std::to_string(replicas), folder / "workers.safetensors"});
    ASSERT_EQ(out.exit_code, 0) << out.log;
    const auto expected = story(seeded("one_device", replicas), folder / "turns.safetensors");
    EXPECT_THAT(expected, ::testing::Not(HasSubstr("did not")));
    EXPECT_THAT(test::lines_after(out.log, "story " + expected), SizeIs(workers))
        << expected << "\n"
        << out.log;
    EXPECT_EQ(test::get_bytes(folder / "workers.safetensors"),
              test::get_bytes(folder / "turns.safetensors"));
  }
}

TEST(ModelWorkers, AFailedSaveIsAnErrorOnAllAndTrainingCanGoOn) {
  const auto out = test::run_workers(2, "save_in_vain");
  EXPECT_EQ(out.exit_code, 0) << out.log;
  EXPECT_THAT(test::lines_after(out.log, "save failed"), SizeIs(2)) << out.log;
  EXPECT_THAT(out.log, HasSubstr("failed on another worker"));
  EXPECT_THAT(test::lines_after(out.log, "trained on"), SizeIs(2)) << out.log;
}

TEST(ModelWorkers, EndAtTheSameStep) {
  const auto out = test::run_workers(2, "one_is_asked_to_end");
  EXPECT_THAT(test::lines_after(out.log, fmt::format("ended by {} after 2 updates", SIGTERM)),
              SizeIs(2))
      << out.log;
}

}  // namespace
}  // namespace tutti
