// Checkpoints of fit: what goes on from one ends as what was never interrupted.
#include <torch/torch.h>

#include <csignal>
#include <fstream>

#include "tutti/base/stop.h"
#include "tutti/checkpoint/checkpoint.h"
#include "tutti/checkpoint/folder.h"
#include "tutti/train/callbacks/callbacks.h"

#include "tests/support/expect.h"
#include "tests/support/full_disk.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/train/checkpointed.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

// Trains until `step`, dies, and goes on in another process's place: another model.
Trained interrupted(const Setting& before, const Setting& after, int64_t step, int64_t every,
                    const fs::path& folder) {
  {
    Model model = checkpointed_model(before);
    FitOptions options = three_epochs({.folder = folder, .every_steps = every});
    options.callbacks = cut_after(step);
    EXPECT_THROW(model.fit(samples(), std::move(options)), Error);
  }
  Model model = checkpointed_model(after);
  const History history =
      model.fit(samples(), three_epochs({.folder = folder, .every_steps = every, .resume = true}));
  return trained_of(model, history);
}

TEST(Checkpoints, TrainingsThatWereCutOffEndAsThoseThatWereNot) {
  const std::vector<Setting> cases = {
      {},
      {.kind = "one_device", .replicas = 1},
      {.kind = "one_device", .replicas = 3},
      {.kind = "mirrored", .replicas = 3},
      {.kind = "central_storage", .replicas = 2},
      {.optimizer = optim::Recipe(optim::sgd({.learning_rate = 0.05, .momentum = 0.9}),
                                  {.global_norm = 0.5})},
      {.optimizer = optim::lamb({.learning_rate = 0.01})},
      {.optimizer = optim::adam({.learning_rate = 0.01, .beta2 = 0.5, .amsgrad = true})},
      {.optimizer = TorchOptimizerFactory([](std::vector<at::Tensor> parameters) {
         return std::make_unique<torch::optim::AdamW>(std::move(parameters),
                                                      torch::optim::AdamWOptions(0.01));
       })},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    // In the middle of an epoch, at its last step, and after a checkpoint of its end.
    for (const int64_t step : i == 0 ? std::vector<int64_t>{3, 4, 6, 9} : std::vector<int64_t>{7}) {
      const TempFolder folder;
      EXPECT_EQ(interrupted(cases[i], cases[i], step, 2, folder.path()), straight(cases[i]));
    }
  }
}

// What a replica has not sent yet is its own, and comes with the checkpoint.
TEST(Checkpoints, GoOnWithWhatCompressionKeepsBack) {
  using Kind = Compression::Kind;
  for (const Compression& compression :
       {Compression{.kind = Kind::top_k, .ratio = 0.3}, Compression{.kind = Kind::one_bit},
        Compression{.kind = Kind::power_sgd, .rank = 1}, Compression{.kind = Kind::bfloat16},
        Compression{.kind = Kind::top_k, .ratio = 0.3, .start_step = 8}}) {
    Setting threads{.optimizer = optim::sgd({.learning_rate = 0.05}), .compression = compression};
    threads.compression.min_elements = 4;
    SCOPED_TRACE(describe(threads.compression));
    Setting in_turn = threads, plain = threads;
    in_turn.kind = "one_device";
    plain.compression = {};
    const Trained whole = straight(threads);
    EXPECT_NE(whole, straight(plain)) << "nothing is compressed";
    const TempFolder folder, other;
    EXPECT_EQ(interrupted(threads, threads, 7, 3, folder.path()), whole);
    EXPECT_EQ(interrupted(threads, in_turn, 7, 3, other.path()), whole);
  }
}

TEST(Checkpoints, AnEpochFromOneToTheNextWhereNothingElseIsSaid) {
  const TempFolder folder;
  EXPECT_EQ(interrupted({}, {}, 7, 0, folder.path()), straight({}));
  std::vector<std::string> names;
  for (const auto& path : trainings_in(folder.path())) names.push_back(path.filename());
  EXPECT_THAT(names, ElementsAre("step-000000000004", "step-000000000008", "step-000000000012"));
}

