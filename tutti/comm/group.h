/// Group: a fixed set of ranks that can talk to each other; how users reduce, gather and broadcast.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/comm/engine.h"
#include "tutti/comm/work.h"

namespace tutti {

/// Cheap to copy: copies share one engine. Each member calls the same operations in the same order;
/// one thread a member. Operations return at once and advance in whoever waits; buffers must not be
/// touched until the Work is done. Results are bit-equal on all ranks, whatever the timing; sums
/// follow reduction_shape(). dtypes of reductions: float32, float64, bfloat16, float16 (summed in
/// float32, rounded once), int32, int64; other operations take any dtype. Any length from 0 on.
///
/// `limit` is wall time for the whole operation, queueing included.
class Group {
 public:
  /// A group of one: every operation is done at once.
  Group();
  explicit Group(std::shared_ptr<Engine> engine);

  int rank() const noexcept;  ///< 0-based, below size()
  int size() const noexcept;
  const ReductionShape& reduction_shape() const noexcept;
  Engine& engine() const noexcept { return *engine_; }

  /// Reduces `data` over all ranks, in place. mean of integers: UsageError.
  [[nodiscard]] Work all_reduce(MemorySpan data, ReduceOp op, Millis limit = kDefaultTimeLimit);

  /// Reduces `input` (n equal parts) over all ranks; `output` receives part rank(). They may
  /// overlap only when output is exactly this rank's part of input.
  [[nodiscard]] Work reduce_scatter(MemorySpan input, MemorySpan output, ReduceOp op,
                                    Millis limit = kDefaultTimeLimit);

  /// Concatenates all ranks' `input`, in rank order, into `output` (n times as long).
  [[nodiscard]] Work all_gather(MemorySpan input, MemorySpan output,
                                Millis limit = kDefaultTimeLimit);

  /// Copies rank `root`'s data to all ranks, in place.
  [[nodiscard]] Work broadcast(MemorySpan data, int root, Millis limit = kDefaultTimeLimit);

  /// Returns once every rank has called it. Synchronous: the one operation without data.
  void barrier(Millis limit = kDefaultTimeLimit);

  /// As all_reduce(...).wait(), without the handle: for small, frequent values.
  void all_reduce_now(MemorySpan data, ReduceOp op, Millis limit = kDefaultTimeLimit);

  /// Collective: memory that all members map (Engine::allocate).
  SharedParts allocate(int64_t bytes, Millis limit = kDefaultTimeLimit);

  /// Ends every pending and future operation of every member with an error that says `reason`:
  /// PeerLost on the other members, who lose this one, and Error here. From any thread; the first
  /// reason wins; never throws.
  void abort(const std::string& reason) noexcept;

 private:
  std::shared_ptr<Engine> engine_;
};

}  // namespace tutti
