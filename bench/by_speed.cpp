// What shares by speed gain where one of the replicas computes at half the speed of the others:
// steps with equal shares, and with --shares by-speed, in turn.
//
//   bench_by_speed emulated [ROWS [STEPS [ROUNDS]]] --strategy mirrored --replicas 2
//   tutti run -n 2 bench_by_speed emulated [ROWS [STEPS [ROUNDS]]] --strategy multi_worker
//   tutti run -n 2 bench_by_speed real [ROWS [STEPS [ROUNDS]]] --strategy multi_worker
//
// ROWS of a global batch (64), STEPS of a training (120), ROUNDS of both (5). emulated: a row takes
// 0.4 ms on each replica and 0.8 ms on the last, a timed sleep beside a network that costs nothing:
// what devices of their own would do, on any number of cores. real: dense layers are computed, and
// the last worker sleeps as long again (FitOptions::slow).
//
// Prints a line of JSON: median step of each in ms and their ratio with its least and most over the
// rounds, of the steps after the last change; the ratio of whole trainings, first looks included;
// and the shares in the end.
#include <fmt/format.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/strategy/input/from_tensors.h"
#include "tutti/strategy/moving_shares.h"
#include "tutti/train/model/model.h"

#include "bench/rounds.h"
#include "bench/torch_errors.h"

namespace {

using namespace tutti;

constexpr int64_t kFeatures = 64;
constexpr std::chrono::microseconds kRow{400};

bool is_slow(int rank, int replicas) { return rank + 1 == replicas; }

struct Emulated : torch::nn::Module {
  Emulated() { layer = register_module("layer", torch::nn::Linear(kFeatures, 4)); }
  at::Tensor forward(const at::Tensor& x) {
    const ReplicaContext& replica = *ReplicaContext::current();
    const int times = is_slow(replica.rank(), replica.num_replicas_in_sync()) ? 2 : 1;
    std::this_thread::sleep_for(times * x.size(0) * kRow);
    return layer->forward(x);
  }
  torch::nn::Linear layer{nullptr};
};

struct Setting {
  StrategyOptions options;
  bool real = false;
  int64_t rows = 64, steps = 120;
};

struct Timed {
  double settled_ms = 0;  // a step after the last change
  double whole_ms = 0;    // of all steps
  std::vector<int64_t> shares;
};

Model make_model(const Strategy& strategy, bool real) {
  if (!real) return Model(strategy, [] { return Emulated(); });
  return Model(strategy, [] {
    const auto wide = [](int64_t in, int64_t out) { return torch::nn::Linear(in, out); };
    return torch::nn::Sequential(wide(kFeatures, 1024), torch::nn::ReLU(), wide(1024, 1024),
                                 torch::nn::ReLU(), wide(1024, 4));
  });
}

Timed train(const Setting& setting, const data::Dataset& data, bool by_speed) {
  StrategyOptions options = setting.options;
  if (by_speed) options.by_speed.emplace();
  const Strategy strategy(options);
  Model model = make_model(strategy, setting.real);
  model.compile({.optimizer = optim::sgd({.learning_rate = 0.01}),
                 .loss = losses::sparse_categorical_crossentropy()});
  FitOptions fit{.epochs = 1, .max_steps = setting.steps, .verbose = 0};
  if (setting.real && is_slow(strategy.world().first_rank, strategy.world().size))
    fit.slow = SlowWorker{.factor = 2};
  const std::vector<float> steps = model.fit(data, fit).step_ms;

  Timed timed;
  auto settled = steps.begin() + std::ssize(steps) / 4;
  if (const MovingShares* moving = strategy.moving_shares())
    for (const data::SharesFrom& change : moving->schedule().changes) {
      settled = steps.begin() + std::min<int64_t>(change.step + 1, std::ssize(steps) - 1);
      timed.shares = change.shares;
    }
  timed.settled_ms = bench::median({settled, steps.end()});
  for (const float step : steps) timed.whole_ms += step;
  return timed;
}

int measure(int argc, char** argv) {
  Setting setting{.options = take_strategy_flags(argc, argv)};
  const std::string how = argc > 1 ? argv[1] : "";
  if (how != "emulated" && how != "real")
    throw UsageError("usage: bench_by_speed emulated|real [ROWS [STEPS [ROUNDS]]] --strategy ...");
  setting.real = how == "real";
  setting.rows = bench::number_at(argc, argv, 2, setting.rows);
  setting.steps = bench::number_at(argc, argv, 3, setting.steps);
  const int64_t rounds = bench::number_at(argc, argv, 4, 5);
  setting.options.threads_per_replica = 1;

  torch::manual_seed(1);
  const int64_t samples = setting.rows * setting.steps;
  const auto data =
      data::from_tensors({torch::rand({samples, kFeatures}), torch::randint(0, 4, {samples})})
          .batch(setting.rows);
  Timed equal, moved;
  std::vector<double> wholes;
  const auto ratios = bench::in_turn(
      rounds,
      [&] {
        moved = train(setting, data, true);
        return moved.settled_ms;
      },
      [&] {
        equal = train(setting, data, false);
        wholes.push_back(equal.whole_ms / moved.whole_ms);
        return equal.settled_ms;
      });
  const Strategy last(setting.options);
  if (!last.world().chief) return 0;
  fmt::print("{}\n", nlohmann::ordered_json{{"replicas", last.num_replicas_in_sync()},
                                            {"strategy", last.kind()},
                                            {"how", how},
                                            {"rows", setting.rows},
                                            {"steps", setting.steps},
                                            {"rounds", rounds},
                                            {"by_speed_ms", ratios.one},
                                            {"equal_ms", ratios.other},
                                            {"ratio", ratios.ratio},
                                            {"least", ratios.least},
                                            {"most", ratios.most},
                                            {"ratio_whole", bench::median(wholes)},
                                            {"shares", moved.shares}}
                         .dump());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return bench::reporting_errors([&] { return measure(argc, argv); });
}