TEST(Checkpoints, GoOnUnderAnotherStrategyWithAsManyReplicas) {
  const std::vector<std::string> kinds = {"mirrored", "one_device", "central_storage"};
  for (const auto& before : kinds)
    for (const auto& after : kinds) {
      const TempFolder folder;
      EXPECT_EQ(interrupted({.kind = before}, {.kind = after}, 6, 1, folder.path()), straight({}))
          << before << " then " << after;
    }
}

// Without dropout and batch statistics, whose parts depend on the number of replicas.
TEST(Checkpoints, WithAnotherNumberOfReplicasTheSameSamplesFollow) {
  const auto train = [](int replicas, FitOptions options) {
    Model model = small_model(strategy_of("mirrored", replicas));
    options.validation = three_classes(9).batch(9);
    return model.fit(flat_samples(), std::move(options));
  };
  const History whole = train(2, three_epochs());
  for (const int others : {1, 3}) {
    const TempFolder folder;
    FitOptions cut = three_epochs({.folder = folder.path(), .every_steps = 1});
    cut.callbacks = cut_after(6);
    EXPECT_THROW(train(2, std::move(cut)), Error);
    const History history =
        train(others, three_epochs({.folder = folder.path(), .every_steps = 1, .resume = true}));
    for (const char* column : {"train_loss", "val_loss"})
      for (size_t epoch = 0; epoch < 3; ++epoch)
        EXPECT_NEAR(history.column(column)[epoch], whole.column(column)[epoch], 1e-5) << column;
    EXPECT_EQ(history.column("accuracy"), whole.column("accuracy"));
  }
}

TEST(Checkpoints, MoreStepsAfterAllThatWereAskedFor) {
  for (const int64_t first : {2, 4, 7}) {
    const TempFolder folder;
    FitOptions some = three_epochs({.folder = folder.path()});
    some.max_steps = first;
    Model model = checkpointed_model({});
    EXPECT_EQ(model.fit(samples(), std::move(some)).steps, first);
    Model other = checkpointed_model({});
    const History history =
        other.fit(samples(), three_epochs({.folder = folder.path(), .resume = true}));
    EXPECT_EQ(trained_of(other, history), straight({})) << first;
    // And what is done is done.
    Model third = checkpointed_model({});
    FitOptions again = three_epochs({.folder = folder.path(), .resume = true});
    again.verbose = 1;
    testing::internal::CaptureStdout();
    const History same = third.fit(samples(), std::move(again));
    EXPECT_THAT(testing::internal::GetCapturedStdout(),
                HasSubstr("nothing is left to do: 12 steps, all that were asked for"));
    EXPECT_EQ(trained_of(third, same), straight({})) << first;
  }
}

TEST(Checkpoints, AccumulationAndTheScaleOfLossesGoOn) {
  const auto train = [](FitOptions options) {
    Model model(strategy_of("mirrored", 2), [] { return graph_with_state(); });
    CompileOptions how = adam_and_accuracy();
    how.precision = Precision::bfloat16;
    how.loss_scaling = {.initial = 1024, .growth_interval = 3};  // grows on the way
    model.compile(how);
    options.accumulate = 2;
    const History history = model.fit(samples(), std::move(options));
    return std::pair(trained_of(model, history), model.optimizer().loss_scale()->value());
  };
  const auto whole = train(three_epochs());
  ASSERT_GT(whole.second, 1024);
  for (const int64_t cut : {2, 3, 5}) {
    const TempFolder folder;
    FitOptions options = three_epochs({.folder = folder.path(), .every_steps = 1});
    options.callbacks = cut_after(cut);
    EXPECT_THROW(train(std::move(options)), Error);
    EXPECT_EQ(train(three_epochs({.folder = folder.path(), .every_steps = 1, .resume = true})),
              whole)
        << cut;
  }
}

