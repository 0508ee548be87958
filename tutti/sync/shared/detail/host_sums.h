/// HostSums: what the fused step sends between hosts, for one replica.
///
/// Every host adds up the gradients of its replicas; the owners of the same slice, one a host, then
/// add these sums to the whole one (the design's *between hosts the owners of the same slice reduce
/// among themselves first*). The order is that of ReductionShape::hosts.
///
/// They go in pieces, on every host in the same order: from the last parameters to the first, and
/// after some steps in the one that host 0 makes of when it has seen them become whole (plan()).
/// Where a step allows it a piece goes as soon as it is whole and those before it have gone, while
/// backward makes the rest: moved by a thread where the engine can be lent (Engine::can_be_lent),
/// by this one between gradients elsewhere. What has not gone does in finish(). On the wire both
/// are the same.
///
/// Some may be left behind finish(), which agrees on what the step is: they go while the next
/// forward pass begins (P3, Jayarajan et al. 2019, arXiv:1905.03960), or at once (add_rest()).
/// Whether they are stays as is faster: some steps are made in each way. Where the cores that
/// compute carry the bytes, too, there is nothing to hide.
/// Thread rule: the replica's own thread; rethrow_failure() from any.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tutti/base/array.h"
#include "tutti/comm/group/host_view.h"
#include "tutti/sync/detail/sum_mover.h"
#include "tutti/sync/slots.h"

namespace tutti::detail {

class HostSums {
 public:
  /// What a piece has of one parameter.
  struct Part {
    Stretch stretch;
    int piece = 0;
  };

  /// The same on all hosts.
  struct Options {
    bool late = false;        ///< pieces may be left behind finish()
    int64_t piece_bytes = 0;  ///< 0: tutti::piece_bytes()
  };

  /// `slices`: Slots::cut() into view.num_slices parts.
  HostSums(HostView view, const Slots& layout, const std::vector<std::vector<Stretch>>& slices,
           const Options& options);

  ~HostSums() { stop(); }
  HostSums(const HostSums&) = delete;
  /// Ends its threads, and the group for all where they would wait for what has been put.
  void stop() noexcept {
    for (size_t i = 0; i < rails_.size(); ++i) {
      rails_[i].mover.reset();
      if (!rails_[i].under_way.empty())
        view_.rails[i].abort("its replica was given up in the middle of a step");
    }
  }

  /// Where the sum of elements [stretch.begin, ...) of a stretch of this replica belongs: this
  /// host's before finish(), all hosts' after it, or where it is of the rest once that is added.
  std::byte* sum_of(const Stretch& stretch) const;

  /// Of a parameter: what this replica adds, in order.
  std::span<const Part> parts_of(int parameter) const {
    return parts_[static_cast<size_t>(parameter)];
  }

  /// `early`: what is whole may go, until nobody computes beside it any more (end_early()).
  void begin_step(bool early);
  void end_early();
  /// The sum of this host of a part is in its place; nobody touches it until it has been added.
  void put(const Part& part);

  int64_t num_sent() const;  ///< pieces that have gone in this step

  /// Collective over hosts: every part was put; adds what has not been added, but for the
  /// rest, which is left to add_rest() or add_rest_late().
  /// `used` (one byte a parameter) becomes the maximum over hosts, `learning_rate` that of host 0.
  void finish(std::span<uint8_t> used, double& learning_rate, Millis limit);
  /// After it: whether a piece is of the rest, on this host as on all; and what it is of.
  bool is_of_rest(int piece) const { return pieces_[static_cast<size_t>(piece)].rest; }
  std::span<const Stretch> stretches_of(int piece) const {
    return pieces_[static_cast<size_t>(piece)].stretches;
  }
  /// Whether the next step may have a rest: as the order is that holds from now on.
  bool next_rests() const {
    return std::ranges::any_of(rails_,
                               [](const Rail& rail) { return rail.before < rail.order.size(); });
  }
  int64_t num_rest() const;  ///< pieces
  /// Adds the rest, here or in threads that call `then` of each piece that is there; within `limit`
  /// from now. On all hosts, each in its way, or on none.
  void add_rest(Millis limit);
  void add_rest_late(const std::function<void(int piece)>& then, Millis limit);
  /// Waits for what add_rest_late() has begun.
  void drain(Millis limit);
  /// SumMover::rethrow_failure(), of all.
  void rethrow_failure() const;
  /// Collective over hosts: adds numbers of which one host has each, and the others have 0.
  void add(std::span<double> values, Millis limit);

 private:
  struct Piece {
    DType dtype = DType::float32;
    int64_t begin = 0;  // bytes in sums_
    int64_t num_elements = 0;
    int rail = 0;
    std::vector<Stretch> stretches;
    int missing = 0;    // stretches that were not put in this step
    double whole = 0;   // seconds of the step, when none was
    bool rest = false;  // it is behind finish(), in this step
  };
  struct Rail {
    std::vector<int> order;      // of its pieces
    size_t before = 0;           // so many go before the words
    std::vector<int> seen;       // those that are whole, in this step
    std::vector<int> rest;       // of this step
    std::vector<int> with_rest;  // what plan() has said
    size_t sent = 0;
    std::vector<uint8_t> words;       // used bytes, a learning rate, whether host 0 gives an order
    bool hides = false;               // they may go before finish(), in this step
    std::unique_ptr<SumMover> mover;  // null: this thread moves them
    std::deque<Work> under_way;       // by this thread
  };

  void cut(const Slots& layout, int rail, const std::vector<Stretch>& slice, int64_t most_bytes);
  void say(std::span<const uint8_t> used, double learning_rate, Rail& rail) const;
  void agree_on_order(size_t rail, Millis limit);
  std::vector<int> plan(const Rail& rail) const;
  std::vector<int> next_order(Rail& rail) const;
  void compare_times();
  double seconds() const;  // of this step
  MemorySpan span_of(int number) const;
  SumMover::Sum sum_of_piece(int number) const;

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
  const bool late_;
  size_t orders_ = 0;  // that there have been
  TimePoint began_{};
  std::vector<double> taken_;   // by early steps, from one begin_step() to the next
  double taken_with_rest_ = 0;  // the median
  bool rest_is_faster_ = false;
  double handed_in_ = 0;  // seconds of the step
};

}  // namespace tutti::detail
