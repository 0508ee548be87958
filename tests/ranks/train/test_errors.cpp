// What goes wrong on one worker ends all of them, in the same words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "tutti/base/error.h"
#include "tutti/strategy/input/distributed_dataset.h"
#include "tutti/train/model/model.h"

#include "tests/support/run_workers.h"

namespace tutti {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;

struct Samples {
  std::vector<float> x = std::vector<float>(24 * 4, 0.5F);
  std::vector<int64_t> y = std::vector<int64_t>(24, 1);
  data::Dataset whole() const {
    return data::from_arrays({data::array_of(x, {24, 4}), data::array_of(y, {24})});
  }
  data::Dataset batched() const { return whole().batch(6); }
};

Strategy workers_strategy(int replicas) {
  return Strategy({.kind = "multi_worker", .replicas = replicas, .threads_per_replica = 1});
}

Model error_model(const Strategy& strategy) {
  Model model(strategy, [] { return torch::nn::Linear(4, 3); });
  model.compile({.optimizer = optim::sgd(), .loss = losses::sparse_categorical_crossentropy()});
  return model;
}

template <class Action>
void mark_error(const test::Rank& rank, Action&& action) {
  try {
    action();
    rank.mark("no error");
  } catch (const Error& error) {
    rank.mark(std::string("error: ") + error.what());
  }
}

// Batches of 6 over 4 replicas on 2 workers: sample 10 is the second batch's fifth, replica 2's.
RANK_PROGRAM(one_has_a_bad_input) {
  Samples samples;
  samples.x[10 * 4 + 2] = NAN;
  Model model = error_model(workers_strategy(4));
  mark_error(rank, [&] { model.fit(samples.batched(), {.verbose = 0}); });
  Model one_step = error_model(model.strategy());
  one_step.fit(Samples().batched(), {.max_steps = 1, .verbose = 0});
  rank.mark(model.weights_sha256() == one_step.weights_sha256() ? "weights: of one step"
                                                                : "weights: others");
}

TEST(WorkersErrors, AllNameTheFirstTensorThatIsNotFinite) {
  const auto out = test::run_workers(2, "one_has_a_bad_input");
  EXPECT_THAT(test::lines_after(out.log, "error: "),
              testing::AllOf(SizeIs(2), Each(HasSubstr("epoch 1 of 1, step 2 of 4; replica 2: "
                                                       "input of sample 10 of the dataset has "
                                                       "nan at element 2"))))
      << out.log;
  EXPECT_THAT(test::lines_after(out.log, "weights: "),
              testing::AllOf(SizeIs(2), Each(HasSubstr("of one step"))))
      << out.log;
}

// Of worker 1: replicas 2 and 3. Row 16 is the third batch's fifth, replica 2's.
struct FailsThere final : data::Source {
  int64_t num_rows() const override { return 24; }
  const std::vector<data::Column>& columns() const override { return whole.columns(); }
  data::Batch gather(std::span<const int64_t> rows) const override {
    if (std::ranges::find(rows, 16) != rows.end()) throw std::runtime_error("no JPEG: 16.jpg");
    return {{data::array_of(std::vector<float>(rows.size() * 4, 0.5F), {std::ssize(rows), 4}),
             data::array_of(std::vector<int64_t>(rows.size(), 1), {std::ssize(rows)})},
            std::ssize(rows)};
  }
  data::Dataset whole = Samples().whole();
};

RANK_PROGRAM(one_has_a_source_that_throws) {
  Model model = error_model(workers_strategy(4));
  const auto data = data::Dataset(std::make_shared<FailsThere>()).batch(6);
  mark_error(rank, [&] { model.fit(data, {.verbose = 0}); });
}

TEST(WorkersErrors, ASourceThatThrowsIsNamedWithStepAndReplica) {
  const auto out = test::run_workers(2, "one_has_a_source_that_throws");
  EXPECT_THAT(test::lines_after(out.log, "error: "),
              testing::AllOf(SizeIs(2), Each(HasSubstr("fit, epoch 1 of 1, step 3 of 4, replica 2: "
                                                       "row 16, sample 5 of batch 3 of epoch 1, "
                                                       "in read: no JPEG: 16.jpg"))))
      << out.log;
}

// Samples 0, 1, ... of class i % 2, whose names the source knows.
struct NamedClasses final : data::Source {
  explicit NamedClasses(std::vector<std::string> names_in = {"ant", "bee"}, int64_t shift = 0)
      : names(std::move(names_in)) {
    Samples samples;
    for (size_t i = 0; i < samples.y.size(); ++i) {
      samples.y[i] = (static_cast<int64_t>(i) + shift) % 2;
      samples.x[i * 4] = static_cast<float>(i);
    }
    whole = samples.whole();
  }
  int64_t num_rows() const override { return 24; }
  const std::vector<data::Column>& columns() const override { return whole.columns(); }
  const std::vector<std::string>& classes() const override { return names; }
  data::Batch gather(std::span<const int64_t> rows) const override {
    const data::Epoch epoch = whole.batch(1).epoch({});
    std::vector<float> x;
    std::vector<int64_t> y;
    for (const int64_t row : rows) {
      const data::Batch one = epoch.batch(row);
      x.insert(x.end(), one.columns[0].as<float>().begin(), one.columns[0].as<float>().end());
      y.push_back(one.columns[1].as<int64_t>()[0]);
    }
    return {{data::array_of(x, {std::ssize(rows), 4}), data::array_of(y, {std::ssize(rows)})},
            std::ssize(rows)};
  }
  std::vector<std::string> names;
  data::Dataset whole = Samples().whole();
};

data::Dataset named(std::vector<std::string> names = {"ant", "bee"}, int64_t shift = 0) {
  return data::Dataset(std::make_shared<NamedClasses>(std::move(names), shift));
}

struct Asked {
  FitOptions fit;
  CompileOptions compile;
  int64_t samples = 24;
  int64_t batch = 6;
  bool cached = false;
  data::Dataset data = named();
};

// Serves eight steps and no more.
RateSchedule halved_after(int64_t steps) {
  return {"halved", [steps](int64_t step) {
            if (step >= 8) throw std::out_of_range("no such step");
            return step < steps ? 0.1 : 0.05;
          }};
}

// The same but for one number of the last sample, far behind the first ones.
data::Dataset last_changed() {
  return named().map([](data::Sample sample) {
    auto x = sample.columns[0].as<float>();
    const bool last = x[0] == 23;
    std::vector<float> copy(x.begin(), x.end());
    if (last) copy[3] = 0.25F;
    sample.columns[0] = data::array_of(copy, {4});
    return sample;
  });
}

// What worker 1 asks for otherwise, by name.
void ask_otherwise(const std::string& what, Asked& asked) {
  if (what == "seed") asked.fit.seed = 8;
  if (what == "max_steps") asked.fit.max_steps = 2;
  if (what == "class_weight") asked.fit.class_weight = {{1, 2.5}};
  if (what == "validation") asked.fit.validation = Samples().batched();
  if (what == "callbacks") asked.fit.callbacks = {callbacks::terminate_on_nan()};
  if (what == "samples") asked.samples = 18;
  if (what == "on_bad") asked.fit.loader.on_bad = data::replace({.at_most = 0.5});
  if (what == "cache") asked.cached = true;
  if (what == "batch") asked.batch = 8;
  if (what == "precision") asked.compile.precision = Precision::bfloat16;
  if (what == "rate") asked.compile.optimizer = optim::adam({.learning_rate = 0.25});
  if (what == "epsilon") asked.compile.optimizer = optim::adam({.epsilon = 1e-6});
  if (what == "clipping")
    asked.compile.optimizer = optim::Recipe(optim::adam(), {.global_norm = 1});
  if (what == "loss") asked.compile.loss = losses::hinge();
  if (what == "schedule") asked.compile.learning_rate = halved_after(4);
  if (what == "microbatches") asked.fit.microbatches = 2;
  if (what == "loss_scaling") asked.compile.loss_scaling = optim::LossScaling{.growth = 4};
  if (what == "large_batch") asked.compile.large_batch = LargeBatch{.zero_last_norms = false};
  if (what == "noise_scale") asked.compile.measures.noise_scale = true;
  if (what == "names") asked.data = named({"ant", "wasp"});
  if (what == "swapped") asked.data = named({"ant", "bee"}, 1);
  if (what == "last sample") asked.data = last_changed();
  if (what == "swapped validation") asked.fit.validation = named({"ant", "bee"}, 1).batch(6);
  if (what == "workers") asked.fit.loader.workers = 0;
}

RANK_PROGRAM(one_asks_otherwise) {
  const Strategy strategy = workers_strategy(2);
  for (const std::string& what : rank.arguments) {
    Asked asked{
        .fit = {.epochs = 2, .seed = 7, .verbose = 0},
        .compile = {.optimizer = optim::adam(), .loss = losses::sparse_categorical_crossentropy()}};
    if (what == "schedule") asked.compile.learning_rate = halved_after(2);
    if (what == "loss_scaling") asked.compile.loss_scaling = optim::LossScaling{};
    if (what == "large_batch") asked.compile.large_batch = LargeBatch{};
    if (what == "swapped validation") asked.fit.validation = named().batch(6);
    if (strategy.world().first_rank == 1) ask_otherwise(what, asked);
    Model model(strategy, [] { return torch::nn::Linear(4, 3); });
    const std::string before = model.weights_sha256();
    const data::Dataset all = asked.data.take(asked.samples);
    const auto data = (asked.cached ? all.cache() : all).shuffle().batch(asked.batch);
    try {
      model.compile(asked.compile);
      model.fit(data, asked.fit);
      rank.mark("asked for " + what + ": trained");
    } catch (const Mismatch& error) {
      std::string message = error.what();
      std::ranges::replace(message, '\n', ' ');
      rank.mark("asked for " + what + ": " + message);
    }
    const bool equal = what == "nothing" || what == "workers";
    if (!equal && model.weights_sha256() != before) rank.mark("made steps");
  }
}

TEST(WorkersErrors, AWorkerThatAsksForAnotherTrainingIsToldBeforeTheFirstStep) {
  const std::pair<std::string, std::string> cases[] = {
      {"seed", "worker 0 has seed: 7   worker 1 has seed: 8 "},
      {"max_steps", "worker 1 has max_steps: 2 "},
      {"class_weight", "worker 1 has class_weight: {1: 2.5} "},
      {"validation", "worker 0 has validation data: none   worker 1 has validation data: 24 "},
      {"callbacks", "worker 1 has callbacks: [terminate_on_nan]"},
      {"samples", "worker 1 has training data: 18 samples of float32 [4], int64 []"},
      {"on_bad", "worker 1 has a damaged sample: replaced, at most 0.5 of an epoch"},
      {"cache", "in batches of 6 behind 1 cache() in memory"},
      {"batch", "in batches of 8 "},
      {"precision", "worker 1 has precision: bfloat16"},
      {"rate", "worker 1 has optimizer: adam learning_rate 0.25 "},
      {"epsilon", "epsilon 1e-06 "},
      {"clipping", "global_norm 1 "},
      {"loss", "worker 1 has loss: hinge times 1"},
      {"schedule",
       "worker 0 has rates at steps 0, 1, 2, 5, 10, 20, ...: [0.1, 0.1, 0.05, 0.05] "
       "  worker 1 has rates at steps 0, 1, 2, 5, 10, 20, ...: [0.1, 0.1, 0.1, 0.05] "},
      {"microbatches", "worker 1 has microbatches: 2 "},
      {"loss_scaling", "worker 1 has loss_scaling: initial 65536, growth 4 after 2000, backoff"},
      {"large_batch",
       "worker 1 has large_batch: base 256 by 0, scaling -1, warm up 5 epochs and 0"},
      {"noise_scale", "worker 0 has noise_scale: false   worker 1 has noise_scale: true"},
      {"names",
       "worker 0 has training data, class 1: bee   worker 1 has training data, class 1: w"},
      {"swapped", "worker 1 has training data, sha256 of 24 samples from the first to the last: "},
      {"last sample", "worker 1 has training data, sha256 of 24 samples from the first to the la"},
      {"swapped validation", "worker 1 has validation data, sha256 of 24 samples from the first"},
      {"workers", "trained"},
      {"nothing", "trained"},
  };
  std::vector<std::string> names;
  for (const auto& [what, words] : cases) names.push_back(what);
  const auto out = test::run_workers(2, "one_asks_otherwise", names);
  ASSERT_EQ(out.exit_code, 0) << out.log;
  for (const auto& [what, words] : cases)
    EXPECT_THAT(test::lines_after(out.log, "asked for " + what + ": "),
                testing::AllOf(SizeIs(2), Each(HasSubstr(words))))
        << out.log;
  EXPECT_THAT(out.log, testing::Not(HasSubstr("made steps")));
}

// Of a Strategy, for loops of one's own too: what worker 1 asks for otherwise, by name.
void ask_otherwise(const std::string& what, StrategyOptions& options) {
  if (what == "threads") options.threads_per_replica = 2;
  if (what == "seed") options.seed = 8;
  if (what == "shares") options.shares = {2, 1};
  if (what == "by_speed") options.by_speed = BySpeed{};
  if (what == "tensor_blocks") options.tensor_blocks = 4;
  if (what == "reduction") options.reduction = "hierarchical_copy";
  if (what == "compression") options.compression = compression_from("topk:0.5");
  if (what == "start_step") options.compression.start_step = 4;
  if (what == "shard") options.shard = "state";
  if (what == "deterministic") options.deterministic = true;
  if (what == "time_limit") options.time_limit = Millis{20'000};
  if (what == "pin") options.pin = false;
}

RANK_PROGRAM(one_makes_another_strategy) {
  for (const std::string& what : rank.arguments) {
    StrategyOptions options{.kind = "multi_worker", .replicas = 2, .threads_per_replica = 1};
    if (what == "start_step") options.compression = compression_from("bf16");
    if (what == "deterministic") options.device = "auto";
    if (rank.rank == 1) ask_otherwise(what, options);
    try {
      Strategy strategy(options);
      rank.mark("asked for " + what + ": agreed");
    } catch (const Mismatch& error) {
      std::string message = error.what();
      std::ranges::replace(message, '\n', ' ');
      rank.mark("asked for " + what + ": " + message);
    }
  }
}

TEST(WorkersErrors, AWorkerThatMakesAnotherStrategyIsToldWhenTheyMeet) {
  const std::pair<std::string, std::string> cases[] = {
      {"threads", "worker 0 has threads a replica: 1   worker 1 has threads a replica: 2 "},
      {"seed", "worker 0 has seed: 0   worker 1 has seed: 8 "},
      {"shares", "worker 0 has shares: equal   worker 1 has shares: 2, 1 "},
      {"by_speed", "worker 0 has shares: equal   worker 1 has shares: by speed "},
      {"tensor_blocks", "worker 1 has tensor_blocks: 4 "},
      {"reduction", "worker 0 has reduction: fused   worker 1 has reduction: hierarchical_copy "},
      {"compression", "worker 0 has reduction: fused   worker 1 has reduction: all_reduce "},
      {"start_step", "worker 1 has compression, start_step: 4 "},
      {"shard", "worker 0 has shard: nothing   worker 1 has shard: state "},
      {"deterministic", "worker 1 has deterministic: true "},
      {"time_limit", "agreed"},
      {"pin", "agreed"},
  };
  std::vector<std::string> names;
  for (const auto& [what, words] : cases) names.push_back(what);
  const auto out = test::run_workers(2, "one_makes_another_strategy", names);
  ASSERT_EQ(out.exit_code, 0) << out.log;
  for (const auto& [what, words] : cases)
    EXPECT_THAT(test::lines_after(out.log, "asked for " + what + ": "),
                testing::AllOf(SizeIs(2), Each(HasSubstr(words))))
        << out.log;
}

// Each worker sees its part of the samples: of other data the sums would be of neither.
RANK_PROGRAM(one_evaluates_other_data) {
  Strategy strategy = workers_strategy(2);
  Model model = error_model(strategy);
  const bool other = strategy.world().first_rank == 1;
  const data::Dataset data = named({"ant", "bee"}, other ? 1 : 0).batch(6);
  const auto x = torch::ones({4, 4}) * (other ? 2 : 1);
  const auto y = torch::zeros({4}, torch::kInt64);
  mark_error(rank, [&] { model.evaluate(data); });
  mark_error(rank, [&] { model.predict(data); });
  mark_error(rank, [&] { model.train_on_batch(x, y); });
  mark_error(rank, [&] { model.test_on_batch(x, y); });
  mark_error(rank, [&] { strategy.distribute(data); });
  mark_error(rank, [&] { model.evaluate(named().batch(6)); });
  mark_error(rank, [&] { strategy.distribute(named().batch(6)); });
}

TEST(WorkersErrors, OtherDataIsSeenByWhatDoesNotTrainToo) {
  const auto out = test::run_workers(2, "one_evaluates_other_data");
  ASSERT_EQ(out.exit_code, 0) << out.log;
  const auto errors = test::lines_after(out.log, "error: ");
  EXPECT_THAT(errors, testing::AllOf(SizeIs(10), Each(HasSubstr(": worker 1 was asked for some"))))
      << out.log;
  EXPECT_THAT(test::lines_after(out.log, "no error"), SizeIs(4)) << out.log;
}

// The chief's own error is the cause, however the others end with it.
RANK_PROGRAM(callback_throws) {
  const auto fails = [](Training&) { throw std::out_of_range("no column \"loss2\""); };
  callbacks::LambdaOptions functions;
  (rank.arguments[0] == "step" ? functions.on_step_end : functions.on_epoch_end) = fails;
  Model model = error_model(workers_strategy(2));
  const auto uncaught = [&]() noexcept {
    model.fit(Samples().batched(),
              {.callbacks = {callbacks::lambda("mine", functions)}, .verbose = 0});
  };
  uncaught();
}

TEST(WorkersErrors, ACallbackThatThrowsOnTheChiefIsTheCause) {
  for (const char* when : {"step", "epoch"}) {
    const auto out = test::run_workers(2, "callback_throws", {when});
    EXPECT_THAT(out.log, HasSubstr("root worker 0\n")) << when;
    EXPECT_THAT(out.log, HasSubstr("callback mine: no column \"loss2\"\nroot worker 0\n"));
  }
}

}  // namespace
}  // namespace tutti
