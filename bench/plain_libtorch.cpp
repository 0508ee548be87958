// One replica in plain LibTorch with torch::optim: what `tutti_bench compare` holds one of ours
// against. It shares no line of training with the library; only doodles are read through it.
//
//   bench_plain_libtorch mlp|cnn|wide DIR BATCH STEPS WARMUP     one thread; prints a line of JSON
//
// Denormals are flushed, and the cnn is channels last where that is faster here, as ours does both.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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

// A model, its optimizer and its batches in one memory format.
class Training {
 public:
  using Batches = std::vector<std::pair<at::Tensor, at::Tensor>>;

  Training(const std::string& name, Batches batches, at::MemoryFormat format)
      : batches_(std::move(batches)) {
    torch::manual_seed(7);
    model_ = make_model(name);
    for (at::Tensor& parameter : model_->parameters())
      if (parameter.dim() == 4) parameter.set_data(parameter.detach().contiguous(format));
    for (auto& [x, y] : batches_) x = x.contiguous(format);
    optimizer_.emplace(model_->parameters(), torch::optim::AdamOptions(1e-3));
  }

  double seconds(int64_t steps) {
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t step = 0; step < steps; ++step) {
      const auto& [x, y] = batches_[step % batches_.size()];
      optimizer_->zero_grad();
      loss_ = torch::cross_entropy_loss(model_->forward(x), y);
      loss_.backward();
      optimizer_->step();
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    return taken.count();
  }
  double loss() const { return loss_.item<double>(); }

 private:
  nn::Sequential model_{nullptr};
  std::optional<torch::optim::Adam> optimizer_;
  Batches batches_;
  at::Tensor loss_;
};

// The faster one, each after as many steps of warm-up.
Training fastest(const std::string& name, const Training::Batches& batches, int64_t warmup) {
  Training plain(name, batches, at::MemoryFormat::Contiguous);
  plain.seconds(warmup);
  if (name != "cnn") return plain;
  Training last(name, batches, at::MemoryFormat::ChannelsLast);
  last.seconds(warmup);
  const int64_t steps = std::max<int64_t>(1, warmup);
  return plain.seconds(steps) < last.seconds(steps) ? std::move(plain) : std::move(last);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: bench_plain_libtorch mlp|cnn|wide DIR BATCH STEPS WARMUP\n");
    return 2;
  }
  const int64_t batch = std::atoll(argv[3]), steps = std::atoll(argv[4]),
                warmup = std::atoll(argv[5]);
  at::globalContext().setFlushDenormal(true);
  at::set_num_threads(1);

  const auto epoch = tutti::data::quickdraw(argv[2]).shuffle().batch(batch).epoch({.seed = 7});
  Training::Batches batches;
  for (int64_t i = 0; i < std::min(kPreloaded, epoch.num_batches()); ++i) {
    const auto read = epoch.batch(i);
    batches.emplace_back(tutti::tensor_of(read.columns[0]), tutti::tensor_of(read.columns[1]));
  }

  Training training = fastest(argv[1], batches, warmup);
  const double seconds = training.seconds(steps);
  std::printf("{\"images_per_second\": %.1f, \"step_ms\": %.4f, \"loss\": %.5f}\n",
              static_cast<double>(batch * steps) / seconds,
              1000 * seconds / static_cast<double>(steps), training.loss());
  return 0;
}
