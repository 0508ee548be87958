/// Topology: where the replicas of a job are, and how its work is cut. Nothing of how they talk:
/// whoever asks only which samples, which part of the model or which number is whose needs no more.
/// Thread rule: a value; const functions from any thread.
#pragma once

#include <vector>

#include "tutti/base/reduction_shape.h"
#include "tutti/mesh/mesh.h"

namespace tutti::mesh {

struct Topology {
  int size = 1;             ///< ranks in the whole job: replicas in sync, but on a mesh (below)
  int first_rank = 0;       ///< rank of this worker's first replica
  int local = 1;            ///< replicas of this worker; their ranks are consecutive
  int here = 1;             ///< replicas on this host
  int first_rank_here = 0;  ///< number of this worker's first replica among those on this host
  bool chief = true;        ///< of all workers the one that prints and writes
  ReductionShape shape = ReductionShape::flat(1);
  /// Where the parts of a model are: by stage and tensor, so many ranks side by side compute one
  /// replica.
  Mesh mesh{};
  std::vector<int> job_ranks{};  ///< of a part of a model: its ranks' numbers; empty: these
  /// Each replica's part of a batch and of a slice, in proportion; empty: equal.
  std::vector<double> shares{};
  int microbatches = 1;   ///< that a replica's part of a batch comes in
  int tensor_blocks = 1;  ///< that a layer is cut into, a constant of the job

  int model_ranks() const noexcept { return mesh.model_ranks(); }     ///< 1: each rank is a replica
  int num_replicas() const noexcept { return size / model_ranks(); }  ///< in sync
  int replica_of(int rank) const noexcept { return rank / model_ranks(); }
  Place place_of_local(int local_rank) const noexcept {
    return mesh.place_of(first_rank + local_rank);
  }
  /// The rank of a replica that has the model's outputs, and speaks for it.
  bool gives_outputs(int local_rank) const noexcept {
    return leads_stage(local_rank) &&
           place_of_local(local_rank)[static_cast<size_t>(Axis::stage)] + 1 ==
               mesh.size(Axis::stage);
  }
  /// Of the ranks that have the same stage of a replica, the one that speaks for them.
  bool leads_stage(int local_rank) const noexcept {
    return place_of_local(local_rank)[static_cast<size_t>(Axis::tensor)] == 0;
  }
  /// 1: every replica is a thread of this one, and memory needs no sharing.
  int processes() const noexcept { return size / local; }
  int process() const noexcept { return first_rank / local; }  ///< this one's number
};

}  // namespace tutti::mesh
