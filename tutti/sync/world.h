/// World: the replicas that train together now, as the floors above comm see them: where they are
/// (its Topology), and by what they talk.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <ranges>
#include <string>
#include <vector>

#include "tutti/comm/group/group.h"
#include "tutti/mesh/topology.h"
#include "tutti/queues/queue.h"

namespace tutti {

namespace pjrt {
class Client;
}

/// The groups of one rank on a Mesh: the ranks whose places differ from its own on these axes
/// alone.
struct MeshGroups {
  Group data;    ///< data and shard: who has the same part of the model
  Group stage;   ///< who has the other stages
  Group tensor;  ///< who has the other pieces of its layers
};

/// One *generation* of the replicas of a job. A changed membership makes a new World with a higher
/// generation; whatever was bound to the old one is bound anew (WorldMember).
struct World : mesh::Topology {
  int64_t generation = 0;
  /// One member per local replica. Empty when the replicas take turns on one thread (OneDevice):
  /// then nobody can wait for anybody.
  std::vector<Group> groups;
  /// Of several processes whose replicas are all on GPUs: by local replica, the group of those with
  /// its number in all processes, for the devices' memory (engine nccl, or hier with it inside each
  /// host). Empty: there is none, and `no_device_groups` says why.
  std::vector<Group> device_groups{};
  std::string no_device_groups{};
  std::vector<MeshGroups> mesh_groups{};  ///< by local rank; empty where each rank is a replica
  /// Where the local replicas compute, one queue each (those that take turns share one); empty: all
  /// on the CPU.
  std::vector<DeviceQueue> queues{};
  /// Replicas are its devices, for which whole steps are compiled (strategy tpu); null: LibTorch's.
  std::shared_ptr<const pjrt::Client> plugin{};
  Millis time_limit{kDefaultTimeLimit};
  int64_t piece_bytes = 0;  ///< of sums between hosts; 0: as fits their number (host_view.h)
  std::string asked{};  ///< what it was made of, in the lines that workers compare (AgreedLines)
  /// Workers are in sync, but meet at parameter servers alone, since any of them may be lost:
  /// `groups` are of the local replicas, `shape` is of all (Membership).
  bool apart = false;

  /// Fails the groups of a local rank, so that nobody waits for it in any of them.
  void abort(int local_rank, const std::string& reason) noexcept;
  bool in_turn() const noexcept { return groups.empty(); }
  bool on_devices() const noexcept { return !queues.empty(); }

  /// Whom a local replica can wait for: all of its group, or itself alone.
  Group group_of(int replica) const {
    return in_turn() ? Group() : groups[static_cast<size_t>(replica)];
  }
  /// That the local replicas run on: one each, or one for all.
  int threads() const noexcept { return in_turn() ? 1 : local; }
  int threads_here() const noexcept { return in_turn() ? 1 : here; }  ///< of this host's replicas
  /// The local replicas that run on the same thread as this one, one after the other.
  auto on_thread_of(int replica) const noexcept {
    const int each = local / threads(), first = replica / each * each;
    return std::views::iota(first, first + each);
  }
};

/// Moments of Strategy::run, on each local replica and in its thread.
enum class Moment : uint8_t {
  begins,
  ends,    ///< what was begun in it is finished
  failed,  ///< its function threw: whoever knows what is behind that throws it instead
};

/// What follows the world.
class WorldMember {
 public:
  virtual ~WorldMember() = default;
  /// The Strategy has entered another world: between runs, in order of construction.
  virtual void rebind(const World& world) = 0;
  virtual void in_run(Moment moment, int local) { (void)moment, (void)local; }
  /// The function of Strategy::run threw on that replica, for whom nobody is to wait. Never throws.
  virtual void fail(int local, const std::string& reason) noexcept { (void)local, (void)reason; }
};

namespace detail {

/// Runs fn(local) once for each local replica, at the same time when there are several that do not
/// take turns: for collective calls outside Strategy::run. Rethrows the first error.
void for_each_local(const World& world, const std::function<void(int)>& fn);

/// UsageError where the world before, or the next, has other processes, whose replicas cannot be
/// taken along.
void require_resizable(const World& before, const World& next);

}  // namespace detail

}  // namespace tutti
