/// Work that comes in many small pieces, on all usable cores.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>

#include "tutti/base/host.h"
#include "tutti/base/threads.h"

namespace tutti::cli {

/// Calls body(i) once for each i in [begin, end), in as many threads as there are usable cores, in
/// any order. `body` throws nothing. Error where these cannot start.
inline void on_all_cores(int64_t begin, int64_t end, const std::function<void(int64_t)>& body) {
  std::atomic<int64_t> next{begin};
  const auto threads = std::clamp<int64_t>(end - begin, 1, host_facts().usable_cores);
  at_once(static_cast<int>(threads), "work on all cores", [&](int) {
    for (int64_t i = next++; i < end; i = next++) body(i);
  });
}

}  // namespace tutti::cli
