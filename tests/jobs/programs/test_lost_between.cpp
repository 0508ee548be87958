// Several trainings in one job, whose servers and workers die in them or between them.
#include <fstream>

#include "tutti/tutti.h"

#include "tests/jobs/parameter_server/served_job.h"
#include "tests/jobs/programs/programs.h"
#include "tests/support/run_ranks.h"
#include "tests/support/run_workers.h"

namespace tutti::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::SizeIs;

constexpr Millis kSoon{20'000};

// Of a training of so many epochs of eight steps.
std::string weights_of(const Strategy& strategy, int64_t epochs,
                       const std::function<void(Training&)>& after_epoch = [](Training&) {}) {
  Model model(strategy, [] { return models::mlp(); });
  model.compile({.loss = losses::sparse_categorical_crossentropy()});
  model.fit(doodles(160).batch(20),
            {.epochs = epochs,
             .callbacks = {callbacks::lambda("says", {.on_epoch_end = after_epoch})},
             .verbose = 0});
  return model.weights_sha256();
}

Strategy strategy_of(const std::string& kind, bool in_step = true) {
  StrategyOptions options{.kind = kind, .replicas = 2, .threads_per_replica = 1, .seed = 3};
  if (!in_step) options.served.staleness = ps::Staleness::unbounded();
  return Strategy(options);
}

// Two trainings; the second waits for a file.
// arguments: that file, epochs of the second, "in step" or "out of step".
RANK_PROGRAM(two_trainings) {
  const Strategy strategy = strategy_of("parameter_server", rank.arguments.at(2) == "in step");
  rank.mark("first " + weights_of(strategy, 1));
  for (const Deadline deadline(kSoon); !std::filesystem::exists(rank.arguments.at(0));)
    if (deadline.passed()) throw Timeout("nobody wrote " + rank.arguments.at(0));
  rank.mark("second " + weights_of(strategy, std::stoi(rank.arguments.at(1)),
                                   [&](Training&) { rank.mark("epoch of the second"); }));
}

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
    const std::string expected = weights_of(strategy_of("mirrored"), epochs);
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
