/// Engine: what moves data under a Group. Users hold Groups; who writes an engine derives from
/// this.
///
/// An engine knows plain memory spans and nothing of training. It is given connected links (a
/// shared segment, sockets) and finds nobody by itself. One Engine object is one member (rank) of a
/// group.
///
/// Order: collectives are carried out in the order in which they were submitted. Messages (send,
/// recv) stand beside them, in order only among those of one pair, direction and tag: a recv whose
/// message has not come holds up nothing else.
///
/// Thread rule: one thread at a time calls submit, progress, poll, run, split and allocate; abort
/// may come from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/base/dtype.h"
#include "tutti/base/reduction_shape.h"

namespace tutti {

class FlightLog;  // flight/flight_log.h

/// bit_*: integers and bool, bitwise; logical_*: integers and bool, nonzero counts as true and the
/// result is 0 or 1.
enum class ReduceOp : uint8_t {
  sum,
  mean,
  min,
  max,
  product,
  bit_and,
  bit_or,
  bit_xor,
  logical_and,
  logical_or,
  logical_xor,
};
std::string_view name_of(ReduceOp op) noexcept;

enum class Collective : uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  barrier,
  reduce,
  scatter,
  gather,
  all_to_all,
  send,
  recv,
};
std::string_view name_of(Collective collective) noexcept;

/// Instead of a rank: recv takes the next message of any other member.
constexpr int kAnyRank = -1;

/// One operation as an engine sees it. Spans are validated by Group before.
///
/// collective      input              output               counts (elements per rank; empty: equal)
/// all_reduce      -                  in place
/// reduce          -                  in place; elsewhere than on root unchanged
/// reduce_scatter  n parts            1 part               input_counts
/// all_gather      1 part             n parts              output_counts
/// broadcast       -                  in place
/// scatter         n parts (on root)  1 part               input_counts, given on every rank
/// gather          1 part             n parts (on root)    output_counts, given on every rank
/// all_to_all      n parts            n parts              input_counts and output_counts
/// send            the message        -
/// recv            -                  room, exactly as long as the message
struct Operation {
  Collective collective = Collective::barrier;
  ReduceOp reduce = ReduceOp::sum;
  int root = 0;  ///< broadcast, reduce, scatter, gather: the root; send, recv: the other rank
  int tag = 0;   ///< send, recv: a message is received under the tag it was sent under
  MemorySpan input{};
  MemorySpan output{};
  std::vector<int64_t> input_counts{};
  std::vector<int64_t> output_counts{};
  /// Between the levels of a hierarchy: sums are neither rounded nor divided. all_reduce and reduce
  /// of accumulators' types; the output of reduce_scatter is of that type (float32 for 16 bits).
  bool partial = false;
  int* source = nullptr;            ///< recv: set to the sender's rank once done, when not null
  Millis limit{kDefaultTimeLimit};  ///< wall time of the whole operation, queueing included
};

/// Names a submitted batch; only the engine that gave it can read it.
using Ticket = uint64_t;

/// Why a group failed; decides the class of the error that its members throw.
enum class FailureKind : uint32_t { aborted, peer_lost, timeout, mismatch };

/// Memory that every member maps: part r belongs to rank r, and all may read and write all parts.
/// Parts start on a 64-byte line. Copies share the mapping; the last one unmaps it, so tensors that
/// view it may outlive group and strategy.
struct SharedParts {
  std::vector<MemorySpan> parts;      ///< one per rank, uint8, at this process's addresses
  std::shared_ptr<const void> owner;  ///< keeps the mapping alive
};

/// Where a member stands among the collectives of its group: in the one of that number (from 0 on),
/// or after it.
struct Standing {
  const Operation* operation = nullptr;  ///< null: it has called nothing yet
  uint64_t number = 0;
  bool in_it = false;
};

class Engine {
 public:
  virtual ~Engine() = default;

  virtual std::string_view name() const noexcept = 0;  ///< "solo", "shm", "tcp", ...
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  /// The order in which this engine adds.
  virtual const ReductionShape& reduction_shape() const noexcept = 0;
  /// False where a library adds in an order of its own: results may then differ in the last bits
  /// from those of other engines, rank counts and runs.
  virtual bool follows_shape() const noexcept { return true; }
  /// True when all members are threads of this process: any memory is visible to all.
  virtual bool one_process() const noexcept { return false; }
  /// True when all members are on one host and allocate() can give them memory in common.
  virtual bool shares_memory() const noexcept { return false; }
  /// Whether it can read and write memory there; Group refuses other spans.
  virtual bool reaches(const Place& place) const noexcept {
    return place.kind == Place::Kind::host;
  }

  /// Queues operations and starts what can start without waiting. A batch holds collectives alone,
  /// in order, or messages alone; its ticket is done when all of it is.
  virtual Ticket submit(std::span<const Operation> batch) = 0;

