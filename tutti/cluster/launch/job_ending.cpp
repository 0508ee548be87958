// How a job's workers end, and what is made of it.
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <system_error>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/cluster/launch/detail/job.h"
#include "tutti/cluster/launch/detail/node_ending.h"
#include "tutti/comm/flight/flight_record.h"

namespace tutti::detail {
namespace {

// What was killed takes a moment to go.
void sleep_shortly() noexcept {
  const timespec pause{0, 5'000'000};
  nanosleep(&pause, nullptr);
}

}  // namespace

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
  news_.add({.kind = Notice::Kind::lost,
             .worker = result.worker,
             .text = result.name() + " " + result.ending()});
  const bool leads = options_.first_leads && result.worker == 0;
  if (result.failed() && !leads && start_again(worker)) return;
  deaths_.push_back({index_of(worker), result.failed(), result.follows()});
  if (leads) ending_.on_lead_ended(Clock::now());
  if (options_.lost) options_.lost(result.worker, result.ending());
  if (!result.failed()) return;
  // Killed from outside: those who lost this worker were heard before it was seen to end. One that
  // aborts may have lost another.
  const bool killed = result.signal != 0 && result.signal != SIGABRT && !result.follows();
  if (killed && !result.stopped_by_launcher && ending_.first_signal() == 0)
    failure_elsewhere_.reset();
  if (other_nodes_ && !result.stopped_by_launcher)
    other_nodes_->tell_failure(result.worker, fmt::format("{} {}", result.name(), result.ending()));
  ending_.on_failure(Clock::now());
  if (!ending_.begun() && (any_running() || other_nodes_)) tell(result, "the others go on");
}

/// The report comes with the end of the job, which may be far.
void Job::tell(WorkerResult& result, const std::string& what_follows) {
  result.told = log_level() <= LogLevel::warning;
  log(LogLevel::warning, "{} {}; {}{}", result.name(), result.ending(), what_follows,
      result.more_of_error());
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
  tell(worker.result, fmt::format("it is started again ({} of {})",
                                  options_.restarts - restarts_left_, options_.restarts));
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
  const std::string& error_class = root.result.error_class;
  if (root.result.signal != 0 || (!error_class.empty() && error_class != "Timeout")) return;
  for (const Worker& other : workers_) {
    if (other.running && is_stopped(other.result.pid)) {
      stopped_worker_ = index_of(other);
    }
  }
}

/// Others have ended, so that those which are left may be stopped for ever: where a failure ends
/// the job their limits pass, and it is one of theirs; else nobody waits for them.
bool Job::watches_stopped() const {
  const bool others_ended = other_nodes_ ? other_nodes_->others_ended() : !deaths_.empty();
  return !options_.end_on_failure && !ending_.begun() && others_ended;
}

void Job::end_what_is_left_stopped() {
  const bool all_stopped =
      watches_stopped() && std::ranges::all_of(workers_, [](const Worker& worker) {
        return !worker.running || is_stopped(worker.result.pid);
      });
  if (!all_stopped) return stopped_since_.reset();
  const TimePoint now = Clock::now();
  if (!stopped_since_) stopped_since_ = now;
  if (now - *stopped_since_ < options_.stopped_limit) return;
  for (Worker& worker : workers_) {
    if (!worker.running) continue;
    if (!root()) stopped_worker_ = index_of(worker);
    worker.result.stopped_by_launcher = true;
    log(LogLevel::warning, "{} is stopped (SIGSTOP), and no other worker is left: it is ended",
        worker.result.name());
    kill(-worker.result.pid, SIGKILL);
  }
  restarts_left_ = 0;  // what it would begin again is over
  stopped_since_.reset();
}

void Job::send_signal(int signal) {
  blame_a_stopped_worker();
  for (Worker& worker : workers_) {
    if (!worker.running) continue;
    worker.result.stopped_by_launcher = true;
    // A stopped process cannot end in order.
    kill(-worker.result.pid, is_stopped(worker.result.pid) ? SIGKILL : signal);
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
    if (kill_members(launch_entry_.c_str(), true, spare_) == 0) break;
    sleep_shortly();
  }
  const Deadline deadline(kReaping);
  for (Worker& worker : workers_) {
    if (worker.result.pid <= 0) continue;
    if (!reap_until(worker.result.pid, deadline))
      log(LogLevel::warning, "launch: {} (pid {}) was killed and has not gone in {} ms",
          worker.result.name(), worker.result.pid, kReaping.count());
    output_.flush(index_of(worker));
  }
  guard_.dismiss();
}

