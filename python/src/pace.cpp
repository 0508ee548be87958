#include "pace.h"

#include <sys/prctl.h>

#include <thread>

namespace tutti::python {
namespace {

using std::chrono::microseconds;

// A change of threads costs about 5 us: after a few of those the core is better given away.
constexpr microseconds kPolling{20};
constexpr microseconds kBrisk{5'000};
constexpr microseconds kShortSleep{20};
constexpr microseconds kLongSleep{100};
constexpr unsigned long kFineSlack_ns = 1'000;

}  // namespace

FineSleeps::FineSleeps() noexcept
    : before_ns_(static_cast<unsigned long>(prctl(PR_GET_TIMERSLACK, 0UL, 0UL, 0UL, 0UL))) {
  prctl(PR_SET_TIMERSLACK, kFineSlack_ns, 0UL, 0UL, 0UL);
}

FineSleeps::~FineSleeps() { prctl(PR_SET_TIMERSLACK, before_ns_, 0UL, 0UL, 0UL); }

void Pace::pause() const {
  const auto still = Clock::now() - last_move_;
  if (still < kPolling)
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(still < kBrisk ? kShortSleep : kLongSleep);
}

}  // namespace tutti::python
