/// Where the replicas of a worker come together in the midst of run(): replica 0 then acts for all,
/// and may borrow the threads of the others. Not for users: Strategy::merge is the way in.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "tutti/base/deadline.h"

namespace tutti::detail {

/// Thread rule: meet() by each replica's thread; on_all() by replica 0's, inside the function that
/// meet() called; fail() by any.
class ReplicaMeeting {
 public:
  using Value = std::shared_ptr<void>;
  using Lead = std::function<Value(const std::vector<Value>&)>;

  ReplicaMeeting(int first_rank, int local, Millis limit);

  /// Brings `value`; when all local replicas have come, `lead` of replica 0 is called, on its
  /// thread, with what they brought. All return what it returned, or throw what it threw. Throws
  /// Timeout naming who has not come, or that replica 0 is still at it, after the time limit;
  /// PeerLost after fail().
  Value meet(int local, Value value, const Lead& lead);

  /// body(local) on the threads of all local replicas at once; rethrows the first error. A replica
  /// that takes longer than twice the time limit after replica 0 ends the process: its thread uses
  /// what is replica 0's.
  void on_all(const std::function<void(int)>& body);

  bool leading() const noexcept { return leading_; }  ///< replica 0 is in `lead`

  /// Ends every meeting, now and later, since a replica failed.
  void fail(const std::string& reason);

 private:
  void await(std::unique_lock<std::mutex>& lock, const std::function<bool()>& ready,
             const std::function<std::string()>& late);
  Value lead_all(std::unique_lock<std::mutex>& lock, const Lead& lead);
  void follow(std::unique_lock<std::mutex>& lock, int local, int64_t meeting);
  [[noreturn]] void throw_failure() const;
  std::string absent() const;

  const int first_rank_;
  const Millis limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Value> values_;  // by local replica
  std::vector<uint8_t> here_;  // by local replica: waits in this meeting
  int64_t meetings_ = 0;       // that are over
  Value result_;               // of the last
  std::exception_ptr error_;   // of the last
  bool leading_ = false;
  const std::function<void(int)>* job_ = nullptr;
  int64_t jobs_ = 0;              // begun so far
  std::vector<uint8_t> at_work_;  // by local replica, never 0: does the job
  std::exception_ptr job_error_;
  std::string failure_;  // of a replica; empty: none
  bool late_ = false;    // it did not come in time
};

}  // namespace tutti::detail
