// The folder of a training's checkpoints: whose it is, what somebody does to it meanwhile, what in
// it does not fit this training, and which of them stay: the newest, the best, and whatever cannot
// be judged now.
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <set>
#include <thread>

#include "tutti/base/folder_lock.h"
#include "tutti/checkpoint/checkpoint.h"
#include "tutti/checkpoint/folder.h"
#include "tutti/checkpoint/retention.h"

#include "tests/support/expect.h"
#include "tests/support/failing_open.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/train/checkpointed.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

// ---- whose it is ----

TEST(CheckpointFolders, OneJobAFolder) {
  const TempFolder folder;
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
  const TempFolder folder;
  const fs::path place = folder / "c";
  const std::string said = train_and(place, [&] { fs::remove_all(place); });
  EXPECT_THAT(
      said, AllOf(HasSubstr(place.string()), HasSubstr("removed"), HasSubstr("it is made again")));
  EXPECT_EQ(trainings_in(place).back().filename(), name_of_checkpoint(12));
  EXPECT_GT(FolderLock::number_in(place), 0);
  EXPECT_EQ(resumed_in(place), straight({}));
}

TEST(CheckpointFolders, AFolderThatAnotherJobHasTakenSinceIsNotWrittenTo) {
  const TempFolder folder;
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
  const TempFolder folder;
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
  const TempFolder folder;
  const Life first("job a", false);
  train_into(folder.path());
  EXPECT_EQ(TrainingCheckpoint(trainings_in(folder.path())[2]).manifest().lives, "job a");
  const auto refused = [&] { train_into(folder.path()); };
  EXPECT_THAT(message_of<UsageError>(refused), HasSubstr("an earlier training"));
  {
    const Life other("job b", true);
    EXPECT_THAT(message_of<UsageError>(refused), HasSubstr("an earlier training"));
    EXPECT_EQ(resumed_in(folder.path()).steps, 12);
    const TempFolder unused;
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
  const TempFolder folder;
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

TEST(CheckpointFolders, AStepOfOnesOwnIsAnotherTraining) {
  const TempFolder folder;
  train_into(folder.path());
  Model model(strategy_of("mirrored", 2), [] { return graph_with_state(); });
  CompileOptions how = adam_and_accuracy();
  how.train_step = [](const StepData& data) -> StepOutcome {
    const at::Tensor y = data.forward(data.inputs)[0];
    return {.losses = torch::cross_entropy_loss(y, data.targets[0], {}, at::Reduction::None),
            .outputs = {y}};
  };
  model.compile(how);
  const std::string words = message_of<UsageError>(
      [&] { model.fit(samples(), three_epochs({.folder = folder.path(), .resume = true})); });
  EXPECT_THAT(words, HasSubstr("a train_step of one's own here"));
}

TEST(CheckpointFolders, EachFieldThatDiffersIsNamed) {
  const TempFolder folder;
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
  const TempFolder folder;
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
  const TempFolder folder;
  train_into(folder.path());
  for (const auto& path : trainings_in(folder.path())) {
    auto manifest = CheckpointManifest::from_json(get_bytes(path / "manifest.json"), path);
    manifest.data_sha256 = manifest.validation_sha256 = manifest.given_shares = "";
    put_bytes(path / "manifest.json", manifest.to_json());
  }
  const auto go_on = [&](const data::Dataset& data) {
    Model model = checkpointed_model({});
    FitOptions options = three_epochs({.folder = folder.path(), .resume = true});
    options.epochs = 4;
    options.verbose = 1;
    testing::internal::CaptureStdout();
    const std::string refused = refusal_of<UsageError>([&] { model.fit(data, options); });
    return testing::internal::GetCapturedStdout() + refused;
  };
  const auto others = data::from_arrays({data::array_of(std::vector<float>(120), {30, 1, 2, 2}),
                                         data::array_of(std::vector<int64_t>(30), {30})});
  EXPECT_THAT(go_on(others.shuffle().batch(8)), HasSubstr("  first samples, sha256: "));
  EXPECT_THAT(go_on(samples()), HasSubstr("goes on from step-000000000012: epoch 4, after step 0 "
                                          "of 4; it does not say of which shares it is: "));
}

TEST(CheckpointFolders, AFolderThatCannotBeIsSaid) {
  const TempFolder folder;
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
  const TempFolder folder;
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

// ---- which of them stay ----

// It may be the best one.
TEST(CheckpointFiles, OneWhoseValueCannotBeReadJustNowStays) {
  const TempFolder folder;
  train_into(folder.path(), {.newest = 100});
  const CheckpointRetention few{
      .newest = 1, .best = 1, .monitor = "val_loss", .higher_is_better = true};
  for (const int error : {EIO, ESTALE, EMFILE, EACCES}) {
    const FailingOpen failing(name_of_checkpoint(4) + "/manifest.json", error);
    EXPECT_THAT(message_of<Error>([&] { remove_old_checkpoints(folder.path(), few); }),
                AllOf(HasSubstr(name_of_checkpoint(4)), HasSubstr(errno_words(error))));
    EXPECT_GT(failing.failed(), 0);
    EXPECT_THAT(trainings_in(folder.path()), SizeIs(12));
  }
  remove_old_checkpoints(folder.path(), few);
  EXPECT_THAT(trainings_in(folder.path()),
              ElementsAre(folder / name_of_checkpoint(4), folder / name_of_checkpoint(12)));
}

TEST(CheckpointFiles, ThatOldOnesStayForNowIsSaid) {
  const TempFolder folder;
  const FailingOpen once("manifest.json", EIO, 1);
  testing::internal::CaptureStderr();
  train_into(folder.path(), {.newest = 1, .best = 1});
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("old checkpoints in " + folder.path().string() + " stay"),
                    HasSubstr("manifest.json"), HasSubstr(errno_words(EIO))));
  EXPECT_EQ(once.failed(), 1);
  EXPECT_LE(trainings_in(folder.path()).size(), 2U);  // the next one's turn
}

// The best by what was measured after an epoch, of those taken there.
TEST(CheckpointFiles, TheBestAreThoseOfTheBestEpochs) {
  const TempFolder folder;
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
  const TempFolder folder;
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
  const TempFolder folder;
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
  EXPECT_THAT(testing::internal::GetCapturedStderr(), Not(HasSubstr("not written")));
  EXPECT_LE(trainings_in(folder.path()).size(), 2U);
}

TEST(CheckpointFiles, TheNewestAndTheBestStay) {
  const TempFolder folder;
  train_into(folder.path() / "all", {.newest = 100});
  std::vector<std::pair<double, std::string>> by_loss;
  for (const auto& path : trainings_in(folder.path() / "all")) {
    const auto values = TrainingCheckpoint(path).manifest().values;
    if (values.contains("val_loss")) by_loss.emplace_back(values.at("val_loss"), path.filename());
  }
  ASSERT_THAT(trainings_in(folder.path() / "all"), SizeIs(12));
  train_into(folder.path() / "few", {.newest = 1, .best = 1, .monitor = "train_loss"});
  EXPECT_THAT(trainings_in(folder.path() / "few"), Not(IsEmpty()));
  EXPECT_LE(trainings_in(folder.path() / "few").size(), 2U);
  EXPECT_EQ(trainings_in(folder.path() / "few").back().filename(), "step-000000000012");
}

}  // namespace
}  // namespace tutti
