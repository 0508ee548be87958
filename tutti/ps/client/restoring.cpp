#include "tutti/ps/client/restoring.h"

#include <utility>

#include "tutti/base/threads.h"

namespace tutti::ps {

Restoring::Restoring(ClientState::Restore restore, std::function<void()> wake)
    : restore_(std::move(restore)), wake_(std::move(wake)) {
  if (restore_) thread_ = start_thread("the snapshot that is read", [this] { work(); });
}

Restoring::~Restoring() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Restoring::begin(int partition, Assign assign) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back({partition, std::move(assign)});
  }
  changed_.notify_all();
}

void Restoring::hand_on(const std::function<bool(int partition)>& has_room) {
  std::unique_lock lock(mutex_);
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  if (!message_ || !has_room(jobs_.front().partition)) return;
  Message message = std::move(*message_);
  message_.reset();
  const Assign assign = jobs_.front().assign;  // its job may be over once this has let go
  lock.unlock();
  changed_.notify_all();
  assign(std::move(message));
}

bool Restoring::may_hand_on(const std::function<bool(int partition)>& has_room) {
  const std::lock_guard lock(mutex_);
  return message_ && has_room(jobs_.front().partition);
}

void Restoring::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !jobs_.empty(); });
    if (ends_) return;
    const int partition = jobs_.front().partition;
    lock.unlock();
    try {
      restore_(partition, [this](Message message) { offer(std::move(message)); });
      lock.lock();
    } catch (const GivenUp&) {
      return;
    } catch (...) {
      lock.lock();
      failure_ = std::current_exception();
      wake_();
    }
    changed_.wait(lock, [this] { return ends_ || !message_; });
    jobs_.pop_front();
  }
}

void Restoring::offer(Message message) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ends_ || !message_; });
  if (ends_) throw GivenUp{};
  message_ = std::move(message);
  wake_();
}

}  // namespace tutti::ps