TEST(Checkpoints, ResumeBeginsWhereThereIsNone) {
  const TempFolder folder;
  EXPECT_EQ(straight({}, three_epochs({.folder = folder.path() / "new", .resume = true})),
            straight({}));
}

TEST(Checkpoints, CallbacksGoOnToo) {
  const auto options = [](const fs::path& folder, bool resume, int64_t cut) {
    FitOptions all = three_epochs({.folder = folder, .every_steps = 1, .resume = resume});
    if (folder.empty()) all.checkpoints = {};
    all.epochs = 12;
    all.callbacks = {callbacks::reduce_on_plateau(
                         {.monitor = "val_loss", .factor = 0.5, .patience = 1, .min_delta = 0.05}),
                     callbacks::early_stopping({.monitor = "val_loss",
                                                .min_delta = 0.02,
                                                .patience = 3,
                                                .restore_best_weights = true})};
    for (const auto& one : cut_after(cut)) all.callbacks.push_back(one);
    return all;
  };
  const Trained whole = straight({}, options({}, false, -1));
  ASSERT_LT(whole.columns[0].size(), 12U);  // it did stop
  for (const int64_t cut : std::vector<int64_t>{9, 17, whole.steps - 1}) {
    const TempFolder folder;
    {
      Model model = checkpointed_model({});
      EXPECT_THROW(model.fit(samples(), options(folder.path(), false, cut)), Error);
    }
    EXPECT_EQ(straight({}, options(folder.path(), true, -1)), whole) << cut;
    // What a callback has ended is not begun again.
    EXPECT_EQ(straight({}, options(folder.path(), true, -1)), whole) << cut;
  }
  // The weights that a callback remembers go to as many replicas as there are.
  for (const Setting& other :
       {Setting{.kind = "one_device", .replicas = 2}, Setting{.kind = "mirrored", .replicas = 3},
        Setting{.kind = "one_device", .replicas = 1}}) {
    const TempFolder folder;
    {
      Model model = checkpointed_model({});
      EXPECT_THROW(model.fit(samples(), options(folder.path(), false, whole.steps - 1)), Error);
    }
    const Trained resumed = straight(other, options(folder.path(), true, -1));
    if (other.replicas == 2) {
      EXPECT_EQ(resumed, whole);
    }
    EXPECT_TRUE(std::isfinite(resumed.columns[0].back()));
  }
}

TEST(Checkpoints, CallbacksSeeTheStepsOfTheEpochThatGoesOn) {
  const TempFolder folder;
  std::vector<std::string> seen;
  const auto record = callbacks::lambda(
      "record", {.on_step_end = [&seen](Training& training) {
        seen.push_back(fmt::format("{}: {} of {}", training.epoch(), training.epoch_step(),
                                   training.epoch_steps()));
      }});
  {
    Model model = checkpointed_model({});
    FitOptions options = three_epochs({.folder = folder.path(), .every_steps = 1});
    options.callbacks = cut_after(6);
    EXPECT_THROW(model.fit(samples(), options), Error);
  }
  FitOptions options = three_epochs({.folder = folder.path(), .resume = true});
  std::FILE* const out = std::fopen((folder / "log").c_str(), "w");
  options.callbacks = {record, callbacks::progress_bar(out)};
  options.epochs = 2;
  straight({}, options);
  std::fclose(out);
  EXPECT_THAT(seen, ElementsAre("1: 2 of 4", "1: 3 of 4", "1: 4 of 4"));
  std::ifstream file(folder / "log");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(text, AllOf(HasSubstr("epoch 2/2  loss "), Not(HasSubstr("epoch 1/2"))));
}

class Remembers final : public Callback {
 public:
  explicit Remembers(std::string state) : state_(std::move(state)) {}
  std::string_view name() const override { return "remembers"; }
  std::string state() const override { return state_; }
  void restore(const std::string&) override { throw Error("I have forgotten it"); }

 private:
  std::string state_;
};

