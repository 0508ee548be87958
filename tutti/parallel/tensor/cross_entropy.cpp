#include "tutti/parallel/tensor/cross_entropy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/parallel/tensor/detail/agreement.h"
#include "tutti/parallel/tensor/detail/tokens.h"
#include "tutti/parallel/tensor/detail/tree_sum.h"
#include "tutti/sync/tensors.h"

namespace tutti::parallel {
namespace {

// N rows, V words of a block.

at::Tensor largest_of_rows(const TensorGroup& group, at::TensorList logits_NV) {
  at::Tensor largest_N = logits_NV[0].amax(1);
  for (const at::Tensor& logits : logits_NV.slice(1))
    largest_N = at::maximum(largest_N, logits.amax(1));
  if (group.size() > 1)
    group.group()
        .all_reduce(span_of(largest_N), ReduceOp::max, group.time_limit())
        .wait(group.time_limit());
  return largest_N;
}

struct CrossEntropy : torch::autograd::Function<CrossEntropy> {
  /// places, outsides: of the targets in each block.
  static at::Tensor forward(torch::autograd::AutogradContext* context, at::TensorList logits_NV,
                            const TensorGroup& group, const Blocks& places,
                            const Blocks& outsides) {
    const at::Tensor largest_N = largest_of_rows(group, logits_NV);
    Blocks exps_NV, sums_2N;
    for (size_t block = 0; block < logits_NV.size(); ++block) {
      at::Tensor shifted_NV = logits_NV[block] - largest_N.unsqueeze(1);
      const at::Tensor target_N = shifted_NV.gather(1, places[block].unsqueeze(1))
                                      .squeeze(1)
                                      .masked_fill(outsides[block], 0);
      exps_NV.push_back(shifted_NV.exp_());
      sums_2N.push_back(at::stack({exps_NV.back().sum(1), target_N}));
    }
    const at::Tensor sums = detail::tree_sum(group, sums_2N);
    for (at::Tensor& exps : exps_NV) exps.div_(sums[0].unsqueeze(1));
    Blocks saved = exps_NV;  // softmax now
    saved.insert(saved.end(), places.begin(), places.end());
    saved.insert(saved.end(), outsides.begin(), outsides.end());
    context->save_for_backward(saved);
    return sums[0].log() - sums[1];
  }

  static Blocks backward(torch::autograd::AutogradContext* context, const Blocks& above) {
    if (at::GradMode::is_enabled())
      throw UsageError("cross_entropy of blocks: it has no second derivative (create_graph)");
    const Blocks saved = context->get_saved_variables();
    const size_t blocks = saved.size() / 3;
    const at::Tensor gradient_N1 = above[0].unsqueeze(1);
    Blocks gradients;
    for (size_t block = 0; block < blocks; ++block) {
      const at::Tensor &softmax_NV = saved[block], &place_N = saved[blocks + block],
                       &outside_N = saved[2 * blocks + block];
      const at::Tensor taken_N1 = (-gradient_N1).masked_fill(outside_N.unsqueeze(1), 0);
      gradients.push_back(
          (softmax_NV * gradient_N1).scatter_add_(1, place_N.unsqueeze(1), taken_N1));
    }
    gradients.resize(blocks + 3);  // the other arguments have none
    return gradients;
  }
};

void require_targets_of(const Blocks& logits, const at::Tensor& targets) {
  const at::Tensor& first = logits[0];
  if (!at::isFloatingType(first.scalar_type()) || first.dim() < 1 || !targets.defined() ||
      targets.sizes() != first.sizes().slice(0, first.dim() - 1))
    throw UsageError(fmt::format(
        "cross_entropy of blocks: logits are {} [{}], targets [{}]; expected floating [..., words] "
        "and [...]",
        c10::toString(first.scalar_type()), fmt::join(first.sizes(), ", "),
        targets.defined() ? fmt::format("{}", fmt::join(targets.sizes(), ", ")) : "undefined"));
}

}  // namespace

at::Tensor cross_entropy(const TensorGroup& group, const Blocks& logits,
                         const at::Tensor& targets) {
  const auto agreed =
      detail::agree(group, detail::Function::cross_entropy, detail::Given::parts, logits, -1);
  require_targets_of(logits, targets);
  detail::require_tokens("cross_entropy of blocks", targets, agreed.length);
  const bool is_half =
      logits[0].scalar_type() == at::kHalf || logits[0].scalar_type() == at::kBFloat16;
  const at::Tensor flat = targets.reshape({-1});
  int64_t begin = group.range(agreed.length).begin;
  Blocks rows, places, outsides;
  for (const at::Tensor& block : logits) {
    const int64_t words = block.size(-1);
    rows.push_back((is_half ? block.to(at::kFloat) : block).reshape({-1, words}));
    auto found = detail::places_in(flat, begin, words);
    places.push_back(std::move(found.place));
    outsides.push_back(std::move(found.outside));
    begin += words;
  }
  return CrossEntropy::apply(at::TensorList(rows), group, places, outsides).view(targets.sizes());
}

}  // namespace tutti::parallel
