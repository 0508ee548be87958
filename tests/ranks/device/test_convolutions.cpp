// Convolutions of a graph on devices, whose weights, gradients and states lie with channels
// innermost: the bits of one device in turn, and every element in its place.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tutti/nn/graph_module.h"

#include "tests/support/device_job.h"
#include "tests/support/fake_cuda/fake_cuda_test.h"

namespace tutti::test {
namespace {

class ConvolutionsOnDevices : public FakeCudaTest {
 protected:
  void SetUp() override {
    FakeCudaTest::SetUp();
    if (!IsSkipped()) fake_cuda::set_devices(3);
  }
};

std::shared_ptr<nn::GraphModule> small_convolutions() {
  const auto x = nn::input({3, 8, 8});
  auto y = nn::max_pool2d(2)(nn::relu()(nn::conv2d(8, 3, {.padding = 1})(x)));
  y = nn::relu()(nn::conv2d(8, 3)(y));
  return nn::make_module(nn::Graph(x, nn::linear(4)(nn::flatten()(y))));
}

struct Convolved {
  std::vector<at::Tensor> weights;
  UpdaterState state;
};

Convolved convolve(const std::string& kind, int replicas, const std::string& device, int steps,
                   const Convolved* from = nullptr) {
  Strategy strategy(device_options({.kind = kind, .replicas = replicas, .device = device}));
  Replicated<nn::GraphModule> net(strategy, small_convolutions);
  Optimizer optimizer(net, optim::adam({.learning_rate = 0.01}));
  if (from != nullptr) {
    NamedTensors values;
    int64_t at = 0;
    for (const auto& [name, parameter] : unique_parameters(*net.modules().module(0))) {
      const int64_t count = parameter.numel();
      values.emplace_back(name, from->weights[0].narrow(0, at, count).view(parameter.sizes()));
      at += count;
    }
    optimizer.updater().restore(from->state, values);
  }
  for (int step = 0; step < steps; ++step)
    strategy.run([&](ReplicaContext& replica) {
      for (const at::Tensor& parameter : net.local(replica)->parameters())
        EXPECT_TRUE(parameter.dim() != 4 || replica.device().is_cpu() ||
                    parameter.is_contiguous(at::MemoryFormat::ChannelsLast));
      const int64_t rows = 6 / replica.num_replicas_in_sync(), first = rows * replica.rank();
      const auto x = torch::sin(torch::arange(6 * 192, at::kFloat) + step).view({6, 3, 8, 8});
      const auto y = torch::arange(first, first + rows).remainder(4).to(replica.device());
      const auto made = net.local(replica)->forward(x.narrow(0, first, rows).to(replica.device()));
      const auto each = torch::cross_entropy_loss(made, y, {}, at::Reduction::None);
      optimizer.minimize(replica, average_loss(each, 6));
    });
  Convolved made{flat_weights(net), optimizer.updater().state()};
  for (auto& [name, tensor] : made.state.tensors) tensor = tensor.cpu().clone();
  return made;
}

double apart(const Convolved& one, const Convolved& other) {
  double most = (one.weights[0] - other.weights[0]).abs().max().item<double>();
  for (size_t i = 0; i < one.state.tensors.size(); ++i)
    most = std::max(
        most,
        (one.state.tensors[i].second - other.state.tensors[i].second).abs().max().item<double>());
  return most;
}

TEST_F(ConvolutionsOnDevices, HaveChannelsInnermost) {
  const Convolved cpu = convolve("one_device", 2, "cpu", 4);
  fake_cuda::set_order(fake_cuda::Order::eager);
  const Convolved turn = convolve("one_device", 2, "cuda:0", 4);
  EXPECT_LT(apart(turn, cpu), 1e-3);
  for (const auto& [replicas, device] : {std::pair{2, "cuda:0,1"}, {2, "cuda:1x2"}})
    in_all_orders(8, [&] {
      const Convolved found = convolve("mirrored", replicas, device, 4);
      EXPECT_TRUE(all_equal(found.weights, turn.weights[0])) << device;
      EXPECT_EQ(apart(found, turn), 0) << device;
    });
  const Convolved alone = convolve("mirrored", 1, "cuda:1", 4);
  EXPECT_LT(apart(alone, cpu), 1e-3);
  // Weights and states go to the CPU and back as they are.
  EXPECT_EQ(apart(convolve("one_device", 2, "cpu", 0, &turn), turn), 0);
  EXPECT_EQ(apart(convolve("mirrored", 1, "cuda:2", 0, &cpu), cpu), 0);
  EXPECT_EQ(apart(convolve("mirrored", 3, "cuda", 0, &cpu), cpu), 0);
}

}  // namespace
}  // namespace tutti::test