TEST(Checkpoints, ACallbackWhoseStateIsNoneIsNamed) {
  const TempFolder folder;
  const auto train = [&](std::string state, bool resume) {
    FitOptions options = three_epochs({.folder = folder.path(), .resume = resume});
    options.callbacks = {std::make_shared<Remembers>(std::move(state))};
    Model model = checkpointed_model({});
    model.fit(samples(), std::move(options));
  };
  EXPECT_THAT(message_of<Error>([&] { train("\xff", false); }),
              HasSubstr("callback remembers: state(): "));
  train("all of it", false);
  EXPECT_THAT(message_of<Error>([&] { train("", true); }),
              HasSubstr("callback remembers: restore(): I have forgotten it"));
}

// Adds numbers of the replica's own generator, whose state is in the checkpoint.
struct NoisyImpl : torch::nn::Module {
  NoisyImpl() : linear(register_module("linear", torch::nn::Linear(4, 3))) {}
  at::Tensor forward(const at::Tensor& x) {
    const auto noise = torch::empty_like(x).normal_(0, 1, ReplicaContext::current()->generator());
    return linear(is_training() ? x + noise : x);
  }
  torch::nn::Linear linear;
};
TORCH_MODULE(Noisy);

TEST(Checkpoints, NumbersOfAReplicasGeneratorGoOn) {
  const auto train = [](const std::string& kind, FitOptions options) {
    Model model(strategy_of(kind, 2), [] { return Noisy(); });
    model.compile(adam_and_accuracy());
    options.validation = three_classes(9).batch(9);
    const History history = model.fit(flat_samples(), std::move(options));
    return trained_of(model, history);
  };
  for (const std::string after : {"mirrored", "one_device"}) {
    const TempFolder folder;
    FitOptions cut = three_epochs({.folder = folder.path(), .every_steps = 1});
    cut.callbacks = cut_after(6);
    EXPECT_THROW(train("mirrored", std::move(cut)), Error);
    EXPECT_EQ(
        train(after, three_epochs({.folder = folder.path(), .every_steps = 1, .resume = true})),
        train("mirrored", three_epochs()))
        << after;
  }
}

TEST(Checkpoints, ScheduleAndRatesGoOn) {
  const auto train = [](FitOptions options) {
    Model model(strategy_of("mirrored", 2), [] { return small_graph(0.1); });
    CompileOptions how = adam_and_accuracy();
    how.learning_rate = schedules::cosine({.initial = 0.02, .decay_steps = 12});
    model.compile(how);
    options.validation = three_classes(9).batch(9);
    const History history = model.fit(flat_samples(), std::move(options));
    return trained_of(model, history);
  };
  const TempFolder folder;
  FitOptions cut = three_epochs({.folder = folder.path(), .every_steps = 1});
  cut.callbacks = cut_after(6);
  EXPECT_THROW(train(std::move(cut)), Error);
  EXPECT_EQ(train(three_epochs({.folder = folder.path(), .every_steps = 1, .resume = true})),
            train(three_epochs()));
}

// ---- asked to end ----

TEST(Checkpoints, AScheduleOfOnesOwnServesTheStepsThatAreMade) {
  const TempFolder folder;
  const std::vector<double> rates(12, 0.01);  // three epochs of four steps
  Model model = checkpointed_model({});
  CompileOptions options = adam_and_accuracy();
  options.learning_rate =
      RateSchedule("table", [rates](int64_t s) { return rates.at(static_cast<size_t>(s)); });
  model.compile(options);
  const History history =
      model.fit(samples(), three_epochs({.folder = folder.path(), .every_steps = 4}));
  EXPECT_EQ(history.steps, 12);
}

