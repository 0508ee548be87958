// Asynchronous trainings as a user starts them, recorded with what happens to their processes, and
// replayed: the weights of each worker's run, bit for bit.
#include <filesystem>
#include <fstream>

#include "tutti/base/folder_lock.h"

#include "tests/jobs/parameter_server/served_job.h"
#include "tests/support/run_workers.h"

namespace tutti::test {
namespace {

Words async(const Words& more, const char* staleness = "inf", const char* seed = "5") {
  return train_served({"--staleness", staleness, "--seed", seed, "--take", "6000", "--batch-size",
                       "96", "--epochs", "6"}) +
         more;
}

json recorded(const Words& words, const std::string& order,
              const std::function<void(Job&)>& happens = {}) {
  const TempFolder folder;
  const std::string file = folder / "figures.json";
  Job job(words + Words{"--record-order", order, "--json", file});
  if (happens) happens(job);
  if (job.end() != 0) throw std::runtime_error(last_part(job.log()));
  return figures_in(file);
}

json replayed(const Words& words, const std::string& order) {
  const TempFolder folder;
  const std::string file = folder / "figures.json";
  Job job(words + Words{"--replay-order", order, "--json", file});
  if (job.end() != 0) throw std::runtime_error(last_part(job.log()));
  return figures_in(file);
}

void expect_same(const json& got, const json& expected) {
  EXPECT_EQ(sha_of(got), sha_of(expected));
  for (const char* what : {"updates", "train_loss", "val_loss", "staleness_histogram"})
    EXPECT_EQ(got.at(what), expected.at(what)) << what;
}

struct ReplayedCase {
  const char* name;
  Words words;
  std::function<void(Job&)> happens{};
  const char* staleness = "inf";

