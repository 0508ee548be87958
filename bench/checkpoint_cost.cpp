// What a checkpoint every EVERY steps costs a training: steps of `wide` with them and without, in
// turn, ROUNDS times.
//
//   bench_checkpoint_cost DATA FOLDER [BATCH [EVERY [CHECKPOINTS [ROUNDS]]]] [--strategy ...]
//   tutti run -n 2 bench_checkpoint_cost DATA FOLDER --strategy multi_worker
//
// DATA is a folder of Quick, Draw! drawings; checkpoints come into FOLDER, on the disk that is
// meant, and go again. BATCH (128) is global; EVERY (100), CHECKPOINTS (4), ROUNDS (7). Of a
// training of (CHECKPOINTS + 1/2) * EVERY steps the last CHECKPOINTS * EVERY are timed: with as
// many checkpoints, each written while it goes on. Prints a line of JSON: median step of each, in
// ms, and the median over the rounds of their ratio with its least and most.
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
#include "tutti/train/model.h"

#include "bench/rounds.h"

namespace {

using namespace tutti;

struct Setting {
  const char* data;
  const char* folder;
  int64_t batch, every, checkpoints, rounds;
};

// The mean step, in ms, after the first EVERY / 2 of them.
double step_ms(Model& model, const data::Dataset& train, const Setting& setting,
               CheckpointOptions checkpoints) {
  const int64_t timed = setting.checkpoints * setting.every;
  const int64_t steps = timed + setting.every / 2;
  const History history = model.fit(train, {.epochs = 1 + steps / train.num_batches(),
                                            .max_steps = steps,
                                            .verbose = 0,
                                            .checkpoints = std::move(checkpoints)});
  const auto& all = history.step_ms;
  return std::accumulate(all.end() - timed, all.end(), 0.0) / static_cast<double>(timed);
}

void measure(Strategy& strategy, const Setting& setting) {
  const auto train =
      data::quickdraw(setting.data, {.split = "train"}).shuffle().batch(setting.batch);
  Model model(strategy, [] { return models::wide(); });
  model.compile({.optimizer = optim::adam(),
                 .loss = losses::sparse_categorical_crossentropy(),
                 .metrics = {metrics::accuracy()}});
  const auto folder = std::filesystem::path(setting.folder) / "bench_checkpoint_cost";
  const bench::InTurn step = bench::in_turn(
      setting.rounds, [&] { return step_ms(model, train, setting, {}); },
      [&] {
        const double with =
            step_ms(model, train, setting,
                    {.folder = folder, .every_steps = setting.every, .newest_kept = 1});
        if (strategy.world().chief) std::filesystem::remove_all(folder);
        return with;
      });
  if (!strategy.world().chief) return;
  const nlohmann::ordered_json json = {{"bench", "checkpoint_cost"},
                                       {"strategy", strategy.kind()},
                                       {"replicas", strategy.num_replicas_in_sync()},
                                       {"global_batch", setting.batch},
                                       {"every_steps", setting.every},
                                       {"checkpoints", setting.checkpoints},
                                       {"rounds", setting.rounds},
                                       {"step_ms", step.one},
                                       {"step_with_checkpoints_ms", step.other},
                                       {"ratio", step.ratio},
                                       {"least", step.least},
                                       {"most", step.most}};
  fmt::print("{}\n", json.dump());
}

}  // namespace

int main(int argc, char** argv) {
  Strategy strategy = strategy_from_flags(argc, argv);
  const auto number_at = [&](int place, int64_t otherwise) {
    return bench::number_at(argc, argv, place, otherwise);
  };
  const Setting setting{argc > 1 ? argv[1] : nullptr,
                        argc > 2 ? argv[2] : nullptr,
                        number_at(3, 128),
                        number_at(4, 100),
                        number_at(5, 4),
                        number_at(6, 7)};
  if (setting.folder == nullptr ||
      std::min({setting.batch, setting.every, setting.checkpoints, setting.rounds}) < 1) {
    fmt::print(stderr,
               "usage: bench_checkpoint_cost DATA FOLDER [BATCH [EVERY [CHECKPOINTS [ROUNDS]]]] "
               "[--strategy ...], each 1 or more\n");
    return 2;
  }
  try {
    measure(strategy, setting);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
