// The fused step on devices. Each replica adds its slice of all replicas' gradients on its own
// device, updates parameter and optimizer state of that slice once, and the others copy it.
//
// A step of replica r, all of it queued: gradients to one flat tensor, mark `ready` | hosts meet |
// after all `ready`: add up slice r in the reduction shape, by peer copies; update; mark `updated`
// | hosts meet | after all `updated`: copy the other slices. Hosts meet only so that marks have
// been recorded; no host waits for a device. Nothing else needs a wait: a replica overwrites its
// gradients after it has waited for all updates, and so after all have read them; an owner
// overwrites its slice after all gradients of the next step, and so after all have copied it. Where
// all replicas share one device, they share the values too, and nothing is copied.
//
// Where replicas are in several processes, each process does that for itself, and between adding
// and updating the owners of equal slices add up theirs (device_world.cpp): the hosts of all
// processes then meet in the first of the two meetings.
//
// n replicas, S bytes of parameters: each device receives 2 (n - 1) S / n bytes a step and keeps
// 1/n of the states: ZeRO's stage 1 (Rajbhandari et al. 2020, arXiv:1910.02054).
// docs/design/devices.md.
#include "tutti/sync/on_devices/detail/device_updater.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "tutti/base/detail/check.h"
#include "tutti/queues/host_copies.h"
#include "tutti/sync/tensors.h"

