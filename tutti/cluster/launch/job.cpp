#include "tutti/cluster/launch/detail/job.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "tutti/base/error.h"
#include "tutti/base/host.h"
#include "tutti/base/log.h"
#include "tutti/cluster/launch/detail/spawn.h"
#include "tutti/cluster/spec/detail/environment.h"
#include "tutti/net/address.h"

namespace tutti::detail {
namespace {

// Finding the dead among all children reads /proc.
constexpr Millis kReapingEvery{500};

// Nodes that meet at a loopback address are all here.
int workers_on_host(const LaunchOptions& options) {
  const NodePlace& nodes = options.nodes;
  const bool here =
      nodes.num_nodes > 1 && parse_host_port(nodes.rendezvous, "--rendezvous").is_loopback();
  return options.num_workers * (here ? nodes.num_nodes : 1);
}

}  // namespace

Job::Job(const LaunchOptions& options, std::string program)
    : options_(options),
      program_(std::move(program)),
      other_nodes_(options.nodes.num_nodes > 1
                       ? std::make_unique<OtherNodes>(options.nodes, total_workers())
                       : nullptr),
      prepared_(prepare()),
      job_(other_nodes_ ? other_nodes_->job() : random_id()),
      launch_entry_(fmt::format("{}={}", kLaunchVariable, random_id())),
      steps_(StepBoard::create(options.num_workers)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      output_(options.num_workers, options.prefix_output),
      spare_(children_of_this_process()),
      guard_(launch_entry_),
      news_(options.num_workers),
      ending_({.failure_grace = options.failure_grace,
               .signal_grace = options.signal_grace,
               .end_on_failure = options.end_on_failure}) {
  if (!epoll_) throw Error("launch: epoll: " + errno_words(errno));
  spare_.push_back(guard_.pid());
  watch(reaps_orphans_.descriptor(), Source::child, 0);
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
    go_on();
    end_what_is_left_stopped();
  }
  end_tree();
  wait_for_cause();
  std::vector<NodeEnding> endings;
  std::string silent;
  try {
    endings = swap_endings();
  } catch (const Error& error) {
    silent = error.what();
  }
  wait_for_other_nodes();
  finish_output();
  take_signals();  // that came while nothing was waited for
  LaunchResult ended = result();
  take_over(ended, std::move(endings), options_.nodes.node, silent);
  return ended;
}

void Job::start(int number, pid_t instead_of) {
  Worker& worker = workers_[static_cast<size_t>(number)];
  worker.result.worker = first_worker() + number;
  auto [ours, theirs] =
      DescriptorChannel::make_pair(fmt::format("worker {}", worker.result.worker), "launcher");
  SpawnPlan plan{.path = program_,
                 .arguments = options_.command,
                 .environment = environment_of(number, theirs.descriptor()),
                 .inherited = {theirs.descriptor(), steps_.descriptor()}};
  if (segment_) plan.inherited.push_back(segment_->descriptor());
  const auto their_ends = output_.open_streams(number);
  plan.output = their_ends[0].get();
  plan.errors = their_ends[1].get();

  Spawned spawned = spawn(plan);
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
  std::vector<std::string> all = {
      launch_entry_,
      fmt::format("{}={}", kJobVariable, job_),
      fmt::format("{}={}", kWorkerVariable, first_worker() + number),
      fmt::format("{}={}", kNumWorkersVariable, total_workers()),
      fmt::format("{}={}", kLocalWorkerVariable, number),
      fmt::format("{}={}", kNumLocalWorkersVariable, options_.num_workers),
      fmt::format("{}={}", kLifelineVariable, lifeline),
      fmt::format("{}={}", kStepsVariable, steps_.descriptor())};
  if (other_nodes_) {
    all.push_back(fmt::format("{}={}", kRendezvousVariable, options_.nodes.rendezvous));
    if (!token_from_environment())
      all.push_back(fmt::format("{}={}", kTokenVariable, other_nodes_->token().secret_hex()));
  }
  if (segment_) all.push_back(fmt::format("{}={}", kSegmentVariable, segment_->descriptor()));
  const auto add = [&](const std::string& entry) {
    const std::string name = entry.substr(0, entry.find('=') + 1);
    const bool there = std::any_of(
        all.begin(), all.end(), [&](const std::string& other) { return other.starts_with(name); });
    const bool ours = name == fmt::format("{}=", kSegmentVariable);
    if (!there && !ours) all.push_back(entry);
  };
  for (const std::string& entry : prepared_) add(entry);
  for (const std::string& entry : options_.environment) add(entry);
  for (char** entry = environ; *entry != nullptr; ++entry) add(*entry);
  // LibTorch takes all cores, in each worker.
  if (const int here = workers_on_host(options_); here > 1)
    add(fmt::format("OMP_NUM_THREADS={}", std::max(1, host_facts().usable_cores / here)));
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

/// Sends the signal that is due, or waits for what happens next, `limit` at most.
void Job::go_on(std::optional<Millis> limit) {
  if (const auto signal = ending_.due(Clock::now())) return send_signal(*signal);
  wait_for_events(limit);
  reap_orphans();
}

/// What workers leave behind when it ends: a job of weeks would fill the table of processes.
void Job::reap_orphans() {
  if (!child_ended_ || Clock::now() < next_reaping_) return;
  child_ended_ = false;
  next_reaping_ = Clock::now() + kReapingEvery;
  reap_all_but(spare_);
}

void Job::wait_for_events(std::optional<Millis> limit) {
  std::optional<TimePoint> until;
  const auto no_later = [&](TimePoint then) { until = until ? std::min(*until, then) : then; };
  if (limit) no_later(time_after(*limit));
  if (watches_stopped()) no_later(time_after(Millis{1'000}));
  if (const auto next = ending_.next()) no_later(*next);
  if (child_ended_) no_later(next_reaping_);
  int timeout = -1;
  if (until) {
    const auto left = std::chrono::ceil<Millis>(*until - Clock::now()).count();
    timeout = static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
  }
  const auto outputs = output_.interests();
  std::array<pollfd, 1 + outputs.size()> events{pollfd{epoll_.get(), POLLIN, 0}};
  std::copy(outputs.begin(), outputs.end(), events.begin() + 1);
  const int ready = poll(events.data(), events.size(), timeout);
  if (ready < 0 && errno != EINTR) throw Error("launch: poll: " + errno_words(errno));
  if (ready <= 0) return;
  Forwarder::Interests served;
  std::copy(events.begin() + 1, events.end(), served.begin());
  output_.serve(served);
  if (events[0].revents != 0) serve_events();
}

void Job::serve_events() {
  // The kernel's ready list is in order of arrival, so that of two workers found dead at once the
  // first one died first. Room for all events keeps that order whole.
  std::vector<epoll_event> events(2 * workers_.size() + 3);
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
      case Source::child:
        reaps_orphans_.take();
        child_ended_ = true;
        break;
    }
  }
  spread_news();
  if (ending_.begun()) output_.drop_what_is_late();
}

void Job::take_signals() {
  if (!signals_) return;
  while (const int signal = signals_->take()) {
    if (!deaths_before_signal_) {
      const std::string request = fmt::format("was told to end by SIG{}", sigabbrev_np(signal));
      // What tells all nodes to end reached another first: what has failed here since follows.
      const bool same = failure_elsewhere_ && failure_elsewhere_->words.ends_with(request);
      deaths_before_signal_ = same ? failure_elsewhere_->deaths_before : deaths_.size();
      if (same) failure_elsewhere_.reset();
      // Before the workers go, so that nobody takes their loss for the cause.
      if (other_nodes_)
        other_nodes_->tell_failure(first_worker(), other_nodes_->name() + " " + request);
    }
    ending_.set_signal_grace(signal_grace());
    ending_.on_signal(signal, Clock::now());
  }
}

/// What the workers have asked for up to now counts.
Millis Job::signal_grace() {
  Millis grace = options_.signal_grace;
  for (Worker& worker : workers_) {
    read_channel(worker);
    if (options_.asked_grace && worker.running) grace = std::max(grace, worker.grace);
  }
  return grace;
}

/// A failure on another node ends the job here too.
void Job::hear_other_nodes() {
  const auto failure =
      other_nodes_->first_failure(first_worker(), first_worker() + options_.num_workers);
  if (!failure) return;
  if (options_.lost && failure->worker >= 0)
    options_.lost(failure->worker, "ended on its node: " + failure->words);
  if (ending_.first_signal() != 0) return;  // what fails from then on follows from it
  // Workers that died here because they lost a peer are no cause.
  const bool cause_here = std::any_of(deaths_.begin(), deaths_.end(), [](const auto& death) {
    return death.failed && !death.follows;
  });
  const size_t deaths_before =
      failure_elsewhere_ ? failure_elsewhere_->deaths_before : deaths_.size();
  if (failure_elsewhere_ || !cause_here) {
    failure_elsewhere_ = failure;
    failure_elsewhere_->deaths_before = deaths_before;
  }
  ending_.set_signal_grace(signal_grace());  // that node may have been told to end, and all save
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
  auto message = decode(received.text);
  if (!message)
    throw Error(fmt::format("worker {} sent \"{}\"", worker.result.worker, received.text));
  message->worker = worker.result.worker;
  if (message->kind == Notice::Kind::replicas) {
    worker.result.replicas = std::max(1, message->number);
    return;
  }
  if (message->kind == Notice::Kind::grace) {
    worker.grace = Millis(message->number);
    return;
  }
  if (message->kind == Notice::Kind::failed) {
    const size_t colon = message->text.find(": ");
    worker.result.error_class = message->text.substr(0, colon);
    worker.result.error =
        colon == std::string::npos ? message->text : message->text.substr(colon + 2);
    return;
  }
  worker.joined = worker.joined || message->kind == Notice::Kind::joined;
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

}  // namespace tutti::detail
