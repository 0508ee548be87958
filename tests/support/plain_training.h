/// The oracle for training: one process, one model, plain LibTorch. Shares no line with the
/// library.
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

namespace tutti::test {

/// A small network with convolution and dense layers, for images [B, 1, 8, 8] and 4 classes.
inline torch::nn::Sequential small_cnn() {
  namespace nn = torch::nn;
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 6, 3).padding(1)), nn::ReLU(),
                        nn::MaxPool2d(2), nn::Flatten(), nn::Linear(6 * 4 * 4, 40), nn::ReLU(),
                        nn::Linear(40, 4));
}

struct PlainStep {
  at::Tensor x;  ///< the whole global batch
  at::Tensor y;
};

/// Trains a copy of `start` for the given global batches with mean cross-entropy and
/// torch::optim::Adam and returns its parameters in order.
inline std::vector<at::Tensor> train_plainly(const torch::nn::Sequential& start,
                                             const std::vector<PlainStep>& steps,
                                             double learning_rate, double epsilon) {
  auto model = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(start->clone());
  torch::optim::Adam optimizer(model->parameters(),
                               torch::optim::AdamOptions(learning_rate).eps(epsilon));
  for (const auto& [x, y] : steps) {
    optimizer.zero_grad();
    auto loss = torch::nn::functional::cross_entropy(model->forward(x), y);
    loss.backward();
    optimizer.step();
  }
  std::vector<at::Tensor> parameters;
  for (const auto& parameter : model->parameters())
    parameters.push_back(parameter.detach().clone());
  return parameters;
}

/// Largest |a - b| over largest |b|, over all tensors of two lists.
inline double relative_difference(const std::vector<at::Tensor>& a,
                                  const std::vector<at::Tensor>& b) {
  double difference = 0, scale = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference = std::max(difference, (a[i] - b[i]).abs().max().item<double>());
    scale = std::max(scale, b[i].abs().max().item<double>());
  }
  return difference / scale;
}

/// True when two lists have the same bits.
inline bool bits_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    const auto x = a[i].contiguous(), y = b[i].contiguous();
    if (x.sizes() != y.sizes() || x.scalar_type() != y.scalar_type()) return false;
    if (std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) != 0) return false;
  }
  return true;
}

}  // namespace tutti::test
