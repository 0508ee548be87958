/// DLRM at the size for Criteo's clicks (Naumov et al. 2019, arXiv:1906.00091): 13 counts, as
/// log(1 + x), through dense layers to 16 features; 26 words, each of 100,000, to rows of 16; the
/// products of each two of these 27 vectors, with the first one, through dense layers to a click or
/// none. All rows are in one table, so that a step looks up once. peer/dlrm.py is the same.
/// Thread rule: a module belongs to one thread.
#pragma once

#include <torch/torch.h>

#include <vector>

#include "tutti/nn/dense.h"
#include "tutti/nn/sparse_embedding.h"

namespace tutti::bench::dlrm {

/// B batch, C counts, W words, F features of a row, V vectors: W and the one of the counts.
inline constexpr int64_t kCounts = 13, kWords = 26, kFeatures = 16, kVectors = kWords + 1;
inline constexpr int64_t kRowsOfAWord = 100'000;

inline torch::nn::Sequential dense(const std::vector<int64_t>& widths) {
  torch::nn::Sequential layers;
  for (size_t i = 1; i < widths.size(); ++i) {
    layers->push_back(nn::Linear(widths[i - 1], widths[i]));
    if (i + 1 < widths.size()) layers->push_back(torch::nn::ReLU());
  }
  return layers;
}

/// int64 [batch, counts and words] to logits [batch, 1]; words as numbers of rows.
struct DlrmImpl : torch::nn::Module {
  explicit DlrmImpl(ps::SparseTableSpec::Initializer first_rows = ps::UniformRows{}) {
    counts = register_module("counts", dense({kCounts, 512, 256, 64, kFeatures}));
    rows = register_module(
        "rows",
        nn::SparseEmbedding({.name = "rows", .width = kFeatures, .initializer = first_rows}));
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

}  // namespace tutti::bench::dlrm
