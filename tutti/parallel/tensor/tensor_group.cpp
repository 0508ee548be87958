#include "tutti/parallel/tensor/tensor_group.h"

#include <fmt/format.h>

#include <numeric>

#include "tutti/base/error.h"
#include "tutti/parallel/tensor/detail/block_tree.h"

namespace tutti::parallel {

struct TensorGroup::State {
  Group group;
  int blocks;
  Millis limit;
  detail::BlockTree tree;
};

namespace {

void require_one_number_of_blocks(Group& group, int blocks, Millis limit) {
  int64_t own = blocks;
  std::vector<int64_t> all(static_cast<size_t>(group.size()));
  group.all_gather(span_of(std::span(&own, 1)), span_of(std::span(all)), limit).wait(limit);
  for (size_t r = 1; r < all.size(); ++r)
    if (all[r] != all[0])
      throw Mismatch(
          fmt::format("TensorGroup: rank {} of {} has {} blocks, rank 0 has {}; expected one "
                      "number on all ranks",
                      r, all.size(), all[r], all[0]));
}

}  // namespace

TensorGroup::TensorGroup(Group group, int blocks, Millis limit) {
  require_one_number_of_blocks(group, blocks, limit);
  if (blocks < group.size() || blocks > kMostBlocks)
    throw UsageError(
        fmt::format("TensorGroup: {} blocks on {} ranks; expected one a rank or more, {} at most",
                    blocks, group.size(), kMostBlocks));
  auto tree = detail::block_tree(blocks, group.rank(), group.reduction_shape());
  state_ = std::make_shared<const State>(State{std::move(group), blocks, limit, std::move(tree)});
}

int TensorGroup::rank() const noexcept { return state_->group.rank(); }
int TensorGroup::size() const noexcept { return state_->group.size(); }
int TensorGroup::blocks() const noexcept { return state_->blocks; }
Group TensorGroup::group() const { return state_->group; }
Millis TensorGroup::time_limit() const noexcept { return state_->limit; }
const detail::BlockTree& TensorGroup::tree() const noexcept { return state_->tree; }

int TensorGroup::first_block() const noexcept {
  return tree().first_blocks[static_cast<size_t>(rank())];
}
int TensorGroup::local_blocks() const noexcept {
  return tree().first_blocks[static_cast<size_t>(rank()) + 1] - first_block();
}

std::vector<int64_t> TensorGroup::sizes(int64_t n) const {
  std::vector<int64_t> sizes(static_cast<size_t>(blocks()), n / blocks());
  for (int64_t block = 0; block < n % blocks(); ++block) ++sizes[static_cast<size_t>(block)];
  return sizes;
}

std::vector<int64_t> TensorGroup::sizes_of(int rank, int64_t n) const {
  const auto all = sizes(n);
  const auto& first = tree().first_blocks;
  return {all.begin() + first[static_cast<size_t>(rank)],
          all.begin() + first[static_cast<size_t>(rank) + 1]};
}

TensorGroup::Range TensorGroup::range(int64_t n) const {
  const auto all = sizes(n);
  const auto begin = all.begin() + first_block();
  return {std::accumulate(all.begin(), begin, int64_t{0}),
          std::accumulate(begin, begin + local_blocks(), int64_t{0})};
}

}  // namespace tutti::parallel
