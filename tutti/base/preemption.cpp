#include "tutti/base/preemption.h"

#include <fmt/format.h>
#include <signal.h>
#include <string.h>

#include <system_error>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/stop.h"

namespace tutti {
namespace {

constexpr Millis kLook{1'000};  // at a file that may be on a slow disk

}  // namespace

PreemptionHandler::PreemptionHandler(PreemptionOptions options) : options_(std::move(options)) {
  if (options_.after < Millis{0})
    throw UsageError(
        fmt::format("preemption: after is {} ms, must be 0 or more", options_.after.count()));
  if (options_.signals) install_stop_handler();
}

bool PreemptionHandler::is_late() const {
  return options_.after > Millis{0} && Clock::now() - begin_ >= options_.after;
}

// What cannot be looked at just now asks for nothing.
bool PreemptionHandler::file_is_there() const {
  if (options_.file.empty() || found_) return found_;
  const TimePoint now = Clock::now();
  if (now < next_look_.load()) return false;
  next_look_ = now + kLook;
  std::error_code failure;
  if (std::filesystem::exists(options_.file, failure)) found_ = true;
  return found_;
}

int PreemptionHandler::asked() const {
  if (const int signal = stop_requested(); signal != 0) return signal;
  return is_late() || file_is_there() ? SIGTERM : 0;
}

std::string PreemptionHandler::why() const {
  if (const int signal = stop_requested(); signal != 0)
    return fmt::format("SIG{}", sigabbrev_np(signal));
  if (is_late())
    return fmt::format("the end of its {} s",
                       std::chrono::duration<double>(options_.after).count());
  return file_is_there() ? "file " + options_.file.string() : "";
}

}  // namespace tutti
