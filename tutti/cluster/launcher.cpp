#include "tutti/cluster/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <mutex>
#include <optional>

#include "tutti/base/error.h"
#include "tutti/base/host.h"
#include "tutti/base/log.h"
#include "tutti/cluster/ending.h"
#include "tutti/cluster/environment.h"
#include "tutti/cluster/forward.h"
#include "tutti/cluster/guard.h"
#include "tutti/cluster/messages.h"
#include "tutti/cluster/news.h"
#include "tutti/cluster/other_nodes.h"
#include "tutti/cluster/report.h"
#include "tutti/cluster/signals.h"
#include "tutti/cluster/spawn.h"
#include "tutti/comm/shm/shm.h"
#include "tutti/net/descriptor_channel.h"

namespace tutti {
namespace {

using detail::Message;

std::string random_id() {
  uint64_t bits = 0;
  if (getrandom(&bits, sizeof bits, 0) != sizeof bits) {
    throw Error("launch: getrandom: " + errno_words(errno));
  }
  return fmt::format("{:016x}", bits);
}

struct Worker {
  WorkerResult result;
  FileDescriptor pidfd;
  DescriptorChannel channel;
  bool running = false;
  bool joined = false;
  bool behind = false;      // its channel was full
  std::string error_class;  // of the error that it reported
};

// What an epoll event is about; the worker's number stands beside it.
enum class Source : uint32_t { signal, death, channel, other_nodes };

/// Where stdin, stdout or stderr is closed, the next thing opened would get its number, and be
/// written to.
void open_missing_standard_streams() {
  for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // The lowest free number is this one. It stays open, as if the process had been given it.
    if (fcntl(number, F_GETFD) < 0) open("/dev/null", O_RDWR);
  }
}

// What was killed takes a moment to go.
void sleep_shortly() noexcept {
  const timespec pause{0, 5'000'000};
  nanosleep(&pause, nullptr);
}

class Job {
 public:
  Job(const LaunchOptions& options, std::string program);
  Job(const Job&) = delete;
  ~Job() { end_tree(); }

  LaunchResult run();

 private:
  void start(int number, pid_t instead_of = 0);
  bool start_again(Worker& worker);
  std::vector<std::string> prepare();
  std::vector<std::string> environment_of(int number, int lifeline) const;
  void watch(int descriptor, Source source, int worker, uint32_t events = EPOLLIN);
  void wait_for_events();
  void serve_events();
  void take_signals();
  void hear_other_nodes();
  int first_worker() const { return options_.nodes.node * options_.num_workers; }
  int total_workers() const { return options_.nodes.num_nodes * options_.num_workers; }
  void read_channel(Worker& worker);
  void on_message(Worker& worker, DescriptorChannel::Message received);
  void spread_news();
  void on_death(Worker& worker);
  void blame_a_stopped_worker();
  void send_signal(int signal);
  void end_tree() noexcept;
  void wait_for_other_nodes();
  void finish_output();
  std::optional<int> root() const;
  LaunchResult result() const;
  bool any_running() const;
  int index_of(const Worker& worker) const { return static_cast<int>(&worker - workers_.data()); }

