#include "pace.h"

#include <sys/prctl.h>

#include <thread>

#include "tutti/base/host.h"

namespace tutti::python {
namespace {

using std::chrono::microseconds;

// A change of threads costs about 5 us: after a few of those the core is better given away.
constexpr microseconds kYielding{20};
// But who gives it to a busy loop gets it back after a slice of some milliseconds, when the peer for
// which it waited has long answered. DDP on mlp, two ranks, a busy loop on each core: 36,000 to
// 48,000 images/s with yields and no spins, 72,000 with 50 us of spins, 83,000 with 200, 41,000 with
// 3,000; alone 176,000 and, with 200 us, 240,000. Yields after the spins lose most of that again.
constexpr microseconds kSpinning{200};
constexpr microseconds kBrisk{5'000};
constexpr microseconds kShortSleep{20};
constexpr microseconds kLongSleep{100};
constexpr unsigned long kFineSlack_ns = 1'000;

void spin() noexcept {
  for (int i = 0; i < 4; ++i) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
}

}  // namespace

FineSleeps::FineSleeps() noexcept
    : before_ns_(static_cast<unsigned long>(prctl(PR_GET_TIMERSLACK, 0UL, 0UL, 0UL, 0UL))) {
  prctl(PR_SET_TIMERSLACK, kFineSlack_ns, 0UL, 0UL, 0UL);
}

FineSleeps::~FineSleeps() { prctl(PR_SET_TIMERSLACK, before_ns_, 0UL, 0UL, 0UL); }

void Pace::among(int ranks_here) {
  spins_ = ranks_here <= host_facts().usable_cores;
}

void Pace::pause() const {
  const auto still = Clock::now() - last_move_;
  if (spins_ && still < kSpinning) return spin();
  if (!spins_ && still < kYielding)
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(still < kBrisk ? kShortSleep : kLongSleep);
}

}  // namespace tutti::python
