/// Stale reads: where replicas take turns, an update comes once all have had theirs, and until then
/// operators of those that have taken part read the values from before it. Everywhere else they
/// read the new ones, so that such a program would silently train something else. Not for users.
///
/// It sees operators alone, those of backward among them, as BeforeUse does; who reads otherwise
/// (look-ups of embedding tables) is to be noted. Thread rule: all of it is of the calling thread,
/// on which the replicas take turns.
#pragma once

#include <torch/types.h>

#include <string>
#include <vector>

#include "tutti/sync/slots.h"

namespace tutti::detail {

/// From now on an operator that reads one of these parameters of `replica` is noted, the first one.
/// One that only makes a view reads nothing.
void watch_for_stale_reads(int replica, const Slots& layout,
                           const std::vector<at::Tensor>& parameters);

/// Notes what no operator reads: `found` is the reader and what it reads.
void note_stale_read(const std::string& found);

/// Nothing is watched any more, and nothing noted.
void end_watch_for_stale_reads();

/// UsageError that names reader and what was read, when one was noted.
void require_no_stale_read();

}  // namespace tutti::detail
