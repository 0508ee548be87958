/// Dense layers by the fastest kernel of matrix products that LibTorch carries on this processor
/// (dense_kernel.h). Thread rule: functions may be called from any thread; a Linear is a torch
/// module.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#include "tutti/nn/dense_kernel.h"

namespace tutti::nn {

enum class Activation : uint8_t { none, relu };

/// activation(x weight' + bias), with gradients.
///
/// x       [..., features], any number of rows
/// weight  [units, features]
/// bias    [units], or undefined
///
/// Gives [..., units]. What is not float32 on the CPU, or in another precision (autocast), is what
/// torch::linear makes of it, as is a backward pass that makes a graph (create_graph).
at::Tensor dense(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {},
                 Activation activation = Activation::none);

/// torch::nn::Linear by dense(): the same options, names, shapes and initial values.
class LinearImpl : public torch::nn::Cloneable<LinearImpl> {
 public:
  LinearImpl(int64_t in_features, int64_t out_features)
      : LinearImpl(torch::nn::LinearOptions(in_features, out_features)) {}
  explicit LinearImpl(const torch::nn::LinearOptions& options);

  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  /// x: [..., in_features].
  at::Tensor forward(const at::Tensor& x) { return dense(x, weight, bias); }

  torch::nn::LinearOptions options;
  at::Tensor weight;  ///< [out_features, in_features]
  at::Tensor bias;    ///< [out_features]; undefined without one
};
TORCH_MODULE(Linear);

}  // namespace tutti::nn
