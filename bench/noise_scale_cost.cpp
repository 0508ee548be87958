// What measuring the gradient noise scale costs a training: the same fit() with and without it.
//
//   bench_noise_scale_cost DATA [MODEL [BATCH [EPOCHS [ROUNDS]]]] [--strategy mirrored --replicas
//   2] tutti run -n 2 bench_noise_scale_cost DATA --strategy multi_worker
//
// DATA is a folder of Quick, Draw! drawings; MODEL (mlp) one of the zoo; BATCH (128) is global;
// EPOCHS (1) of each training, ROUNDS (15). The two take turns, and who begins changes with the
// round. Fails unless both have trained the same weights, bit for bit. Prints a line of JSON:
// median step of each, in ms, and the median over the rounds of their ratio with its least and
// most; and that of CPU time, which other programs disturb less where no replica waits for another
// (--strategy one_device).
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <ctime>
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

// Of a step, in ms; cpu: of the process.
struct Took {
  double wall = 0;
  double cpu = 0;
};

class Trained {
 public:
  Trained(const Strategy& strategy, const Cost& cost, bool measures)
      : data_(data::quickdraw(cost.folder, {.split = "train"}).shuffle().batch(cost.batch)),
        model_(strategy, [&] { return models::model_by_name(cost.model, {.classes = 10}); }) {
    model_.compile({.optimizer = optim::sgd({.learning_rate = 0.01, .momentum = 0.9}),
                    .loss = losses::sparse_categorical_crossentropy(),
                    .metrics = {metrics::accuracy()},
                    .measures = {.noise_scale = measures}});
  }

  Took operator()(int64_t epochs) {
    const TimePoint begin = Clock::now();
    const std::clock_t cpu_begin = std::clock();
    const History history = model_.fit(data_, {.epochs = epochs, .verbose = 0});
    const std::chrono::duration<double, std::milli> all = Clock::now() - begin;
    const double cpu = 1e3 * static_cast<double>(std::clock() - cpu_begin) / CLOCKS_PER_SEC;
    const auto steps = static_cast<double>(history.steps);
    return {all.count() / steps, cpu / steps};
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
  std::vector<double> plain, measured, ratios, cpu_ratios;
  for (int64_t round = 0; round < cost.rounds; ++round) {
    Took one, other;
    if (round % 2 == 0) one = without(cost.epochs);
    other = with(cost.epochs);
    if (round % 2 == 1) one = without(cost.epochs);
    plain.push_back(one.wall);
    measured.push_back(other.wall);
    ratios.push_back(other.wall / one.wall);
    cpu_ratios.push_back(other.cpu / one.cpu);
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
                                       {"most", most},
                                       {"cpu_ratio", bench::median(cpu_ratios)}};
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
