/// SparseBatch: the keys of a batch, each once, by the partition that has them; and its way back:
/// rows to every place of their key, gradients of all places of a key into one.
///
/// Thread rule: plain values; const functions may run at the same time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tutti/ps/spec/sparse_spec.h"
#include "tutti/ps/wire/message.h"

namespace tutti::ps {

class SparseBatch {
 public:
  /// keys  may come more than once
  SparseBatch(std::span<const uint64_t> keys, const SparseTableSpec& table, int num_partitions);

  /// Whether it was made of just these keys.
  bool is_of(std::span<const uint64_t> keys) const;
  int64_t num_keys() const noexcept { return static_cast<int64_t>(places_.size()); }
  /// Those of `partition`, each once, in the order in which they first come.
  const std::vector<uint64_t>& keys(int partition) const { return keys_.at(partition); }
  /// The same as the payload of a sparse_pull.
  Bytes payload_of_keys(int partition) const;

  /// Copies `rows`, one for each of keys(partition), to all their places in `out`.
  ///
  /// out  num_keys() * width elements of the table's dtype
  void spread(int partition, const Bytes& rows, std::byte* out) const;

  /// The payload of a sparse_push: keys(partition), then for each the sum of the gradients of its
  /// places, added from the first place to the last. `to` has payload_bytes(partition).
  ///
  /// gradients  [num_keys(), width] of the table's dtype
  void gather(int partition, const std::byte* gradients, std::byte* to) const;
  int64_t payload_bytes(int partition) const;

 private:
  struct KeyAt {
    int partition = 0;
    uint32_t number = 0;  // of the key in the partition
  };

  int64_t width_;
  DType dtype_;
  std::vector<KeyAt> places_;
  std::vector<std::vector<uint64_t>> keys_;  // by partition
};

}  // namespace tutti::ps
