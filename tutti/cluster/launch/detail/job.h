/// Job: one node's workers, from their start to the end of all that they started.
///
/// It is one loop over signals, deaths, the workers' channels and output; what it decides lies in
/// ending.h, news.h and report.h. Thread rule: one thread.
#pragma once

#include <sys/epoll.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/host.h"
#include "tutti/cluster/join/detail/step_board.h"
#include "tutti/cluster/launch/detail/ending.h"
#include "tutti/cluster/launch/detail/forward.h"
#include "tutti/cluster/launch/detail/guard.h"
#include "tutti/cluster/launch/detail/news.h"
#include "tutti/cluster/launch/detail/node_ending.h"
#include "tutti/cluster/launch/detail/other_nodes.h"
#include "tutti/cluster/launch/detail/report.h"
#include "tutti/cluster/launch/detail/signals.h"
#include "tutti/cluster/launch/launcher.h"
#include "tutti/cluster/rendezvous/detail/messages.h"
#include "tutti/comm/shm/shm.h"
#include "tutti/net/descriptor_channel.h"

namespace tutti::detail {

class Job {
 public:
  /// Starts nothing yet. `options` outlives it.
  ///
  /// program  path
  Job(const LaunchOptions& options, std::string program);
  Job(const Job&) = delete;
  ~Job() { end_tree(); }

  /// From the first worker's start until nothing of the job is left. Once.
  LaunchResult run();

 private:
  struct Worker {
    WorkerResult result;
    FileDescriptor pidfd;
    DescriptorChannel channel;
    bool running = false;
    bool joined = false;
    bool behind = false;  // its channel was full
    Millis grace{0};      // that it asked for
  };

  // What an epoll event is about; the worker's number stands beside it.
  enum class Source : uint32_t { signal, death, channel, other_nodes, child };

  void start(int number, pid_t instead_of = 0);
  bool start_again(Worker& worker);
  std::vector<std::string> prepare();
  std::vector<std::string> environment_of(int number, int lifeline) const;
  void watch(int descriptor, Source source, int worker, uint32_t events = EPOLLIN);
  void go_on(std::optional<Millis> limit = {});
  void wait_for_events(std::optional<Millis> limit);
  void reap_orphans();
  void serve_events();
  void take_signals();
  Millis signal_grace();
  void hear_other_nodes();
  int first_worker() const { return options_.nodes.node * options_.num_workers; }
  int total_workers() const { return options_.nodes.num_nodes * options_.num_workers; }
  void read_channel(Worker& worker);
  void on_message(Worker& worker, DescriptorChannel::Message received);
  void spread_news();
  void on_death(Worker& worker);
  static void tell(WorkerResult& result, const std::string& what_follows);
  void blame_a_stopped_worker();
  void send_signal(int signal);
  void end_tree() noexcept;
  bool watches_stopped() const;
  void end_what_is_left_stopped();
  void wait_for_cause();
  void wait_for_other_nodes();
  std::vector<NodeEnding> swap_endings();
  void finish_output();
  std::optional<int> root() const;
  LaunchResult result() const;
  std::string flight_records() const;
  bool any_running() const;
  int index_of(const Worker& worker) const { return static_cast<int>(&worker - workers_.data()); }

  const LaunchOptions& options_;
  const std::string program_;  // its path
  std::unique_ptr<OtherNodes> other_nodes_;
  const std::vector<std::string> prepared_;  // of each worker's environment
  const std::string job_;                    // its id
  // Launchers of one job may share a machine: each ends what it started itself.
  const std::string launch_entry_;
  ReapsOrphans reaps_orphans_;
  IgnoresBrokenPipes ignores_broken_pipes_;
  std::optional<SignalPipe> signals_;
  std::optional<ShmSegment> segment_;
  const StepBoard steps_;
  FileDescriptor epoll_;  // signals, deaths and channels; output has sets of its own
  Forwarder output_;
  std::vector<Worker> workers_;
  std::vector<pid_t> spare_;  // children that are not the job's orphans
  Guard guard_;
  News news_;
  Ending ending_;
  std::vector<Death> deaths_;                          // in order
  std::optional<FailureElsewhere> failure_elsewhere_;  // when it came before any here
  std::optional<size_t> deaths_before_signal_;  // those after the first signal follow from it
  const int64_t oom_kills_before_ = read_host_facts().oom_kills;
  int restarts_left_ = options_.restarts;
  int stopped_worker_ = -1;
  std::optional<TimePoint> stopped_since_{};  // all that are left are stopped
  bool child_ended_ = false;                  // since orphans were reaped last
  TimePoint next_reaping_{};
  bool tree_ended_ = false;
};

}  // namespace tutti::detail
