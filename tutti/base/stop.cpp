#include "tutti/base/stop.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <mutex>

#include "tutti/base/error.h"

namespace tutti {
namespace {

constexpr std::array kSignals = {SIGINT, SIGTERM};

std::atomic<int> requested{0};
static_assert(std::atomic<int>::is_always_lock_free, "used inside a signal handler");

std::mutex mutex;
bool installed = false;                                    // under mutex
std::array<struct sigaction, kSignals.size()> previous{};  // under mutex

// Only what may be called inside a signal handler.
extern "C" void on_stop_signal(int signal) {
  int nothing = 0;
  if (!requested.compare_exchange_strong(nothing, signal)) _exit(128 + signal);
}

}  // namespace

void install_stop_handler() {
  std::lock_guard lock(mutex);
  if (installed) return;
  installed = true;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction action{};
    action.sa_handler = on_stop_signal;
    action.sa_flags = SA_RESTART;
    sigaction(kSignals[i], &action, &previous[i]);
    if (previous[i].sa_handler == SIG_IGN) sigaction(kSignals[i], &previous[i], nullptr);
  }
}

int stop_requested() noexcept { return requested.load(std::memory_order_relaxed); }

void throw_if_stop_requested(const char* where) {
  const int signal = stop_requested();
  if (signal == 0) return;
  throw Interrupted(signal,
                    fmt::format("{}: ended in order after SIG{}", where, sigabbrev_np(signal)));
}

void remove_stop_handler() {
  std::lock_guard lock(mutex);
  if (installed) {
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &previous[i], nullptr);
  }
  installed = false;
  requested = 0;
}

}  // namespace tutti
