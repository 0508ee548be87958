/// What both sides of a loader process know.
#pragma once

#include <optional>

#include "tutti/data/loader/detail/remote_reader.h"

namespace tutti::data::detail {

/// Tells a process that it is a loader's, and the number of its channel.
inline constexpr const char* kLoaderVariable = "TUTTI_LOADER_CHANNEL";

/// Where the content comes from; none: no registered function made it, or something was done to its
/// samples since.
std::optional<Origin> origin_of(const Content& content);

}  // namespace tutti::data::detail
