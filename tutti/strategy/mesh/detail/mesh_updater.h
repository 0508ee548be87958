/// The Updater of a mesh on which several ranks compute a replica: one updater for each part of the
/// model, over the ranks that have that part. Not for users.
///
/// Its state() and restore() are of the whole model, under its names, so that a checkpoint knows no
/// mesh. Thread rule: that of Updater.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "tutti/strategy/modules/whole_model.h"
#include "tutti/sync/updater.h"

namespace tutti::detail {

/// Makes the updater of one part: the ranks that have it as a world of their own, and their
/// parameters.
using PartUpdaterFactory =
    std::function<std::shared_ptr<Updater>(const World& world, std::vector<NamedTensors> ranks)>;

/// `local_ranks`: parameters of this worker's ranks. `recipe`: clips norms, of the whole model;
/// what `make` makes does not clip them. null: a torch optimizer's, whose state() is a UsageError.
/// Collective over the world. UsageError for a rank without parameters.
std::shared_ptr<Updater> make_mesh_updater(const World& world, const WholeModel& whole,
                                           std::vector<NamedTensors> local_ranks,
                                           const PartUpdaterFactory& make,
                                           const optim::Recipe* recipe = nullptr);

/// The recipe for a part of the model: without clipping by norm, and without the groups that fit no
/// parameter of it. UsageError for a group that fits none of the whole model, and for a rule that
/// measures whole parameters.
optim::Recipe recipe_of_part(const optim::Recipe& recipe, const WholeModel& whole,
                             const NamedTensors& part);

}  // namespace tutti::detail
