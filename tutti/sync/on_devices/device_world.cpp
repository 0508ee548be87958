// Of the fused step on devices, what goes to other processes: gradients, by NCCL, and what hosts
// tell each other of a step.
#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/net/arena.h"
#include "tutti/sync/on_devices/detail/device_updater.h"
#include "tutti/sync/tensors.h"

namespace tutti::detail {

// Where a process has one replica its sums can begin before backward is over.
void DeviceUpdater::bind_to_processes() {
  progress_ = std::make_shared<DeviceProgress>(world_.size);
  for (const DeviceQueue& queue : world_.queues)
    queue.ask_of_others([progress = progress_] { return progress->behind(); });
  if (exact() || !adds_in_place()) return;
  buckets_ = std::make_unique<DeviceBuckets>(device_group(0), layout_, lanes_[0].gradients, sums_,
                                             world_.time_limit);
  // autograd keeps to the stream on which it first sees a parameter.
  const OnQueue on(queue(0));
  hooks_ = ReadyHooks(lanes_[0].parameters, [this](int parameter) { gradient_ready(parameter); });
}

// A process adds the piece with its number.
std::unique_ptr<ExactSums> DeviceUpdater::exact_sums(int replica,
                                                     std::span<const std::vector<Stretch>> pieces) {
  const Owned& owned = owned_[static_cast<size_t>(replica)];
  std::vector<int64_t> cuts(pieces.size() + 1, owned.begin + owned.bytes);
  for (size_t p = pieces.size(); p-- > 0;) {
    if (pieces[p].empty()) {
      cuts[p] = cuts[p + 1];
      continue;
    }
    const Stretch& first = pieces[p].front();
    cuts[p] = byte_of(layout_.slots[static_cast<size_t>(first.parameter)], first.begin);
  }
  std::vector<Run> own;
  for (const Stretch& stretch : pieces[static_cast<size_t>(world_.process())])
    add_to(own, layout_, stretch);
  return std::make_unique<ExactSums>(world_, replica, std::move(cuts), std::move(own));
}

// On autograd's thread, which other replicas of the device share: nothing here waits on the host.
void DeviceUpdater::gradient_ready(int parameter) {
  if (!listens_) return;
  const at::NoGradGuard no_grad;
  Lane& lane = lanes_[0];
  const auto place = static_cast<size_t>(parameter);
  const at::Tensor gradient = lane.parameters[place].grad();
  const DeviceQueue here = DeviceQueue::current(device(0), queue(0).owner());
  if (here.stream() != queue(0).stream()) {
    DeviceMark made;
    here.mark(made);
    queue(0).after(made, "a gradient of another stream");
    queue(0).uses(gradient);
  }
  const OnQueue on(queue(0));
  take_gradient(lane, place, gradient);
  lane.views[place].copy_(lane.keep[place], /*non_blocking=*/true);
  lane.used[place] = 1;
  try {
    buckets_->put(parameter);
  } catch (const PeerLost&) {
    lost_in_backward_ = std::current_exception();  // step() asks who it is
    listens_ = false;
  }
}

// In the reverse order, in which gradients mostly become ready.
void DeviceUpdater::put_the_rest() {
  for (int parameter = static_cast<int>(layout_.slots.size()); parameter-- > 0;)
    if (!buckets_->has(parameter)) buckets_->put(parameter);
}

// What one rank alone tells is zeros on all others: the largest bytes are those of that one.
void DeviceUpdater::tell(int replica) {
  Lane& lane = lanes_[static_cast<size_t>(replica)];
  const auto rank = static_cast<size_t>(world_.first_rank) + static_cast<size_t>(replica);
  std::vector<uint32_t> passes(static_cast<size_t>(world_.size));
  passes[rank] = lane.passes.count();
  lane.passes.queued(queue(replica));
  lane.rate = rank == 0 ? step_rate_ : 0;
  const size_t used = lane.used.size(), bytes = passes.size() * sizeof passes[0];
  lane.told = lane.used;
  lane.told.resize(used + sizeof lane.rate + bytes);
  std::memcpy(lane.told.data() + used, &lane.rate, sizeof lane.rate);
  std::memcpy(lane.told.data() + used + sizeof lane.rate, passes.data(), bytes);
  world_.groups[static_cast<size_t>(replica)].all_reduce_now(span_of(std::span(lane.told)),
                                                             ReduceOp::max, world_.time_limit);
  std::memcpy(&lane.rate, lane.told.data() + used, sizeof lane.rate);
  std::memcpy(passes.data(), lane.told.data() + used + sizeof lane.rate, bytes);
  progress_->note(passes);
}

void DeviceUpdater::add_over_processes(int owner) {
  if (buckets_) return;  // they have been joined
  Owned& owned = owned_[static_cast<size_t>(owner)];
  if (exact()) {
    std::vector<at::Tensor> gradients;
    for (const Lane& lane : lanes_) gradients.push_back(lane.gradients);
    return owned.exact->add_up(
        gradients, adds_in_place() ? lanes_[0].gradients.narrow(0, owned.begin, owned.bytes)
                                   : owned.scratch[0]);
  }
  for (const Run& run : owned.runs)
    device_group(owner)
        .all_reduce(span_of(sum_of(owner, run)), ReduceOp::sum, world_.time_limit)
        .wait_on(queue(owner).handle());
}

void DeviceUpdater::flag_over_processes(int owner) {
  const Owned& owned = owned_[static_cast<size_t>(owner)];
  device_group(owner)
      .all_reduce(span_of(owned.left_out), ReduceOp::max, world_.time_limit)
      .wait_on(queue(owner).handle());
}

// NCCL does not tell which rank it lost; the group of the hosts learns of it too, and names it. A
// message that nobody sends has the group look.
void DeviceUpdater::ask_hosts_who(int replica) {
  constexpr Millis kTimeToLearn{2000}, kPause{5};
  const Deadline deadline(std::min(world_.time_limit, kTimeToLearn));
  Work never = world_.groups[static_cast<size_t>(replica)].recv(
      span_of(std::span(&nobody_sends_, 1)), kAnyRank, 0, world_.time_limit);
  while (!deadline.passed()) {
    (void)never.test();
    std::this_thread::sleep_for(kPause);
  }
}

// An error ends what goes on between the devices too: kernels there wait for ever for a rank that
// is gone.
template <class Body>
auto DeviceUpdater::guarded(int replica, Body body) {
  if (!across()) return body();
  Engine& engine = device_group(replica).engine();
  try {
    return body();
  } catch (const PeerLost& lost) {
    look_at_last_update(replica);
    engine.abort(FailureKind::peer_lost, lost.what());
    ask_hosts_who(replica);
    throw;
  } catch (const std::exception& error) {
    look_at_last_update(replica);
    engine.abort(FailureKind::aborted, error.what());
    throw;
  }
}

void DeviceUpdater::hand_in(int replica, std::span<const at::Tensor> gradients, const Vote& vote) {
  guarded(replica, [&] {
    if (lost_in_backward_) std::rethrow_exception(lost_in_backward_);
    if (vote.bad.defined()) leave_out_if(lanes_.at(static_cast<size_t>(replica)), vote.bad);
    take_all(replica, gradients, vote);
  });
}

Verdict DeviceUpdater::step(int replica, std::span<const at::Tensor> gradients, const Vote& vote,
                            const Deadline&) {
  hand_in(replica, gradients, vote);
  const bool all = std::ranges::all_of(world_.on_thread_of(replica), [&](int each) {
    return lanes_[static_cast<size_t>(each)].pushed;
  });
  return all ? guarded(replica, [&] { return update_all(replica); }) : Verdict();
}

// Inside a process every replica reads the part that it owns of the others' gradients. Between
// processes the owners all-reduce their slices, by a ring; or they send pieces of all local
// gradients, and their sums.
int64_t DeviceUpdater::wire_bytes_per_step() const {
  const int64_t bytes = layout_.trained_bytes(), slice = bytes / world_.local;
  const int64_t others = world_.processes() - 1, processes = world_.processes();
  if (exact()) return (bytes + slice) * others / processes;
  return bytes * (world_.local - 1) / world_.local + 2 * slice * others / processes;
}

}  // namespace tutti::detail
