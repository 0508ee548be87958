/// One model on each rank, and what one process with plain LibTorch makes of all ranks' rows.
#pragma once

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/sha256.h"

#include "tests/support/run_ranks.h"

namespace tutti::test {

using torch::nn::Linear;
using torch::nn::Sequential;

// Row i of the data: features [count, 6] and targets [count, 1] of rows first, first + 1, ...
inline std::pair<at::Tensor, at::Tensor> rows(int64_t first, int64_t count) {
  const auto at = torch::arange(first, first + count, torch::kDouble).unsqueeze(1);
  return {torch::sin(at * 1.7 + torch::arange(6, torch::kDouble)).to(torch::kFloat),
          torch::cos(at * 0.9).to(torch::kFloat)};
}

inline Sequential net() {
  torch::manual_seed(5);
  return Sequential(Linear(6, 5), torch::nn::Tanh(), Linear(5, 1));
}

inline at::Tensor loss_of(Sequential& model, int64_t first, int64_t count) {
  const auto [x, y] = rows(first, count);
  const auto type = model->parameters()[0].scalar_type();
  return torch::mse_loss(model->forward(x.to(type)), y.to(type));
}

inline torch::optim::SGDOptions momentum() { return torch::optim::SGDOptions(0.1).momentum(0.9); }

struct OneProcess {
  explicit OneProcess(const Rank& rank_in, Sequential model_in = net(), Sequential whole_in = net())
      : rank(rank_in), model(std::move(model_in)), whole(std::move(whole_in)) {
    for (const auto& each : whole->parameters()) before.push_back(each.detach().clone());
  }
  const Rank& rank;
  Sequential model, whole;
  std::vector<at::Tensor> before;

  /// Marks whether they are within 1e-6 of each other, have moved, and the bits of this rank's.
  void compare(const std::string& name) const {
    double worst = 0, moved = 1;
    Sha256 sha;
    const auto own = model->parameters(), expected = whole->parameters();
    for (size_t i = 0; i < own.size(); ++i) {
      const auto apart = [&](const at::Tensor& other) {
        return ((own[i] - other).abs().max() / expected[i].abs().max()).item<double>();
      };
      worst = std::max(worst, apart(expected[i]));
      moved = std::min(moved, apart(before[i].to(own[i].scalar_type())));
      sha.update(own[i].contiguous().data_ptr(), own[i].nbytes());
    }
    rank.mark(fmt::format("{}: as one {}, moved {}, weights {}", name,
                          worst < 1e-6 ? "yes" : fmt::format("no, apart {}", worst),
                          moved > 1e-4 ? "yes" : fmt::format("no, {}", moved), sha.hex()));
  }
};

}  // namespace tutti::test
