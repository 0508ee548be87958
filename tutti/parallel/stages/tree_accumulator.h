/// Sums of gradients that come one after another, with the bits of replicas that had one each.
///
/// Thread rule: one thread at a time.
#pragma once

#include <torch/types.h>

#include <vector>

namespace tutti::parallel {

/// Adds leaves 0, 1, 2, ... as ReductionShape::flat(n) does, where n is how many there are when
/// they are taken. A binary counter: after k leaves it holds one sum for each bit of k, so at most
/// log2(n) + 1 tensors a parameter. Where n is a power of two, the n leaves of one rank are a whole
/// subtree of a sum over ranks, which goes on from there.
///
/// A leaf may lack a parameter (undefined): it counts as zeros where another leaf has it. 16-bit
/// types are added in float32 and rounded once, as sums over ranks are. Leaves are never written
/// to, and need not be contiguous.
class TreeAccumulator {
 public:
  /// The next leaf: a tensor a parameter, as many in each leaf, of one shape and dtype.
  void add(const std::vector<at::Tensor>& leaf);

  /// The sums, in memory of their own; undefined where no leaf had one; nothing without leaves.
  /// Leaves nothing behind.
  std::vector<at::Tensor> take();

 private:
  struct Subtree {
    int level = 0;  ///< of 2^level leaves; 0: the leaf as it was given
    std::vector<at::Tensor> sums;
  };
  void join_last_two();

  std::vector<Subtree> subtrees_;  ///< levels decrease strictly
  std::vector<at::ScalarType> dtypes_;
};

}  // namespace tutti::parallel
