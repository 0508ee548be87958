// One replica in plain LibTorch with torch::optim: what `tutti_bench compare` holds one of ours
// against. It shares no line of training with the library; only doodles are read through it.
//
//   bench_plain_libtorch mlp|cnn|wide DIR BATCH STEPS WARMUP     one thread; prints a line of JSON
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tutti/data/quickdraw.h"
#include "tutti/sync/tensors.h"

namespace {

namespace nn = torch::nn;
constexpr int64_t kPreloaded = 32;

nn::Sequential make_model(const std::string& name) {
  if (name == "mlp")
    return nn::Sequential(nn::Flatten(), nn::Linear(784, 128), nn::ReLU(), nn::Linear(128, 10));
  if (name == "wide")
    return nn::Sequential(nn::Flatten(), nn::Linear(784, 2048), nn::ReLU(), nn::Linear(2048, 2048),
                          nn::ReLU(), nn::Linear(2048, 10));
  nn::Sequential model;
  int64_t channels = 1;
  for (const int64_t out : {16, 32, 64}) {
    model->push_back(nn::Conv2d(nn::Conv2dOptions(channels, out, 3).padding(1)));
    model->push_back(nn::ReLU());
    model->push_back(nn::MaxPool2d(2));
    channels = out;
  }
  model->push_back(nn::Flatten());
  model->push_back(nn::Linear(576, 128));
  model->push_back(nn::ReLU());
  model->push_back(nn::Linear(128, 10));
  return model;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: bench_plain_libtorch mlp|cnn|wide DIR BATCH STEPS WARMUP\n");
    return 2;
  }
  const int64_t batch = std::atoll(argv[3]), steps = std::atoll(argv[4]),
                warmup = std::atoll(argv[5]);
  at::set_num_threads(1);
  torch::manual_seed(7);
  auto model = make_model(argv[1]);
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-3));

  const auto epoch = tutti::data::quickdraw(argv[2]).shuffle().batch(batch).epoch({.seed = 7});
  std::vector<std::pair<at::Tensor, at::Tensor>> batches;
  for (int64_t i = 0; i < std::min(kPreloaded, epoch.num_batches()); ++i) {
    const auto read = epoch.batch(i);
    batches.emplace_back(tutti::tensor_of(read.columns[0]), tutti::tensor_of(read.columns[1]));
  }

  at::Tensor loss;
  const auto train = [&](int64_t count) {
    for (int64_t step = 0; step < count; ++step) {
      const auto& [x, y] = batches[step % batches.size()];
      optimizer.zero_grad();
      loss = torch::cross_entropy_loss(model->forward(x), y);
      loss.backward();
      optimizer.step();
    }
  };
  train(warmup);
  const auto begin = std::chrono::steady_clock::now();
  train(steps);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::printf("{\"images_per_second\": %.1f, \"step_ms\": %.4f, \"loss\": %.5f}\n",
              static_cast<double>(batch * steps) / seconds.count(),
              1000 * seconds.count() / static_cast<double>(steps), loss.item<double>());
  return 0;
}
