/// SparseShard: the rows of all embedding tables that one partition has.
///
/// A table is updated once a step of all workers (synchronous) or once a push, and counts versions
/// as pieces do. The same calls give the same bits.
/// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/ps/spec/spec.h"
#include "tutti/ps/values/dense_piece.h"
#include "tutti/ps/values/sparse_table.h"
#include "tutti/ps/wire/message.h"

namespace tutti::ps {

/// Rows of one answer are at most so many bytes: a frame takes no more.
inline constexpr int64_t kMostBytesOfRows = int64_t{1} << 30;

/// The rows of all tables of a shard as they were at one moment, some MiB at a time.
class SparseShardCopy {
 public:
  /// A text and a payload for SparseShard::take(); nothing once all were given.
  std::optional<std::pair<std::string, Bytes>> next();

 private:
  friend class SparseShard;
  struct Left {
    int table = 0;
    int64_t rows_at_once = 0;
    SparseScan scan;
  };
  std::deque<Left> left_;
};

class SparseShard {
 public:
  SparseShard(const Spec& spec, int partition, const Compute& compute);
  SparseShard(SparseShard&&) = default;
  /// Tables of its own that are equal to these (SparseTable::fork()).
  SparseShard fork();

  int num_tables() const noexcept { return static_cast<int>(tables_.size()); }
  const SparseTableSpec& spec(int table) const { return tables_.at(table).table.spec(); }
  int64_t version(int table) const { return tables_.at(table).version; }
  int64_t num_rows() const noexcept;
  int64_t num_bytes() const noexcept;  ///< of memory, SparseTable::num_bytes()

  /// Why a sparse_push or sparse_pull cannot be: an unknown table, a payload of another width, a
  /// key of another partition, one that is pushed twice, too many. "" when it can.
  std::string objection(const Message& request) const;
  /// Of a request without objection.
  std::vector<uint64_t> keys_of(const Message& request) const;

  bool finite(const Message& push) const;
  /// The gradients of a row are added in the order of `pushes`, and multiplied by `scale`; then it
  /// is updated once. Rows without a key are not updated. The version is one higher in any case.
  void update(int table, std::span<const Message* const> pushes, double scale,
              double learning_rate);
  /// A row a key, as they are now.
  Bytes rows(int table, std::span<const uint64_t> keys) const;

  /// All that is known: versions, and rows. Costs no pass over the rows (SparseTable::scan()).
  std::vector<int64_t> versions() const;
  SparseShardCopy copy() const;
  /// One table as it is now.
  SparseSnapshot snapshot(int table) const { return tables_.at(table).table.snapshot(); }
  /// A text and payload as of a copy.
  static std::pair<std::string, Bytes> chunk_of(int table, const SparseRows& rows);
  /// Back, into fresh tables. Throw Error for what the above did not give.
  void restore_versions(const std::vector<int64_t>& versions);
  void take(std::string_view text, const Bytes& payload);

 private:
  struct Entry {
    SparseTable table;
    int64_t version = 0;

    int64_t row_bytes() const { return table.spec().width * size_of(table.spec().dtype); }
  };
  struct Empty {};
  SparseShard(const SparseShard& like, Empty)
      : partition_(like.partition_),
        num_partitions_(like.num_partitions_),
        num_workers_(like.num_workers_),
        compute_(like.compute_) {}
  MemorySpan gradients_of(const Message& push) const;

  const int partition_;
  const int num_partitions_;
  const int num_workers_;
  const Compute compute_;
  mutable std::vector<Entry> tables_;  // count the snapshots that are taken of them
};

}  // namespace tutti::ps
