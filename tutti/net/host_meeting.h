/// Which ranks are on one host: those between which a descriptor can be passed.
///
/// Names and numbers of hosts lie (containers, copied images); a descriptor that arrived does not.
/// With it come the bytes that the ranks of the host will share.
#pragma once

#include <string>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/net/arena.h"
#include "tutti/net/meeting_place.h"
#include "tutti/net/token.h"

namespace tutti {

/// Thread rule: a value.
struct HostMeeting {
  std::vector<int> host_of_rank;  ///< hosts are numbered from 0 in the order of their lowest ranks
  std::vector<int> ranks_here;    ///< the ranks of this host, ascending
  SharedFile shared;              ///< the same memory for all ranks here, empty at first
  bool leads = false;             ///< the lowest rank here: it alone sizes `shared`
};

/// Differs between machines, and from start to start; "" when the kernel does not tell.
std::string boot_id();

/// Collective over the ranks of `place`, which swap texts under "host/KEY/..." (each key is used
/// once; at most 200 printable letters). Uses Unix sockets without a name in the file system and
/// the handshake of the token on each. Ranks of different network namespaces are of different
/// hosts. Throws Timeout and PeerLost that name ranks, Mismatch when a process here holds another
/// token.
HostMeeting meet_on_host(MeetingPlace& place, const std::string& key, const Token& token,
                         const Deadline& deadline);

}  // namespace tutti
