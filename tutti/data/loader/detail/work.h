/// What a loader's workers share: parts that are computed, in order, and who computes what.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tutti/data/detail/epoch_state.h"
#include "tutti/data/loader/detail/choice.h"
#include "tutti/data/loader/detail/remote_reader.h"
#include "tutti/data/loader/detail/slots.h"
#include "tutti/data/loader/detail/stopwatch.h"
#include "tutti/data/loader/detail/stuck_watch.h"
#include "tutti/data/loader/loader.h"

namespace tutti::data {

namespace detail {

/// A replica's part of a step. Rows are numbered from the part's first.
struct Part {
  int64_t step = 0;
  int replica = 0;
  BatchPart of{};
  std::shared_ptr<const EpochState> epoch;
  Batch batch;         // its memory: rows of it are written by whoever has claimed them
  int64_t issued = 0;  // rows [0, issued) are claimed
  int64_t done = 0;    // so many are written
  int64_t failed_row = -1;
  std::exception_ptr failure;
  std::map<std::string, std::string> replaced;  // damaged samples: where, what
  bool awaited = false;                         // by the replica that takes it

  int64_t rows() const noexcept { return of.share.size(); }
  bool complete() const noexcept { return done == rows(); }
};

}  // namespace detail

// Lock order: mutex_ before the pool's own. Workers hold mutex_ but for the filling itself.
class Loader::Work : public std::enable_shared_from_this<Loader::Work> {
 public:
  Work(LoaderOptions options, LoaderPlace place);

  void begin(const Epoch& epoch, LoaderPlan plan);
  void expect(int64_t step);
  Batch take(int64_t step, int replica, const Deadline& deadline);
  bool has(const Epoch& epoch, int64_t step) const;
  bool replaces() const noexcept { return options_.on_bad.replace.has_value(); }
  void end();
  void stop();
  LoaderReport report() const;

 private:
  class Turns;
  class Bad;
  using PartHandle = std::shared_ptr<detail::Part>;
  using Lock = std::unique_lock<std::mutex>;

  struct Worker {
    std::thread thread;
    std::unique_ptr<detail::RemoteReader> remote;  // null: the thread computes itself
    bool running = false;
    // What it is at, for who waits too long.
    PartHandle part;
    Share rows{};
    TimePoint since{};
    detail::Seen seen;
  };

  void require_origin();
  void measure_shares();
  static int64_t bytes_of_part(const BatchPart& part, const std::vector<Column>& columns);
  void require_memory(int64_t bytes) const;
  PartHandle make_part(int64_t step, int replica);
  bool drop_last();
  void count_replaced(const detail::Part& part);
  bool open_parts();
  bool steps_ahead_allow(int64_t step) const;
  PartHandle next_open() const;
  Share claim(detail::Part& part) const;
  void fill(Lock& lock, const PartHandle& part, Share rows, Worker* worker, Millis limit = {});
  void run(Worker& worker, size_t number);
  void count_cost(const detail::Cost& cost);
  void start_threads();
  bool is_direct() const;
  Batch take_directly(Lock& lock, int64_t step, int replica, TimePoint begin,
                      const Deadline& deadline);
  PartHandle wait_for_part(Lock& lock, int64_t step, int replica, const Deadline& deadline);
  [[noreturn]] void raise_late(const detail::Part& part, const Deadline& deadline) const;
  [[noreturn]] void raise_held(int64_t step, const Deadline& deadline) const;
  void count_step(int replica, int64_t rows, TimePoint begin);
  void decide();
  void follow(const detail::WorkerChoice& choice, const detail::LoadFigures& figures);

  const LoaderOptions options_;
  const int free_cores_;
  std::shared_ptr<detail::SlotPool> pool_;
  detail::StuckWatch stuck_watch_;

  mutable std::mutex mutex_;  // of all that follows
  std::condition_variable work_, turn_, ready_;
  std::shared_ptr<const detail::EpochState> epoch_;
  std::optional<Epoch> whole_;  // the same
  LoaderPlan plan_;
  std::deque<int64_t> expected_;  // steps that are still to be opened
  int next_replica_ = 0;          // of expected_.front(), or of next_step_
  int64_t next_step_ = 0;
  std::list<PartHandle> parts_;  // in the order of their taking
  std::vector<int64_t> taken_;   // by replica: the last step
  std::vector<bool> takes_;      // by replica: not where its parts are empty
  std::vector<std::unique_ptr<Worker>> workers_;
  detail::WorkerChoice choice_{};
  int computing_ = 0;  // workers in stages other than reads; <= choice_.at_once
  bool stopping_ = false;
  double seconds_a_row_ = 0;

  // Since the last decision, and of all.
  struct Window {
    TimePoint begin{};
    int64_t steps = 0, rows = 0;
    double waiting = 0;  // of all replicas
    detail::Cost cost{};
  } window_;
  int calm_ = 0;  // decisions in a row for fewer workers
  bool decided_ = false;
  std::map<std::string, StageReport> stages_;
  TimePoint first_take_{}, last_take_{};
  int64_t steps_ = 0;
  double waiting_ = 0;
  std::map<std::string, std::string> replaced_;  // each as it was first met
  std::set<std::string> replaced_in_epoch_;
  double samples_here_ = 0;  // of an epoch, in the parts of this loader
  std::string origin_;       // of what its processes make
};

}  // namespace tutti::data
