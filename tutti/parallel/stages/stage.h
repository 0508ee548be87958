/// Stage: consecutive layers of a model, as a pipeline computes them on one rank.
///
/// Thread rule: a value; what it holds belongs to the rank's own thread.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/base/dtype.h"

namespace tutti::parallel {

/// A tensor that goes from a stage to the next: [batch, shape...].
struct Border {
  std::vector<int64_t> shape;    ///< of one sample
  DType dtype = DType::float32;  ///< floating ones have a gradient, which comes back
  bool operator==(const Border&) const = default;
};

/// A parameter that two stages read (the table of an embedding, and the head that has its weight).
/// The first of them owns it and trains it; the second has a copy, which is given the new values
/// after each update, and sends its gradients there.
struct Tie {
  std::string name;      ///< of the owner's parameter in the whole model
  at::Tensor parameter;  ///< this stage's: the owner's own, or the copy
  int owner = 0;         ///< stage
  int reader = 0;        ///< stage, after the owner
};

/// Layers of a stage that backward goes through on their own.
struct Span {
  std::function<std::vector<at::Tensor>(at::TensorList)> forward;
  bool recompute = false;  ///< keeps its inputs alone; backward runs forward again
  std::vector<const torch::nn::Module*> layers{};  ///< of the stage's module; empty: all of it
};

struct Stage {
  std::shared_ptr<torch::nn::Module> module;
  /// The first stage's inputs are the model's, the last one's outputs as well. Of no sample:
  /// tensors of no row.
  std::function<std::vector<at::Tensor>(at::TensorList)> forward;
  std::vector<Border> inputs{};   ///< from the stage before; empty: the first
  std::vector<Border> outputs{};  ///< to the next; empty: the last. They may be inputs that go by
  std::vector<Tie> ties{};        ///< that this stage is an end of
  /// One behind the other they give the bits of forward; what goes by a span is given as it is.
  /// Empty: all that autograd keeps of forward is kept.
  std::vector<Span> spans{};
};

}  // namespace tutti::parallel
