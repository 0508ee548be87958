#include "tutti/store/disk_thread.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/base/threads.h"

namespace tutti::store {
namespace {

DiskThread::Then outcome_of(const std::function<DiskThread::Then()>& work) {
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
  std::deque<std::function<Then()>> waiting;
  bool works = false;
  std::deque<Then> done;
  bool ends = false;
};

DiskThread::DiskThread(std::string_view what, std::function<void()> wake)
    : shared_(std::make_shared<Shared>()) {
  shared_->wake = std::move(wake);
  thread_ = start_thread(what, [shared = shared_] { run(shared); });
}

DiskThread::~DiskThread() {
  std::deque<std::function<Then()>> given_up;
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

void DiskThread::add(std::function<void()> work) {
  add_with_then([work = std::move(work)] {
    work();
    return Then();
  });
}

void DiskThread::add_with_then(std::function<Then()> work) {
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
  std::exception_ptr first;
  for (const Then& then : done) try {
      then();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  if (first) std::rethrow_exception(first);
  return !done.empty();
}

void DiskThread::forget_waiting() {
  std::deque<std::function<Then()>> forgotten;
  const std::lock_guard lock(shared_->mutex);
  forgotten.swap(shared_->waiting);
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
    auto work = std::move(shared->waiting.front());
    shared->waiting.pop_front();
    shared->works = true;
    lock.unlock();
    Then then = outcome_of(std::exchange(work, nullptr));
    lock.lock();
    shared->works = false;
    if (then) {
      shared->done.push_back(std::move(then));
      if (shared->wake) shared->wake();
    }
    shared->changed.notify_all();
  }
}

void wait_for_disk(const std::string& what, const std::function<void()>& work, Millis limit) {
  constexpr Millis kSayNothing{1'000};
  DiskThread disk(what);
  disk.add(work);
  const Deadline deadline(limit);
  if (!disk.wait(Deadline(std::min(limit, kSayNothing))))
    log(LogLevel::warning, "{}: waiting for the disk, {} s at most", what, limit.count() / 1000);
  if (!disk.wait(deadline))
    throw Timeout(fmt::format("{}: the disk did not answer in {} s", what, limit.count() / 1000));
  disk.process();
}

}  // namespace tutti::store
