/// ParameterUnits: one rank's parameters, of which it keeps its slice alone.
///
/// A unit is a bucket of the ShardLayout. Its memory stays where it is, so that tensors stay valid,
/// and its pages go from one to the next. Before an operator reads a unit that is not there the
/// owners gather it, in *rounds*: each says which units it needs, all gather what any needs, and
/// give up the units that were needed longest ago. So all have the same units at any time, whatever
/// each computes; who computes nothing follows the others.
/// Thread rule: the replica's own thread; between runs any one thread a unit.
#pragma once

#include <memory>
#include <vector>

#include "tutti/base/array.h"
#include "tutti/comm/group/group.h"
#include "tutti/sync/before_use.h"
#include "tutti/sync/sharded/detail/shard_layout.h"
#include "tutti/sync/sharded/detail/spare_pages.h"

namespace tutti::detail {

class ParameterUnits {
 public:
  /// `row`, of mapped_zeros(), has all values; it and the layout must outlive this. `owners` is
  /// used by nobody else: rounds come when operators do, beside whatever else the replicas
  /// exchange.
  ParameterUnits(Group owners, const ShardLayout& shards, std::byte* row, Millis limit);

  /// Takes this rank's slice from the row, which is whole.
  void take_slice();
  std::byte* value_of(const OwnedPiece& piece) const {
    return static_cast<std::byte*>(slice_.data()) + piece.slice_bytes;
  }

  /// Gives all units back. From now on this thread's operators find what they read. Throws
  /// UsageError where LibTorch's observers of operators are off.
  void give_back();
  /// Takes part in the others' rounds until none of them needs a unit, or will after an action.
  void follow();
  /// The same until none needs one; then all who are here go on, and those in follow() stay.
  void after_action();
  /// follow(), then gathers all.
  void gather_all();

  bool whole() const noexcept;
  /// Throws what kept a unit from coming; nothing when nothing did.
  void rethrow_failure() const { late_->rethrow_failure(); }
  /// The slice, and the most that units have had at once since give_back(), but for gather_all().
  int64_t bytes() const noexcept { return slice_.num_bytes() + most_unit_bytes_; }

 private:
  /// What the owners have said in a round, the least first.
  enum class Said : uint8_t { all_done, some_go_on, some_need };
  Said round(const std::vector<int>& needed, Said own);
  void gather(int unit);
  void drop(int unit);
  void make_room(const std::vector<uint8_t>& needed);
  int64_t bytes_of(int unit) const;

  Group owners_;
  const ShardLayout& shards_;
  std::byte* row_;
  Millis limit_;
  SparePages spare_;
  Array slice_;                     // values of this rank's pieces
  std::vector<uint8_t> here_;       // by unit
  std::vector<int64_t> needed_in_;  // by unit: the last round in which some rank needed it
  int64_t rounds_ = 0;
  int64_t unit_bytes_ = 0, most_unit_bytes_ = 0;
  std::unique_ptr<BeforeUse> late_;
};

}  // namespace tutti::detail
