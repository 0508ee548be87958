/// What becomes of synchronous training when one of its workers is lost.
/// Thread rule: plain values.
#pragma once

#include <cstdint>
#include <string_view>

namespace tutti::ps {

enum class OnLostWorker : uint8_t {
  end,    ///< the job ends
  go_on,  ///< the others go on; what they add is scaled up to all workers
  wait,   ///< they wait until it has come again, and all go on as if it had never been away
};

/// "end", "continue", "wait".
std::string_view name_of(OnLostWorker what) noexcept;
/// Throws UsageError that names `flag` ("--on-lost-worker") for another text.
OnLostWorker on_lost_worker_from(std::string_view text, std::string_view flag);

}  // namespace tutti::ps
