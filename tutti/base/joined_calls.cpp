#include "tutti/base/joined_calls.h"

#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/threads.h"

namespace tutti {

JoinedCalls::JoinedCalls(std::string what, const GatherLimits& limits, Answer answer)
    : what_(std::move(what)), limits_(limits), answer_(std::move(answer)) {
  if (limits.max_units < 1)
    throw UsageError(
        fmt::format("{}: at most {} in one pass, expected 1 or more", what_, limits.max_units));
  if (limits.max_wait.count() < 0)
    throw UsageError(fmt::format("{}: calls wait {} us for others, expected 0 or more", what_,
                                 limits.max_wait.count()));
  thread_ = start_thread(what_, [this] { run(); });
}

JoinedCalls::~JoinedCalls() {
  std::unique_lock lock(mutex_);
  ends_ = true;
  for (const WaitingCall& waiting : waiting_)
    settle(waiting.call,
           fmt::format("{}: whoever answers has ended while this call waited", what_));
  waiting_.clear();
  came_.notify_one();
  lock.unlock();
  thread_.join();
  lock.lock();
  left_.wait(lock, [this] { return asking_ == 0; });
}

struct JoinedCalls::Asking {
  explicit Asking(JoinedCalls& all) : calls(all) { ++calls.asking_; }
  ~Asking() {
    if (--calls.asking_ == 0) calls.left_.notify_one();
  }
  JoinedCalls& calls;
};

void JoinedCalls::ask(const std::shared_ptr<JoinedCall>& call, int64_t units,
                      const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  if (ends_) throw Error(fmt::format("{}: whoever answers has ended", what_));
  const Asking asking(*this);  // goes before the lock does: then all of this may be destroyed
  waiting_.push_back({units, Clock::now(), call});
  came_.notify_one();
  const auto answered = [&] { return call->done_; };
  if (!call->changed_.wait_until(lock, deadline.at(), answered)) {
    const size_t waited = waiting_.size();
    if (std::erase_if(waiting_, [&](const WaitingCall& other) { return other.call == call; }) > 0)
      throw Timeout(fmt::format(
          "{}: no answer in {} ms; calls that wait for a pass: {}. More threads call than are "
          "answered, or one pass takes as long",
          what_, deadline.limit().count(), waited));
    call->changed_.wait(lock, answered);  // its pass reads what is the caller's
  }
  if (call->error) std::rethrow_exception(std::exchange(call->error, nullptr));
}

CallCounts JoinedCalls::counts() const {
  const std::lock_guard lock(mutex_);
  CallCounts counts = counts_;
  counts.waiting = std::ssize(waiting_);
  return counts;
}

// Of one call each, since threads that share an exception would have to agree on who frees it.
void JoinedCalls::settle(const std::shared_ptr<JoinedCall>& call, const std::string& failure) {
  if (!failure.empty() && !call->error) call->error = std::make_exception_ptr(Error(failure));
  call->done_ = true;
  call->changed_.notify_one();
}

// Empty: it ends.
std::vector<std::shared_ptr<JoinedCall>> JoinedCalls::next_pass(
    std::unique_lock<std::mutex>& lock) {
  while (!ends_) {
    if (waiting_.empty()) {
      came_.wait(lock);
      continue;
    }
    const Gathered next = gather(waiting_, limits_, Clock::now());
    if (next.calls == 0) {
      came_.wait_until(lock, next.until);
      continue;
    }
    std::vector<std::shared_ptr<JoinedCall>> pass;
    ++counts_.passes;
    counts_.calls += static_cast<int64_t>(next.calls);
    for (size_t i = 0; i < next.calls; ++i) {
      counts_.units += waiting_.front().units;
      pass.push_back(std::move(waiting_.front().call));
      waiting_.pop_front();
    }
    return pass;
  }
  return {};
}

void JoinedCalls::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    const auto pass = next_pass(lock);
    if (pass.empty()) return;
    lock.unlock();
    std::string failure;
    try {
      answer_(pass);
    } catch (const std::exception& error) {
      failure = fmt::format("{}: {}", what_, error.what());
    } catch (...) {
      failure = fmt::format("{}: what was thrown is no std::exception", what_);
    }
    lock.lock();
    for (const auto& call : pass) settle(call, failure);
  }
}

}  // namespace tutti
