#include "tutti/cluster/launch/launcher.h"

#include <mutex>

#include "tutti/base/error.h"
#include "tutti/base/standard_streams.h"
#include "tutti/cluster/launch/detail/job.h"
#include "tutti/cluster/launch/detail/spawn.h"

namespace tutti {

LaunchResult launch(const LaunchOptions& options) {
  static_assert(detail::Guard::kMaxWorkers >= kMaxRanks);
  if (options.num_workers < 1 || options.num_workers > kMaxRanks) {
    throw UsageError(
        fmt::format("launch: {} workers; 1 to {} are possible", options.num_workers, kMaxRanks));
  }
  if (options.command.empty()) throw UsageError("launch: no program to start");
  const NodePlace& nodes = options.nodes;
  if (nodes.num_nodes < 1 || nodes.node < 0 || nodes.node >= nodes.num_nodes)
    throw UsageError(
        fmt::format("launch: node {} of {}; nodes count from 0", nodes.node, nodes.num_nodes));
  static std::mutex one_at_a_time;
  const std::unique_lock lock(one_at_a_time, std::try_to_lock);
  if (!lock) throw UsageError("launch: another launch of this process is running");
  open_missing_streams();  // before anything of the job gets their numbers
  return detail::Job(options, detail::find_program(options.command.front())).run();
}

}  // namespace tutti