  const LaunchOptions& options_;
  const std::string program_;  // its path
  std::unique_ptr<detail::OtherNodes> other_nodes_;
  const std::vector<std::string> prepared_;  // of each worker's environment
  const std::string job_ = other_nodes_ ? other_nodes_->job() : random_id();
  // Launchers of one job may share a machine: each ends what it started itself.
  const std::string launch_entry_ = fmt::format("{}={}", detail::kLaunchVariable, random_id());
  detail::ReapsOrphans reaps_orphans_;
  detail::IgnoresBrokenPipes ignores_broken_pipes_;
  std::optional<detail::SignalPipe> signals_;
  std::optional<ShmSegment> segment_;
  FileDescriptor epoll_;  // signals, deaths and channels; output has sets of its own
  detail::Forwarder output_;
  std::vector<Worker> workers_;
  std::vector<pid_t> spare_;  // children that are not the job's orphans
  detail::Guard guard_;
  detail::News news_;
  detail::Ending ending_;
  std::vector<detail::Death> deaths_;                          // in order
  std::optional<detail::FailureElsewhere> failure_elsewhere_;  // when it came before any here
  std::optional<size_t> deaths_before_signal_;  // those after the first signal follow from it
  const int64_t oom_kills_before_ = read_host_facts().oom_kills;
  int restarts_left_ = options_.restarts;
  int stopped_worker_ = -1;
  bool tree_ended_ = false;
};

Job::Job(const LaunchOptions& options, std::string program)
    : options_(options),
      program_(std::move(program)),
      other_nodes_(options.nodes.num_nodes > 1
                       ? std::make_unique<detail::OtherNodes>(options.nodes, total_workers())
                       : nullptr),
      prepared_(prepare()),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      output_(options.num_workers, options.prefix_output),
      spare_(detail::children_of_this_process()),
      guard_(launch_entry_),
      news_(options.num_workers),
      ending_({.failure_grace = options.failure_grace,
               .signal_grace = options.signal_grace,
               .end_on_failure = options.end_on_failure}) {
  if (!epoll_) throw Error("launch: epoll: " + errno_words(errno));
  spare_.push_back(guard_.pid());
  if (other_nodes_) watch(other_nodes_->descriptor(), Source::other_nodes, 0);
  if (options.num_workers > 1 && !other_nodes_) segment_ = ShmSegment::create(options.num_workers);
  if (options.handle_signals) {
    signals_.emplace();
    watch(signals_->descriptor(), Source::signal, 0);
  }
}

std::vector<std::string> Job::prepare() {
  if (!options_.prepare) return {};
  try {
    return options_.prepare(other_nodes_ ? other_nodes_->word() : options_.nodes.word);
  } catch (const Error& error) {
    if (other_nodes_)
      other_nodes_->tell_failure(first_worker(), fmt::format("{} could not begin: {}",
                                                             other_nodes_->name(), error.what()));
    throw;
  }
}

LaunchResult Job::run() {
  workers_.resize(static_cast<size_t>(options_.num_workers));
  for (int w = 0; w < options_.num_workers; ++w) start(w);
  while (any_running()) {
    if (const auto signal = ending_.due(Clock::now())) {
      send_signal(*signal);
    } else {
      wait_for_events();
    }
  }
  end_tree();
  wait_for_other_nodes();
  finish_output();
  return result();
}

void Job::start(int number, pid_t instead_of) {
  Worker& worker = workers_[static_cast<size_t>(number)];
  worker.result.worker = first_worker() + number;
  auto [ours, theirs] =
      DescriptorChannel::make_pair(fmt::format("worker {}", worker.result.worker), "launcher");
  detail::SpawnPlan plan{.path = program_,
                         .arguments = options_.command,
                         .environment = environment_of(number, theirs.descriptor()),
                         .inherited = {theirs.descriptor()}};
  if (segment_) plan.inherited.push_back(segment_->descriptor());
  const auto their_ends = output_.open_streams(number);
  plan.output = their_ends[0].get();
  plan.errors = their_ends[1].get();

  detail::Spawned spawned = detail::spawn(plan);
  worker.running = true;
  worker.result.pid = spawned.pid;
  worker.pidfd = std::move(spawned.pidfd);
  worker.channel = std::move(ours);
  spare_.push_back(spawned.pid);
  guard_.add(spawned.pid, instead_of);
  watch(worker.pidfd.get(), Source::death, number);
  watch(worker.channel.descriptor(), Source::channel, number);
  if (options_.announce) {
    output_.announce(fmt::format("worker {} pid {}", worker.result.worker, spawned.pid));
  }
}

std::vector<std::string> Job::environment_of(int number, int lifeline) const {
  using namespace detail;
  std::vector<std::string> all = {launch_entry_,
                                  fmt::format("{}={}", kJobVariable, job_),
                                  fmt::format("{}={}", kWorkerVariable, first_worker() + number),
                                  fmt::format("{}={}", kNumWorkersVariable, total_workers()),
                                  fmt::format("{}={}", kLocalWorkerVariable, number),
                                  fmt::format("{}={}", kLifelineVariable, lifeline)};
  if (other_nodes_)
    all.push_back(fmt::format("{}={}", kRendezvousVariable, options_.nodes.rendezvous));
  if (segment_) all.push_back(fmt::format("{}={}", kSegmentVariable, segment_->descriptor()));
  const auto add = [&](const std::string& entry) {
    const std::string name = entry.substr(0, entry.find('=') + 1);
    const bool there = std::any_of(all.begin(), all.end(), [&](const std::string& other) {
      return other.rfind(name, 0) == 0;
    });
    const bool ours = name.rfind(std::string(kSegmentVariable) + "=", 0) == 0;
    if (!there && !ours) all.push_back(entry);
  };
  for (const std::string& entry : prepared_) add(entry);
  for (const std::string& entry : options_.environment) add(entry);
  for (char** entry = environ; *entry != nullptr; ++entry) add(*entry);
  return all;
}

void Job::watch(int descriptor, Source source, int worker, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = static_cast<uint64_t>(source) << 32 | static_cast<uint32_t>(worker);
  int failure = epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event);
  if (failure != 0 && errno == EEXIST) {
    failure = epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, descriptor, &event);
  }
  if (failure != 0) {
    throw Error("launch: epoll_ctl: " + errno_words(errno));
  }
}

