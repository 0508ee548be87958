/// Meetings: values that workers bring, and that all who are there get when all have brought them.
///
/// How workers that have only servers in common add up what they have counted; who is lost
/// meanwhile is not waited for. One meeting follows another. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tutti/ps/message.h"

namespace tutti::ps {

class Meetings {
 public:
  /// Meetings that are over.
  int64_t num_over() const noexcept { return num_over_; }
  /// Why `worker` cannot bring something to meeting `number` (1, 2, ...); "": it can, or has.
  std::string objection(int worker, int64_t number) const;
  /// Brings a copy of `value` to the next meeting; what comes twice counts once.
  void bring(int worker, int64_t number, const Bytes& value);
  /// Whether `worker` has brought its value and waits for others'.
  bool waits(int worker) const { return brought_.contains(worker); }
  bool anybody_waits() const noexcept { return !brought_.empty(); }
  /// Ends the meeting when all of `here` have brought something: who was part of it; else {}.
  std::vector<int> end_if_all(const std::vector<int>& here);

  /// What was brought to the last meeting that is over, by worker, also of those lost since.
  const std::map<int, Bytes>& last() const noexcept { return last_; }
  /// What was brought to the one that is not over.
  const std::map<int, Bytes>& next() const noexcept { return brought_; }
  void restore(int64_t num_over, std::map<int, Bytes> last, std::map<int, Bytes> next);

 private:
  int64_t num_over_ = 0;
  std::map<int, Bytes> last_;
  std::map<int, Bytes> brought_;
};

/// Values by worker as text and payload of one message, and back. Throws Error for a message that
/// is none.
void pack(const std::map<int, Bytes>& values, Message& message);
std::map<int, Bytes> unpack(const Message& message);

}  // namespace tutti::ps
