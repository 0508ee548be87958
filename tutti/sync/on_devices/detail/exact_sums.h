/// ExactSums: sums over the processes of a world in the reduction shape, made on devices. Not for
/// users.
///
/// The owner of equal slices in each process: its slice is cut into one piece a process. All pieces
/// of all replicas' gradients go to who adds them (all-to-all), in one order for one process or
/// many; then everybody gets all sums (all-gather). A replica of N, in P processes, sends and
/// receives (P - 1) / P of a slice of S bytes twice: once for each local replica, once as a sum.
///
/// Thread rule: that of the replica.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "tutti/comm/group/group.h"
#include "tutti/sync/detail/runs.h"
#include "tutti/sync/world.h"

namespace tutti::detail {

class ExactSums {
 public:
  /// cuts  bytes of the layout: process p adds [cuts[p], cuts[p + 1]); each at a line
  /// own   what that is for this process
  ExactSums(const World& world, int replica, std::vector<int64_t> cuts, std::vector<Run> own);

  /// Queues it all. `gradients`: flat, of each local replica, behind whose work the queue is.
  /// `sums`: bytes [cuts.front(), cuts.back()); may be gradients' memory. Throws as Work.
  void add_up(std::span<const at::Tensor> gradients, const at::Tensor& sums);

 private:
  int64_t bytes_of(size_t piece) const { return cuts_[piece + 1] - cuts_[piece]; }
  void collect(std::span<const at::Tensor> gradients);
  void add_own(const Run& run);

  const World& world_;
  Group group_;  // of the owners
  Stream stream_;
  std::vector<int64_t> cuts_;
  std::vector<Run> own_;
  int64_t first_ = 0;                            // byte of the layout where the own piece begins
  std::vector<int64_t> send_, receive_, parts_;  // bytes, by process
  at::Tensor outgoing_;                          // by process, then by local replica
  at::Tensor incoming_;                          // [replicas, own piece], by rank
};

}  // namespace tutti::detail
