// What a checkpoint every EVERY steps adds to a training of `wide`: by Model::fit, and by
// tutti::Checkpoint to a loop of one's own, one after the other.
//
//   bench_checkpoint_cost DATA FOLDER [BATCH [EVERY [CHECKPOINTS]]] [--strategy ...]
//   tutti run -n 2 bench_checkpoint_cost DATA FOLDER --strategy multi_worker
//
// DATA is a folder of Quick, Draw! drawings; checkpoints come into FOLDER, on the disk that is
// meant, and go again. BATCH (128) is global; EVERY (100), at least 20; CHECKPOINTS (20). A machine
// that others share drifts by more than a checkpoint costs, so each is measured against its own
// neighbours: the EVERY / 3 steps after it, in which the training waits for the snapshot and the
// files are written, less the mean of as many steps before and after them. Prints a line of JSON
// for each: the median step in ms, what a checkpoint adds in ms, and that as a share of EVERY
// steps, median and quartiles over the checkpoints.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <numeric>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/base/clock.h"
#include "tutti/data/quickdraw.h"
#include "tutti/models/models.h"
#include "tutti/nn/graph_module.h"
#include "tutti/strategy/input/distributed_dataset.h"
#include "tutti/strategy/modules/replicated.h"
#include "tutti/strategy/strategy.h"
#include "tutti/train/checkpointing/loop_checkpoint.h"
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

data::Dataset train_of(const Setting& setting) {
  return data::quickdraw(setting.data, {.split = "train"}).shuffle().batch(setting.batch);
}

CheckpointOptions checkpoints_of(const Setting& setting) {
  return {.folder = std::filesystem::path(setting.folder) / "bench_checkpoint_cost",
          .every_steps = setting.every,
          .newest_kept = 1};
}

int64_t steps_of(const Setting& setting) { return (setting.checkpoints + 1) * setting.every; }

// In ms, each step.
std::vector<float> fit(Strategy& strategy, const Setting& setting) {
  const auto train = train_of(setting);
  Model model(strategy, [] { return models::wide(); });
  model.compile({.optimizer = optim::adam(),
                 .loss = losses::sparse_categorical_crossentropy(),
                 .metrics = {metrics::accuracy()}});
  const int64_t steps = steps_of(setting);
  return model
      .fit(train, {.epochs = 1 + steps / train.num_batches(),
                   .max_steps = steps,
                   .verbose = 0,
                   .checkpoints = checkpoints_of(setting)})
      .step_ms;
}

std::vector<float> loop(Strategy& strategy, const Setting& setting) {
  Replicated<nn::GraphModule> net(strategy, [] { return nn::make_module(models::wide()); });
  Optimizer optimizer(net, optim::adam());
  const Loss loss = losses::sparse_categorical_crossentropy();
  auto data = strategy.distribute(train_of(setting));
  int64_t step = 0, epoch = 0;
  std::vector<double> sums(static_cast<size_t>(strategy.world().local));
  Checkpoint checkpoint(strategy, checkpoints_of(setting));
  checkpoint.add("net", net).add("adam", optimizer).add_own("sums", sums);
  checkpoint.add("step", step).add("epoch", epoch);
  std::vector<float> step_ms;
  for (; step < steps_of(setting); ++epoch) {
    TimePoint begin = Clock::now();
    for (auto&& batch : data.epoch(epoch)) {
      strategy.run([&](ReplicaContext& replica) {
        if (batch.local_size(replica) == 0) return optimizer.abstain(replica);
        auto [x, y] = batch.local(replica);
        optimizer.minimize(
            replica, loss.kernel().scaled_sum(net.local(replica)->forward(x), y,
                                              1.0 / static_cast<double>(batch.global_size()),
                                              sums[static_cast<size_t>(replica.local_rank())]));
      });
      checkpoint.after_step(++step);
      const TimePoint end = Clock::now();
      step_ms.push_back(std::chrono::duration<float, std::milli>(end - begin).count());
      begin = end;
      if (step == steps_of(setting)) break;
    }
  }
  checkpoint.end();
  return step_ms;
}

void print(Strategy& strategy, const Setting& setting, const char* by,
           const std::vector<float>& step_ms_of_all) {
  if (!strategy.world().chief) return;
  std::filesystem::remove_all(checkpoints_of(setting).folder);
  const std::vector<double> costs = costs_of(step_ms_of_all, setting);
  const double step_ms = quantile({step_ms_of_all.begin(), step_ms_of_all.end()}, 0.5);
  const auto share = [&](double of_all) {
    return quantile(costs, of_all) / (step_ms * static_cast<double>(setting.every));
  };
  const nlohmann::ordered_json json = {{"bench", "checkpoint_cost"},
                                       {"by", by},
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
    print(strategy, setting, "fit", fit(strategy, setting));
    print(strategy, setting, "loop", loop(strategy, setting));
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
