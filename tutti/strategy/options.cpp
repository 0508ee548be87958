#include "tutti/strategy/options.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"
#include "tutti/comm/shm/shm.h"
#include "tutti/sync/shard.h"

namespace tutti {
namespace {

const std::vector<std::string> kKinds = {"one_device", "mirrored", "multi_worker",
                                         "central_storage", "parameter_server"};
const std::vector<std::string> kLaterKinds = {"tpu"};
constexpr int kMostInTurn = 4096;

void check_served(const StrategyOptions& options, int num_workers) {
  constexpr const char* kWhy = "strategy parameter_server adds gradients on its servers";
  if (options.reduction != "fused" || options.make_reduction)
    throw UsageError(fmt::format("--reduction {}: {}, so that no reduction can be chosen",
                                 options.make_reduction ? "of your own" : options.reduction, kWhy));
  if (options.compression.on())
    throw UsageError(fmt::format("--compression: {}, so that no compression can be chosen", kWhy));
  const ServedOptions& served = options.served;
  ps::check({served.drop_slowest, served.scale_by_staleness, served.delay_compensation},
            served.staleness, num_workers);
  ps::check(served.on_lost_worker, served.staleness, served.drop_slowest);
}

void check_shard(const StrategyOptions& options) {
  shard_by_name(options.shard);
  const auto refuse = [&](const std::string& why) {
    throw UsageError(fmt::format("--shard {}: {}", options.shard, why));
  };
  if (options.uses_servers() || options.kind == "central_storage")
    refuse(
        fmt::format("strategy {} has parameters and state in one place; use mirrored or "
                    "multi_worker",
                    options.kind));
  if (options.reduction != "fused" || options.make_reduction || options.compression.on())
    refuse(fmt::format(
        "gradients go to those who own them; leave reduction {} and compression {} "
        "out",
        options.make_reduction ? "of your own" : options.reduction, describe(options.compression)));
}

}  // namespace

int most_replicas(std::string_view kind) { return kind == "one_device" ? kMostInTurn : kMaxRanks; }

void check_options(const StrategyOptions& options, int num_workers) {
  if (std::find(kLaterKinds.begin(), kLaterKinds.end(), options.kind) != kLaterKinds.end())
    throw UsageError(fmt::format("strategy \"{}\" is not in this version; it has {}", options.kind,
                                 fmt::join(kKinds, ", ")));
  if (std::find(kKinds.begin(), kKinds.end(), options.kind) == kKinds.end())
    throw UsageError(unknown_message("strategy", options.kind, kKinds));
  const auto in_range = [](const char* name, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high)
      throw UsageError(fmt::format("{} is {}; expected {} to {}", name, value, low, high));
  };
  in_range("replicas", options.replicas, 0, most_replicas(options.kind));
  in_range("threads per replica", options.threads_per_replica, 0, 1024);
  in_range("time limit in ms", options.time_limit.count(), 1, 30LL * 24 * 3600 * 1000);
  for (double share : options.shares)
    if (!(share > 0) || share > 1e9)
      throw UsageError(fmt::format("a share is {}; expected a number above 0", share));
  if (options.table != built_in_table() && options.kind != "multi_worker")
    throw UsageError(fmt::format(
        "a table of algorithms was given; strategy {} sends nothing between hosts", options.kind));
  if (options.kind == "central_storage" &&
      (options.reduction != "fused" || options.make_reduction || options.compression.on()))
    throw UsageError(fmt::format(
        "strategy central_storage keeps one copy of the parameters, which the fused step updates; "
        "reduction {} with compression {} keeps one a replica: use mirrored",
        options.reduction, describe(options.compression)));
  if (options.engine != "nccl" && options.engine != "hier")
    throw UsageError(fmt::format("engine {}: expected nccl or hier", options.engine));
  if (!options.shard.empty()) check_shard(options);
  if (options.uses_servers()) check_served(options, num_workers);
  if (!options.reduction_shape.empty() && options.kind != "one_device")
    throw UsageError(
        fmt::format("a reduction shape ({}) can be chosen under one_device alone; "
                    "elsewhere it is where the replicas are",
                    options.reduction_shape));
}

}  // namespace tutti
