// Training steps on a device, of tutti and of plain LibTorch: what `tools/gpu_check` holds against
// PyTorch (bench/peer/device_step.py) and against each other, in turn.
//
//   bench_device_speed ours  [--strategy mirrored --device cuda:0x2 ...]   flags of a Strategy
//   bench_device_speed plain [--device cuda]    torch::optim::Adam, mlp and wide, no line of ours
//
// Commands on stdin and answers on stdout are those of bench/peer/talk.py. Samples are random and
// stay on the device; a measurement ends when the device has done all steps.
#include <fmt/format.h>
#include <torch/torch.h>

#include <cstdio>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/models/models.h"
#include "tutti/nn/graph_module.h"
#include "tutti/queues/runtime.h"
#include "tutti/strategy/input/distributed_dataset.h"
#include "tutti/strategy/modules/replicated.h"
#include "tutti/strategy/optimizer/loss_scaling.h"

#include "bench/torch_errors.h"

namespace {

using namespace tutti;

constexpr double kRate = 1e-3;
constexpr const char* kUsage = "usage: bench_device_speed ours|plain [--device cuda ...]";

class Trainer {
 public:
  virtual ~Trainer() = default;
  virtual void train(int64_t steps) = 0;  ///< returns when the device has done them
  virtual double loss() = 0;              ///< of the last step, over the batch
};

bool is_photo(const std::string& model) { return model == "resnet18"; }
int64_t classes_of(const std::string& model) { return is_photo(model) ? 1000 : 10; }
std::vector<int64_t> shape_of(const std::string& model, int64_t batch) {
  return is_photo(model) ? std::vector<int64_t>{batch, 3, 224, 224}
                         : std::vector<int64_t>{batch, 1, 28, 28};
}

struct Samples {
  at::Tensor x, y;
};

Samples samples_of(const std::string& model, int64_t batch, at::Device device) {
  return {torch::rand(shape_of(model, batch)).to(device),
          torch::randint(classes_of(model), {batch}, at::kLong).to(device)};
}

class Ours final : public Trainer {
 public:
  Ours(Strategy strategy, const std::string& model, int64_t batch)
      : strategy_(std::move(strategy)),
        batch_(batch),
        net_(strategy_,
             [&] {
               return nn::make_module(is_photo(model) ? models::resnet18()
                                                      : models::model_by_name(model));
             }),
        optimizer_(net_, optim::adam({.learning_rate = kRate})),
        samples_(strategy_.run([&](ReplicaContext& replica) {
          return samples_of(model, batch / replica.num_replicas_in_sync(), replica.device());
        })),
        losses_(samples_.values().size()) {}

  void train(int64_t steps) override {
    strategy_.run([&](ReplicaContext& replica) {
      const auto& [x, y] = samples_.local(replica);
      const auto net = net_.local(replica);
      std::vector<at::Tensor> each;
      for (int64_t step = 0; step < steps; ++step)
        each = optimizer_.minimize(replica, {x, y}, [&](at::TensorList in) -> StepLoss {
          const auto losses =
              torch::cross_entropy_loss(net->forward(in[0]), in[1], {}, at::Reduction::None);
          return {.loss = average_loss(losses, batch_), .outputs = {losses}};
        });
      if (steps > 0) losses_[static_cast<size_t>(replica.local_rank())] = each[0];
      replica.queue().drain(Deadline(replica.time_limit()), "the timed steps");
    });
  }

  double loss() override {
    double sum = 0;
    for (const at::Tensor& each : losses_) sum += each.sum().item<double>();
    return sum / static_cast<double>(batch_);
  }

