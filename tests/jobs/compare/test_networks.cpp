// The networks of tutti_bench compare and scale: which there are, and that peers and ours do the
// same work.
#include <cmath>
#include <cstdlib>
#include <memory>

#include "bench/compare/contenders.h"
#include "bench/compare/networks.h"
#include "bench/compare/our_networks.h"
#include "tests/support/command.h"
#include "tests/support/expect.h"

namespace tutti::bench {
namespace {

std::vector<std::string> names_of(const std::vector<NetworkSubject>& subjects) {
  std::vector<std::string> names;
  for (const auto& subject : subjects) names.push_back(subject.name);
  return names;
}

TEST(BenchNetworks, AModelIsAllOfItsSizesAndANameOne) {
  EXPECT_THAT(names_of(networks_named("gpt")), ElementsAre("gpt4x128", "gpt6x384"));
  EXPECT_THAT(names_of(networks_named("resnet50@64")), ElementsAre("resnet50@64"));
  EXPECT_THAT(names_of(networks_named("mlp")), ElementsAre());
  EXPECT_THAT(names_of(networks_in("lstm,gpt6x384,gpt")),
              ElementsAre("lstm", "gpt6x384", "gpt4x128"));
  for (const auto& subject : network_subjects()) {
    EXPECT_LT(subject.bound, subject.aim) << subject.name;
    EXPECT_EQ(subject.batch % kReplicas, 0) << subject.name;
  }
}

TEST(BenchNetworks, WorkIsEqualWithinFivePerCent) {
  EXPECT_TRUE(equal_work(1, 1.05));
  EXPECT_TRUE(equal_work(1.05, 1));
  EXPECT_TRUE(equal_work(0.001, 0.01));
  EXPECT_FALSE(equal_work(1, 1.1));
  EXPECT_FALSE(equal_work(1.1, 1));
  EXPECT_FALSE(equal_work(0.001, 0.02));
  EXPECT_FALSE(equal_work(1, NAN));
  const auto losses = losses_in(parse_json("[2.5, null]"));
  ASSERT_EQ(losses.size(), 2u);
  EXPECT_EQ(losses[0], 2.5);
  EXPECT_TRUE(std::isnan(losses[1]));
}

constexpr int64_t kSamples = 4, kSteps = 4;
// Of a loss: single sums add in another order, and Adam divides small gradients by small ones.
constexpr double kNear = 0.01;

class NetworksBesidePeers : public testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("TUTTI_TEST_PEERS") == nullptr) GTEST_SKIP() << "make bench runs it";
    if (test::run_command({".venv/bin/python", "-c", "import torch, numpy"}).exit_code != 0)
      GTEST_SKIP() << "no PyTorch in .venv";
  }

  static std::vector<double> losses_of(PeerProcesses& peer, const std::string& network) {
    const auto answers = peer.answers({{"model", network},
                                       {"batch", kSamples},
                                       {"steps", 1},
                                       {"warmup", kSteps},
                                       {"each", true}});
    return losses_in(answers.at(0).at("losses"));
  }

  static void expect_near(const std::string& network, const std::vector<double>& theirs,
                          const std::vector<double>& ours) {
    ASSERT_EQ(theirs.size(), ours.size());
    EXPECT_NEAR(theirs[0], ours[0], 1e-4 * ours[0]) << network;
    for (size_t i = 1; i < ours.size(); ++i)
      EXPECT_NEAR(theirs[i], ours[i], kNear * ours[i]) << network << ", step " << i;
  }
};

// Equal first weights, batches, losses and updates: the losses of the first steps are equal. The
// larger ones are made as the smaller ones are.
TEST_F(NetworksBesidePeers, HaveTheLossesOfPyTorchAndOfJax) {
  PeerProcesses torch(peer_plans().at(kOneProcess), test::kDoodles);
  std::unique_ptr<PeerProcesses> jax;
  if (test::run_command({".venv/bin/python", "-c", "import jax"}).exit_code == 0)
    jax = std::make_unique<PeerProcesses>(peer_plans().at(kJax), test::kDoodles);
  for (const std::string network :
       {"resnet18@64", "resnet50@64", "vit", "gpt4x128", "lstm", "dlrm", "unet"}) {
    const NetworkWork work(network, kSamples);
    const auto ours = run_ours(work, "one_device", 1, kSteps, 1);
    EXPECT_GT(ours.step_ms, 0);
    expect_near(network, losses_of(torch, network), ours.losses);
    if (jax) expect_near("JAX, " + network, losses_of(*jax, network), ours.losses);
  }
}

// Threads and processes have the same losses, and those of one replica where no batch norm has
// another half of the batch.
TEST_F(NetworksBesidePeers, TwoReplicasTrainAsOne) {
  const NetworkWork work("lstm", kSamples);
  const auto threads = run_ours(work, "mirrored", 2, kSteps, 1);
  const auto processes = run_ours(work, "multi_worker", 2, kSteps, 1);
  EXPECT_EQ(threads.losses, processes.losses);
  expect_near("lstm", run_ours(work, "one_device", 1, kSteps, 1).losses, threads.losses);
  EXPECT_GT(threads.peak_mb, 0);
}

}  // namespace
}  // namespace tutti::bench
