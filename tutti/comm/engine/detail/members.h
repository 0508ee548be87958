/// Who is in a group that is split off, and on which hosts these are: for engines.
#pragma once

#include "tutti/comm/engine/engine.h"

namespace tutti::detail {

/// Collective, of Engine::split(): the ranks that give this color, by key, then by rank; none for a
/// negative one.
std::vector<int> members_of_color(Engine& engine, int color, int key, Millis limit);

/// The shape of ranks that live on these hosts, in rank order; flat where those of a host do not
/// stand in a row.
ReductionShape shape_of_hosts(const std::vector<int>& hosts);

/// The number of its host of each rank of a shape.
std::vector<int> hosts_of(const ReductionShape& shape);

}  // namespace tutti::detail
