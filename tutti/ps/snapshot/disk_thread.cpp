#include "tutti/ps/snapshot/disk_thread.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <utility>

namespace tutti::ps {
namespace {

DiskThread::Then outcome_of(const DiskThread::Work& work) {
  try {
    return work();
  } catch (...) {
    return [error = std::current_exception()] { std::rethrow_exception(error); };
  }
}

}  // namespace

struct DiskThread::Shared {
  bool idle() const { return waiting.empty() && !works; }

  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::function<void()> wake;
  std::deque<Work> waiting;
  bool works = false;
  std::deque<Then> done;
  bool ends = false;
};

DiskThread::DiskThread(std::function<void()> wake) : shared_(std::make_shared<Shared>()) {
  shared_->wake = std::move(wake);
  thread_ = std::thread([shared = shared_] { run(shared); });
}

DiskThread::~DiskThread() {
  std::deque<Work> given_up;
  bool works = false;
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->ends = true;
    shared_->wake = nullptr;
    given_up.swap(shared_->waiting);
    works = shared_->works;
  }
  shared_->changed.notify_all();
  if (works)
    thread_.detach();
  else
    thread_.join();
}

void DiskThread::add(Work work) {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->waiting.push_back(std::move(work));
  }
  shared_->changed.notify_all();
}

bool DiskThread::process() {
  std::deque<Then> done;
  {
    const std::lock_guard lock(shared_->mutex);
    done.swap(shared_->done);
  }
  for (const Then& then : done) then();
  return !done.empty();
}

bool DiskThread::wait(const Deadline& deadline) {
  std::unique_lock lock(shared_->mutex);
  return shared_->changed.wait_until(lock, deadline.at(), [this] { return shared_->idle(); });
}

void DiskThread::run(const std::shared_ptr<Shared>& shared) {
  std::unique_lock lock(shared->mutex);
  while (true) {
    shared->changed.wait(lock, [&] { return shared->ends || !shared->waiting.empty(); });
    if (shared->ends) return;
    Work work = std::move(shared->waiting.front());
    shared->waiting.pop_front();
    shared->works = true;
    lock.unlock();
    Then then = outcome_of(std::exchange(work, nullptr));
    lock.lock();
    shared->works = false;
    shared->done.push_back(std::move(then));
    if (shared->wake) shared->wake();
    shared->changed.notify_all();
  }
}

}  // namespace tutti::ps
