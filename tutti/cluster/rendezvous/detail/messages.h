/// What workers and their launcher say to each other over the lifeline: one word, numbers, a text.
/// Thread rule: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::detail {

/// joined   worker to launcher: it has called join(); launcher to those that have: who else has
/// lost     launcher to those that joined: a worker has ended; text says who and how
/// share    worker to launcher, and on to the others: a descriptor; number counts them
/// refused  instead of a share: it could not be made; text says why
/// failed   worker to launcher: the error that ends it; text is "CLASS: what()"
/// replicas worker to launcher: it holds `number` ranks
/// grace    worker to launcher: it may need `number` ms to end in order after a signal
struct Notice {
  enum class Kind { joined, lost, share, refused, failed, replicas, grace };
  Kind kind = Kind::joined;
  int worker = 0;
  int number = 0;
  std::string text;

  bool operator==(const Notice&) const = default;
};

/// "lost 2 0 rank 2 was killed by SIGKILL".
std::string encode(const Notice& message);

/// "joined" for several workers (at least one) in one message, and who they are.
Notice joined_notice(const std::vector<int>& workers);
std::vector<int> joined_workers(const Notice& message);

/// What encode() wrote; nothing when it is something else.
std::optional<Notice> decode(std::string_view text);

}  // namespace tutti::detail
