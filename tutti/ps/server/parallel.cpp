#include "tutti/ps/server/parallel.h"

#include <algorithm>

#include "tutti/base/threads.h"

namespace tutti::ps {

ParallelFor::ParallelFor(int threads) {
  threads_.reserve(static_cast<size_t>(std::max(threads, 1)));
  try {
    for (int i = 1; i < threads; ++i)
      threads_.push_back(start_thread("updates of a server", [this] { help(); }));
  } catch (...) {
    end();
    throw;
  }
}

ParallelFor::~ParallelFor() { end(); }

void ParallelFor::end() noexcept {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ParallelFor::operator()(int64_t count, const std::function<void(int64_t)>& fn) {
  if (threads_.empty() || count < 2) {
    for (int64_t i = 0; i < count; ++i) fn(i);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    fn_ = &fn;
    count_ = count;
    next_ = 0;
    ++round_;
  }
  changed_.notify_all();
  work_off();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return busy_ == 0; });
  fn_ = nullptr;
}

void ParallelFor::work_off() noexcept {
  for (int64_t i = next_++; i < count_; i = next_++) (*fn_)(i);
}

void ParallelFor::help() {
  int64_t seen = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ends_ || round_ != seen; });
    if (ends_) return;
    seen = round_;
    if (fn_ == nullptr) continue;  // it came too late
    ++busy_;
    lock.unlock();
    work_off();
    lock.lock();
    if (--busy_ == 0) changed_.notify_all();
  }
}

}  // namespace tutti::ps
