// Steps of a recurrent network, for bench/recurrent_steps.py, which times DistributedDataParallel
// beside.
//
//   bench_recurrent_step lstm|gru BATCH LENGTH UNITS LAYERS [counted]
//
// Strategy mirrored: two replicas, each with a thread and BATCH sequences of LENGTH points of three
// numbers, drawn once; the last state goes through a dense layer to ten classes. `counted`: of each
// sequence at least half of the points are there. A step is forward, cross-entropy, backward and
// Adam. Prints, for each number of steps that it reads from stdin, the ms that a step took.
#include <torch/torch.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "tutti/nn/graph_module.h"
#include "tutti/nn/layers.h"
#include "tutti/strategy/modules/replicated.h"

namespace {

namespace nn = tutti::nn;
using Clock = std::chrono::steady_clock;

constexpr int kReplicas = 2, kClasses = 10, kFeatures = 3;
constexpr double kRate = 1e-3;

struct Job {
  std::string cell;
  int64_t batch, length, units, layers;
  bool counted;
};

nn::Graph graph_of(const Job& job) {
  const auto x = nn::input({job.length, kFeatures}), count = nn::input({1}, tutti::DType::int64);
  const nn::RecurrentLayerOptions options{.layers = job.layers};
  const nn::Layer cell =
      job.cell == "lstm" ? nn::lstm(job.units, options) : nn::gru(job.units, options);
  const auto y = nn::linear(kClasses)(job.counted ? cell(x, count) : cell(x));
  std::vector<nn::NamedValue> inputs{{"points", x}};
  if (job.counted) inputs.push_back({"count", count});
  return {inputs, {{"kind", y}}};
}

void measure(const Job& job) {
  tutti::Strategy strategy({.kind = "mirrored", .replicas = kReplicas, .threads_per_replica = 1});
  tutti::Replicated<nn::GraphModule> net(strategy, [&] { return nn::make_module(graph_of(job)); });
  tutti::Optimizer adam(net, tutti::optim::adam({.learning_rate = kRate}));
  std::vector<std::vector<at::Tensor>> inputs(kReplicas);
  for (auto& own : inputs) {
    own.push_back(torch::randn({job.batch, job.length, kFeatures}));
    if (job.counted)
      own.push_back(torch::randint(job.length / 2, job.length + 1, {job.batch, 1}, at::kLong));
  }
  const at::Tensor labels = torch::randint(kClasses, {job.batch}, at::kLong);
  for (int64_t steps = 0; std::cin >> steps;) {
    const auto begin = Clock::now();
    for (int64_t step = 0; step < steps; ++step)
      strategy.run([&](tutti::ReplicaContext& replica) {
        const auto& own = inputs[static_cast<size_t>(replica.local_rank())];
        const at::Tensor y = net.local(replica)->forward_all(own).front();
        adam.minimize(replica, torch::cross_entropy_loss(y, labels) / kReplicas);
      });
    const std::chrono::duration<double, std::milli> taken = Clock::now() - begin;
    std::cout << taken.count() / static_cast<double>(steps) << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool counted = argc == 7 && std::string(argv[6]) == "counted";
  if (argc != 6 && !counted) {
    std::cerr << "usage: bench_recurrent_step lstm|gru BATCH LENGTH UNITS LAYERS [counted]\n";
    return 2;
  }
  try {
    torch::set_num_threads(1);
    torch::manual_seed(1);
    measure({argv[1], std::atoll(argv[2]), std::atoll(argv[3]), std::atoll(argv[4]),
             std::atoll(argv[5]), counted});
  } catch (const std::exception& error) {
    std::cerr << "bench_recurrent_step: " << error.what() << "\n";
    return 2;
  }
}
