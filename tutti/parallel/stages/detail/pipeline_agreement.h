/// What the ranks of a pipeline have to have in common is compared before the first step. Not for
/// users.
#pragma once

#include <string>
#include <vector>

#include "tutti/comm/group/group.h"
#include "tutti/mesh/schedule.h"
#include "tutti/parallel/stages/stage.h"

namespace tutti::parallel::detail {

/// One end of a tie, without its tensor.
struct TieEnd {
  int owner = 0, reader = 0;  ///< stages
  std::string name;
  std::string tensor;  ///< "float32 [3, 4]", "frozen float32 [3, 4]"
  auto operator<=>(const TieEnd&) const = default;
};

/// Collective. All ties of the pipeline: by owner, name, and readers from the last one on.
/// Throws DataError for a schedule with a fault and UsageError for stages that do not fit it, on
/// the rank that has them; Mismatch on all others, and where ranks differ, that names both.
std::vector<TieEnd> agree_on_pipeline(Group group, const mesh::Schedule& schedule,
                                      const std::vector<Stage>& chunks, Millis limit);

}  // namespace tutti::parallel::detail
