/// Meetings: values that workers bring, and that all who are there get when all have brought them.
///
/// How workers in step that have only servers in common add up what they have counted. All come to
/// the same meetings at the same sessions of their program. Who is lost is not waited for; who
/// comes again gets what was brought meanwhile. Thread rule: one thread.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/ps/wire/message.h"

namespace tutti::ps {

/// What each worker has brought, by its number.
using Brought = std::map<int, Bytes>;

/// What each of so many workers may bring: all of it together is one payload of a frame.
constexpr int64_t most_bytes_brought(int num_workers) { return (int64_t{1} << 30) / num_workers; }

class Meetings {
 public:
  /// Meeting `number` (1, 2, ...) of those that are held between two steps.
  struct Session {
    int64_t step = 0;  ///< so many steps have been done
    int64_t number = 1;
    auto operator<=>(const Session&) const = default;
  };

  /// `worker` has come again, and begins with that step: what is held before the step does not wait
  /// for it. It may come to it all the same.
  void begins(int worker, int64_t step);
  /// Why nobody can come there any more; "": one can.
  std::string objection(const Session& session) const;
  /// Brings a copy of `value`; what a worker brings twice, or too late, does not count.
  void bring(int worker, const Session& session, const Bytes& value);
  bool has_brought(int worker, const Session& session) const;
  /// Those of `here` whom that meeting waits for.
  std::vector<int> waits_for(const Session& session, const std::vector<int>& here) const;
  /// Ends meetings that wait for none of `here`: where they were.
  std::vector<Session> end(const std::vector<int>& here);
  /// What was brought to a meeting that is over; null when it is not, or not known any more. Known
  /// are those that were held before the newest step of all, 64 MiB at most.
  const Brought* values(const Session& session) const;

  /// All that is known, in parts, and back. Throws Error for a part that is none.
  std::vector<std::pair<std::string, Bytes>> chunks() const;
  void take(std::string_view text, const Bytes& payload);

 private:
  void forget_old();

  std::map<int, int64_t> begins_;
  std::map<Session, Brought> open_;
  std::map<Session, Brought> over_;
  Session last_{.step = 0, .number = 0};  // that is over
};

/// Values as a text and a payload, and back. Throws Error for what is none.
std::pair<std::string, Bytes> packed(const Brought& values);
Brought unpacked(std::string_view text, const Bytes& payload);

}  // namespace tutti::ps
