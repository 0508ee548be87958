/// What a worker registers with the parameter servers, made of its model and its place in the job.
#pragma once

#include <vector>

#include "tutti/optim/rule.h"
#include "tutti/ps/client/client.h"
#include "tutti/ps/spec/spec.h"
#include "tutti/sync/served_options.h"
#include "tutti/sync/slots.h"
#include "tutti/sync/world.h"

namespace tutti::detail {

/// Throws UsageError for what cannot be trained by (ps::check).
ps::Spec served_spec(const World& world, const optim::Rule& rule, const Slots& layout,
                     const ServedPlace& place, const ServedOptions& options,
                     std::vector<ps::SparseTableSpec> tables);

/// Gives partitions what the snapshot of --restore has; empty without one. Worker 0 reads it at
/// once, so that bad input is found before anything trains; another one only when it is lost,
/// beside its work.
/// `spec` must outlive what is returned.
ps::Client::Restore restore_of(const ps::Spec& spec, int worker);

/// The order of updates that this job's servers follow again; null: none. UsageError where it is of
/// another training, or an order that is followed or recorded cannot be of this one.
std::shared_ptr<const ps::UpdateOrder> replayed_order(const ps::Spec& spec, bool coordinated);

}  // namespace tutti::detail
