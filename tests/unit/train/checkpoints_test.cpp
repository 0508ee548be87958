// Checkpoints of fit: what goes on from one ends as what was never interrupted, and whatever is
// wrong with a checkpoint or its folder is said.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <csignal>
#include <fstream>

#include "tutti/base/error.h"
#include "tutti/base/stop.h"
#include "tutti/nn/sparse_embedding.h"
#include "tutti/train/callbacks.h"
#include "tutti/train/checkpoint.h"

#include "tests/support/full_disk.h"
#include "tests/support/message_of.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/train/small_model.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;
using test::message_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Thrown by a callback: what cuts a training off, as far as fit can tell.
struct Cut : std::runtime_error {
  using std::runtime_error::runtime_error;
};

Callbacks cut_after(int64_t step) {
  return {callbacks::lambda("cut", {.on_step_end = [step](Training& training) {
                              if (training.step() == step) throw Cut("cut");
                            }})};
}

// Batch statistics differ by replica, dropout draws by step, Adam has counts and two states.
nn::Graph graph_with_state() {
  const auto input = nn::input({1, 2, 2});
  auto x = nn::batch_norm2d()(nn::conv2d(6, 2)(input));
  return nn::Graph(input, nn::linear(3)(nn::dropout(0.3)(nn::flatten()(nn::relu()(x)))));
}

struct Setting {
  std::string kind = "mirrored";
  int replicas = 2;
  OptimizerChoice optimizer = optim::adam({.learning_rate = 0.01});
};

Model checkpointed_model(const Setting& c) {
  Model model(strategy_of(c.kind, c.replicas), [] { return graph_with_state(); });
  CompileOptions options = adam_and_accuracy();
  options.optimizer = c.optimizer;
  model.compile(options);
  return model;
}

data::Dataset pictures(int64_t count) {
  std::vector<float> x;
  std::vector<int64_t> y;
  for (int64_t i = 0; i < count; ++i) {
    y.push_back(i % 3);
    for (int64_t f = 0; f < 4; ++f)
      x.push_back(std::sin(static_cast<float>(i * 4 + f)) * 0.5F + (f == i % 3 ? 1.0F : 0.0F));
  }
  return data::from_arrays({data::array_of(x, {count, 1, 2, 2}), data::array_of(y, {count})});
}

// 30 samples, batches of 8: four steps an epoch, the last one partial.
data::Dataset samples() { return pictures(30).shuffle().batch(8); }
data::Dataset flat_samples() { return three_classes(30).shuffle().batch(8); }

FitOptions three_epochs(CheckpointOptions checkpoints = {}) {
  return {.epochs = 3,
          .validation = pictures(9).batch(9),
          .verbose = 0,
          .checkpoints = std::move(checkpoints)};
}

/// All that must be equal: weights with buffers, and what History has but times.
struct Trained {
  std::string sha256;
  std::vector<std::vector<double>> columns;
  int64_t steps = 0;
  bool operator==(const Trained&) const = default;
};

Trained trained_of(Model& model, const History& history) {
  Trained outcome{model.weights_sha256(), {}, history.steps};
  for (const std::string& name : history.columns)
    if (name != "seconds" && name != "images_per_second")
      outcome.columns.push_back(history.column(name));
  return outcome;
}

Trained straight(const Setting& c, FitOptions options = three_epochs()) {
  Model model = checkpointed_model(c);
  const History history = model.fit(samples(), std::move(options));
  return trained_of(model, history);
}

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
      {.optimizer = TorchOptimizerFactory([](std::vector<at::Tensor> parameters) {
         return std::make_unique<torch::optim::AdamW>(std::move(parameters),
                                                      torch::optim::AdamWOptions(0.01));
       })},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    // In the middle of an epoch, at its last step, and after a checkpoint of its end.
    for (const int64_t step : i == 0 ? std::vector<int64_t>{3, 4, 6, 9} : std::vector<int64_t>{7}) {
      const test::TempFolder folder;
      EXPECT_EQ(interrupted(cases[i], cases[i], step, 2, folder.path()), straight(cases[i]));
    }
  }
}

TEST(Checkpoints, AnEpochFromOneToTheNextWhereNothingElseIsSaid) {
  const test::TempFolder folder;
  EXPECT_EQ(interrupted({}, {}, 7, 0, folder.path()), straight({}));
  std::vector<std::string> names;
  for (const auto& path : trainings_in(folder.path())) names.push_back(path.filename());
  EXPECT_THAT(names, ElementsAre("step-000000000004", "step-000000000008", "step-000000000012"));
}

