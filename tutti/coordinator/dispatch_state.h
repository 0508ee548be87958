/// DispatchState: what a coordinator decides: which worker runs which task, and what becomes of it.
/// Pure: no sockets, no clock; dispatcher.h carries it out.
///
/// Tasks are given out in the order in which they were scheduled, each to one worker at a time. One
/// whose worker is lost goes to the next that is free: every task runs at least once. After the
/// first error no more tasks begin: those that wait are cancelled, those that run come to their
/// end. Whoever takes the error starts afresh.
/// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "tutti/ps/wire/message.h"

namespace tutti::coordinator {

struct Task {
  int64_t number = 0;  ///< in the order of scheduling
  std::string step;
  ps::Bytes arguments;
};

/// How a task ended.
struct Outcome {
  enum class Kind : uint8_t { done, failed, cancelled };
  Kind kind = Kind::done;
  ps::Bytes result;
  std::string words;  ///< of what is not done: why
};

struct DispatchCounts {
  int64_t scheduled = 0;
  int64_t done = 0;
  int64_t failed = 0;
  int64_t cancelled = 0;
  int64_t repeated = 0;  ///< times that a task was given out again, its worker being lost
  int64_t workers_lost = 0;
};

class DispatchState {
 public:
  using Give = std::function<void(int worker, const Task& task)>;
  using End = std::function<void(int64_t task, const Outcome& outcome)>;
  /// Both are called from within the calls below.
  DispatchState(int64_t most_waiting, Give give, End end)
      : most_waiting_(most_waiting), give_(std::move(give)), end_(std::move(end)) {}

  /// Whether as many tasks wait as may.
  bool full() const noexcept { return std::ssize(waiting_) >= most_waiting_; }
  /// Takes a task, and returns its number. Neither full() nor failed().
  int64_t schedule(std::string step, ps::Bytes arguments);

  /// A worker comes, or comes again. `name`: "worker 2 (host b, pid 77)".
  void come(int worker, const std::string& name);
  /// It is gone; `ending` is a predicate. Idempotent.
  void lose(int worker, const std::string& ending);

  /// A worker's word on the task that it runs; on another one it changes nothing, since that was
  /// given to somebody else meanwhile.
  void done(int worker, int64_t task, ps::Bytes result);
  void fail(int worker, int64_t task, const std::string& words);
  /// Nobody can run what waits.
  void give_up(const std::string& words);

  bool failed() const noexcept { return error_.has_value(); }
  /// The first error, once nothing runs any more.
  std::string take_error();

  bool runs() const noexcept { return !running_.empty(); }
  bool idle() const noexcept { return waiting_.empty() && running_.empty(); }
  int64_t num_waiting() const noexcept { return std::ssize(waiting_); }
  int num_workers() const noexcept { return static_cast<int>(workers_.size()); }
  bool is_here(int worker) const { return workers_.contains(worker); }
  /// What `worker` runs; null: nothing.
  const Task* running(int worker) const;
  /// "worker 2 (host b, pid 77) was silent for 15000 ms"; "" while none was lost.
  const std::string& last_lost() const noexcept { return last_lost_; }
  const DispatchCounts& counts() const noexcept { return counts_; }

 private:
  void give_out();
  std::optional<Task> take_running(int worker, int64_t task);
  void end(const Task& task, const Outcome& outcome);
  void set_error(const std::string& words);

  const int64_t most_waiting_;
  const Give give_;
  const End end_;
  int64_t last_number_ = 0;
  std::deque<Task> waiting_;
  std::map<int, std::string> workers_;  // those that are here, with their names
  std::deque<int> free_;                // of these, who waits longest first
  std::map<int, Task> running_;         // by worker
  std::optional<std::string> error_;
  std::string last_lost_;
  DispatchCounts counts_;
};

}  // namespace tutti::coordinator
