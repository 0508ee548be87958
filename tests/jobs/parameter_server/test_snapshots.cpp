// Snapshots of servers while they work, and trainings that go on from them with other numbers of
// servers.
#include <sys/mount.h>

#include <cerrno>
#include <cstring>

#include "tutti/ps/snapshot/snapshot.h"

#include "tests/jobs/parameter_server/served_job.h"

namespace tutti::test {
namespace {

Words synchronous(const Words& more) {
  return train_served(Words{"--replicas", "2", "--epochs", "1000", "--max-steps", "1300"} + more);
}

Words asynchronous(const Words& more) {
  return train_served(
      Words{"--replicas", "2", "--epochs", "3", "--batch-size", "100", "--staleness", "inf"} +
      more);
}

const Words kInform = {"TUTTI_LOG=info"};

json manifest_of_newest(const TempFolder& folder) {
  return json_in(ps::snapshots_in(folder.path()).back() / "manifest.json");
}

// Trains until there is a snapshot of some steps, then kills all: long before the last step.
void train_and_kill(const Words& words, const TempFolder& folder) {
  Job job(words + Words{"--servers", "2", "--snapshots", folder.path().string(), "--snapshot-every",
                        "0.1"},
          kInform);
  const auto has_steps = [&] {
    const auto there = ps::snapshots_in(folder.path());
    return !there.empty() && manifest_of_newest(folder).at("step").get<int64_t>() > 0;
  };
  int count = 0;
  do {
    job.wait_for("snapshot cut-", ++count);
  } while (!has_steps());
  for (const char* who : {"server 0", "server 1"}) job.send(who, SIGKILL);
  kill(job.pid(), SIGKILL);
  job.end();
}

TEST(Snapshots, RestoredSynchronousTrainingHasTheBitsOfAStraightOne) {
  const TempFolder folder;
  train_and_kill(synchronous({}), folder);
  const int64_t step = manifest_of_newest(folder).at("step");
  ASSERT_GT(step, 0);
  ASSERT_LT(step, 1300);
  const std::string straight = sha_of(figures_of(train_mlp(
      {"--strategy", "mirrored", "--replicas", "2", "--epochs", "1000", "--max-steps", "1300"})));
  for (const char* servers : {"1", "2", "3"}) {
    const json all =
        figures_of(synchronous({"--servers", servers, "--restore", folder.path().string()}));
    EXPECT_EQ(sha_of(all), straight) << servers << " servers from step " << step;
    EXPECT_EQ(all.at("updates"), 1300);
  }
}

// Each batch counts once: those that were done are in the snapshot, the others are still to do.
TEST(Snapshots, RestoredAsynchronousTrainingDoesWhatIsLeft) {
  const TempFolder folder;
  train_and_kill(asynchronous({}), folder);
  const int64_t step = manifest_of_newest(folder).at("step");
  ASSERT_GT(step, 0);
  ASSERT_LT(step, 1500);
  const json all =
      figures_of(asynchronous({"--servers", "3", "--restore", folder.path().string()}));
  EXPECT_EQ(all.at("updates"), 3 * 500) << "from " << step;
  EXPECT_GT(all.at("val_accuracy").get<double>(), 0.65);
}

// A folder that cannot be made is what a full disk looks like to the view service; to a server that
// writes: PsSnapshot.AFullDiskLeavesTheOldOne.
TEST(Snapshots, WhatCannotBeWrittenStopsNoTraining) {
  const TempFolder folder;
  const std::string file = folder / "figures.json";
  const std::filesystem::path cuts = folder / "cuts";
  Job job(synchronous({"--servers", "2", "--snapshots", cuts.string(), "--snapshot-every", "0.3",
                       "--json", file}),
          kInform);
  job.wait_for("snapshot cut-000001: step");
  for (const char* name : {"cut-000003.partial", "cut-000004.partial"}) put_bytes(cuts / name, "x");
  job.wait_for("snapshot cut-000004 was given up");
  ASSERT_EQ(job.end(), 0) << last_part(job.log());
  EXPECT_THAT(job.log(), ContainsRegex("snapshot cut-000003 was given up: .*cut-000003.partial: "
                                       ".*; cut-000002 stays"));
  EXPECT_EQ(figures_in(file).at("updates"), 1300);
  for (const auto& entry : std::filesystem::directory_iterator(cuts))
    EXPECT_TRUE(std::filesystem::exists(entry.path() / "manifest.json") ||
                entry.path().filename() == "snapshots.lock")
        << entry.path();
}

// A disk for one snapshot and a half.
class SmallDisk {
 public:
  explicit SmallDisk(const std::filesystem::path& folder) : folder_(folder) {
    std::filesystem::create_directory(folder);
    failure_ = mount("none", folder.c_str(), "tmpfs", 0, "size=2000k") == 0 ? 0 : errno;
  }
  ~SmallDisk() {
    if (failure_ == 0) umount2(folder_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  int failure() const { return failure_; }

 private:
  const std::filesystem::path folder_;
  int failure_ = 0;
};

TEST(Snapshots, AFullDiskStopsNoTrainingAndLeavesTheOldOne) {
  const TempFolder folder;
  const SmallDisk disk(folder / "disk");
  if (disk.failure() != 0) GTEST_SKIP() << "no tmpfs: " << std::strerror(disk.failure());
  const std::string cuts = folder / "disk" / "cuts";
  const std::string file = folder / "figures.json";
  Job job(synchronous(
              {"--servers", "2", "--snapshots", cuts, "--snapshot-every", "0.3", "--json", file}),
          kInform);
  ASSERT_EQ(job.end(), 0) << last_part(job.log());
  EXPECT_THAT(job.log(),
              AllOf(ContainsRegex("snapshot cut-000002 was given up: .*No space left on device"),
                    HasSubstr("; cut-000001 stays")));
  EXPECT_EQ(figures_in(file).at("updates"), 1300);
  const int64_t step = json_in(cuts + "/cut-000001/manifest.json").at("step");
  ASSERT_GT(step, 0);
  const json rest = figures_of(synchronous({"--servers", "1", "--restore", cuts}));
  EXPECT_EQ(rest.at("updates"), 1300) << "from step " << step;
  EXPECT_EQ(sha_of(rest), sha_of(figures_in(file)));
}

// Its backup takes over with the parameters, but not with a cut that is open; the next one comes.
TEST(Snapshots, LossOfAServerGivesUpNoMoreThanACut) {
  const TempFolder folder;
  const std::string file = folder / "figures.json";
  const std::string cuts = folder / "cuts";
  Job job(synchronous(
              {"--servers", "2", "--snapshots", cuts, "--snapshot-every", "0.2", "--json", file}),
          kInform);
  job.wait_for("snapshot cut-000001: step");
  job.send("server 1", SIGKILL);
  ASSERT_EQ(job.end(), 0) << last_part(job.log());
  EXPECT_EQ(figures_in(file).at("updates"), 1300);
  EXPECT_THAT(job.log(), HasSubstr("server 0 took over from server 1 after"));
  // The last one is that of the end.
  EXPECT_EQ(json_in(ps::snapshots_in(cuts).back() / "manifest.json").at("step"), 1300);
}

// It dies in a step that the other one would go on with: the newest snapshot is of a step of both.
TEST(Snapshots, AfterTheLossOfAWorkerAreOfATrainingThatNothingDisturbed) {
  const std::string straight = sha_of(figures_of(train_mlp(
      {"--strategy", "mirrored", "--replicas", "2", "--epochs", "1000", "--max-steps", "1300"})));
  for (const int worker : {0, 1})
    for (const char* const host_sums : {"on", "off"}) {
      const std::string lost = "worker " + std::to_string(worker);
      SCOPED_TRACE(lost + ", host sums " + host_sums);
      const TempFolder folder;
      Job job(synchronous({"--servers", "2", "--host-sums", host_sums, "--snapshots",
                           folder.path().string(), "--snapshot-every", "0.2"}),
              kInform);
      job.wait_for("snapshot cut-000001: step");
      until_some_moment(31 + worker);
      job.send(lost, SIGKILL);
      EXPECT_EQ(job.end(), 128 + SIGKILL) << last_part(job.log());
      EXPECT_THAT(job.log(), ContainsRegex("step [0-9]+, 2 partitions"));
      const json manifest = manifest_of_newest(folder);
      const int64_t step = manifest.at("step");
      EXPECT_GT(step, 0);
      EXPECT_LT(step, 1300);
      for (const json& partition : manifest.at("partitions")) EXPECT_EQ(partition.at("step"), step);
      const json rest =
          figures_of(synchronous({"--servers", "2", "--restore", folder.path().string()}));
      EXPECT_EQ(sha_of(rest), straight) << "from step " << step;
      EXPECT_EQ(rest.at("updates"), 1300);
    }
}

struct Mistake {
  const char* name;
  Words flags;
  const char* why;

  friend void PrintTo(const Mistake& mistake, std::ostream* out) { *out << mistake.name; }
};

class BadSnapshot : public testing::TestWithParam<Mistake> {};

TEST_P(BadSnapshot, IsFoundBeforeTraining) {
  const auto result = run_command(synchronous(GetParam().flags), {}, Millis{60'000});
  EXPECT_EQ(result.exit_code, 2) << last_part(result.out + result.err);
  EXPECT_THAT(result.err, HasSubstr(GetParam().why));
  EXPECT_THAT(result.out, Not(HasSubstr("epoch 1/")));
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, BadSnapshot,
    testing::Values(
        Mistake{"nothing_there", {"--restore", "no/such/folder"}, "got no complete snapshot"},
        Mistake{"no_folder", {"--snapshots", "/proc/nothing"}, "--snapshots /proc/nothing: "},
        Mistake{
            "time_alone", {"--snapshot-every", "3"}, "--snapshot-every 3 under parameter_server: "},
        Mistake{"dropped",
                {"--snapshots", "/tmp", "--drop-slowest", "1"},
                "--snapshots /tmp: with --drop-slowest 1"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Snapshots, AnotherModelOrADamagedFileIsRefused) {
  const TempFolder folder;
  train_and_kill(synchronous({}), folder);
  const std::string path = folder.path().string();
  auto result =
      run_command(synchronous({"--restore", path, "--optimizer", "sgd"}), {}, Millis{60'000});
  EXPECT_EQ(result.exit_code, 2) << last_part(result.err);
  EXPECT_THAT(result.err, HasSubstr("optimizer: got name \"adam\", expected \"sgd\""));
  EXPECT_THAT(result.err, Not(HasSubstr("SIG"))) << "the other worker waited";
  for (const auto& cut : ps::snapshots_in(folder.path())) {
    const auto file = cut / "partition-0.safetensors";
    put_bytes(file, get_bytes(file).substr(0, 1000));
  }
  result = run_command(synchronous({"--restore", path}), {}, Millis{60'000});
  EXPECT_EQ(result.exit_code, 2) << last_part(result.err);
  EXPECT_THAT(result.err, ContainsRegex("partition-0.safetensors: damaged: has 1000 bytes"));
  // Nor does another job write where these are.
  result = run_command(synchronous({"--snapshots", path}), {}, Millis{60'000});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("of another job"));
}

}  // namespace
}  // namespace tutti::test
