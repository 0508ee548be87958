/// Patterns of layers' names. Not for users. Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tutti::parallel::detail {

/// UsageError that begins with `what`, and has the nearest name, where the pattern (optim::fits)
/// fits none of `names`.
void require_match(std::string_view what, const std::string& pattern,
                   const std::vector<std::string>& names);

}  // namespace tutti::parallel::detail
