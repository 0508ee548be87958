/// The oracle for training: one process, one model, plain LibTorch. Shares no line with the library.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <vector>

namespace tutti::test {

/// A small network with convolution and dense layers, for images [B, 1, 8, 8] and 4 classes.
torch::nn::Sequential small_cnn();

struct PlainStep {
  at::Tensor x;  ///< the whole global batch
  at::Tensor y;
};

/// Trains a copy of `start` for the given global batches with mean cross-entropy and torch::optim::Adam
/// and returns its parameters in order.
std::vector<at::Tensor> train_plainly(const torch::nn::Sequential& start,
                                      const std::vector<PlainStep>& steps, double learning_rate,
                                      double epsilon);

/// Largest |a - b| over largest |b|, over all tensors of two lists.
double relative_difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b);

/// True when two lists have the same bits.
bool bits_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b);

}  // namespace tutti::test
