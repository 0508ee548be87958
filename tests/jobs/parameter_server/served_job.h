// Trainings with parameter servers as a user starts them, and what can happen to their processes.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/base/file_descriptor.h"
#include "tutti/base/random.h"

#include "tests/jobs/program.h"

namespace tutti::test {

/// Where tests talk to a job as one of its own.
inline constexpr const char* kToken =
    "TUTTI_TOKEN="
    "5e9f1d6a0b7c44d28e3a5f60718293a4b5c6d7e8f90a1b2c3d4e5f6071829304";

/// `tutti train mlp` on the doodles, with one thread a replica.
inline Words train_mlp(const Words& more) {
  return Words{TUTTI_PROGRAM, "train", "mlp", "--data", kDoodles, "--threads", "1"} + more;
}

/// The same with parameter servers.
inline Words train_served(const Words& more) {
  return train_mlp({"--strategy", "parameter_server"}) + more;
}

/// A command that runs while the test does something to it. All it prints is kept in one log. It is
/// killed with its process group when the test ends first; its servers and workers die with it.
class Job {
 public:
  explicit Job(const Words& words, const Words& environment = {}) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    output_.reset(ends[0]);
    const FileDescriptor theirs(ends[1]);
    pid_ = start_process(words, environment,
                         {{theirs.get(), STDOUT_FILENO}, {theirs.get(), STDERR_FILENO}});
  }
  Job(const Job&) = delete;
  ~Job() {
    if (ended_) return;
    kill(-pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  /// Until `text` has been printed so many times. Throws with the log when that does not happen.
  void wait_for(const std::string& text, int times = 1) {
    const Deadline deadline(Millis{30'000});
    while (count(text) < times)
      if (!read_more(deadline))
        throw std::runtime_error("\"" + text + "\" was not printed:\n" + last_part(log_));
  }

  /// What follows `mark` in the first line that holds it, which is waited for.
  std::string word_after(const std::string& mark) {
    wait_for(mark);
    const size_t begin = log_.find(mark) + mark.size();
    wait_for(log_.substr(0, begin));
    const Deadline deadline(Millis{10'000});
    while (log_.find('\n', begin) == std::string::npos)
      if (!read_more(deadline)) throw std::runtime_error("no end of line after " + mark);
    return log_.substr(begin, log_.find('\n', begin) - begin);
  }

  /// Of "server 0", "worker 2".
  pid_t pid_of(const std::string& who) { return std::stoi(word_after(who + " pid ")); }
  pid_t pid() const { return pid_; }
  void send(const std::string& who, int signal) { kill(pid_of(who), signal); }
  void send_launcher(int signal) const { kill(pid_, signal); }

  /// Waits for its end; returns its exit code, 128 + signal when one killed it, -1 when it hangs.
  int end(Millis limit = Millis{30'000}) {
    const Deadline deadline(limit);
    while (read_more(deadline)) {
    }
    if (deadline.passed()) return -1;
    int status = 0;
    waitpid(pid_, &status, 0);
    ended_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  const std::string& log() const { return log_; }
  int count(const std::string& text) const {
    int times = 0;
    for (size_t at = log_.find(text); at != std::string::npos; at = log_.find(text, at + 1))
      ++times;
    return times;
  }

 private:
  // False when all has been read, or at the deadline.
  bool read_more(const Deadline& deadline) {
    pollfd entry{output_.get(), POLLIN, 0};
    if (poll(&entry, 1, static_cast<int>(deadline.left().count())) != 1) return false;
    char bytes[4096];
    const ssize_t got = read(output_.get(), bytes, sizeof bytes);
    if (got > 0) log_.append(bytes, static_cast<size_t>(got));
    return got > 0;
  }

  pid_t pid_ = -1;
  FileDescriptor output_;
  std::string log_;
  bool ended_ = false;
};

/// Lets the training go on to some moment of the next third of a second.
inline void until_some_moment(uint64_t seed) {
  const uint64_t bits = random_key(seed, RandomPurpose::test, {});
  std::this_thread::sleep_for(Millis{static_cast<int64_t>(uniform_double(bits) * 333)});
}

/// Figures that an ended job wrote.
inline json figures_in(const std::string& file) {
  if (!std::filesystem::exists(file)) throw std::runtime_error(file + " was not written");
  return json_in(file);
}

}  // namespace tutti::test
