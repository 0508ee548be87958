/// A mesh: every rank connected to every other, with data streams and a control stream a pair.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/net/link.h"
#include "tutti/net/listener.h"
#include "tutti/net/meeting_place.h"

namespace tutti {

/// What leads to one other rank.
struct MeshPeer {
  std::vector<std::unique_ptr<Link>> data;  ///< number i here is number i there
  std::unique_ptr<Link> control;
  std::string name;  ///< "rank 3 (host node7, pid 4711, 10.0.0.7:41023)", also of the links
};

/// Thread rule: a value; links as link.h says.
struct Mesh {
  int rank = 0;
  std::vector<MeshPeer> peers;  ///< one a rank; the own one has no links
};

inline constexpr int kMaxStreams = 64;

/// Collective over the ranks of `place`: tells the listener's address under "mesh/KEY", connects to
/// the lower ranks and takes the connections of the higher ones. Every rank gives the same key (at
/// most 200 printable letters, each used once in the life of its listener) and number of data
/// streams a pair, 1 to kMaxStreams.
///
/// Throws Mismatch when the streams differ or a process is not of the job; PeerLost when an address
/// refuses; Timeout that names the ranks that did not come, with their addresses.
///
/// `called`: what the others' messages call this rank, where the mesh is part of something larger;
/// -1: its rank in `place`. `lanes`: so many times as many data streams, equal on all that give the
/// same number of streams.
Mesh connect_mesh(MeetingPlace& place, Listener& listener, const std::string& key, int streams,
                  const Deadline& deadline, int called = -1, int lanes = 1);

}  // namespace tutti
