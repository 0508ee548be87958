// The folder of a training's checkpoints: whose it is, what somebody does to it meanwhile, and what
// in it does not fit this training.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <optional>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/folder_lock.h"
#include "tutti/checkpoint/checkpoint.h"
#include "tutti/checkpoint/folder.h"

#include "tests/support/message_of.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/train/checkpointed.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;
using test::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// ---- whose it is ----

TEST(CheckpointFolders, OneJobAFolder) {
  const test::TempFolder folder;
  const FolderLock other(folder.path(), "checkpoints in");
  EXPECT_THAT(message_of<UsageError>([&] { train_into(folder.path()); }),
              AllOf(HasSubstr("another job writes there"),
                    HasSubstr(fmt::format("process {} on ", getpid()))));
}

// ---- a folder that somebody removes ----

// Trains, and after step 6 of 12, when nothing is being written, does something to the folder.
std::string train_and(const fs::path& folder, const std::function<void()>& act) {
  Model model = checkpointed_model({});
  FitOptions options = three_epochs({.folder = folder, .every_steps = 2});
  options.callbacks = {callbacks::lambda("acts", {.on_step_end = [&](Training& training) {
                                           if (training.step() != 6) return;
                                           const Deadline deadline(Millis{60'000});
                                           while (!fs::exists(folder / name_of_checkpoint(4)) &&
                                                  !deadline.passed())
                                             std::this_thread::yield();
                                           act();
                                         }})};
  testing::internal::CaptureStderr();
  model.fit(samples(), std::move(options));
  EXPECT_EQ(model.weights_sha256(), straight({}).sha256);
  return testing::internal::GetCapturedStderr();
}

TEST(CheckpointFolders, ARemovedFolderComesAgainWithItsLock) {
  const test::TempFolder folder;
  const fs::path place = folder / "c";
  const std::string said = train_and(place, [&] { fs::remove_all(place); });
  EXPECT_THAT(
      said, AllOf(HasSubstr(place.string()), HasSubstr("removed"), HasSubstr("it is made again")));
  EXPECT_EQ(trainings_in(place).back().filename(), name_of_checkpoint(12));
  EXPECT_GT(FolderLock::number_in(place), 0);
  EXPECT_EQ(resumed_in(place), straight({}));
}

TEST(CheckpointFolders, AFolderThatAnotherJobHasTakenSinceIsNotWrittenTo) {
  const test::TempFolder folder;
  const fs::path place = folder / "c";
  std::optional<FolderLock> other;
  const std::string said = train_and(place, [&] {
    fs::remove_all(place);
    other.emplace(place, "another job");
    fs::create_directory(place / ".step-000000000008.partial");
  });
  EXPECT_THAT(said, AllOf(HasSubstr("another job writes there"), HasSubstr("is not written")));
  EXPECT_EQ(FolderLock::number_in(place), other->number());
  EXPECT_TRUE(fs::exists(place / ".step-000000000008.partial"));  // which is theirs
  EXPECT_THAT(trainings_in(place), IsEmpty());
}

TEST(CheckpointFolders, AnEarlierTrainingsAreNotWrittenOver) {
  const test::TempFolder folder;
  train_into(folder.path());
  EXPECT_THAT(message_of<UsageError>([&] { train_into(folder.path()); }),
              AllOf(HasSubstr("an earlier training has left 3 there"), HasSubstr("resume")));
  EXPECT_THAT(trainings_in(folder.path()), SizeIs(3));
}

/// One of the lives of a job, as `tutti run --restarts` makes them.
class Life {
 public:
  Life(const char* job, bool again) {
    setenv("TUTTI_LIVES", job, 1);
    if (again) setenv("TUTTI_RESTART", "1", 1);
  }
  ~Life() {
    unsetenv("TUTTI_LIVES");
    unsetenv("TUTTI_RESTART");
  }
};

TEST(CheckpointFolders, ALifeGoesOnFromWhatOneOfItsJobHasWrittenAlone) {
  const test::TempFolder folder;
  const Life first("job a", false);
  train_into(folder.path());
  EXPECT_EQ(TrainingCheckpoint(trainings_in(folder.path())[2]).manifest().lives, "job a");
  const auto refused = [&] { train_into(folder.path()); };
  EXPECT_THAT(message_of<UsageError>(refused), HasSubstr("an earlier training"));
  {
    const Life other("job b", true);
    EXPECT_THAT(message_of<UsageError>(refused), HasSubstr("an earlier training"));
    EXPECT_EQ(resumed_in(folder.path()).steps, 12);
    const test::TempFolder unused;
    train_into(unused.path());
  }
  const Life later("job a", true);
  const Trained whole = resumed_in(folder.path());
  replace_in(trainings_in(folder.path())[2] / "manifest.json", "job a", "job b");
  Model model = checkpointed_model({});
  const History history =
      model.fit(samples(), three_epochs({.folder = folder.path(), .every_steps = 1}));
  EXPECT_EQ(trained_of(model, history), whole);
  EXPECT_THAT(damaged_trainings_in(folder.path()), SizeIs(1));
}

// ---- what does not fit ----

TEST(CheckpointFolders, AnotherModelIsListed) {
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

TEST(CheckpointFolders, EachFieldThatDiffersIsNamed) {
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
  EXPECT_THAT(refusal({}, others.shuffle().batch(8), 7),
              HasSubstr("samples from the first to the last, sha256: "));
  EXPECT_THAT(refusal({.optimizer = optim::sgd()}, samples(), 7),
              HasSubstr("optimizer: adam in the checkpoint, sgd here"));
  EXPECT_THAT(refusal({.compression = {.kind = Compression::Kind::one_bit}}, samples(), 7),
              HasSubstr("compression: none in the checkpoint, one_bit"));
}

// pictures(count), but for the label of one sample.
data::Dataset changed_at(int64_t row, int64_t count) {
  const data::Batch all = pictures(count).batch(count).epoch({}).batch(0);
  auto labels = all.columns[1].as<int64_t>();
  std::vector<int64_t> others(labels.begin(), labels.end());
  others[static_cast<size_t>(row)] = (others[static_cast<size_t>(row)] + 1) % 3;
  return data::from_arrays({all.columns[0], data::array_of(others, {count})});
}

// Also where it is not among the first samples of the epoch.
TEST(CheckpointFolders, DataThatHasChangedAnywhereIsRefused) {
  const test::TempFolder folder;
  train_into(folder.path());
  const auto refusal = [&](const data::Dataset& data, const data::Dataset& validation) {
    Model model = checkpointed_model({});
    FitOptions options = three_epochs({.folder = folder.path(), .resume = true});
    options.validation = validation;
    return message_of<UsageError>([&] { model.fit(data, std::move(options)); });
  };
  for (int64_t row = 0; row < 30; ++row)
    EXPECT_THAT(refusal(changed_at(row, 30).shuffle().batch(8), pictures(9).batch(9)),
                HasSubstr("  samples from the first to the last, sha256: "))
        << row;
  EXPECT_THAT(refusal(samples(), changed_at(8, 9).batch(9)),
              AllOf(HasSubstr("  validation data, sha256: "), Not(HasSubstr("samples from the"))));
}

// Those of a version that looked at the first eight samples alone, and said nothing of shares.
TEST(CheckpointFolders, OfTheFirstVersionAreComparedByWhatTheyHave) {
  const test::TempFolder folder;
  train_into(folder.path());
  for (const auto& path : trainings_in(folder.path())) {
    auto manifest = CheckpointManifest::from_json(test::get_bytes(path / "manifest.json"), path);
    manifest.data_sha256 = manifest.validation_sha256 = manifest.given_shares = "";
    test::put_bytes(path / "manifest.json", manifest.to_json());
  }
  const auto go_on = [&](const data::Dataset& data) {
    Model model = checkpointed_model({});
    FitOptions options = three_epochs({.folder = folder.path(), .resume = true});
    options.epochs = 4;
    options.verbose = 1;
    testing::internal::CaptureStdout();
    std::string refused;
    try {
      model.fit(data, options);
    } catch (const UsageError& error) {
      refused = error.what();
    }
    return testing::internal::GetCapturedStdout() + refused;
  };
  const auto others = data::from_arrays({data::array_of(std::vector<float>(120), {30, 1, 2, 2}),
                                         data::array_of(std::vector<int64_t>(30), {30})});
  EXPECT_THAT(go_on(others.shuffle().batch(8)), HasSubstr("  first samples, sha256: "));
  EXPECT_THAT(go_on(samples()), HasSubstr("goes on from step-000000000012: epoch 4, after step 0 "
                                          "of 4; it does not say of which shares it is: "));
}

TEST(CheckpointFolders, AFolderThatCannotBeIsSaid) {
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

TEST(CheckpointFolders, OptionsOutOfRangeAreNamed) {
  const test::TempFolder folder;
  const auto refusal = [&](CheckpointOptions options) {
    options.folder = folder.path();
    Model model = checkpointed_model({});
    return message_of<UsageError>([&] { model.fit(samples(), three_epochs(options)); });
  };
  EXPECT_THAT(refusal({.every_steps = -1}), HasSubstr("every_steps is -1, must be 0 or more"));
  EXPECT_THAT(refusal({.newest_kept = 0}), HasSubstr("newest_kept is 0, must be 1 or more"));
  EXPECT_THAT(refusal({.best_kept = -2}), HasSubstr("best_kept is -2, must be 0 or more"));
  EXPECT_THAT(refusal({.disk_limit = Millis{-1}}),
              HasSubstr("disk_limit is -1, must be 0 or more"));
}

}  // namespace
}  // namespace tutti
