// Which checkpoints of a training stay: the newest, the best, and whatever cannot be judged now.
#include <algorithm>
#include <filesystem>
#include <set>

#include "tutti/checkpoint/checkpoint.h"
#include "tutti/checkpoint/retention.h"

#include "tests/support/expect.h"
#include "tests/support/failing_open.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/train/checkpointed.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

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
