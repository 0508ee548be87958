#include "tutti/base/clock.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <atomic>

#include "tutti/base/detail/pause_meter.h"

namespace tutti {
namespace {

// Never destroyed, since they have nothing to destroy: threads ask for the time while the process
// ends.
constinit detail::PauseMeter meter(std::chrono::nanoseconds(Clock::kLongestGap).count());
constinit std::atomic<bool> started{false};

int64_t steady_ns() noexcept {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void* beat(void* /*nothing*/) noexcept {
  constexpr timespec kPause{0, std::chrono::nanoseconds(Clock::kBeat).count()};
  while (true) {
    meter.beat(steady_ns());
    nanosleep(&kPause, nullptr);
  }
}

// A child of fork() has no thread that beats, until it asks for the time.
void begin_anew_in_child() noexcept {
  meter.end();
  started = false;
}

// Where no thread is to be had, the clock counts pauses as time.
void start() noexcept {
  static std::atomic<bool> watches_forks{false};
  if (started.exchange(true)) return;
  if (!watches_forks.exchange(true)) pthread_atfork(nullptr, nullptr, begin_anew_in_child);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  sigset_t all;
  sigset_t before;
  sigfillset(&all);  // signals are for the program's own threads
  pthread_sigmask(SIG_SETMASK, &all, &before);
  meter.beat(steady_ns());  // a pause may come before the thread has begun
  pthread_t thread;
  if (pthread_create(&thread, &attributes, beat, nullptr) == 0)
    pthread_setname_np(thread, "tutti-clock");
  else
    meter.end();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
}

}  // namespace

Clock::time_point Clock::now() noexcept {
  if (!started.load(std::memory_order_relaxed)) [[unlikely]]
    start();
  return time_point(duration(meter.read(steady_ns)));
}

std::chrono::nanoseconds detail::paused_so_far() noexcept {
  return std::chrono::nanoseconds(meter.paused());
}

}  // namespace tutti
