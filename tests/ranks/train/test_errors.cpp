// What goes wrong on one worker ends all of them, in the same words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "tutti/base/error.h"
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

struct Asked {
  FitOptions fit;
  CompileOptions compile;
  int64_t samples = 24;
  int64_t batch = 6;
  bool cached = false;
};

// Serves eight steps and no more.
RateSchedule halved_after(int64_t steps) {
  return {"halved", [steps](int64_t step) {
            if (step >= 8) throw std::out_of_range("no such step");
            return step < steps ? 0.1 : 0.05;
          }};
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
}

RANK_PROGRAM(one_asks_otherwise) {
  const Strategy strategy = workers_strategy(2);
  for (const std::string& what : rank.arguments) {
    Asked asked{
        .fit = {.epochs = 2, .seed = 7, .verbose = 0},
        .compile = {.optimizer = optim::adam(), .loss = losses::sparse_categorical_crossentropy()}};
    if (what == "schedule") asked.compile.learning_rate = halved_after(2);
    if (strategy.world().first_rank == 1) ask_otherwise(what, asked);
    Model model(strategy, [] { return torch::nn::Linear(4, 3); });
    model.compile(asked.compile);
    const data::Dataset all = Samples().whole().take(asked.samples);
    const auto data = (asked.cached ? all.cache() : all).shuffle().batch(asked.batch);
    try {
      model.fit(data, asked.fit);
      rank.mark(what + ": trained");
    } catch (const Mismatch& error) {
      std::string message = error.what();
      std::ranges::replace(message, '\n', ' ');
      rank.mark(what + ": " + message);
    }
    if (model.optimizer().version() > 0 && what != "nothing") rank.mark("made steps");
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
      {"nothing", "trained"},
  };
  std::vector<std::string> names;
  for (const auto& [what, words] : cases) names.push_back(what);
  const auto out = test::run_workers(2, "one_asks_otherwise", names);
  ASSERT_EQ(out.exit_code, 0) << out.log;
  for (const auto& [what, words] : cases)
    EXPECT_THAT(test::lines_after(out.log, what + ": "),
                testing::AllOf(SizeIs(2), Each(HasSubstr(words))))
        << out.log;
  EXPECT_THAT(out.log, testing::Not(HasSubstr("made steps")));
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
