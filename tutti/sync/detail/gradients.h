/// What both Updaters need of autograd: checks of gradients, and hooks that see them become ready.
#pragma once

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/sync/detail/gradient_listener.h"
#include "tutti/sync/updater.h"

namespace tutti::detail {

/// The slots of one replica's parameters, in order. UsageError naming the parameter when one is not
/// dense or has a dtype that spans do not know.
std::vector<ParameterSlot> slots_of(const NamedTensors& parameters);

/// Throws UsageError naming the parameter when its gradient is sparse, part of a graph (double
/// backward), or of another dtype, shape or device than the parameter.
void check_gradient(const ParameterSlot& slot, const at::Tensor& gradient,
                    at::Device device = at::Device(at::kCPU));

/// Replicas have computed in a step, and no parameter has a gradient on any.
struct NothingTrained : UsageError {
  using UsageError::UsageError;
};

/// Throws NothingTrained, which names the first parameter, where replicas of these parts have no
/// gradient.
void require_any_gradient(const Slots& layout, PartInStep largest, bool any_gradient);

/// What a vote tells the others: a number each, of which the largest of all replicas counts.
using VoteWords = std::array<uint8_t, 4>;
constexpr int64_t kVoteWords = std::tuple_size_v<VoteWords>;
VoteWords vote_words(const Vote& vote);
Verdict verdict_of(const VoteWords& largest);

/// By `told`, the largest of all replicas: whether each parameter has a gradient, by slot, and
/// behind these the words of votes. Where losses overflowed no gradient counts. Throws
/// NothingTrained.
template <class Told>
Verdict verdict_of(const Slots& layout, Told& told) {
  const auto end = told.begin() + std::ssize(layout.slots);
  VoteWords words;
  std::copy_n(end, kVoteWords, words.begin());
  const Verdict verdict = verdict_of(words);
  if (verdict.overflowed) std::fill(told.begin(), end, 0);
  if (!verdict.overflowed)
    require_any_gradient(layout, PartInStep{words[0]},
                         std::any_of(told.begin(), end, [](auto one) { return one; }));
  return verdict;
}

/// The first leaf that a backward pass from `loss` comes to; undefined: one of `parameters`, or
/// none. Its gradient is not looked at: other replicas' passes may write to it.
at::Tensor other_leaf_of(const at::Tensor& loss, const std::vector<at::Tensor>& parameters);

/// Throws the UsageError of a replica, by rank, whose gradients of a step came twice.
[[noreturn]] void throw_took_part_twice(int rank);

/// Throws UsageError naming the first parameter that already has a gradient.
void require_cleared(const Slots& layout, const std::vector<at::Tensor>& parameters);

/// Whether a user's hooks see gradients of this parameter, and may change them, on their way
/// through autograd.
bool has_hooks(const at::Tensor& parameter);

/// Calls `ready(index)` on the autograd thread each time the gradient of parameters[index] has been
/// accumulated, for as long as this object lives. Hooks that a user installed stay.
class ReadyHooks {
 public:
  ReadyHooks() = default;
  /// `sends`: GradientListener::sends().
  ReadyHooks(const std::vector<at::Tensor>& parameters, std::function<void(int)> ready,
             bool sends = false);

  /// Takes gradients in the middle of a backward pass: they become the parameter's, and are ready.
  /// Null for hooks on nothing.
  GradientListener* listener() const noexcept { return listener_.get(); }

 private:
  std::shared_ptr<std::function<void(int)>> ready_;
  std::shared_ptr<GradientListener> listener_;
  std::vector<std::shared_ptr<void>> nodes_;  // autograd itself holds them only weakly
};

/// Writes made outside autograd bypass the version counters that tell a stale graph; this tells it.
void bump_versions(const std::vector<at::Tensor>& parameters);

/// A tensor over memory that `owner` keeps alive.
at::Tensor view_memory(void* data, const ParameterSlot& slot, std::shared_ptr<const void> owner);

}  // namespace tutti::detail
