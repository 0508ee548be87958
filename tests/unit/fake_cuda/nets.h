/// Small networks of torch's own layers, and their training with nothing of ours in it.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

namespace tutti::test {

struct SmallNet {
  std::string name;
  std::vector<int64_t> input;  ///< of the whole batch, whose first is 8
  std::function<torch::nn::Sequential()> make;
};

inline void PrintTo(const SmallNet& net, std::ostream* out) { *out << net.name; }

inline const std::vector<SmallNet>& small_nets() {
  using namespace torch::nn;
  static const std::vector<SmallNet> all{
      {"mlp", {8, 64}, [] { return Sequential(Linear(64, 32), ReLU(), Linear(32, 10)); }},
      {"convolutions",
       {8, 2, 8, 8},
       [] {
         return Sequential(Conv2d(Conv2dOptions(2, 8, 3).padding(1)), BatchNorm2d(8), ReLU(),
                           MaxPool2d(2), Conv2d(Conv2dOptions(8, 8, 3).groups(8)), GELU(),
                           AdaptiveAvgPool2d(2), Flatten(), Linear(32, 10));
       }},
      {"norms",
       {8, 4, 6},
       [] {
         return Sequential(Conv1d(Conv1dOptions(4, 6, 3)), GroupNorm(GroupNormOptions(2, 6)),
                           Tanh(), LayerNorm(LayerNormOptions({4})), Flatten(), Linear(24, 10),
                           BatchNorm1d(10));
       }},
      {"transposed",
       {8, 3, 4, 4},
       [] {
         return Sequential(ConvTranspose2d(ConvTranspose2dOptions(3, 4, 2).stride(2)), SiLU(),
                           AvgPool2d(2),
                           Upsample(UpsampleOptions().scale_factor(std::vector{2., 2.})), Flatten(),
                           Linear(256, 10), LogSoftmax(1));
       }},
  };
  return all;
}

/// Loss and weights after `steps` of Adam, on the CPU.
inline std::vector<at::Tensor> train(const SmallNet& net, c10::Device device, int steps) {
  torch::manual_seed(7);
  auto model = net.make();
  const auto x = torch::randn(net.input);
  const auto y = torch::randint(10, {net.input[0]});
  model->to(device);
  torch::optim::Adam adam(model->parameters(), 1e-2);
  at::Tensor loss;
  for (int step = 0; step < steps; ++step) {
    adam.zero_grad();
    loss = torch::cross_entropy_loss(model->forward(x.to(device)), y.to(device));
    loss.backward();
    adam.step();
  }
  std::vector<at::Tensor> found{loss.detach().cpu()};
  for (const auto& p : model->parameters()) found.push_back(p.detach().cpu());
  for (const auto& b : model->buffers()) found.push_back(b.detach().cpu());
  return found;
}

inline bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const at::Tensor& x, const at::Tensor& y) {
                      return x.sizes() == y.sizes() && x.scalar_type() == y.scalar_type() &&
                             torch::allclose(x, y, 0, 0, /*equal_nan=*/true);
                    });
}

}  // namespace tutti::test
