// Workers in step that die where that is not the end: the others go on with fewer, or wait until
// the lost one has come again, and train the weights of a training in which nobody died.
#include "tests/jobs/parameter_server/served_job.h"

namespace tutti::test {
namespace {

constexpr int kEpochs = 6;

struct WorkerLoss {
  int worker;
  uint64_t seed;  // of the moment

  friend void PrintTo(const WorkerLoss& loss, std::ostream* out) {
    *out << "worker_" << loss.worker << "_seed_" << loss.seed;
  }
};

std::string name_of(const testing::TestParamInfo<WorkerLoss>& info) {
  return testing::PrintToString(info.param);
}

Words with_epochs(const Words& more) { return Words{"--epochs", std::to_string(kEpochs)} + more; }

class OthersContinue : public testing::TestWithParam<WorkerLoss> {};

TEST_P(OthersContinue, AndTheLowestOfThemSaysWhatCameOut) {
  const TempFolder folder;
  const std::string file = folder / "figures.json";
  Job job(train_served(with_epochs({"--servers", "2", "--replicas", "3", "--on-lost-worker",
                                    "continue", "--json", file, "--out", folder / "out"})));
  job.wait_for("epoch 1/");
  until_some_moment(GetParam().seed);
  const std::string lost = "worker " + std::to_string(GetParam().worker);
  job.send(lost, SIGKILL);
  EXPECT_EQ(job.end(Millis{60'000}), 0) << last_part(job.log());
  const std::string speaker = GetParam().worker == 0 ? "[1]" : "[0]";
  EXPECT_THAT(
      job.log(),
      AllOf(ContainsRegex(lost + " \\(host .*, pid .*\\) .*(closed|reset) the connection"),
            HasSubstr("rank " + std::to_string(GetParam().worker) + " was killed by SIGKILL"),
            HasSubstr(speaker + " epoch 6/6"), HasSubstr("2 of 3 workers came to the end"),
            Not(ContainsRegex("(\\[[012]\\] tutti train|tutti train: rank [012]): "))));
  const json all = figures_in(file);
  EXPECT_EQ(all.at("workers"), 3);
  EXPECT_EQ(all.at("workers_finished"), 2);
  EXPECT_EQ(all.at("updates"), kEpochs * 196);
  EXPECT_EQ(all.at("train_loss").size(), static_cast<size_t>(kEpochs));
  EXPECT_GT(all.at("val_accuracy").get<double>(), 0.7);
  EXPECT_TRUE(std::filesystem::exists(folder / "out" / "model.safetensors"));
}

INSTANTIATE_TEST_SUITE_P(Jobs, OthersContinue,
                         testing::Values(WorkerLoss{2, 11}, WorkerLoss{0, 12}), name_of);

class OthersWait : public testing::TestWithParam<WorkerLoss> {};

TEST_P(OthersWait, AndTrainTheWeightsOfMirrored) {
  const TempFolder folder;
  const std::string file = folder / "figures.json";
  Job job(train_served(with_epochs({"--servers", "2", "--replicas", "2", "--on-lost-worker", "wait",
                                    "--restarts", "1", "--json", file})));
  job.wait_for("epoch 1/");
  until_some_moment(GetParam().seed);
  const std::string lost = "worker " + std::to_string(GetParam().worker);
  job.send(lost, SIGKILL);
  EXPECT_EQ(job.end(Millis{60'000}), 0) << last_part(job.log());
  EXPECT_THAT(job.log(),
              AllOf(ContainsRegex(lost + " \\(host .*\\) .*(closed|reset) the connection"),
                    HasSubstr("it is started again (1 of 1)"), HasSubstr("epoch 6/6"),
                    Not(HasSubstr("came to the end"))));
  const json all = figures_in(file);
  EXPECT_EQ(
      sha_of(all),
      sha_of(figures_of(train_mlp(with_epochs({"--strategy", "mirrored", "--replicas", "2"})))));
  EXPECT_EQ(all.at("updates"), kEpochs * 196);
  EXPECT_EQ(all.at("workers_finished"), 2);
}

INSTANTIATE_TEST_SUITE_P(Jobs, OthersWait,
                         testing::Values(WorkerLoss{1, 21}, WorkerLoss{1, 22}, WorkerLoss{0, 23}),
                         name_of);

TEST(OthersWaitInVain, AndNameTheLostOne) {
  Job job(train_served({"--servers", "1", "--replicas", "2", "--epochs", "1000", "--time-limit",
                        "3", "--on-lost-worker", "wait"}));
  job.wait_for("epoch 1/");
  job.send("worker 1", SIGKILL);
  EXPECT_EQ(job.end(), 128 + SIGKILL) << last_part(job.log());
  EXPECT_THAT(job.log(),
              AllOf(ContainsRegex(
                        "worker 0 waited for 3000 ms .*worker 1 \\(host .*\\), which is lost: it"),
                    HasSubstr("rank 1 was killed by SIGKILL")));
}

// Nobody is lost: weights and figures are those of a group over all workers.
TEST(WorkersApart, TrainAndReportWhatAGroupDoes) {
  const auto train = [](const std::string& what) {
    return figures_of(train_served({"--servers", "2", "--replicas", "2", "--epochs", "1",
                                    "--max-steps", "50", "--on-lost-worker", what}));
  };
  const json end = train("end");
  for (const char* const what : {"continue", "wait"}) {
    const json apart = train(what);
    for (const char* const figure :
         {"weights_sha256", "train_loss", "val_loss", "val_accuracy", "updates"})
      EXPECT_EQ(apart.at(figure), end.at(figure)) << what << ": " << figure;
  }
}

}  // namespace
}  // namespace tutti::test