TEST(Checkpoints, GoOnUnderAnotherStrategyWithAsManyReplicas) {
  const std::vector<std::string> kinds = {"mirrored", "one_device", "central_storage"};
  for (const auto& before : kinds)
    for (const auto& after : kinds) {
      const test::TempFolder folder;
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
    const test::TempFolder folder;
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
    const test::TempFolder folder;
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
    const History same =
        third.fit(samples(), three_epochs({.folder = folder.path(), .resume = true}));
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
    const test::TempFolder folder;
    FitOptions options = three_epochs({.folder = folder.path(), .every_steps = 1});
    options.callbacks = cut_after(cut);
    EXPECT_THROW(train(std::move(options)), Error);
    EXPECT_EQ(train(three_epochs({.folder = folder.path(), .every_steps = 1, .resume = true})),
              whole)
        << cut;
  }
}

TEST(Checkpoints, ResumeBeginsWhereThereIsNone) {
  const test::TempFolder folder;
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
    const test::TempFolder folder;
    {
      Model model = checkpointed_model({});
      EXPECT_THROW(model.fit(samples(), options(folder.path(), false, cut)), Error);
    }
    EXPECT_EQ(straight({}, options(folder.path(), true, -1)), whole) << cut;
    // What a callback has ended is not begun again.
    EXPECT_EQ(straight({}, options(folder.path(), true, -1)), whole) << cut;
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
  const test::TempFolder folder;
  FitOptions cut = three_epochs({.folder = folder.path(), .every_steps = 1});
  cut.callbacks = cut_after(6);
  EXPECT_THROW(train(std::move(cut)), Error);
  EXPECT_EQ(train(three_epochs({.folder = folder.path(), .every_steps = 1, .resume = true})),
            train(three_epochs()));
}

// ---- asked to end ----

TEST(Checkpoints, WhoIsAskedToEndSavesBefore) {
  for (const std::string kind : {"mirrored", "one_device"}) {
    const test::TempFolder folder;
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
  const test::TempFolder folder;
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
  Model other = checkpointed_model({});
  const History history =
      other.fit(samples(), three_epochs({.folder = folder.path(), .resume = true}));
  EXPECT_EQ(trained_of(other, history), straight({}));
}

TEST(Checkpoints, TimeThatIsUpAsksForAnEnd) {
  const test::TempFolder folder;
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
  EXPECT_THAT(trainings_in(folder.path()), testing::Not(IsEmpty()));
}

TEST(Checkpoints, BackupAndRestoreLeavesNothingBehind) {
  const test::TempFolder folder;
  const auto options = [&](int64_t cut) {
    FitOptions all = three_epochs();
    all.callbacks = {callbacks::backup_and_restore({.folder = folder.path(), .every_steps = 2})};
    for (const auto& one : cut_after(cut)) all.callbacks.push_back(one);
    return all;
  };
  Model model = checkpointed_model({});
  EXPECT_THROW(model.fit(samples(), options(7)), Error);
  EXPECT_THAT(trainings_in(folder.path()), testing::Not(IsEmpty()));
  EXPECT_EQ(straight({}, options(-1)), straight({}));
  EXPECT_THAT(trainings_in(folder.path()), IsEmpty());
}

// ---- files ----

// Checkpoints of steps 10, 11 and 12.
void train_into(const fs::path& folder, CheckpointRetention retention = {}) {
  Model model = checkpointed_model({});
  model.fit(samples(),
            three_epochs({.folder = folder,
                          .every_steps = 1,
                          .newest_kept = retention.newest,
                          .best_kept = retention.best,
                          .monitor = retention.monitor.empty() ? "val_loss" : retention.monitor}));
}

Trained resumed_in(const fs::path& folder) {
  Model model = checkpointed_model({});
  const History history =
      model.fit(samples(), three_epochs({.folder = folder, .every_steps = 1, .resume = true}));
  return trained_of(model, history);
}

fs::path part_of(const fs::path& checkpoint) { return checkpoint / "part-0-of-1.safetensors"; }

void flip_a_bit(const fs::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-3, std::ios::end);
  const char old = static_cast<char>(file.get());
  file.seekp(-3, std::ios::end);
  file.put(static_cast<char>(old ^ 1));
}

