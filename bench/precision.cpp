// What gradient accumulation and bfloat16 are worth: training steps in five modes, alternating in
// one run, so that all see the same machine.
//
//   plain          an update each batch of 64 samples a replica       the peer of the others
//   accumulated    an update every 4 batches, nothing sent in between
//   large          an update each batch of 256: the same samples to an update as accumulated
//   bfloat16       plain, computed in bfloat16
//   both           accumulated, computed in bfloat16
//   autocast       plain, in bfloat16 by LibTorch's autocast instead of the plan
//
//   bench_precision [ROUNDS [STEPS [NETWORKS]]] [--strategy mirrored --replicas 2 ...]
//   bench_precision 5 4 resnet50,gpt-4x128,gpt-6x384 --strategy mirrored --replicas 2
//   tutti run -n 2 bench_precision --strategy multi_worker
//
// NETWORKS are mlp, cnn and wide, of doodles, in all modes, 64 samples a replica; resnet18 and
// resnet50, of photos of 64 x 64, 32 a replica, and GPTs of 4 x 128 (context 64, 12 a replica) and
// 6 x 384 (context 256, 4 a replica), plain, in bfloat16 and by autocast. A round measures every
// mode once, over STEPS such batches (40); the table has medians of ROUNDS (7) rounds: samples a
// second, and their ratio to plain in the same round with its least and most. Samples are random
// and stay in memory. One line of JSON a network.
#include "tutti/nn/precision.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/base/deadline.h"
#include "tutti/models/gpt.h"
#include "tutti/models/models.h"
#include "tutti/nn/graph_module.h"
#include "tutti/strategy/modules/replicated.h"
#include "tutti/train/losses/losses.h"

#include "bench/rounds.h"

namespace {

using namespace tutti;

constexpr int64_t kGroup = 4;

struct Mode {
  const char* name;
  Precision precision;
  int64_t accumulate;
  int64_t batches;  // in one
  bool planned = true;
};

const std::vector<Mode> kModes = {{"plain", Precision::float32, 1, 1},
                                  {"accumulated", Precision::float32, kGroup, 1},
                                  {"large", Precision::float32, 1, kGroup},
                                  {"bfloat16", Precision::bfloat16, 1, 1},
                                  {"both", Precision::bfloat16, kGroup, 1}};
const std::vector<Mode> kModesOfLarge = {
    kModes[0], kModes[3], {"autocast", Precision::bfloat16, 1, 1, false}};

struct Network {
  std::string name;
  nn::Graph graph;
  int64_t batch;  // of a replica
  const std::vector<Mode>& modes;
  bool of_text = false;
  int64_t group = 1;  // batches come in multiples of it

  std::pair<at::Tensor, at::Tensor> samples(int64_t count) const {
    constexpr int64_t kClasses = 10;
    std::vector<int64_t> shape = graph.input_shape();
    shape.insert(shape.begin(), count);
    const at::Tensor x =
        of_text ? torch::randint(0, kClasses, shape, torch::kLong) : torch::rand(shape);
    return {x, torch::randint(0, kClasses, of_text ? shape : std::vector{count}, torch::kLong)};
  }
};

Network network_by_name(const std::string& name) {
  const auto gpt = [&](int64_t layers, int64_t heads, int64_t features, int64_t context,
                       int64_t batch) {
    return Network{name,
                   models::gpt({.vocabulary = 65,
                                .context = context,
                                .layers = layers,
                                .heads = heads,
                                .features = features}),
                   batch, kModesOfLarge, /*of_text=*/true};
  };
  if (name == "gpt-4x128") return gpt(4, 4, 128, 64, 12);
  if (name == "gpt-6x384") return gpt(6, 6, 384, 256, 4);
  if (name.starts_with("resnet"))
    return {name, models::model_by_name(name, {.classes = 10, .input = {3, 64, 64}}), 32,
            kModesOfLarge};
  return {.name = name,
          .graph = models::model_by_name(name),
          .batch = 64,
          .modes = kModes,
          .group = kGroup};
}

// One mode's replicas, which stay alive between rounds.
class Training {
 public:
  Training(Strategy strategy, const Network& network, const Mode& mode)
      : mode_(mode),
        strategy_(std::move(strategy)),
        net_(strategy_,
             [graph = network.graph, planned = mode.planned] {
               auto module = nn::make_module(graph);
               module->set_planned(planned);
               return module;
             }),
        optimizer_(net_, optim::adam()),
        batch_(network.batch * mode.batches) {
    std::tie(x_, y_) = network.samples(batch_);
    run(2 * network.group);
  }

