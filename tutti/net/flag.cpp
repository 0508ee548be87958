#include "tutti/net/flag.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "tutti/base/deadline.h"

namespace tutti {
namespace {

// Long enough to bridge what two ranks in step differ by, short enough not to starve another job.
constexpr std::chrono::microseconds kSpinBudget{100};
constexpr int kShortSpinPauses = 100;
// With more ranks than cores whoever polls stands in its peer's way: 5 pauses instead of 100 make
// an all_reduce or broadcast of 8 bytes 1.5 to 1.9 times as fast (4, 8 and 16 ranks on 2 cores; 4
// ranks: 5.5 us to 3.5).
constexpr int kCrowdedSpinPauses = 5;
// A yield to the rank that is waited for takes 1 us, sleeping and being woken more than 5. Measured
// with 4, 8, 16 and 64 ranks on 2 cores: 20 yields make an all_reduce of 8 bytes 4 to 2.5 times as
// fast, 100 no faster.
constexpr int kYields = 20;

void pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A pause takes 5 ns on one CPU and 70 on another; this is measured once a process.
int pauses_in(std::chrono::nanoseconds budget) {
  constexpr int kPauses = 500;
  const auto start = Clock::now();
  for (int i = 0; i < kPauses; ++i) pause();
  const auto taken = std::max<int64_t>(1, std::chrono::nanoseconds(Clock::now() - start).count());
  return static_cast<int>(std::clamp<int64_t>(budget.count() * kPauses / taken, 200, 20'000));
}

long futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  static_assert(sizeof(std::atomic<uint32_t>) == 4 && std::atomic<uint32_t>::is_always_lock_free);
  // Not FUTEX_PRIVATE: the word may be mapped by several processes.
  return syscall(SYS_futex, &word, operation, value, timeout, nullptr, 0);
}

}  // namespace

bool Flag::spin_until(uint32_t target, const WaitPolicy& policy) const noexcept {
  for (int i = 0; i < policy.spin_pauses; ++i) {
    if (reached(target)) return true;
    pause();
  }
  for (int i = 0; i < policy.yields; ++i) {
    if (reached(target)) return true;
    sched_yield();
  }
  return reached(target);
}

void Flag::sleep_until(uint32_t target, std::chrono::milliseconds limit) noexcept {
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t seen = value_.load(std::memory_order_seq_cst);
  if (static_cast<int32_t>(seen - target) < 0) {
    const timespec timeout{limit.count() / 1000, limit.count() % 1000 * 1'000'000};
    futex(value_, FUTEX_WAIT, seen, &timeout);
  }
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

void Flag::wake() noexcept { futex(value_, FUTEX_WAKE, INT_MAX, nullptr); }

WaitPolicy choose_wait_policy(int members, int usable_cores, bool pinned) {
  if (members > usable_cores) return {kCrowdedSpinPauses, kYields};
  if (!pinned) return {kShortSpinPauses, kYields};
  static const int long_spin = pauses_in(kSpinBudget);
  return {long_spin, 0};
}

}  // namespace tutti
