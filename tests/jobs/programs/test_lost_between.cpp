// Several trainings in one job, whose servers and workers die in them or between them.
#include <fstream>

#include "tests/jobs/parameter_server/served_job.h"
#include "tests/support/run_workers.h"

namespace tutti::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::SizeIs;

class TwoTrainings : public ::testing::Test {
 protected:
  Job job_of(int epochs, const Words& flags = {}, const std::string& how = "in step") {
    const auto self = std::filesystem::read_symlink("/proc/self/exe").string();
    return Job(Words{TUTTI_PROGRAM, "run", "-n", "2", "--servers", "2"} + flags + Words{self},
               {kToken, "TUTTI_LOG=info", "TUTTI_TEST_PROGRAM=two_trainings",
                fmt::format("TUTTI_TEST_ARGUMENTS={}\n{}\n{}\n", go_, epochs, how)});
  }
  void go() const { std::ofstream(go_) << "go"; }
  static void expect_weights(const Job& job, int64_t epochs) {
    const auto alone = run_workers(1, "mlp_alone", {std::to_string(epochs)});
    ASSERT_EQ(alone.exit_code, 0) << alone.log;
    const std::string expected = lines_after(alone.log, "alone ").at(0);
    EXPECT_THAT(lines_after(job.log(), "second "), AllOf(SizeIs(2), Each(expected))) << job.log();
  }

 private:
  TempFolder folder_;
  std::string go_ = folder_ / "go";
};

TEST_F(TwoTrainings, TheSecondHasTheServersThatTheFirstHasLeft) {
  Job job = job_of(1);
  job.wait_for("first ", 2);
  job.send("server 0", SIGKILL);
  job.wait_for("server 0 (");  // the view service has seen it
  go();
  ASSERT_EQ(job.end(), 0) << last_part(job.log());
  expect_weights(job, 1);
}

TEST_F(TwoTrainings, TheSecondHasTheServerThatCameInPlaceOfALostOne) {
  Job job = job_of(30);
  const std::string service = job.word_after("view service at ");
  job.wait_for("first ", 2);
  job.send("server 1", SIGKILL);
  job.wait_for("server 1 (");
  Job spare({TUTTI_PROGRAM, "ps", "--view-service", service}, {kToken});
  job.wait_for("server 2 (");
  go();
  job.wait_for("epoch of the second", 3);
  job.send("server 0", SIGKILL);
  ASSERT_EQ(job.end(), 0) << last_part(job.log());
  expect_weights(job, 30);
  EXPECT_EQ(spare.end(), 0) << spare.log();
}

TEST_F(TwoTrainings, ALostServerTakesNothingFromTheSecond) {
  Job job = job_of(60);
  job.wait_for("first ", 2);
  go();
  job.wait_for("epoch of the second", 3);
  job.send("server 0", SIGKILL);
  ASSERT_EQ(job.end(), 0) << last_part(job.log());
  expect_weights(job, 60);
  EXPECT_GE(job.count("server 1 took over from server 0"), 1) << job.log();
}

TEST_F(TwoTrainings, AWorkerThatDiesBetweenThemIsNamed) {
  Job job = job_of(1);
  job.wait_for("first ", 2);
  job.send("worker 1", SIGKILL);
  go();
  EXPECT_EQ(job.end(), 128 + SIGKILL) << job.log();
  EXPECT_THAT(job.log(), ::testing::HasSubstr("rank 1 was killed by SIGKILL"));
}

TEST_F(TwoTrainings, AWorkerThatIsStartedAgainInTheSecondIsRefused) {
  Job job = job_of(40, {"--restarts", "1"}, "out of step");
  job.wait_for("first ", 2);
  go();
  job.wait_for("epoch of the second", 3);
  job.send("worker 1", SIGKILL);
  EXPECT_NE(job.end(), 0) << job.log();
  EXPECT_THAT(job.log(), ::testing::HasSubstr("worker 1 comes to training 0 of this job, which is "
                                              "over"));
}

}  // namespace
}  // namespace tutti::test
