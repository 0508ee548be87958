/// Debug mode: before data of a collective moves, the members of a group compare what they called.
///
/// TUTTI_DEBUG=1 in the environment of every process of the job, or set_debug_mode() in all of
/// them. Operation, dtype, length, reduction, root and the place in the program have to be the same
/// (in all_to_all lengths are each rank's own). Where they differ, every member throws Mismatch
/// that names the first rank that differs from rank 0, both calls and both places, and the group
/// has failed. Messages are not compared.
///
/// It costs a small all_gather a call, makes every call wait for all members, and thus needs
/// groups that share members to be called in one order: a tool for looking into a run.
///
/// Thread rule: set_debug_mode and debug_mode from any thread; compare_calls as the group.
#pragma once

#include <source_location>

#include "tutti/comm/engine/engine.h"

namespace tutti {

/// On or off for all groups of this process, from the next call on. All members have to agree.
void set_debug_mode(bool on) noexcept;
bool debug_mode() noexcept;

namespace detail {

/// Compares `operation` with what the other members called; `number` is the operation's own, for
/// messages. Throws Mismatch, or what the engine throws.
void compare_calls(Engine& engine, const Operation& operation, const std::source_location& site,
                   uint64_t number);

}  // namespace detail
}  // namespace tutti
