// Waits of the host: how often, and what becomes of one without a deadline where a device is stuck.
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <functional>
#include <thread>

#include "tests/support/fake_cuda/fake_cuda_test.h"

namespace tutti::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

const c10::Device kDeviceA(c10::DeviceType::CUDA, 0);
const c10::Device kDeviceB(c10::DeviceType::CUDA, 1);

class Waits : public FakeCudaTest {
 protected:
  static uint64_t waits(const std::function<void()>& run) {
    const auto before = fake_cuda::counts();
    run();
    return (fake_cuda::counts() - before).host_waits;
  }
  c10::Stream stream() const { return guard_.getStream(kDeviceA); }

  c10::impl::VirtualGuardImpl guard_{c10::DeviceType::CUDA};
};

TEST_F(Waits, AreCounted) {
  const auto x = torch::ones({4}, kDeviceA);
  auto pinned = torch::empty({4}, torch::TensorOptions().pinned_memory(true));
  EXPECT_EQ(waits([&] { x.add(1).mul(2).sum(); }), 0U);
  EXPECT_EQ(waits([&] { pinned.copy_(x, true); }), 0U);
  EXPECT_EQ(waits([&] { x.clone().copy_(pinned, true); }), 0U);
  EXPECT_EQ(waits([&] { x.to(kDeviceB, true); }), 0U);
  EXPECT_EQ(waits([&] { pinned.copy_(x); }), 1U);
  EXPECT_EQ(waits([&] { x.cpu(); }), 1U);
  EXPECT_EQ(waits([&] { x.to(at::kCPU, true); }), 0U) << "LibTorch takes pinned memory for it";
  EXPECT_EQ(waits([&] { torch::empty({4}).copy_(x, true); }), 1U) << "pageable memory";
  EXPECT_EQ(waits([&] { torch::ones({4}).to(kDeviceA); }), 1U);
  EXPECT_EQ(waits([&] { x.sum().item<double>(); }), 1U);
  EXPECT_EQ(waits([&] { torch::equal(x, x + 1); }), 1U);
  EXPECT_EQ(waits([&] { x.nonzero(); }), 1U);
  EXPECT_EQ(waits([&] { guard_.synchronizeStream(stream()); }), 1U);
  EXPECT_EQ(waits([&] { guard_.synchronizeDevice(0); }), 1U);
  EXPECT_EQ(waits([&] { guard_.queryStream(stream()); }), 0U);
}

TEST_F(Waits, AHundredStepsOfTrainingNeedNone) {
  torch::nn::Linear layer(8, 2);
  layer->to(kDeviceA);
  torch::optim::SGD sgd(layer->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  const auto x = torch::randn({4, 8}, kDeviceA),
             y = torch::zeros({4}, x.options().dtype(at::kLong));
  EXPECT_EQ(waits([&] {
              for (int step = 0; step < 100; ++step) {
                sgd.zero_grad();
                torch::cross_entropy_loss(layer->forward(x), y).backward();
                sgd.step();
              }
            }),
            0U);
}

TEST_F(Waits, WithoutADeadlineThrowWhereTheDeviceIsStuck) {
  auto x = torch::ones({4}, kDeviceA);
  fake_cuda::run_all();
  fake_cuda::stick(0, 2);
  x.add_(1).add_(1).add_(1);
  c10::Event done(c10::DeviceType::CUDA);
  done.record(stream());
  for (int poll = 0; poll < 20; ++poll) EXPECT_FALSE(done.query());
  const auto words = AllOf(HasSubstr("would never end: 1 tasks left"), HasSubstr("stuck: cuda:0"));
  EXPECT_THAT([&] { done.synchronize(); }, ThrowsMessage<fake_cuda::WouldHang>(words));
  EXPECT_THAT([&] { guard_.synchronizeStream(stream()); },
              ThrowsMessage<fake_cuda::WouldHang>(words));
  EXPECT_THROW(guard_.synchronizeDevice(0), fake_cuda::WouldHang);
  EXPECT_THROW(x.sum().item<double>(), fake_cuda::WouldHang);
  EXPECT_THROW(x.cpu(), fake_cuda::WouldHang);
  EXPECT_THROW(x.nonzero(), fake_cuda::WouldHang);
  fake_cuda::unstick(0);
  EXPECT_EQ(x.sum().item<double>(), 16);
  EXPECT_TRUE(done.query());
}

TEST_F(Waits, ThrowWhereADeviceWaitsForAStuckOne) {
  const auto x = torch::ones({4}, kDeviceA);
  fake_cuda::run_all();
  fake_cuda::stick(0);
  const auto y = (x + 1).to(kDeviceB, true);
  EXPECT_THAT([&] { y.sum().item<double>(); },
              ThrowsMessage<fake_cuda::WouldHang>(HasSubstr("stuck: cuda:0")));
  EXPECT_EQ(torch::ones({4}, kDeviceA).size(0), 4) << "queueing goes on";
  fake_cuda::unstick(0);
  EXPECT_EQ(y.sum().item<double>(), 8);
}

TEST_F(Waits, TellOnceOfATaskThatFailed) {
  const auto x = torch::ones({3, 4}, kDeviceA);
  const auto labels = torch::full({3}, 9, torch::TensorOptions().dtype(at::kLong).device(kDeviceA));
  const auto loss = torch::nll_loss(x, labels);
  EXPECT_THAT([&] { loss.item<double>(); },
              ThrowsMessage<fake_cuda::TaskError>(
                  AllOf(HasSubstr("cuda:0"), HasSubstr("nll_loss"), HasSubstr("out of bounds"))));
  EXPECT_TRUE(std::isnan(loss.item<double>()));
}

TEST_F(Waits, OfManyThreadsDoNotMeet) {
  const auto work = [](int index) {
    const c10::Device device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index % 2));
    const c10::DeviceGuard on(device);
    auto x = torch::zeros({16}, device);
    for (int step = 0; step < 200; ++step) {
      x = x.to(c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(step % 2)), true);
      x.add_(1);
      if (step % 20 == 0) (void)x.sum().item<double>();
    }
    EXPECT_EQ(x.sum().item<double>(), 200 * 16);
  };
  in_all_orders(3, [&] {
    std::vector<std::jthread> threads;
    for (int index = 0; index < 4; ++index) threads.emplace_back(work, index);
  });
}

}  // namespace
}  // namespace tutti::test
