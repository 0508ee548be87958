// What a checkpoint every EVERY steps adds to a training of `wide`.
//
//   bench_checkpoint_cost DATA FOLDER [BATCH [EVERY [CHECKPOINTS]]] [--strategy ...]
//   tutti run -n 2 bench_checkpoint_cost DATA FOLDER --strategy multi_worker
//
// DATA is a folder of Quick, Draw! drawings; checkpoints come into FOLDER, on the disk that is
// meant, and go again. BATCH (128) is global; EVERY (100), at least 20; CHECKPOINTS (20). A machine
// that others share drifts by more than a checkpoint costs, so each is measured against its own
// neighbours: the EVERY / 3 steps after it, in which the training waits for the snapshot and the
// files are written, less the mean of as many steps before and after them. Prints a line of JSON:
// the median step in ms, what a checkpoint adds in ms, and that as a share of EVERY steps, median
// and quartiles over the checkpoints.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <numeric>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/data/quickdraw.h"
#include "tutti/models/models.h"
#include "tutti/strategy/strategy.h"
#include "tutti/train/model/model.h"

#include "bench/rounds.h"

namespace {

using namespace tutti;

struct Setting {
  const char* data;
  const char* folder;
  int64_t batch, every, checkpoints;
};

double sum(const std::vector<float>& values, int64_t first, int64_t count) {
  return std::accumulate(values.begin() + first, values.begin() + first + count, 0.0);
}

// In ms, of each checkpoint.
std::vector<double> costs_of(const std::vector<float>& step_ms, const Setting& setting) {
  const int64_t near = setting.every / 3;
  std::vector<double> costs;
  for (int64_t i = 1; i <= setting.checkpoints; ++i) {
    const int64_t step = i * setting.every;
    const double beside = sum(step_ms, step - near, near) + sum(step_ms, step + near, near);
    costs.push_back(sum(step_ms, step, near) - beside / 2);
  }
  return costs;
}

double quantile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

void measure(Strategy& strategy, const Setting& setting) {
  const auto train =
      data::quickdraw(setting.data, {.split = "train"}).shuffle().batch(setting.batch);
  Model model(strategy, [] { return models::wide(); });
  model.compile({.optimizer = optim::adam(),
                 .loss = losses::sparse_categorical_crossentropy(),
                 .metrics = {metrics::accuracy()}});
  const auto folder = std::filesystem::path(setting.folder) / "bench_checkpoint_cost";
  const int64_t steps = (setting.checkpoints + 1) * setting.every;
  const History history = model.fit(
      train, {.epochs = 1 + steps / train.num_batches(),
              .max_steps = steps,
              .verbose = 0,
              .checkpoints = {.folder = folder, .every_steps = setting.every, .newest_kept = 1}});
  if (!strategy.world().chief) return;
  std::filesystem::remove_all(folder);
  const std::vector<double> costs = costs_of(history.step_ms, setting);
  const double step_ms = history.step_ms_percentile(0.5);
  const auto share = [&](double of_all) {
    return quantile(costs, of_all) / (step_ms * static_cast<double>(setting.every));
  };
  const nlohmann::ordered_json json = {{"bench", "checkpoint_cost"},
                                       {"strategy", strategy.kind()},
                                       {"replicas", strategy.num_replicas_in_sync()},
                                       {"global_batch", setting.batch},
                                       {"every_steps", setting.every},
                                       {"checkpoints", setting.checkpoints},
                                       {"step_ms", step_ms},
                                       {"checkpoint_ms", quantile(costs, 0.5)},
                                       {"share", share(0.5)},
                                       {"share_quartiles", {share(0.25), share(0.75)}}};
  fmt::print("{}\n", json.dump());
}

}  // namespace

int main(int argc, char** argv) {
  Strategy strategy = strategy_from_flags(argc, argv);
  using bench::number_at;
  const Setting setting{argc > 1 ? argv[1] : nullptr, argc > 2 ? argv[2] : nullptr,
                        number_at(argc, argv, 3, 128), number_at(argc, argv, 4, 100),
                        number_at(argc, argv, 5, 20)};
  if (setting.folder == nullptr || std::min(setting.batch, setting.checkpoints) < 1 ||
      setting.every < 20) {
    fmt::print(stderr,
               "usage: bench_checkpoint_cost DATA FOLDER [BATCH [EVERY [CHECKPOINTS]]] [--strategy "
               "...], each 1 or more, EVERY 20 or more\n");
    return 2;
  }
  try {
    measure(strategy, setting);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