  /// Advances all that is in flight until `ticket` is done, waiting for peers until `deadline` (and
  /// each operation's own limit). Throws PeerLost, Timeout, Mismatch or the reason of an abort.
  virtual void progress(Ticket ticket, const Deadline& deadline) = 0;

  /// Advances what can advance without waiting; true when `ticket` is done.
  virtual bool poll(Ticket ticket) = 0;

  /// Advances all that is in flight, waits for nothing, and throws what a wait would.
  virtual void nudge() {}

  /// Called by this engine's waits about every millisecond, for what else the waiting thread has to
  /// keep moving. By the owning thread, while nothing is in flight; engines shm and tcp do.
  void set_idle(std::function<void()> idle) { idle_ = std::move(idle); }

  /// So many sums of different memory go on beside each other; what else is submitted waits.
  virtual int sums_at_a_time() const noexcept { return 1; }
  /// As progress(), with the operations' own limits alone; false once wake() was called, before or
  /// meanwhile, and `ticket` is not done: for who may have more to submit. Engines that can be
  /// lent.
  virtual bool progress_until_woken(Ticket ticket) {
    progress(ticket, Deadline(kLongestLimit));
    return true;
  }
  /// Ends one progress_until_woken(). From any thread.
  virtual void wake() noexcept {}

  /// Whether another thread may carry out operations while the owning one computes.
  virtual bool can_be_lent() const noexcept { return false; }
  /// From now on that thread owns this engine. Its waits leave the core to who computes, and call
  /// no idle(): look_after() is the other one's, who waits for it. No thread: as before. By either,
  /// one after the other, while nothing is in flight. `recall`: gets it back, for the owning thread
  /// that comes to use it; without one that is an error there.
  void lend(std::thread::id to, std::function<void()> recall = {}) {
    recall_ = std::move(recall);
    lent_to_ = to;
  }
  /// How long waits of that thread have left, whatever limits their operations have; null: these
  /// alone. From any thread.
  void end_lent_by(const Deadline* deadline) noexcept { lent_until_ = deadline; }
  /// For a thread that is about to use it: gets it back where it is lent and can be recalled.
  /// UsageError where it cannot.
  void require_own() const;
  /// Calls what set_idle() was given.
  void look_after() const {
    if (idle_) idle_();
  }

  /// For an engine that another one is built on, of the same members: what it answers about this
  /// member when another asks. Called by the owning thread. Engine tcp does.
  virtual void answer_with(const std::function<Standing()>& /*standing*/) {}

  /// Asks every member where it stands. Those that are behind this one, or say nothing within
  /// `limit`, in words; empty when there are none, or this engine cannot ask. Throws the failure of
  /// the group.
  virtual std::string members_behind(Millis /*limit*/) { return {}; }

  /// Who has left or died, in words, for whoever waits for it elsewhere; empty when nobody has, or
  /// this engine cannot see it. By the owning thread.
  virtual std::string lost_member() const { return {}; }

  /// Submits one operation and carries it out before it returns: no allocation, no lock, and no
  /// clock read before the first spin budget ends.
  virtual void run(const Operation& operation) = 0;

  /// Makes work queued on `stream` afterwards wait for `ticket`. Engines of host memory finish it
  /// here.
  virtual void wait_on(Ticket ticket, Stream stream);

  /// Fails every pending and future operation of every member, as far as they can be told, within
  /// 100 ms. The first reason wins. With FailureKind::aborted the others throw PeerLost and this
  /// member Error; with another kind all throw that. `text` is a sentence that names the culprit.
  virtual void abort(FailureKind kind, const std::string& text) noexcept = 0;

  /// Collective: the members that give the same `color` (>= 0) form a group of their own, in order
  /// of `key`, then of rank here. Null for a negative color. Groups live and fail independently.
  virtual std::shared_ptr<Engine> split(int color, int key, Millis limit) = 0;

  /// Collective: memory mapped by all members; each gives the bytes of its own part (0 allowed).
  /// Zeroed and resident. Throws Error with both sizes when memory or its cgroup limit is too
  /// small, UsageError where members share no memory.
  virtual SharedParts allocate(int64_t bytes, Millis limit) = 0;

  /// What Group notes of this member's operations; null without a Group and in a group of one.
  FlightLog* flight_log() const noexcept { return flight_log_.get(); }

 protected:
  /// What set_idle() was given; may be empty.
  const std::function<void()>& idle() const noexcept { return is_lent() ? no_idle_ : idle_; }
  bool is_lent() const noexcept { return lent_to_.load() != std::thread::id(); }
  const Deadline* lent_until() const noexcept { return lent_until_; }

 private:
  friend class Group;
  std::function<void()> idle_, no_idle_, recall_;
  std::atomic<std::thread::id> lent_to_{};
  std::atomic<const Deadline*> lent_until_{nullptr};
  std::shared_ptr<FlightLog> flight_log_;
};

}  // namespace tutti
