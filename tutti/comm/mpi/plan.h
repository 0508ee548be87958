/// Which bytes an operation sends where, step by step: pure, no MPI.
///
/// Every operation begins with an *announcement*: each rank tells every other what it calls. What
/// is short travels in it; the rest in *steps*, each a set of transfers and an addition after them.
/// n ranks, N bytes each:
///
///   all_reduce      slice r of everybody to rank r, added there; then everybody's slice to all
///   reduce          the same, then every slice to the root
///   reduce_scatter  part r of everybody to rank r, added there
///   broadcast       slice r from the root to rank r; then everybody's slice to all but the root
///   the others      each part straight from where it is to where it belongs
///
/// Bytes a rank sends: 2N(n-1)/n, N(n-1)/n, N(n-1)/n, N(n-1)/n (the root N), what must move.
/// Reductions go in chunks of `chunk_bytes`, which bounds the scratch.
#pragma once

#include <vector>

#include "tutti/comm/engine/engine.h"

namespace tutti::detail::mpi {

/// Parts up to this size travel in the announcement. With it they stay below the size from which
/// MPI libraries ask the receiver first (4 KiB is the least of them).
constexpr int64_t kMpiInlineBytes = 2048;
/// Of a cache: what several ranks write begins on one of its own.
constexpr int64_t kLine = 64;

struct MpiTransfer {
  int peer = 0;
  void* data = nullptr;
  int64_t bytes = 0;
};

/// Transfers that go at once, and what is added once they are done.
struct MpiStep {
  std::vector<MpiTransfer> sends;
  std::vector<MpiTransfer> receives;
  std::vector<const void*> inputs;  ///< one a rank; empty: nothing is added
  void* output = nullptr;
  int64_t num_elements = 0;
};

class MpiPlan {
 public:
  MpiPlan(int rank, int size, int64_t chunk_bytes)
      : rank_(rank), size_(size), chunk_bytes_(chunk_bytes) {}

  /// What goes to `peer` (the whole, for all_reduce, reduce and broadcast), and what comes from it.
  MemorySpan outgoing(const Operation& operation, int peer) const;
  MemorySpan incoming(const Operation& operation, int peer) const;
  /// Whether what goes to, or comes from, `peer` travels in the announcement.
  static bool is_inline(const MemorySpan& span) { return span.num_bytes() <= kMpiInlineBytes; }

  /// The steps that announcements leave to do. `scratch` holds scratch_bytes().
  int num_steps(const Operation& operation) const;
  MpiStep step(const Operation& operation, int index, std::byte* scratch) const;
  int64_t scratch_bytes(const Operation& operation) const;

 private:
  int64_t chunk_elements(const Operation& operation) const;
  void add_slices(const Operation& operation, int index, std::byte* scratch, MpiStep& step) const;
  void spread_slices(const Operation& operation, int index, std::byte* scratch,
                     MpiStep& step) const;
  void broadcast_step(const Operation& operation, int index, MpiStep& step) const;
  void scatter_parts(const Operation& operation, int index, std::byte* scratch,
                     MpiStep& step) const;
  void direct_step(const Operation& operation, MpiStep& step) const;

  int rank_;
  int size_;
  int64_t chunk_bytes_;
};

}  // namespace tutti::detail::mpi
