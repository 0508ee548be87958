/// Rows of an embedding table on a parameter server: of equal width, under any 64-bit keys, made
/// when they are first pushed, each with optimizer state and a count of updates of its own.
///
/// Use it where most ids of a large table are rarely seen. A key without a row reads as its initial
/// row, a pure function of (seed, table name, key): `pull` never makes one, and a row that was
/// evicted starts again as if it had never been. Everything is deterministic: tables of one spec
/// and rule that see the same pushes in the same order have the same bits, whichever CPU they run
/// on, and also after a snapshot was loaded into one of them.
///
/// Eviction goes by *age*: the number of pushes to the table, empty ones too, since the last one
/// that had the row's key.
///
/// Thread rule: as containers; const functions may run at the same time, as far as the threads of
/// `compute` are for several callers (those of Compute::plain() are). A SparseSnapshot may be read
/// and dropped in any thread while the table goes on. After std::bad_alloc, or Error for want of
/// memory, from push or load the table may only be destroyed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tutti/base/dtype.h"
#include "tutti/optim/rule.h"
#include "tutti/ps/spec/sparse_spec.h"
#include "tutti/ps/values/compute.h"

namespace tutti::ps {

/// What a push did besides updating.
struct SparsePush {
  int64_t made = 0;     ///< rows that were not there before
  int64_t evicted = 0;  ///< rows that went, perhaps some of those just made
  bool operator==(const SparsePush&) const = default;
};

/// Some rows with all that belongs to them, as plain arrays; one entry (or `width` elements) a key.
struct SparseRows {
  std::vector<uint64_t> keys;
  std::vector<std::byte> rows;                 ///< [keys, width] of the table's dtype
  std::vector<std::vector<std::byte>> states;  ///< as many as the rule has, each as rows
  std::vector<optim::StepScalars> scalars;     ///< of the row's last update; count >= 1
  /// Pushes since the row's last, >= 0. An age and not a push's number, since servers count their
  /// pushes apart: rows of three servers can be loaded into two.
  std::vector<int64_t> ages;
};

namespace detail {
struct SparseCut;
class PushOrder;
}  // namespace detail

/// A whole table as it was at one moment; later pushes do not change it. Copies share it.
class SparseSnapshot {
 public:
  int64_t num_rows() const noexcept;

 private:
  friend class SparseTable;
  friend class SparseReader;
  friend class SparseScan;
  explicit SparseSnapshot(std::shared_ptr<const detail::SparseCut> cut) : cut_(std::move(cut)) {}

  std::shared_ptr<const detail::SparseCut> cut_;
};

/// Reads a snapshot from front to back, by ascending key. Takes 16 bytes a row, and the time to
/// sort the keys when it is made.
class SparseReader {
 public:
  explicit SparseReader(SparseSnapshot snapshot);
  /// The next rows, `most` (>= 1) of them at most; none when all were read.
  SparseRows next(int64_t most);

 private:
  SparseSnapshot snapshot_;
  std::vector<std::pair<uint64_t, uint32_t>> order_;  // key, slot
  size_t at_ = 0;
};

/// Reads a whole table as it was at one moment, in the order in which its rows lie, or are to go: a
/// fresh table that loads them in this order need not sort them. Costs nothing beforehand.
class SparseScan {
 public:
  /// As SparseReader::next().
  SparseRows next(int64_t most);

 private:
  friend class SparseTable;
  SparseScan(SparseSnapshot snapshot, std::shared_ptr<const detail::PushOrder> order);

  SparseSnapshot snapshot_;
  std::shared_ptr<const detail::PushOrder> order_;  // null: as they lie
  uint32_t at_ = 0;                                 // the next slot
};

/// The table. Rows lie with their states in slabs of some 16 KiB; a slab that a living snapshot
/// holds is copied by the first push that changes it.
class SparseTable {
 public:
  /// compute  of it `for_each`, by which rows are read and updated, and `charge`, of their memory
  ///
  /// Throws UsageError as SparseTableSpec::validate().
  SparseTable(SparseTableSpec spec, optim::Rule rule, const Compute& compute = Compute::plain());
  ~SparseTable();
  SparseTable(SparseTable&&) noexcept;
  SparseTable& operator=(SparseTable&&) noexcept;

  const SparseTableSpec& spec() const noexcept;
  const optim::Rule& rule() const noexcept;
  int64_t num_rows() const noexcept;
  /// Memory held now, in bytes: slabs (also their free places), index, order. Slabs that only
  /// snapshots hold are not counted: each snapshot can hold as much as the table at its time.
  int64_t num_bytes() const noexcept;

  /// Copies the rows of `keys` to `out`, in that order; a key may come more than once.
  ///
  /// out  host memory of keys.size() * width elements of the table's dtype, any alignment
  ///
  /// Throws UsageError for an `out` of another length or dtype.
  void pull(std::span<const uint64_t> keys, MemorySpan out) const;

  /// Updates one row a key with the table's rule, each as its own next step, and makes the rows
  /// that are not there; then evicts. Costs no pass over the table.
  ///
  /// keys           each once; none at all is a push too, under which rows age
  /// gradients      [keys, width] as `out` above, only read; finite (not checked here)
  /// learning_rate  as optim::Rule::next() takes it
  ///
  /// Throws, and changes nothing: Error naming a key that comes twice, or when the table would
  /// exceed kMostRows; UsageError for gradients of another length or dtype, or a bad learning rate.
  SparsePush push(std::span<const uint64_t> keys, MemorySpan gradients, double learning_rate);

  /// As push(), then pull() of the same keys into `out`, but looks at each row once.
  SparsePush push_pull(std::span<const uint64_t> keys, MemorySpan gradients, double learning_rate,
                       MemorySpan out);

  /// The table as it is now. Costs a few nanoseconds a slab, and no copy of a row.
  SparseSnapshot snapshot();
  /// All rows as they are now. Costs what snapshot() does, and of a table that evicts a copy of
  /// its order, 8 bytes a row.
  SparseScan scan();
  /// A table of its own that is equal to this one. Rows are shared until one of the two changes
  /// them; costs a copy of the index, 26 bytes a row or so. One of them may be used, and dropped,
  /// in another thread.
  SparseTable fork();

  /// Puts rows back, of those only the ones whose key `keep` accepts (none given: all):
  /// load(rows, [](uint64_t key) { return server_of_key(key, 2) == 1; }).
  ///
  /// rows  in any order; from tables of this spec and rule, of however many servers
  ///
  /// Nothing is evicted before the next push. Throws, and changes nothing: DataError naming table
  /// and key or array for arrays of wrong length, a key that comes twice or has a row already, and
  /// counts, powers or ages out of range; Error when the table would exceed kMostRows.
  void load(const SparseRows& rows, const std::function<bool(uint64_t)>& keep = {});

 private:
  struct Impl;
  explicit SparseTable(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti::ps
