/// From ranks that only share a c10d store to a group over the engine that fits.
#pragma once

#include <string>

#include "tutti/comm/group.h"
#include "tutti/net/meeting_place.h"

namespace tutti::python {

/// Where other hosts reach this process.
struct Reach {
  std::string towards;    ///< the address by which one gets to this host or name; "": loopback
  std::string interface;  ///< or this interface, subnet or address; "" when not told
};

/// Collective: shm for ranks of one host, tcp for one rank a host, hier for several. The group has
/// the ranks of `place`. `name` is the group's, for messages.
///
/// Throws Timeout and PeerLost that name ranks; UsageError when the ranks of a host are not
/// consecutive.
Group connect_over(MeetingPlace& place, const std::string& name, const Reach& reach,
                   const Deadline& deadline);

}  // namespace tutti::python
