// What measuring the gradient noise scale costs a training: the same fit() with and without it.
//
//   bench_noise_scale_cost DATA [MODEL [BATCH [EPOCHS [ROUNDS]]]] [--strategy mirrored --replicas
//   2] tutti run -n 2 bench_noise_scale_cost DATA --strategy multi_worker
//
// DATA is a folder of Quick, Draw! drawings; MODEL (mlp) one of the zoo; BATCH (128) is global;
// EPOCHS (1) of each training, ROUNDS (15). The two take turns, and who begins changes with the
// round. Fails unless both have trained the same weights, bit for bit. Prints a line of JSON:
// median step of each, in ms, and the median over the rounds of their ratio with its least and
// most.
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <exception>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/data/quickdraw.h"
#include "tutti/models/models.h"
#include "tutti/train/model/model.h"

#include "bench/rounds.h"

namespace {

using namespace tutti;

struct Cost {
  const char* folder;
  std::string model;
  int64_t batch, epochs, rounds;
};

class Trained {
 public:
  Trained(const Strategy& strategy, const Cost& cost, bool measures)
      : data_(data::quickdraw(cost.folder, {.split = "train"}).shuffle().batch(cost.batch)),
        model_(strategy, [&] { return models::model_by_name(cost.model, {.classes = 10}); }) {
    model_.compile({.optimizer = optim::sgd({.learning_rate = 0.01, .momentum = 0.9}),
                    .loss = losses::sparse_categorical_crossentropy(),
                    .metrics = {metrics::accuracy()},
                    .noise_scale = measures});
  }

  /// Milliseconds a step.
  double operator()(int64_t epochs) {
    const TimePoint begin = Clock::now();
    const History history = model_.fit(data_, {.epochs = epochs, .verbose = 0});
    const std::chrono::duration<double, std::milli> all = Clock::now() - begin;
    return all.count() / static_cast<double>(history.steps);
  }

  std::string sha256() { return model_.weights_sha256(); }

 private:
  data::Dataset data_;
  Model model_;
};

void measure(const Strategy& strategy, const Cost& cost) {
  Trained without(strategy, cost, false);
  Trained with(strategy, cost, true);
  without(1);
  with(1);
  std::vector<double> plain, measured, ratios;
  for (int64_t round = 0; round < cost.rounds; ++round) {
    if (round % 2 == 0) plain.push_back(without(cost.epochs));
    measured.push_back(with(cost.epochs));
    if (round % 2 == 1) plain.push_back(without(cost.epochs));
    ratios.push_back(measured.back() / plain.back());
  }
  if (without.sha256() != with.sha256())
    throw Error("the weights with and without the noise scale differ");
  if (!strategy.world().chief) return;
  const auto [least, most] = std::ranges::minmax(ratios);
  const nlohmann::ordered_json json = {{"bench", "noise_scale_cost"},
                                       {"model", cost.model},
                                       {"strategy", strategy.kind()},
                                       {"replicas", strategy.num_replicas_in_sync()},
                                       {"global_batch", cost.batch},
                                       {"rounds", cost.rounds},
                                       {"without_step_ms", bench::median(plain)},
                                       {"with_step_ms", bench::median(measured)},
                                       {"ratio", bench::median(ratios)},
                                       {"least", least},
                                       {"most", most}};
  fmt::print("{}\n", json.dump());
}

}  // namespace

int main(int argc, char** argv) {
  const Strategy strategy = strategy_from_flags(argc, argv);
  using bench::number_at;
  const Cost cost{argc > 1 ? argv[1] : nullptr, argc > 2 ? argv[2] : "mlp",
                  number_at(argc, argv, 3, 128), number_at(argc, argv, 4, 1),
                  number_at(argc, argv, 5, 15)};
  if (cost.folder == nullptr || std::min({cost.batch, cost.epochs, cost.rounds}) < 1) {
    fmt::print(stderr,
               "usage: bench_noise_scale_cost DATA [MODEL [BATCH [EPOCHS [ROUNDS]]]] [--strategy "
               "...], each number 1 or more\n");
    return 2;
  }
  try {
    measure(strategy, cost);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
