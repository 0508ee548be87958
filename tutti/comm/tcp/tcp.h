/// The engine between hosts: ranks joined by byte streams, driven by the thread that waits.
///
/// Between every two ranks stand k *data links*, over which large messages are striped, for each
/// *lane*, and one *control link* for messages, failures and leaving. Sums go on at the same time,
/// one a lane: so a wire with latency is kept full. The engine is given them connected. It sums
/// in the order of its reduction shape unless told that any order will do.
/// docs/design/tcp_engine.md describes the protocol.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/comm/engine/engine.h"
#include "tutti/comm/schedule/schedule_choice.h"
#include "tutti/net/link.h"

namespace tutti {

/// The connections of one member.
struct TcpLinks {
  struct Peer {
    /// As many as there, in the same order: those of lane 0, of lane 1, ...
    std::vector<std::unique_ptr<Link>> data;
    std::unique_ptr<Link> control;  ///< its peer() names the rank in errors
  };
  int rank = 0;
  int size = 1;
  std::vector<Peer> peers;  ///< by rank; this rank's own is empty
  int lanes = 1;            ///< sums at a time; data links are a multiple of it
};

/// TcpLinks::lanes of a job's groups: 4, fewer of many streams, 1 of more than 4 ranks.
int tcp_lanes(int ranks, int streams) noexcept;

/// Makes the connections of a group that is split off. Called at the same time by all its members.
///
/// key      names the new group; the same on all its members, and used once
/// members  its ranks in the group that is split, in their new order
/// rank     this member's in the new group
using TcpConnect = std::function<TcpLinks(const std::string& key, const std::vector<int>& members,
                                          int rank, const Deadline& deadline)>;

/// Equal on all ranks, but for usable_cores and connect; a difference is seen at the first message.
struct TcpOptions {
  std::optional<ReductionShape> shape{};  ///< unset: flat(size)
  Order order = Order::fixed;
  AlgorithmTable table = built_in_table();
  int64_t chunk_bytes = 256 << 10;      ///< what is added while it is in cache; 4 KiB or more
  int64_t min_stripe_bytes = 64 << 10;  ///< less is not worth another stream
  std::string key = "world";            ///< names this group, and begins the keys of its parts
  int local_ranks = 0;                  ///< ranks of the group on this host; 0: all of them
  int usable_cores = 0;  ///< 0: host_facts(). Waits spin only when each local rank has a core
  TcpConnect connect{};  ///< without it, split() is a UsageError
};

/// The engine of member links.rank; a group of one is solo. Throws UsageError when links or options
/// do not fit. Needs no answer of the others.
std::shared_ptr<Engine> make_tcp(TcpLinks links, TcpOptions options = {});

}  // namespace tutti
