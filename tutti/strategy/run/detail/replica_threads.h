/// The threads on which a worker's replicas run. The caller is replica 0: one more thread on two
/// cores collapses. Not for users: Strategy::run is the way in.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "tutti/base/deadline.h"

namespace tutti::detail {

/// Where one replica computes.
struct ReplicaPlace {
  int rank = 0;
  int num_threads = 1;     ///< of LibTorch inside the replica
  std::vector<int> cores;  ///< pinned to these; empty: not pinned
};

/// Places for `local` replicas from `first_rank` on, each with `threads` threads. Pinned ones take
/// cores[first_rank * threads] and on: all replicas of the host fit side by side.
std::vector<ReplicaPlace> choose_places(int local, int first_rank, int threads, bool pinned,
                                        const std::vector<int>& cores);

/// Sets the calling thread's LibTorch thread count and cores; puts back what was there at the end.
class PlaceGuard {
 public:
  explicit PlaceGuard(const ReplicaPlace& place);
  ~PlaceGuard();
  PlaceGuard(const PlaceGuard&) = delete;
  PlaceGuard& operator=(const PlaceGuard&) = delete;

 private:
  struct Before;
  std::unique_ptr<Before> before_;
};

/// Lets malloc keep what a step frees for the next step, in this process and from now on (glibc).
/// Otherwise each step returns its activations to the kernel and faults them in again, page by
/// page, and thread replicas queue for the one address space: a step of cnn takes 1.7 times as
/// long.
void keep_freed_memory();

/// Ends the process, naming a replica that is stuck in what a user gave to `where`, `patience`
/// after another one has returned from there: its thread cannot be ended, and uses what others
/// have.
[[noreturn]] void end_stuck(int stuck, std::string_view where, Millis patience, int other);

class ReplicaThreads {
 public:
  /// Error where a thread cannot start.
  explicit ReplicaThreads(std::vector<ReplicaPlace> places, Millis time_limit);
  ~ReplicaThreads();

  /// Calls body(local) for every replica at once, 0 on the calling thread, with LibTorch's
  /// thread-local state of the caller; it must not throw. Returns when all have returned. A replica
  /// that takes longer than twice the time limit after replica 0, and replica 0 after any other, is
  /// named and the process ends: it is stuck in the user's code, since a wait for another replica
  /// ends by itself, with an error that names who has not come.
  void run(const std::function<void(int)>& body);

  const std::vector<ReplicaPlace>& places() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tutti::detail
