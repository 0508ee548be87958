/// Which failure of a job was the first, and how it is told. Pure decisions.
/// Thread rule: pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tutti/cluster/launch/launcher.h"

namespace tutti::detail {

struct Death {
  int worker = 0;
  bool failed = false;
  bool follows = false;  ///< its own error says that it follows from another worker's
};

/// The worker whose failure the others followed: of those that failed, in order of their deaths,
/// the first that did not merely follow from another; else the first.
std::optional<int> root_of(const std::vector<Death>& deaths);

}  // namespace tutti::detail