  /// Samples a second, of all replicas, over so many batches of each.
  double run(int64_t batches) {
    const auto begin = Clock::now();
    strategy_.run([&](ReplicaContext& replica) {
      for (int64_t batch = 0; batch < batches / mode_.batches; ++batch) step(replica, batch);
    });
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    const int64_t samples = batches / mode_.batches * batch_ * strategy_.num_replicas_in_sync();
    return static_cast<double>(samples) / seconds;
  }

 private:
  void step(ReplicaContext& replica, int64_t batch) {
    const at::Tensor outputs = [&] {
      const Autocast autocast(mode_.precision);
      return net_.local(replica)->forward(x_).to(at::kFloat);
    }();
    const auto all =
        static_cast<double>(y_.numel() * mode_.accumulate * strategy_.num_replicas_in_sync());
    double sum = 0;
    const at::Tensor loss = loss_.kernel().scaled_sum(outputs, y_, 1 / all, sum);
    if ((batch + 1) % mode_.accumulate == 0)
      optimizer_.minimize(replica, loss);
    else
      optimizer_.accumulate(replica, loss);
  }

  Mode mode_;
  Strategy strategy_;
  Replicated<nn::GraphModule> net_;
  Optimizer optimizer_;
  int64_t batch_;
  at::Tensor x_, y_;
  Loss loss_ = losses::sparse_categorical_crossentropy();
};

void measure(const Strategy& strategy, const Network& network, int rounds, int64_t asked) {
  const int64_t steps = (asked + network.group - 1) / network.group * network.group;
  std::vector<std::unique_ptr<Training>> trainings;
  for (const Mode& mode : network.modes)
    trainings.push_back(std::make_unique<Training>(strategy, network, mode));
  std::vector<std::vector<double>> rates(network.modes.size()), ratios(network.modes.size());
  for (int round = 0; round < rounds; ++round)
    for (size_t i = 0; i < network.modes.size(); ++i) {
      rates[i].push_back(trainings[i]->run(steps));
      ratios[i].push_back(rates[i].back() / rates[0].back());
    }
  if (!strategy.world().chief) return;
  nlohmann::ordered_json json = {
      {"bench", "precision"},        {"model", network.name},
      {"strategy", strategy.kind()}, {"replicas", strategy.num_replicas_in_sync()},
      {"batch", network.batch},      {"rounds", rounds}};
  for (size_t i = 0; i < network.modes.size(); ++i) {
    const char* const mode = network.modes[i].name;
    const auto [least, most] = std::ranges::minmax(ratios[i]);
    fmt::print("{:<10} {:<12} {:>12.1f} {:>7.2f} ({:.2f}, {:.2f})\n", network.name, mode,
               bench::median(rates[i]), bench::median(ratios[i]), least, most);
    json[mode] = {{"samples_per_second", bench::median(rates[i])},
                  {"ratio", bench::median(ratios[i])}};
  }
  fmt::print("{}\n", json.dump());
  std::fflush(stdout);
}

std::vector<std::string> split(const std::string& names) {
  std::vector<std::string> parts;
  std::istringstream in(names);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

}  // namespace

int main(int argc, char** argv) {
  const Strategy strategy = strategy_from_flags(argc, argv);
  const auto at_least_one = [&](int place, int64_t otherwise) {
    return std::max<int64_t>(1, bench::number_at(argc, argv, place, otherwise));
  };
  const auto rounds = static_cast<int>(at_least_one(1, 7));
  const int64_t steps = at_least_one(2, 40);
  if (strategy.world().chief)
    fmt::print("{:<10} {:<12} {:>12} {:>7} (least, most)\n", "model", "mode", "samples/s", "ratio");
  const bool named = argc > 3 && argv[3][0] != '-';
  for (const std::string& name : split(named ? argv[3] : "mlp,cnn,wide"))
    measure(strategy, network_by_name(name), rounds, steps);
}
