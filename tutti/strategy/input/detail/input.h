/// How replicas get their parts of batches: which those are, and the loader that computes them
/// ahead. Not for users. Thread rule: as Loader's.
#pragma once

#include <memory>

#include "tutti/data/loader/loader.h"
#include "tutti/strategy/input/distributed_dataset.h"
#include "tutti/strategy/membership/membership.h"

namespace tutti::detail {

/// The samples of rank `rank`'s replica in a global batch of so many.
data::Share share_of(int64_t global_size, const mesh::Topology& topology, int rank);

/// Those of microbatch `number`, counted over all replicas: replica r has the
/// Topology::microbatches from r * Topology::microbatches on. So any number of replicas with as
/// many microbatches together cuts a batch alike.
data::Share microbatch_of(int64_t global_size, const mesh::Topology& topology, int number);

/// Batch `step` as replica `local` of this worker takes it. Nothing for a worker that has no part
/// in it (Membership::those_here).
data::BatchPart part_of(const data::Epoch& epoch, const mesh::Topology& topology,
                        const InputPipelines& pipelines, int64_t step, int local);

std::shared_ptr<data::Loader> make_loader(const data::LoaderOptions& options, const World& world,
                                          int threads_per_replica);

/// What the dataset keeps in memory is from now on kept once for the workers of a host. Collective
/// over workers, where they are in step; elsewhere each keeps its own.
void share_caches(const Membership& members, const data::Dataset& dataset);

/// Steps [first, end) of the epoch, in order; first == end: those that expect() will name.
void begin_epoch(data::Loader& loader, const data::Epoch& epoch,
                 std::shared_ptr<const mesh::Topology> topology, InputPipelines pipelines,
                 int64_t first, int64_t end);

}  // namespace tutti::detail
