/// From an error to why a group failed, and back: for engines that are made of others.
#pragma once

#include <string>

#include "tutti/base/error.h"
#include "tutti/comm/engine/engine.h"

namespace tutti::detail {

inline FailureKind kind_of(const std::exception& error) {
  if (dynamic_cast<const PeerLost*>(&error) != nullptr) return FailureKind::peer_lost;
  if (dynamic_cast<const Timeout*>(&error) != nullptr) return FailureKind::timeout;
  if (dynamic_cast<const Mismatch*>(&error) != nullptr) return FailureKind::mismatch;
  return FailureKind::aborted;
}

[[noreturn]] inline void throw_as(FailureKind kind, const std::string& text) {
  switch (kind) {
    case FailureKind::peer_lost: throw PeerLost(text);
    case FailureKind::timeout: throw Timeout(text);
    case FailureKind::mismatch: throw Mismatch(text);
    case FailureKind::aborted: break;
  }
  throw Error(text);
}

}  // namespace tutti::detail
