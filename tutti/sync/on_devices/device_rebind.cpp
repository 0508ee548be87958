// Of the fused step on devices, how it goes on in another world: after a change of members, or with
// those that a failure has left.
//
// Hosts do not wait for devices, so what a failure leaves there is not what the host has queued: a
// kernel of NCCL that an abort ends leaves anything in its sums, and the update behind it takes
// them. Values are whole where the last update had run before the group was ended. Otherwise, and
// where replicas are not at the same update, the new world begins with a checkpoint: until
// restore() every step says so.
#include <array>
#include <optional>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/queues/host_copies.h"
#include "tutti/sync/on_devices/detail/device_updater.h"

namespace tutti::detail {

// Groups, sums and hooks of the world before.
void DeviceUpdater::leave_processes() {
  hooks_ = {};
  listens_ = false;
  buckets_.reset();
  progress_.reset();
  lost_in_backward_ = nullptr;
}

// Before its group is ended. That the group is sound is asked last (submitting nothing asks nobody
// else): had it been ended before the update ran, that would be known by now.
void DeviceUpdater::look_at_last_update(int replica) {
  constexpr Millis kTimeToRun{500}, kPause{1};
  Lane& lane = lanes_[static_cast<size_t>(replica)];
  if (std::exchange(lane.has_run, true)) return;
  const Deadline deadline(std::min(world_.time_limit, kTimeToRun));
  try {
    while (!lane.updated.passed() && !deadline.passed()) std::this_thread::sleep_for(kPause);
    if (!lane.updated.passed()) cut_off_ = true;
    (void)device_group(replica).engine().submit({});
  } catch (const std::exception&) {
    cut_off_ = true;
  }
}

// All hold the values of one update, or nobody goes on from them.
void DeviceUpdater::agree_on_version() {
  for_each_local(world_, [&](int local) {
    const int64_t version = ended_, torn = cut_off_ || begun_ != ended_ ? 1 : 0;
    std::array<int64_t, 3> told{version, -version, torn};
    world_.groups[static_cast<size_t>(local)].all_reduce_now(span_of(std::span(told)),
                                                             ReduceOp::max, world_.time_limit);
    if (local == 0) cut_off_ = told[2] != 0 || told[0] != -told[1];
  });
}

void DeviceUpdater::rebind(const World& world, std::vector<NamedTensors> replicas) {
  std::string why;
  if (!can_update_on_devices(world, recipe_, &why))
    throw UsageError(
        fmt::format("a world on devices cannot go on where gradients go by way of the CPU ({}); "
                    "make a strategy anew there, and restore a checkpoint",
                    why));
  drain("what was queued before the change of members");
  for (int replica = 0; across() && replica < world_.local; ++replica) look_at_last_update(replica);
  std::optional<UpdaterState> before;
  if (!cut_off_ && begun_ == ended_) before = state();
  std::optional<optim::LossScale> scale;
  if (lanes_[0].scale) scale = lanes_[0].scale->read(Deadline(world_.time_limit));
  const auto there =
      on_host(lanes_[0].parameters, Deadline(patience_with_device(world_.time_limit)),
              "parameters before a change of members");
  NamedTensors values;
  for (size_t i = 0; i < layout_.slots.size(); ++i)
    values.emplace_back(layout_.slots[i].name, there[i]);
  world_ = world;
  bind(std::move(replicas));
  if (before) restore(*before, values);
  if (scale) scale_losses(*scale);
  if (across()) agree_on_version();
}

}  // namespace tutti::detail
