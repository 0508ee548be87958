// Checkpoints of several workers, whose disks and cores are not equally fast: whatever holds one of
// them, training goes on where it would go on without checkpoints, and ends with the same weights.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/event.h"
#include "tutti/base/stop.h"
#include "tutti/checkpoint/checkpoint.h"
#include "tutti/checkpoint/folder.h"
#include "tutti/cluster/join/exit_code.h"
#include "tutti/cluster/join/join.h"
#include "tutti/cluster/launch/launcher.h"
#include "tutti/cluster/launch/restarts.h"
#include "tutti/train/checkpointing/loop_checkpoint.h"
#include "tutti/train/model/model.h"

#include "tests/ranks/train/slow_disk.h"
#include "tests/support/run_workers.h"
#include "tests/support/temp_folder.h"

namespace tutti {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr Millis kOperation{8'000};  // the limit of a training's operations

// Twelve steps.
data::Dataset waves() {
  std::vector<float> x;
  std::vector<int64_t> y;
  for (int64_t i = 0; i < 120; ++i) {
    y.push_back(i % 3);
    for (int64_t k = 0; k < 16; ++k) x.push_back(std::sin(static_cast<float>(i * 16 + k)));
  }
  return data::from_arrays({data::array_of(x, {120, 16}), data::array_of(y, {120})}).batch(10);
}

/// Two workers. `in_step` is called in each with the number of the step, from 1, in its forward.
struct CheckpointedTraining {
  CheckpointOptions checkpoints;
  std::function<void(int)> in_step = [](int) {};
  int64_t hidden = 8;
};

Model train_checkpointed(CheckpointedTraining training) {
  const Strategy strategy({.kind = "multi_worker",
                           .replicas = 2,
                           .threads_per_replica = 1,
                           .time_limit = kOperation,
                           .seed = 11});
  Model model(strategy, [hidden = training.hidden] {
    return torch::nn::Sequential(torch::nn::Linear(16, hidden), torch::nn::ReLU(),
                                 torch::nn::Linear(hidden, 3));
  });
  int step = 0;
  const Loss loss("steps", [&](const at::Tensor& y, const at::Tensor& labels) {
    training.in_step(++step);
    return torch::cross_entropy_loss(y, labels, {}, at::Reduction::None);
  });
  model.compile({.optimizer = optim::adam(), .loss = loss});
  model.fit(waves(), {.epochs = 1, .verbose = 2, .checkpoints = std::move(training.checkpoints)});
  return model;
}

std::vector<std::string> names_in(const test::TempFolder& folder) {
  std::vector<std::string> names;
  for (const auto& path : trainings_in(folder.path())) {
    EXPECT_NO_THROW(TrainingCheckpoint(path).verify());
    names.push_back(path.filename());
  }
  return names;
}

RANK_PROGRAM(train_without_checkpoints) {
  rank.mark("weights " + train_checkpointed({}).weights_sha256());
}

std::vector<std::string> weights_without_checkpoints() {
  const auto out = test::run_workers(2, "train_without_checkpoints");
  EXPECT_EQ(out.exit_code, 0) << out.log;
  return test::lines_after(out.log, "weights ");
}

// ---- disks ----

// Worker 1's, for longer than any operation of the training may take.
RANK_PROGRAM(train_beside_a_dead_disk) {
  if (rank.rank == 1) test::hold_disk();
  Model model = train_checkpointed({.checkpoints = {.folder = rank.arguments[0],
                                                    .every_steps = 3,
                                                    .disk_limit = kOperation + kOperation / 2}});
  rank.mark("weights " + model.weights_sha256());
}

TEST(CheckpointsOfWorkers, ADeadDiskCostsCheckpointsAndNotTheTraining) {
  const test::TempFolder folder;
  const auto out = test::run_workers(2, "train_beside_a_dead_disk", {folder.path()});
  ASSERT_EQ(out.exit_code, 0) << out.log;
  EXPECT_EQ(test::lines_after(out.log, "weights "), weights_without_checkpoints());
  EXPECT_THAT(out.log,
              AllOf(HasSubstr("the training waits for the checkpoint of step 3, on worker 1"),
                    HasSubstr("there will be no checkpoint of step 6 in "),
                    HasSubstr("there will be no checkpoint of step 12 in "),
                    HasSubstr("worker 1 is still writing that of step 3, begun "),
                    HasSubstr("the last checkpoint in ")));
  EXPECT_THAT(names_in(folder), IsEmpty());
}

RANK_PROGRAM(train_beside_a_failing_disk) {
  const bool own = rank.rank == 1;
  const auto in_step = [own](int step) {
    if (own && step == 2) test::fail_disk(ENOSPC);
    if (own && step == 10) test::release_disk();  // what of step 6 was being written has ended
  };
  Model model = train_checkpointed(
      {.checkpoints = {.folder = rank.arguments[0], .every_steps = 3}, .in_step = in_step});
  rank.mark("weights " + model.weights_sha256());
}

// The chief is told, and waits no longer for the part that will not come.
TEST(CheckpointsOfWorkers, ADiskThatFailsOneWorkerIsNotWaitedFor) {
  const test::TempFolder folder;
  const auto out = test::run_workers(2, "train_beside_a_failing_disk", {folder.path()});
  ASSERT_EQ(out.exit_code, 0) << out.log;
  EXPECT_EQ(test::lines_after(out.log, "weights "), weights_without_checkpoints());
  EXPECT_THAT(out.log, AllOf(HasSubstr("worker 1 could not write its part"),
                             HasSubstr("No space left on device")));
  const auto names = names_in(folder);
  EXPECT_THAT(names, AllOf(Not(Contains("step-000000000003")), Not(Contains("step-000000000006")),
                           Contains("step-000000000012")));
}

// Worker 1 dies while its part is being written.
RANK_PROGRAM(die_beside_a_dead_disk) {
  const bool own = rank.rank == 1;
  if (own) test::hold_disk();
  const auto in_step = [own](int step) {
    if (own && step == 5) std::raise(SIGKILL);
  };
  train_checkpointed(
      {.checkpoints = {.folder = rank.arguments[0], .every_steps = 3}, .in_step = in_step});
}

TEST(CheckpointsOfWorkers, AfterAFailureThePartOfTheDeadIsNotWaitedFor) {
  const test::TempFolder folder;
  const auto out = test::run_workers(2, "die_beside_a_dead_disk", {folder.path()}, {}, false);
  EXPECT_THAT(out.log, AllOf(HasSubstr("rank 0 exited with code 1"),
                             HasSubstr("checkpoint step-000000000003"),
                             HasSubstr("the training has ended, and the part of worker 1 had not "
                                       "come; the one before stays")));
  EXPECT_THAT(folder.names(), Not(Contains(HasSubstr("step-"))));
}

// Somebody removes the part of worker 1, which has written it, before the chief has written its
// own.
RANK_PROGRAM(train_without_a_part) {
  const bool own = rank.rank == 0;
  const std::filesystem::path folder = rank.arguments[0];
  const auto in_step = [&](int step) {
    if (own && step == 2) test::hold_disk();
    if (!own || step != 5) return;
    const auto part = folder / ".step-000000000003.partial/part-1.json";
    for (const Deadline deadline(kOperation); !std::filesystem::remove(part);) {
      if (deadline.passed()) throw Error("it has not come");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    test::release_disk();
  };
  Model model =
      train_checkpointed({.checkpoints = {.folder = folder, .every_steps = 3}, .in_step = in_step});
  rank.mark("weights " + model.weights_sha256());
}

TEST(CheckpointsOfWorkers, APartThatSomebodyRemovedIsNotWaitedFor) {
  const test::TempFolder folder;
  const auto out = test::run_workers(2, "train_without_a_part", {folder.path()});
  ASSERT_EQ(out.exit_code, 0) << out.log;
  EXPECT_EQ(test::lines_after(out.log, "weights "), weights_without_checkpoints());
  EXPECT_THAT(out.log, HasSubstr("the part of worker 1 is not there any more"));
  EXPECT_THAT(names_in(folder),
              AllOf(Not(Contains("step-000000000003")), Contains("step-000000000012")));
}

// What nobody catches is told to the launcher, with its class.
RANK_PROGRAM(train_into_no_folder) {
  const auto uncaught = [&]() noexcept {
    train_checkpointed({.checkpoints = {.folder = rank.arguments[0], .every_steps = 3}});
  };
  uncaught();
}

// A file is in its place: worker 1, which only hears of it, is no cause.
TEST(CheckpointsOfWorkers, WhoCouldNotTakeTheFolderIsTheCause) {
  const test::TempFolder folder;
  test::put_bytes(folder / "file", "of somebody");
  const auto out = test::run_workers(2, "train_into_no_folder", {folder / "file/in"});
  EXPECT_THAT(out.log, AllOf(HasSubstr("the folder cannot be made"), HasSubstr("root worker 0\n")));
}

// Each worker's first read takes longer than any operation of the training may.
RANK_PROGRAM(go_on_beside_slow_reads) {
  if (rank.arguments[1] == "slow")
    test::slow_read(rank.rank == 0 ? ".safetensors" : "manifest.json", kOperation + kOperation / 4);
  Model model = train_checkpointed(
      {.checkpoints = {.folder = rank.arguments[0], .every_steps = 3, .resume = true}});
  rank.mark("weights " + model.weights_sha256());
}

TEST(CheckpointsOfWorkers, SlowReadsHoldUpAndEndNoTraining) {
  const test::TempFolder folder;
  const auto first = test::run_workers(2, "go_on_beside_slow_reads", {folder.path(), "fast"});
  ASSERT_EQ(first.exit_code, 0) << first.log;
  const auto out = test::run_workers(2, "go_on_beside_slow_reads", {folder.path(), "slow"});
  ASSERT_EQ(out.exit_code, 0) << out.log;
  EXPECT_THAT(out.log,
              AllOf(HasSubstr("the training waits for looking for a checkpoint, on worker 0"),
                    HasSubstr("the training waits for reading step-000000000012, on worker 1")));
  EXPECT_EQ(test::lines_after(out.log, "weights "), weights_without_checkpoints());
}

// ---- cores ----

// This worker's threads to a core of their own, the next one for each worker; where there are fewer
// they share them.
void stay_on_one_core(int worker) {
  cpu_set_t all, one;
  CPU_ZERO(&one);
  if (sched_getaffinity(0, sizeof all, &all) != 0) throw Error("no cores");
  int left = worker % CPU_COUNT(&all);
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &all) && left-- == 0) CPU_SET(core, &one);
  if (sched_setaffinity(0, sizeof one, &one) != 0) throw Error("no core");
}

RANK_PROGRAM(train_beside_a_busy_loop) {
  stay_on_one_core(rank.rank);
  std::atomic<bool> ends = false;
  std::thread busy([&ends, worker = rank.rank] {
    while (worker == 1 && !ends) {
    }
  });
  Model model = train_checkpointed({.checkpoints = {.folder = rank.arguments[0], .every_steps = 3},
                                    .hidden = 400'000});  // a checkpoint of 96 MB
  ends = true;
  busy.join();
  rank.mark("weights " + model.weights_sha256());
}

TEST(CheckpointsOfWorkers, ABusyLoopBesideAWorkerHoldsNobodyUp) {
  const test::TempFolder folder;
  const auto out = test::run_workers(2, "train_beside_a_busy_loop", {folder.path()});
  ASSERT_EQ(out.exit_code, 0) << out.log;
  EXPECT_THAT(names_in(folder),
              ElementsAre("step-000000000006", "step-000000000009", "step-000000000012"));
}

// ---- signals ----

// Asks this process to end after a step that all have agreed on, before what is saved after it.
class AsksAfter final : public Sink {
 public:
  explicit AsksAfter(int64_t step) : step_(step) {}
  void on_event(const Event& event) noexcept override {
    if (event.name == "train.step" && std::get<int64_t>(event.find("step")->value) + 1 == step_)
      std::raise(SIGTERM);
  }

 private:
  const int64_t step_;
};

// Worker 1's disk holds the checkpoint of step 3 while that of step 6 is due, until step 7.
RANK_PROGRAM(one_is_asked_while_it_waits) {
  install_stop_handler();
  const bool own = rank.rank == 1;
  if (own) {
    test::hold_disk();
    add_sink(std::make_shared<AsksAfter>(6));
  }
  const auto in_step = [own](int step) {
    if (own && step == 7) test::release_disk();
  };
  try {
    train_checkpointed({.checkpoints = {.folder = rank.arguments[0],
                                        .every_steps = 3,
                                        .grace = kOperation * 3 / 4},
                        .in_step = in_step});
  } catch (const Interrupted& interrupted) {
    rank.mark(fmt::format("ended by {}", interrupted.signal()));
  }
}

TEST(CheckpointsOfWorkers, WhoIsAskedToEndWhileAllWaitForADiskSavesWithTheOthers) {
  const test::TempFolder folder;
  const auto out = test::run_workers(2, "one_is_asked_while_it_waits", {folder.path()});
  EXPECT_THAT(test::lines_after(out.log, fmt::format("ended by {}", SIGTERM)), SizeIs(2))
      << out.log;
  EXPECT_THAT(out.log, AllOf(HasSubstr("saved step-000000000007"), Not(HasSubstr("not written"))));
  EXPECT_THAT(names_in(folder), ElementsAre("step-000000000003", "step-000000000007"));
}

// The last save of a loop gives way to what is saved after the next step, which never comes.
RANK_PROGRAM(loop_is_asked_in_its_last_save) {
  torch::nn::Linear model(2, 2);
  Checkpoint checkpoint({.folder = rank.arguments[0], .every_steps = 1});
  checkpoint.add("model", *model);
  checkpoint.restore();  // the folder is taken
  test::hold_disk();
  checkpoint.save(1);
  std::raise(SIGTERM);
  checkpoint.save(2);
  rank.mark("saves came back");
  test::release_disk();
  rank.mark(fmt::format("lost: \"{}\"", checkpoint.end()));
}

TEST(CheckpointsOfWorkers, TheEndOfALoopSavesWhatGaveWay) {
  const test::TempFolder folder;
  const auto out = test::run_workers(1, "loop_is_asked_in_its_last_save", {folder.path()});
  EXPECT_THAT(out.log, AllOf(HasSubstr("saves came back"), HasSubstr("lost: \"\""))) << out.log;
  EXPECT_THAT(names_in(folder), ElementsAre("step-000000000001", "step-000000000002"));
}

// Arguments: folder, grace in ms. Both stay in step 5 until the launcher, which worker 0 asks to
// end, has told them.
RANK_PROGRAM(end_in_step_five) {
  install_stop_handler();
  const auto in_step = [&rank](int step) {
    if (step != 5) return;
    if (rank.rank == 0) kill(getppid(), SIGTERM);
    for (const Deadline deadline(kOperation); stop_requested() == 0 && !deadline.passed();)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  train_checkpointed({.checkpoints = {.folder = rank.arguments[0],
                                      .every_steps = 100,
                                      .grace = Millis(std::stoll(rank.arguments[1]))},
                      .in_step = in_step});
}

// By itself this launcher kills as soon as it has sent SIGTERM.
RANK_PROGRAM(launch_without_grace) {
  const LaunchResult result = launch({.num_workers = 2,
                                      .command = {"/proc/self/exe"},
                                      .environment = {"TUTTI_TEST_PROGRAM=end_in_step_five"},
                                      .signal_grace = Millis{0}});
  std::_Exit(result.exit_code);
}

TEST(CheckpointsOfWorkers, TheLauncherWaitsForWhoHasOneToWrite) {
  for (const char* grace : {"30000", "2592000000"}) {  // half a minute, a month
    const test::TempFolder folder;
    const auto out =
        test::run_ranks(1, "launch_without_grace", {.arguments = {folder.path(), grace}}).at(0);
    EXPECT_EQ(out.exit_code, 128 + SIGTERM) << out.log;
    EXPECT_THAT(names_in(folder), ElementsAre("step-000000000005")) << out.log;
  }
}

// ---- jobs that are started again ----

/// arguments: program, folder.
RANK_PROGRAM(launch_trainings_again) {
  const LaunchResult result = launch_with_restarts(
      {.num_workers = 2,
       .command = {"/proc/self/exe"},
       .environment = {"TUTTI_TEST_PROGRAM=" + rank.arguments[0],
                       "TUTTI_TEST_ARGUMENTS=" + rank.arguments[1]}},
      3, [](const std::string& words) { std::fprintf(stderr, "%s\n", words.c_str()); });
  std::_Exit(result.exit_code);
}

test::RankOutcome started_again_as(const std::string& program, const std::string& folder) {
  return test::run_ranks(1, "launch_trainings_again", {.arguments = {program, folder}}).at(0);
}

void train_or_end(const test::Rank& rank) {
  try {
    train_checkpointed({.checkpoints = {.folder = rank.arguments[0]}});
  } catch (const std::exception& error) {
    std::_Exit(report_ending("error", error));
  }
  rank.mark("has trained");
}

RANK_PROGRAM(train_once) { train_or_end(rank); }

RANK_PROGRAM(die_before_training) {
  if (rank.rank == 1 && !started_again()) std::raise(SIGKILL);
  train_or_end(rank);
}

TEST(CheckpointsOfWorkers, AJobThatIsStartedAgainDoesNotGoOnFromAnotherOnesTraining) {
  const test::TempFolder folder;
  const auto fresh = started_again_as("die_before_training", folder.path());
  EXPECT_EQ(fresh.exit_code, 0) << fresh.log;
  EXPECT_THAT(fresh.log, HasSubstr("the whole job is started again (1 of 3)"));
  const auto names = names_in(folder);
  EXPECT_THAT(names, Not(IsEmpty()));

  for (const char* program : {"train_once", "die_before_training"}) {
    const auto later = started_again_as(program, folder.path());
    EXPECT_EQ(later.exit_code, 2) << later.log;
    EXPECT_THAT(later.log, AllOf(HasSubstr("an earlier training has left"), HasSubstr("resume"),
                                 Not(HasSubstr("has trained"))));
    EXPECT_EQ(names_in(folder), names);
  }
}

// The first life is killed in step 5 of the first training, the second one in that of the second.
RANK_PROGRAM(train_twice) {
  const char* lives = std::getenv("TUTTI_RESTART");
  const int life = lives == nullptr ? 0 : std::stoi(lives);
  for (int number = 0; number < 2; ++number) {
    const auto in_step = [&](int step) {
      if (rank.rank == 1 && step == 5 && life == number) std::raise(SIGKILL);
    };
    const std::string folder = fmt::format("{}/{}", rank.arguments[0], number);
    train_checkpointed({.checkpoints = {.folder = folder, .every_steps = 100}, .in_step = in_step});
  }
  rank.mark("has trained twice");
}

TEST(CheckpointsOfWorkers, TheSameStepOfTwoTrainingsIsNotOneThatFailsTwice) {
  const test::TempFolder folder;
  const auto out = started_again_as("train_twice", folder.path());
  EXPECT_EQ(out.exit_code, 0) << out.log;
  EXPECT_THAT(out.log, AllOf(HasSubstr("that was in step 5; the whole job"),
                             HasSubstr("that was in step 5 of training 2; the whole job"),
                             HasSubstr("(2 of 3)"), HasSubstr("[1] has trained twice")));
}

}  // namespace
}  // namespace tutti
