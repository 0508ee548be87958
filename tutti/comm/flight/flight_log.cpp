#include "tutti/comm/flight/flight_log.h"

#include <fmt/format.h>

#include <chrono>

namespace tutti {
namespace {

using detail::Call;
using detail::call_of;
using detail::is_message;

// Not Clock, which leaves pauses out: of calls it is asked when they were.
int64_t now_ns() noexcept {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

uint64_t pack(const Call& call) noexcept {
  return static_cast<uint64_t>(call.collective) | static_cast<uint64_t>(call.reduce) << 8 |
         static_cast<uint64_t>(call.dtype) << 16;
}

void unpack(uint64_t kinds, Call& call) noexcept {
  call.collective = static_cast<Collective>(kinds & 0xff);
  call.reduce = static_cast<ReduceOp>(kinds >> 8 & 0xff);
  call.dtype = static_cast<DType>(kinds >> 16 & 0xff);
}

// A time of the steady clock as people count it.
int64_t unix_us(int64_t clock_ns) {
  if (clock_ns == 0) return 0;
  const auto unix_now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(unix_now).count() -
         (now_ns() - clock_ns) / 1000;
}

std::string text_of(const char* literal) { return literal == nullptr ? "" : literal; }

}  // namespace

FlightLog::FlightLog(std::string name, const Engine& engine)
    : name_(std::move(name)), engine_(engine.name()), rank_(engine.rank()), size_(engine.size()) {}

std::string FlightLog::name_of_split(int color) {
  return fmt::format("{}/split {} color {}", name_, ++splits_, color);
}

FlightLog::Mark FlightLog::begin(const Operation& operation, const CallPlace& place,
                                 bool timed) noexcept {
  const Call call = call_of(operation);
  const bool message = is_message(call.collective);
  const uint64_t number = message ? ++messages_ : ++collectives_;
  const uint64_t position = positions_.load(std::memory_order_relaxed) + 1;
  Entry& entry = entry_of(position);
  // Release: whoever sees one of the new fields sees the odd version too.
  const auto set = [](auto& field, auto value) { field.store(value, std::memory_order_release); };
  const uint64_t version = entry.version.load(std::memory_order_relaxed);
  entry.version.store(version + 1, std::memory_order_relaxed);
  set(entry.position, position);
  set(entry.number, number);
  set(entry.kinds, pack(call));
  set(entry.elements, call.elements);
  set(entry.root, call.root);
  set(entry.tag, call.tag);
  set(entry.file, place.file);
  set(entry.function, place.function);
  set(entry.line, place.line);
  set(entry.state, kSubmitted);
  set(entry.begun_ns, timed ? now_ns() : 0);
  set(entry.ended_ns, int64_t{0});
  entry.version.store(version + 2, std::memory_order_release);
  positions_.store(position, std::memory_order_release);
  return {position, message ? 0 : number};
}

void FlightLog::end(const Mark& mark, State state) noexcept {
  Entry& entry = entry_of(mark.position);
  if (entry.position.load(std::memory_order_relaxed) != mark.position) return;
  if (entry.state.load(std::memory_order_relaxed) != kSubmitted) return;
  entry.ended_ns.store(now_ns(), std::memory_order_release);
  entry.state.store(state, std::memory_order_release);
}

void FlightLog::done(const Mark& mark) noexcept {
  if (mark.position == 0) return;
  end(mark, kDone);
  if (mark.number > done_collectives_.load(std::memory_order_relaxed)) done_now(mark);
}

bool FlightLog::failed(const Mark& mark, const std::string& why) {
  if (mark.position != 0) end(mark, kFailed);
  std::lock_guard lock(mutex_);
  if (has_failed_) return false;
  has_failed_ = true;
  failure_ = why;
  return true;
}

bool FlightLog::has_failed() const {
  std::lock_guard lock(mutex_);
  return has_failed_;
}

bool FlightLog::read_entry(const Entry& entry, uint64_t position, FlightOperation& operation,
                           uint64_t done) const {
  const auto get = [](const auto& field) { return field.load(std::memory_order_acquire); };
  const uint64_t version = get(entry.version);
  if (version % 2 != 0 || get(entry.position) != position) return false;
  operation.number = get(entry.number);
  unpack(get(entry.kinds), operation.call);
  operation.call.elements = get(entry.elements);
  operation.call.root = get(entry.root);
  operation.call.tag = get(entry.tag);
  const char* file = get(entry.file);
  const char* function = get(entry.function);
  operation.line = get(entry.line);
  const int64_t begun = get(entry.begun_ns);
  const int64_t ended = get(entry.ended_ns);
  const uint32_t state = get(entry.state);
  if (entry.version.load(std::memory_order_relaxed) != version) return false;
  operation.file = text_of(file);
  operation.function = text_of(function);
  operation.begun_us = unix_us(begun);
  operation.ended_us = unix_us(ended);
  const bool by_order = !is_message(operation.call.collective) && operation.number <= done;
  operation.state = state == kFailed             ? FlightOperation::State::failed
                    : state == kDone || by_order ? FlightOperation::State::done
                                                 : FlightOperation::State::submitted;
  return true;
}

FlightGroup FlightLog::read() const {
  FlightGroup group{.name = name_, .engine = engine_, .rank = rank_, .size = size_};
  const uint64_t done = done_collectives_.load(std::memory_order_acquire);
  const uint64_t last = positions_.load(std::memory_order_acquire);
  const uint64_t first = last > kOperations ? last - kOperations + 1 : 1;
  for (uint64_t position = first; position <= last; ++position) {
    FlightOperation operation;
    const Entry& entry = entries_[(position - 1) % kOperations];
    // One that was overwritten meanwhile is missing at the old end, which nobody looks at first.
    if (read_entry(entry, position, operation, done))
      group.operations.push_back(std::move(operation));
  }
  std::lock_guard lock(mutex_);
  group.failure = failure_;
  return group;
}

void throw_with_members(const FlightLog& log, const Error& error) {
  const std::string words = fmt::format("{}\n  {}", error.what(), log.members());
  if (dynamic_cast<const PeerLost*>(&error) != nullptr) throw PeerLost(words);
  if (dynamic_cast<const Timeout*>(&error) != nullptr) throw Timeout(words);
  if (dynamic_cast<const Mismatch*>(&error) != nullptr) throw Mismatch(words);
  throw Error(words);
}

}  // namespace tutti
