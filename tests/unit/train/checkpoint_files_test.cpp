// Checkpoints as files: what stays, what is damaged, and whatever else is wrong with one or its
// folder is said.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "tutti/base/error.h"
#include "tutti/train/checkpoint.h"

#include "tests/support/full_disk.h"
#include "tests/support/message_of.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/train/checkpointed.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;
using test::message_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

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

void change(const fs::path& path, const std::string& from, const std::string& to) {
  std::string text = test::get_bytes(path);
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  test::put_bytes(path, text.replace(at, from.size(), to));
}

TEST(CheckpointFiles, OfADamagedOneTheOneBeforeIsUsed) {
  using Damage = void (*)(const fs::path&);
  const std::vector<Damage> damages = {
      [](const fs::path& c) { flip_a_bit(part_of(c)); },
      [](const fs::path& c) { fs::resize_file(part_of(c), fs::file_size(part_of(c)) - 1); },
      [](const fs::path& c) { fs::remove(part_of(c)); },
      [](const fs::path& c) { fs::resize_file(c / "manifest.json", 40); },
      [](const fs::path& c) { fs::remove(c / "manifest.json"); },
      [](const fs::path& c) { change(c / "manifest.json", "\"replicas\": 2", "\"replicas\": 3"); },
      [](const fs::path& c) { change(c / "manifest.json", "\"epoch\": 3", "\"epoch\": 2"); },
      [](const fs::path& c) {
        fs::remove_all(c);
        fs::copy(c.parent_path() / "step-000000000011", c);
      },
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

TEST(CheckpointFiles, WithoutAWholeOneItIsAnError) {
  const test::TempFolder folder;
  train_into(folder.path());
  for (const auto& path : trainings_in(folder.path())) flip_a_bit(part_of(path));
  EXPECT_THAT(message_of<DataError>([&] { resumed_in(folder.path()); }),
              AllOf(HasSubstr("none of the 3 checkpoints"), HasSubstr("is whole")));
  // However often it is asked for, it does not begin anew; nor beside them.
  EXPECT_THAT(message_of<DataError>([&] { resumed_in(folder.path()); }),
              HasSubstr("none of the 3 checkpoints"));
  EXPECT_THAT(message_of<UsageError>([&] { train_into(folder.path()); }),
              HasSubstr("an earlier training has left 3 there"));
}

TEST(CheckpointFiles, OfALaterFormatAreLeftAlone) {
  const test::TempFolder folder;
  train_into(folder.path());
  const fs::path newest = trainings_in(folder.path()).back();
  change(newest / "manifest.json", "tutti.checkpoint.1", "tutti.checkpoint.9");
  EXPECT_THAT(message_of<UsageError>([&] { resumed_in(folder.path()); }),
              AllOf(HasSubstr("tutti.checkpoint.9"), HasSubstr("another version")));
  EXPECT_TRUE(fs::exists(newest));
}

// The best by what was measured after an epoch, of those taken there.
TEST(CheckpointFiles, TheBestAreThoseOfTheBestEpochs) {
  const test::TempFolder folder;
  Model model = checkpointed_model({});
  FitOptions options =
      three_epochs({.folder = folder.path(), .every_steps = 3, .newest_kept = 1, .best_kept = 2});
  options.epochs = 6;
  const History history = model.fit(samples(), std::move(options));
  std::vector<std::pair<double, std::string>> epochs;
  for (size_t i = 0; i < 6; ++i)
    epochs.emplace_back(history.column("val_loss")[i],
                        name_of_checkpoint(static_cast<int64_t>(4 * (i + 1))));
  std::ranges::sort(epochs);
  std::set<std::string> expected{epochs[0].second, epochs[1].second, name_of_checkpoint(24)}, got;
  for (const auto& path : trainings_in(folder.path())) got.insert(path.filename());
  EXPECT_EQ(got, expected);
}

TEST(CheckpointFiles, TheHighestAccuracyIsTheBest) {
  const test::TempFolder folder;
  Model model = checkpointed_model({});
  FitOptions options = three_epochs(
      {.folder = folder.path(), .newest_kept = 1, .best_kept = 1, .monitor = "accuracy"});
  options.epochs = 6;
  const auto spoil = [](Training& training) {
    if (training.epoch() == 3) training.set_learning_rate(1e4);
  };
  options.callbacks = {callbacks::lambda("spoils what was learnt", {.on_epoch_end = spoil})};
  const auto accuracy = model.fit(samples(), std::move(options)).column("accuracy");
  const auto best = std::ranges::max_element(accuracy.rbegin(), accuracy.rend());
  const auto epoch = accuracy.rend() - best;
  ASSERT_LT(epoch, 6);
  EXPECT_EQ(trainings_in(folder.path()).front().filename(), name_of_checkpoint(4 * epoch));
}

TEST(CheckpointFiles, ADamagedOldOneStopsNoRetention) {
  const test::TempFolder folder;
  train_into(folder.path());
  fs::resize_file(trainings_in(folder.path()).front() / "manifest.json", 40);
  Model model = checkpointed_model({});
  FitOptions more = three_epochs({.folder = folder.path(),
                                  .every_steps = 1,
                                  .resume = true,
                                  .newest_kept = 1,
                                  .best_kept = 1});
  more.epochs = 5;
  testing::internal::CaptureStderr();
  model.fit(samples(), std::move(more));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::Not(HasSubstr("not written")));
  EXPECT_LE(trainings_in(folder.path()).size(), 2U);
}

TEST(CheckpointFiles, WhatVerifyReadsIsAllThatWasWritten) {
  const test::TempFolder folder;
  train_into(folder.path());
  const TrainingCheckpoint checkpoint(trainings_in(folder.path()).back());
  EXPECT_NO_THROW(checkpoint.verify());
  flip_a_bit(part_of(checkpoint.path()));
  EXPECT_THAT(
      message_of<DataError>([&] { checkpoint.verify(); }),
      AllOf(HasSubstr("part-0-of-1.safetensors"), HasSubstr("sha256"), HasSubstr("written")));
}

TEST(CheckpointFiles, WeightsAreThoseThatSaveWouldWrite) {
  const test::TempFolder folder;
  Model model = checkpointed_model({.replicas = 3});
  model.fit(samples(), three_epochs({.folder = folder.path() / "c"}));
  Model other = checkpointed_model({.kind = "one_device", .replicas = 1});
  other.load(trainings_in(folder.path() / "c").back());
  EXPECT_EQ(other.weights_sha256(), model.weights_sha256());
}

TEST(CheckpointFiles, TheNewestAndTheBestStay) {
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

TEST(CheckpointFiles, WhatADeadJobWasWritingGoes) {
  const test::TempFolder folder;
  const fs::path left = folder.path() / ".step-000000000003.partial";
  fs::create_directories(left);
  std::ofstream(left / "part-0.json") << "{}";
  train_into(folder.path());
  EXPECT_FALSE(fs::exists(left));
  EXPECT_EQ(resumed_in(folder.path()), straight({}));
}

TEST(CheckpointFiles, OnAFullDiskTheTrainingGoesOn) {
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

TEST(CheckpointFiles, OneJobAFolder) {
  const test::TempFolder folder;
  const CheckpointLock other(folder.path());
  EXPECT_THAT(message_of<UsageError>([&] { train_into(folder.path()); }),
              AllOf(HasSubstr("another job writes there"),
                    HasSubstr(fmt::format("process {} on ", getpid()))));
}

TEST(CheckpointFiles, AnEarlierTrainingsAreNotWrittenOver) {
  const test::TempFolder folder;
  train_into(folder.path());
  EXPECT_THAT(message_of<UsageError>([&] { train_into(folder.path()); }),
              AllOf(HasSubstr("an earlier training has left 3 there"), HasSubstr("resume")));
  EXPECT_THAT(trainings_in(folder.path()), SizeIs(3));
}

TEST(CheckpointFiles, AnotherModelIsListed) {
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

TEST(CheckpointFiles, EachFieldThatDiffersIsNamed) {
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
  EXPECT_THAT(refusal({.optimizer = optim::adam({.learning_rate = 0.02})}, samples(), 7),
              AllOf(HasSubstr("options of the optimizer: adam learning_rate 0.01 "),
                    HasSubstr("adam learning_rate 0.02 ")));
  EXPECT_THAT(
      refusal({.optimizer = optim::adam({.learning_rate = 0.01, .beta1 = 0.8})}, samples(), 7),
      HasSubstr("options of the optimizer: "));
  EXPECT_THAT(refusal({.optimizer =
                           optim::Recipe(optim::adam({.learning_rate = 0.01}), {.global_norm = 1})},
                      samples(), 7),
              HasSubstr("global_norm 1 here"));
  const auto others = data::from_arrays({data::array_of(std::vector<float>(120), {30, 1, 2, 2}),
                                         data::array_of(std::vector<int64_t>(30), {30})});
  EXPECT_THAT(refusal({}, others.shuffle().batch(8), 7), HasSubstr("first samples, sha256: "));
  EXPECT_THAT(refusal({.optimizer = optim::sgd()}, samples(), 7),
              HasSubstr("optimizer: adam in the checkpoint, sgd here"));
  EXPECT_THAT(refusal({.compression = {.kind = Compression::Kind::one_bit}}, samples(), 7),
              HasSubstr("compression: none in the checkpoint, one_bit"));
}

TEST(CheckpointFiles, AFolderThatCannotBeIsSaid) {
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

TEST(CheckpointFiles, OptionsOutOfRangeAreNamed) {
  const test::TempFolder folder;
  const auto refusal = [&](CheckpointOptions options) {
    options.folder = folder.path();
    Model model = checkpointed_model({});
    return message_of<UsageError>([&] { model.fit(samples(), three_epochs(options)); });
  };
  EXPECT_THAT(refusal({.every_steps = -1}), HasSubstr("every_steps is -1, must be 0 or more"));
  EXPECT_THAT(refusal({.newest_kept = 0}), HasSubstr("newest_kept is 0, must be 1 or more"));
  EXPECT_THAT(refusal({.best_kept = -2}), HasSubstr("best_kept is -2, must be 0 or more"));
}

TEST(CheckpointFiles, AreWrittenWhereANumberThatIsNoneIsGoneOnFrom) {
  const test::TempFolder folder;
  Model model = checkpointed_model({.optimizer = optim::sgd({.learning_rate = 1e30})});
  FitOptions options = three_epochs({.folder = folder.path(), .every_steps = 1});
  options.on_nan = OnNan::go_on;
  model.fit(samples(), std::move(options));
  std::vector<int64_t> steps;
  for (const auto& path : trainings_in(folder.path()))
    steps.push_back(TrainingCheckpoint(path).manifest().step);
  EXPECT_THAT(steps, ElementsAre(10, 11, 12));
}

}  // namespace
}  // namespace tutti
