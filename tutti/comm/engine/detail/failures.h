/// From an error to why a group failed, and back.
#pragma once

#include <atomic>
#include <mutex>
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

/// A rank that gave up has a reason of its own; for the others it is lost.
inline FailureKind kind_of_another(FailureKind kind) {
  return kind == FailureKind::aborted ? FailureKind::peer_lost : kind;
}

/// The first failure of an engine, which every later call meets. Thread rule: from any thread.
class FirstFailure {
 public:
  /// False where there is one already.
  bool keep(FailureKind kind, const std::string& text) {
    const std::scoped_lock lock(mutex_);
    if (happened()) return false;
    kind_ = kind;
    text_ = text;
    happened_.store(true, std::memory_order_release);
    return true;
  }

  bool happened() const noexcept { return happened_.load(std::memory_order_acquire); }

  /// Throws it, where there is one, with what `words` says in front.
  template <class Words>
  void rethrow(Words words) const {
    if (happened()) [[unlikely]]
      throw_as(kind_, words() + text_);
  }

 private:
  std::atomic<bool> happened_{false};
  std::mutex mutex_;  // of keep(); what is kept does not change
  FailureKind kind_ = FailureKind::aborted;
  std::string text_;
};

}  // namespace tutti::detail
