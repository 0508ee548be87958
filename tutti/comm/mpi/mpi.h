/// The engine that moves data through an MPI library (Open MPI, MPICH), for clusters whose network
/// MPI knows best. Ranks are those of the MPI launcher.
///
/// Pieces travel by MPI and are added here, in the reduction shape. docs/design/mpi_engine.md says
/// how, and what a failure means to an MPI job. Without an MPI library in the build the functions
/// that make something throw UsageError.
/// Thread rule: as Engine. The first call of any of these initialises MPI, unless the program has.
#pragma once

#include <memory>
#include <optional>

#include "tutti/comm/engine/engine.h"
#include "tutti/net/meeting_place.h"

namespace tutti {

struct MpiOptions {
  /// The tree of additions; unset: the ranks' hosts, as MPI tells them. The same on every rank.
  std::optional<ReductionShape> shape{};
  /// Leaves the order of additions to MPI_Iallreduce, for the types and operations that MPI has:
  /// results then differ in the last bits from other engines and rank counts.
  bool any_order = false;
  int64_t chunk_bytes = 16 << 20;    ///< largest part of a reduction that is under way at once
  int64_t message_bytes = 1 << 30;   ///< largest single MPI message; longer ones go in pieces
  Millis limit = kDefaultTimeLimit;  ///< for all ranks to come
};

/// Whether this build has an MPI library.
bool mpi_available() noexcept;

/// Collective over MPI_COMM_WORLD: the engine of this process's rank. Throws Timeout naming the
/// ranks that did not come, Mismatch when ranks give different options.
std::shared_ptr<Engine> make_mpi(const MpiOptions& options = {});

/// Collective over MPI_COMM_WORLD: lets ranks of an MPI launcher meet, so that any other engine can
/// be brought up without a rendezvous address.
std::unique_ptr<MeetingPlace> make_mpi_meeting_place(Millis limit = kDefaultTimeLimit);

}  // namespace tutti
