/// When is what is left of a job told to end, and how firmly? A pure decision: no clock, no I/O.
///
/// After the first failure the rest may end with their own error; then SIGTERM, then SIGKILL. A
/// signal to the job is forwarded at once, and followed by SIGKILL; a second one is SIGKILL at
/// once.
#pragma once

#include <optional>

#include "tutti/base/deadline.h"

namespace tutti::detail {

struct EndingOptions {
  Millis failure_grace{2'000};
  Millis signal_grace{2'000};
  bool end_on_failure = true;
};

class Ending {
 public:
  explicit Ending(const EndingOptions& options) : options_(options) {}

  /// Of what begins from now on.
  void set_signal_grace(Millis grace) { options_.signal_grace = grace; }

  /// A worker failed. Only the first failure counts.
  void on_failure(TimePoint now);
  /// The worker ended for whom the others are there: as a failure, whatever the options say.
  void on_lead_ended(TimePoint now);
  /// SIGINT, SIGTERM or SIGHUP came to the launcher.
  void on_signal(int signal, TimePoint now);

  /// The signal to send to all that is left, if it is time for one; each is returned once.
  std::optional<int> due(TimePoint now);
  /// When due() will next have something; nothing when it waits for an event.
  std::optional<TimePoint> next() const;

  bool begun() const noexcept { return failed_ || first_signal_ != 0; }
  bool over() const noexcept { return over_; }                 ///< due() has returned SIGKILL
  int first_signal() const noexcept { return first_signal_; }  ///< 0 when none came

 private:
  EndingOptions options_;
  int first_signal_ = 0;
  bool failed_ = false;
  bool over_ = false;
  int polite_signal_ = 0;  // what is sent at polite_at_
  std::optional<TimePoint> polite_at_;
  std::optional<TimePoint> kill_at_;
};

}  // namespace tutti::detail