namespace tutti::detail {
namespace {

// What was left out must not change the others' sum: x + -0.0 is x for every x, 0.0 + x is not.
constexpr double kNothing = -0.0;

}  // namespace

void DeviceUpdater::require_whole() const {
  if (begun_.load() != ended_.load() || cut_off_.load())
    throw Error(
        fmt::format("the parameters are torn: update {} was cut off by a failed replica and left "
                    "old and new values mixed; go on from the last checkpoint",
                    begun_.load()));
}

GradientListener* DeviceUpdater::begin(int replica, Overlap overlap) {
  require_whole();
  Lane& lane = lanes_.at(static_cast<size_t>(replica));
  if (!lane.has_run) lane.has_run = lane.updated.passed();
  require_cleared(layout_, lane.parameters);
  if (captures_) return nullptr;
  if (replica == 0) step_rate_ = next_learning_rate_.load();
  listens_ = buckets_ && overlap == Overlap::on;
  if (lane.scale) lane.scale->look(Deadline(patience_with_device(world_.time_limit)));
  return nullptr;
}

// ---- steps that are captured ----

void DeviceUpdater::begin_captures() {
  captures_ = true;
  make_rates();
}

void DeviceUpdater::before_step(int replica) {
  const at::NoGradGuard no_grad;
  require_whole();
  step_rate_ = next_learning_rate_.load();
  Owned& owned = owned_[static_cast<size_t>(replica)];
  for (size_t group = 0; group < owned.rates.size(); ++group) {
    if (owned.places[group].empty()) continue;
    const double rate = plan_.rate(first_of(owned, group), step_rate_);
    if (rate != std::exchange(owned.rates_there[group], rate)) owned.rates[group].fill_(rate);
  }
  const Lane& lane = lanes_[static_cast<size_t>(replica)];
  if (lane.scale) lane.scale->look(Deadline(patience_with_device(world_.time_limit)));
}

void DeviceUpdater::captured(int replica) {
  Lane& lane = lanes_[static_cast<size_t>(replica)];
  lane.captured = lane.used;
}

void DeviceUpdater::replayed(int replica) {
  Lane& lane = lanes_[static_cast<size_t>(replica)];
  lane.used = lane.captured;
  agree(lane);
  bump_versions(lane.parameters);
  begun_ = ended_ = ended() + 1;
}

void DeviceUpdater::leave_out_if(Lane& lane, const at::Tensor& bad) {
  const at::NoGradGuard no_grad;
  at::Tensor flag = lane.flags[0];
  at::maximum_out(flag, flag, bad.detach().reshape({}).to(at::kFloat));
  lane.used.back() = 1;
}

void DeviceUpdater::take_gradient(Lane& lane, size_t parameter, const at::Tensor& gradient) {
  const at::Device where = lane.values.device();
  check_gradient(layout_.slots[parameter], gradient, where);
  lane.keep[parameter] = alone() ? gradient.contiguous(formats_[parameter]) : gradient.detach();
  lane.blank[parameter] = 0;
}

void DeviceUpdater::leave_blank(Lane& lane, size_t parameter) {
  if (alone() || lane.blank[parameter] != 0 || !layout_.slots[parameter].trained) return;
  lane.views[parameter].fill_(kNothing);
  lane.blank[parameter] = 1;
}

void DeviceUpdater::take_all(int replica, std::span<const at::Tensor> gradients, const Vote& vote) {
  const at::NoGradGuard no_grad;
  Lane& lane = lanes_.at(static_cast<size_t>(replica));
  if (lane.pushed) throw_took_part_twice(world_.first_rank + replica);
  const size_t count = layout_.slots.size();
  std::ranges::copy(vote_words(vote), lane.used.begin() + static_cast<int64_t>(count));
  std::vector<at::Tensor> to, from;
  for (size_t i = 0; i < count; ++i) {
    if (buckets_ && buckets_->has(static_cast<int>(i))) continue;
    const bool used = vote.part == kComputes && i < gradients.size() && gradients[i].defined();
    lane.used[i] = used;
    if (!used) {
      leave_blank(lane, i);
      continue;
    }
    take_gradient(lane, i, gradients[i]);
    if (alone()) continue;
    to.push_back(lane.views[i]);
    from.push_back(lane.keep[i]);
  }
  if (!to.empty()) at::_foreach_copy_(to, from, /*non_blocking=*/true);
  if (buckets_) put_the_rest();
  queue(replica).mark(lane.ready);
  lane.pushed = true;
  if (across())
    tell(replica);
  else
    meet(replica);
}

// Of those on the thread of this one, which share its queue.
Verdict DeviceUpdater::update_all(int replica) {
  const at::NoGradGuard no_grad;
  const auto turn = world_.on_thread_of(replica);
  const int64_t next = ended() + 1;
  Verdict verdict;  // all come to the same one
  for (const int each : turn) verdict = agree(lanes_[static_cast<size_t>(each)]);
  if (buckets_) buckets_->join(queue(replica));
  if (!verdict.left_out) {
    begun_.store(next, std::memory_order_release);
    update_owned(replica);
  }
  meet(replica);
  if (!verdict.left_out) {
    after_others(replica, &Lane::updated, "updates of the other replicas");
    for (const int each : turn) take_others(each);
    ended_.store(next, std::memory_order_release);
  }
  for (const int each : turn) finish_lane(lanes_[static_cast<size_t>(each)]);
  if (buckets_) buckets_->end_step(world_.groups[0]);
  return verdict;
}

// Each phase of all that take turns: their slices may be of one memory, and norms are of all.
void DeviceUpdater::update_owned(int replica) {
  const auto turn = world_.on_thread_of(replica);
  after_others(replica, &Lane::ready, "gradients of the other replicas");
  for (const int owner : turn) {
    lanes_[static_cast<size_t>(owner)].has_run = !across();
    add_up(owner);
  }
  if (plan_.clips_norms()) {
    for (const int owner : turn) measure(owner);
    queue(replica).mark(lanes_[static_cast<size_t>(replica)].measured);
    meet(replica);
    after_others(replica, &Lane::measured, "norms of gradients");
    for (const int owner : turn) scale(owner);
  }
  for (const int owner : turn) update(owner, lanes_[static_cast<size_t>(owner)]);
  queue(replica).mark(lanes_[static_cast<size_t>(replica)].updated);
}

// Those of other threads: what this one has queued comes in order.
void DeviceUpdater::after_others(int replica, DeviceMark Lane::* mark, const char* wait) const {
  const auto turn = world_.on_thread_of(replica);
  for (int other = 0; other < world_.local; ++other)
    if (other < turn.front() || other > turn.back())
      queue(replica).after(lanes_[static_cast<size_t>(other)].*mark, wait);
}

void DeviceUpdater::ready(int replica, const Deadline&) {
  const auto turn = world_.on_thread_of(replica);
  if (replica != turn.front()) return;
  for (const int each : turn) lanes_[static_cast<size_t>(each)].pushed = false;
}

void DeviceUpdater::finish_lane(Lane& lane) {
  bump_versions(lane.parameters);
  for (at::Tensor& gradient : lane.keep) gradient.reset();
  // Sums lie there now.
  if (across() && adds_in_place()) std::ranges::fill(lane.blank, 0);
  lane.pushed = false;
}

// That marks of the replicas of this process have been recorded.
void DeviceUpdater::meet(int replica) {
  if (world_.threads() > 1) world_.groups[static_cast<size_t>(replica)].barrier(world_.time_limit);
}

// All come to the same answer, from what all have published.
Verdict DeviceUpdater::agree(Lane& lane) {
  const uint8_t guarded = lane.any.back();  // from the first flag on
  for (size_t i = 0; i < lane.any.size(); ++i) {
    lane.any[i] = across() ? lane.told[i] : 0;
    for (const Lane& other : lanes_) lane.any[i] = std::max(lane.any[i], other.used[i]);
  }
  lane.any.back() |= guarded;
  if (!across()) lane.rate = step_rate_;
  const Verdict verdict = verdict_of(layout_, lane.any);
  if (!verdict.left_out) plan_.advance(lane.scalars, lane.any, lane.rate);
  return verdict;
}

void DeviceUpdater::add_up(int owner) {
  if (alone()) return;
  const auto& runs = owned_[static_cast<size_t>(owner)].runs;
  if (!adds_in_place() && !exact())
    for (const Run& run : runs) add_up(owner, run);
  if (across()) add_over_processes(owner);
  const double most = recipe_.clip().value;
  if (plan_.clips_values())
    for (const Run& run : runs) sum_of(owner, run).clamp_(-most, most);
}

// The tree of the reduction shape (of as many replicas on one host, where NCCL adds the rest); what
// comes from another device is copied first, partial sums lie in the owner's scratch, the result in
// that of replica 0.
void DeviceUpdater::add_up(int owner, const Run& run) {
  const Owned& owned = owned_[static_cast<size_t>(owner)];
  const auto scratch = [&](int replica) {
    return elements_of(owned.scratch[replica], run, owned.begin);
  };
  std::vector<at::Tensor> partial;
  std::vector<bool> own;
  for (int replica = 0; replica < world_.local; ++replica) {
    const at::Tensor there = elements_of(lanes_[static_cast<size_t>(replica)].gradients, run);
    const bool elsewhere = there.device() != device(owner);
    partial.push_back(elsewhere ? scratch(replica).copy_(there, /*non_blocking=*/true) : there);
    own.push_back(elsewhere);
  }
  const ReductionShape shape = across() ? ReductionShape::flat(world_.local) : world_.shape;
  for (const auto& [into, from] : shape.steps()) {
    at::Tensor& sum = partial[static_cast<size_t>(into)];
    const at::Tensor& other = partial[static_cast<size_t>(from)];
    if (own[static_cast<size_t>(into)]) {
      sum.add_(other);
      continue;
    }
    at::Tensor result = scratch(into);
    at::add_out(result, sum, other);
    sum = std::move(result);
    own[static_cast<size_t>(into)] = true;
  }
}

void DeviceUpdater::measure(int owner) {
  Owned& owned = owned_[static_cast<size_t>(owner)];
  if (owned.sums.empty()) return;
  const auto norms = at::_foreach_norm(owned.sums, 2, at::kDouble);
  at::stack_out(owned.squares, norms);
  owned.squares.square_();
}

// As StepPlan::scales(), on the device.
void DeviceUpdater::scale(int owner) {
  Owned& owned = owned_[static_cast<size_t>(owner)];
  int64_t at = 0;
  for (const Owned& other : owned_) {
    const int64_t count = other.squares.numel();
    owned.all_squares.narrow(0, at, count).copy_(other.squares, /*non_blocking=*/true);
    at += count;
  }
  const optim::Clip& clip = recipe_.clip();
  const double most = clip.norm > 0 ? clip.norm : clip.global_norm;
  const auto factor_of = [&](const at::Tensor& squares) {
    const at::Tensor norm = squares.sqrt();
    return at::where(norm > most, at::reciprocal(norm) * most, at::ones_like(norm));
  };
  if (clip.global_norm > 0) {
    const at::Tensor factor = factor_of(owned.all_squares.sum());
    if (!owned.sums.empty()) at::_foreach_mul_(owned.sums, factor);
    return;
  }
  const auto parameters = std::ssize(layout_.slots);
  const at::Tensor factors =
      factor_of(owned.all_squares.index_select(0, owned.squares_of).view({-1, parameters}).sum(0));
  for (size_t i = 0; i < owned.sums.size(); ++i)
    owned.sums[i].mul_(factors[owned.stretches[i].parameter]);
}

// Whether the step is left out, where that may be: a scalar on the device.
std::optional<at::Tensor> DeviceUpdater::gather_flags(int owner, const Lane& lane) {
  if (lane.any.back() == 0 && !lane.scale) return std::nullopt;
  Owned& owned = owned_[static_cast<size_t>(owner)];
  if (world_.size > 1) {
    for (int replica = 0; replica < world_.local; ++replica)
      owned.flags[replica].copy_(lanes_[static_cast<size_t>(replica)].flags, /*non_blocking=*/true);
    at::amax_out(owned.left_out, owned.flags, 0);
    if (across()) flag_over_processes(owner);
  }
  at::Tensor for_good = owned.left_out[0];
  owned.missed.add_(for_good);
  if (!lane.scale) return for_good;
  lane.scale->update(owned.left_out[1], for_good);
  return owned.left_out.amax();
}

void DeviceUpdater::update(int owner, const Lane& lane) {
  const auto left_out = gather_flags(owner, lane);
  Owned& owned = owned_[static_cast<size_t>(owner)];
  for (size_t group = 0; group < owned.parts.size(); ++group) {
    DeviceSlices& all = owned.parts[group];
    if (all.values.empty()) continue;
    DeviceSlices used;
    const auto& places = owned.places[group];
    for (size_t i = 0; i < places.size(); ++i) {
      const auto parameter =
          static_cast<size_t>(owned.stretches[static_cast<size_t>(places[i])].parameter);
      if (lane.any[parameter] == 0) continue;
      used.values.push_back(all.values[i]);
      used.sums.push_back(alone() ? flat(lanes_[0].keep[parameter], parameter) : all.sums[i]);
      used.steps.push_back(all.steps[i]);
      for (size_t k = 0; k < used.states.size(); ++k)
        if (!all.states[k].empty()) used.states[k].push_back(all.states[k][i]);
    }
    const int first = first_of(owned, group);
    if (captures_)
      update_on_device(plan_.rule(first), used, owned.rates[group], left_out);
    else
      update_on_device(plan_.rule(first), used, plan_.rate(first, lane.rate), left_out);
  }
}

void DeviceUpdater::take_others(int replica) {
  if (shares_values_) return;
  for (int other = 0; other < world_.local; ++other) {
    if (other == replica) continue;
    for (const Run& run : owned_[static_cast<size_t>(other)].runs)
      values_of(replica)
          .narrow(0, run.begin, run.end - run.begin)
          .copy_(values_of(other).narrow(0, run.begin, run.end - run.begin), /*non_blocking=*/true);
  }
}

void DeviceUpdater::scale_losses(const optim::LossScale& scale) {
  const at::NoGradGuard no_grad;
  drain("the step before losses are scaled");
  for (int replica = 0; replica < world_.local; ++replica) {
    Lane& lane = lanes_[static_cast<size_t>(replica)];
    lane.scale = std::make_unique<DeviceLossScale>(scale, queue(replica), lane.flags[1]);
  }
}

int64_t DeviceUpdater::forget_left_out() {
  const at::NoGradGuard no_grad;
  drain("the updates of which some may have been left out");
  const auto missed =
      std::llround(on_host(owned_[0].missed, Deadline(patience_with_device(world_.time_limit)),
                           "updates that were left out")
                       .item<double>());
  if (missed == 0) return 0;
  begun_ = ended_ = ended_.load() - missed;
  for (Lane& lane : lanes_) lane.flags.zero_();
  for (Owned& owned : owned_) owned.missed.zero_();
  const auto scalars = scalars_of_steps();
  for (Lane& lane : lanes_) lane.scalars = scalars;
  return missed;
}

}  // namespace tutti::detail
