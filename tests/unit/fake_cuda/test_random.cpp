// Random numbers of devices: drawn by the call, whenever the task runs.
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/fake_cuda/fake_cuda_test.h"
#include "tests/unit/fake_cuda/nets.h"

namespace tutti::test {
namespace {

const c10::Device kOne(c10::DeviceType::CUDA, 0);
const c10::Device kOther(c10::DeviceType::CUDA, 1);

std::vector<at::Tensor> draws(c10::Device device) {
  torch::manual_seed(5);
  const auto x = torch::ones({50}, device).requires_grad_();
  const auto y = torch::dropout(x, 0.4, true);
  y.sum().backward();
  std::vector<at::Tensor> all{y,
                              x.grad(),
                              torch::rand({20}, device),
                              torch::randn({20}, device),
                              torch::randperm(20, device),
                              torch::randint(100, {20}, device),
                              torch::rand({5, 4}, device).multinomial(2),
                              torch::bernoulli(torch::full({20}, 0.5, device)),
                              torch::empty({20}, device).exponential_()};
  for (auto& each : all) each = each.detach().cpu();
  return all;
}

class Randoms : public FakeCudaTest {};

TEST_F(Randoms, DoNotDependOnTheOrderOfWork) {
  const auto expected = draws(kOne);
  in_all_orders(5, [&] { EXPECT_TRUE(same_bits(draws(kOne), expected)); });
  EXPECT_TRUE(same_bits(draws(kOther), expected)) << "manual_seed seeds all devices alike";
}

TEST_F(Randoms, LeaveTheHostsGeneratorAlone) {
  const auto host = at::detail::getDefaultCPUGenerator();
  torch::manual_seed(5);
  const auto before = host.get_state();
  torch::dropout(torch::rand({50}, kOne), 0.4, true).sum().item<double>();
  EXPECT_TRUE(torch::equal(host.get_state(), before));
}

TEST_F(Randoms, GoOnFromAStateThatWasKept) {
  auto generator = at::globalContext().defaultGenerator(kOne);
  torch::rand({3}, kOne);
  const auto state = generator.get_state();
  const auto expected = torch::rand({8}, kOne).cpu();
  EXPECT_FALSE(torch::equal(torch::rand({8}, kOne).cpu(), expected));
  generator.set_state(state);
  EXPECT_TRUE(torch::equal(torch::rand({8}, kOne).cpu(), expected));
}

TEST_F(Randoms, ComeFromAGeneratorOfTheirOwn) {
  auto own = at::globalContext().getAcceleratorHooksInterface(at::kCUDA).getNewGenerator(0);
  own.set_current_seed(3);
  const auto first = torch::rand({8}, own, kOne).cpu();
  torch::rand({8}, kOne);
  EXPECT_FALSE(torch::equal(torch::rand({8}, own, kOne).cpu(), first));
  auto copy = own.clone();
  EXPECT_TRUE(torch::equal(torch::rand({8}, own, kOne).cpu(), torch::rand({8}, copy, kOne).cpu()));
  own.set_current_seed(3);
  EXPECT_TRUE(torch::equal(torch::rand({8}, own, kOne).cpu(), first));
  EXPECT_THROW(torch::rand({8}, at::detail::createCPUGenerator(), kOne), c10::Error);
}

TEST_F(Randoms, KeepTheRightShareOfElements) {
  const auto kept = torch::dropout(torch::ones({20'000}, kOne), 0.25, true);
  EXPECT_NEAR(kept.mean().item<double>(), 1, 0.03);
  EXPECT_NEAR((kept == 0).to(at::kDouble).mean().item<double>(), 0.25, 0.02);
}

}  // namespace
}  // namespace tutti::test
