/// From ranks that only share a c10d store to a group over the engine that fits.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/comm/group/group.h"

#include "job.h"
#include "store_meeting.h"

namespace tutti::python {

/// What a new group is told.
struct GroupFacts {
  std::string name;              ///< for messages and flight records
  std::vector<int> world_ranks;  ///< of its members; empty: it is the world
  std::shared_ptr<Job> world;    ///< the world's job; none: it is the world, or another backend's
  Reach reach;
  Millis timeout{0};  ///< of its operations
};

/// A group and the job that watches over its members; none for a group of one.
struct Connected {
  Group group;
  std::shared_ptr<Job> job;
};

/// Collective: shm for ranks of one host, tcp for one rank a host, hier for several. The group has
/// the ranks of `place`.
///
/// Throws Timeout and PeerLost that name ranks; UsageError when the ranks of a host are not
/// consecutive.
Connected connect_over(StoreMeeting& place, const GroupFacts& facts, const Deadline& deadline);

}  // namespace tutti::python
