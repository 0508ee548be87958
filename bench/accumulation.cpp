// Steps of a loop of LibTorch's own with DistributedOptimizer, for bench/accumulation.py, which
// times DistributedDataParallel beside.
//
//   tutti run -n 2 bench_accumulation mlp|cnn|transformer PASSES STEPS
//
// A step is PASSES backward passes, all but the last in no_sync(), and torch::optim::SGD, on one
// thread a rank. Rank 0 prints the ms that a step took, after a fifth as many of warm-up.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tutti/cluster/join/join.h"
#include "tutti/sync/replicated/distributed_optimizer.h"

namespace {

namespace nn = torch::nn;

struct TransformerImpl : nn::Module {
  TransformerImpl()
      : layers(register_module("layers", nn::TransformerEncoder(options()))),
        head(register_module("head", nn::Linear(128, 10))) {}
  static nn::TransformerEncoderOptions options() {
    return {nn::TransformerEncoderLayerOptions(128, 4).dim_feedforward(512).dropout(0), 4};
  }
  at::Tensor forward(const at::Tensor& x) { return head(layers(x).mean(0)); }
  nn::TransformerEncoder layers;
  nn::Linear head;
};
TORCH_MODULE(Transformer);

nn::Sequential make_model(const std::string& name) {
  if (name == "mlp")
    return nn::Sequential(nn::Flatten(), nn::Linear(784, 128), nn::ReLU(), nn::Linear(128, 10));
  if (name == "transformer") return nn::Sequential(Transformer());
  nn::Sequential model;
  int64_t channels = 1;
  for (const int64_t out : {16, 32, 64}) {
    model->push_back(nn::Conv2d(nn::Conv2dOptions(channels, out, 3).padding(1)));
    model->push_back(nn::ReLU());
    model->push_back(nn::MaxPool2d(2));
    channels = out;
  }
  model->push_back(nn::Flatten());
  model->push_back(nn::Linear(64 * 9, 10));
  return model;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: bench_accumulation mlp|cnn|transformer PASSES STEPS\n");
    return 2;
  }
  const std::string name = argv[1];
  const int passes = std::atoi(argv[2]), steps = std::atoi(argv[3]);
  tutti::Group world = tutti::join();
  at::set_num_threads(1);
  nn::Sequential model = make_model(name);
  torch::optim::SGD sgd(model->parameters(), 1e-3);
  tutti::broadcast_parameters(*model, world);
  tutti::DistributedOptimizer optimizer(*model, sgd, world);
  const auto x = name == "transformer" ? torch::randn({32, 8, 128}) : torch::randn({32, 1, 28, 28});
  const auto y = torch::randint(10, {name == "transformer" ? 8 : 32});
  const auto backward = [&] {
    (torch::cross_entropy_loss(model->forward(x), y) / passes).backward();
  };
  const auto train = [&](int count) {
    for (int step = 0; step < count; ++step) {
      optimizer.zero_grad();
      if (passes > 1) {
        const auto apart = optimizer.no_sync();
        for (int pass = 1; pass < passes; ++pass) backward();
      }
      backward();
      optimizer.step();
    }
  };
  train(std::max(1, steps / 5));
  world.barrier();
  const auto begin = std::chrono::steady_clock::now();
  train(steps);
  const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - begin;
  if (world.rank() == 0) std::printf("ms %.4f\n", taken.count() / steps);
}