TEST(Checkpoints, NothingIsSaidToBeSavedThatIsNot) {
  const TempFolder folder;
  FitOptions options = three_epochs({.folder = folder.path()});
  options.verbose = 2;
  options.callbacks = {callbacks::lambda("signal", {.on_step_end = [](Training& training) {
                                           if (training.step() == 6) std::raise(SIGTERM);
                                         }})};
  install_stop_handler();
  testing::internal::CaptureStdout();
  Model model = checkpointed_model({});
  {
    const FullDisk full(1000);
    EXPECT_THROW(model.fit(samples(), std::move(options)), Interrupted);
  }
  remove_stop_handler();
  EXPECT_THAT(testing::internal::GetCapturedStdout(), Not(HasSubstr("saved step-")));
}

TEST(Checkpoints, WhoIsAskedToEndSavesBefore) {
  for (const std::string kind : {"mirrored", "one_device"}) {
    const TempFolder folder;
    FitOptions options = three_epochs({.folder = folder.path()});
    options.callbacks = {callbacks::lambda("signal", {.on_step_end = [](Training& training) {
                                             if (training.step() == 6) std::raise(SIGTERM);
                                           }})};
    install_stop_handler();
    Model model = checkpointed_model({.kind = kind});
    EXPECT_THROW(model.fit(samples(), std::move(options)), Interrupted);
    remove_stop_handler();
    Model other = checkpointed_model({.kind = kind});
    const History history =
        other.fit(samples(), three_epochs({.folder = folder.path(), .resume = true}));
    EXPECT_EQ(trained_of(other, history), straight({})) << kind;
  }
}

TEST(Checkpoints, WhoIsAskedToEndWhileItValidatesHasTrainedTheEpoch) {
  const TempFolder folder;
  FitOptions options = three_epochs({.folder = folder.path(), .every_steps = 100});
  // After the last step of an epoch nobody looks at the signal before the validation.
  options.callbacks = {callbacks::lambda("signal", {.on_step_end = [](Training& training) {
                                           if (training.step() == 8) std::raise(SIGTERM);
                                         }})};
  install_stop_handler();
  Model model = checkpointed_model({});
  EXPECT_THROW(model.fit(samples(), std::move(options)), Interrupted);
  remove_stop_handler();
  ASSERT_THAT(trainings_in(folder.path()), SizeIs(1));
  const CheckpointManifest manifest =
      TrainingCheckpoint(trainings_in(folder.path()).front()).manifest();
  EXPECT_EQ(manifest.step, 8);
  EXPECT_EQ(manifest.epoch * 4 + manifest.step_in_epoch, 8);
  EXPECT_EQ(manifest.images, 2 * 30);
  Model other = checkpointed_model({});
  const History history =
      other.fit(samples(), three_epochs({.folder = folder.path(), .resume = true}));
  EXPECT_EQ(trained_of(other, history), straight({}));
  EXPECT_EQ(history.images, 3 * 30);
}

TEST(Checkpoints, TimeThatIsUpAsksForAnEnd) {
  const TempFolder folder;
  FitOptions options = three_epochs({.folder = folder.path()});
  options.epochs = 1'000'000;
  options.validation.reset();
  options.stop_after = Millis{50};
  Model model = checkpointed_model({});
  try {
    model.fit(samples(), std::move(options));
    FAIL() << "it went on";
  } catch (const Interrupted& end) {
    EXPECT_EQ(end.signal(), SIGTERM);
  }
  EXPECT_THAT(trainings_in(folder.path()), Not(IsEmpty()));
}

TEST(Checkpoints, BackupAndRestoreLeavesNothingBehind) {
  const TempFolder folder;
  const auto options = [&](int64_t cut) {
    FitOptions all = three_epochs();
    all.callbacks = {callbacks::backup_and_restore({.folder = folder.path(), .every_steps = 2})};
    for (const auto& one : cut_after(cut)) all.callbacks.push_back(one);
    return all;
  };
  Model model = checkpointed_model({});
  EXPECT_THROW(model.fit(samples(), options(7)), Error);
  EXPECT_THAT(trainings_in(folder.path()), Not(IsEmpty()));
  EXPECT_EQ(straight({}, options(-1)), straight({}));
  EXPECT_THAT(trainings_in(folder.path()), IsEmpty());
}

}  // namespace
}  // namespace tutti
