/// BeforeUse: memory that comes late, at the latest when an operator first reads it.
///
/// Parameters that are on their way (from servers, from who owns a shard, from the sums of other
/// hosts) need not be there when forward begins. While some are not, an observer of this thread's
/// operators looks for inputs that lie in such memory and has it filled before the operator runs.
/// When all has come the observer is gone, and operators cost what they always do.
///
/// It sees operators alone, those of backward among them. Code that reads memory by itself
/// (data_ptr()) calls require_ready() first; span_of() does.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace tutti {

/// Returns when what `tensor` reads has come. Any tensor, any thread; one load when nothing is on
/// its way. Throws what went wrong on the way (Timeout, PeerLost).
void require_ready(const at::Tensor& tensor);

namespace detail {

/// Thread rule: expect() while nobody reads the memory; all others from any thread.
class BeforeUse {
 public:
  /// Memory that is filled together with all other of the same `part`.
  struct Range {
    const std::byte* begin = nullptr;
    const std::byte* end = nullptr;
    int part = 0;  ///< 0 to num_parts - 1, in the order of use
  };
  /// Fills `part`: waits for it, with a deadline of its own, or throws.
  using Fill = std::function<void(int part)>;
  BeforeUse(std::vector<Range> ranges, int num_parts, Fill fill);
  /// From then on nothing is filled any more.
  ~BeforeUse();
  BeforeUse(const BeforeUse&) = delete;

  /// From now on all parts are on their way. Each is filled once, by the first who needs it; others
  /// who do wait for that one.
  void expect();

  /// Gives up what has come of `part`: it is on its way again. From within Fill of another part, or
  /// while nobody reads it.
  void give_up(int part);
  /// Within Fill: the parts that are read together, which are not to be given up: by the operator
  /// that waits, or by code that has called require_ready() since the last one.
  std::vector<int> read_together() const;

  /// Operators of this thread, and of threads that it hands its state to, find their inputs filled
  /// until nothing is on its way. When filling fails the operator throws, and so does every later
  /// one that reads what has not come.
  void watch();

  bool ready(int part) const noexcept;
  bool all_ready() const;
  /// Returns when that part has come. Throws what the first Fill that failed has thrown.
  void require(int part);
  void require_all();
  /// Throws that; nothing when none has.
  void rethrow_failure() const;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace detail
}  // namespace tutti
