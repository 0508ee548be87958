/// HostSums: what the fused step sends between hosts, for one replica.
///
/// Every host adds up the gradients of its replicas; the owners of the same slice, one a host, then
/// add these sums to the whole one (the design's *between hosts the owners of the same slice reduce
/// among themselves first*). The order is that of ReductionShape::hosts.
/// Thread rule: the replica's own thread.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tutti/base/array.h"
#include "tutti/comm/group/host_view.h"
#include "tutti/sync/slots.h"

namespace tutti::detail {

class HostSums {
 public:
  HostSums() = default;
  /// `slices`: Slots::cut() into view.num_slices parts.
  HostSums(HostView view, const Slots& layout, const std::vector<std::vector<Stretch>>& slices);

  /// Where the sum of elements [stretch.begin, ...) of a stretch of this replica belongs: this
  /// host's before exchange(), all hosts' after it.
  std::byte* sum_of(const Stretch& stretch) const;

  /// Collective over hosts: adds the sums. `used` (one byte a parameter) becomes the maximum over
  /// hosts, `learning_rate` that of host 0.
  void exchange(std::span<uint8_t> used, double& learning_rate, Millis limit);
  /// Collective over hosts: adds numbers of which one host has each, and the others have 0.
  void add(std::span<double> values, Millis limit);

 private:
  /// Stretches of one dtype side by side in sums_.
  struct Run {
    DType dtype = DType::float32;
    int64_t begin = 0;  // bytes in sums_
    int64_t num_elements = 0;
    size_t rail = 0;
  };

  HostView view_;
  Array sums_;
  std::vector<Run> runs_;
  std::vector<int64_t> begin_of_;  // by parameter: byte in sums_ of its element 0, may be negative
  std::vector<DType> dtype_of_;
};

}  // namespace tutti::detail
