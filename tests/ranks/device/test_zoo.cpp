// Networks of the zoo, trained by fit() and by a loop of one's own, on devices of their own and on
// parts of one: the weights of one device that takes the parts in turn, in whatever order devices
// work.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>

#include "tutti/nn/sample_context.h"

#include "tests/support/device_job.h"
#include "tests/support/fake_cuda/fake_cuda_test.h"
#include "tests/support/zoo_training.h"

namespace tutti::test {
namespace {

constexpr int64_t kBatch = 7;  // parts of 4 and 3, or of 3, 2 and 2: no batch norm sees one alone

struct ZooTraining {
  SmallNetwork network;
  int seeds;  ///< orders, beside eager and lazy
};

// Channels of resnet18 are multiples of 8: where a CPU has AVX2 and no more, oneDNN writes beyond
// the gradient of a 1x1 convolution with others.
const std::vector<ZooTraining>& trainings() {
  static const std::vector<ZooTraining> all{
      {{"mlp", {1, 28, 28}, 0.25}, 20},        {{"cnn", {1, 8, 8}, 0.25}, 20},
      {{"doodle_cnn", {1, 28, 28}, 0.25}, 20}, {{"resnet18", {3, 32, 32}, 1.0 / 8}, 6},
      {{"vit", {1, 28, 28}, 0.5}, 4},          {{"inception_v3", {3, 75, 75}, 1.0 / 16}, 1}};
  return all;
}

nn::Graph graph_of(const SmallNetwork& network) {
  return models::model_by_name(network.name,
                               {.classes = 3, .input = network.input, .width = network.width});
}

StrategyOptions at_place(const std::string& kind, int replicas, const std::string& device) {
  return {
      .kind = kind, .replicas = replicas, .threads_per_replica = 1, .device = device, .seed = 5};
}

std::string by_fit(const SmallNetwork& network, const StrategyOptions& options) {
  Model model(Strategy(options), [&] { return graph_of(network); });
  model.compile({.optimizer = optim::adam({.learning_rate = 1e-3}),
                 .loss = losses::sparse_categorical_crossentropy(),
                 .metrics = {metrics::accuracy()}});
  const auto history = model.fit(zoo_data(network.input, kBatch), {.epochs = 1, .verbose = 0});
  return model.weights_sha256() + fmt::format(" {}", history.column("train_loss").back());
}

at::Tensor by_loop(const SmallNetwork& network, const StrategyOptions& options) {
  Strategy strategy(options);
  const Replicated<nn::GraphModule> net(strategy,
                                        [&] { return nn::make_module(graph_of(network)); });
  Optimizer optimizer(net, optim::sgd({.learning_rate = 0.01, .momentum = 0.9}));
  const DistributedDataset data = strategy.distribute(zoo_data(network.input, kBatch));
  for (const auto& batch : data.epoch(0))
    strategy.run([&](ReplicaContext& replica) {
      const nn::SampleContext place(
          {.seed = 3, .step = batch.step(), .first_row = batch.first_row(replica)});
      const auto [x, y] = batch.local(replica);
      const auto each =
          torch::cross_entropy_loss(net.local(replica)->forward(x), y, {}, at::Reduction::None);
      optimizer.minimize(replica, each, batch.global_size());
    });
  const auto weights = flat_weights(net);
  return all_equal(weights, weights[0]) ? weights[0] : at::Tensor();
}

class ZooOnDevices : public FakeCudaTest, public testing::WithParamInterface<ZooTraining> {
 protected:
  void SetUp() override {
    FakeCudaTest::SetUp();
    if (!IsSkipped()) fake_cuda::set_devices(3);
  }
};

TEST_P(ZooOnDevices, TrainsWithTheBitsOfOneDeviceInTurn) {
  const auto& [network, seeds] = GetParam();
  for (const int replicas : {2, 3}) {
    fake_cuda::set_order(fake_cuda::Order::eager);
    const auto one = at_place("one_device", replicas, "cuda:0");
    const std::string fitted = by_fit(network, one);
    const at::Tensor looped = by_loop(network, one);
    for (const std::string device :
         {replicas == 2 ? "cuda:0,1" : "cuda:0,1,2", replicas == 2 ? "cuda:0x2" : "cuda:0x3"}) {
      SCOPED_TRACE(device);
      const auto there = at_place("mirrored", replicas, device);
      in_all_orders(seeds, [&] {
        EXPECT_EQ(by_fit(network, there), fitted);
        const at::Tensor weights = by_loop(network, there);
        EXPECT_TRUE(weights.defined()) << "replicas differ";
        EXPECT_TRUE(weights.defined() && torch::equal(weights, looped));
      });
    }
  }
  EXPECT_EQ(fake_cuda::counts().synchronous, 0)
      << testing::PrintToString(fake_cuda::synchronous_operators());
}

void PrintTo(const ZooTraining& training, std::ostream* out) { *out << training.network.name; }

INSTANTIATE_TEST_SUITE_P(All, ZooOnDevices, testing::ValuesIn(trainings()),
                         [](const auto& info) { return info.param.network.name; });

}  // namespace
}  // namespace tutti::test
