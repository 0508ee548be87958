#include "tutti/comm/work.h"

namespace tutti {

void Work::wait(Millis limit) {
  if (engine_ == nullptr || engine_->poll(ticket_)) return;
  engine_->progress(ticket_, Deadline(limit));
}

bool Work::test() { return engine_ == nullptr || engine_->poll(ticket_); }

void Work::wait_on(Stream stream) {
  if (engine_ != nullptr) engine_->wait_on(ticket_, stream);
}

}  // namespace tutti
