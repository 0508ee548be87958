// The workers of a host as one towards the servers: the same bits, for fewer bytes.
#include "tests/jobs/parameter_server/served_job.h"

namespace tutti::test {
namespace {

TEST(HostSums, AHostSendsAndReceivesEveryPieceOnce) {
  const auto train = [](const Words& more) {
    return figures_of(train_served(Words{"--servers", "2", "--partition", "max:64K", "--replicas",
                                         "2", "--epochs", "1", "--max-steps", "20"} +
                                   more));
  };
  const json one = train({});
  const json each = train({"--host-sums", "off"});
  EXPECT_EQ(sha_of(one), sha_of(each));
  for (const char* bytes : {"bytes_pushed", "bytes_pulled"}) {
    // Of worker 0, which carries half.
    EXPECT_NEAR(each.at(bytes).get<double>() / one.at(bytes).get<double>(), 2, 0.3) << bytes;
  }
}

TEST(HostSums, AStoppedWorkerIsNamed) {
  Job job(train_served({"--servers", "1", "--replicas", "2", "--epochs", "1000", "--max-steps",
                        "100000", "--time-limit", "2"}));
  job.wait_for("epoch 1/");
  job.send("worker 1", SIGSTOP);
  EXPECT_NE(job.end(), 0);
  EXPECT_THAT(job.log(), ContainsRegex("\ntutti train: rank 0: .*(rank|worker) 1"));
}

}  // namespace
}  // namespace tutti::test
