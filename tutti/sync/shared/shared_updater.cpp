// The fused step. All replicas of a host share one parameter storage; the owner of a slice reads
// the slice of n gradients, adds them in the one order, and updates parameter and optimizer state
// once.
//
// Glossary: n replicas, S bytes of parameters. Stretch: elements of one parameter owned by one
// replica. A step: gradients published | barrier | each owner updates its stretches |
// barrier. Bytes with Adam: nS read for gradients + 6S for p, m, v, instead of 2nS + n 7S
// (all-reduce + step). The owner-updates-once idea is ZeRO's (Rajbhandari et al. 2020,
// arXiv:1910.02054) with the all-gather removed by sharing the storage. Over several hosts the
// owners of a stretch first add the sums of their hosts (host_sums.h). docs/design/fused_step.md.

#include "tutti/sync/shared/detail/shared_updater.h"

#include <cstring>

#include "tutti/base/detail/check.h"
#include "tutti/comm/engine/reduce_kernels.h"
#include "tutti/optim/both_gradients.h"
#include "tutti/sync/detail/ready_buckets.h"

namespace tutti {
namespace detail {

// Where the owners of its parts will find it.
void SharedUpdater::publish(int replica, int parameter, const at::Tensor& gradient) {
  Lane& lane = lanes_[replica];
  Gradients& mine = gradients_[lane.rank];
  if (mine.base != nullptr) return copy_gradient(replica, parameter, gradient);
  check_gradient(layout_.slots[parameter], gradient);
  lane.keep[parameter] = gradient.contiguous();
  mine.pointers[parameter] = lane.keep[parameter].data_ptr();
}

void SharedUpdater::copy_gradient(int replica, int parameter, const at::Tensor& gradient) {
  Lane& lane = lanes_[replica];
  const ParameterSlot& slot = layout_.slots[parameter];
  if (lane.copied[parameter]) throw_second_gradient(slot);
  if (lane.unread[parameter]) throw_unread(slot);
  check_gradient(slot, gradient);
  // Peers need what they own; this replica reads its own part where autograd left it.
  lane.keep[parameter] = gradient.contiguous();
  const auto* from = static_cast<const std::byte*>(lane.keep[parameter].data_ptr());
  std::byte* to = gradients_[lane.rank].base + slot.offset_bytes;
  const int64_t width = size_of(slot.dtype);
  const int64_t begin = lane.owned[parameter].begin * width;
  const int64_t end = lane.owned[parameter].end * width;
  std::memcpy(to, from, static_cast<size_t>(begin));
  std::memcpy(to + end, from + end, static_cast<size_t>(slot.num_elements * width - end));
  lane.copied[parameter] = 1;
}

GradientListener* SharedUpdater::begin(int replica, Overlap overlap) {
  Lane& lane = lanes_.at(replica);
  if (late_) note_unread(lane);
  complete();
  require_whole();
  require_cleared(layout_, lane.parameters);
  const auto any = [](const std::vector<uint8_t>& all) { return std::ranges::count(all, 1) > 0; };
  if (any(lane.taken) || (lane.tells && any(lane.copied)))
    throw UsageError(
        fmt::format("replica {}: a backward pass of this step failed when other replicas had some "
                    "of its gradients, so that the step cannot begin again",
                    world_.first_rank + replica));
  if (lane.sums) {
    lane.tells = overlap == Overlap::on;
    lane.sums->drain(world_.time_limit);
    lane.sums->begin_step(lane.tells);
    std::ranges::fill(lane.summed, 0);
  }
  std::ranges::fill(lane.copied, 0);
  lane.armed = true;
  lane.updates_measured = block_squares_.empty() ? 0 : updates_measured(ended());
  if (lane.rank == 0) header_->learning_rate = next_learning_rate_.load();
  return overlap == Overlap::on ? listener(replica) : nullptr;
}

Verdict SharedUpdater::step(int replica, std::span<const at::Tensor> gradients, const Vote& vote,
                            const Deadline& deadline) {
  hand_in(replica, gradients, vote);
  const bool all = std::ranges::all_of(world_.on_thread_of(replica),
                                       [&](int each) { return lanes_[each].pushed; });
  return all ? update_all(replica, deadline) : Verdict();
}

void SharedUpdater::hand_in(int replica, std::span<const at::Tensor> gradients, const Vote& vote) {
  Lane& lane = lanes_.at(replica);
  Gradients& mine = gradients_[lane.rank];
  if (lane.pushed) throw_took_part_twice(world_.first_rank + replica);
  if (replica == 0) squares_.parts.clear();
  lane.armed = false;
  std::ranges::copy(vote_words(vote), mine.used + lane.parameters.size());
  for (size_t i = 0; i < lane.parameters.size(); ++i) {
    if (lane.taken[i] != 0) {
      if (i < gradients.size() && gradients[i].defined())
        throw_second_gradient(layout_.slots[i],
                              ", beside the graph's: call set_planned(false) on the module");
      continue;
    }
    // Others may have read it. A step that is left out is so with any gradient.
    if (lane.tells && lane.copied[i] != 0) continue;
    const bool used = vote.part == kComputes && i < gradients.size() && gradients[i].defined();
    mine.used[i] = used;
    if (used && !lane.copied[i]) publish(replica, static_cast<int>(i), gradients[i]);
  }
  lane.pushed = true;
  mine.ready[lane.parameters.size()].store(lane.step + 1, std::memory_order_release);
  update_while_waiting(lane);
  meet(lane);
  lane.tells = false;
  if (lane.sums) lane.sums->end_early();
}

// The first of those that take turns updates for them.
Verdict SharedUpdater::update_all(int replica, const Deadline& deadline) {
  const auto turn = world_.on_thread_of(replica);
  Lane& lane = lanes_[turn.front()];
  lane.thread = std::this_thread::get_id();
  const int64_t next = ended() + 1;
  const Verdict verdict = agree(lane);
  const bool late = lane.host_rests && lane.updates_measured == 0 && !verdict.left_out;
  if (!verdict.left_out) {
    header_->begun.store(next, std::memory_order_release);
    late ? update_by_pieces(lane) : update(lane);
  }
  // Nobody of this process reads parameters before the barrier.
  if (late && replica == 0) expect_late(next);
  lane.view.inside.barrier(limit_here(std::min(world_.time_limit, deadline.limit())));
  if (late_) lane.host_rests = rests_here();
  if (!verdict.left_out && !late) {
    header_->ended.store(next, std::memory_order_release);
    add_squares(lane);
  }
  for (const int each : turn) finish_lane(lanes_[each]);
  if (late) watch_late(replica);
  return verdict;
}

void SharedUpdater::ready(int replica, const Deadline&) {
  const auto turn = world_.on_thread_of(replica);
  if (replica != turn.front()) return;
  for (const int each : turn) lanes_[each].pushed = false;
}

void SharedUpdater::finish_lane(Lane& lane) {
  bump_versions(lane.parameters);
  for (at::Tensor& gradient : lane.keep) gradient.reset();
  std::ranges::fill(lane.taken, 0);
  std::ranges::fill(lane.updated, 0);
  ++lane.step;
  lane.pushed = false;
}

Verdict SharedUpdater::agree(Lane& lane) {
  lane.learning_rate = header_->learning_rate.load();
  for (size_t i = 0; i < lane.used.size(); ++i) {
    lane.used[i] = 0;
    for (const Gradients& gradients : gradients_)
      lane.used[i] = std::max(lane.used[i], gradients.used[i]);
  }
  if (lane.sums) {
    for (auto stretch = lane.stretches.rbegin(); stretch != lane.stretches.rend(); ++stretch)
      if (lane.summed[stretch->parameter] == 0) add_for_host(lane, stretch->parameter);
    lane.sums->finish(lane.used, lane.learning_rate, world_.time_limit);
    gradients_[lane.rank].rests->store(lane.sums->next_rests(), std::memory_order_relaxed);
    if (lane.updates_measured > 0) lane.sums->add_rest(world_.time_limit);
    measure_sums(lane);
  }
  return verdict_of(layout_, lane.used);
}

// Every replica advances its own copy of all step counts by the same rule, from the used bytes that
// all have published, so that nobody needs another barrier for them.
void SharedUpdater::update(Lane& lane) {
  const std::span<const Stretch> stretches = lane.stretches;
  plan_.advance(lane.scalars, lane.used, lane.learning_rate);
  if (plan_.needs_sums()) make_sums(lane, stretches);
  if (plan_.measures()) measure(lane, stretches);
  for (size_t i = 0; i < stretches.size(); ++i)
    if (const int parameter = stretches[i].parameter;
        lane.used[parameter] != 0 && lane.updated[i] == 0)
      apply_stretch(lane, stretches[i], lane.scalars[parameter]);
}

// Where the sum of a stretch lies until it is used.
std::byte* SharedUpdater::sum_at(const Lane& lane, const Stretch& stretch) const {
  if (lane.sums) return lane.sums->sum_of(stretch);
  const ParameterSlot& slot = layout_.slots[stretch.parameter];
  return static_cast<std::byte*>(lane.own_sums.data()) + slot.offset_bytes - lane.own_begin +
         stretch.begin * size_of(slot.dtype);
}

// Gradients whose norms decide are summed before anything is updated. Third barrier of the step.
void SharedUpdater::make_sums(Lane& lane, std::span<const Stretch> stretches) {
  for (const Stretch& stretch : stretches) {
    if (lane.used[stretch.parameter] == 0) continue;
    std::byte* const sum = sum_at(lane, stretch);
    const DType dtype = layout_.slots[stretch.parameter].dtype;
    const int64_t count = stretch.end - stretch.begin;
    if (!lane.sums) add_gradients(lane, stretch, sum);
    if (plan_.clips_norms())
      optim::square_blocks(
          dtype, sum, count,
          gradient_squares_.subspan(plan_.block_at(stretch.parameter, stretch.begin)));
  }
  if (!plan_.clips_norms()) return;
  meet(lane);
  lane.gradient_scales = plan_.scales(gradient_squares_, lane.used);
  for (const Stretch& stretch : stretches)
    if (lane.used[stretch.parameter] != 0)
      scale_gradient(layout_.slots[stretch.parameter].dtype, sum_at(lane, stretch),
                     stretch.end - stretch.begin, lane.gradient_scales[stretch.parameter]);
}

void SharedUpdater::measure(Lane& lane, std::span<const Stretch> stretches) {
  for (const Stretch& stretch : stretches) {
    if (lane.used[stretch.parameter] == 0) continue;
    const ParameterSlot& slot = layout_.slots[stretch.parameter];
    const int64_t offset = slot.offset_bytes + stretch.begin * size_of(slot.dtype);
    std::byte* const sum = sum_at(lane, stretch);
    const int64_t count = stretch.end - stretch.begin;
    if (plan_.clips_values()) plan_.clip_values(slot.dtype, sum, count);
    const auto states = states_at(offset);
    plan_.rule(stretch.parameter)
        .measure(slot.dtype, values_ + offset, sum, used_states(states), count,
                 lane.scalars[stretch.parameter],
                 measured_.subspan(plan_.block_at(stretch.parameter, stretch.begin)));
  }
  meet(lane);
}

std::array<void*, optim::kMostStates> SharedUpdater::states_at(int64_t offset) const {
  std::array<void*, optim::kMostStates> states{};
  for (int state = 0; state < rule_.num_states(); ++state)
    states[static_cast<size_t>(state)] = state_at(state, offset);
  return states;
}

// Where element `begin` of a replica's gradient lies; null when it did not use the parameter.
const std::byte* SharedUpdater::gradient_at(const Lane& lane, int rank, int parameter,
                                            int64_t begin) const {
  const Gradients& peer = gradients_[rank];
  if (!peer.used[parameter]) return nullptr;
  const ParameterSlot& slot = layout_.slots[parameter];
  const int64_t bytes = begin * size_of(slot.dtype);
  const bool copied = peer.base != nullptr && rank != lane.rank;
  if (copied) return peer.base + slot.offset_bytes + bytes;
  const void* left =
      peer.base != nullptr ? lane.keep[parameter].data_ptr() : peer.pointers[parameter];
  return static_cast<const std::byte*>(left) + bytes;
}

// The sum over the replicas of this host; false, and nothing written, when none used the parameter.
bool SharedUpdater::add_gradients(Lane& lane, const Stretch& chunk, void* sum) {
  bool used = false;
  for (size_t rank = 0; rank < gradients_.size(); ++rank) {
    lane.inputs[rank] = gradient_at(lane, static_cast<int>(rank), chunk.parameter, chunk.begin);
    used |= lane.inputs[rank] != nullptr;
  }
  if (used)
    reduce_inputs(layout_.slots[chunk.parameter].dtype, ReduceOp::sum, shape_here_, lane.inputs,
                  sum, chunk.end - chunk.begin);
  if (lane.updates_measured > 0) measure_parts(lane, chunk, sum);
  return used;
}

void SharedUpdater::add_for_host(Lane& lane, int parameter) {
  for (const HostSums::Part& part : lane.sums->parts_of(parameter)) {
    std::byte* const sum = lane.sums->sum_of(part.stretch);
    if (!add_gradients(lane, part.stretch, sum)) {
      // What was left out must not change the others' sum: x + -0.0 is x for every x, 0.0 + x is
      // not.
      const int64_t count = part.stretch.end - part.stretch.begin;
      if (layout_.slots[parameter].dtype == DType::float32)
        std::fill_n(reinterpret_cast<float*>(sum), count, -0.0F);
      else
        std::fill_n(reinterpret_cast<double*>(sum), count, -0.0);
    }
    lane.sums->put(part);
  }
  lane.summed[parameter] = 1;
}

// The sum of a chunk as the rule is to see it.
const void* SharedUpdater::chunk_gradient(Lane& lane, const Stretch& chunk) {
  const ParameterSlot& slot = layout_.slots[chunk.parameter];
  const bool summed = lane.sums || plan_.needs_sums();
  if (!summed && gradients_.size() == 1 && !plan_.clips_values())
    return gradient_at(lane, 0, chunk.parameter, chunk.begin);
  void* const sum = summed ? sum_at(lane, chunk) : lane.scratch.data();
  if (!summed) add_gradients(lane, chunk, sum);
  // What was measured has been clipped before.
  if (plan_.clips_values() && !plan_.measures())
    plan_.clip_values(slot.dtype, sum, chunk.end - chunk.begin);
  return sum;
}

// Whether nobody but the rule sees the sum: then the gradients of two replicas are read beside
// parameter and states, once, and their sum is written nowhere.
bool SharedUpdater::rule_adds(const Lane& lane, int parameter) const {
  return gradients_.size() == 2 && gradients_[0].used[parameter] != 0 &&
         gradients_[1].used[parameter] != 0 && optim::adds_gradients(plan_.rule(parameter)) &&
         !lane.sums && !plan_.needs_sums() && !plan_.clips_values() && lane.updates_measured == 0;
}

void SharedUpdater::apply_stretch(Lane& lane, const Stretch& stretch,
                                  const optim::StepScalars& scalars) {
  const ParameterSlot& slot = layout_.slots[stretch.parameter];
  const optim::Rule& rule = plan_.rule(stretch.parameter);
  const double trust = plan_.trust(stretch.parameter, measured_);
  const bool two = rule_adds(lane, stretch.parameter);
  for (int64_t begin = stretch.begin; begin < stretch.end; begin += kChunkElements) {
    const int64_t count = std::min(kChunkElements, stretch.end - begin);
    const int64_t offset = slot.offset_bytes + begin * size_of(slot.dtype);
    const auto states = states_at(offset);
    if (two) {
      optim::update_by_both(
          rule, slot.dtype, values_ + offset, gradient_at(lane, 0, stretch.parameter, begin),
          gradient_at(lane, 1, stretch.parameter, begin), used_states(states), count, scalars);
      continue;
    }
    const void* const gradient = chunk_gradient(lane, {stretch.parameter, begin, begin + count});
    rule.update(slot.dtype, values_ + offset, gradient, used_states(states), count, scalars, trust);
  }
}

}  // namespace detail

std::shared_ptr<Updater> make_shared_updater(const World& world, const optim::Recipe& recipe,
                                             std::vector<NamedTensors> replicas) {
  return std::make_shared<detail::SharedUpdater>(world, recipe, std::move(replicas));
}

}  // namespace tutti
