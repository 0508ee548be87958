/// Dispatcher: carries out what DispatchState decides: the coordinator's end of the links to its
/// workers. cluster_coordinator.h is what programs use.
///
/// Workers connect to it, learn of it from the job's view service (ps/server/view_service.h), and
/// prove that they are of the job as every connection does. One that runs another build is turned
/// away. Thread rule: every function may be called from any thread.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "tutti/base/deadline.h"
#include "tutti/coordinator/dispatch_state.h"
#include "tutti/net/address.h"
#include "tutti/net/credentials.h"
#include "tutti/net/listener.h"
#include "tutti/ps/wire/streams.h"

namespace tutti::coordinator {

/// The purpose of workers' connections, in the facts of their handshakes.
inline constexpr const char* kStepsPurpose = "steps";

// Of both ends: how long they wait for bytes at a time, signs of life in what they endure without
// one, and the longest frame.
inline constexpr Millis kTurn{100};
inline constexpr int kBeatsPerLimit = 4;
inline constexpr int64_t kMostFrameBytes = int64_t{1} << 30;

struct DispatcherOptions {
  int num_workers = 1;  ///< numbers 1 to num_workers
  HostPort view_service;
  std::string interface;                      ///< to be reached at: "": by route
  std::string build;                          ///< of this program (build.h)
  Millis limit{kDefaultTimeLimit};            ///< to find the view service
  Millis without_workers{kDefaultTimeLimit};  ///< steps wait so long for a worker to come
  Millis step_limit{600'000};                 ///< of one step
  int64_t most_waiting = int64_t{256} << 10;  ///< steps; schedule() then waits
};

/// A task that was scheduled, and how it ended. Dispatcher's own.
struct Ticket {
  bool ended = false;
  Outcome outcome;
};

class Dispatcher {
 public:
  /// Listens, and says where. Throws Error and UsageError as Listener does.
  Dispatcher(const DispatcherOptions& options, const Credentials& credentials);
  /// Tells the workers that all is over. What still runs is given up.
  ~Dispatcher();
  Dispatcher(const Dispatcher&) = delete;

  /// Hands in a task; waits while the queue is full. Throws Error with the first error of those
  /// before, once none of them runs any more; UsageError for arguments beyond 1 GiB.
  std::shared_ptr<const Ticket> schedule(const std::string& step, const std::string& arguments);
  /// Waits until all tasks have ended. Throws as schedule(). That it ends is due to the limits of
  /// steps, of silence, and of time without workers.
  void join();
  /// Whether all have ended. Throws as schedule().
  bool done();
  /// Waits until this one has ended; its result. Throws Error that says why there is none.
  ps::Bytes fetch(const Ticket& ticket);

  DispatchCounts counts() const;

 private:
  struct Member {
    std::string name;  // "worker 2 (host b, pid 77)"
    ps::Peer peer;     // its connection
    TimePoint heard{};
    TimePoint given{};  // the task that it runs
  };

  void work();
  void turn(TimePoint now);
  void on_message(ps::Peer from, const ps::Message& message);
  void on_connected(ps::Peer peer);
  void on_closed(ps::Peer peer, const std::string& how);
  void drop(ps::Peer peer);
  int worker_at(ps::Peer peer) const;
  void enlist(ps::Peer from, const ps::Message& message);
  std::string objection(int worker, const std::string& name, const std::string& build) const;
  void give(int worker, const Task& task);
  void look_after(TimePoint now);
  void mind_lack_of_workers(TimePoint now);
  void beat(TimePoint now);
  void lose(int worker, const std::string& how);
  void say_goodbye();
  template <class Ready>
  void wait_until(std::unique_lock<std::mutex>& lock, Ready&& ready);
  void raise_if_failed(std::unique_lock<std::mutex>& lock);
  std::string words_of_lack() const;

  const DispatcherOptions options_;
  Listener listener_;
  std::shared_ptr<ps::SharedHeap> heap_;
  mutable std::mutex mutex_;  // guards what follows, but thread_
  std::condition_variable changed_;
  DispatchState state_;
  std::map<int64_t, std::shared_ptr<Ticket>> tickets_;  // of tasks that have not ended
  std::set<ps::Peer> connected_;                        // processes, whoever they are
  std::map<int, Member> members_;                       // workers that are here
  std::map<int, std::string> refused_;                  // workers, and why
  TimePoint alone_since_ = Clock::now();                // while no worker is here
  Millis silence_;
  TimePoint next_beat_{};
  const TimePoint found_until_;  // the view service is looked for
  bool met_ = false;
  bool ends_ = false;
  bool service_knows_end_ = false;
  std::string broken_;  // why the thread has ended before its time
  std::unique_ptr<ps::Streams> streams_;
  std::thread thread_;
};

}  // namespace tutti::coordinator
