// A training whose ranks sleep where others compute, one of them longer: steps whose length is
// known on any number of cores. bench/straggler_replay.py holds `tutti plan replay` against it.
//
//   TUTTI_TRACE=DIR/trace.json tutti run -n 4 bench_sleeping_ranks --sleep-ms 10 --slow-rank 3
//   --slow-ms 15
//
// Each rank, a process, sleeps --sleep-ms in forward, and up to --jitter times as much in addition,
// drawn anew in each step; rank --slow-rank sleeps --slow-ms more, in a step with probability
// --often. A rank has 8 samples in a step. The chief prints a line of JSON: ranks, steps,
// mean_step_ms, median_step_ms and images_per_second, by the history of Model::fit, without the
// first step.
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "tutti/base/random.h"
#include "tutti/strategy/input/from_tensors.h"
#include "tutti/train/model/model.h"

#include "bench/rounds.h"

namespace {

using namespace tutti;

struct Setting {
  double sleep_ms = 10, jitter = 0, slow_ms = 0, often = 1;
  int slow_rank = 0;
  int64_t steps = 200;
};

constexpr int64_t kSamplesOfARank = 8;

class SleepingImpl : public torch::nn::Module {
 public:
  SleepingImpl(const Setting& setting, int rank)
      : setting_(setting), rank_(rank), layer_(register_module("layer", torch::nn::Linear(4, 1))) {}

  at::Tensor forward(const at::Tensor& x) {
    const auto draw = [&](uint64_t what) {
      return uniform_double(random_key(static_cast<uint64_t>(rank_), RandomPurpose::test,
                                       {static_cast<uint64_t>(step_), what}));
    };
    double ms = setting_.sleep_ms * (1 + setting_.jitter * draw(0));
    if (rank_ == setting_.slow_rank && draw(1) < setting_.often) ms += setting_.slow_ms;
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms));
    ++step_;
    return layer_(x);
  }

 private:
  const Setting setting_;
  const int rank_;
  int64_t step_ = 0;
  torch::nn::Linear layer_;
};
TORCH_MODULE(Sleeping);

void measure(const Setting& setting) {
  const Strategy strategy({.kind = "multi_worker", .threads_per_replica = 1});
  const int ranks = strategy.num_replicas_in_sync(), rank = strategy.world().first_rank;
  const int64_t batch = kSamplesOfARank * ranks;
  Model model(strategy, [&] { return Sleeping(setting, rank); });
  model.compile({.optimizer = optim::sgd(), .loss = losses::mean_squared_error()});
  const int64_t rows = batch * (setting.steps + 1);
  const auto data = data::from_tensors({at::ones({rows, 4}), at::ones({rows, 1})}).batch(batch);
  const History history = model.fit(data, {.epochs = 1, .verbose = 0});
  if (!strategy.world().chief) return;
  const std::vector<double> step_ms(history.step_ms.begin() + 1, history.step_ms.end());
  const double total = std::accumulate(step_ms.begin(), step_ms.end(), 0.0);
  const nlohmann::ordered_json json = {
      {"ranks", ranks},
      {"steps", step_ms.size()},
      {"mean_step_ms", total / static_cast<double>(step_ms.size())},
      {"median_step_ms", bench::median(step_ms)},
      {"images_per_second", 1e3 * static_cast<double>(batch * setting.steps) / total}};
  fmt::print("{}\n", json.dump());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Ranks that sleep, one of them longer: as a training under tutti run");
  Setting setting;
  app.add_option("--sleep-ms", setting.sleep_ms)->check(CLI::Range(0.0, 1e4));
  app.add_option("--jitter", setting.jitter)->check(CLI::Range(0.0, 10.0));
  app.add_option("--slow-rank", setting.slow_rank)->check(CLI::NonNegativeNumber);
  app.add_option("--slow-ms", setting.slow_ms)->check(CLI::Range(0.0, 1e4));
  app.add_option("--often", setting.often)->check(CLI::Range(0.0, 1.0));
  app.add_option("--steps", setting.steps)->check(CLI::Range(1, 100'000));
  try {
    app.parse(argc, argv);
    measure(setting);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
