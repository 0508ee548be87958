/// Recorder: the events of a while, kept as they came, for who makes figures or a drawing of them.
/// Thread rule: as Sink; end() from one thread.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tutti/base/event.h"

namespace tutti {

/// An event that outlives its emit().
struct Recorded {
  using Value = std::variant<int64_t, double, std::string>;
  std::string name;
  double when_us = 0;  ///< since the recorder began
  std::map<std::string, Value, std::less<>> fields;

  /// Throw Error that names event and field where it has none, or one of another type.
  int64_t number(std::string_view field) const;
  double real(std::string_view field) const;
  const std::string& text(std::string_view field) const;
  /// Of an event with a field "us": when what it tells of began.
  double begin_us() const { return when_us - real("us"); }
};

/// Listens from its making until end() or its own.
class Recorder {
 public:
  /// What is kept; of more end() throws.
  static constexpr size_t kMostEvents = 100'000;

  /// Of events whose name begins so: "tcp.".
  explicit Recorder(std::vector<std::string> areas);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// All of them, by when they were emitted. Throws Error when there were more than kMostEvents.
  std::vector<Recorded> end();

 private:
  class Kept;
  std::shared_ptr<Kept> kept_;
};

}  // namespace tutti
