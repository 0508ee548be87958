#include "tutti/strategy/choice/options.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/suggest.h"
#include "tutti/base/typed.h"
#include "tutti/comm/shm/shm.h"
#include "tutti/mesh/mesh.h"
#include "tutti/strategy/choice/needs.h"
#include "tutti/sync/shard.h"

namespace tutti {
namespace {

const std::vector<std::string> kKinds = {"one_device", "mirrored", "multi_worker",
                                         "central_storage", "parameter_server"};
const std::vector<std::string> kLaterKinds = {"tpu"};
constexpr int kMostInTurn = 4096;
constexpr double kMostGivenShare = 1e9;

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

// Where replicas that take their parts of one batch, each all of a model, meet in every step.
void check_moving_shares(const StrategyOptions& options) {
  const std::string flag =
      options.by_speed ? "--shares by-speed" : "--shares file:" + options.shares_file;
  const auto refuse = [&](const std::string& why) {
    throw UsageError(fmt::format("{}: {}", flag, why));
  };
  if (!options.shares.empty() || (options.by_speed && !options.shares_file.empty()))
    refuse(fmt::format("shares [{}] and file \"{}\" were given beside; give one of them",
                       fmt::join(options.shares, ", "), options.shares_file));
  if (options.uses_servers())
    refuse(
        "strategy parameter_server has steps of its own; use mirrored, multi_worker or "
        "central_storage");
  if (!options.mesh.empty())
    if (const auto mesh = mesh::Mesh::parse(options.mesh, 0); mesh.model_ranks() > 1)
      refuse(fmt::format(
          "on the mesh of {} a replica is {} ranks, whose stages wait for each other; give shares "
          "in numbers (--shares 2,1)",
          mesh.sentence(), mesh.model_ranks()));
  if (!options.by_speed) return;
  if (options.kind == "one_device")
    refuse(
        "under one_device the replicas take turns on one device and have no speeds of their own; "
        "train by what another strategy has recorded: --shares file:PATH");
  if (options.shard == "gradients" || options.shard == "parameters")
    refuse(fmt::format(
        "--shard {} has replicas wait for each other within forward and backward, so that nobody "
        "knows how long one computes; take --shard state, or shares in numbers (--shares 2,1)",
        options.shard));
  const BySpeed& by = *options.by_speed;
  const auto in_range = [&](const char* name, auto value, auto low, auto high) {
    if (!(value >= low && value <= high))
      refuse(fmt::format("{} is {}; expected {} to {}", name, value, low, high));
  };
  in_range("first_look", by.first_look, int64_t{10}, int64_t{1'000'000});
  in_range("rarest_look", by.rarest_look, by.first_look, int64_t{1'000'000'000});
  in_range("least_gain", by.least_gain, 0.0, 10.0);
  in_range("most_error", by.most_error, 0.0, 10.0);
}

}  // namespace

void take_shares(std::string_view text, StrategyOptions& options) {
  constexpr std::string_view kBySpeed = "by-speed", kRecord = "by-speed:", kFile = "file:";
  options.shares.clear();
  options.by_speed.reset();
  options.shares_file.clear();
  if (text == kBySpeed || (text.starts_with(kRecord) && text.size() > kRecord.size())) {
    options.by_speed.emplace();
    if (text != kBySpeed) options.by_speed->record = text.substr(kRecord.size());
    return;
  }
  if (text.starts_with(kFile) && text.size() > kFile.size()) {
    options.shares_file = text.substr(kFile.size());
    return;
  }
  for (const std::string_view part : parts_of(text, ',')) {
    const auto share = number_in<double>(part);
    if (!share || !(*share > 0) || *share > kMostGivenShare)
      throw UsageError(fmt::format(
          "--shares {}: got \"{}\", expected a number above 0 for each replica (2,1), by-speed, "
          "by-speed:RECORD or file:PATH; a replica that is to get nothing is better left out "
          "(--replicas)",
          text, part));
    options.shares.push_back(*share);
  }
}

data::ShareSchedule shares_of_file(const StrategyOptions& options, int replicas) {
  const std::string& path = options.shares_file;
  try {
    return data::ShareSchedule::from_json(read_file(path), replicas, path);
  } catch (const DataError& error) {
    throw UsageError(fmt::format("--shares file:{}: {}", path, error.what()));
  }
}

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
    if (!(share > 0) || share > kMostGivenShare)
      throw UsageError(fmt::format(
          "a share is {}; expected a number above 0: a replica that is to get nothing is better "
          "left out (fewer replicas)",
          share));
  if (options.shares_move()) check_moving_shares(options);
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
  refuse_idle_options(options);
}

}  // namespace tutti
