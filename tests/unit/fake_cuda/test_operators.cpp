// Operators beyond those of the networks: what losses, metrics and optimizers use; views, storages,
// precisions. Each gives the CPU's bits, queued.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "tutti/train/losses/losses.h"

#include "tests/support/fake_cuda/fake_cuda_test.h"
#include "tests/unit/fake_cuda/nets.h"

namespace tutti::test {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

const c10::Device kCuda0(c10::DeviceType::CUDA, 0);

// What `compute` makes of inputs on a device: x floats [6, 10], y labels, t floats of one to ten.
struct OperatorCase {
  const char* name;
  std::function<Tensors(Tensor x, Tensor y, Tensor t)> compute;
};

void PrintTo(const OperatorCase& each, std::ostream* out) { *out << each.name; }

Tensors compute_on(const OperatorCase& each, c10::Device device) {
  torch::manual_seed(3);
  const auto x = torch::randn({6, 10}).to(device).requires_grad_();
  const auto y = torch::randint(10, {6}).to(device);
  const auto t = torch::rand({6, 10}).to(device);
  const auto before = fake_cuda::counts();
  auto results = each.compute(x, y, t);
  if (results[0].requires_grad()) {
    results[0].sum().backward();
    results.push_back(x.grad());
  }
  const auto used = fake_cuda::counts() - before;
  EXPECT_EQ(used.host_waits, 0U) << testing::PrintToString(fake_cuda::synchronous_operators());
  for (auto& result : results) result = result.detach().cpu();
  return results;
}

Tensors pair(const std::tuple<Tensor, Tensor>& both) {
  return {std::get<0>(both), std::get<1>(both)};
}

namespace F = torch::nn::functional;

const std::vector<OperatorCase> kOperatorCases{
    {"topk", [](Tensor x, Tensor, Tensor) { return pair(x.topk(3, 1)); }},
    {"sort", [](Tensor x, Tensor, Tensor) { return pair(x.sort(1, true)); }},
    {"argmax", [](Tensor x, Tensor y, Tensor) { return Tensors{x.argmax(1).eq(y).sum()}; }},
    {"maximum", [](Tensor x, Tensor, Tensor) { return pair(x.max(1)); }},
    {"isfinite", [](Tensor x, Tensor, Tensor) { return Tensors{torch::isfinite(x).all()}; }},
    {"masked_fill", [](Tensor x, Tensor, Tensor) { return Tensors{x.masked_fill(x > 0, -1)}; }},
    {"where", [](Tensor x, Tensor, Tensor t) { return Tensors{torch::where(x > 0, x, t)}; }},
    {"cumsum", [](Tensor x, Tensor, Tensor) { return Tensors{x.cumsum(1)}; }},
    {"gather", [](Tensor x, Tensor y, Tensor) { return Tensors{x.gather(1, y.unsqueeze(1))}; }},
    {"index", [](Tensor x, Tensor y,
                 Tensor) { return Tensors{x.index({torch::arange(6, x.device()), y})}; }},
    {"scatter_add",
     [](Tensor x, Tensor y, Tensor) {
       return Tensors{
           torch::zeros({10}, x.options().requires_grad(false)).scatter_add(0, y, x.select(1, 0))};
     }},
    {"index_add",
     [](Tensor, Tensor y, Tensor t) {
       return Tensors{torch::zeros({10, 10}, t.options()).index_add(0, y, t)};
     }},
    {"one_hot_by_scatter",
     [](Tensor, Tensor y, Tensor t) {
       return Tensors{torch::zeros_like(t).scatter_(1, y.unsqueeze(1), 1)};
     }},
    {"cat_and_split",
     [](Tensor x, Tensor, Tensor t) {
       auto parts = torch::cat({x, t}, 1).split(5, 1);
       return Tensors{torch::stack(parts).sum(0), parts[1]};
     }},
    {"norms", [](Tensor x, Tensor, Tensor) { return Tensors{x.norm(), x.norm(2, 1), x.std()}; }},
    {"statistics",
     [](Tensor x, Tensor, Tensor) { return Tensors{x.mean(0), x.var(0), x.prod(1), x.median()}; }},
    {"activations",
     [](Tensor x, Tensor, Tensor) {
       return Tensors{F::elu(x) + F::leaky_relu(x) + F::softplus(x) + F::hardtanh(x) + F::mish(x) +
                      F::selu(x) + torch::sigmoid(x) + torch::hardswish(x)};
     }},
    {"losses_of_torch",
     [](Tensor x, Tensor, Tensor t) {
       return Tensors{F::mse_loss(x, t) + F::l1_loss(x, t) + F::smooth_l1_loss(x, t) +
                      F::binary_cross_entropy_with_logits(x, t) +
                      F::binary_cross_entropy(torch::sigmoid(x), t) + F::huber_loss(x, t) +
                      F::kl_div(x, t) + F::poisson_nll_loss(x, t)};
     }},
    {"embedding",
     [](Tensor x, Tensor y, Tensor) { return Tensors{torch::embedding(x, y.remainder(6))}; }},
    {"embedding_bag",
     [](Tensor x, Tensor y, Tensor) {
       return Tensors{std::get<0>(torch::embedding_bag(
           x, y.remainder(6), torch::tensor({0, 2}, torch::kLong).to(x.device(), true)))};
     }},
    {"attention",
     [](Tensor x, Tensor, Tensor) {
       const auto a = x.view({1, 2, 3, 10});
       return Tensors{torch::scaled_dot_product_attention(a, a * 2, a + 1),
                      torch::scaled_dot_product_attention(a, a, a, {}, 0, true)};
     }},
    {"attention_with_mask",
     [](Tensor x, Tensor, Tensor t) {
       const auto a = x.view({1, 2, 3, 10});
       const auto mask = t.narrow(0, 0, 3).narrow(1, 0, 3) > 0.3;
       return Tensors{torch::scaled_dot_product_attention(a, a, a, mask)};
     }},
    {"interpolate_and_pad",
     [](Tensor x, Tensor, Tensor) {
       const auto image = x.view({1, 1, 6, 10});
       return Tensors{torch::upsample_nearest2d(image, {12, 20}) +
                          torch::upsample_bilinear2d(image, {12, 20}, false),
                      torch::constant_pad_nd(image, {1, 1}),
                      torch::reflection_pad2d(image, {1, 1, 1, 1})};
     }},
    {"convolutions_of_other_dimensions",
     [](Tensor x, Tensor, Tensor t) {
       return Tensors{torch::conv1d(x.view({2, 3, 10}), t.narrow(1, 0, 6).reshape({4, 3, 3})),
                      torch::conv3d(x.detach().view({1, 1, 3, 4, 5}),
                                    t.narrow(0, 0, 1).narrow(1, 0, 8).reshape({1, 1, 2, 2, 2}))};
     }},
    {"views",
     [](Tensor x, Tensor, Tensor) {
       return Tensors{x.t().reshape({5, 12}) + x.unfold(1, 2, 2).reshape({5, 12}) +
                      x.expand({2, 6, 10}).select(0, 1).flip(1).view({5, 12})};
     }},
    {"in_place",
     [](Tensor, Tensor, Tensor t) {
       auto z = t.clone();
       z.add_(1).mul_(t).narrow(1, 0, 3).zero_();
       z.select(0, 1).copy_(t.select(0, 2));
       z.clamp_(0.2, 0.9).pow_(2);
       return Tensors{z, z.to(at::kDouble), z.to(at::kHalf), z.to(at::kLong)};
     }},
    {"outputs_that_are_resized",
     [](Tensor, Tensor, Tensor t) {
       auto sum = torch::empty({0}, t.options());
       torch::add_out(sum, t, t);
       auto joined = torch::empty({0}, t.options());
       torch::cat_out(joined, {t, sum});
       return Tensors{sum, joined.resize_({3, 5})};
     }},
    {"arange",
     [](Tensor x, Tensor, Tensor) {
       return Tensors{torch::arange(7, x.device()), torch::arange(0.5, 3, 0.5, x.device()),
                      torch::linspace(0, 1, 5, x.device()), torch::eye(3, x.device())};
     }},
    {"products",
     [](Tensor x, Tensor, Tensor t) {
       return Tensors{x.mm(t.t()), torch::bmm(x.view({2, 3, 10}), t.view({2, 10, 3})).sum(),
                      torch::einsum("ij,kj->ik", {x, t}), x.mv(t.select(0, 0)),
                      x.select(0, 0).dot(t.select(0, 1))};
     }},
    {"foreach",
     [](Tensor, Tensor, Tensor t) {
       Tensors some{t.clone(), t.clone() * 2};
       at::_foreach_mul_(some, 0.5);
       at::_foreach_add_(some, {t, t}, 2);
       auto norms = at::_foreach_norm(some);
       some.insert(some.end(), norms.begin(), norms.end());
       return some;
     }},
    {"scaler",
     [](Tensor, Tensor, Tensor t) {
       Tensors gradients{t.clone(), t.clone()};
       gradients[1].select(0, 0).fill_(INFINITY);
       auto found = torch::zeros({}, t.options()), scale = torch::full({}, 8., t.options()),
            growth = torch::zeros({}, t.options().dtype(at::kInt));
       at::_amp_foreach_non_finite_check_and_unscale_(gradients, found, scale.reciprocal());
       at::_amp_update_scale_(scale, growth, found, 2, 0.5, 100);
       return Tensors{gradients[0], found, scale, growth};
     }},
    {"fused_optimizers",
     [](Tensor, Tensor, Tensor t) {
       Tensors p{t.clone()}, m{torch::zeros_like(t)}, v{torch::zeros_like(t)},
           steps{torch::ones({}, t.options())};
       const auto found = torch::zeros({}, t.options()), scale = torch::full({}, 2., t.options());
       at::_fused_adam_(p, {t}, m, v, {}, steps, 1e-2, 0.9, 0.999, 0, 1e-8, false, false, scale,
                        found);
       at::_fused_adamw_(p, {t}, m, v, {}, steps, 1e-2, 0.9, 0.999, 0.1, 1e-8, false, false);
       at::_fused_sgd_(p, {t}, m, 0.1, 0.9, 0.01, 0, true, false, false, scale, found);
       return Tensors{p[0], m[0], v[0], steps[0]};
     }},
};

class Operators : public FakeCudaTest, public testing::WithParamInterface<OperatorCase> {};

TEST_P(Operators, HaveTheBitsOfTheCpuAndAreQueued) {
  const auto expected = compute_on(GetParam(), at::kCPU);
  in_all_orders(3, [&] {
    EXPECT_TRUE(same_bits(compute_on(GetParam(), kCuda0), expected))
        << compute_on(GetParam(), kCuda0) << expected;
  });
}

INSTANTIATE_TEST_SUITE_P(Each, Operators, testing::ValuesIn(kOperatorCases),
                         [](const auto& info) { return info.param.name; });

class LossesOfOurs : public FakeCudaTest {};

TEST_F(LossesOfOurs, AreQueuedSampleBySample) {
  for (const char* name :
       {"sparse_categorical_crossentropy", "categorical_crossentropy", "binary_crossentropy",
        "mean_squared_error", "huber", "hinge", "cosine_similarity", "poisson", "log_cosh"}) {
    SCOPED_TRACE(name);
    const auto loss = losses::loss_by_name(name);
    const OperatorCase each{name, [&](Tensor x, Tensor y, Tensor t) {
                              const bool labels = std::string_view(name).starts_with("sparse");
                              return Tensors{loss.kernel().per_sample(x, labels ? y : t)};
                            }};
    const auto expected = compute_on(each, at::kCPU);
    in_all_orders(1, [&] { EXPECT_TRUE(same_bits(compute_on(each, kCuda0), expected)); });
  }
}

class OneOperator : public FakeCudaTest {};

TEST_F(OneOperator, WhoseShapeDependsOnValuesRunsAtOnce) {
  const auto x = torch::tensor({0, 3, 0, 4}, torch::kFloat).to(kCuda0);
  const auto before = fake_cuda::counts();
  EXPECT_EQ(x.nonzero().size(0), 2);
  EXPECT_EQ(x.masked_select(x > 3).size(0), 1);
  EXPECT_EQ(x.index({x > 0}).size(0), 2);
  EXPECT_TRUE(torch::equal(x, x.clone()));
  const auto used = fake_cuda::counts() - before;
  EXPECT_GE(used.synchronous, 4U);
  EXPECT_GE(used.host_waits, used.synchronous);
}

TEST_F(OneOperator, RefusesTensorsOfAnotherDevice) {
  const auto x = torch::ones({4}, kCuda0);
  for (const auto& other : {torch::ones({4}), torch::ones({4}, c10::Device(c10::kCUDA, 1))}) {
    EXPECT_THROW(x.add(other), c10::Error);
    EXPECT_THROW(x.clone().addcmul_(x, other), c10::Error);
    EXPECT_THROW(torch::mm(x.view({2, 2}), other.view({2, 2})), c10::Error);
  }
  EXPECT_EQ(x.add(torch::tensor(2.f)).sum().item<double>(), 12) << "a number of the host is taken";
}

TEST_F(OneOperator, SaysAtTheCallWhatIsWrongWithShapes) {
  const auto x = torch::ones({4, 3}, kCuda0);
  EXPECT_THROW(x.mm(x), c10::Error);
  EXPECT_THROW(torch::conv2d(x, x), c10::Error);
  EXPECT_THROW(x.clone().copy_(torch::ones({5})), c10::Error);
}

TEST_F(OneOperator, KeepsChannelsLast) {
  const auto x = torch::randn({2, 3, 8, 8}).contiguous(at::MemoryFormat::ChannelsLast);
  const auto w = torch::randn({4, 3, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast);
  const auto on_cpu = torch::relu(torch::conv2d(x, w)) + 1;
  const auto ours = torch::relu(torch::conv2d(x.to(kCuda0), w.to(kCuda0))) + 1;
  EXPECT_EQ(ours.strides(), on_cpu.strides());
  EXPECT_TRUE(torch::equal(ours.cpu(), on_cpu));
}

TEST_F(OneOperator, RunsInTheReducedPrecisionOfAutocast) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const auto x = torch::randn({4, 8}, kCuda0), w = torch::randn({8, 8}, kCuda0).requires_grad_();
    at::autocast::set_autocast_enabled(at::kCUDA, true);
    at::autocast::set_autocast_dtype(at::kCUDA, dtype);
    const auto y = torch::mm(x, w);
    const auto loss = torch::cross_entropy_loss(y, torch::zeros({4}, y.options().dtype(at::kLong)));
    at::autocast::set_autocast_enabled(at::kCUDA, false);
    at::autocast::clear_cache();
    loss.backward();
    EXPECT_EQ(y.scalar_type(), dtype);
    EXPECT_EQ(loss.scalar_type(), at::kFloat);
    EXPECT_EQ(w.grad().scalar_type(), at::kFloat);
    EXPECT_TRUE(torch::equal(y.cpu(), x.cpu().to(dtype).mm(w.cpu().to(dtype))));
  }
}

}  // namespace
}  // namespace tutti::test
