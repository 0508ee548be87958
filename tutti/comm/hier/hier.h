/// The engine for hosts of several ranks: `inside` each host one engine (shm), and between the
/// hosts one engine a *rail*. docs/design/hier_engine.md draws it.
///
/// Data is cut into as many slices as the largest host has ranks. The local ranks share the slices
/// out among themselves, in contiguous runs (with equal hosts one each; a smaller host's ranks
/// carry several); rail s joins the ranks that carry slice s, one a host. So every byte leaves a
/// host once, and all local ranks send at the same time.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/comm/engine/engine.h"

namespace tutti {

/// What one member is given; every engine in it belongs to this member's thread from then on.
struct HierParts {
  int rank = 0;                        ///< of this member among all
  std::vector<int> replicas_per_host;  ///< ranks of a host are consecutive; at least 2 hosts
  std::shared_ptr<Engine> inside;      ///< this host's ranks, in order
  /// By slice: the ranks that carry it, in order of their hosts; null where another local rank
  /// does.
  std::vector<std::shared_ptr<Engine>> rails;
  /// All ranks, in the order of replicas_per_host: for messages and for parts that differ from rank
  /// to rank, which gain nothing from the hierarchy.
  std::shared_ptr<Engine> across;
  /// Makes a group of some members, given by rank here in the order of the new group. `key` is the
  /// same on all of them, and another one for every group.
  std::function<std::shared_ptr<Engine>(const std::string& key, std::span<const int> members,
                                        Millis limit)>
      regroup;
  int64_t chunk_bytes = int64_t{4} << 20;  ///< while one chunk crosses, the next is added up inside
};

std::shared_ptr<Engine> make_hier(HierParts parts);

/// The slices that local rank `local` of a host with `ranks` ranks carries, out of `slices`:
/// [first, second). Every host's ranks cover all slices.
std::pair<int, int> slices_of(int local, int ranks, int slices);

/// What `engine` was made of; null when it is no hier engine.
const HierParts* parts_of(const Engine& engine) noexcept;

}  // namespace tutti
