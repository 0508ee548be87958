// What `tutti train` leaves behind: one job a folder under every strategy, a folder that somebody
// removes, and disks that are full.
#include <fmt/format.h>

#include "tests/jobs/program.h"

namespace tutti::test {
namespace {

const Words kServed = {"--strategy", "parameter_server", "--replicas", "2", "--servers", "1"};
const Words kServedOutOfStep = {"--strategy", "parameter_server", "--replicas", "2", "--servers",
                                "1",          "--staleness",      "2"};
const Words kTogether = {"--strategy", "multi_worker", "--replicas", "2"};
const Words kAlone = {"--strategy", "one_device"};  // without shared memory, which is files too
const Words kThreads = {"--strategy", "mirrored", "--replicas", "2"};

Words training(const Words& strategy, const Words& more) {
  return Words{TUTTI_PROGRAM, "train", "mlp", "--data", kDoodles} +
         words_of("--take 256 --threads 1 --batch-size 64") + strategy + more;
}

// A bash script beside a training, $@, whose first word on an epoch has been seen; $OUT is its
// folder, $LOG has what it prints.
CommandResult beside_a_job(const TempFolder& folder, const std::string& script,
                           const Words& strategy, const std::string& epochs = "1000000") {
  const std::string start =
      "set -m; \"$@\" > $LOG 2>&1 & job=$!; until grep -q 'epoch 1' $LOG; do kill -0 $job || "
      "{ cat $LOG; exit 99; }; sleep 0.05; done; ";
  return run_command(Words{"bash", "-c", start + script, "bash"} +
                         training(strategy, {"--out", folder / "out", "--epochs", epochs, "--json",
                                             folder / "figures.json"}),
                     {"LOG=" + (folder / "log").string(), "OUT=" + (folder / "out").string()},
                     kProgramLimit);
}

// What `change` does to a training's files, while it stands still with more than half of its epochs
// to come, and how that ends, with its log. On a busy machine a short one may be over before it is
// looked at: then with a longer one.
CommandResult changed_on_the_way(const TempFolder& folder, const std::string& change,
                                 const Words& strategy) {
  constexpr int kOver = 98;
  CommandResult job;
  for (const int epochs : {30, 300, 3000}) {
    std::filesystem::remove_all(folder / "out");
    job = beside_a_job(folder,
                       fmt::format("kill -STOP -- -$job; if [ $(grep -c 'epoch ' $LOG) -gt {} ]; "
                                   "then kill -KILL -- -$job; exit {}; fi; {} kill -CONT -- -$job; "
                                   "wait $job; code=$?; cat $LOG; exit $code",
                                   epochs / 2, kOver, change),
                       strategy, std::to_string(epochs));
    if (job.exit_code != kOver) break;
  }
  return job;
}

TEST(TrainOutputs, ASecondJobIsRefusedBeforeItWorks) {
  for (const Words& strategy : {kServed, kServedOutOfStep, kTogether, kThreads}) {
    const TempFolder folder;
    const auto second = beside_a_job(folder,
                                     "\"$@\"; code=$?; echo first $job; kill -KILL -- -$job; exit "
                                     "$code",
                                     strategy);
    EXPECT_EQ(second.exit_code, 2) << second.out << second.err;
    const std::string pid = second.out.substr(second.out.find("first ") + 6);
    EXPECT_THAT(second.err, AllOf(HasSubstr("--out " + (folder / "out").string()),
                                  HasSubstr("another job writes there: process " +
                                            pid.substr(0, pid.find('\n')) + " on ")))
        << second.out;
    EXPECT_THAT(second.out, Not(HasSubstr("epoch"))) << "it has trained";
  }
}

// And of another strategy than the first.
TEST(TrainOutputs, ServersAreRefusedBesideATraining) {
  const TempFolder folder;
  const auto second = beside_a_job(
      folder,
      "${@:1:11} --strategy parameter_server --replicas 2 --servers 1 --out $OUT --epochs 1; "
      "code=$?; kill -KILL -- -$job; exit $code",
      kThreads);
  EXPECT_EQ(second.exit_code, 2) << second.out << second.err;
  EXPECT_THAT(second.err, HasSubstr("another job writes there"));
}

TEST(TrainOutputs, WhatTheChiefCannotWriteBeforeTheFirstStepEndsAllWorkersInItsWords) {
  const TempFolder folder;
  std::filesystem::create_directories(folder / "out/checkpoints/data.json/taken");
  EXPECT_THAT(run_command(training(kTogether, {"--out", folder / "out", "--epochs", "1"}), {},
                          kProgramLimit),
              Exits(1, Err(AllOf(HasSubstr("checkpoints/data.json"),
                                 HasSubstr("fit: when_begun: failed on another worker")))));
}

TEST(TrainOutputs, ARemovedFolderComesAgainAndIsSaid) {
  for (const Words& strategy : {kServed, kTogether, kThreads}) {
    const TempFolder folder;
    const auto job = changed_on_the_way(folder, "rm -r $OUT;", strategy);
    EXPECT_EQ(job.exit_code, 0) << job.out;
    EXPECT_THAT(job.out, AllOf(HasSubstr("--out " + (folder / "out").string()),
                               HasSubstr("somebody has removed it"), HasSubstr("made again")));
    EXPECT_TRUE(std::filesystem::exists(folder / "out/model.safetensors"));
    EXPECT_TRUE(std::filesystem::exists(folder / "out/.lock"));
  }
}

// Another job takes the name of the folder that was removed: its files are its own.
TEST(TrainOutputs, AFolderThatAnotherJobHasTakenSinceIsNotWrittenTo) {
  for (const Words& strategy : {kServed, kThreads}) {
    const TempFolder folder;
    const auto job = changed_on_the_way(
        folder,
        "mkdir -p $OUT.o/checkpoints; exec 9<>$OUT.o/.lock 8<>$OUT.o/checkpoints/lock; "
        "flock 9; flock 8; echo 77 1 elsewhere | tee $OUT.o/.lock > $OUT.o/checkpoints/lock; "
        "echo theirs > $OUT.o/model.safetensors; "
        // In one go, for the job would make its folder again in between: RENAME_EXCHANGE.
        "python3 -c 'import ctypes, sys; old, new = (a.encode() for a in sys.argv[1:]); "
        "sys.exit(ctypes.CDLL(None).renameat2(-100, old, -100, new, 2))' $OUT $OUT.o || "
        "{ kill -KILL -- -$job; exit 99; };",
        strategy);
    EXPECT_NE(job.exit_code, 0) << job.out;
    EXPECT_NE(job.exit_code, 99) << job.out;
    EXPECT_THAT(job.out, HasSubstr("another job writes there: process 1 on elsewhere"));
    EXPECT_EQ(get_bytes(folder / "out/model.safetensors"), "theirs\n");
    EXPECT_FALSE(std::filesystem::exists(folder / "out/history.csv"));
  }
}

// ---- full disks ----

CommandResult run_limited(const std::string& limit, const Words& more) {
  return run_command(Words{"bash", "-c", limit + " exec \"$@\"", "bash"} + training(kAlone, more),
                     {}, kProgramLimit);
}

void expect_all_but_weights(const TempFolder& folder, const std::string& said) {
  EXPECT_THAT(get_bytes(folder / "out/history.csv"), HasSubstr("val_accuracy"));
  EXPECT_THAT(get_bytes(folder / "out/history.svg"), HasSubstr("<svg"));
  const std::string figures = get_bytes(folder / "figures.json");
  ASSERT_FALSE(figures.empty());
  EXPECT_TRUE(json::parse(figures).contains("weights_sha256"));
  EXPECT_THAT(said, AllOf(HasSubstr("history.csv and "), HasSubstr("figures are in "),
                          Not(HasSubstr("saved " + (folder / "out/model.safetensors").string()))));
}

TEST(TrainOutputs, OneThatIsFullLosesNoOther) {
  const TempFolder folder;
  // No file above 40 kB: the weights are larger, and so are checkpoints.
  const auto full = run_limited("ulimit -f 40;", {"--epochs", "1", "--out", folder / "out",
                                                  "--json", folder / "figures.json"});
  EXPECT_EQ(full.exit_code, 1) << full.out << full.err;
  EXPECT_THAT(full.err, AllOf(HasSubstr("model.safetensors"), HasSubstr("File too large")));
  EXPECT_FALSE(std::filesystem::exists(folder / "out/model.safetensors"));
  expect_all_but_weights(folder, full.out);
}

// The state of the optimizer is too large, weights are not.
TEST(TrainOutputs, ALastCheckpointThatCannotBeWrittenIsAFailureOnceAllElseIsSaved) {
  const TempFolder folder;
  EXPECT_THAT(
      run_limited("trap '' XFSZ; ulimit -f 1000;", {"--epochs", "1", "--out", folder / "out"}),
      Exits(1,
            Err(AllOf(HasSubstr("tutti train: "), HasSubstr("the last checkpoint in "),
                      HasSubstr("of step 4, was not written"))),
            Out(HasSubstr("saved " + (folder / "out/model.safetensors").string()))));
}

TEST(TrainOutputs, OneThatCannotBeWrittenLosesNoOther) {
  for (const Words& strategy : {kServed, kTogether}) {
    const TempFolder folder;
    const auto job = changed_on_the_way(folder, "mkdir $OUT/model.safetensors;", strategy);
    EXPECT_EQ(job.exit_code, 1) << job.out;
    EXPECT_THAT(job.out, AllOf(HasSubstr("cannot write"), HasSubstr("Is a directory"),
                               Not(HasSubstr("failed on another worker"))));
    expect_all_but_weights(folder, job.out);
  }
}

TEST(TrainOutputs, AllThatAreLostAreNamed) {
  const TempFolder folder;
  EXPECT_THAT(
      run_limited("ulimit -f 40;",
                  {"--epochs", "1", "--out", folder / "out", "--json", "/dev/full"}),
      Exits(1, Err(AllOf(HasSubstr("3 outputs are not there"), HasSubstr("model.safetensors"),
                         HasSubstr("File too large"), HasSubstr("/dev/full"),
                         HasSubstr("No space left"), HasSubstr("the last checkpoint in ")))));
  EXPECT_THAT(get_bytes(folder / "out/history.csv"), HasSubstr("val_accuracy"));
}

TEST(TrainOutputs, WhatCallbacksCannotWriteCostsThatAlone) {
  for (const Words& strategy : {kAlone, kTogether, kServed}) {
    const TempFolder folder;
    std::filesystem::create_symlink("/dev/full", folder / "weights");
    EXPECT_THAT(run_command(training(strategy, {"--epochs", "2", "--out", folder / "out", "--json",
                                                folder / "figures.json", "--csv-log", "/dev/full",
                                                "--model-checkpoint",
                                                "path=" + (folder / "weights").string()}),
                            {}, Millis{240'000}),
                Exits(1, Err(AllOf(HasSubstr("2 outputs are not there"),
                                   HasSubstr("cannot write /dev/full"),
                                   HasSubstr("cannot write " + (folder / "weights").string()),
                                   HasSubstr("No space left"), HasSubstr("goes on")))));
    EXPECT_THAT(get_bytes(folder / "out/history.csv"), HasSubstr("\n2,"));
    EXPECT_TRUE(std::filesystem::exists(folder / "out/model.safetensors"));
    EXPECT_TRUE(std::filesystem::exists(folder / "figures.json"));
    EXPECT_EQ(std::filesystem::exists(folder / "out/checkpoints/step-000000000008/manifest.json"),
              strategy != kServed);
  }
}

}  // namespace
}  // namespace tutti::test
