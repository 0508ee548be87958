/// The engine for ranks of one host: threads of one process, processes, or both, in one code path.
///
/// Ranks meet in a *segment*: a memfd without a name that every process of the group maps (threads
/// of one process share one mapping). docs/design/shm_engine.md describes what lies in it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/comm/engine/engine.h"
#include "tutti/net/arena.h"

namespace tutti {

constexpr int kMaxRanks = 1024;  ///< of one segment, so of one host

struct ShmOptions {
  int64_t slot_bytes = 256 << 10;  ///< staging slot of a rank; two are used in turn
  int usable_cores = 0;            ///< 0: host_facts(); decides spinning against sleeping
  bool pinned = false;             ///< each rank's thread is pinned to cores of its own
  int first_rank = 0;              ///< what messages call rank 0: its rank among job_ranks
  int job_ranks = 0;               ///< where the segment is one host of several; 0: it is all
};

/// A segment for `size` ranks. Copyable; the last copy unmaps it.
class ShmSegment {
 public:
  /// Makes a segment for `size` ranks, 1 to kMaxRanks. Throws Error when memory is too small.
  static ShmSegment create(int size, const ShmOptions& options = {});
  /// The same in an empty shared file that others hold too.
  static ShmSegment create_in(SharedFile file, int size, const ShmOptions& options = {});
  /// Maps a segment that another process made; `descriptor` is duplicated, the caller keeps its
  /// own.
  static ShmSegment open(int descriptor, const ShmOptions& options = {});

  int descriptor() const noexcept;  ///< of the memfd, close-on-exec
  int size() const noexcept;

  struct State;
  explicit ShmSegment(std::shared_ptr<State> state) : state_(std::move(state)) {}
  const std::shared_ptr<State>& state() const noexcept { return state_; }

 private:
  ShmSegment() = default;
  std::shared_ptr<State> state_;
};

/// The engine of member `rank`. Each rank is made once. With `all_threads`, all members are threads
/// of this process, any memory counts as shared. In worlds of several processes each member holds a
/// lock that the kernel drops at its death: a death is seen within 1 s of being in, or entering, a
/// wait. Throws Timeout naming the missing ranks when not all have come within `limit`, PeerLost
/// when one died before all had come. `loss` is asked for deaths that the segment does not show,
/// those of ranks that have not come yet: words for one, or nothing.
std::shared_ptr<Engine> make_shm(const ShmSegment& segment, int rank, bool all_threads,
                                 Millis limit = kDefaultTimeLimit,
                                 const std::function<std::string()>& loss = {});

/// Engines of `size` thread members over one fresh segment, in rank order.
std::vector<std::shared_ptr<Engine>> make_shm_threads(int size, const ShmOptions& options = {});

}  // namespace tutti
