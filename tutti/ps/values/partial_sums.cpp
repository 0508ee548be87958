#include "tutti/ps/values/partial_sums.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "tutti/comm/engine/reduce_kernels.h"
#include "tutti/ps/values/compute.h"

namespace tutti::ps {
namespace {

constexpr int64_t kElementsAtOnce = 4 << 10;

// Inputs, which move on, to one sum. Most often there is one input, and memcpy is faster.
Part::Use add_segment(const ReductionShape& shape, DType dtype, std::vector<const void*>& inputs,
                      std::byte* to, int64_t count) {
  const auto there = [](const void* input) { return input != nullptr; };
  const bool alone = std::ranges::count_if(inputs, there) == 1;
  const size_t first = std::ranges::find_if(inputs, there) - inputs.begin();
  bool finite = true;
  for (int64_t left = count; left > 0; left -= kElementsAtOnce) {
    const int64_t elements = std::min(left, kElementsAtOnce);
    const int64_t bytes = elements * size_of(dtype);
    if (alone)
      std::memcpy(to, inputs[first], static_cast<size_t>(bytes));
    else
      reduce_inputs(dtype, ReduceOp::sum, shape, inputs, to, elements);
    finite = finite && all_finite(dtype, to, elements);
    for (const void*& input : inputs)
      if (input != nullptr) input = static_cast<const std::byte*>(input) + bytes;
    to += bytes;
  }
  return finite ? Part::counts : Part::not_finite;
}

}  // namespace

std::vector<PartialSum> partial_sums(const ReductionShape& shape, int first, int count) {
  std::map<int, std::vector<int>> sums;  // by the rank that stands for it
  for (int rank = first; rank < first + count; ++rank) sums[rank] = {rank};
  // A rank that has met one of another worker, or such a sum, takes part in nothing more here.
  std::set<int> settled;
  const auto open = [&](int rank) { return sums.contains(rank) && !settled.contains(rank); };
  for (const ReductionShape::Step& step : shape.steps()) {
    if (open(step.into) && open(step.from)) {
      auto& into = sums[step.into];
      into.insert(into.end(), sums[step.from].begin(), sums[step.from].end());
      sums.erase(step.from);
    } else {
      settled.insert(step.into);
      settled.insert(step.from);
    }
  }
  std::vector<PartialSum> result;
  for (auto& [rank, ranks] : sums) {
    std::ranges::sort(ranks);
    result.push_back({rank, std::move(ranks)});
  }
  return result;
}

std::vector<Part> add_parts(const ReductionShape& shape, const Piece& piece,
                            std::span<const PartialSum> sums, const Inputs& inputs, std::byte* to) {
  std::vector<Part> parts;
  std::vector<const void*> of_rank(shape.replicas());
  for (const PartialSum& sum : sums) {
    Part& part = parts.emplace_back(Part{sum.rank, {}});
    for (const Segment& segment : piece.segments) {
      std::ranges::fill(of_rank, nullptr);
      for (const int rank : sum.ranks) of_rank[rank] = inputs(rank, segment);
      const bool used = std::ranges::any_of(of_rank, [](const void* input) { return input; });
      part.used.push_back(used ? add_segment(shape, piece.dtype, of_rank, to + segment.offset_bytes,
                                             segment.count())
                               : Part::left_out);
    }
    to += piece.num_bytes;
  }
  return parts;
}

}  // namespace tutti::ps
