#include "tutti/strategy/choice/options.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/suggest.h"
#include "tutti/base/typed.h"
#include "tutti/comm/shm/shm.h"
#include "tutti/mesh/mesh.h"
#include "tutti/sync/shard.h"

namespace tutti {
namespace {

const std::vector<std::string> kKinds = {"one_device",      "mirrored",         "multi_worker",
                                         "central_storage", "parameter_server", "tpu"};
constexpr int kMostInTurn = 4096;
constexpr double kMostGivenShare = 1e9;
constexpr int64_t kLeastPiece = 64, kMostPiece = 1 << 30;  // bytes

void check_served(const ServedOptions& served, int num_workers) {
  if (served.drop_slowest < 0 || served.drop_slowest >= num_workers)
    throw UsageError(fmt::format("--drop-slowest {} of {} worker{}: expected 0 to {}",
                                 served.drop_slowest, num_workers, num_workers == 1 ? "" : "s",
                                 num_workers - 1));
  if (!(served.delay_compensation >= 0 && served.delay_compensation <= ps::kMostDelayCompensation))
    throw UsageError(fmt::format("--delay-compensation {}: expected 0 to {}",
                                 served.delay_compensation, ps::kMostDelayCompensation));
}

void check_by_speed(const BySpeed& by) {
  const auto in_range = [](const char* name, auto value, auto low, auto high) {
    if (!(value >= low && value <= high))
      throw UsageError(
          fmt::format("--shares by-speed: {} is {}; expected {} to {}", name, value, low, high));
  };
  in_range("first_look", by.first_look, int64_t{10}, int64_t{1'000'000});
  in_range("rarest_look", by.rarest_look, by.first_look, int64_t{1'000'000'000});
  in_range("least_gain", by.least_gain, 0.0, 10.0);
  in_range("most_error", by.most_error, 0.0, 10.0);
}

void check_mesh(const StrategyOptions& options) {
  const int ranks = mesh::Mesh::parse(options.mesh, 0).size(mesh::Axis::tensor);
  if (options.tensor_blocks != 0 && options.tensor_blocks < ranks)
    throw UsageError(
        fmt::format("--mesh {}: {} tensor blocks for {} ranks; expected at least one each",
                    options.mesh, options.tensor_blocks, ranks));
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

const std::vector<std::string>& strategy_kinds() { return kKinds; }

int most_replicas(std::string_view kind) { return kind == "one_device" ? kMostInTurn : kMaxRanks; }

void check_options(const StrategyOptions& options, int num_workers) {
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
  if (options.piece_bytes != 0 &&
      (options.piece_bytes < kLeastPiece || options.piece_bytes > kMostPiece))
    throw UsageError(
        fmt::format("--piece-mib: pieces of {} bytes; expected {} to {} (0.0001 to 1024 MiB)",
                    options.piece_bytes, kLeastPiece, kMostPiece));
  check_communication(options.communication);
  if (options.local) check_local(*options.local);
  if (options.piece_bytes != 0 && options.communication.bytes_per_pack != 0)
    throw UsageError(
        fmt::format("piece_bytes is {} and bytes_per_pack of communication {}: both are the size "
                    "of what is sent at once; give one of them",
                    options.piece_bytes, options.communication.bytes_per_pack));
  if (options.by_speed) check_by_speed(*options.by_speed);
  check_mesh(options);
  if (options.engine != "nccl" && options.engine != "hier")
    throw UsageError(fmt::format("engine {}: expected nccl or hier", options.engine));
  if (!options.shard.empty()) shard_by_name(options.shard);
  if (options.uses_servers()) check_served(options.served, num_workers);
}

}  // namespace tutti
