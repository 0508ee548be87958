/// World: the replicas that train together now, as the floors above comm see them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tutti/comm/group/group.h"
#include "tutti/mesh/mesh.h"
#include "tutti/queues/queue.h"

namespace tutti {

/// The groups of one rank on a Mesh: the ranks whose places differ from its own on these axes
/// alone.
struct MeshGroups {
  Group data;    ///< data and shard: who has the same part of the model
  Group stage;   ///< who has the other stages
  Group tensor;  ///< who has the other pieces of its layers
};

/// One *generation* of the replicas of a job. A changed membership makes a new World with a higher
/// generation; whatever was bound to the old one is bound anew (WorldMember).
struct World {
  int64_t generation = 0;
  int size = 1;             ///< ranks in the whole job: replicas in sync, but on a mesh (below)
  int first_rank = 0;       ///< rank of this worker's first replica
  int local = 1;            ///< replicas of this worker; their ranks are consecutive
  int here = 1;             ///< replicas on this host
  int first_rank_here = 0;  ///< number of this worker's first replica among those on this host
  /// One member per local replica. Empty when the replicas take turns on one thread (OneDevice):
  /// then nobody can wait for anybody.
  std::vector<Group> groups;
  ReductionShape shape = ReductionShape::flat(1);
  /// Of several processes whose replicas are all on GPUs: by local replica, the group of those with
  /// its number in all processes, for the devices' memory (engine nccl, or hier with it inside each
  /// host). Empty: there is none, and `no_device_groups` says why.
  std::vector<Group> device_groups{};
  std::string no_device_groups{};
  /// Where the local replicas compute, one queue each (those that take turns share one); empty: all
  /// on the CPU.
  std::vector<DeviceQueue> queues{};
  /// Each replica's part of a batch and of a slice, in proportion; empty: equal.
  std::vector<double> shares;
  Millis time_limit{kDefaultTimeLimit};
  std::string asked{};  ///< what it was made of, in the lines that workers compare (AgreedLines)
  bool chief = true;    ///< of all workers the one that prints and writes
  /// Workers are in sync, but meet at parameter servers alone, since any of them may be lost:
  /// `groups` are of the local replicas, `shape` is of all (Strategy::reduce).
  bool apart = false;
  /// Where the parts of a model are: by stage and tensor, so many ranks side by side compute one
  /// replica. 1: each rank is a replica.
  mesh::Mesh mesh{};
  int model_ranks = 1;
  std::vector<MeshGroups> mesh_groups{};  ///< by local rank; empty where model_ranks is 1
  std::vector<int> job_ranks{};  ///< of a part of a model: its ranks' numbers; empty: these
  int tensor_blocks = 1;         ///< that a layer is cut into, a constant of the job
  int microbatches = 1;          ///< that a replica's part of a batch comes in

  int num_replicas() const noexcept { return size / model_ranks; }  ///< in sync
  int replica_of(int rank) const noexcept { return rank / model_ranks; }
  mesh::Place place_of_local(int local_rank) const noexcept {
    return mesh.place_of(first_rank + local_rank);
  }
  /// The rank of a replica that has the model's outputs, and speaks for it.
  bool gives_outputs(int local_rank) const noexcept {
    const mesh::Place place = place_of_local(local_rank);
    return leads_stage(local_rank) &&
           place[static_cast<size_t>(mesh::Axis::stage)] + 1 == mesh.size(mesh::Axis::stage);
  }
  /// Of the ranks that have the same stage of a replica, the one that speaks for them.
  bool leads_stage(int local_rank) const noexcept {
    return place_of_local(local_rank)[static_cast<size_t>(mesh::Axis::tensor)] == 0;
  }

  /// Fails the groups of a local rank, so that nobody waits for it in any of them.
  void abort(int local_rank, const std::string& reason) noexcept;
  bool in_turn() const noexcept { return groups.empty(); }
  bool on_devices() const noexcept { return !queues.empty(); }
  int processes() const noexcept { return size / local; }
  int process() const noexcept { return first_rank / local; }  ///< this one's number
  /// True when every replica is a thread of this process: memory needs no sharing.
  bool one_process() const noexcept { return local == size; }
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

/// Runs fn(local) once for each local replica, at the same time when there are several: for
/// collective calls outside Strategy::run. Rethrows the first error.
void for_each_local(const World& world, const std::function<void(int)>& fn);

}  // namespace detail

}  // namespace tutti
