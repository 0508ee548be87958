// Which device each replica of a world computes on.
#include <fmt/format.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/queues/config.h"
#include "tutti/queues/step_graph/step_graph.h"
#include "tutti/strategy/membership/detail/worlds.h"

namespace tutti::detail {
namespace {

constexpr DeviceSpec kCpu{};

at::Device torch_device(const DeviceSpec& device) {
  if (device.kind == DeviceKind::cpu) return at::Device(at::kCPU);
  return {at::kCUDA, static_cast<at::DeviceIndex>(torch_index(device.index))};
}

DeviceQueue queue_for(int rank, const DeviceSpec& device) {
  return {torch_device(device), fmt::format("replica {} ({})", rank, to_string(device))};
}

void know_each_other(std::vector<DeviceQueue>& queues) {
  const auto all = std::make_shared<const std::vector<DeviceQueue>>(queues);
  for (DeviceQueue& queue : queues) queue.belongs_to(all);
}

// Devices without a replica here are other workers': a context there would take memory of them.
void queue_on_devices(World& world, const StrategyOptions& options,
                      const std::vector<DeviceSpec>& devices) {
  const auto use = [&](const std::vector<DeviceSpec>& placed) {
    use_devices(fmt::format("strategy {}", options.kind), placed, options.memory_limit_mib,
                options.deterministic);
  };
  if (devices == std::vector{kCpu}) return use(devices);
  if (options.kind == "one_device" && devices.size() > 1)
    throw UsageError(
        fmt::format("--device {}: strategy one_device computes on one; use mirrored, or name one",
                    options.device));
  const bool alone = world.processes() == 1;
  const int worker = alone ? 0 : world.first_rank_here / world.local;
  const int workers = alone ? 1 : world.here / world.local;
  const auto placed = place_replicas(devices, world.threads(), worker, workers);
  use(placed);
  for (size_t thread = 0; thread < placed.size(); ++thread)
    world.queues.push_back(queue_for(world.first_rank + static_cast<int>(thread), placed[thread]));
  world.queues.resize(static_cast<size_t>(world.local), world.queues[0]);  // shared, in turn
  if (std::ranges::none_of(world.queues, &DeviceQueue::on_device)) world.queues.clear();
  know_each_other(world.queues);
}

// A graph holds what one thread queues on one device.
void require_step_graph(const World& world, const StrategyOptions& options) {
  if (world.size > 1 || !world.on_devices())
    throw UsageError(
        fmt::format("strategy {}: step_graph is of one replica with one GPU for itself; got {} "
                    "replica{} on --device {}\n  leave out --step-graph",
                    options.kind, world.size, world.size > 1 ? "s" : "", options.device));
  if (!step_graph_available()) make_step_graph(world.queues[0]);  // throws, saying why
}

}  // namespace

void place_on_devices(World& world, const StrategyOptions& options,
                      const std::vector<DeviceSpec>& devices) {
  queue_on_devices(world, options, devices);
  if (options.step_graph) require_step_graph(world, options);
}

}  // namespace tutti::detail
