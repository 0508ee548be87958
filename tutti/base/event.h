/// Events: how every floor reports what happens (a step, a wait, a lost rank) to whoever listens.
///
/// Code calls emit(); who wants to know adds a Sink. Without a sink an emit() is one load and a
/// branch.
/// Thread rule: emit, add_sink and remove_sink may be called from any thread at any time.
#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string_view>
#include <variant>

#include "tutti/base/deadline.h"

namespace tutti {

/// A named value of an event. Text is borrowed: it lives as long as the call that carries it.
struct Field {
  using Value = std::variant<int64_t, double, std::string_view>;
  std::string_view name;  ///< with its unit: "wait_us", "bytes"
  Value value;
};

struct Event {
  std::string_view name;  ///< "area.what": "sync.step", "comm.peer_lost"
  TimePoint when;
  std::span<const Field> fields;

  /// The field of that name, or null.
  const Field* find(std::string_view field) const noexcept;
};

/// Takes events. Implementers copy what they keep.
class Sink {
 public:
  virtual ~Sink() = default;

  /// Called in the thread that emits, from several threads at once. It must return quickly, since
  /// training waits for it. Events that it emits itself are dropped.
  virtual void on_event(const Event& event) noexcept = 0;
};

/// From now on `sink` gets every event. Adding one twice is an Error.
void add_sink(std::shared_ptr<Sink> sink);

/// When it returns, `sink` is in no call and gets no more. Unknown sinks are ignored. Neither this
/// nor add_sink may be called from within on_event (Error).
void remove_sink(const std::shared_ptr<Sink>& sink);

namespace detail {
extern std::atomic<int> num_sinks;
void deliver(std::string_view name, std::span<const Field> fields);
}  // namespace detail

/// Whether anybody listens: ask before computing a costly field.
inline bool events_wanted() noexcept {
  return detail::num_sinks.load(std::memory_order_relaxed) != 0;
}

/// emit("sync.step", {{"step", step}, {"wait_us", wait_us}}): stamped with the time of the call.
inline void emit(std::string_view name, std::initializer_list<Field> fields = {}) {
  if (events_wanted()) [[unlikely]]
    detail::deliver(name, {fields.begin(), fields.size()});
}

/// A piece of work: emits its name when it is over, with `field` and how long it took, "us".
class TimedEvent {
 public:
  TimedEvent(std::string_view name, Field field)
      : name_(name), field_(field), began_(events_wanted() ? Clock::now() : TimePoint{}) {}
  ~TimedEvent() {
    if (began_ != TimePoint{})
      emit(name_,
           {field_,
            {"us", std::chrono::duration<double, std::micro>(Clock::now() - began_).count()}});
  }
  TimedEvent(const TimedEvent&) = delete;

 private:
  const std::string_view name_;
  const Field field_;
  const TimePoint began_;  // zero: nobody listened
};

}  // namespace tutti
