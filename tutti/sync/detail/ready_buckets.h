/// ReadyBuckets: when buckets of gradients go, while a backward pass makes them. Not for users.
///
/// A bucket goes once all of its gradients are there, and after those before it: in order of number
/// on every rank, whatever the order in which gradients become ready. The first step has the
/// reverse order of the parameters; from then on that in which rank 0 has seen them become ready,
/// where replicas agree on it. Li et al. 2020, arXiv:2006.15704.
///
/// Knows neither memory nor engines: who uses it puts gradients in their places, and sends. Thread
/// rule: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "tutti/comm/group/group.h"
#include "tutti/sync/detail/bucket_sums.h"
#include "tutti/sync/slots.h"

namespace tutti::detail {

/// Throws the UsageError of a parameter that has a gradient, but was read while it was on its way
/// (BeforeUse) other than by an operator: so it is one of old values.
[[noreturn]] void throw_unread(const ParameterSlot& slot);

/// Throws the UsageError of a parameter whose gradient of a step came twice; `why` follows.
[[noreturn]] void throw_second_gradient(
    const ParameterSlot& slot,
    std::string_view why =
        ": backward() ran twice before the update; add the losses, and call it "
        "and minimize() or step() once");

class ReadyBuckets {
 public:
  using Send = std::function<void(int bucket)>;

  /// `send` is called from put(). The layout must outlive it.
  ReadyBuckets(const Slots& layout, Send send) : layout_(layout), send_(std::move(send)) {}

  /// Buckets are these from the next step on.
  void cut(std::span<const Bucket> buckets);
  void begin_step();

  int bucket_of(int parameter) const { return bucket_of_[static_cast<size_t>(parameter)]; }
  /// Whether the gradient is there, in this step; any: of some parameter.
  bool has(int parameter) const { return there_[static_cast<size_t>(parameter)] != 0; }
  bool has_any() const;

  /// Throws UsageError naming the parameter when its gradient is there: before it is written over.
  void require_new(int parameter) const;
  /// The gradient is in its place, or is left out: sends what is full. Throws as require_new().
  /// Nothing for a frozen parameter.
  void put(int parameter);

  int num_sent() const noexcept { return sent_; }
  bool all_sent() const noexcept { return sent_ == static_cast<int>(missing_.size()); }

  bool agreed() const noexcept { return agreed_; }
  /// Collective, once, after the first step and before the next begins: the order by which to cut
  /// from then on.
  std::vector<int> agree_on_order(Group group, Millis limit);

 private:
  const Slots& layout_;
  Send send_;
  std::vector<int> bucket_of_;  // by parameter; -1: frozen
  std::vector<int> sizes_;      // by bucket: gradients
  std::vector<int> missing_;    // of these, in this step
  std::vector<uint8_t> there_;  // by parameter, in this step
  std::vector<int32_t> seen_;   // the order of this step, until they have agreed
  int sent_ = 0;                // buckets, in this step
  bool agreed_ = false;
};

}  // namespace tutti::detail
