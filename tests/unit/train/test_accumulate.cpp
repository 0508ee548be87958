// fit() with several batches to an update: under every strategy the bits of the parts in turn, and
// the training of one large batch.
#include <torch/torch.h>

#include "tests/support/expect.h"
#include "tests/support/uneven.h"
#include "tests/unit/train/small_model.h"

namespace tutti {
namespace {

TEST(Accumulate, UnevenInputsGiveTheBitsOfThePartsInTurn) {
  for (const Uneven& uneven : uneven_cases({2, 3, 5}))
    for (const int64_t accumulate : {2, 3}) {
      const auto story = [&](const char* kind) {
        return uneven_story(
            strategy_of(kind, uneven.replicas), uneven,
            optim::Recipe(optim::adam({.learning_rate = 0.05}), {.global_norm = 0.5}),
            {.accumulate = accumulate}, uneven.batch % 2 == 0);
      };
      const std::string in_turn = story("one_device");
      EXPECT_EQ(story("mirrored"), in_turn) << uneven.words() << ", " << accumulate;
      EXPECT_EQ(story("central_storage"), in_turn) << uneven.words() << ", " << accumulate;
    }
}

struct Outcome {
  History history;
  std::vector<at::Tensor> parameters;
};

// With dropout, whose masks are those of the large batch.
Outcome fit_small(int replicas, int64_t samples, int64_t batch, FitOptions options) {
  Model model(strategy_of("mirrored", replicas), [] { return small_graph(0.3); });
  CompileOptions compiled = adam_and_accuracy();
  // Of large epsilon: else rounding decides where a gradient almost vanishes.
  compiled.optimizer =
      optim::Recipe(optim::adam({.learning_rate = 0.01, .epsilon = 1e-3}), {.global_norm = 0.3});
  model.compile(compiled);
  options.verbose = 0;
  History history = model.fit(three_classes(samples).shuffle().batch(batch), options);
  return {std::move(history), model.modules().module(0)->parameters()};
}

TEST(Accumulate, IsTheTrainingOfOneLargeBatch) {
  struct Case {
    int64_t samples, batch, accumulate;
  };
  for (const auto& [samples, batch, accumulate] :
       {Case{24, 4, 3}, Case{25, 4, 3}, Case{31, 5, 4}, Case{10, 3, 9}})
    for (const int replicas : {1, 2, 3}) {
      const auto parts =
          fit_small(replicas, samples, batch, {.epochs = 2, .accumulate = accumulate});
      const auto large = fit_small(1, samples, batch * accumulate, {.epochs = 2});
      EXPECT_LT(test::relative_difference(parts.parameters, large.parameters), 1e-5)
          << samples << ": " << accumulate << " x " << batch << ", " << replicas;
      EXPECT_EQ(parts.history.steps, large.history.steps);
      EXPECT_EQ(parts.history.images, 2 * samples);
      EXPECT_NEAR(parts.history.last("train_loss"), large.history.last("train_loss"), 1e-5);
    }
}

TEST(Accumulate, EverythingCountsUpdates) {
  for (const char* kind : {"one_device", "mirrored"}) {
    std::vector<int64_t> scheduled, ended;
    Model model(strategy_of(kind, 2), [] { return small_graph(); });
    CompileOptions compiled = adam_and_accuracy();
    compiled.learning_rate = RateSchedule("mine", [&](int64_t step) {
      scheduled.push_back(step);
      return 0.1;
    });
    model.compile(compiled);
    const auto notes = callbacks::lambda(
        "notes", {.on_step_end = [&](Training& training) { ended.push_back(training.step()); }});
    // 7 batches: updates of 3, 3 and 1.
    const auto data = three_classes(28).batch(4);
    const History history =
        model.fit(data, {.epochs = 2, .callbacks = {notes}, .verbose = 0, .accumulate = 3});
    EXPECT_THAT(scheduled, ElementsAre(0, 1, 2, 3, 4, 5)) << kind;
    EXPECT_THAT(ended, ElementsAre(1, 2, 3, 4, 5, 6)) << kind;
    EXPECT_EQ(history.steps, 6);
    EXPECT_EQ(history.images, 56);
    EXPECT_EQ(model.optimizer().version(), 6);
    const auto steps = [&](FitOptions options) {
      options.verbose = 0;
      options.accumulate = 3;
      const History history = model.fit(data, options);
      return std::pair(history.steps, history.images);
    };
    EXPECT_EQ(steps({.max_steps = 2}), std::pair(int64_t{2}, int64_t{24}));
    EXPECT_EQ(steps({.steps_per_epoch = 1}), std::pair(int64_t{1}, int64_t{12}));
    EXPECT_EQ(steps({.steps_per_epoch = 3}), std::pair(int64_t{3}, int64_t{28}));
  }
}

TEST(Accumulate, ATrainingThatFailedInTheMiddleOfAGroupLeavesNothingBehind) {
  const auto sha = [](bool fails_first) {
    Model model(strategy_of("one_device", 1), [] { return small_graph(); });
    int64_t calls = 0;
    const Loss loss("fails", [&](const at::Tensor& y, const at::Tensor& labels) {
      if (fails_first && ++calls == 2) throw Error("mine");
      return torch::cross_entropy_loss(y, labels, {}, at::Reduction::None);
    });
    model.compile({.optimizer = optim::sgd({.learning_rate = 0.1}), .loss = loss});
    const auto data = three_classes(12).batch(4);
    if (fails_first) {
      EXPECT_THROW(model.fit(data, {.verbose = 0, .accumulate = 3}), Error);
    }
    model.fit(data, {.verbose = 0, .accumulate = 3});
    return model.weights_sha256();
  };
  EXPECT_EQ(sha(true), sha(false));
}

TEST(Accumulate, NumbersOutOfRangeAreRefused) {
  Model model = small_model(strategy_of("one_device", 1));
  const auto fit = [&](FitOptions options) {
    return message_of<UsageError>([&] { model.fit(three_classes(28).batch(4), options); });
  };
  EXPECT_THAT(fit({.accumulate = 0}), HasSubstr("accumulate is 0"));
  EXPECT_THAT(fit({.accumulate = -2}), HasSubstr("accumulate is -2"));
  EXPECT_THAT(fit({.accumulate = int64_t{1} << 62}), HasSubstr("1 to 1000000"));
  EXPECT_THAT(fit({.steps_per_epoch = 4, .accumulate = 3}),
              HasSubstr("steps_per_epoch is 4, the dataset has 3 groups of batches"));
  EXPECT_EQ(model.optimizer().version(), 0);
}

}  // namespace
}  // namespace tutti