TEST(Checkpoints, OfADamagedOneTheOneBeforeIsUsed) {
  using Damage = void (*)(const fs::path&);
  const std::vector<Damage> damages = {
      [](const fs::path& c) { flip_a_bit(part_of(c)); },
      [](const fs::path& c) { fs::resize_file(part_of(c), fs::file_size(part_of(c)) - 1); },
      [](const fs::path& c) { fs::remove(part_of(c)); },
      [](const fs::path& c) { fs::resize_file(c / "manifest.json", 40); },
  };
  for (size_t i = 0; i < damages.size(); ++i) {
    const test::TempFolder folder;
    train_into(folder.path());
    const auto all = trainings_in(folder.path());
    ASSERT_THAT(all, SizeIs(3));
    damages[i](all.back());
    testing::internal::CaptureStderr();
    EXPECT_EQ(resumed_in(folder.path()), straight({})) << i;
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_THAT(said, AllOf(HasSubstr("step-000000000012"), HasSubstr("the one before it is used")))
        << i;
    EXPECT_TRUE(fs::exists(folder.path() / "damaged-step-000000000012")) << i;
  }
}

TEST(Checkpoints, WithoutAWholeOneItIsAnError) {
  const test::TempFolder folder;
  train_into(folder.path());
  for (const auto& path : trainings_in(folder.path())) flip_a_bit(part_of(path));
  EXPECT_THAT(message_of<DataError>([&] { resumed_in(folder.path()); }),
              AllOf(HasSubstr("none of the 3 checkpoints"), HasSubstr("is whole")));
}

TEST(Checkpoints, WhatVerifyReadsIsAllThatWasWritten) {
  const test::TempFolder folder;
  train_into(folder.path());
  const TrainingCheckpoint checkpoint(trainings_in(folder.path()).back());
  EXPECT_NO_THROW(checkpoint.verify());
  flip_a_bit(part_of(checkpoint.path()));
  EXPECT_THAT(
      message_of<DataError>([&] { checkpoint.verify(); }),
      AllOf(HasSubstr("part-0-of-1.safetensors"), HasSubstr("sha256"), HasSubstr("written")));
}

TEST(Checkpoints, WeightsAreThoseThatSaveWouldWrite) {
  const test::TempFolder folder;
  Model model = checkpointed_model({.replicas = 3});
  model.fit(samples(), three_epochs({.folder = folder.path() / "c"}));
  Model other = checkpointed_model({.kind = "one_device", .replicas = 1});
  other.load(trainings_in(folder.path() / "c").back());
  EXPECT_EQ(other.weights_sha256(), model.weights_sha256());
}

TEST(Checkpoints, TheNewestAndTheBestStay) {
  const test::TempFolder folder;
  train_into(folder.path() / "all", {.newest = 100});
  std::vector<std::pair<double, std::string>> by_loss;
  for (const auto& path : trainings_in(folder.path() / "all")) {
    const auto values = TrainingCheckpoint(path).manifest().values;
    if (values.contains("val_loss")) by_loss.emplace_back(values.at("val_loss"), path.filename());
  }
  ASSERT_THAT(trainings_in(folder.path() / "all"), SizeIs(12));
  train_into(folder.path() / "few", {.newest = 1, .best = 1, .monitor = "train_loss"});
  EXPECT_THAT(trainings_in(folder.path() / "few"), testing::Not(IsEmpty()));
  EXPECT_LE(trainings_in(folder.path() / "few").size(), 2U);
  EXPECT_EQ(trainings_in(folder.path() / "few").back().filename(), "step-000000000012");
}

TEST(Checkpoints, WhatADeadJobWasWritingGoes) {
  const test::TempFolder folder;
  const fs::path left = folder.path() / ".step-000000000003.partial";
  fs::create_directories(left);
  std::ofstream(left / "part-0.json") << "{}";
  train_into(folder.path());
  EXPECT_FALSE(fs::exists(left));
  EXPECT_EQ(resumed_in(folder.path()), straight({}));
}

