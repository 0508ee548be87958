/// Where what a user gave threw (a Source, a loss, a callback), in front of its words; not for
/// users. Thread rule: a pure function.
#pragma once

#include <exception>
#include <string_view>

namespace tutti::detail {

/// In a handler: "PLACE: what it said" of the exception that is handled. UsageError, DataError and
/// Error stay what they are; those that say of themselves where replicas failed (PeerLost, Timeout,
/// Interrupted, ...) stay as they are, and so does, logged with PLACE, a class of the program's
/// own; those of std and LibTorch become an Error.
std::exception_ptr located(std::string_view place);

}  // namespace tutti::detail
