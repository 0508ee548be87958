#include "tests/support/run_ranks.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "tutti/base/error.h"

#include "tests/support/command.h"

namespace tutti::test {
namespace {

struct Process {
  RankOutcome outcome;
  int pidfd = -1;
  int output = -1;  // our end of its stdout and stderr
  int report = -1;  // our end of the pipe for its exception
  std::string reported;
  bool ended = false;
};

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += word + "\n";
  return text;
}

Words environment_of(int rank, int size, const std::string& program, int report,
                     const RunOptions& options) {
  Words descriptors;
  for (int fd : options.descriptors) descriptors.push_back(std::to_string(fd));
  return Words{"TUTTI_TEST_PROGRAM=" + program,
               "TUTTI_TEST_RANK=" + std::to_string(rank),
               "TUTTI_TEST_SIZE=" + std::to_string(size),
               "TUTTI_TEST_REPORT=" + std::to_string(report),
               "TUTTI_TEST_ARGUMENTS=" + joined(options.arguments),
               "TUTTI_TEST_DESCRIPTORS=" + joined(descriptors)} +
         options.environment;
}

Process start(int rank, int size, const std::string& program, const RunOptions& options) {
  int output[2];
  int report[2];
  if (pipe2(output, O_CLOEXEC) != 0 || pipe2(report, O_CLOEXEC) != 0) {
    throw Error("pipe: " + errno_words(errno));
  }
  // A duplicate onto itself only clears close-on-exec.
  std::vector<std::pair<int, int>> descriptors = {
      {output[1], STDOUT_FILENO}, {output[1], STDERR_FILENO}, {report[1], report[1]}};
  for (int fd : options.descriptors) descriptors.emplace_back(fd, fd);
  Process process;
  process.outcome.pid = start_process(
      {"/proc/self/exe"}, environment_of(rank, size, program, report[1], options), descriptors);
  close(output[1]);
  close(report[1]);
  process.output = output[0];
  process.report = report[0];
  process.pidfd = static_cast<int>(syscall(SYS_pidfd_open, process.outcome.pid, 0));
  if (process.pidfd < 0) throw Error("pidfd_open: " + errno_words(errno));
  for (int fd : {process.output, process.report}) fcntl(fd, F_SETFL, O_NONBLOCK);
  return process;
}

/// Appends what is there; closes `fd` at its end.
void drain(int& fd, std::string& into) {
  char bytes[4096];
  while (fd >= 0) {
    const ssize_t got = read(fd, bytes, sizeof bytes);
    if (got > 0) {
      into.append(bytes, static_cast<size_t>(got));
    } else if (got < 0 && errno == EINTR) {
      continue;
    } else {
      if (got == 0 || errno != EAGAIN) close(std::exchange(fd, -1));
      return;
    }
  }
}

void finish(Process& process) {
  int status = 0;
  while (waitpid(process.outcome.pid, &status, 0) < 0 && errno == EINTR) {
  }
  process.ended = true;
  drain(process.output, process.outcome.log);
  drain(process.report, process.reported);
  if (WIFEXITED(status)) process.outcome.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) process.outcome.signal = WTERMSIG(status);
  const size_t line_end = process.reported.find('\n');
  if (line_end != std::string::npos) {
    process.outcome.error_class = process.reported.substr(0, line_end);
    process.outcome.error = process.reported.substr(line_end + 1);
  }
  kill(-process.outcome.pid, SIGKILL);  // what it may have started itself
  for (int* fd : {&process.pidfd, &process.output, &process.report}) {
    if (*fd >= 0) close(std::exchange(*fd, -1));
  }
}

/// The ranks while they run, and the planned kill.
class Watch {
 public:
  explicit Watch(const RunOptions& options) : options_(options), deadline_(options.limit) {}

  ~Watch() {
    for (Process& process : ranks_) {
      if (process.ended) continue;
      kill(-process.outcome.pid, SIGKILL);
      kill(process.outcome.pid, SIGKILL);
      finish(process);
    }
  }

  void add(Process process) { ranks_.push_back(std::move(process)); }

  std::vector<RankOutcome> wait() {
    while (!all_ended()) {
      kill_as_planned();
      if (deadline_.passed() || only_the_stopped_one_is_left()) {
        end_all();
      } else {
        wait_for_events();
      }
    }
    std::vector<RankOutcome> outcomes;
    for (Process& process : ranks_) outcomes.push_back(std::move(process.outcome));
    ranks_.clear();
    return outcomes;
  }

 private:
  bool all_ended() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const Process& p) { return p.ended; });
  }

  bool only_the_stopped_one_is_left() const {
    if (!killed_ || options_.kill.signal != SIGSTOP) return false;
    const auto running =
        std::count_if(ranks_.begin(), ranks_.end(), [](const Process& p) { return !p.ended; });
    return running == 1 && !ranks_[static_cast<size_t>(options_.kill.rank)].ended;
  }

  void kill_as_planned() {
    if (killed_ || options_.kill.rank < 0) return;
    Process& target = ranks_.at(static_cast<size_t>(options_.kill.rank));
    if (target.ended || target.outcome.log.find(options_.kill.after) == std::string::npos) return;
    kill(target.outcome.pid, options_.kill.signal);
    killed_ = true;
    killed_at_ = Clock::now();
    if (options_.kill.then) options_.kill.then();
  }

  void wait_for_events() {
    std::vector<pollfd> events;
    for (const Process& process : ranks_) {
      for (int fd : {process.pidfd, process.output, process.report}) {
        events.push_back({process.ended ? -1 : fd, POLLIN, 0});
      }
    }
    poll(events.data(), events.size(), static_cast<int>(deadline_.left().count()));
    for (size_t r = 0; r < ranks_.size(); ++r) {
      Process& process = ranks_[r];
      if (process.ended) continue;
      drain(process.output, process.outcome.log);
      drain(process.report, process.reported);
      if (events[3 * r].revents == 0) continue;
      if (killed_) {
        process.outcome.seconds_after_kill =
            std::chrono::duration<double>(Clock::now() - killed_at_).count();
      }
      finish(process);
    }
  }

  void end_all() {
    for (Process& process : ranks_) {
      if (process.ended) continue;
      process.outcome.timed_out = deadline_.passed();
      kill(process.outcome.pid, SIGKILL);
      finish(process);
    }
  }

  const RunOptions& options_;
  Deadline deadline_;
  std::vector<Process> ranks_;
  bool killed_ = false;
  TimePoint killed_at_{};
};

}  // namespace

std::vector<RankOutcome> run_ranks(int size, const std::string& program,
                                   const RunOptions& options) {
  Watch watch(options);
  for (int rank = 0; rank < size; ++rank) watch.add(start(rank, size, program, options));
  return watch.wait();
}

}  // namespace tutti::test
