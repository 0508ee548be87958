/// One number for how far workers may drift apart, who has to wait for whom, and how stale updates
/// really were.
///
/// Each server keeps a StalenessGate of its own, fed by the pushes that it sees: no worker has to
/// ask anybody else. Thread rule: as containers; const functions may run at the same time.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::ps {

/// 0: synchronous. s: the fastest worker is at most s steps ahead of the slowest (stale synchronous
/// parallel, Ho et al. 2013, NIPS 26). inf: nobody waits for another.
class Staleness {
 public:
  static constexpr int64_t kMost = int64_t{1} << 40;

  Staleness() = default;
  /// 0 to kMost. Throws UsageError.
  explicit Staleness(int64_t steps);
  static Staleness unbounded();
  /// "0", "4", "inf". Throws UsageError that names `what`: "--staleness".
  static Staleness parse(std::string_view text, std::string_view what);

  bool synchronous() const noexcept { return steps_ == 0; }
  bool bounded() const noexcept { return steps_ != kUnbounded; }
  /// Whether a worker that is `ahead` steps before the slowest may go on.
  bool allows(int64_t ahead) const noexcept { return ahead <= steps_; }
  std::string text() const;  ///< as parse() takes it
  bool operator==(const Staleness&) const = default;

 private:
  static constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();
  int64_t steps_ = 0;
};

inline constexpr double kMostDelayCompensation = 1e30;

/// Why a job that leaves late steps out can have no snapshots; "" where it can.
std::string objection_to_snapshots(int drop_slowest);

/// How many steps each worker has pushed, and who may begin the next.
class StalenessGate {
 public:
  /// Workers 0 to workers - 1, each at step 0.
  StalenessGate(int workers, Staleness staleness);

  /// `worker` has pushed its part of `step` (0-based). Steps of a worker come in order; one that
  /// was counted before changes nothing. Throws UsageError for a step left out, and for a worker
  /// that is not there.
  void pushed(int worker, int64_t step);

  /// Whether `step` may begin: parameters are at most that stale.
  bool may_begin(int64_t step) const;
  /// Those at whose pushes it waits: {} when it may begin.
  std::vector<int> waits_for(int64_t step) const;

  /// A worker is gone: nobody waits for it any more. Idempotent.
  void leave(int worker);
  /// One comes, or comes again, at the step of the slowest that is there; returns that step.
  int64_t join(int worker);

  /// Where `worker` came: 0, or what its last join() returned. What it calls step t is begun_of +
  /// t.
  int64_t begun_of(int worker) const;

  /// Goes on where another gate was: steps of those that are here, its slowest(), and where those
  /// began that joined.
  void restore(std::map<int, int64_t> steps, int64_t slowest, std::map<int, int64_t> begun = {});

  /// Steps that every worker has pushed; what it was when the last one left.
  int64_t slowest() const;
  bool is_here(int worker) const { return clocks_.contains(worker); }
  /// Steps that `worker` has pushed. Throws UsageError when it is not there.
  int64_t steps_of(int worker) const;
  int num_here() const noexcept { return static_cast<int>(clocks_.size()); }

 private:
  const Staleness staleness_;
  std::map<int, int64_t> clocks_;  // of those that are here: steps pushed
  std::map<int, int64_t> begun_;   // of those that joined: at which step
  int64_t reached_ = 0;            // by the slowest, when the last one left
};

/// How stale the gradients of updates were: how many updates had been applied between the pull that
/// a gradient was computed on and its own.
class StalenessHistogram {
 public:
  void add(int64_t staleness, int64_t updates = 1);
  void merge(const StalenessHistogram& other);

  int64_t count() const noexcept { return count_; }
  double mean() const noexcept;  ///< 0 when empty
  int64_t most() const noexcept;
  /// staleness -> updates
  const std::map<int64_t, int64_t>& bins() const noexcept { return bins_; }

 private:
  std::map<int64_t, int64_t> bins_;
  int64_t count_ = 0;
  int64_t sum_ = 0;
};

}  // namespace tutti::ps
