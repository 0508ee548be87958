/// Group: a fixed set of ranks that can talk to each other; how users reduce, gather and broadcast.
#pragma once

#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include "tutti/comm/engine/engine.h"
#include "tutti/comm/group/work.h"

namespace tutti {

/// Where in the program an operation was called; filled in by itself.
using CallSite = std::source_location;

/// Wall time of an operation; none: that of its group (Group::set_time_limit).
using Limit = std::optional<Millis>;

/// Cheap to copy: copies share one engine. Each member calls the same operations in the same order;
/// one thread a member. Operations return at once and advance in whoever waits; buffers must not be
/// touched until the Work is done. Results are bit-equal on all ranks, whatever the timing; sums
/// follow reduction_shape(). Any length from 0 on, any dtype that ReduceOp takes:
///
///   sum, product, min, max   integers; float32, float64; bfloat16, float16 (in float32, rounded
///                            once); integers wrap. bool: sum is or, product and
///   mean                     floating types
///   bit_*, logical_*         integers and bool
///
/// Operations that only move data take any dtype. Lists of counts hold one number of elements a
/// rank and are the same on every rank, where not said otherwise; parts lie one behind the other.
///
/// `limit` is wall time for the whole operation, queueing included; where none is given, that of
/// time_limit().
class Group {
 public:
  /// A group of one: every operation is done at once.
  Group();
  /// `name` is what the flight record calls it, the same on all members; a number unless given.
  explicit Group(std::shared_ptr<Engine> engine, std::string name = {});

  int rank() const noexcept;  ///< 0-based, below size()
  int size() const noexcept;
  const ReductionShape& reduction_shape() const noexcept;
  Engine& engine() const noexcept { return *engine_; }

  /// Of operations that are given none, from now on: of this copy, of copies of it, and of groups
  /// that are split from it.
  void set_time_limit(Millis limit) noexcept { limit_ = limit; }
  Millis time_limit() const noexcept { return limit_; }

  /// Reduces `data` over all ranks, in place.
  [[nodiscard]] Work all_reduce(MemorySpan data, ReduceOp op, Limit limit = {},
                                CallSite site = CallSite::current());

  /// The same, with the result on rank `root` alone; elsewhere `data` is unchanged.
  [[nodiscard]] Work reduce(MemorySpan data, ReduceOp op, int root, Limit limit = {},
                            CallSite site = CallSite::current());

  /// Reduces `input` (n equal parts, or parts of `counts`) over all ranks; `output` receives part
  /// rank(). They may overlap only when output is exactly this rank's part of input.
  [[nodiscard]] Work reduce_scatter(MemorySpan input, MemorySpan output, ReduceOp op,
                                    Limit limit = {}, CallSite site = CallSite::current());
  [[nodiscard]] Work reduce_scatter(MemorySpan input, MemorySpan output, ReduceOp op,
                                    std::vector<int64_t> counts, Limit limit = {},
                                    CallSite site = CallSite::current());

  /// Concatenates all ranks' `input`, in rank order, into `output` (n times as long, or as long as
  /// all `counts`; `input` has counts[rank()] elements).
  [[nodiscard]] Work all_gather(MemorySpan input, MemorySpan output, Limit limit = {},
                                CallSite site = CallSite::current());
  [[nodiscard]] Work all_gather(MemorySpan input, MemorySpan output, std::vector<int64_t> counts,
                                Limit limit = {}, CallSite site = CallSite::current());

  /// Copies rank `root`'s data to all ranks, in place.
  [[nodiscard]] Work broadcast(MemorySpan data, int root, Limit limit = {},
                               CallSite site = CallSite::current());

  /// Gives part r of `root`'s `input` to rank r as its `output`. `input` counts on root alone.
  [[nodiscard]] Work scatter(MemorySpan input, MemorySpan output, int root,
                             std::vector<int64_t> counts = {}, Limit limit = {},
                             CallSite site = CallSite::current());

  /// Concatenates all ranks' `input` into `root`'s `output`, which counts there alone.
  [[nodiscard]] Work gather(MemorySpan input, MemorySpan output, int root,
                            std::vector<int64_t> counts = {}, Limit limit = {},
                            CallSite site = CallSite::current());

  /// Gives part r of `input` to rank r, and receives part s of `output` from rank s. The counts are
  /// this rank's own: send_counts[r] here equals receive_counts[rank()] on rank r. Input and output
  /// may not overlap.
  [[nodiscard]] Work all_to_all(MemorySpan input, MemorySpan output,
                                std::vector<int64_t> send_counts = {},
                                std::vector<int64_t> receive_counts = {}, Limit limit = {},
                                CallSite site = CallSite::current());

  /// A message to rank `to`. Done when `data` may be reused: short ones at once, long ones once the
  /// receiver takes them. Messages stand beside the collectives: neither waits for the other.
  [[nodiscard]] Work send(MemorySpan data, int to, int tag = 0, Limit limit = {},
                          CallSite site = CallSite::current());

  /// The next message that rank `from` (or anybody: kAnyRank) sent under `tag`, which must be as
  /// long as `data`: Mismatch otherwise. `source`, when given, receives the sender's rank.
  [[nodiscard]] Work recv(MemorySpan data, int from, int tag = 0, Limit limit = {},
                          int* source = nullptr, CallSite site = CallSite::current());

  /// Returns once every rank has called it. Synchronous: the one operation without data.
  void barrier(Limit limit = {}, CallSite site = CallSite::current());

  /// As all_reduce(...).wait(), without the handle: for small, frequent values.
  void all_reduce_now(MemorySpan data, ReduceOp op, Limit limit = {},
                      CallSite site = CallSite::current());

  /// Collective: the members that give the same `color` (>= 0) form a group of their own, ordered
  /// by `key`, then by rank here; nothing for a negative color. The new group may be used beside
  /// this one, by another thread too, and fails for itself.
  std::optional<Group> split(int color, int key = 0, Limit limit = {});

  /// Errors of this group end with these words: who its ranks are in the job, say. Before it is
  /// used.
  void say_members(const std::string& words) const;

  /// Collective: memory that all members map (Engine::allocate).
  SharedParts allocate(int64_t bytes, Limit limit = {});

  /// Ends every pending and future operation of every member with an error that says `reason`:
  /// PeerLost on the other members, who lose this one, and Error here. From any thread; the first
  /// reason wins; never throws.
  void abort(const std::string& reason) noexcept;

 private:
  Work submit(const Operation& operation, const CallSite& site);
  void run(const Operation& operation, const CallSite& site);
  void compare(const Operation& operation, const CallSite& site, const FlightMark& mark);

  Millis of(Limit limit) const noexcept { return limit.value_or(limit_); }

  std::shared_ptr<Engine> engine_;
  Millis limit_ = kDefaultTimeLimit;
};

}  // namespace tutti