void Job::wait_for_events() {
  int timeout = -1;
  if (const auto next = ending_.next()) {
    const auto left = std::chrono::ceil<Millis>(*next - Clock::now()).count();
    timeout = static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
  }
  const auto outputs = output_.interests();
  std::array<pollfd, 1 + outputs.size()> events{pollfd{epoll_.get(), POLLIN, 0}};
  std::copy(outputs.begin(), outputs.end(), events.begin() + 1);
  const int ready = poll(events.data(), events.size(), timeout);
  if (ready < 0 && errno != EINTR) throw Error("launch: poll: " + errno_words(errno));
  if (ready <= 0) return;
  detail::Forwarder::Interests served;
  std::copy(events.begin() + 1, events.end(), served.begin());
  output_.serve(served);
  if (events[0].revents != 0) serve_events();
}

void Job::serve_events() {
  // The kernel's ready list is in order of arrival, so that of two workers found dead at once the
  // first one died first. Room for all events keeps that order whole.
  std::vector<epoll_event> events(2 * workers_.size() + 1);
  const int ready = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  if (ready < 0 && errno != EINTR) throw Error("launch: epoll_wait: " + errno_words(errno));
  for (int i = 0; i < ready; ++i) {
    const uint64_t tag = events[static_cast<size_t>(i)].data.u64;
    Worker& worker = workers_[tag & 0xffffffff];
    switch (static_cast<Source>(tag >> 32)) {
      case Source::signal: take_signals(); break;
      case Source::death: on_death(worker); break;
      case Source::channel: read_channel(worker); break;
      case Source::other_nodes: hear_other_nodes(); break;
    }
  }
  spread_news();
  if (ending_.begun()) output_.drop_what_is_late();
}

void Job::take_signals() {
  while (const int signal = signals_->take()) {
    if (!deaths_before_signal_) {
      deaths_before_signal_ = deaths_.size();
      // Before the workers go, so that nobody takes their loss for the cause.
      if (other_nodes_)
        other_nodes_->tell_failure(
            first_worker(),
            fmt::format("{} was told to end by SIG{}", other_nodes_->name(), sigabbrev_np(signal)));
    }
    ending_.on_signal(signal, Clock::now());
  }
}

/// A failure on another node ends the job here too.
void Job::hear_other_nodes() {
  const auto failure =
      other_nodes_->first_failure(first_worker(), first_worker() + options_.num_workers);
  if (!failure) return;
  if (ending_.first_signal() != 0) return;  // what fails from then on follows from it
  // Workers that died here because they lost a peer are no cause.
  const bool cause_here = std::any_of(deaths_.begin(), deaths_.end(), [](const auto& death) {
    return death.failed && !death.lost_a_peer;
  });
  if (failure_elsewhere_ || !cause_here) failure_elsewhere_ = failure;
  ending_.on_failure(Clock::now());
}

void Job::read_channel(Worker& worker) {
  while (worker.channel.descriptor() >= 0) {
    pollfd entry{worker.channel.descriptor(), POLLIN, 0};
    if (poll(&entry, 1, 0) <= 0) return;
    try {
      on_message(worker, worker.channel.receive(Deadline(Millis{0})));
    } catch (const PeerLost&) {
      worker.channel.close();  // it ended, or never used it
    } catch (const Error& error) {
      log(LogLevel::warning, "{}", error.what());
      worker.channel.close();
    }
  }
}

