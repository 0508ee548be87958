// Steps of a network of a .pt2 file, for bench/exported_steps.py, which makes it and times eager
// PyTorch beside.
//
//   bench_exported_step NET.pt2 BATCH WORDS [REPLICAS]
//
// Inputs are drawn once: normal numbers, or whole ones below WORDS. A step is forward, the mean of
// the first output's squares, backward and torch::optim::SGD, on one thread; with REPLICAS strategy
// mirrored, each replica with BATCH rows and a thread. Prints how long it took to load, in ms;
// then, for each number of steps that it reads from stdin, the ms that a step took.
#include <torch/torch.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <optional>
#include <vector>

#include "tutti/exported/from_export.h"
#include "tutti/exported/module.h"
#include "tutti/strategy/modules/replicated.h"

namespace {

using Clock = std::chrono::steady_clock;

double milliseconds(auto&& work) {
  const auto begin = Clock::now();
  work();
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

std::vector<at::Tensor> inputs_of(const tutti::ExportedModule& module, int64_t batch,
                                  int64_t words) {
  std::vector<at::Tensor> inputs;
  for (const auto& input : module.input_shapes()) {
    std::vector<int64_t> sizes;
    for (const auto& size : input.sizes) sizes.push_back(size.is_known() ? size.value : batch);
    inputs.push_back(input.element == tutti::pt2::Element::int64 ? torch::randint(words, sizes)
                                                                 : torch::randn(sizes));
  }
  return inputs;
}

constexpr double kRate = 1e-4;

/// Answers each number of steps from stdin.
void answer(auto&& step) {
  for (int64_t steps = 0; std::cin >> steps;)
    std::cout << milliseconds([&] {
                   for (int64_t i = 0; i < steps; ++i) step();
                 }) / static_cast<double>(steps)
              << std::endl;
}

at::Tensor loss_of(tutti::ExportedModule& module, const std::vector<at::Tensor>& inputs) {
  return module.forward_all(inputs).front().pow(2).mean();
}

void measure_replicas(const char* path, int64_t batch, int64_t words, int replicas) {
  tutti::Strategy strategy({.kind = "mirrored", .replicas = replicas, .threads_per_replica = 1});
  std::optional<tutti::Replicated<tutti::ExportedModule>> net;
  std::cout << milliseconds([&] { net.emplace(strategy, tutti::from_export(path)); }) << std::endl;
  tutti::Optimizer sgd(*net, tutti::optim::sgd({.learning_rate = kRate}));
  std::vector<std::vector<at::Tensor>> inputs;
  for (int local = 0; local < replicas; ++local)
    inputs.push_back(
        inputs_of(*net->modules().module(local)->as<tutti::ExportedModule>(), batch, words));
  answer([&] {
    strategy.run([&](tutti::ReplicaContext& replica) {
      const auto& own = inputs[static_cast<size_t>(replica.local_rank())];
      sgd.minimize(replica, loss_of(*net->local(replica), own) / replicas);
    });
  });
}

void measure(const char* path, int64_t batch, int64_t words) {
  std::shared_ptr<tutti::ExportedModule> module;
  std::cout << milliseconds([&] { module = tutti::from_export(path)(); }) << std::endl;
  const auto inputs = inputs_of(*module, batch, words);
  torch::optim::SGD sgd(module->parameters(), kRate);
  answer([&] {
    sgd.zero_grad();
    loss_of(*module, inputs).backward();
    sgd.step();
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4 && argc != 5) {
    std::cerr << "usage: bench_exported_step NET.pt2 BATCH WORDS [REPLICAS]\n";
    return 2;
  }
  const int64_t batch = std::atoll(argv[2]), words = std::atoll(argv[3]);
  try {
    torch::set_num_threads(1);
    torch::manual_seed(1);
    if (argc == 5)
      measure_replicas(argv[1], batch, words, std::atoi(argv[4]));
    else
      measure(argv[1], batch, words);
  } catch (const std::exception& error) {
    std::cerr << "bench_exported_step: " << error.what() << "\n";
    return 2;
  }
}
