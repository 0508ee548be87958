/// StepBoard: which step of which training each worker of a launcher is in, on a page that they
/// share: so that one that is killed has said so, too. Thread rule: const functions may be called
/// from any thread.
#pragma once

#include <cstdint>

#include "tutti/net/arena.h"

namespace tutti::detail {

class StepBoard {
 public:
  /// Of a launcher. Throws Error when there is no memory.
  static StepBoard create(int num_workers);
  /// Of one of its workers: that which create() made. Throws UsageError.
  static StepBoard open(int descriptor);

  int descriptor() const noexcept { return file_.descriptor(); }

  struct Noted {
    int64_t training = 0;
    int64_t step = -1;  ///< -1: none was noted, of this training
  };
  void note(int local_worker, Noted noted) const noexcept;
  Noted noted_of(int local_worker) const noexcept;

 private:
  explicit StepBoard(SharedFile file);

  SharedFile file_;
  Mapping page_;  // two numbers a worker: its training; its step and 1
};

}  // namespace tutti::detail
