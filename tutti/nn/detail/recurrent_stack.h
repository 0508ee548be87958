/// All layers of an LSTM or a GRU, forward and backward, without autograd: what RecurrentImpl and
/// the planned step call, so that both have the same bits. Not for users.
/// Thread rule: pure functions.
#pragma once

#include <torch/types.h>

#include <vector>

#include "tutti/nn/recurrent.h"

namespace tutti::nn::detail {

/// x        [batch, length, features], of the weights' dtype
/// steps    boolean [batch, length], which there are; undefined: all
/// weights  of each layer and direction weight_ih, weight_hh, bias_ih, bias_hh
/// kept     gets what recurrent_backward() reads; null: nothing does
///
/// Gives what RecurrentImpl::forward() does.
at::Tensor recurrent_forward(const RecurrentOptions& options, const at::Tensor& x,
                             const at::Tensor& steps, at::TensorList weights,
                             std::vector<at::Tensor>* kept);

/// Those not asked for are undefined.
struct RecurrentGradients {
  at::Tensor x;
  std::vector<at::Tensor> weights;
};
struct RecurrentNeeds {
  bool x = true;
  std::vector<bool> weights;
};
RecurrentGradients recurrent_backward(const RecurrentOptions& options, at::TensorList weights,
                                      at::TensorList kept, const at::Tensor& gradient,
                                      const RecurrentNeeds& needs);

}  // namespace tutti::nn::detail