  friend void PrintTo(const ReplayedCase& one, std::ostream* out) { *out << one.name; }
};

class Replayed : public testing::TestWithParam<ReplayedCase> {};

TEST_P(Replayed, HasTheBitsOfTheRunThatWasRecorded) {
  const TempFolder folder;
  const std::string order = folder / "order";
  const Words words = async(GetParam().words, GetParam().staleness);
  const json first = recorded(words, order, GetParam().happens);
  EXPECT_FALSE(std::filesystem::exists(order + ".parts"));
  for (int again = 0; again < 2; ++again) expect_same(replayed(words, order), first);
}

void kill_after_a_while(Job& job, const char* who, uint64_t seed) {
  job.wait_for("epoch 1/");
  until_some_moment(seed);
  job.send(who, SIGKILL);
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, Replayed,
    testing::Values(
        ReplayedCase{"plain", {"--servers", "2", "--replicas", "3", "--partition", "min:32K:4"}},
        ReplayedCase{"one_server", {"--servers", "1", "--replicas", "2", "--no-backups"}},
        ReplayedCase{"bounded", {"--servers", "2", "--replicas", "3"}, {}, "2"},
        ReplayedCase{"late_worker",
                     {"--servers", "2", "--replicas", "3"},
                     [](Job& job) {
                       job.send("worker 2", SIGSTOP);
                       job.wait_for("epoch 1/");
                       until_some_moment(2);
                       job.send("worker 2", SIGCONT);
                     }},
        ReplayedCase{"lost_server",
                     {"--servers", "2", "--replicas", "2"},
                     [](Job& job) { kill_after_a_while(job, "server 0", 3); }},
        ReplayedCase{"lost_worker",
                     {"--servers", "2", "--replicas", "3"},
                     [](Job& job) { kill_after_a_while(job, "worker 2", 4); }}),
    [](const auto& info) { return std::string(info.param.name); });

// ---- what is refused before work starts ----

std::string refusal(const Words& words) {
  const auto ended = run_command(words, {}, kProgramLimit);
  EXPECT_EQ(ended.exit_code, 2) << ended.out << ended.err;
  return ended.out + ended.err;
}

TEST(ReplayedOrder, OfAnotherJobOrCutOffIsRefused) {
  const TempFolder folder;
  const std::string order = folder / "order";
  const Words two = {"--servers", "2", "--replicas", "2"};
  recorded(async(two), order);
  const Words on = {"--replay-order", order};
  EXPECT_THAT(refusal(async({"--servers", "1", "--replicas", "2"}) + on),
              HasSubstr("the order is of a job with 2 servers, and this one has 1"));
  EXPECT_THAT(refusal(async({"--servers", "2", "--replicas", "3"}) + on),
              HasSubstr("the order is of a job with 2 workers, and this one has 3"));
  EXPECT_THAT(refusal(async(two + Words{"--optimizer", "sgd"}) + on),
              HasSubstr("the order is of another training than this job's: the optimizer has"));
  // The others may hear of the first one's end before they have looked themselves.
  const auto seed = run_command(async(two, "inf", "6") + on, {}, kProgramLimit);
  EXPECT_NE(seed.exit_code, 0);
  EXPECT_THAT(seed.out + seed.err,
              HasSubstr("the order is of a job that was asked for something else"));
  std::ifstream file(order, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  std::ofstream(order, std::ios::binary) << bytes.substr(0, bytes.size() - 9);
  EXPECT_THAT(refusal(async(two) + on), AllOf(HasSubstr(order), HasSubstr("it is cut off")));
}

TEST(ReplayedOrder, GoesWithWhatItCan) {
  const TempFolder folder;
  const Words served = {"--servers", "1", "--replicas", "2"};
  const Words on = {"--record-order", folder / "order"};
  EXPECT_THAT(refusal(train_served(served + on)), HasSubstr("--record-order with --staleness 0"));
  EXPECT_THAT(refusal(async(served + Words{"--replay-order", folder / "order"}) + on),
              HasSubstr("--record-order and --replay-order"));
  EXPECT_THAT(refusal(async(served + Words{"--snapshots", folder / "s"}) + on),
              HasSubstr("--record-order with --snapshots"));
  EXPECT_THAT(refusal(async(served + Words{"--delay-compensation", "0.1"}) + on),
              HasSubstr("--record-order with --delay-compensation"));
  EXPECT_THAT(refusal(train_mlp({"--strategy", "mirrored", "--replicas", "2"}) + on),
              HasSubstr("--record-order"));
}

// Parts of two jobs would be put together; and what else is there is not the job's.
TEST(ReplayedOrder, IsWrittenByOneJobIntoAFolderOfItsOwn) {
  const TempFolder folder;
  const std::string order = folder / "order", parts = order + ".parts";
  const Words words = async({"--servers", "1", "--replicas", "2", "--record-order", order});
  std::filesystem::create_directories(parts);
  std::ofstream(parts + "/notes.txt") << "mine";
  EXPECT_THAT(refusal(words), AllOf(HasSubstr(parts), HasSubstr("notes.txt")));
  EXPECT_TRUE(std::filesystem::exists(parts + "/notes.txt"));
  EXPECT_FALSE(std::filesystem::exists(parts + "/lock"));
  std::filesystem::remove(parts + "/notes.txt");
  const FolderLock another(parts, "another job");
  EXPECT_THAT(refusal(words), AllOf(HasSubstr("--record-order"), HasSubstr(parts)));
}

// Not what became of its order, which follows from it.
TEST(ReplayedOrder, OfAJobThatFailedHidesNoCause) {
  const TempFolder folder;
  const std::string order = folder / "order";
  Job job(async({"--servers", "1", "--replicas", "2", "--record-order", order}));
  job.wait_for("epoch 1/");
  std::filesystem::remove_all(order + ".parts");
  job.send("worker 0", SIGKILL);
  EXPECT_GT(job.end(), 0);
  EXPECT_THAT(job.log(), HasSubstr("tutti train: rank 0 was killed by SIGKILL"));
  EXPECT_THAT(job.log(), HasSubstr(order + ".parts"));
}

}  // namespace
}  // namespace tutti::test
