/// What all workers of a job must ask a Strategy for alike, since bits depend on it, and how they
/// find out; not for users. docs/design/agreement.md.
/// Thread rule: that of Strategy.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "tutti/strategy/choice/options.h"

namespace tutti::detail {

/// Options in which workers must not differ, a line each (AgreedLines), of checked ones. `replicas`
/// are all of the job. Throws UsageError for a file of shares that is none.
std::string strategy_words(const StrategyOptions& options, int replicas);

/// Compares, in the group of the job's workers, by what they are to meet as replicas: before they
/// do. Collective over them. Throws Mismatch as require_same_lines().
void require_same_communication(const StrategyOptions& options);

/// A Mismatch when the lines of a worker, by its number, differ from the first one's, with the
/// first that does. It begins with `operation`: "fit".
void require_same_lines(std::string_view operation, const std::map<int, std::string>& by_worker);

}  // namespace tutti::detail
