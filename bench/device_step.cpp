// Whether the fused step of replicas on devices has, again and again, the bits of one device that
// takes the parts in turn. On a GPU nobody chooses the order of work: a wait between queues that is
// missing shows in some of many repeats, and the network is wide so that queues are full.
//
//   bench_device_step [REPEATS [STEPS]] [--device cuda:0x2]
//
// A line of JSON: in how many repeats of each rule some replica's weights were others than the
// oracle's, and how far the oracle is from the same training on the CPU. Exit code 1 where a repeat
// was wrong. `tools/gpu_check` runs it.
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/strategy/input/distributed_dataset.h"
#include "tutti/strategy/modules/replicated.h"

#include "bench/rounds.h"
#include "bench/torch_errors.h"

namespace {

using namespace tutti;

constexpr int64_t kRows = 12;  // of a step; several numbers of replicas divide it
constexpr int64_t kFeatures = 256;
constexpr int64_t kClasses = 4;

struct Rule {
  const char* name;
  optim::Recipe recipe;
};

std::vector<Rule> rules() {
  return {{"sgd", optim::sgd({.learning_rate = 0.1, .momentum = 0.9})},
          {"adam", optim::adam({.learning_rate = 0.01})},
          {"adamw_clipped", {optim::adamw({.learning_rate = 0.01}), {.global_norm = 0.1}}}};
}

torch::nn::Sequential wide_net() {
  constexpr int64_t kUnits = 1024;
  return torch::nn::Sequential(torch::nn::Linear(kFeatures, kUnits), torch::nn::ReLU(),
                               torch::nn::Linear(kUnits, kUnits), torch::nn::ReLU(),
                               torch::nn::Linear(kUnits, kClasses));
}

// A replica's part of every step's samples, on its device.
struct Part {
  at::Tensor x, y;  // [steps, rows, kFeatures], [rows]
};

Part part_of(const ReplicaContext& replica, int64_t steps) {
  const int64_t rows = kRows / replica.num_replicas_in_sync(), first = rows * replica.rank();
  const auto all = torch::sin(torch::arange(kRows * kFeatures * steps, at::kFloat));
  const auto labels = torch::arange(kRows).remainder(kClasses);
  return {all.view({steps, kRows, -1}).narrow(1, first, rows).to(replica.device()),
          labels.narrow(0, first, rows).to(replica.device())};
}

// The parameters of every replica, flat, on the CPU. Replicas make all steps in one run(), at whose
// end they would wait for each other; only those that take turns end a step together.
std::vector<at::Tensor> train(const StrategyOptions& options, const optim::Recipe& recipe,
                              int64_t steps) {
  Strategy strategy(options);
  Replicated<torch::nn::Sequential> net(strategy, wide_net);
  Optimizer optimizer(net, recipe);
  const auto parts = strategy.run([&](ReplicaContext& replica) { return part_of(replica, steps); });
  const auto train_from_to = [&](int64_t first, int64_t last) {
    strategy.run([&](ReplicaContext& replica) {
      const auto& [x, y] = parts.local(replica);
      for (int64_t step = first; step < last; ++step)
        optimizer.minimize(replica,
                           torch::cross_entropy_loss(net.local(replica)->forward(x[step]), y, {},
                                                     at::Reduction::None),
                           kRows);
    });
  };
  const int64_t together = strategy.world().in_turn() ? 1 : steps;
  for (int64_t step = 0; step < steps; step += together) train_from_to(step, step + together);
  std::vector<at::Tensor> all;
  for (int local = 0; local < net.modules().size(); ++local)
    all.push_back(torch::nn::utils::parameters_to_vector(net.modules().module(local)->parameters())
                      .detach()
                      .cpu());
  return all;
}

// What is expected of `options`: the same parts, by one device in turn.
StrategyOptions in_turn(StrategyOptions options, int replicas, const std::string& device) {
  options.kind = "one_device";
  options.replicas = replicas;
  options.device = device;
  options.deterministic = options.deterministic && device != "cpu";
  options.typed.clear();
  return options;
}

nlohmann::ordered_json check(const StrategyOptions& options, int64_t repeats, int64_t steps) {
  const auto begin = Clock::now();
  Strategy strategy(options);
  const int replicas = strategy.num_replicas_in_sync();
  if (kRows % replicas != 0)
    throw UsageError(fmt::format("--device {}: {} replicas; expected a number that divides {}",
                                 options.device, replicas, kRows));
  const std::string first = strategy.world().queues.front().device().str();
  nlohmann::ordered_json wrong;
  double from_cpu = 0;
  int64_t all_wrong = 0;
  for (const auto& [name, recipe] : rules()) {
    const at::Tensor oracle = train(in_turn(options, replicas, first), recipe, steps)[0];
    if (!torch::isfinite(oracle).all().item<bool>())
      throw Error(fmt::format("{} in turn on {}: the weights are not finite", name, first));
    if (std::string_view(name) == "sgd") {
      const at::Tensor cpu = train(in_turn(options, replicas, "cpu"), recipe, steps)[0];
      from_cpu = (cpu - oracle).abs().max().item<double>();
    }
    int64_t here = 0;
    for (int64_t repeat = 0; repeat < repeats; ++repeat)
      here += std::ranges::all_of(train(options, recipe, steps),
                                  [&](const at::Tensor& one) { return torch::equal(one, oracle); })
                  ? 0
                  : 1;
    wrong[name] = here;
    all_wrong += here;
  }
  const std::chrono::duration<double> seconds = Clock::now() - begin;
  return {{"bench", "device_step"}, {"device", options.device}, {"replicas", replicas},
          {"repeats", repeats},     {"steps", steps},           {"wrong", all_wrong},
          {"wrong_by_rule", wrong}, {"from_cpu", from_cpu},     {"seconds", seconds.count()}};
}

int run(int argc, char** argv) {
  StrategyOptions options = take_strategy_flags(argc, argv);
  options.kind = "mirrored";
  options.threads_per_replica = 1;
  if (options.device == "cpu") options.device = "cuda:0x2";
  const int64_t repeats = std::max<int64_t>(1, bench::number_at(argc, argv, 1, 25));
  const int64_t steps = std::max<int64_t>(1, bench::number_at(argc, argv, 2, 6));
  const auto figures = check(options, repeats, steps);
  fmt::print("{}\n", figures.dump());
  return figures["wrong"] == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return bench::reporting_errors([&] { return run(argc, argv); });
}