void Job::on_message(Worker& worker, DescriptorChannel::Message received) {
  auto message = detail::decode(received.text);
  if (!message)
    throw Error(fmt::format("worker {} sent \"{}\"", worker.result.worker, received.text));
  message->worker = worker.result.worker;
  if (message->kind == Message::Kind::replicas) {
    worker.result.replicas = std::max(1, message->number);
    return;
  }
  if (message->kind == Message::Kind::failed) {
    const size_t colon = message->text.find(": ");
    worker.error_class = message->text.substr(0, colon);
    worker.result.error =
        colon == std::string::npos ? message->text : message->text.substr(colon + 2);
    return;
  }
  worker.joined = worker.joined || message->kind == Message::Kind::joined;
  news_.add(std::move(*message), std::move(received.descriptors));
}

/// Tells the workers that have joined, and so listen, what is new.
void Job::spread_news() {
  for (Worker& worker : workers_) {
    if (!worker.running || !worker.joined || worker.channel.descriptor() < 0) continue;
    try {
      const bool behind = !news_.tell(index_of(worker), worker.channel);
      if (behind == worker.behind) continue;
      worker.behind = behind;
      watch(worker.channel.descriptor(), Source::channel, index_of(worker),
            behind ? EPOLLIN | EPOLLOUT : EPOLLIN);
    } catch (const PeerLost& error) {
      log(LogLevel::debug, "{}", error.what());  // it is about to end
    }
  }
}

void Job::on_death(Worker& worker) {
  siginfo_t facts{};
  // It stays a zombie until the end of the tree, so that its process group's number is not reused.
  if (waitid(P_PIDFD, static_cast<id_t>(worker.pidfd.get()), &facts, WEXITED | WNOWAIT | WNOHANG) !=
      0) {
    throw Error("launch: waitid: " + errno_words(errno));
  }
  if (facts.si_pid == 0) return;
  output_.flush(index_of(worker));
  read_channel(worker);
  worker.running = false;
  worker.pidfd.reset();
  worker.channel.close();
  WorkerResult& result = worker.result;
  if (facts.si_code == CLD_EXITED) {
    result.exit_code = facts.si_status;
  } else {
    result.signal = facts.si_status;
  }
  news_.leave(index_of(worker));
  news_.add({.kind = Message::Kind::lost,
             .worker = result.worker,
             .text = result.name() + " " + result.ending()});
  const bool leads = options_.first_leads && result.worker == 0;
  if (result.failed() && !leads && start_again(worker)) return;
  deaths_.push_back({index_of(worker), result.failed(), worker.error_class == "PeerLost"});
  if (leads) ending_.on_lead_ended(Clock::now());
  if (!result.failed()) return;
  if (other_nodes_ && !result.stopped_by_launcher)
    other_nodes_->tell_failure(result.worker, fmt::format("{} {}", result.name(), result.ending()));
  ending_.on_failure(Clock::now());
}

/// What a failed worker had started ends first.
bool Job::start_again(Worker& worker) {
  if (restarts_left_ == 0 || ending_.begun()) return false;
  --restarts_left_;
  const int number = index_of(worker);
  const pid_t before = worker.result.pid;
  kill(-before, SIGKILL);
  for (const Deadline deadline(options_.failure_grace); !deadline.passed();) {
    const pid_t ended = waitpid(-before, nullptr, WNOHANG);
    if (ended < 0 && errno != EINTR) break;
    if (ended == 0) sleep_shortly();
  }
  std::erase(spare_, before);
  log(LogLevel::warning, "{} {}; it is started again ({} of {})", worker.result.name(),
      worker.result.ending(), options_.restarts - restarts_left_, options_.restarts);
  worker = {};
  start(number, before);
  return true;
}

/// A worker that is stopped lets the others' limits pass: they die first, but it is the cause. It
/// is one that is still stopped when the time to end by itself is over.
void Job::blame_a_stopped_worker() {
  const auto first = root();
  if (!first) return;
  const Worker& root = workers_[static_cast<size_t>(*first)];
  if (root.result.signal != 0 || (!root.error_class.empty() && root.error_class != "Timeout")) {
    return;
  }
  for (const Worker& other : workers_) {
    if (other.running && detail::is_stopped(other.result.pid)) {
      stopped_worker_ = index_of(other);
    }
  }
}

