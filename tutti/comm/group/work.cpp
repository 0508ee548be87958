#include "tutti/comm/group/work.h"

#include "tutti/comm/flight/flight_log.h"

namespace tutti {

void Work::wait(Millis limit) {
  if (engine_ == nullptr) return;
  engine_->require_own();
  noting_failure(*engine_, mark_, [&] {
    if (!engine_->poll(ticket_)) engine_->progress(ticket_, Deadline(limit));
  });
  if (auto* log = engine_->flight_log()) log->done(mark_);
}

bool Work::wait_until_woken() {
  if (engine_ == nullptr) return true;
  engine_->require_own();
  const bool done = noting_failure(*engine_, mark_, [&] {
    return engine_->poll(ticket_) || engine_->progress_until_woken(ticket_);
  });
  if (auto* log = engine_->flight_log(); log != nullptr && done) log->done(mark_);
  return done;
}

bool Work::test() {
  if (engine_ == nullptr) return true;
  engine_->require_own();
  const bool done = noting_failure(*engine_, mark_, [&] { return engine_->poll(ticket_); });
  if (auto* log = engine_->flight_log(); log != nullptr && done) log->done(mark_);
  return done;
}

void Work::wait_on(Stream stream) {
  if (engine_ == nullptr) return;
  noting_failure(*engine_, mark_, [&] { engine_->wait_on(ticket_, stream); });
}

}  // namespace tutti
