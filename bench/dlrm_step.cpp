// Steps of a recommendation model, as bench/host_steps.py trains it beside PyTorch: DLRM at the
// size for Criteo's clicks (Naumov et al. 2019, arXiv:1906.00091) on random samples.
//
//   bench_dlrm_step BATCH STEPS FILE [FLAGS OF A STRATEGY]
//
// 13 counts, as log(1 + x), through dense layers to 16 features; 26 words, each of 100,000, rare
// ones in plenty, to rows of 16; the products of each two of these 27 vectors, with the first one,
// through dense layers to a click or none. All rows are in one table, so that a step looks up
// once: on servers under strategy parameter_server, else in the process. Adagrad. BATCH is of all
// workers; FILE gets the median of the steps, in milliseconds, as JSON.
#include <fmt/format.h>
#include <torch/torch.h>

#include <cstdlib>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/nn/dense.h"
#include "tutti/nn/sparse_embedding.h"
#include "tutti/strategy/input/from_tensors.h"
#include "tutti/train/model/model.h"

#include "bench/rounds.h"

namespace {

using namespace tutti;

// B batch, C counts, W words, F features of a row, V vectors: W and the one of the counts.
constexpr int64_t kCounts = 13, kWords = 26, kFeatures = 16, kVectors = kWords + 1;
constexpr int64_t kRowsOfAWord = 100'000;

torch::nn::Sequential dense(const std::vector<int64_t>& widths) {
  torch::nn::Sequential layers;
  for (size_t i = 1; i < widths.size(); ++i) {
    layers->push_back(nn::Linear(widths[i - 1], widths[i]));
    if (i + 1 < widths.size()) layers->push_back(torch::nn::ReLU());
  }
  return layers;
}

struct DlrmImpl : torch::nn::Module {
  DlrmImpl() {
    counts = register_module("counts", dense({kCounts, 512, 256, 64, kFeatures}));
    rows = register_module("rows", nn::SparseEmbedding({.name = "rows", .width = kFeatures}));
    const at::Tensor lower = at::tril_indices(kVectors, kVectors, -1);
    pairs = register_buffer("pairs", lower[0] * kVectors + lower[1]);
    click = register_module("click", dense({kFeatures + pairs.size(0), 512, 256, 1}));
  }

  at::Tensor forward(const at::Tensor& x_BCW) {
    const at::Tensor first_BF = counts->forward(x_BCW.narrow(1, 0, kCounts).to(at::kFloat).log1p());
    const at::Tensor rows_BWF = rows(x_BCW.narrow(1, kCounts, kWords));
    const at::Tensor all_BVF = at::cat({first_BF.unsqueeze(1), rows_BWF}, 1);
    const at::Tensor products = at::bmm(all_BVF, all_BVF.mT()).flatten(1).index_select(1, pairs);
    return click->forward(at::cat({first_BF, products}, 1));
  }

  torch::nn::Sequential counts, click;
  nn::SparseEmbedding rows{nullptr};
  at::Tensor pairs;
};
TORCH_MODULE(Dlrm);

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
