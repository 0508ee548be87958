// Steps of the networks that `tutti_bench compare` and `tutti_bench scale` train, by the loop that
// a user writes; bench/peer/networks.py has them as PyTorch's.
//
//   bench_network_step NETWORK WORK STEPS WARMUP FILE [PART PARTS] [FLAGS OF A STRATEGY]
//
// WORK is what networks.py wrote: first values and global batches, of which every replica takes its
// part. With PARTS this process is one of so many that never talk, and trains on part PART of each
// batch. FILE gets JSON: the median of the timed steps, the losses of those of the warm-up, and by
// how much training made the processes grow.
#include <fmt/format.h>
#include <malloc.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/base/resident.h"
#include "tutti/models/gpt.h"
#include "tutti/models/models.h"
#include "tutti/nn/graph_module.h"
#include "tutti/nn/layers.h"
#include "tutti/nn/sample_context.h"
#include "tutti/strategy/modules/replicated.h"
#include "tutti/train/losses/losses.h"

#include "bench/dlrm.h"
#include "bench/rounds.h"

namespace {

using namespace tutti;
using Clock = std::chrono::steady_clock;

constexpr int64_t kVocabulary = 65, kPoints = 100, kKinds = 10, kMasks = 4;

struct Network {
  std::function<std::shared_ptr<torch::nn::Module>()> make;
  std::function<at::Tensor(torch::nn::Module&, const at::Tensor&)> forward;
  Loss loss = losses::sparse_categorical_crossentropy();
  optim::Recipe recipe = optim::adam({.learning_rate = 1e-3});
};

nn::Graph lstm() {
  const auto x = nn::input({kPoints, 3});
  return {x, nn::linear(kKinds)(nn::lstm(256, {.layers = 2})(x))};
}

nn::Graph gpt(int64_t layers, int64_t heads, int64_t features, int64_t context) {
  return models::gpt({.vocabulary = kVocabulary,
                      .context = context,
                      .layers = layers,
                      .heads = heads,
                      .features = features});
}

nn::Graph graph_of(const std::string& name) {
  if (name == "resnet18@64") return models::resnet18({.input = {3, 64, 64}});
  if (name == "resnet18@224") return models::resnet18();
  if (name == "resnet50@64") return models::resnet50({.input = {3, 64, 64}});
  if (name == "resnet50@224") return models::resnet50();
  if (name == "gpt4x128") return gpt(4, 4, 128, 64);
  if (name == "gpt6x384") return gpt(6, 6, 384, 256);
  if (name == "lstm") return lstm();
  if (name == "unet") return models::unet({.classes = kMasks});
  if (name == "vit")
    return models::vit({.classes = 1000,
                        .input = {3, 64, 64},
                        .patch = 8,
                        .layers = 6,
                        .heads = 4,
                        .hidden = 256,
                        .mlp = 1024});
  throw UsageError(fmt::format("{}: not a network that tutti_bench compare trains", name));
}

Network network_of(const std::string& name) {
  if (name == "dlrm")
    return {
        .make = [] { return bench::dlrm::Dlrm(ps::NormalRows{.mean = 0.05, .std = 0}).ptr(); },
        .forward = [](torch::nn::Module& module,
                      const at::Tensor& x) { return module.as<bench::dlrm::Dlrm>()->forward(x); },
        .loss = losses::binary_crossentropy(),
        .recipe = optim::adagrad({.learning_rate = 0.01})};
  return {.make = [graph = graph_of(name)] { return nn::make_module(graph); },
          .forward = [](torch::nn::Module& module,
                        const at::Tensor& x) { return module.as<nn::GraphModule>()->forward(x); }};
}

struct Given {
  std::vector<at::Tensor> parameters, inputs, targets;
};

Given read_given(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw UsageError(path + ": cannot be read; bench/peer/networks.py writes it");
  std::vector<char> bytes(std::filesystem::file_size(path));
  if (!file.read(bytes.data(), std::ssize(bytes))) throw UsageError(path + ": cannot be read");
  const auto work = torch::pickle_load(bytes).toGenericDict();
  const auto tensors = [&](const char* name) {
    std::vector<at::Tensor> list;
    for (const c10::IValue& value : work.at(name).toListRef()) list.push_back(value.toTensor());
    return list;
  };
  return {tensors("parameters"), tensors("inputs"), tensors("targets")};
}

void fill(torch::nn::Module& module, const std::vector<at::Tensor>& values) {
  const torch::NoGradGuard no_grad;
  const auto parameters = module.named_parameters();
  if (parameters.size() != values.size())
    throw UsageError(fmt::format("the network has {} parameters, the work of networks.py {}",
                                 parameters.size(), values.size()));
  for (size_t i = 0; i < values.size(); ++i) {
    at::Tensor parameter = parameters[i].value();
    if (parameter.numel() != values[i].numel())
      throw UsageError(fmt::format("{} has {} elements, in the work of networks.py {}",
                                   parameters[i].key(), parameter.numel(), values[i].numel()));
    parameter.copy_(values[i].view_as(parameter));
  }
}

double megabytes(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

// In MB; as the peers do it (peer/talk.py): what was freed before counts for nobody.
double memory_before() {
  malloc_trim(0);
  forget_peak_resident();
  return megabytes(resident_bytes());
}

class Training {
 public:
  Training(const Strategy& strategy, const std::string& name, Given work)
      : strategy_(strategy),
        network_(network_of(name)),
        work_(std::move(work)),
        memory_before_(memory_before()),
        modules_(strategy_,
                 [this](int) {
                   auto module = network_.make();
                   fill(*module, work_.parameters);
                   return module;
                 }),
        optimizer_(modules_, network_.recipe) {}

  nlohmann::ordered_json run(int64_t warmup, int64_t steps) {
    steps_of(0, warmup);
    const std::vector<double> losses = losses_;
    ms_.clear();
    steps_of(warmup, warmup + steps);
    const std::vector<double> grown(
        static_cast<size_t>(strategy_.world().local),
        (megabytes(peak_resident_bytes()) - memory_before_) / strategy_.world().local);
    const double peak =
        strategy_.reduce(ReduceOp::sum, PerReplica<double>(grown, strategy_.world().first_rank));
    return {{"step_ms", bench::median(ms_)}, {"losses", losses}, {"peak_mb", peak}};
  }

 private:
  // The loss of this replica's part, as a share of the global batch's mean.
  double step(ReplicaContext& replica, int64_t number) {
    const auto i = static_cast<size_t>(number) % work_.inputs.size();
    const int64_t batch = work_.inputs[i].size(0), replicas = strategy_.num_replicas_in_sync();
    const int64_t part = batch / replicas, first = part * replica.rank();
    const nn::SampleContext here({.seed = 0, .step = number, .first_row = first});
    optimizer_.prepare(replica);
    double sum = 0;
    const at::Tensor y =
        network_.forward(*modules_.module(replica), work_.inputs[i].narrow(0, first, part));
    const at::Tensor loss = network_.loss.kernel().scaled_sum(
        y, work_.targets[i].narrow(0, first, part), 1 / static_cast<double>(batch), sum);
    optimizer_.minimize(replica, loss);
    return sum / static_cast<double>(batch);
  }

  void steps_of(int64_t from, int64_t to) {
    std::vector<std::vector<double>> losses(static_cast<size_t>(strategy_.world().local));
    strategy_.run([&](ReplicaContext& replica) {
      auto& mine = losses[static_cast<size_t>(replica.local_rank())];
      for (int64_t number = from; number < to; ++number) {
        const auto begin = Clock::now();
        mine.push_back(step(replica, number));
        const std::chrono::duration<double, std::milli> taken = Clock::now() - begin;
        if (replica.local_rank() == 0) ms_.push_back(taken.count());
      }
    });
    losses_.clear();
    for (size_t i = 0; i < static_cast<size_t>(to - from); ++i) {
      std::vector<double> of_step;
      for (const auto& mine : losses) of_step.push_back(mine[i]);
      losses_.push_back(strategy_.reduce(
          ReduceOp::sum, PerReplica<double>(of_step, strategy_.world().first_rank)));
    }
  }

  Strategy strategy_;
  Network network_;
  Given work_;
  double memory_before_;
  ReplicatedModules modules_;
  Optimizer optimizer_;
  std::vector<double> ms_;      // of the first local replica
  std::vector<double> losses_;  // of the global batches
};

// Of each batch one of `parts` parts.
void keep_part(Given& work, int64_t part, int64_t parts) {
  for (auto* list : {&work.inputs, &work.targets})
    for (at::Tensor& tensor : *list) {
      const int64_t rows = tensor.size(0) / parts;
      tensor = tensor.narrow(0, part * rows, rows).clone();
    }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Strategy strategy = strategy_from_flags(argc, argv);
    const int64_t steps = bench::number_at(argc, argv, 3, 0),
                  warmup = bench::number_at(argc, argv, 4, -1),
                  part = bench::number_at(argc, argv, 6, 0),
                  parts = bench::number_at(argc, argv, 7, 1);
    if ((argc != 6 && argc != 8) || steps < 1 || warmup < 0 || part < 0 || part >= parts) {
      fmt::print(stderr,
                 "usage: {} NETWORK WORK STEPS WARMUP FILE [PART PARTS] [FLAGS OF A STRATEGY]\n",
                 argv[0]);
      return 2;
    }
    Given work = read_given(argv[2]);
    if (parts > 1) keep_part(work, part, parts);
    Training training(strategy, argv[1], std::move(work));
    const nlohmann::ordered_json json = training.run(warmup, steps);
    if (strategy.world().chief) std::ofstream(argv[5]) << json.dump() << "\n";
  } catch (const UsageError& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
