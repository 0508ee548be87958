/// MeetingPlace: where ranks that have no connection yet swap a few bytes: the rendezvous of a job,
/// the store of another framework, MPI.
/// Thread rule: one thread at a time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/deadline.h"

namespace tutti {

class MeetingPlace {
 public:
  virtual ~MeetingPlace() = default;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;

  /// Collective: what every rank gave under `key`, in rank order. Every rank uses the same keys in
  /// the same order, each once. A text is at most 64 KiB. Throws Timeout naming the ranks that did
  /// not come, PeerLost naming one that is known to be dead.
  virtual std::vector<std::string> exchange(std::string_view key, std::string_view mine,
                                            const Deadline& deadline) = 0;
};

}  // namespace tutti