void Job::send_signal(int signal) {
  blame_a_stopped_worker();
  for (Worker& worker : workers_) {
    if (!worker.running) continue;
    worker.result.stopped_by_launcher = true;
    // A stopped process cannot end in order.
    kill(-worker.result.pid, detail::is_stopped(worker.result.pid) ? SIGKILL : signal);
  }
}

/// What fails after a signal to the job follows from it; what failed before is still the cause.
std::optional<int> Job::root() const {
  const size_t count = deaths_before_signal_.value_or(deaths_.size());
  return detail::root_of({deaths_.begin(), deaths_.begin() + static_cast<std::ptrdiff_t>(count)});
}

bool Job::any_running() const {
  return std::any_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.running; });
}

void Job::end_tree() noexcept {
  if (tree_ended_) return;
  tree_ended_ = true;
  for (const Worker& worker : workers_) {
    if (worker.result.pid > 0) kill(-worker.result.pid, SIGKILL);
  }
  // What it forked meanwhile is found in the next round.
  constexpr int kRounds = 400;
  for (int round = 0; round < kRounds; ++round) {
    if (detail::kill_members(launch_entry_.c_str(), true, spare_) == 0) break;
    sleep_shortly();
  }
  for (Worker& worker : workers_) {
    if (worker.result.pid <= 0) continue;
    while (waitpid(worker.result.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    output_.flush(index_of(worker));
  }
  guard_.dismiss();
}

/// What this node has for the job is needed until the last worker of any node has ended.
void Job::wait_for_other_nodes() {
  if (!other_nodes_ || !options_.end_together) return;
  other_nodes_->tell_end();
  while (!other_nodes_->all_ended() && !ending_.begun()) wait_for_events();
}

/// Waits for the readers of the launcher's own output: after a success until they have all of it,
/// else no longer than the job's end may take. The workers are gone; signals still count.
void Job::finish_output() {
  while (output_.waiting() && !ending_.over()) {
    if (!ending_.due(Clock::now())) wait_for_events();
  }
}

LaunchResult Job::result() const {
  LaunchResult result;
  result.oom_kills = read_host_facts().oom_kills - oom_kills_before_;
  for (const Worker& worker : workers_) {
    result.workers.push_back(worker.result);
    result.workers.back().last_lines = output_.last_lines(index_of(worker));
  }
  // Other nodes' limits pass too when a worker of this one is stopped.
  if (failure_elsewhere_ && stopped_worker_ < 0) {
    result.exit_code = 1;
    result.root_worker = failure_elsewhere_->worker;
    result.root_cause = failure_elsewhere_->words;
  } else if (const auto root = this->root()) {
    const WorkerResult& first = workers_[static_cast<size_t>(*root)].result;
    const int cause_index = stopped_worker_ >= 0 ? stopped_worker_ : *root;
    const WorkerResult& cause = workers_[static_cast<size_t>(cause_index)].result;
    result.exit_code = first.signal != 0 ? 128 + first.signal : first.exit_code;
    result.root_worker = cause.worker;
    result.root_cause =
        cause.name() + " " +
        (stopped_worker_ >= 0 ? "was stopped (SIGSTOP) and did not go on" : first.ending());
  } else if (const int signal = ending_.first_signal()) {
    result.exit_code = 128 + signal;
    result.root_cause = fmt::format("ended by SIG{}", sigabbrev_np(signal));
  }
  return result;
}

}  // namespace

LaunchResult launch(const LaunchOptions& options) {
  static_assert(detail::Guard::kMaxWorkers >= kMaxRanks);
  if (options.num_workers < 1 || options.num_workers > kMaxRanks) {
    throw UsageError(
        fmt::format("launch: {} workers; 1 to {} are possible", options.num_workers, kMaxRanks));
  }
  if (options.command.empty()) throw UsageError("launch: no program to start");
  const NodePlace& nodes = options.nodes;
  if (nodes.num_nodes < 1 || nodes.node < 0 || nodes.node >= nodes.num_nodes)
    throw UsageError(
        fmt::format("launch: node {} of {}; nodes count from 0", nodes.node, nodes.num_nodes));
  static std::mutex one_at_a_time;
  const std::unique_lock lock(one_at_a_time, std::try_to_lock);
  if (!lock) throw UsageError("launch: another launch of this process is running");
  open_missing_standard_streams();
  return Job(options, detail::find_program(options.command.front())).run();
}

}  // namespace tutti
