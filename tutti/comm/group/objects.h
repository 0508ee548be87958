/// Bytes and JSON of ranks that know nothing of each other's lengths: small things, as settings.
///
///   const Json settings = broadcast_object(world, world.rank() == 0 ? read_settings() : Json());
///
/// Thread rule: that of the Group's operations, which these are. `limit` is that of each of the two
/// that a call makes. They throw what Group throws, and UsageError for a root outside of it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/comm/group/group.h"

namespace tutti {

/// Collective: rank `root`'s bytes, on every rank; those of the others do not count.
std::string broadcast_bytes(Group group, std::string_view own, int root = 0, Limit limit = {});

/// Collective: every rank's bytes, by rank, on every rank.
std::vector<std::string> all_gather_bytes(Group group, std::string_view own, Limit limit = {});

/// The same of JSON. A value that is no JSON (a text that is not UTF-8) is a JsonError on its rank,
/// and an Error that names the rank on the others.
Json broadcast_object(Group group, const Json& own, int root = 0, Limit limit = {});
std::vector<Json> all_gather_object(Group group, const Json& own, Limit limit = {});

}  // namespace tutti