 private:
  Strategy strategy_;
  int64_t batch_;
  Replicated<nn::GraphModule> net_;
  Optimizer optimizer_;
  PerReplica<Samples> samples_;
  std::vector<at::Tensor> losses_;  // of each replica's samples, in the last step
};

namespace plain {

torch::nn::Sequential model_of(const std::string& name) {
  namespace nn = torch::nn;
  if (name == "mlp")
    return nn::Sequential(nn::Flatten(), nn::Linear(784, 128), nn::ReLU(), nn::Linear(128, 10));
  if (name == "wide")
    return nn::Sequential(nn::Flatten(), nn::Linear(784, 2048), nn::ReLU(), nn::Linear(2048, 2048),
                          nn::ReLU(), nn::Linear(2048, 10));
  throw UsageError(fmt::format("plain: model {}; expected mlp or wide", name));
}

class Plain final : public Trainer {
 public:
  Plain(at::Device device, const std::string& model, int64_t batch)
      : net_(model_of(model)), samples_(samples_of(model, batch, device)) {
    net_->to(device);
    optimizer_.emplace(net_->parameters(), torch::optim::AdamOptions(kRate));
  }

  void train(int64_t steps) override {
    for (int64_t step = 0; step < steps; ++step) {
      optimizer_->zero_grad();
      loss_ = torch::cross_entropy_loss(net_->forward(samples_.x), samples_.y);
      loss_.backward();
      optimizer_->step();
    }
    net_->parameters().back().sum().item<float>();  // behind the last update
  }

  double loss() override { return loss_.item<double>(); }

 private:
  torch::nn::Sequential net_;
  Samples samples_;
  std::optional<torch::optim::Adam> optimizer_;
  at::Tensor loss_;
};

}  // namespace plain

using MakeTrainer = std::function<std::unique_ptr<Trainer>(const std::string&, int64_t)>;

void answer_commands(const MakeTrainer& make, bool on_device) {
  fmt::print("{}\n", nlohmann::json{{"torch", TORCH_VERSION}}.dump());
  std::fflush(stdout);
  std::unique_ptr<Trainer> trainer;
  std::tuple<std::string, int64_t> key;
  for (std::string line; std::getline(std::cin, line);) {
    const auto command = nlohmann::json::parse(line);
    const auto batch = command.at("batch").get<int64_t>(),
               steps = command.at("steps").get<int64_t>();
    if (const std::tuple asked(command.at("model").get<std::string>(), batch);
        !trainer || asked != key) {
      trainer.reset();  // one model in memory, as in the peers
      trainer = std::apply(make, asked);
      key = asked;
    }
    trainer->train(command.at("warmup").get<int64_t>());
    const auto begin = Clock::now();
    trainer->train(steps);
    const std::chrono::duration<double> seconds = Clock::now() - begin;
    nlohmann::json answer = {
        {"images_per_second", static_cast<double>(batch * steps) / seconds.count()},
        {"step_ms", 1000 * seconds.count() / static_cast<double>(steps)},
        {"loss", trainer->loss()}};
    if (on_device) answer["peak_bytes"] = DeviceRuntime::load().memory(0).peak;
    fmt::print("{}\n", answer.dump());
    std::fflush(stdout);
  }
}

int run(int argc, char** argv) {
  const StrategyOptions options = take_strategy_flags(argc, argv);
  if (argc > 2) throw UsageError(fmt::format("unknown argument {}\n{}", argv[2], kUsage));
  const std::string mode = argc == 2 ? argv[1] : "";
  if (mode == "ours") {
    const Strategy strategy(options);
    answer_commands([&](const std::string& model,
                        int64_t batch) { return std::make_unique<Ours>(strategy, model, batch); },
                    strategy.world().on_devices());
  } else if (mode == "plain") {
    const bool on_device = options.device != "cpu";
    if (on_device) DeviceRuntime::load().require_any();  // before torch's first look at it
    answer_commands(
        [&](const std::string& model, int64_t batch) {
          return std::make_unique<plain::Plain>(on_device ? at::kCUDA : at::kCPU, model, batch);
        },
        on_device);
  } else {
    throw UsageError(kUsage);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return bench::reporting_errors([&] { return run(argc, argv); });
}
