#include "tutti/sync/sharded/detail/shard_layout.h"

#include <algorithm>
#include <numeric>

#include "tutti/net/arena.h"

namespace tutti::detail {

ShardLayout::ShardLayout(const Slots& layout, int64_t bucket_bytes, std::span<const double> shares)
    : bucket_of_(layout.slots.size(), -1), slice_bytes_(shares.size(), 0) {
  const ReplicatedOptions sizes{
      .bucket_bytes = bucket_bytes,
      .first_bucket_bytes = std::min(bucket_bytes, ReplicatedOptions().first_bucket_bytes)};
  buckets_ = plan_buckets(layout, reverse_order(layout), sizes, offsets_);
  for (int number = 0; number < num_buckets(); ++number) {
    const Bucket& one = bucket(number);
    for (const int parameter : one.parameters) bucket_of_[static_cast<size_t>(parameter)] = number;
    row_bytes_ = one.begin_bytes + one.num_elements * size_of(one.dtype);
    cut(layout, one, shares);
  }
}

// What the owners still lack when this bucket too is dealt out: the grid makes some parts larger
// than their share, and the next bucket sets that right.
std::vector<double> ShardLayout::due(const Bucket& bucket, std::span<const double> shares) const {
  const auto bytes =
      static_cast<double>(bucket.begin_bytes + bucket.num_elements * size_of(bucket.dtype));
  const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
  std::vector<double> due;
  for (size_t owner = 0; owner < shares.size(); ++owner)
    due.push_back(
        std::max(1.0, bytes * shares[owner] / all - static_cast<double>(slice_bytes_[owner])));
  return due;
}

// A part ends where that of the next owner begins, and padding goes with what is before it.
void ShardLayout::cut(const Slots& layout, const Bucket& bucket, std::span<const double> shares) {
  std::vector<ParameterSlot> slots;
  for (const int parameter : bucket.parameters)
    slots.push_back(layout.slots[static_cast<size_t>(parameter)]);
  const Slots inside = Slots::of(std::move(slots));
  const auto stretches = inside.cut(due(bucket, shares));
  const int64_t width = size_of(bucket.dtype);
  std::vector<OwnedPart>& parts = parts_.emplace_back(shares.size());
  int64_t end = bucket.begin_bytes + bucket.num_elements * width;
  for (size_t owner = shares.size(); owner-- > 0;) {
    OwnedPart& part = parts[owner];
    const auto row_bytes = [&](const Stretch& stretch) {
      return bucket.begin_bytes +
             inside.slots[static_cast<size_t>(stretch.parameter)].offset_bytes +
             stretch.begin * width;
    };
    part.row_bytes = stretches[owner].empty() ? end : row_bytes(stretches[owner].front());
    part.slice_bytes = slice_bytes_[owner];
    part.num_elements = (end - part.row_bytes) / width;
    for (const Stretch& stretch : stretches[owner]) {
      const int64_t at = row_bytes(stretch);
      part.pieces.push_back(
          {{bucket.parameters[static_cast<size_t>(stretch.parameter)], stretch.begin, stretch.end},
           at,
           part.slice_bytes + at - part.row_bytes});
    }
    slice_bytes_[owner] += round_up(end - part.row_bytes, kLineBytes);
    end = part.row_bytes;
  }
}

std::vector<int64_t> ShardLayout::counts(int bucket) const {
  std::vector<int64_t> counts;
  for (const OwnedPart& part : parts_[static_cast<size_t>(bucket)])
    counts.push_back(part.num_elements);
  return counts;
}

MemorySpan ShardLayout::span_of(int number, std::byte* row) const {
  const Bucket& one = bucket(number);
  return {row + one.begin_bytes, one.num_elements, one.dtype};
}

}  // namespace tutti::detail
