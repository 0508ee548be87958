// Steps of a network of a .pt2 file, for bench/exported_steps.py, which makes it and times eager
// PyTorch beside.
//
//   bench_exported_step NET.pt2 BATCH WORDS
//
// Inputs are drawn once: normal numbers, or whole ones below WORDS. A step is forward, the mean of
// the first output's squares, backward and torch::optim::SGD, on one thread. Prints how long it
// took to load, in ms; then, for each number of steps that it reads from stdin, the ms that a step
// took.
#include <torch/torch.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <vector>

#include "tutti/exported/from_export.h"
#include "tutti/exported/module.h"

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

void measure(const char* path, int64_t batch, int64_t words) {
  torch::set_num_threads(1);
  torch::manual_seed(1);
  std::shared_ptr<tutti::ExportedModule> module;
  std::cout << milliseconds([&] { module = tutti::from_export(path)(); }) << std::endl;
  const auto inputs = inputs_of(*module, batch, words);
  torch::optim::SGD sgd(module->parameters(), 1e-4);
  for (int64_t steps = 0; std::cin >> steps;)
    std::cout << milliseconds([&] {
                   for (int64_t i = 0; i < steps; ++i) {
                     sgd.zero_grad();
                     module->forward_all(inputs).front().pow(2).mean().backward();
                     sgd.step();
                   }
                 }) / static_cast<double>(steps)
              << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: bench_exported_step NET.pt2 BATCH WORDS\n";
    return 2;
  }
  try {
    measure(argv[1], std::atoll(argv[2]), std::atoll(argv[3]));
  } catch (const std::exception& error) {
    std::cerr << "bench_exported_step: " << error.what() << "\n";
    return 2;
  }
}
