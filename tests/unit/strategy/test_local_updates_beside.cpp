// Local updates beside what else changes a step: steps left out, clipped, of several passes, of a
// replica without samples, with parameters that stay as they are. Against loops in float64.
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/strategy/modules/replicated.h"

#include "tests/support/message_of.h"

namespace tutti::local_updates_beside {
namespace {

using test::message_of;
using testing::HasSubstr;

constexpr int kReplicas = 3, kSteps = 8;
constexpr double kRate = 0.05, kMomentum = 0.9;

using Weights = std::vector<at::Tensor>;

struct Case {
  std::string name;
  LocalUpdates local{.every = 3, .outer = {.learning_rate = 0.7, .momentum = 0.9}};
  int passes = 1;
  double global_norm = 0, value = 0;
  bool freezes = false;              // the first layer
  std::vector<int> left_out = {};    // steps whose gradients are NaN on the last replica
  std::vector<int> abstaining = {};  // steps of which the last replica has no samples

  bool leaves_out(int step) const { return std::ranges::find(left_out, step) != left_out.end(); }
  bool abstains(int step, int replica) const {
    return replica == kReplicas - 1 && std::ranges::find(abstaining, step) != abstaining.end();
  }
};

at::Tensor loss_of(torch::nn::Sequential& net, const Case& how, int step, int pass, int replica) {
  const auto generator =
      at::detail::createCPUGenerator(static_cast<uint64_t>(1000 * step + 100 * pass + replica));
  const at::ScalarType type = net->parameters()[0].scalar_type();
  const at::Tensor x = torch::rand({4, 5}, generator).to(type);
  const at::Tensor y = torch::rand({4, 2}, generator).to(type);
  const at::Tensor loss = (net->forward(x) - y).square().sum() / (4 * kReplicas * how.passes);
  const bool bad = how.leaves_out(step) && replica == kReplicas - 1 && pass == how.passes - 1;
  return bad ? loss * std::numeric_limits<double>::quiet_NaN() : loss;
}

torch::nn::Sequential net_of(bool freezes) {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(5, 3), torch::nn::Tanh(), torch::nn::Linear(3, 2));
  for (auto& parameter : net->ptr(0)->parameters()) parameter.set_requires_grad(!freezes);
  return net;
}

struct Trained {
  std::vector<Weights> each;  // of each replica
  Weights last;               // of the last averaging, those that are trained
  int64_t version = 0;
};

Weights copies(const Weights& of) {
  Weights all;
  for (const at::Tensor& one : of) all.push_back(one.detach().clone());
  return all;
}

Trained train(const std::string& kind, const Case& how) {
  Strategy strategy(
      {.kind = kind, .replicas = kReplicas, .threads_per_replica = 1, .local = how.local});
  const Replicated<torch::nn::Sequential> nets(strategy, [&] { return net_of(how.freezes); });
  Optimizer optimizer(nets,
                      optim::Recipe(optim::sgd({.learning_rate = kRate, .momentum = kMomentum}),
                                    {.value = how.value, .global_norm = how.global_norm}));
  for (int step = 0; step < kSteps; ++step)
    strategy.run([&](ReplicaContext& replica) {
      const int number = replica.replica();
      auto net = nets.local(replica);
      if (how.abstains(step, number)) return optimizer.abstain(replica);
      for (int pass = 0; pass + 1 < how.passes; ++pass)
        optimizer.accumulate(replica, loss_of(net, how, step, pass, number));
      const at::Tensor loss = loss_of(net, how, step, how.passes - 1, number);
      if (!std::isfinite(loss.item<float>())) return optimizer.leave_out(replica, loss);
      optimizer.minimize(replica, loss);
    });
  Trained trained{.version = optimizer.version()};
  for (int r = 0; r < kReplicas; ++r)
    trained.each.push_back(copies(optimizer.updater().parameters(r)));
  for (const auto& [name, tensor] : optimizer.updater().averaged()->last())
    trained.last.push_back(tensor.clone());
  return trained;
}

void clip(const Case& how, Weights& gradients) {
  double squares = 0;
  for (at::Tensor& one : gradients) {
    if (how.value > 0) one = one.clamp(-how.value, how.value);
    squares += one.square().sum().item<double>();
  }
  const double norm = std::sqrt(squares);
  if (how.global_norm > 0 && norm > how.global_norm)
    for (at::Tensor& one : gradients) one = one * (how.global_norm / norm);
}

// Of what is trained alone; what is frozen is looked at by the test.
Trained plainly(const Case& how) {
  std::vector<torch::nn::Sequential> nets;
  std::vector<Weights> own, velocity;
  Weights outer, outer_velocity;
  const auto trained_of = [](torch::nn::Sequential& net) {
    Weights all;
    for (const at::Tensor& one : net->parameters())
      if (one.requires_grad()) all.push_back(one);
    return all;
  };
  for (int r = 0; r < kReplicas; ++r) {
    nets.push_back(net_of(how.freezes));
    nets[r]->to(torch::kFloat64);
    own.push_back(trained_of(nets[r]));
    velocity.emplace_back();
    for (const at::Tensor& one : own[r]) velocity[r].push_back(torch::zeros_like(one));
  }
  outer = copies(own[0]);
  for (const at::Tensor& one : outer) outer_velocity.push_back(torch::zeros_like(one));
  Trained trained;
  for (int step = 0, since = 0; step < kSteps; ++step) {
    if (how.leaves_out(step)) continue;  // for all, whoever's gradients were bad
    ++trained.version;
    std::vector<Weights> gradients;
    for (int r = 0; r < kReplicas; ++r) {
      gradients.emplace_back();
      if (how.abstains(step, r)) continue;
      for (const at::Tensor& one : own[r]) gradients[r].push_back(torch::zeros_like(one));
      for (int pass = 0; pass < how.passes; ++pass) {
        const auto more = torch::autograd::grad({loss_of(nets[r], how, step, pass, r)}, own[r]);
        for (size_t i = 0; i < more.size(); ++i)
          gradients[r][i] = gradients[r][i] + kReplicas * more[i];
      }
    }
    const at::NoGradGuard no_grad;
    for (int r = 0; r < kReplicas; ++r) {
      if (gradients[r].empty()) continue;
      clip(how, gradients[r]);
      for (size_t i = 0; i < own[r].size(); ++i) {
        velocity[r][i] = kMomentum * velocity[r][i] + gradients[r][i];
        own[r][i].sub_(kRate * velocity[r][i]);
      }
    }
    if (++since < how.local.every) continue;
    since = 0;
    for (size_t i = 0; i < outer.size(); ++i) {
      at::Tensor change = torch::zeros_like(outer[i]);
      for (int r = 0; r < kReplicas; ++r) change += (own[r][i] - outer[i]) / kReplicas;
      outer_velocity[i] = how.local.outer.momentum * outer_velocity[i] + change;
      outer[i] = outer[i] + how.local.outer.learning_rate * outer_velocity[i];
      for (int r = 0; r < kReplicas; ++r) own[r][i].copy_(outer[i]);
    }
  }
  for (int r = 0; r < kReplicas; ++r) trained.each.push_back(copies(own[r]));
  trained.last = outer;
  return trained;
}

const Case kCases[] = {
    {.name = "nothing else"},
    {.name = "steps left out, the first and the last of a round", .left_out = {0, 3, 5}},
    {.name = "clipped by norm", .global_norm = 0.05},
    {.name = "clipped by value", .value = 0.02},
    {.name = "of three passes", .passes = 3},
    {.name = "of two passes, the second bad", .passes = 2, .left_out = {2, 4}},
    {.name = "frozen", .freezes = true},
    {.name = "frozen, clipped, of two passes, left out",
     .passes = 2,
     .global_norm = 0.05,
     .freezes = true,
     .left_out = {1}},
    {.name = "a replica without samples", .abstaining = {1, 2, 6}},
    {.name = "all of it",
     .local = {.every = 2, .outer = {.learning_rate = 0.7, .momentum = 0.9}},
     .passes = 2,
     .global_norm = 0.05,
     .freezes = true,
     .left_out = {3},
     .abstaining = {4}},
};

void expect_near(const Weights& got, const Weights& expected, const char* what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_TRUE(at::allclose(got[i].to(torch::kFloat64), expected[i], 1e-5, 1e-6))
        << what << ", parameter " << i;
}

TEST(LocalUpdatesBeside, AreWhatAPlainLoopMakes) {
  for (const Case& how : kCases) {
    SCOPED_TRACE(how.name);
    const Trained in_turn = train("one_device", how), expected = plainly(how);
    EXPECT_EQ(in_turn.version, expected.version);
    const Weights first = copies(net_of(how.freezes)->parameters());
    const auto trained_of = [&](const Weights& all) {
      return how.freezes ? Weights(all.begin() + 2, all.end()) : all;
    };
    for (int r = 0; r < kReplicas; ++r) {
      expect_near(trained_of(in_turn.each[r]), expected.each[r], "a replica's own");
      for (size_t i = 0; i < 2 && how.freezes; ++i)
        EXPECT_TRUE(in_turn.each[r][i].equal(first[i])) << "frozen " << i;
    }
    const Trained threads = train("mirrored", how);
    EXPECT_EQ(threads.version, in_turn.version);
    for (int r = 0; r < kReplicas; ++r)
      for (size_t i = 0; i < first.size(); ++i)
        EXPECT_TRUE(threads.each[r][i].equal(in_turn.each[r][i])) << r << " " << i;
    ASSERT_EQ(threads.last.size(), in_turn.last.size());
    for (size_t i = 0; i < threads.last.size(); ++i)
      EXPECT_TRUE(threads.last[i].equal(in_turn.last[i])) << i;
  }
}

// Two of these would agree if clipping, passes or what is left out did nothing.
TEST(LocalUpdatesBeside, EachCaseIsATrainingOfItsOwn) {
  std::vector<at::Tensor> all;
  for (const Case& how : kCases) {
    const at::Tensor last = train("one_device", how).each[0].back();
    for (const at::Tensor& other : all) EXPECT_FALSE(last.equal(other)) << how.name;
    all.push_back(last);
  }
}

// A scale would be of gradients that all replicas have.
TEST(LocalUpdatesBeside, LossScalingIsRefused) {
  for (const char* kind : {"one_device", "mirrored"}) {
    const Strategy strategy(
        {.kind = kind, .replicas = 2, .threads_per_replica = 1, .local = LocalUpdates{.every = 2}});
    const Replicated<torch::nn::Sequential> nets(strategy, [] { return net_of(false); });
    Optimizer optimizer(nets, optim::sgd({.learning_rate = kRate}));
    EXPECT_THAT(message_of<UsageError>([&] { optimizer.scale_losses(optim::LossScale()); }),
                HasSubstr("--local-steps"))
        << kind;
  }
}

}  // namespace
}  // namespace tutti::local_updates_beside