TEST(Checkpoints, OnAFullDiskTheTrainingGoesOn) {
  const test::TempFolder folder;
  testing::internal::CaptureStderr();
  std::string sha256;
  {
    Model model = checkpointed_model({});
    const test::FullDisk full(1000);
    model.fit(samples(), three_epochs({.folder = folder.path(), .every_steps = 1}));
    sha256 = model.weights_sha256();
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(sha256, straight({}).sha256);
  EXPECT_THAT(said, AllOf(HasSubstr("checkpoint step-000000000001"), HasSubstr("is not written"),
                          HasSubstr("the one before stays")));
  EXPECT_THAT(trainings_in(folder.path()), IsEmpty());
  for (const auto& entry : fs::directory_iterator(folder.path()))
    EXPECT_EQ(entry.path().filename(), "lock");
}

// ---- what does not fit ----

TEST(Checkpoints, OneJobAFolder) {
  const test::TempFolder folder;
  const CheckpointLock other(folder.path());
  EXPECT_THAT(message_of<UsageError>([&] { train_into(folder.path()); }),
              AllOf(HasSubstr("another job writes there"),
                    HasSubstr(fmt::format("process {} on ", getpid()))));
}

TEST(Checkpoints, AnEarlierTrainingsAreNotWrittenOver) {
  const test::TempFolder folder;
  train_into(folder.path());
  EXPECT_THAT(message_of<UsageError>([&] { train_into(folder.path()); }),
              AllOf(HasSubstr("an earlier training has left 3 there"), HasSubstr("resume")));
  EXPECT_THAT(trainings_in(folder.path()), SizeIs(3));
}

TEST(Checkpoints, AnotherModelIsListed) {
  const test::TempFolder folder;
  train_into(folder.path());
  Model model(strategy_of("mirrored", 2), [] {
    const auto input = nn::input({1, 2, 2});
    return nn::Graph(input, nn::linear(3)(nn::relu()(nn::linear(9)(nn::flatten()(input)))));
  });
  model.compile(adam_and_accuracy());
  const std::string words = message_of<DataError>(
      [&] { model.fit(samples(), three_epochs({.folder = folder.path(), .resume = true})); });
  EXPECT_THAT(words, AllOf(HasSubstr("does not fit the model"), HasSubstr("in the file"),
                           HasSubstr("in the model")));
}

TEST(Checkpoints, EachFieldThatDiffersIsNamed) {
  const test::TempFolder folder;
  train_into(folder.path());
  const auto refusal = [&](const Setting& c, const data::Dataset& data, uint64_t seed) {
    Model model = checkpointed_model(c);
    FitOptions options = three_epochs({.folder = folder.path(), .resume = true});
    options.seed = seed;
    return message_of<UsageError>([&] { model.fit(data, std::move(options)); });
  };
  EXPECT_THAT(refusal({}, samples(), 8), HasSubstr("seed: 7 in the checkpoint, 8 here"));
  EXPECT_THAT(refusal({}, pictures(30).shuffle().batch(10), 7),
              AllOf(HasSubstr("global batch: 8 in the checkpoint, 10 here"),
                    HasSubstr("steps an epoch: 4 in the checkpoint, 3 here")));
  EXPECT_THAT(refusal({}, pictures(31).shuffle().batch(8), 7),
              HasSubstr("samples: 30 in the checkpoint, 31 here"));
  EXPECT_THAT(refusal({.optimizer = optim::sgd()}, samples(), 7),
              HasSubstr("optimizer: adam in the checkpoint, sgd here"));
}

TEST(Checkpoints, AreRefusedWhereSomeOfTheStateIsElsewhere) {
  const test::TempFolder folder;
  Strategy strategy({.kind = "mirrored",
                     .replicas = 2,
                     .threads_per_replica = 1,
                     .seed = 7,
                     .compression = {.kind = Compression::Kind::top_k}});
  Model model = small_model(strategy);
  EXPECT_THAT(message_of<UsageError>([&] {
                FitOptions options = three_epochs({.folder = folder.path()});
                options.validation.reset();
                model.fit(flat_samples(), std::move(options));
              }),
              AllOf(HasSubstr("compression"), HasSubstr("keeps back")));
}

TEST(Checkpoints, AFolderThatCannotBeIsSaid) {
  const test::TempFolder folder;
  std::ofstream(folder.path() / "file") << "x";
  EXPECT_THAT(message_of<UsageError>([&] { train_into(folder.path() / "file" / "in"); }),
              HasSubstr("cannot be made"));
  EXPECT_THAT(message_of<UsageError>([&] {
                Model model = checkpointed_model({});
                model.fit(
                    samples(),
                    three_epochs({.folder = folder.path(), .best_kept = 1, .monitor = "val_lost"}));
              }),
              AllOf(HasSubstr("val_lost"), HasSubstr("val_loss")));
}

}  // namespace
}  // namespace tutti
