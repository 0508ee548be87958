/// Worlds: where the replicas of each kind of strategy are.
#pragma once

#include <string>
#include <vector>

#include "tutti/device/devices.h"
#include "tutti/pjrt/client.h"
#include "tutti/strategy/choice/choice.h"
#include "tutti/strategy/membership/detail/agreement.h"
#include "tutti/strategy/membership/detail/data_agreement.h"
#include "tutti/strategy/membership/membership.h"
#include "tutti/sync/served_options.h"
#include "tutti/sync/world.h"

namespace tutti::cluster {
class TpuResolver;
}

namespace tutti::detail {

/// The world of checked options, which are resolved on the way: nothing is unset afterwards.
/// Collective over workers where replicas of several are in sync. Throws as Strategy does.
World make_world(StrategyOptions& options);

/// Processes whose devices the replicas of strategy tpu are: those of the job, unless `alone`.
/// UsageError where the resolver's hosts are not its workers.
int processes_of(const StrategyOptions& options, const cluster::TpuResolver& resolver);

/// The client whose devices they are. Of several processes collective: Mismatch where they are
/// asked for different things, UsageError for a plugin that makes no client of several.
pjrt::Client open_plugin(const StrategyOptions& options, const cluster::TpuResolver& resolver);

/// UsageError where the replicas of several processes are not all of the client's devices, as many
/// in each.
void require_all_devices(const StrategyOptions& options, const pjrt::Client& client, int processes);

/// Gives each local replica of `world` its device and a queue there; none where all compute on the
/// CPU. Throws UsageError where there are too few devices.
void place_on_devices(World& world, const StrategyOptions& options,
                      const std::vector<DeviceSpec>& devices);

/// What the ranks of a world tell each other of the GPUs that they compute on.
struct RankOnGpu {
  bool on_gpu = false;
  bool has_nccl = false;
  std::string nccl;     ///< version
  int cuda = 0;         ///< version of the run-time library: 13000
  std::string machine;  ///< boot_id()
  std::string gpu;      ///< address on that machine's bus
  std::string process;  ///< in words, for errors
  std::string sums;     ///< how it wants gradients added up, in words
};

/// Why ranks, `local` in each process, cannot add up on their devices by NCCL; "": they can. Throws
/// Mismatch where their NCCL or CUDA differ, or how they want to add up.
std::string objection_to_nccl(const std::vector<RankOnGpu>& ranks, int local);

/// How device groups add up.
struct DeviceGroupsChoice {
  std::string engine = "nccl";  ///< or "hier": between hosts by the engine of the hosts' group
  Order order = Order::any;     ///< fixed: pieces travel, by NCCL whatever the engine
  std::string named = "auto";   ///< what was asked for (CommunicationOptions): nccl must be there
  std::string machine{};        ///< where the GPUs of this process are; "": boot_id()
};

/// The owners of equal slices (ranks `number`, number + local, ...) by host, for engine hier.
/// Throws UsageError where it has no use: one host, or unlike numbers of them on the hosts.
std::vector<std::vector<int>> owners_by_host(const std::vector<RankOnGpu>& ranks, int local,
                                             int number);

/// Collective over a world of several processes: makes its device_groups, or says in
/// no_device_groups why it has none. Throws Mismatch, Timeout, Error in NCCL's words, UsageError
/// where hier was asked for and cannot be.
void make_device_groups(World& world, const DeviceGroupsChoice& choice = {});

/// The same as options say, which are resolved on the way.
void add_up_on_devices(World& world, StrategyOptions& options);

/// A Mismatch on every worker where one has another dataset than the first one, with the first line
/// of these that differs: "fit: worker 1 ... training data, class 1: wasp". Collective over workers
/// in step; elsewhere nothing.
void require_same_data(const Membership& members, std::string_view operation, std::string_view what,
                       const data::Dataset& dataset, uint64_t seed);

/// What the launcher says of a job with parameter servers; of any other nothing.
Machine machine_here(const StrategyOptions& options);

/// Where the servers of this worker are; of parameter_server alone.
ServedPlace served_place();

/// Threads of LibTorch in each of so many replicas of a host.
int threads_for(const StrategyOptions& options, int replicas_on_host);

/// Whether the replicas of a host, with so many threads each, get cores of their own.
bool can_pin(const StrategyOptions& options, int replicas_on_host, int threads);

}  // namespace tutti::detail
