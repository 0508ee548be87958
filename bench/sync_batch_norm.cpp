// What batch statistics of all replicas cost: steps of a small network with torch::nn::BatchNorm2d
// and with tutti::nn::SyncBatchNorm, in turn, ROUNDS times each.
//
//   bench_sync_batch_norm BATCH STEPS ROUNDS [--strategy mirrored --replicas 2]
//   tutti run -n 2 bench_sync_batch_norm BATCH STEPS ROUNDS --strategy multi_worker
//
// The network is conv 16-32-64 (3x3) on images [3, 32, 32], a norm and ReLU after each, 2x2
// max-pool, one dense layer. Prints a line of JSON: median step of each, in ms, and the median over
// the rounds of their ratio.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <vector>

#include "tutti/nn/graph_module.h"
#include "tutti/strategy/modules/replicated.h"
#include "tutti/strategy/optimizer/loss_scaling.h"

#include "bench/rounds.h"

namespace {

tutti::nn::Graph network(bool synchronized) {
  const auto input = tutti::nn::input({3, 32, 32});
  auto x = input;
  for (const int64_t channels : {16, 32, 64}) {
    x = tutti::nn::conv2d(channels, 3, {.padding = 1, .bias = false})(x);
    x = tutti::nn::relu()(tutti::nn::batch_norm2d({.synchronized = synchronized})(x));
    x = tutti::nn::max_pool2d(2)(x);
  }
  return tutti::nn::Graph(input, tutti::nn::linear(10)(tutti::nn::flatten()(x)));
}

struct Trainee {
  Trainee(const tutti::Strategy& strategy, bool synchronized)
      : net(strategy, [synchronized] { return make_module(network(synchronized)); }),
        optimizer(net, tutti::optim::sgd({.learning_rate = 0.01})) {}

  /// Milliseconds a step, over so many.
  double steps(tutti::Strategy& strategy, int64_t batch, int64_t count) {
    const auto begin = std::chrono::steady_clock::now();
    strategy.run([&](tutti::ReplicaContext& replica) {
      const int64_t rows =
          tutti::data::share(batch, replica.num_replicas_in_sync(), replica.rank()).size();
      const auto x = torch::randn({rows, 3, 32, 32}, replica.generator());
      const auto y = torch::randint(10, {rows}, replica.generator(), torch::kLong);
      for (int64_t step = 0; step < count; ++step) {
        const auto each =
            torch::cross_entropy_loss(net.local(replica)->forward(x), y, {}, at::Reduction::None);
        optimizer.minimize(replica, tutti::average_loss(each, batch));
      }
    });
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    return took.count() / static_cast<double>(count);
  }

  tutti::Replicated<tutti::nn::GraphModule> net;
  tutti::Optimizer optimizer;
};

void measure(tutti::Strategy& strategy, int64_t batch, int64_t steps, int64_t rounds) {
  Trainee plain(strategy, false), synchronized(strategy, true);
  plain.steps(strategy, batch, steps);
  synchronized.steps(strategy, batch, steps);
  const auto step_ms = tutti::bench::in_turn(
      rounds, [&] { return plain.steps(strategy, batch, steps); },
      [&] { return synchronized.steps(strategy, batch, steps); });
  if (!strategy.world().chief) return;
  std::printf(
      "{\"bench\":\"sync_batch_norm\",\"strategy\":\"%s\",\"replicas\":%d,\"global_batch\":%lld,"
      "\"steps\":%lld,\"rounds\":%lld,\"batch_norm_ms\":%.3f,\"sync_batch_norm_ms\":%.3f,"
      "\"ratio\":%.3f}\n",
      strategy.options().kind.c_str(), strategy.num_replicas_in_sync(),
      static_cast<long long>(batch), static_cast<long long>(steps), static_cast<long long>(rounds),
      step_ms.one, step_ms.other, step_ms.ratio);
}

}  // namespace

int main(int argc, char** argv) {
  auto strategy = tutti::strategy_from_flags(argc, argv);
  const int64_t batch = argc == 4 ? std::atoll(argv[1]) : 0;
  const int64_t steps = argc == 4 ? std::atoll(argv[2]) : 0;
  const int64_t rounds = argc == 4 ? std::atoll(argv[3]) : 0;
  if (batch < strategy.num_replicas_in_sync() || steps < 1 || rounds < 1) {
    std::fprintf(
        stderr,
        "usage: bench_sync_batch_norm BATCH STEPS ROUNDS [--strategy ...], each 1 or more, "
        "BATCH at least one a replica\n");
    return 2;
  }
  try {
    measure(strategy, batch, steps, rounds);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
