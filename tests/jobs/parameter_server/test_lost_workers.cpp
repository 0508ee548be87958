// Workers that die: out of step the others go on, in step they end with its name.
#include "tests/jobs/parameter_server/served_job.h"

namespace tutti::test {
namespace {

// The slow one sleeps in forward nearly all the time, with a batch that nobody else has.
TEST(LostWorker, OthersTrainItsBatchOutOfStep) {
  const TempFolder folder;
  const std::string file = folder / "figures.json";
  Job job(train_served({"--servers", "2", "--replicas", "3", "--epochs", "3", "--batch-size", "150",
                        "--staleness", "inf", "--slow-worker", "2:100", "--json", file}));
  job.wait_for("epoch 1/");
  until_some_moment(6);
  job.send("worker 2", SIGKILL);
  EXPECT_EQ(job.end(), 0) << last_part(job.log());
  EXPECT_THAT(job.log(),
              AllOf(ContainsRegex("worker 2 \\(host .*\\) .*(closed|reset) the connection"),
                    HasSubstr("rank 2 was killed by SIGKILL"),
                    HasSubstr("epoch 2: 1 batch was trained again"), HasSubstr("epoch 3/3"),
                    Not(ContainsRegex("(\\[[012]\\] tutti train|tutti train: rank [012]): "))));
  const json all = figures_in(file);
  const int64_t updates = all.at("updates").get<int64_t>();
  EXPECT_GE(updates, 3 * 500);
  EXPECT_LE(updates, 3 * 500 + 1) << "it had pushed the batch that was trained again";
  EXPECT_GT(all.at("val_accuracy").get<double>(), 0.7);
}

// Worker 0 evaluates, prints and writes; without it the others end in order.
TEST(LostWorker, MayBeTheFirstOutOfStep) {
  Job job(
      train_served({"--servers", "1", "--replicas", "3", "--epochs", "3", "--staleness", "inf"}));
  job.wait_for("epoch 1/");
  until_some_moment(7);
  job.send("worker 0", SIGKILL);
  EXPECT_EQ(job.end(), 128 + SIGKILL) << last_part(job.log());
  EXPECT_THAT(job.log(),
              AllOf(HasSubstr("rank 0 was killed by SIGKILL"),
                    Not(ContainsRegex("(\\[[12]\\] tutti train|tutti train: rank [12]): ")),
                    Not(HasSubstr("terminate"))));
}

TEST(LostWorker, EndsSynchronousTrainingWithItsName) {
  Job job(train_served({"--servers", "2", "--replicas", "3", "--epochs", "1000"}));
  job.wait_for("epoch 1/");
  until_some_moment(8);
  job.send("worker 1", SIGKILL);
  EXPECT_EQ(job.end(), 128 + SIGKILL) << last_part(job.log());
  EXPECT_THAT(job.log(), AllOf(ContainsRegex("\\[0\\] tutti train: .*(rank|worker) 1"),
                               ContainsRegex("\\[2\\] tutti train: .*(rank|worker) 1"),
                               HasSubstr("rank 1 was killed by SIGKILL")));
}

}  // namespace
}  // namespace tutti::test