/// Workers of this node that failed had lost one of another, whose launcher is about to say why.
void Job::wait_for_cause() {
  constexpr Millis kOnItsWay{1'000};
  const bool follows = std::ranges::any_of(deaths_, &Death::follows) &&
                       std::ranges::all_of(deaths_, [](const Death& death) {
                         return death.follows || !death.failed;
                       });
  if (!other_nodes_ || options_.tell_endings || !follows) return;
  const auto is_told = [&] { return failure_elsewhere_ && failure_elsewhere_->told_by_launcher; };
  const Deadline deadline(kOnItsWay);
  while (!is_told() && !deadline.passed() && ending_.first_signal() == 0) go_on(deadline.left());
}

/// What this node has for the job is needed until the last worker of any node has ended.
void Job::wait_for_other_nodes() {
  if (!other_nodes_) return;
  if (options_.end_together || !options_.end_on_failure) other_nodes_->tell_end();
  if (!options_.end_together || options_.tell_endings) return;
  while (!other_nodes_->all_ended() && !ending_.begun()) go_on();
}

/// How the job has ended on all nodes: none where nobody asks, or a signal ends the wait. Others
/// have as long as their workers take: a launcher that is gone, or silent, is told of. Node 0,
/// whose process has the rendezvous, stays until all have read.
std::vector<NodeEnding> Job::swap_endings() {
  if (!other_nodes_ || !options_.tell_endings) return {};
  other_nodes_->tell_ending(encode(ending_of(result(), options_.nodes.node)));
  const auto is_told_to_end = [&] { return ending_.first_signal() != 0; };
  std::optional<std::vector<std::string>> texts = other_nodes_->endings();
  for (; !texts && !is_told_to_end(); texts = other_nodes_->endings()) go_on();
  other_nodes_->tell_read();  // also where it was told to end: it will read no more
  if (!texts) return {};
  const Deadline deadline(options_.nodes.limit);
  while (options_.nodes.node == 0 && !other_nodes_->all_have_read() && !deadline.passed() &&
         !is_told_to_end())
    go_on(std::min(deadline.left(), Millis{1'000}));
  std::vector<NodeEnding> all;
  for (const std::string& text : *texts) all.push_back(decode_ending(text));
  return all;
}

/// Waits for the readers of the launcher's own output: after a success until they have all of it,
/// else no longer than the job's end may take. The workers are gone; signals still count.
void Job::finish_output() {
  while (output_.waiting() && !ending_.over()) go_on();
}

LaunchResult Job::result() const {
  LaunchResult result;
  result.oom_kills = read_host_facts().oom_kills - oom_kills_before_;
  result.signal = ending_.first_signal();
  for (const Worker& worker : workers_) {
    result.workers.push_back(worker.result);
    result.workers.back().last_lines = output_.last_lines(index_of(worker));
    const StepBoard::Noted noted = steps_.noted_of(index_of(worker));
    result.workers.back().training = noted.training;
    result.workers.back().step = noted.step;
  }
  // Other nodes' limits pass too when a worker of this one is stopped.
  if (failure_elsewhere_ && stopped_worker_ < 0) {
    // What was heard of first may be the same bad input.
    const bool bad_input = std::ranges::any_of(workers_, [](const Worker& worker) {
      return worker.result.is_bad_input() && worker.result.exit_code == 2;
    });
    result.exit_code = bad_input ? 2 : 1;
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
  if (const WorkerResult* root = result.root(); root != nullptr && root->is_bad_input()) {
    for (const Worker& worker : workers_) remove_flight_record(job_, worker.result.worker);
  } else {
    result.flight_records = flight_records();
  }
  return result;
}

/// The folder with the records of this node's workers; "": they have left none.
std::string Job::flight_records() const {
  for (const Worker& worker : workers_) {
    const auto path = flight_path(job_, worker.result.worker);
    std::error_code failure;
    if (std::filesystem::exists(path, failure)) return path.parent_path().string();
  }
  return "";
}

}  // namespace tutti::detail
