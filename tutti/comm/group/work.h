/// Work: an operation in flight. Returned by every asynchronous call of a Group.
#pragma once

#include <cstdint>
#include <memory>

#include "tutti/comm/engine/engine.h"
#include "tutti/comm/flight/flight_mark.h"

namespace tutti {

/// Cheap to copy. The operation advances in whoever waits; dropping a Work does not cancel it.
/// Thread rule: as its Group, one thread.
class Work {
 public:
  /// A Work that is done.
  Work() = default;
  Work(std::shared_ptr<Engine> engine, Ticket ticket, FlightMark mark = {})
      : engine_(std::move(engine)), ticket_(ticket), mark_(mark) {}

  /// Waits until the operation is done, no longer than its own limit and `limit`. When either
  /// passes the group has failed: peers may not touch a buffer that its owner gave up.
  ///
  /// Throws PeerLost (a rank went away, named), Timeout (silent ranks named), Mismatch (ranks
  /// disagree on shape, dtype or order of calls), or the error with which the group was aborted.
  void wait(Millis limit = kLongestLimit);

  /// Engine::progress_until_woken(): true when done. Throws as wait().
  bool wait_until_woken();

  /// Advances without waiting; true when done. Throws as wait().
  bool test();

  /// Makes work queued on `stream` afterwards wait for this operation. Host engines finish first.
  void wait_on(Stream stream);

 private:
  std::shared_ptr<Engine> engine_;
  Ticket ticket_ = 0;
  FlightMark mark_;
};

}  // namespace tutti
