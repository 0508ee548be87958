// Two replicas as threads: each adds its half of both gradients and updates it, then takes the
// other's half. The oracle is one replica that takes the parts in turn, on the CPU.
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <barrier>
#include <memory>
#include <thread>

#include "tests/support/fake_cuda/fake_cuda_test.h"

namespace tutti::test {
namespace {

using at::Tensor;

constexpr int kReplicas = 2;
constexpr int kSteps = 6;
constexpr int64_t kPart = 8;  // samples

enum class PeerWait { none, for_gradients, for_parameters, before_overwriting };
thread_local PeerWait peer_about_to = PeerWait::none;

void block_on(c10::Event& event, const c10::Stream& stream, PeerWait why) {
  peer_about_to = why;
  event.block(stream);
  peer_about_to = PeerWait::none;
}

struct Batch {
  Tensor x, y;
};

Batch batch() {
  torch::manual_seed(1);
  return {torch::randn({kReplicas * kPart, 64}), torch::randint(10, {kReplicas * kPart})};
}

// Parameters, and their gradients, of one network as two flat tensors.
struct Flat {
  explicit Flat(c10::Device place) : device(place) {
    torch::manual_seed(7);
    net = torch::nn::Sequential(torch::nn::Linear(64, 32), torch::nn::ReLU(),
                                torch::nn::Linear(32, 10));
    net->to(device);
    const torch::NoGradGuard no_grad;
    int64_t all = 0;
    for (const auto& p : net->parameters()) all += padded(p);
    const auto zeros = torch::zeros({all}, device);
    values = zeros.clone(), gradients = zeros.clone(), m = zeros.clone(), v = zeros.clone();
    int64_t at = 0;
    for (auto& p : net->parameters()) {
      auto view = values.narrow(0, at, p.numel()).view(p.sizes());
      view.copy_(p);
      p.set_data(view);
      at += padded(p);
    }
  }

  static int64_t padded(const Tensor& p) { return (p.numel() + 15) / 16 * 16; }

  void backward(const Batch& all, int part) {
    const auto x = all.x.narrow(0, kPart * part, kPart).to(device, true);
    const auto y = all.y.narrow(0, kPart * part, kPart).to(device, true);
    for (auto& p : net->parameters()) p.mutable_grad().reset();
    auto each = torch::cross_entropy_loss(net->forward(x), y, {}, at::Reduction::None);
    (each.sum() / (kReplicas * kPart)).backward();
    const torch::NoGradGuard no_grad;
    int64_t at = 0;
    for (const auto& p : net->parameters()) {
      gradients.narrow(0, at, p.numel()).copy_(p.grad().view(-1));
      at += padded(p);
    }
  }

  void update(int64_t from, int64_t length, const Tensor& sum, int step) {
    const auto steps = torch::full({}, step, torch::TensorOptions().device(device));
    at::_fused_adam_({values.narrow(0, from, length)}, {sum}, {m.narrow(0, from, length)},
                     {v.narrow(0, from, length)}, {}, {steps}, 1e-2, 0.9, 0.999, 0.0, 1e-8, false,
                     false);
  }

