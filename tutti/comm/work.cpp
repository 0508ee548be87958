#include "tutti/comm/work.h"

namespace tutti {

void Work::wait(Millis limit) {
  if (engine_ == nullptr || engine_->poll(ticket_)) return;
  engine_->progress(ticket_, Deadline(limit));
}

bool Work::test() { return engine_ == nullptr || engine_->poll(ticket_); }

// Host engines complete in the waiting thread, so whatever is queued afterwards comes after.
void Work::wait_on(Stream /*stream*/) { wait(); }

}  // namespace tutti
