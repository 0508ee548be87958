// Steps of a recommendation model (dlrm.h), as bench/host_steps.py trains it beside PyTorch, on
// random samples.
//
//   bench_dlrm_step BATCH STEPS FILE [FLAGS OF A STRATEGY]
//
// The table is on servers under strategy parameter_server, else in the process; rare words are in
// plenty. Adagrad. BATCH is of all workers; FILE gets the median of the steps, in milliseconds, as
// JSON.
#include <fmt/format.h>
#include <torch/torch.h>

#include <cstdlib>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/strategy/input/from_tensors.h"
#include "tutti/train/model/model.h"

#include "bench/dlrm.h"
#include "bench/rounds.h"

namespace {

using namespace tutti;
using namespace tutti::bench::dlrm;

// Samples like those of peer/dlrm.py: so many counts, and words as numbers of rows.
std::vector<at::Tensor> samples(int64_t count) {
  torch::manual_seed(1);
  const at::Tensor counts = (at::rand({count, kCounts}).pow(4) * 1000).to(at::kLong);
  const at::Tensor words = (at::rand({count, kWords}).pow(4) * kRowsOfAWord).to(at::kLong);
  const at::Tensor clicks = (at::rand({count, 1}) < 0.25).to(at::kFloat);
  return {at::cat({counts, words + at::arange(kWords) * kRowsOfAWord}, 1), clicks};
}

}  // namespace

int main(int argc, char** argv) {
  const Strategy strategy = strategy_from_flags(argc, argv);
  const int64_t batch = bench::number_at(argc, argv, 1, 0),
                steps = bench::number_at(argc, argv, 2, 0);
  if (argc != 4 || batch < 1 || steps < 1) {
    fmt::print(stderr, "usage: {} BATCH STEPS FILE [FLAGS OF A STRATEGY]\n", argv[0]);
    return 2;
  }
  try {
    Model model(strategy, [] { return Dlrm(); });
    model.compile({.optimizer = optim::adagrad({.learning_rate = 0.01}),
                   .loss = losses::binary_crossentropy()});
    const auto data = data::from_tensors(samples(batch * steps)).batch(batch);
    const History history = model.fit(data, {.verbose = 0});
    if (!strategy.world().chief) return 0;
    const nlohmann::ordered_json json = {{"step_ms_p50", history.step_ms_percentile(0.5)}};
    std::ofstream(argv[3]) << json.dump() << "\n";
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
