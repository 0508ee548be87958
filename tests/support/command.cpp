#include "tests/support/command.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <iterator>
#include <sstream>

#include "tutti/base/error.h"
#include "tutti/base/file_descriptor.h"

namespace tutti::test {

const char* const kDoodles = TUTTI_DOODLES;
const char* const kFewDoodles = TUTTI_DOODLES "_few";

namespace {

std::vector<char*> pointers(const Words& texts) {
  std::vector<char*> all;
  for (const std::string& text : texts) all.push_back(const_cast<char*>(text.c_str()));
  all.push_back(nullptr);
  return all;
}

}  // namespace

Words words_of(const std::string& line) {
  std::istringstream words(line);
  return {std::istream_iterator<std::string>(words), {}};
}

Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

pid_t start_process(const Words& words, const Words& environment,
                    const std::vector<std::pair<int, int>>& descriptors) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (const auto& [ours, theirs] : descriptors)
    posix_spawn_file_actions_adddup2(&actions, ours, theirs);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  Words variables = environment;  // the first of a name counts
  for (char** entry = environ; *entry != nullptr; ++entry) variables.emplace_back(*entry);
  pid_t pid = -1;
  const int failure = posix_spawnp(&pid, words.front().c_str(), &actions, &attributes,
                                   pointers(words).data(), pointers(variables).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (failure != 0) throw Error(words.front() + ": " + errno_words(failure));
  return pid;
}

CommandResult run_command(const Words& words, const Words& environment, Millis limit) {
  std::array<FileDescriptor, 2> ours;
  std::array<FileDescriptor, 2> theirs;
  for (size_t i = 0; i < 2; ++i) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw Error("pipe: " + errno_words(errno));
    ours[i].reset(ends[0]);
    theirs[i].reset(ends[1]);
  }
  const pid_t pid = start_process(
      words, environment, {{theirs[0].get(), STDOUT_FILENO}, {theirs[1].get(), STDERR_FILENO}});
  for (FileDescriptor& end : theirs) end.reset();

  CommandResult result;
  const Deadline deadline(limit);
  while (ours[0] || ours[1]) {
    std::array<pollfd, 2> events{pollfd{ours[0].get(), POLLIN, 0},
                                 pollfd{ours[1].get(), POLLIN, 0}};
    if (poll(events.data(), events.size(), static_cast<int>(deadline.left().count())) == 0) {
      result.timed_out = true;
      kill(-pid, SIGKILL);
      break;
    }
    for (size_t i = 0; i < 2; ++i) {
      if (events[i].revents == 0) continue;
      char bytes[4096];
      const ssize_t got = read(ours[i].get(), bytes, sizeof bytes);
      if (got > 0) (i == 0 ? result.out : result.err).append(bytes, static_cast<size_t>(got));
      if (got == 0) ours[i].reset();
    }
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace tutti::test
