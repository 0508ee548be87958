#include "lane.h"

#include <algorithm>
#include <thread>

#include "tutti/base/error.h"

namespace tutti::python {
namespace {

// An engine may wait inside submit() when more collectives are open than it has room for (shm: 64),
// which would hold up every thread of the lane. A call hands in at most half of these at a time.
constexpr size_t kMostInEngine = 32;
constexpr size_t kMostAtOnce = kMostInEngine / 2;

// Between two looks of drain(), which has no time to lose and none to win.
constexpr auto kDrainPause = std::chrono::microseconds(50);

}  // namespace

void Lane::submit(CallPointer call) {
  const std::lock_guard lock(mutex_);
  open_calls_.fetch_add(1, std::memory_order_acq_rel);
  if (failure_ != nullptr) return end(std::move(call), failure_);
  (call->is_message ? waiting_messages_ : waiting_).push_back(std::move(call));
  move_all();
}

bool Lane::advance() {
  const std::lock_guard lock(mutex_);
  return move_all();
}

bool Lane::try_advance() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  return lock.owns_lock() && move_all();
}

std::optional<Ended> Lane::take_ended() {
  if (!has_ended()) return std::nullopt;
  const std::lock_guard lock(mutex_);
  if (ended_.empty()) return std::nullopt;
  Ended ended = std::move(ended_.front());
  ended_.pop_front();
  ended_calls_.fetch_sub(1, std::memory_order_acq_rel);
  open_calls_.fetch_sub(1, std::memory_order_acq_rel);
  return ended;
}

void Lane::finish_ended() {
  while (auto ended = take_ended()) ended->finish();
}

std::optional<FailureKind> Lane::failure_kind() {
  const std::lock_guard lock(mutex_);
  if (failure_ == nullptr) return std::nullopt;
  try {
    std::rethrow_exception(failure_);
  } catch (const PeerLost&) {
    return FailureKind::peer_lost;
  } catch (const Timeout&) {
    return FailureKind::timeout;
  } catch (const Mismatch&) {
    return FailureKind::mismatch;
  } catch (...) {
    return FailureKind::aborted;
  }
}

bool Lane::drain(const Deadline& deadline) {
  while (busy()) {
    advance();
    finish_ended();
    if (!busy()) break;
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(kDrainPause);
  }
  return true;
}

// A failure of one call is a failure of the group: all others end with the same words.
bool Lane::move_all() {
  if (!busy()) return false;
  try {
    start_waiting();
    start_messages();
    bool moved = move_collectives();
    moved |= move_messages();
    return moved;
  } catch (const std::exception& error) {
    fail(error);
    return true;
  }
}

bool Lane::may_start() const {
  if (collectives_.empty()) return true;
  const InFlight& last = collectives_.back();
  return in_engine_ <= kMostInEngine - kMostAtOnce && !last.call->has_stages &&
         last.next == last.call->operations.size();
}

// While a call waits for its device the engine may have nothing to do, and then nobody would hear
// from it that the group has failed.
bool Lane::is_ready(Call& call) {
  if (call.ready()) return true;
  group_.engine().nudge();
  return false;
}

// In the order of the calls, the same on every rank: one that is not ready holds up those behind
// it.
void Lane::start_waiting() {
  while (!waiting_.empty() && may_start() && is_ready(*waiting_.front())) {
    collectives_.push_back({std::move(waiting_.front())});
    waiting_.pop_front();
    give_some(collectives_.back());
  }
}

// In the order of the calls too: that is the order of a pair's messages.
void Lane::start_messages() {
  while (!waiting_messages_.empty() && is_ready(*waiting_messages_.front())) {
    const CallPointer& call = waiting_messages_.front();
    try {
      const FlightMark mark = note(*call, call->operations);
      const Ticket ticket = group_.engine().submit(call->operations);
      messages_.push_back({.call = call, .ticket = ticket, .mark = mark});
    } catch (const UsageError&) {
      end(call, std::current_exception());  // the group goes on
    }
    waiting_messages_.pop_front();
  }
}

void Lane::give_some(InFlight& flying) {
  const auto& operations = flying.call->operations;
  const size_t count = std::min(kMostAtOnce, operations.size() - flying.next);
  const auto next = std::span(operations).subspan(flying.next, count);
  flying.mark = note(*flying.call, next);
  flying.ticket = group_.engine().submit(next);
  flying.next += count;
  flying.in_engine = count;
  in_engine_ += count;
}

// What the engine had of this call is done: gives it more; false when there is no more.
bool Lane::goes_on(InFlight& flying) {
  in_engine_ -= flying.in_engine;
  note_done(flying);
  if (flying.next == flying.call->operations.size()) {
    if (!flying.call->next_stage()) return false;
    flying.next = 0;
  }
  give_some(flying);
  return true;
}

bool Lane::move_collectives() {
  bool moved = false;
  while (!collectives_.empty() && poll(collectives_.front())) {
    moved = true;
    if (goes_on(collectives_.front())) continue;
    end(std::move(collectives_.front().call), nullptr);
    collectives_.pop_front();
    start_waiting();
  }
  return moved;
}

bool Lane::move_messages() {
  bool moved = false;
  for (auto message = messages_.begin(); message != messages_.end();) {
    if (poll(*message)) {
      moved = true;
      note_done(*message);
      end(std::move(message->call), nullptr);
      message = messages_.erase(message);
    } else {
      ++message;
    }
  }
  return moved;
}

// Noted as the engine is given them: in the same order on every rank.
FlightMark Lane::note(const Call& call, std::span<const Operation> operations) {
  if (FlightLog* log = group_.engine().flight_log())
    for (const Operation& operation : operations)
      at_work_ = log->begin(operation, call.called_at, true);
  return at_work_;
}

void Lane::note_done(const InFlight& flying) const {
  if (FlightLog* log = group_.engine().flight_log()) log->done(flying.mark);
}

bool Lane::poll(const InFlight& flying) {
  at_work_ = flying.mark;
  return group_.engine().poll(flying.ticket);
}

// Of the group: with the exception that is being handled.
void Lane::fail(const std::exception& error) {
  failure_ = std::current_exception();
  // Peers may not know yet, when it is no failure of the engine's; else this does nothing.
  group_.engine().abort(FailureKind::aborted, error.what());
  if (FlightLog* log = group_.engine().flight_log())
    note_failure(*log, at_work_, error.what(), false);
  fail_all();
}

void Lane::end(CallPointer call, std::exception_ptr failure) {
  ended_.push_back({std::move(call), std::move(failure)});
  ended_calls_.fetch_add(1, std::memory_order_acq_rel);
}

void Lane::fail_all() {
  for (auto& flying : collectives_)
    if (flying.call != nullptr) end(std::move(flying.call), failure_);
  for (auto& flying : messages_)
    if (flying.call != nullptr) end(std::move(flying.call), failure_);
  for (auto* waiting : {&waiting_, &waiting_messages_}) {
    for (auto& call : *waiting) end(std::move(call), failure_);
    waiting->clear();
  }
  collectives_.clear();
  messages_.clear();
}

}  // namespace tutti::python
