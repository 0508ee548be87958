/// Stages of a pipeline out of a network of a .pt2 file, which is cut before calls of its modules.
/// Not for users. Thread rule: as ExportedCuts.
#pragma once

#include <string>
#include <vector>

#include "tutti/exported/stages.h"
#include "tutti/parallel/stages/recompute.h"
#include "tutti/parallel/stages/stage.h"

namespace tutti::parallel {

/// UsageError for a module that the network does not have, with those that it can be cut before.
void require_modules(const ExportedCuts& cuts, const std::vector<std::string>& modules);

/// Numbers of cuts.places().all: before each of these modules. UsageError as above; for one before
/// which it cannot be cut, with the reason; for two of one place, and another order than theirs.
std::vector<size_t> places_before(const ExportedCuts& cuts,
                                  const std::vector<std::string>& modules);

/// UsageError where the network cannot be cut into so many stages that each has parameters.
void require_stages(const ExportedCuts& cuts, int stages);
/// The same, so that the slowest stage takes least, as measured here (balance.h): forward and
/// backward of two samples of zeros. Buffers are left as they were.
std::vector<size_t> balanced_places(const ExportedCuts& cuts, int stages);

/// Stage `number` of those that begin at the beginning and at these places.
///
/// UsageError as ExportedCuts::stage(); where recompute would write to buffers twice; and for
/// blocks, or patterns, that no module of the network has.
Stage stage_of(const ExportedCuts& cuts, const std::vector<size_t>& places, int number,
               const Recompute& recompute);

}  // namespace tutti::parallel
