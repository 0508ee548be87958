// The fused step while backward goes on: a stretch is updated, or over several hosts added for this
// one and sent, as soon as all replicas of the host have its gradient, which then lies in cache
// still. The same operations on the same numbers as at the end.

#include <algorithm>
#include <thread>

#include "tutti/sync/shared/detail/shared_updater.h"

namespace tutti::detail {

GradientListener* SharedUpdater::listener(int replica) {
  Lane& lane = lanes_.at(replica);
  // Of a step that ends before all have had their turn nothing is to stay.
  if (world_.on_thread_of(replica).size() > 1) return nullptr;
  // Norms are of all gradients, and over hosts sums are on their way until all have agreed: then
  // gradients are copied as they come, where they are, and the update is made at the end.
  if (plan_.needs_sums() || plan_.measures() || lane.sums) return lane.hooks.listener();
  // What would be an error, or what hooks of the user are to see whole, is found at the end.
  for (size_t i = 0; i < lane.parameters.size(); ++i) {
    const at::Tensor& parameter = lane.parameters[i];
    if (parameter.requires_grad() != layout_.slots[i].trained || has_hooks(parameter))
      return nullptr;
  }
  return &lane.early;
}

bool SharedUpdater::take_early(int replica, const at::Tensor& parameter,
                               const at::Tensor& gradient) {
  Lane& lane = lanes_[replica];
  const auto found = lane.places.find(parameter.unsafeGetTensorImpl());
  // What autograd would add to, or give no gradient, is autograd's.
  if (found == lane.places.end() || !parameter.requires_grad() || parameter.grad().defined())
    return false;
  const int place = found->second;
  Gradients& mine = gradients_[lane.rank];
  publish(replica, place, gradient);
  mine.used[place] = 1;
  mine.ready[place].store(lane.step + 1, std::memory_order_release);
  lane.taken[place] = 1;
  return true;
}

// What came last first: it is in cache. Whoever leaves the step out has no gradient ready, so that
// nobody else updates anything before all know of it.
void SharedUpdater::update_what_is_ready(Lane& lane) {
  for (size_t i = 0; i < lane.stretches.size(); ++i) {
    const Stretch& stretch = lane.stretches[i];
    if (lane.updated[i] != 0 || lane.taken[stretch.parameter] == 0) continue;
    if (!is_ready(stretch.parameter, lane.step + 1)) continue;
    const optim::Rule& rule = plan_.rule(stretch.parameter);
    const double rate = plan_.rate(stretch.parameter, header_->learning_rate.load());
    header_->begun.store(ended() + 1, std::memory_order_release);
    apply_stretch(lane, stretch, rule.next(lane.scalars[stretch.parameter], rate));
    lane.updated[i] = 1;
  }
}

// Of several hosts: a gradient has been copied to where the others of this one find it.
void SharedUpdater::tell(int replica, int parameter) {
  Lane& lane = lanes_[replica];
  Gradients& mine = gradients_[lane.rank];
  mine.used[parameter] = 1;
  mine.ready[parameter].store(lane.step + 1, std::memory_order_release);
  add_what_is_ready(lane);
}

void SharedUpdater::add_what_is_ready(Lane& lane) {
  for (auto stretch = lane.stretches.rbegin(); stretch != lane.stretches.rend(); ++stretch) {
    const int parameter = stretch->parameter;
    if (lane.summed[parameter] == 0 && lane.copied[parameter] != 0 &&
        is_ready(parameter, lane.step + 1))
      add_for_host(lane, parameter);
  }
}

// While others are still on their way, of whom one may need this core. Not for ever: the barrier
// says who has not come.
void SharedUpdater::update_while_waiting(Lane& lane) {
  constexpr Millis kPatience{2};
  const Deadline deadline(kPatience);
  const auto all_pushed = [&] {
    return std::ranges::all_of(gradients_, [&](const Gradients& gradients) {
      return gradients.ready[layout_.slots.size()].load(std::memory_order_acquire) == lane.step + 1;
    });
  };
  const auto left = [&] {
    for (size_t i = 0; i < lane.stretches.size(); ++i) {
      const int parameter = lane.stretches[i].parameter;
      if (lane.tells ? lane.copied[parameter] != 0 && lane.summed[parameter] == 0
                     : lane.taken[parameter] != 0 && lane.updated[i] == 0)
        return !all_pushed();  // whoever has pushed marks nothing more
    }
    return false;
  };
  const auto go_on = [&] { lane.tells ? add_what_is_ready(lane) : update_what_is_ready(lane); };
  for (go_on(); left() && !deadline.passed(); go_on()) std::this_thread::yield();
}

bool SharedUpdater::is_ready(int parameter, int64_t step) const {
  for (const Gradients& gradients : gradients_)
    if (gradients.ready[parameter].load(std::memory_order_acquire) != step) return false;
  return true;
}

}  // namespace tutti::detail
