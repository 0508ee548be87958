#include "tutti/strategy/mesh/detail/mesh_clip.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tutti/optim/rule.h"
#include "tutti/sync/detail/step_plan.h"
#include "tutti/sync/tensors.h"

namespace tutti::detail {
namespace {

double scale_to(double most, double squares) {
  const double norm = std::sqrt(squares);
  return norm > most ? most / norm : 1.0;
}

double squares_in(const at::Tensor& values) {
  const int64_t blocks = (values.numel() + optim::kBlockElements - 1) / optim::kBlockElements;
  std::vector<double> squares(static_cast<size_t>(blocks));
  optim::square_blocks(dtype_of(values.scalar_type()), values.data_ptr(), values.numel(), squares);
  return std::accumulate(squares.begin(), squares.end(), 0.0);
}

}  // namespace

MeshClip::MeshClip(const World& world, const WholeModel& whole, const optim::Clip& clip,
                   std::vector<std::vector<std::string>> names)
    : clip_(clip),
      num_entries_(whole.parameters().size()),
      blocks_(world.tensor_blocks),
      limit_(world.time_limit) {
  for (int local = 0; local < world.local; ++local) {
    const int rank = world.first_rank + local;
    Rank& own = ranks_.emplace_back();
    own.groups = world.mesh_groups[static_cast<size_t>(local)];
    for (const std::string& name : names[static_cast<size_t>(local)]) {
      const auto& all = whole.parameters();
      const auto entry = std::ranges::find(all, name, &WholeModel::Entry::name);
      const Piece piece = whole.piece_of(local, name);
      const bool counts = std::ranges::any_of(entry->holders, [&](const auto& holder) {
        return holder.rank == rank % world.model_ranks() && holder.piece.begin == piece.begin;
      });
      own.parameters.push_back({.entry = static_cast<size_t>(entry - all.begin()),
                                .piece = piece,
                                .shape = piece.shape(),
                                .dtype = entry->dtype,
                                .counts = counts});
    }
  }
}

std::vector<at::Tensor> MeshClip::sums(int local, std::span<const at::Tensor> gradients,
                                       bool counts) {
  const at::NoGradGuard no_grad;
  Rank& rank = ranks_[static_cast<size_t>(local)];
  std::vector<int32_t> used;
  for (const at::Tensor& gradient : gradients) used.push_back(counts && gradient.defined() ? 1 : 0);
  rank.groups.data.all_reduce_now(span_of(std::span(used)), ReduceOp::max, limit_);
  std::vector<at::Tensor> sums(gradients.size());
  std::vector<double> squares(num_entries_ * static_cast<size_t>(blocks_));
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (used[i] == 0) continue;
    const Own& own = rank.parameters[i];
    sums[i] = counts && gradients[i].defined() ? gradients[i].contiguous().clone()
                                               : at::zeros(own.shape, scalar_type_of(own.dtype));
    rank.groups.data.all_reduce_now(span_of(sums[i]), ReduceOp::sum, limit_);
    if (own.counts) add_squares(own, sums[i], squares);
  }
  // Each number is one rank's: a sum with zeros.
  rank.groups.tensor.all_reduce_now(span_of(std::span(squares)), ReduceOp::sum, limit_);
  rank.groups.stage.all_reduce_now(span_of(std::span(squares)), ReduceOp::sum, limit_);
  const std::vector<double> all = factors(squares);
  for (size_t i = 0; i < sums.size(); ++i)
    if (sums[i].defined())
      scale_gradient(rank.parameters[i].dtype, sums[i].data_ptr(), sums[i].numel(),
                     all[rank.parameters[i].entry]);
  return sums;
}

void MeshClip::add_squares(const Own& own, const at::Tensor& sum,
                           std::vector<double>& squares) const {
  const size_t first = own.entry * static_cast<size_t>(blocks_);
  const Piece& piece = own.piece;
  const int64_t length =
      piece.whole.empty() ? 0 : piece.whole[static_cast<size_t>(piece.axis)] / piece.stacked;
  if (piece.size == length) {
    squares[first] = squares_in(sum);
    return;
  }
  auto parts = piece.shape();
  const auto axis = parts.begin() + piece.axis;
  *axis /= piece.stacked;
  parts.insert(axis, piece.stacked);
  const at::Tensor elements = sum.view(parts);
  int64_t begin = 0;
  for (int block = 0; block < blocks_; ++block) {
    const int64_t size = length / blocks_ + (block < length % blocks_ ? 1 : 0);
    if (begin >= piece.begin && begin < piece.begin + piece.size)
      squares[first + static_cast<size_t>(block)] =
          squares_in(elements.narrow(piece.axis + 1, begin - piece.begin, size).contiguous());
    begin += size;
  }
}

std::vector<double> MeshClip::factors(std::span<const double> squares) const {
  std::vector<double> factors(num_entries_, 1.0);
  double all = 0;
  for (size_t entry = 0; entry < num_entries_; ++entry) {
    const auto own =
        squares.subspan(entry * static_cast<size_t>(blocks_), static_cast<size_t>(blocks_));
    const double sum = std::accumulate(own.begin(), own.end(), 0.0);
    if (clip_.norm > 0) factors[entry] = scale_to(clip_.norm, sum);
    all += sum;
  }
  if (clip_.global_norm > 0) std::ranges::fill(factors, scale_to(clip_.global_norm, all));
  return factors;
}

}  // namespace tutti::detail
