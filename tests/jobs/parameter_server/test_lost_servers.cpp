// Servers that die or fall silent in mid-training, and one that comes to replace them.
#include "tests/jobs/parameter_server/served_job.h"
#include "tests/support/run_workers.h"

namespace tutti::test {
namespace {

// Weights of so many steps of two replicas, when nothing happens.
std::string undisturbed(const std::string& steps) {
  return sha_of(figures_of(train_mlp(
      {"--strategy", "mirrored", "--replicas", "2", "--epochs", "1000", "--max-steps", steps})));
}

struct ServerLoss {
  const char* name;
  const char* server;
  uint64_t seed;

  friend void PrintTo(const ServerLoss& loss, std::ostream* out) { *out << loss.name; }
};

class LostServer : public testing::TestWithParam<ServerLoss> {};

TEST_P(LostServer, ChangesNoBitOfSynchronousTraining) {
  const ServerLoss& loss = GetParam();
  const TempFolder folder;
  const std::string file = folder / "figures.json";
  Job job(train_served({"--servers", "2", "--replicas", "2", "--epochs", "1000", "--max-steps",
                        "900", "--json", file}));
  job.wait_for("epoch 1/");
  until_some_moment(loss.seed);
  job.send(loss.server, SIGKILL);
  ASSERT_EQ(job.end(), 0) << last_part(job.log());
  const std::string other = loss.server == std::string("server 0") ? "server 1" : "server 0";
  for (const std::string worker : {"0", "1"})
    EXPECT_THAT(job.log(), ContainsRegex("\\[" + worker + "\\] .*" + other + " took over from " +
                                         loss.server + " after 0?[0-9]+\\.[0-9]+ s"));
  EXPECT_THAT(job.log(),
              ContainsRegex(std::string(loss.server) + " \\(host .*\\) .*(closed|reset)"));
  const json all = figures_in(file);
  EXPECT_EQ(all.at("updates"), 900);
  EXPECT_EQ(sha_of(all), undisturbed("900"));
}

INSTANTIATE_TEST_SUITE_P(Jobs, LostServer,
                         testing::Values(ServerLoss{"first", "server 0", 1},
                                         ServerLoss{"second", "server 1", 2}),
                         [](const auto& info) { return std::string(info.param.name); });

// Partition 0, whose server is lost, also has the cursor of the batches.
TEST(LostServers, AsynchronousTrainingLosesNoUpdateAndRepeatsNone) {
  const TempFolder folder;
  const std::string file = folder / "figures.json";
  Job job(train_served({"--servers", "2", "--replicas", "2", "--epochs", "4", "--batch-size", "100",
                        "--staleness", "inf", "--json", file}));
  job.wait_for("epoch 1/");
  until_some_moment(3);
  job.send("server 0", SIGKILL);
  ASSERT_EQ(job.end(), 0) << last_part(job.log());
  EXPECT_EQ(job.count("server 1 took over from server 0 after"), 2) << job.log();
  EXPECT_THAT(job.log(), Not(HasSubstr("were trained again")));
  const json all = figures_in(file);
  EXPECT_EQ(all.at("updates"), 4 * 500);
  EXPECT_GT(all.at("val_accuracy").get<double>(), 0.7);
}

// A server that wakes after it was replaced finds itself shut out.
TEST(LostServers, SilentOneIsReplacedAfterTheLimit) {
  const TempFolder folder;
  const std::string file = folder / "figures.json";
  Job job(train_served({"--servers", "2", "--replicas", "2", "--epochs", "1000", "--max-steps",
                        "900", "--time-limit", "6", "--json", file}));
  job.wait_for("epoch 1/");
  until_some_moment(4);
  job.send("server 0", SIGSTOP);
  job.wait_for("server 1 took over from server 0 after");
  job.send("server 0", SIGCONT);
  ASSERT_EQ(job.end(), 0) << last_part(job.log());
  EXPECT_THAT(job.log(), ContainsRegex("server 0 \\(host .*\\) was silent for 3000 ms"));
  EXPECT_THAT(job.log(), ContainsRegex("tutti ps: the view service"));
  const json all = figures_in(file);
  EXPECT_EQ(all.at("updates"), 900);
  EXPECT_EQ(sha_of(all), undisturbed("900"));
}

class WithoutBackups : public testing::TestWithParam<const char*> {};

TEST_P(WithoutBackups, LossOfAServerEndsTheJobWithItsName) {
  Job job(train_served({"--servers", "2", "--replicas", "2", "--epochs", "1000", "--no-backups",
                        "--staleness", GetParam()}));
  job.wait_for("epoch 1/");
  until_some_moment(5);
  job.send("server 1", SIGKILL);
  EXPECT_EQ(job.end(), 1) << last_part(job.log());
  const std::string why =
      "server 1 \\(host .*\\) .* and nobody else had the parameters of partition 1";
  // A worker may hear of it from the other one, in step with whom it waits.
  for (const std::string& error : lines_after(job.log(), "tutti train: rank "))
    EXPECT_THAT(error, ContainsRegex(why));
  EXPECT_THAT(job.log(), ContainsRegex("\ntutti train: rank [01] exited with code 1: .*" + why));
  EXPECT_THAT(job.log(), Not(ContainsRegex("server 0 \\(host .*\\) .*(closed|reset)")))
      << "it follows from the loss of the other";
}

INSTANTIATE_TEST_SUITE_P(Jobs, WithoutBackups, testing::Values("0", "inf"),
                         [](const auto& info) { return std::string(info.param); });

// It has the parameters of both partitions when the other of the first two is lost.
TEST(LostServers, ReplacementCatchesUpWhileTrainingGoesOn) {
  const TempFolder folder;
  const std::string file = folder / "figures.json";
  Job job(train_served({"--servers", "2", "--replicas", "2", "--epochs", "1000", "--max-steps",
                        "1800", "--json", file}),
          {kToken});
  const std::string service = job.word_after("view service at ");
  job.wait_for("epoch 1/");
  job.send("server 0", SIGKILL);
  job.wait_for("server 1 took over from server 0 after", 2);
  Job replacement({TUTTI_PROGRAM, "ps", "--view-service", service}, {kToken});
  for (const char* partition : {"0", "1"})
    job.wait_for(std::string("partition ") + partition + ": server 2 (");
  job.send("server 1", SIGKILL);
  job.wait_for("server 2 took over from server 1 after", 4);
  ASSERT_EQ(job.end(), 0) << last_part(job.log());
  EXPECT_EQ(replacement.end(), 0) << replacement.log();
  const json all = figures_in(file);
  EXPECT_EQ(all.at("updates"), 1800);
  EXPECT_EQ(sha_of(all), undisturbed("1800"));
}

}  // namespace
}  // namespace tutti::test
