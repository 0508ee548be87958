/// TensorGroup: the ranks that compute the layers of one copy of a model together, block by block.
///
///   parallel::TensorGroup tensor(group, /*blocks=*/4);   // on each member of `group`
///   parallel::Mlp mlp(tensor, 128, 512, {.seed = 1, .name = "mlp"});
///   y = mlp(x);                                          // x and y: the same on each member
///
/// A layer that is cut consists of T *blocks*: so many of its columns, rows, heads or words each. T
/// is a constant of the job, as the number of replicas is. A rank computes its blocks one after
/// another, each alone, and what blocks give is added in the one tree of T
/// (docs/design/order_of_summation.md). So 1, 2 or T ranks give the same bits, forward and
/// backward. docs/design/model_parallel.md has the conditions. Thread rule: as a Group, of which
/// this is a part: one thread a member.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tutti/comm/group/group.h"

namespace tutti::parallel {

namespace detail {
struct BlockTree;
}

/// The most blocks that a layer is cut into.
constexpr int kMostBlocks = 1024;

/// Cheap to copy.
class TensorGroup {
 public:
  /// One rank, which computes all blocks. Throws UsageError unless 1 <= blocks <= kMostBlocks.
  explicit TensorGroup(int blocks = 1) : TensorGroup(Group(), blocks) {}

  /// Collective: the members of `group`, with the same number of blocks on each. The members
  /// compute one model of one batch: outside of what is cut, all values are the same on each.
  ///
  /// limit  wall time of each operation among them
  ///
  /// Throws UsageError for fewer blocks than members; Mismatch that names a member with another
  /// number of blocks; what Group throws.
  TensorGroup(Group group, int blocks, Millis limit = kDefaultTimeLimit);

  int rank() const noexcept;          ///< 0-based, below size()
  int size() const noexcept;          ///< of the group: how many ranks compute
  int blocks() const noexcept;        ///< T
  int first_block() const noexcept;   ///< of this rank's blocks, which are consecutive
  int local_blocks() const noexcept;  ///< as many on each rank, or one more on the first ones

  /// How `n` elements are dealt to the blocks: n / blocks() each, and one more to each of the first
  /// n % blocks(). 65 on 4 blocks: 17, 16, 16, 16.
  std::vector<int64_t> sizes(int64_t n) const;
  /// Those of rank `rank`'s blocks.
  std::vector<int64_t> sizes_of(int rank, int64_t n) const;

  /// The elements of this rank's blocks, of `n`.
  struct Range {
    int64_t begin = 0;
    int64_t size = 0;
  };
  Range range(int64_t n) const;

  Group group() const;
  Millis time_limit() const noexcept;
  const detail::BlockTree& tree() const noexcept;  ///< not for users

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace tutti::parallel
