/// HostSums: what the fused step sends between hosts, for one replica.
///
/// Every host adds up the gradients of its replicas; the owners of the same slice, one a host, then
/// add these sums to the whole one (the design's *between hosts the owners of the same slice reduce
/// among themselves first*). The order is that of ReductionShape::hosts.
///
/// They go in pieces, on every host in the same order: from the last parameters to the first, and
/// after some steps in that in which host 0 has seen them become whole. Where a step allows it, and
/// an engine (Engine::can_be_lent), a piece goes as soon as it is whole and those before it have
/// gone, while backward makes the rest; what has not gone does in finish(). On the wire both are
/// the same. Thread rule: the replica's own thread.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "tutti/base/array.h"
#include "tutti/comm/group/host_view.h"
#include "tutti/sync/shared/detail/sum_mover.h"
#include "tutti/sync/slots.h"

namespace tutti::detail {

class HostSums {
 public:
  /// What a piece has of one parameter.
  struct Part {
    Stretch stretch;
    int piece = 0;
  };

  /// `slices`: Slots::cut() into view.num_slices parts.
  HostSums(HostView view, const Slots& layout, const std::vector<std::vector<Stretch>>& slices);

  /// Where the sum of elements [stretch.begin, ...) of a stretch of this replica belongs: this
  /// host's before finish(), all hosts' after it.
  std::byte* sum_of(const Stretch& stretch) const;

  /// Of a parameter: what this replica adds, in order.
  std::span<const Part> parts_of(int parameter) const {
    return parts_[static_cast<size_t>(parameter)];
  }

  /// `early`: what is whole may go, until nobody computes beside it any more (end_early()).
  void begin_step(bool early);
  void end_early() noexcept { early_ = false; }
  /// The sum of this host of a part is in its place; nobody touches it until finish() has returned.
  void put(const Part& part);

  int64_t num_sent() const;  ///< pieces that have gone in this step

  /// Collective over hosts: every part was put; adds what has not been added. `used` (one byte a
  /// parameter) becomes the maximum over hosts, `learning_rate` that of host 0.
  void finish(std::span<uint8_t> used, double& learning_rate, Millis limit);
  /// Collective over hosts: adds numbers of which one host has each, and the others have 0.
  void add(std::span<double> values, Millis limit);

 private:
  struct Piece {
    DType dtype = DType::float32;
    int64_t begin = 0;  // bytes in sums_
    int64_t num_elements = 0;
    int rail = 0;
    int num_parts = 0;
    int missing = 0;  // parts that were not put in this step
  };
  struct Rail {
    std::vector<int> order;  // of its pieces
    std::vector<int> seen;   // those that are whole, in this step
    size_t sent = 0;
    std::vector<uint8_t> words;       // used bytes, a learning rate, whether host 0 gives an order
    std::unique_ptr<SumMover> mover;  // null: they go in finish()
  };

  void cut(const Slots& layout, int rail, const std::vector<Stretch>& slice);
  void say(std::span<const uint8_t> used, double learning_rate, Rail& rail) const;
  void agree_on_order(size_t rail, Millis limit);
  MemorySpan span_of(int number) const;

  HostView view_;
  Array sums_;
  int64_t end_ = 0;  // bytes of sums_
  std::vector<Piece> pieces_;
  std::vector<Rail> rails_;
  std::vector<std::vector<Part>> parts_;  // by parameter
  std::vector<int64_t> begin_of_;  // by parameter: byte in sums_ of its element 0, may be negative
  std::vector<DType> dtype_of_;
  bool early_ = false;
  bool was_early_ = false;  // this step
  int64_t early_steps_ = 0;
  bool ordered_ = false;  // of host 0: it has said so
};

}  // namespace tutti::detail
