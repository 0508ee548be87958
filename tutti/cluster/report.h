/// Which failure of a job was the first, and how it is told. Pure decisions.
/// Thread rule: pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tutti/cluster/launcher.h"

namespace tutti::detail {

struct Death {
  int worker = 0;
  bool failed = false;
  bool lost_a_peer = false;  ///< its own error says that it lost a peer: a consequence
};

/// The worker whose failure the others followed: of those that failed, in order of their deaths,
/// the first that did not merely lose a peer; else the first.
std::optional<int> root_of(const std::vector<Death>& deaths);

}  // namespace tutti::detail
