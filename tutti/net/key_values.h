/// KeyValues: values under keys that the processes of a job leave for each other.
/// Thread rule: any thread, several at once.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tutti/base/deadline.h"

namespace tutti {

/// A key is text; a value is any bytes, and stays what it is once it is there. Each function throws
/// PeerLost when a process of the job is lost, or what holds the values.
class KeyValues {
 public:
  virtual ~KeyValues() = default;

  /// Returns when others can see it. UsageError where another value has that key, or for one that
  /// is too large; the same value once more is none.
  virtual void put(std::string_view key, std::string_view value) = 0;

  /// Waits until it is there. Throws Timeout naming the key.
  virtual std::string get(std::string_view key, const Deadline& deadline) = 0;

  /// What is there now; nothing where nobody has put it yet.
  virtual std::optional<std::string> try_get(std::string_view key) = 0;

  /// PeerLost that says which, where a process of the job is known to be lost, at once: for who
  /// waits elsewhere for what needs all of them.
  virtual void require_all() {}
};

}  // namespace tutti
