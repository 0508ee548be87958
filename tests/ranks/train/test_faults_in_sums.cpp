// The fused step over hosts, whose sums go while backward makes the rest: a worker fails before
// each layer of a backward pass in turn, with the pieces of the layers behind it on their way.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tutti/cluster/join/join.h"
#include "tutti/strategy/modules/replicated.h"

#include "tests/support/expect.h"
#include "tests/support/hosts.h"
#include "tests/support/run_workers.h"

namespace tutti {
namespace {

constexpr int kLayers = 5;
constexpr int kSteps = 9;
constexpr int kStep = 6;  // of the fault: the order of pieces has been agreed on

/// A piece or two a layer.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(std::function<void(int)> before_layer) : before(std::move(before_layer)) {
    const std::vector<int64_t> wide{4, 700, 400, 900, 300, 3};
    for (int i = 0; i < kLayers; ++i)
      layers.push_back(
          register_module("layer" + std::to_string(i), torch::nn::Linear(wide[i], wide[i + 1])));
  }

  at::Tensor forward(at::Tensor x) {
    for (int i = 0; i < kLayers; ++i) {
      x = torch::tanh(layers[i](x));
      x.register_hook([this, i](const at::Tensor&) { before(i); });
    }
    return x;
  }

  std::function<void(int)> before;
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Net);

void fail(const test::Rank& rank) {
  const std::string& way = rank.arguments.at(0);
  if (way == "kill") std::raise(SIGKILL);
  if (way == "stop") std::raise(SIGSTOP);
  if (way == "throw") throw DataError("row 17 is damaged");
  rank.mark("cut me off");
  std::this_thread::sleep_for(Millis{300});  // until that has been done
}

/// Rank 1 fails in the way of arguments[0] before layer arguments[1] of a backward pass; waits give
/// up after arguments[2] ms.
RANK_PROGRAM(fail_in_backward) {
  const int layer = std::stoi(rank.arguments.at(1));
  try {
    int step = 0, own = -1;
    Strategy strategy({.kind = "multi_worker",
                       .replicas = 2,
                       .threads_per_replica = 1,
                       .time_limit = Millis(std::stoi(rank.arguments.at(2)))});
    const Replicated<Net> net(strategy, [&] {
      return Net([&](int at) {
        if (own == 1 && step == kStep && at == layer) fail(rank);
      });
    });
    Optimizer optimizer(net, optim::adam({.learning_rate = 1e-3}));
    strategy.run([&](ReplicaContext& replica) {
      own = replica.rank();
      for (step = 0; step < kSteps; ++step)
        optimizer.minimize(replica, net.local(replica)->forward(torch::ones({4, 4})).sum());
    });
  } catch (const std::exception& error) {
    std::printf("survivor: %s\n", error.what());
    std::fflush(stdout);
    report_failure(error);
    throw;
  }
}

class FaultsInHiddenSums : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const std::string why = test::TestHosts::why_not(); !why.empty()) GTEST_SKIP() << why;
  }
};

TEST_P(FaultsInHiddenSums, AreNamedByEverybodyBeforeEachLayer) {
  const std::string way = GetParam();
  for (int layer = 0; layer < kLayers; ++layer) {
    SCOPED_TRACE("before layer " + std::to_string(layer));
    const test::TestHosts hosts(2);
    test::NodesOptions options{.silence = Millis{3'000}, .limit = Millis{30'000}};
    if (way == "cut")
      options.kill = {
          .rank = 1, .after = "cut me off", .signal = 0, .then = [&] { hosts.cut(1); }};
    const char* limit = way == "stop" || way == "cut" ? "1500" : "20000";
    const auto nodes = test::run_nodes(hosts, 1, "fail_in_backward",
                                       {way, std::to_string(layer), limit}, options);
    for (const RankOutcome& node : nodes) {
      EXPECT_FALSE(node.timed_out) << node.log;
      EXPECT_NE(node.exit_code, 0) << node.log;
    }
    const std::string cause = way == "kill"    ? "rank 1 was killed by SIGKILL"
                              : way == "throw" ? "row 17 is damaged"
                                               : "rank 1";
    EXPECT_THAT(nodes[0].log, HasSubstr(cause));
    const auto survivors = test::lines_after(nodes[0].log, "] survivor: ");
    EXPECT_THAT(survivors, AllOf(SizeIs(1), Each(HasSubstr("rank 1")))) << nodes[0].log;
    EXPECT_THAT(hosts.left_running(Millis{5'000}), IsEmpty());
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, FaultsInHiddenSums, testing::Values("kill", "throw", "stop", "cut"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tutti
