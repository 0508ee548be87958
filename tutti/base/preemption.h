/// PreemptionHandler: whether this process is to end soon: a signal came, a file is there, or its
/// time is up. What ends in order then is the caller's: fit(), or a loop with a Checkpoint, whose
/// workers agree on a step.
/// Thread rule: const functions may be called from any thread.
#pragma once

#include <atomic>
#include <filesystem>
#include <string>

#include "tutti/base/deadline.h"

namespace tutti {

struct PreemptionOptions {
  bool signals = true;           ///< SIGTERM and SIGINT ask; a second one ends at once (stop.h)
  std::filesystem::path file{};  ///< asks from when it is there, before the begin too; "": none
  Millis after{0};               ///< asks once so much time has gone, >= 0; 0: never
};

class PreemptionHandler {
 public:
  /// The time begins now. With `signals` it takes over SIGTERM and SIGINT (install_stop_handler());
  /// without, those that somebody else has taken over ask, too. UsageError for a time below 0.
  explicit PreemptionHandler(PreemptionOptions options = {});

  /// The signal that asks this process to end, SIGTERM where file or time do; 0: none. Once it is
  /// not 0 it stays. Looks for the file about once a second, in the thread that asks: on a file
  /// system that hangs it waits for it.
  int asked() const;
  /// "SIGTERM", "file runs/stop", "the end of its 3600 s"; "" where nothing asks.
  std::string why() const;

 private:
  bool is_late() const;
  bool file_is_there() const;

  const PreemptionOptions options_;
  const TimePoint begin_ = Clock::now();
  mutable std::atomic<TimePoint> next_look_{begin_};
  mutable std::atomic<bool> found_ = false;  // the file
};

}  // namespace tutti
