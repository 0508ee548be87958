/// ShardLayout: where everything lies when each of n owners has a slice of the parameters.
///
/// Trained parameters stand in buckets, which lie one behind the other in a *row*; the owners have
/// consecutive parts of each bucket, in their order, so that a bucket is reduced and gathered in
/// one call in which all have the same work. Parts end where a parameter's blocks of 1,024 elements
/// do. What an owner has of each bucket, one behind the other, is its *slice*.
/// Thread rule: immutable.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tutti/sync/detail/bucket_sums.h"
#include "tutti/sync/slots.h"

namespace tutti::detail {

/// Elements of one parameter that one owner has.
struct OwnedPiece {
  Stretch stretch;
  int64_t row_bytes = 0;    ///< where they begin in a row
  int64_t slice_bytes = 0;  ///< where they begin in the slice
};

/// What one owner has of one bucket.
struct OwnedPart {
  int64_t row_bytes = 0;
  int64_t slice_bytes = 0;
  int64_t num_elements = 0;
  std::vector<OwnedPiece> pieces;
};

class ShardLayout {
 public:
  /// `shares`: of the owners, as in Slots::cut.
  ShardLayout(const Slots& layout, int64_t bucket_bytes, std::span<const double> shares);

  std::span<const Bucket> buckets() const noexcept { return buckets_; }
  int num_buckets() const noexcept { return static_cast<int>(buckets_.size()); }
  const Bucket& bucket(int number) const { return buckets_[static_cast<size_t>(number)]; }
  int bucket_of(int parameter) const { return bucket_of_[static_cast<size_t>(parameter)]; }
  /// Of a trained parameter, in a row.
  int64_t row_bytes_of(int parameter) const { return offsets_[static_cast<size_t>(parameter)]; }
  int64_t row_bytes() const noexcept { return row_bytes_; }
  int64_t slice_bytes(int owner) const { return slice_bytes_[static_cast<size_t>(owner)]; }

  const OwnedPart& part(int bucket, int owner) const {
    return parts_[static_cast<size_t>(bucket)][static_cast<size_t>(owner)];
  }
  /// Elements of the owners' parts of a bucket.
  std::vector<int64_t> counts(int bucket) const;
  /// A bucket of a row that begins at `row`.
  MemorySpan span_of(int bucket, std::byte* row) const;

 private:
  std::vector<double> due(const Bucket& bucket, std::span<const double> shares) const;
  void cut(const Slots& layout, const Bucket& bucket, std::span<const double> shares);

  std::vector<Bucket> buckets_;
  std::vector<int64_t> offsets_;               // by parameter
  std::vector<int> bucket_of_;                 // by parameter; -1: frozen
  std::vector<std::vector<OwnedPart>> parts_;  // by bucket and owner
  std::vector<int64_t> slice_bytes_;           // by owner
  int64_t row_bytes_ = 0;
};

}  // namespace tutti::detail
