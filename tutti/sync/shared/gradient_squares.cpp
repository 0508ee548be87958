// How long the gradients are that the fused step adds: squares of blocks beside the sums, by
// whoever owns the block, while gradients and sum are in cache; added in the order of blocks after
// the last barrier of the step. Who still adds then is waited for: nobody writes one of the next
// step before all replicas of the host have marked a gradient of that.

#include <algorithm>

#include "tutti/sync/shared/detail/shared_updater.h"

namespace tutti::detail {

void SharedUpdater::begin_measuring() {
  if (measuring_) return;
  measuring_ = true;
  place_squares();
}

// For all replicas of a host.
void SharedUpdater::place_squares() {
  block_squares_.clear();
  squares_ = {};
  if (world_.size < 2) return;
  const size_t rows = gradients_.size() + 1;
  const auto blocks = static_cast<size_t>(plan_.num_blocks());
  const auto bytes = static_cast<int64_t>(rows * blocks * sizeof(double));
  const SharedParts memory = memory_here(bytes, 0);
  squares_owner_ = memory.owner;
  auto* const squares = static_cast<double*>(memory.parts[0].data);
  for (size_t row = 0; row < rows; ++row)
    block_squares_.emplace_back(squares + row * blocks, blocks);
}

// `sum` is that of this host.
void SharedUpdater::measure_parts(const Lane& lane, const Stretch& stretch, const void* sum) {
  const DType dtype = layout_.slots[stretch.parameter].dtype;
  const int64_t count = stretch.end - stretch.begin;
  const auto first = static_cast<size_t>(plan_.block_at(stretch.parameter, stretch.begin));
  const auto blocks = static_cast<size_t>((count + kBlockElements - 1) / kBlockElements);
  const auto measure = [&](size_t row, const void* values) {
    const auto to = block_squares_[row].subspan(first, blocks);
    if (values == nullptr)
      std::ranges::fill(to, 0.0);
    else
      optim::square_blocks(dtype, values, count, to);
  };
  for (size_t rank = 0; rank < lane.inputs.size(); ++rank) measure(rank, lane.inputs[rank]);
  if (!lane.sums) measure(lane.inputs.size(), sum);
}

// Those of all hosts, once they are there.
void SharedUpdater::measure_sums(const Lane& lane) {
  if (lane.updates_measured == 0) return;
  for (const Stretch& stretch : lane.stretches)
    if (lane.used[stretch.parameter] != 0)
      optim::square_blocks(
          layout_.slots[stretch.parameter].dtype, lane.sums->sum_of(stretch),
          stretch.end - stretch.begin,
          block_squares_.back().subspan(plan_.block_at(stretch.parameter, stretch.begin)));
}

void SharedUpdater::add_squares(Lane& lane) {
  const auto local = static_cast<int>(&lane - lanes_.data());
  if (lane.updates_measured == 0 || (local != 0 && !lane.sums)) return;
  GradientSquares all{.parts = {}, .updates = lane.updates_measured};
  all.parts.resize(static_cast<size_t>(world_.size));
  // Ranks of a host follow each other.
  const auto first_here = static_cast<size_t>(world_.first_rank + local - lane.rank);
  for (size_t rank = 0; rank + 1 < block_squares_.size(); ++rank)
    all.parts[first_here + rank] = plan_.add_blocks(block_squares_[rank], lane.used);
  all.sum = plan_.add_blocks(block_squares_.back(), lane.used);
  if (lane.sums) lane.sums->add(all.parts, world_.time_limit);
  if (local == 0) squares_ = std::move(all);
}

}  // namespace tutti::detail
