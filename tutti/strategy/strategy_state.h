/// What stands behind a Strategy and its ReplicaContexts: shared by the sources of this module, not
/// for users.
#pragma once

#include <ATen/core/Generator.h>

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/queues/upload.h"
#include "tutti/strategy/membership/membership.h"
#include "tutti/strategy/moving_shares.h"
#include "tutti/strategy/run/detail/replica_meeting.h"
#include "tutti/strategy/run/detail/replica_threads.h"
#include "tutti/strategy/run/detail/step_watch.h"
#include "tutti/strategy/strategy.h"
#include "tutti/sync/replicated_options.h"

namespace tutti {

struct ReplicaContext::State {
  int rank = 0;
  int local_rank = 0;
  int size = 1;
  bool meets_in_backward = false;  ///< from the first time on
  std::string in_turn;  ///< why this replica cannot wait for another one at all; empty: it can
  std::string alone;    ///< why they cannot count on each other in every step; empty: they can
  Millis time_limit{kDefaultTimeLimit};
  Group group;
  mesh::Mesh mesh;
  MeshGroups groups;
  int tensor_blocks = 1;
  at::Generator generator;
  at::Generator device_generator;  ///< on the device of `queue`; undefined until it is used
  uint64_t key = 0;                ///< of both
  DeviceQueue queue;
  bool shares_device = false;
  std::optional<Uploads> uploads;  ///< to `queue`; made with the first
  detail::StepWatch watch;
};

namespace detail {

/// Work that replicas queue in a run() begins after what the caller had queued, and what the caller
/// queues afterwards waits for theirs: nobody waits on the host.
class ForkedQueues {
 public:
  /// On the caller's thread.
  explicit ForkedQueues(const World& world);
  /// Each on its replica's thread; where they take turns on the caller's.
  void begin(int local) const;
  void end(int local);
  /// On the caller's thread, once all have ended.
  void join() const;

 private:
  struct Caller {
    DeviceQueue queue;
    DeviceMark begun;
  };
  const World* world_;
  std::map<at::DeviceIndex, Caller> callers_;
  std::vector<DeviceMark> ended_;
};

}  // namespace detail

/// One world at a time; Strategy::resize enters the next.
struct StrategyState {
  /// A replica of no Strategy: of a rank of `group`, on the CPU.
  static ReplicaContext replica_of(Group group);

  StrategyOptions options;
  World world;
  Membership membership{world};
  std::vector<ReplicaContext> contexts;  ///< of the local replicas
  std::unique_ptr<detail::ReplicaThreads> threads;
  std::unique_ptr<detail::ReplicaMeeting> meeting;  ///< for merge()
  std::vector<DeviceMark> brought;                  ///< by local replica: what it brings to merge()
  std::vector<std::weak_ptr<WorldMember>> followers;
  std::vector<std::weak_ptr<Updater>> updaters;                           ///< of its optimizers
  std::vector<std::pair<const void*, Strategy::NextBatch>> next_batches;  ///< by optimizer
  int num_datasets = 0;
  bool on_host = false;        ///< detail::OnHost lets run() do what a plugin cannot
  std::exception_ptr failure;  ///< the first of this world's; its group is of no use after it
  std::shared_ptr<void> trace;
  std::unique_ptr<MovingShares> moving;  ///< null: shares stay as they were given

  void enter(World next);

  /// From now on replicas measure how long they compute a row.
  void measure_steps();
  /// By local replica, what they have measured, which is then forgotten.
  std::vector<RowTimes> take_row_times();

  /// `out` becomes the reduction of `count` elements of each replica of the world, of which `own`
  /// are those here, in the one order; without a collective of groups.
  void add(DType dtype, ReduceOp op, std::span<const void* const> own, void* out, int64_t count);

  void run_in_turn(const std::function<void(ReplicaContext&, int)>& body);
  void run_at_once(const std::function<void(ReplicaContext&, int)>& body);
};

namespace detail {

/// The reduction and compression that a strategy was given.
ReplicatedOptions replicated_options(const StrategyOptions& options);

/// Makes `replica` (null: nobody) the one of this thread until it goes out of scope.
class CurrentReplica {
 public:
  explicit CurrentReplica(ReplicaContext* replica) noexcept;
  ~CurrentReplica();
  CurrentReplica(const CurrentReplica&) = delete;
  CurrentReplica& operator=(const CurrentReplica&) = delete;

 private:
  ReplicaContext* before_;
};

}  // namespace detail
}  // namespace tutti
