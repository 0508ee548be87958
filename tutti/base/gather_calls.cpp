// Which of the calls that wait are answered next.

#include <algorithm>

#include "tutti/base/joined_calls.h"

namespace tutti {

Gathered gather(const std::deque<WaitingCall>& waiting, const GatherLimits& limits, TimePoint now) {
  int64_t units = waiting.front().units;
  size_t calls = 1;
  while (calls < waiting.size() && units + waiting[calls].units <= limits.max_units)
    units += waiting[calls++].units;
  const TimePoint until =
      waiting.front().came + std::min<std::chrono::microseconds>(limits.max_wait, kLongestLimit);
  const bool full = units >= limits.max_units || calls < waiting.size();
  return {full || now >= until ? calls : 0, until};
}

}  // namespace tutti