  c10::Device device;
  torch::nn::Sequential net{nullptr};
  Tensor values, gradients, m, v;
};

Tensor in_turn() {
  Flat one(at::kCPU);
  const auto all = batch();
  for (int step = 1; step <= kSteps; ++step) {
    Tensor sum;
    for (int part = 0; part < kReplicas; ++part) {
      one.backward(all, part);
      sum = part == 0 ? one.gradients.clone() : sum.add_(one.gradients);
    }
    one.update(0, sum.numel(), sum, step);
  }
  return one.values;
}

struct Replica {
  explicit Replica(c10::Device device) : flat(device), ready(kCuda), updated(kCuda), taken(kCuda) {}
  static constexpr auto kCuda = c10::DeviceType::CUDA;
  Flat flat;
  c10::Event ready, updated, taken;
};

// One replica's part. Only threads meet at barriers; devices may be far behind, and wait by events.
void replicate(std::vector<std::unique_ptr<Replica>>& all, int rank, const Batch& data,
               std::barrier<>& meet) {
  Replica& me = *all[rank];
  const c10::DeviceGuard on(me.flat.device);
  const c10::impl::VirtualGuardImpl guard(Replica::kCuda);
  guard.synchronizeDevice(me.flat.device.index());
  const auto stream = guard.getNewStream(me.flat.device);
  const c10::StreamGuard use(stream);
  const int64_t half = me.flat.values.numel() / kReplicas;
  auto here = torch::empty({half}, me.flat.device);
  meet.arrive_and_wait();
  for (int step = 1; step <= kSteps; ++step) {
    me.flat.backward(data, rank);
    me.ready.record(stream);
    meet.arrive_and_wait();
    const torch::NoGradGuard no_grad;
    Tensor sum;
    for (int peer = 0; peer < kReplicas; ++peer) {
      if (peer != rank) block_on(all[peer]->ready, stream, PeerWait::for_gradients);
      here.copy_(all[peer]->flat.gradients.narrow(0, half * rank, half), true);
      sum = peer == 0 ? here.clone() : sum.add_(here);
    }
    me.flat.update(half * rank, half, sum, step);
    me.updated.record(stream);
    meet.arrive_and_wait();
    const int peer = 1 - rank;
    block_on(all[peer]->updated, stream, PeerWait::for_parameters);
    me.flat.values.narrow(0, half * peer, half)
        .copy_(all[peer]->flat.values.narrow(0, half * peer, half), true);
    me.taken.record(stream);
    meet.arrive_and_wait();
    // What a copy between devices reads is safe already: it waits in both directions.
    block_on(all[peer]->taken, stream, PeerWait::before_overwriting);
  }
  guard.synchronizeStream(stream);
}

bool is_right(const std::array<int, kReplicas>& devices, const Tensor& expected) {
  std::vector<std::unique_ptr<Replica>> all;
  for (const int device : devices) {
    all.push_back(std::make_unique<Replica>(
        c10::Device(Replica::kCuda, static_cast<c10::DeviceIndex>(device))));
  }
  const auto data = batch();
  std::barrier meet(kReplicas);
  {
    const std::jthread other([&] { replicate(all, 1, data, meet); });
    replicate(all, 0, data, meet);
  }
  return std::all_of(all.begin(), all.end(), [&](const auto& replica) {
    return torch::equal(replica->flat.values.cpu(), expected);
  });
}

class Peers : public FakeCudaTest, public testing::WithParamInterface<std::array<int, 2>> {
 protected:
  void SetUp() override {
    FakeCudaTest::SetUp();
    if (!IsSkipped()) expected_ = in_turn();
  }

  int wrong(PeerWait left_out, int seeds) {
    fake_cuda::leave_out_blocks([left_out] { return peer_about_to == left_out; });
    int times = 0;
    for (int seed = 0; seed < seeds; ++seed) {
      fake_cuda::set_order(fake_cuda::Order::random, seed);
      times += is_right(GetParam(), expected_) ? 0 : 1;
    }
    return times;
  }

  Tensor expected_;
};

TEST_P(Peers, HaveTheBitsOfOneReplicaInTurn) {
  in_all_orders(10, [&] { EXPECT_TRUE(is_right(GetParam(), expected_)); });
}

TEST_P(Peers, AWaitThatIsLeftOutIsFound) {
  EXPECT_EQ(wrong(PeerWait::none, 3), 0) << "the predicate is asked, and leaves nothing out";
  EXPECT_GT(wrong(PeerWait::for_gradients, 10), 0);
  EXPECT_GT(wrong(PeerWait::for_parameters, 10), 0);
}

INSTANTIATE_TEST_SUITE_P(On, Peers, testing::Values(std::array{0, 1}, std::array{0, 0}),
                         [](const auto& info) {
                           return info.param[0] == info.param[1] ? "OneDevice" : "TwoDevices";
                         });

}  // namespace
}  // namespace tutti::test
