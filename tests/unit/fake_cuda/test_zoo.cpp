// Networks of the zoo: forward, backward and an update have the CPU's bits, and no operator of them
// runs at once.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/nn/dense.h"
#include "tutti/nn/dropout.h"

#include "tests/support/fake_cuda/fake_cuda_test.h"
#include "tests/support/zoo_training.h"

namespace tutti::test {
namespace {

class FakeZoo : public FakeCudaTest, public testing::WithParamInterface<SmallNetwork> {
 protected:
  // Gradients and batch statistics after a forward and a backward pass.
  std::vector<at::Tensor> pass(c10::Device device) {
    const auto& [name, input, width] = GetParam();
    torch::manual_seed(2);
    auto module = nn::make_module(
        models::model_by_name(name, {.classes = 3, .input = input, .width = width}));
    module->set_planned(false);
    for (const auto& layer : module->modules()) {  // its mask is made on the host
      if (auto* const dropout = layer->as<nn::DropoutImpl>()) dropout->eval();
    }
    std::vector<int64_t> shape = input;
    shape.insert(shape.begin(), 2);
    const auto x = torch::randn(shape).to(device);
    const auto y = torch::randint(3, {2}).to(device);
    module->to(device);
    const auto before = fake_cuda::counts();
    auto loss = torch::cross_entropy_loss(module->forward(x), y);
    loss.backward();
    const auto used = fake_cuda::counts() - before;
    EXPECT_EQ(used.host_waits, 0U);
    EXPECT_EQ(used.synchronous, 0U) << testing::PrintToString(fake_cuda::synchronous_operators());
    std::vector<at::Tensor> found{loss.detach().cpu()};
    for (const auto& p : module->parameters()) found.push_back(p.grad().cpu());
    for (const auto& b : module->buffers()) found.push_back(b.cpu());
    return found;
  }
};

TEST_P(FakeZoo, HasTheBitsOfTheCpuAndNothingRunsAtOnce) {
  const nn::DenseKernel chosen = nn::dense_kernel();
  nn::use_dense_kernel(nn::DenseKernel::blas);  // that of LibTorch's operators
  const auto expected = pass(at::kCPU);
  nn::use_dense_kernel(chosen);
  in_all_orders(1, [&] {
    const auto found = pass(c10::Device(c10::DeviceType::CUDA, 0));
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_TRUE(torch::equal(found[i], expected[i])) << i << " of " << found.size();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Each, FakeZoo, testing::ValuesIn(small_zoo()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tutti::test
