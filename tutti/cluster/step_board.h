/// StepBoard: which step each worker of a launcher is in, on a page that they share: so that one
/// that is killed has said so, too. Thread rule: const functions may be called from any thread.
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

  void note(int local_worker, int64_t step) const noexcept;
  /// -1: it has noted none.
  int64_t step_of(int local_worker) const noexcept;

 private:
  explicit StepBoard(SharedFile file);

  SharedFile file_;
  Mapping page_;  // a number a worker: its step and 1
};

}  // namespace tutti::detail
