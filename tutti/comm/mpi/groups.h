/// Making communicators and shapes for groups.
/// Thread rule: as Engine.
#pragma once

#include "tutti/base/reduction_shape.h"
#include "tutti/comm/mpi/control.h"

namespace tutti::detail::mpi {

/// The shape of ranks that live on these hosts, in rank order; flat where the ranks of a host do
/// not stand in a row.
ReductionShape shape_of_hosts(const std::vector<int>& hosts);

/// Takes `collectives` over and adds the other two. Collective; blocks inside MPI, so every member
/// must be known to have come.
GroupComms complete_comms(MPI_Comm collectives);

}  // namespace tutti::detail::mpi
