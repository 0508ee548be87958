#include "tutti/cli/bench/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "tutti/base/error.h"
#include "tutti/base/file_descriptor.h"

namespace tutti::cli {
namespace {

constexpr size_t kShownErrorBytes = 2000;

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> own_environment_and(const std::vector<std::string>& extra) {
  std::vector<std::string> all = extra;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string own = *entry;
    const std::string name = own.substr(0, own.find('=') + 1);
    bool replaced = false;
    for (const std::string& other : extra) replaced |= other.starts_with(name);
    if (!replaced) all.push_back(own);
  }
  return all;
}

}  // namespace

struct Child::State {
  std::string name;
  pid_t pid = -1;
  FileDescriptor input, output;
  FileDescriptor errors;  // a memfd: whatever it writes, nobody has to read it meanwhile
  std::string heard;      // of stdout, not yet given out
  bool silent = false;    // stdout has ended

  void read_some(const Deadline& deadline);
  std::string last_errors() const;
  int reap();
  [[noreturn]] void failed(int status) const;
};

void Child::State::read_some(const Deadline& deadline) {
  pollfd ready{.fd = output.get(), .events = POLLIN, .revents = 0};
  const int count = poll(&ready, 1, static_cast<int>(deadline.left().count()));
  if (count < 0 && errno != EINTR)
    throw Error(fmt::format("{}: poll: {}", name, errno_words(errno)));
  if (count == 0 && deadline.passed())
    throw Timeout(fmt::format("{}: no answer in time\n{}", name, last_errors()));
  if (count <= 0) return;
  char buffer[4096];
  const ssize_t got = read(output.get(), buffer, sizeof buffer);
  if (got > 0) heard.append(buffer, static_cast<size_t>(got));
  silent = got == 0;
}

std::string Child::State::last_errors() const {
  const off_t size = lseek(errors.get(), 0, SEEK_END);
  std::string text(
      std::min<size_t>(static_cast<size_t>(std::max<off_t>(size, 0)), kShownErrorBytes), '\0');
  const ssize_t got =
      pread(errors.get(), text.data(), text.size(), size - static_cast<off_t>(text.size()));
  text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

int Child::State::reap() {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  pid = -1;
  return status;
}

void Child::State::failed(int status) const {
  const std::string how = WIFSIGNALED(status)
                              ? fmt::format("was killed by SIG{}", sigabbrev_np(WTERMSIG(status)))
                              : fmt::format("exited with code {}", WEXITSTATUS(status));
  throw Error(fmt::format("{} {}\n{}", name, how, last_errors()));
}

Child::Child(std::vector<std::string> command, const std::vector<std::string>& environment)
    : state_(std::make_unique<State>()) {
  State& state = *state_;
  state.name = fmt::format("{}", fmt::join(command, " "));
  int to_child[2], from_child[2];
  if (pipe2(to_child, O_CLOEXEC) != 0) throw Error("pipe: " + errno_words(errno));
  FileDescriptor child_input(to_child[0]);
  state.input.reset(to_child[1]);
  if (pipe2(from_child, O_CLOEXEC) != 0) throw Error("pipe: " + errno_words(errno));
  state.output.reset(from_child[0]);
  FileDescriptor child_output(from_child[1]);
  state.errors.reset(memfd_create("stderr", MFD_CLOEXEC));
  if (!state.errors) throw Error("memfd_create: " + errno_words(errno));

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, child_input.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, child_output.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, state.errors.get(), STDERR_FILENO);
  std::vector<std::string> variables = own_environment_and(environment);
  const int error = posix_spawnp(&state.pid, command.at(0).c_str(), &actions, nullptr,
                                 pointers_to(command).data(), pointers_to(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    state.pid = -1;
    throw Error(fmt::format("{}: cannot be started: {}", state.name, errno_words(error)));
  }
}

Child::Child(Child&&) noexcept = default;

Child::~Child() {
  if (!state_ || state_->pid < 0) return;
  kill(state_->pid, SIGKILL);
  state_->reap();
}

void Child::say(const std::string& line) {
  const std::string text = line + "\n";
  // A child that has ended must become an error here, not a SIGPIPE.
  struct sigaction ignore{}, before{};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &before);
  const ssize_t written = write(state_->input.get(), text.data(), text.size());
  sigaction(SIGPIPE, &before, nullptr);
  if (written != static_cast<ssize_t>(text.size())) state_->failed(state_->reap());
}

std::string Child::hear(Millis limit) {
  State& state = *state_;
  const Deadline deadline(limit);
  for (;;) {
    const size_t end = state.heard.find('\n');
    if (end != std::string::npos) {
      std::string line = state.heard.substr(0, end);
      state.heard.erase(0, end + 1);
      return line;
    }
    if (state.silent) state.failed(state.reap());
    state.read_some(deadline);
  }
}

std::string Child::finish(Millis limit) {
  State& state = *state_;
  state.input.reset();
  const Deadline deadline(limit);
  while (!state.silent) state.read_some(deadline);
  const int status = state.reap();
  if (status != 0) state.failed(status);
  return std::move(state.heard);
}

}  // namespace tutti::cli
