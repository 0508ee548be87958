#include "tutti/base/idle_pace.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/file_descriptor.h"
#include "tutti/base/threads.h"

namespace tutti {
namespace {

// A flag that one thread raises and another waits for. No lock: who is not run does not hold one.
class Bell {
 public:
  Bell() : fd_(eventfd(0, EFD_CLOEXEC)) {
    if (!fd_) throw Error("eventfd: " + errno_words(errno));
  }

  void ring() const noexcept { eventfd_write(fd_.get(), 1); }

  // Returns false at the deadline.
  bool wait(const Deadline& deadline) const {
    pollfd entry{fd_.get(), POLLIN, 0};
    int ready = 0;
    do ready = ::poll(&entry, 1, static_cast<int>(deadline.left().count()));
    while (ready == 0 ? !deadline.passed() : ready < 0 && errno == EINTR);
    if (ready > 0) take();
    return ready > 0;
  }

  void take() const {
    eventfd_t ignored = 0;
    eventfd_read(fd_.get(), &ignored);
  }

 private:
  FileDescriptor fd_;
};

// This thread, as Linux has it. Where that is refused it gives turns at once.
void run_when_cores_are_idle() {
  const sched_param none{};
  ::sched_setscheduler(0, SCHED_IDLE, &none);
}

}  // namespace

struct IdlePace::Shared {
  Bell asked, given;
  std::atomic<bool> hurried{false}, ended{false};
  std::function<void()> find_idle;

  void give_turns() {
    run_when_cores_are_idle();
    for (asked.take(); !ended; asked.take()) {
      if (find_idle) find_idle();
      given.ring();
    }
  }
};

IdlePace::IdlePace(Millis patience, std::function<void()> find_idle)
    : shared_(std::make_shared<Shared>()), patience_(patience) {
  shared_->find_idle = std::move(find_idle);
  start_thread("work at idle times", [shared = shared_] { shared->give_turns(); }).detach();
}

IdlePace::~IdlePace() {
  shared_->ended = true;
  shared_->asked.ring();
}

void IdlePace::turn() {
  if (shared_->hurried) return;
  shared_->asked.ring();
  if (!shared_->given.wait(patience_)) hurry();
}

void IdlePace::hurry() noexcept {
  shared_->hurried = true;
  shared_->given.ring();
}

}  // namespace tutti
