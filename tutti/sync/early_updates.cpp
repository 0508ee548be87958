// The fused step while backward goes on: a stretch is updated as soon as all replicas have its
// gradient, which then lies in cache still. The same operations on the same numbers as at the end.

#include <thread>

#include "tutti/sync/detail/shared_updater.h"

namespace tutti::detail {
namespace {

// Hooks of the user see and change gradients on their way through autograd.
bool has_hooks(const at::Tensor& parameter) {
  return !torch::autograd::impl::hooks(parameter).empty() ||
         torch::autograd::impl::post_acc_grad_hooks(parameter) != nullptr;
}

}  // namespace

GradientListener* SharedUpdater::listener(int replica) {
  Lane& lane = lanes_.at(replica);
  // Norms are of all gradients, and hosts exchange the sums of whole slices.
  const bool one_pass = !plan_.needs_sums() && !plan_.measures() && !lane.sums;
  return one_pass && !world_.in_turn() ? &lane.early : nullptr;
}

bool SharedUpdater::take_early(int replica, const at::Tensor& parameter,
                               const at::Tensor& gradient) {
  Lane& lane = lanes_[replica];
  const auto found = lane.places.find(parameter.unsafeGetTensorImpl());
  if (found == lane.places.end() || has_hooks(parameter)) return false;
  const int place = found->second;
  Gradients& mine = gradients_[lane.rank];
  if (world_.one_process()) {
    check_gradient(layout_.slots[place], gradient);
    lane.keep[place] = gradient.contiguous();
    mine.pointers[place] = lane.keep[place].data_ptr();
  } else {
    copy_gradient(replica, place, gradient);
  }
  mine.used[place] = 1;
  mine.ready[place].store(lane.step, std::memory_order_release);
  lane.taken[place] = 1;
  return true;
}

// Backward goes from the last parameter to the first. Whoever leaves the step out has no gradient
// ready, so that nobody else updates anything before all know of it.
void SharedUpdater::update_what_is_ready(Lane& lane) {
  for (size_t i = lane.stretches.size(); i-- > 0;) {
    const Stretch& stretch = lane.stretches[i];
    if (lane.updated[i] != 0 || lane.taken[stretch.parameter] == 0) continue;
    if (!is_ready(stretch.parameter, lane.step)) continue;
    const optim::Rule& rule = plan_.rule(stretch.parameter);
    const double rate = plan_.rate(stretch.parameter, header_->learning_rate.load());
    header_->begun.store(version() + 1, std::memory_order_release);
    apply_stretch(lane, stretch, rule.next(lane.scalars[stretch.parameter], rate));
    lane.updated[i] = 1;
  }
}

// While others are still on their way, of whom one may need this core. Not for ever: the barrier
// says who has not come.
void SharedUpdater::update_while_waiting(Lane& lane) {
  constexpr Millis kPatience{2};
  const Deadline deadline(kPatience);
  const auto left = [&] {
    for (size_t i = 0; i < lane.stretches.size(); ++i)
      if (lane.taken[lane.stretches[i].parameter] != 0 && lane.updated[i] == 0) return true;
    return false;
  };
  for (update_what_is_ready(lane); left() && !deadline.passed(); update_what_is_ready(lane))
    std::this_thread::yield();
}

bool SharedUpdater::is_ready(int parameter, int64_t step) const {
  for (const Gradients& gradients : gradients_)
    if (gradients.ready[parameter].load(std::memory_order_acquire) != step) return false;
  return true;
}

}  // namespace tutti::detail
