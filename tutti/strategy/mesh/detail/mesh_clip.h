/// Clipping by norm where the parameters of a model are on several ranks of a mesh. Not for users.
///
/// Squares are added up by block (optim/rule.h) within a parameter, or within each of the
/// tensor_blocks that it is cut into, then by parameter in the order of the whole model: any mesh
/// with as many blocks gives the same factors. Thread rule: each local rank by its own thread.
#pragma once

#include <span>
#include <vector>

#include "tutti/optim/recipe.h"
#include "tutti/strategy/modules/whole_model.h"
#include "tutti/sync/world.h"

namespace tutti::detail {

class MeshClip {
 public:
  /// `names`, by local rank: of its parameters, in the order of their gradients.
  MeshClip(const World& world, const WholeModel& whole, const optim::Clip& clip,
           std::vector<std::vector<std::string>> names);

  /// The sums over the replicas, clipped, in memory of their own; undefined for a parameter that no
  /// replica used. `counts`: whether this replica has samples. Collective over the world.
  std::vector<at::Tensor> sums(int local, std::span<const at::Tensor> gradients, bool counts);

 private:
  struct Own {
    size_t entry = 0;  ///< in WholeModel::parameters()
    Piece piece;
    std::vector<int64_t> shape;
    DType dtype = DType::float32;
    bool counts = false;  ///< this rank's squares are the ones that count, of those that have it
  };
  struct Rank {
    std::vector<Own> parameters;
    MeshGroups groups;
  };
  void add_squares(const Own& own, const at::Tensor& sum, std::vector<double>& squares) const;
  std::vector<double> factors(std::span<const double> squares) const;

  optim::Clip clip_;
  size_t num_entries_;
  int blocks_;
  Millis limit_;
  std::vector<Rank> ranks_;
};

}  // namespace tutti::detail
