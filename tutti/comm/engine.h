/// Engine: what moves data under a Group. Users hold Groups; who writes an engine derives from
/// this.
///
/// An engine knows plain memory spans and nothing of training. It is given connected links (a
/// shared segment, sockets) and finds nobody by itself. One Engine object is one member (rank) of a
/// group.
///
/// Thread rule: the owning thread alone calls submit, progress, allocate and the synchronous entry;
/// abort may come from any thread. Operations complete in the order in which they were submitted.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/base/dtype.h"
#include "tutti/base/reduction_shape.h"

namespace tutti {

enum class ReduceOp : uint8_t { sum, mean, min, max };
std::string_view name_of(ReduceOp op) noexcept;

enum class Collective : uint8_t { all_reduce, reduce_scatter, all_gather, broadcast, barrier };
std::string_view name_of(Collective collective) noexcept;

/// One collective operation as an engine sees it. Spans are validated by Group before.
struct Operation {
  Collective collective = Collective::barrier;
  ReduceOp reduce = ReduceOp::sum;
  int root = 0;        ///< broadcast: the rank whose data all receive
  MemorySpan input{};  ///< reduce_scatter: n parts; all_gather: this rank's part
  MemorySpan
      output{};  ///< all_reduce, broadcast: in place; reduce_scatter: 1 part; all_gather: n parts
  Millis limit{kDefaultTimeLimit};  ///< wall time of the whole operation, queueing included
};

/// The number of the last operation of a submitted batch; tickets of one engine increase.
using Ticket = uint64_t;

/// Memory that every member maps: part r belongs to rank r, and all may read and write all parts.
/// Parts start on a 64-byte line. Copies share the mapping; the last one unmaps it, so tensors that
/// view it may outlive group and strategy.
struct SharedParts {
  std::vector<MemorySpan> parts;      ///< one per rank, uint8, at this process's addresses
  std::shared_ptr<const void> owner;  ///< keeps the mapping alive
};

class Engine {
 public:
  virtual ~Engine() = default;

  virtual std::string_view name() const noexcept = 0;  ///< "solo", "shm", ...
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  /// The order in which this engine adds.
  virtual const ReductionShape& reduction_shape() const noexcept = 0;
  /// True when all members are threads of this process: any memory is visible to all.
  virtual bool one_process() const noexcept = 0;

  /// Queues operations in order and starts what can start without waiting.
  virtual Ticket submit(std::span<const Operation> batch) = 0;

  /// Advances until everything up to `ticket` is done, waiting for peers until `deadline` (and each
  /// operation's own limit). Throws PeerLost, Timeout, Mismatch or the reason of an abort.
  virtual void progress(Ticket ticket, const Deadline& deadline) = 0;

  /// Advances what can advance without waiting; true when everything up to `ticket` is done.
  virtual bool poll(Ticket ticket) = 0;

  /// Submits one operation and carries it out before it returns: no allocation, no lock, and no
  /// clock read before the first spin budget ends.
  virtual void run(const Operation& operation) = 0;

  /// Fails every pending and future operation of every member with `reason`: PeerLost on the
  /// others, Error on this one. First reason wins.
  virtual void abort(const std::string& reason) noexcept = 0;

  /// Collective: memory mapped by all members; each gives the bytes of its own part (0 allowed).
  /// Zeroed and resident. Throws Error with both sizes when memory or its cgroup limit is too
  /// small.
  virtual SharedParts allocate(int64_t bytes, Millis limit) = 0;
};

}  // namespace tutti
