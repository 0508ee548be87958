/// JoinedCalls: calls of many threads, answered many at a time by a thread of its own.
///
/// A pass answers calls in the order in which they came. It begins when the next call would make it
/// larger than `max_units`, or when the first has waited for `max_wait`; what comes during a pass
/// gathers for the next. So under load passes are full without waiting, and a lone call waits for
/// `max_wait` and no longer.
///
/// Thread rule: ask() and counts() from any threads at the same time; destroying it while calls
/// wait or are in a pass is allowed.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tutti/base/deadline.h"

namespace tutti {

struct GatherLimits {
  int64_t max_units = 1;  ///< >= 1: of a pass; a call that has more is a pass of its own
  std::chrono::microseconds max_wait{0};  ///< >= 0: of the first call of a pass, for others
};

/// What is asked, and its answer.
struct JoinedCall {
  virtual ~JoinedCall() = default;
  std::exception_ptr error;  ///< set by whoever answers: what ask() throws

 private:
  friend class JoinedCalls;
  std::condition_variable changed_;
  bool done_ = false;  // guarded by the mutex of JoinedCalls
};

struct WaitingCall {
  int64_t units;
  TimePoint came;
  std::shared_ptr<JoinedCall> call{};
};

struct Gathered {
  size_t calls = 0;   ///< so many of the first are answered now; 0: none yet
  TimePoint until{};  ///< then look again, or when another has come
};
/// Pure. waiting: at least one, in the order in which they came.
Gathered gather(const std::deque<WaitingCall>& waiting, const GatherLimits& limits, TimePoint now);

struct CallCounts {
  int64_t passes = 0;   ///< that have begun
  int64_t calls = 0;    ///< in these passes
  int64_t units = 0;    ///< of these calls
  int64_t waiting = 0;  ///< calls that are in no pass yet
};

class JoinedCalls {
 public:
  using Answer = std::function<void(std::span<const std::shared_ptr<JoinedCall>>)>;

  /// what    what is asked, which begins messages: "predict"
  /// answer  called in that one thread with the calls of a pass; what it throws is an Error of all
  ///         that have none of their own. Must not ask() itself.
  /// UsageError for limits that are out of range.
  JoinedCalls(std::string what, const GatherLimits& limits, Answer answer);
  /// Calls of the pass that is under way get their answers, those that still wait an Error. Returns
  /// when all ask() have.
  ~JoinedCalls();
  JoinedCalls(const JoinedCalls&) = delete;

  /// Returns when `call` is answered. Throws its error; Timeout when no pass has taken it by then,
  /// which changes nothing for the others: a pass that has begun is waited for, so that what it
  /// reads is the caller's again afterwards. Error when it has ended. units >= 0.
  void ask(const std::shared_ptr<JoinedCall>& call, int64_t units, const Deadline& deadline);

  CallCounts counts() const;

 private:
  struct Asking;
  void run();
  std::vector<std::shared_ptr<JoinedCall>> next_pass(std::unique_lock<std::mutex>& lock);
  void settle(const std::shared_ptr<JoinedCall>& call, const std::string& failure);

  const std::string what_;
  const GatherLimits limits_;
  const Answer answer_;
  mutable std::mutex mutex_;  // guards what follows, but thread_
  std::condition_variable came_, left_;
  std::deque<WaitingCall> waiting_;
  CallCounts counts_;
  int64_t asking_ = 0;  // ask() that have not returned
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace tutti
