/// What a launcher has started that a strategy has no part for. Without LibTorch.
/// Thread rule: it reads the environment, for the main thread.
#pragma once

#include <array>
#include <string_view>

#include "tutti/strategy/choice/options.h"

namespace tutti {

/// Flags of the command that starts servers, `tutti run --servers` or `tutti train`. In a program
/// that another command has started they would do nothing.
inline constexpr std::array<std::string_view, 9> kFlagsOfServers{
    "--servers",        "--no-backups", "--restarts",     "--snapshots",   "--snapshot-every",
    "--snapshots-kept", "--restore",    "--record-order", "--replay-order"};

/// UsageError where a launcher, whichever it is, has started what the strategy has no part for:
/// several workers under one of one process, of which each would be the chief and do all of the
/// work, or servers under one that has none. Not where options.alone. Strategy asks it.
void check_launched(const StrategyOptions& options);

}  // namespace tutti
