// What Model::fit with loss, accuracy and progress costs over a bare loop that trains the same: the
// cheapest step there is, that of `mlp`. Both train EPOCHS epochs, in turn, ROUNDS times.
//
//   bench_fit_overhead DATA [BATCH [EPOCHS [ROUNDS]]] [--strategy mirrored --replicas 2 ...]
//   tutti run -n 2 bench_fit_overhead DATA --strategy multi_worker
//
// DATA is a folder of Quick, Draw! drawings; BATCH (128) is global; EPOCHS (3), ROUNDS (7). The
// bare loop reads its batches, computes the loss and updates, in one run() of the strategy an
// epoch, and measures nothing. The whole call of fit is timed, with what it does before the first
// step and after the last. Prints a line of JSON: median step of each, in ms, and the median over
// the rounds of their ratio with its least and most.
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/base/deadline.h"
#include "tutti/data/quickdraw.h"
#include "tutti/models/models.h"
#include "tutti/nn/graph_module.h"
#include "tutti/strategy/input/distributed_dataset.h"
#include "tutti/strategy/modules/replicated.h"
#include "tutti/train/model/model.h"

#include "bench/rounds.h"

namespace {

using namespace tutti;

struct Setting {
  const char* folder;
  int64_t batch, epochs, rounds;
};

class BareLoop {
 public:
  BareLoop(Strategy strategy, data::Dataset train)
      : strategy_(std::move(strategy)),
        train_(std::move(train)),
        data_(strategy_.distribute(train_)) {}

  void operator()(int64_t epochs) {
    const Loss loss = losses::sparse_categorical_crossentropy();
    for (int64_t epoch = 0; epoch < epochs; ++epoch) {
      const auto batches = data_.epoch(epoch);
      strategy_.run([&](ReplicaContext& replica) {
        double sum = 0;
        for (const DistributedBatch& batch : batches) {
          const auto [x, y] = batch.local(replica);
          const double scale = 1.0 / static_cast<double>(batch.global_size());
          const auto output = net_.local(replica)->forward(x);
          optimizer_.minimize(replica, loss.kernel().scaled_sum(output, y, scale, sum));
        }
      });
    }
  }

 private:
  Strategy strategy_;
  data::Dataset train_;
  DistributedDataset data_;
  Replicated<nn::GraphModule> net_{strategy_, [] { return nn::make_module(models::mlp()); }};
  Optimizer optimizer_{net_, optim::adam()};
};

double milliseconds(auto&& work) {
  const TimePoint begin = Clock::now();
  work();
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

void measure(const Strategy& strategy, const Setting& setting) {
  const auto train =
      data::quickdraw(setting.folder, {.split = "train"}).shuffle().batch(setting.batch);
  BareLoop loop(strategy, train);
  Model model(strategy, [] { return models::mlp(); });
  model.compile({.optimizer = optim::adam(),
                 .loss = losses::sparse_categorical_crossentropy(),
                 .metrics = {metrics::accuracy()}});
  const auto fit = [&](int64_t epochs) { model.fit(train, {.epochs = epochs}); };
  loop(1);
  fit(1);
  const auto steps = static_cast<double>(setting.epochs * train.num_batches());
  const bench::InTurn step_ms = bench::in_turn(
      setting.rounds, [&] { return milliseconds([&] { loop(setting.epochs); }) / steps; },
      [&] { return milliseconds([&] { fit(setting.epochs); }) / steps; });
  if (!strategy.world().chief) return;
  const nlohmann::ordered_json json = {{"bench", "fit_overhead"},
                                       {"strategy", strategy.kind()},
                                       {"replicas", strategy.num_replicas_in_sync()},
                                       {"global_batch", setting.batch},
                                       {"steps", static_cast<int64_t>(steps)},
                                       {"rounds", setting.rounds},
                                       {"loop_step_ms", step_ms.one},
                                       {"fit_step_ms", step_ms.other},
                                       {"ratio", step_ms.ratio},
                                       {"least", step_ms.least},
                                       {"most", step_ms.most}};
  fmt::print("{}\n", json.dump());
}

}  // namespace

int main(int argc, char** argv) {
  const Strategy strategy = strategy_from_flags(argc, argv);
  using bench::number_at;
  const Setting setting{argc > 1 ? argv[1] : nullptr, number_at(argc, argv, 2, 128),
                        number_at(argc, argv, 3, 3), number_at(argc, argv, 4, 7)};
  if (setting.folder == nullptr || std::min({setting.batch, setting.epochs, setting.rounds}) < 1) {
    fmt::print(stderr,
               "usage: bench_fit_overhead DATA [BATCH [EPOCHS [ROUNDS]]] [--strategy ...], each 1 "
               "or more\n");
    return 2;
  }
  try {
    measure(strategy, setting);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
