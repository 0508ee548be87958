// What gradient accumulation and bfloat16 are worth: training steps in five modes, alternating in
// one run, so that all see the same machine.
//
//   plain          an update each batch of 64 samples a replica       the peer of the others
//   accumulated    an update every 4 batches, nothing sent in between
//   large          an update each batch of 256: the same samples to an update as accumulated
//   bfloat16       plain, computed in bfloat16
//   both           accumulated, computed in bfloat16
//
//   bench_precision [ROUNDS [STEPS]] [--strategy mirrored --replicas 2 ...]
//   tutti run -n 2 bench_precision --strategy multi_worker
//
// A round measures every mode once, over STEPS batches of 64 a replica (40); the table has medians
// of ROUNDS (7) rounds: samples a second, and their ratio to plain in the same round with its least
// and most. Samples are random and stay in memory. One line of JSON a model.
#include "tutti/nn/precision.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/base/deadline.h"
#include "tutti/models/models.h"
#include "tutti/nn/graph_module.h"
#include "tutti/strategy/modules/replicated.h"
#include "tutti/train/losses/losses.h"

#include "bench/rounds.h"

namespace {

using namespace tutti;

constexpr int64_t kBatch = 64;  // of a replica
constexpr int64_t kGroup = 4;
constexpr int64_t kWarmUp = 8;

struct Mode {
  const char* name;
  Precision precision;
  int64_t accumulate;
  int64_t batch;
};

const std::vector<Mode> kModes = {{"plain", Precision::float32, 1, kBatch},
                                  {"accumulated", Precision::float32, kGroup, kBatch},
                                  {"large", Precision::float32, 1, kGroup* kBatch},
                                  {"bfloat16", Precision::bfloat16, 1, kBatch},
                                  {"both", Precision::bfloat16, kGroup, kBatch}};

// One mode's replicas, which stay alive between rounds.
class Training {
 public:
  Training(Strategy strategy, const nn::Graph& graph, const Mode& mode)
      : mode_(mode),
        strategy_(std::move(strategy)),
        net_(strategy_, [graph] { return nn::make_module(graph); }),
        optimizer_(net_, optim::adam()),
        x_(torch::rand({mode.batch, 1, 28, 28})),
        y_(torch::randint(0, 10, {mode.batch}, torch::kLong)) {
    run(kWarmUp * kBatch);
  }

  /// Samples a second, of all replicas, over so many of each.
  double run(int64_t samples) {
    const auto begin = Clock::now();
    strategy_.run([&](ReplicaContext& replica) {
      for (int64_t batch = 0; batch < samples / mode_.batch; ++batch) step(replica, batch);
    });
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    return static_cast<double>(samples * strategy_.num_replicas_in_sync()) / seconds;
  }

 private:
  void step(ReplicaContext& replica, int64_t batch) {
    const at::Tensor outputs = [&] {
      const Autocast autocast(mode_.precision);
      return net_.local(replica)->forward(x_).to(at::kFloat);
    }();
    const auto all =
        static_cast<double>(mode_.batch * mode_.accumulate * strategy_.num_replicas_in_sync());
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
  at::Tensor x_, y_;
  Loss loss_ = losses::sparse_categorical_crossentropy();
};

void measure(const Strategy& strategy, const std::string& model, int rounds, int64_t steps) {
  const nn::Graph graph = models::model_by_name(model);
  std::vector<std::unique_ptr<Training>> trainings;
  for (const Mode& mode : kModes)
    trainings.push_back(std::make_unique<Training>(strategy, graph, mode));
  std::vector<std::vector<double>> rates(kModes.size()), ratios(kModes.size());
  for (int round = 0; round < rounds; ++round)
    for (size_t i = 0; i < kModes.size(); ++i) {
      rates[i].push_back(trainings[i]->run(steps * kBatch));
      ratios[i].push_back(rates[i].back() / rates[0].back());
    }
  if (!strategy.world().chief) return;
  nlohmann::ordered_json json = {{"bench", "precision"},
                                 {"model", model},
                                 {"strategy", strategy.kind()},
                                 {"replicas", strategy.num_replicas_in_sync()},
                                 {"batch", kBatch},
                                 {"rounds", rounds}};
  for (size_t i = 0; i < kModes.size(); ++i) {
    const auto [least, most] = std::ranges::minmax(ratios[i]);
    fmt::print("{:<6} {:<12} {:>12.0f} {:>7.2f} ({:.2f}, {:.2f})\n", model, kModes[i].name,
               bench::median(rates[i]), bench::median(ratios[i]), least, most);
    json[kModes[i].name] = {{"samples_per_second", bench::median(rates[i])},
                            {"ratio", bench::median(ratios[i])}};
  }
  fmt::print("{}\n", json.dump());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const Strategy strategy = strategy_from_flags(argc, argv);
  const auto at_least_one = [&](int place, int64_t otherwise) {
    return std::max<int64_t>(1, bench::number_at(argc, argv, place, otherwise));
  };
  const auto rounds = static_cast<int>(at_least_one(1, 7));
  const int64_t steps = (at_least_one(2, 40) + kGroup - 1) / kGroup * kGroup;
  if (strategy.world().chief)
    fmt::print("{:<6} {:<12} {:>12} {:>7} (least, most)\n", "model", "mode", "samples/s", "ratio");
  for (const char* model : {"mlp", "cnn", "wide"}) measure(strategy, model, rounds, steps);
}
