#include "tutti/cluster/launch/detail/signals.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "tutti/base/error.h"

namespace tutti::detail {
namespace {

std::atomic<int> pipe_for_handler{-1};
std::atomic<int> event_of_children{-1};

extern "C" void on_child_signal(int) {
  const int before = errno;
  eventfd_write(event_of_children.load(), 1);
  errno = before;
}

extern "C" void on_launcher_signal(int signal) {
  const int before = errno;
  const char byte = static_cast<char>(signal);
  // A full pipe already holds more than the two signals that count.
  [[maybe_unused]] const ssize_t written = write(pipe_for_handler.load(), &byte, 1);
  errno = before;
}

}  // namespace

SignalPipe::SignalPipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) throw Error("launch: pipe: " + errno_words(errno));
  read_end_.reset(ends[0]);
  write_end_.reset(ends[1]);
  pipe_for_handler = ends[1];
  for (size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction action{};
    action.sa_handler = on_launcher_signal;
    action.sa_flags = SA_RESTART;
    sigaction(kSignals[i], &action, &previous_[i]);
    if (previous_[i].sa_handler == SIG_IGN) sigaction(kSignals[i], &previous_[i], nullptr);
  }
}

SignalPipe::~SignalPipe() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &previous_[i], nullptr);
  pipe_for_handler = -1;
}

int SignalPipe::take() noexcept {
  char byte = 0;
  return read(read_end_.get(), &byte, 1) == 1 ? byte : 0;
}

IgnoresBrokenPipes::IgnoresBrokenPipes() {
  struct sigaction ignore{};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &previous_);
}

IgnoresBrokenPipes::~IgnoresBrokenPipes() { sigaction(SIGPIPE, &previous_, nullptr); }

ReapsOrphans::ReapsOrphans() : ended_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!ended_) throw Error("launch: eventfd: " + errno_words(errno));
  event_of_children = ended_.get();
  struct sigaction action{};
  action.sa_handler = on_child_signal;
  action.sa_flags = SA_RESTART | SA_NOCLDSTOP;
  sigaction(SIGCHLD, &action, &previous_);
  prctl(PR_GET_CHILD_SUBREAPER, &was_subreaper_);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

ReapsOrphans::~ReapsOrphans() {
  prctl(PR_SET_CHILD_SUBREAPER, was_subreaper_);
  sigaction(SIGCHLD, &previous_, nullptr);
  event_of_children = -1;
}

void ReapsOrphans::take() noexcept {
  eventfd_t ignored = 0;
  eventfd_read(ended_.get(), &ignored);
}

}  // namespace tutti::detail
