/// StrategyOptions: which strategy, and how many replicas, as flags and programs say it.
///
/// Without LibTorch, so that what only reads flags compiles in a second.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/comm/compression/compression.h"
#include "tutti/comm/group/cross_device.h"
#include "tutti/comm/schedule/communication.h"
#include "tutti/comm/schedule/schedule_choice.h"
#include "tutti/data/share_schedule.h"
#include "tutti/sync/local_options.h"
#include "tutti/sync/served_options.h"

namespace tutti {

/// Shares that follow the times that replicas measure (docs/design/shares.md).
struct BySpeed {
  /// Updates until the first look at the times, and from a change to the next look; 10 to
  /// 1,000,000.
  int64_t first_look = 20;
  /// As long as nothing changes the next look comes after twice as many, up to these.
  int64_t rarest_look = 640;
  double least_gain = 0.05;  ///< of a step, as predicted, that a change is worth; 0 to 10
  /// Of a replica's median, as a part of it: its standard error (RowTimes::error), 0 to 10. Times
  /// that are less certain decide nothing; what is predicted must gain more than the error.
  double most_error = 0.1;
  std::string record{};  ///< file of all changes, for --shares file:PATH; "": none
};

/// Unset fields are resolved when a Strategy is made (Strategy::options()).
struct StrategyOptions {
  /// one_device, mirrored, multi_worker, central_storage, parameter_server, tpu
  std::string kind = "one_device";
  bool uses_servers() const noexcept { return kind == "parameter_server"; }
  bool is_compiled() const noexcept { return kind == "tpu"; }
  /// Of the whole world; 0: as many as the mesh has, else one (one_device), cores (mirrored),
  /// workers, devices (tpu; of plugin cpu, which has as many as it is asked for, one). one_device
  /// computes all parts of the mesh itself.
  int replicas = 0;
  std::string reduction_shape;           ///< one_device: "4", "2x3", "3+1"; empty: one host
  int threads_per_replica = 0;           ///< 0: usable cores / replicas of this host, at least 1
  Millis time_limit{kDefaultTimeLimit};  ///< of every wait for another replica
  /// Where replicas compute, as device/devices.h reads it: "cpu", "cuda", "cuda:0x2,1", "auto".
  std::string device = "cpu";
  /// tpu: which plugin compiles and has the devices, as pjrt::find_plugin() takes it: "tpu", "cpu",
  /// "cuda", or a path. "": the one that TpuResolver("local") finds.
  std::string plugin{};
  int64_t memory_limit_mib = 0;  ///< of each GPU, for this process; 0: all that it has
  /// On GPUs: the same bits in every run, at some cost of speed; an operator that cannot is an
  /// error that names it. CPUs give them anyway. Of the whole process, once it is on.
  bool deterministic = false;
  /// Steps of Optimizer::minimize(replica, inputs, step) become one graph of the device, where one
  /// replica has one GPU for itself: for networks so small that the host is slower than the device.
  bool step_graph = false;
  bool pin = true;    ///< pin replicas to cores of their own when there are enough
  uint64_t seed = 0;  ///< of factories and generators
  /// How gradients of replicas are added: fused (with tutti's rules the fused step, which adds and
  /// updates at once; all_reduce for torch optimizers), all_reduce, to_one_device,
  /// hierarchical_copy. With any but fused, every replica updates its own parameters.
  std::string reduction = "fused";
  /// On GPUs of several processes, where NCCL adds: any, in its own order; fixed, in the reduction
  /// shape, with the bits of one process, and later than backward. Elsewhere it is always fixed.
  Order sum_order = Order::any;
  /// On GPUs of several processes: nccl, over all hosts; hier, NCCL inside each host, and between
  /// them the engine of their group (tcp, mpi), for networks that NCCL does not know. With
  /// sum_order fixed it is always nccl.
  std::string engine = "nccl";
  /// By what the replicas exchange gradients: of mirrored, multi_worker and central_storage.
  CommunicationOptions communication{};
  CrossDeviceFactory make_reduction{};  ///< one of the user's own; `reduction` becomes its name
  Compression compression{};            ///< of what replicas exchange; never with the fused step
  /// Replicas that meet every so many updates (docs/guide/less_communication.md); none: in each.
  std::optional<LocalUpdates> local{};
  AlgorithmTable table = built_in_table();  ///< multi_worker: of what goes between hosts
  ServedOptions served{};                   ///< parameter_server: staleness, placement
  /// multi_worker, parameter_server: gradients go between hosts and to servers in pieces of so many
  /// bytes, >= 64. 0: as many MiB as a sum has rounds each way (comm/group/host_view.h), and as the
  /// launcher has it for servers. No bit depends on it.
  int64_t piece_bytes = 0;
  /// How replicas are dealt out, as mesh::Mesh reads it: "data=2,stage=2,tensor=2". Ranks that
  /// differ in stage or tensor compute one replica of the model together. "": each is a replica.
  std::string mesh;
  /// What of a training is cut over the replicas (sharded_updater.h): "state", "gradients" or
  /// "parameters"; with an axis shard in the mesh, over the ranks on it. "": nothing. Of one_device
  /// nothing is.
  std::string shard;
  int64_t shard_bucket_bytes = 4 << 20;  ///< ShardedOptions::bucket_bytes
  /// Blocks that a layer is cut into (parallel::TensorGroup), at least the size of axis tensor;
  /// with the same number of them all sizes of it give the same bits. 0: that size.
  int tensor_blocks = 0;
  std::vector<double> shares;  ///< of a batch and a slice, per replica, each > 0; empty: equal
  std::optional<BySpeed> by_speed{};  ///< they follow the replicas' speeds
  std::string shares_file{};  ///< they change as this file says (data/share_schedule.h); "": none
  bool shares_move() const noexcept { return by_speed || !shares_file.empty(); }
  /// This process trains by itself, whatever a launcher has started beside it, as in a sweep. Else
  /// one of several workers is refused by the strategies of one process (launched.h).
  bool alone = false;
  /// Flags that were typed, "--engine nccl": one that does nothing here is refused with any value,
  /// also with that which it has anyway.
  std::vector<std::string> typed{};
};

/// Takes what `--shares` says: "2,1", "by-speed", "by-speed:RECORD" or "file:PATH". UsageError.
void take_shares(std::string_view text, StrategyOptions& options);

/// The changes in shares_file. Throws UsageError with path and cause.
data::ShareSchedule shares_of_file(const StrategyOptions& options, int replicas);

/// All that StrategyOptions::kind can be.
const std::vector<std::string>& strategy_kinds();

/// Replicas that a strategy of that kind can have.
int most_replicas(std::string_view kind);

/// Throws UsageError, naming what, for options out of range; what goes with what is choose()'s
/// (choice.h). `num_workers`: of the job.
void check_options(const StrategyOptions& options, int num_workers);

/// Takes the strategy's own flags (strategy_from_flags in strategy.h lists them) out of argv.
/// UsageError when a value is missing or no number in range, and for a flag that is nearly one of
/// them (--replica). Other flags, and all words after "--", are the program's.
StrategyOptions take_strategy_flags(int& argc, char** argv);

}  // namespace tutti
