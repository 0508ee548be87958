// SyncBatchNorm against torch::nn::BatchNorm over the whole batch in one thread, and against finite
// differences.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/base/error.h"
#include "tutti/nn/sync_batch_norm.h"
#include "tutti/strategy/modules/replicated.h"
#include "tutti/strategy/optimizer/loss_scaling.h"

#include "tests/support/finite_differences.h"
#include "tests/support/message_of.h"
#include "tests/support/small_training.h"

namespace tutti {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

using Options = torch::nn::BatchNormOptions;

struct NormCase {
  std::string name;
  std::vector<int64_t> rows;  ///< of each replica
  std::vector<int64_t> rest;  ///< channels, ...
  Options options;

  friend std::ostream& operator<<(std::ostream& out, const NormCase& one) {
    return out << one.name;
  }
  int replicas() const { return static_cast<int>(rows.size()); }
  /// Replica `rank`'s rows of one batch, far from zero mean.
  at::Tensor input(int rank) const {
    int64_t first = 0;
    for (int r = 0; r < rank; ++r) first += rows[r];
    return whole().narrow(0, first, rows[rank]);
  }
  at::Tensor whole() const {
    std::vector<int64_t> shape = rest;
    shape.insert(shape.begin(), std::accumulate(rows.begin(), rows.end(), int64_t{0}));
    int64_t count = 1;
    for (int64_t size : shape) count *= size;
    return (at::arange(count, at::kDouble) * 0.7).sin().view(shape) * 2 + 5;
  }
};

/// Weights that are not all one, so that they count in the gradient.
template <class Norm>
void set_weights(Norm& norm) {
  at::NoGradGuard no_grad;
  norm.to(at::kDouble);
  if (!norm.weight.defined()) return;
  for (int64_t c = 0; c < norm.weight.numel(); ++c) {
    norm.weight[c] = 0.5 + static_cast<double>(c);
    norm.bias[c] = 0.1 - 0.2 * static_cast<double>(c);
  }
}

/// A function of the output that is another one for each row of the batch.
at::Tensor loss_of(const at::Tensor& y, int64_t first_row) {
  const at::Tensor rows =
      at::arange(y.size(0), at::kDouble) + (1.0 + static_cast<double>(first_row));
  std::vector<int64_t> shape(static_cast<size_t>(y.dim()), 1);
  shape[0] = y.size(0);
  return (y * rows.view(shape) * 0.3).sin().sum();
}

class Norms : public ::testing::TestWithParam<NormCase> {
 protected:
  int64_t first_row(int rank) const {
    int64_t first = 0;
    for (int r = 0; r < rank; ++r) first += GetParam().rows[r];
    return first;
  }
  Replicated<nn::SyncBatchNorm> make(Strategy& strategy) const {
    return Replicated<nn::SyncBatchNorm>(strategy, [options = GetParam().options] {
      nn::SyncBatchNorm norm(options);
      set_weights(*norm);
      return norm;
    });
  }
};

void expect_close(const at::Tensor& got, const at::Tensor& expected, const std::string& what) {
  ASSERT_EQ(got.defined(), expected.defined()) << what;
  if (!got.defined()) return;
  EXPECT_EQ(got.sizes(), expected.sizes()) << what;
  EXPECT_EQ(got.scalar_type(), expected.scalar_type()) << what;
  EXPECT_TRUE(at::allclose(got, expected, 1e-10, 1e-11)) << what << "\n" << got << "\n" << expected;
}

TEST_P(Norms, AreThoseOfOneProcessWithTheWholeBatch) {
  const NormCase& one = GetParam();
  torch::nn::BatchNorm2d plain(one.options);
  set_weights(*plain);
  Strategy strategy = test::strategy_of("mirrored", one.replicas());
  auto net = make(strategy);
  for (int step = 0; step < 3; ++step) {
    at::Tensor whole = one.whole() * (1 + 0.1 * step);
    whole.requires_grad_();
    // BatchNorm2d wants four dimensions; the statistics are the same.
    const at::Tensor expected =
        plain(whole.reshape({whole.size(0), whole.size(1), -1, 1})).view(whole.sizes());
    plain->zero_grad();
    loss_of(expected, 0).backward();
    std::vector<at::Tensor> outputs(one.rows.size()), inputs(one.rows.size());
    strategy.run([&](ReplicaContext& replica) {
      const int rank = replica.rank();
      net.local(replica)->zero_grad();
      inputs[rank] = (one.input(rank) * (1 + 0.1 * step)).requires_grad_();
      outputs[rank] = net.local(replica)->forward(inputs[rank]);
      loss_of(outputs[rank], first_row(rank)).backward();
    });
    std::vector<at::Tensor> gradients;
    for (const auto& input : inputs) gradients.push_back(input.grad());
    expect_close(at::cat(outputs).detach(), expected.detach(), "outputs");
    expect_close(at::cat(gradients), whole.grad(), "gradients of inputs");
    if (!plain->weight.defined()) continue;
    at::Tensor weight = at::zeros_like(plain->weight), bias = at::zeros_like(plain->bias);
    for (int rank = 0; rank < one.replicas(); ++rank) {
      weight += net.modules().module(rank)->named_parameters()["weight"].grad();
      bias += net.modules().module(rank)->named_parameters()["bias"].grad();
    }
    expect_close(weight, plain->weight.grad(), "gradient of weight");
    expect_close(bias, plain->bias.grad(), "gradient of bias");
  }
  for (int rank = 0; rank < one.replicas(); ++rank)
    for (const auto& buffer : plain->named_buffers()) {
      const auto own = net.modules().module(rank)->named_buffers()[buffer.key()];
      expect_close(own, buffer.value(), buffer.key());
      EXPECT_TRUE(at::equal(own, net.modules().module(0)->named_buffers()[buffer.key()]))
          << "replicas must have the same bits";
    }
}

TEST_P(Norms, GradientsAreThoseOfFiniteDifferences) {
  const NormCase& one = GetParam();
  Strategy strategy = test::strategy_of("mirrored", one.replicas());
  auto net = make(strategy);
  test::expect_gradients(
      strategy, [&](int rank) { return one.input(rank); },
      [&](ReplicaContext& replica, const at::Tensor& x) {
        return loss_of(net.local(replica)->forward(x), first_row(replica.rank()));
      });
}

TEST_P(Norms, EvaluationIsThatOfBatchNormWithoutAnyOtherReplica) {
  const NormCase& one = GetParam();
  nn::SyncBatchNorm norm(one.options);
  torch::nn::BatchNorm2d plain(one.options);
  set_weights(*norm);
  set_weights(*plain);
  if (one.options.track_running_stats()) {
    norm->running_mean.fill_(4.5), plain->running_mean.fill_(4.5);
    norm->running_var.fill_(2.0), plain->running_var.fill_(2.0);
  }
  norm->eval();
  plain->eval();
  const at::Tensor x = one.whole();
  EXPECT_TRUE(
      at::equal(norm(x).flatten(1), plain(x.reshape({x.size(0), x.size(1), -1, 1})).flatten(1)));
}

INSTANTIATE_TEST_SUITE_P(
    Parts, Norms,
    ::testing::Values(
        NormCase{"two_equal_images", {2, 2}, {3, 2, 2}, Options(3)},
        NormCase{"three_uneven_images", {1, 3, 2}, {2, 2, 1}, Options(2)},
        NormCase{"rows_and_one_without", {3, 0, 1}, {4}, Options(4)},
        NormCase{"first_without", {0, 3}, {2, 3}, Options(2).momentum(0.3)},
        NormCase{"one_value_each", {1, 1}, {3}, Options(3).eps(0.1)},
        NormCase{"mean_of_all_batches", {2, 1}, {2, 2}, Options(2).momentum(std::nullopt)},
        NormCase{"without_weights", {2, 3}, {2, 2, 2}, Options(2).affine(false)},
        NormCase{"without_running_ones", {2, 2}, {2}, Options(2).track_running_stats(false)},
        NormCase{"alone", {4}, {3, 2}, Options(3)}),
    [](const auto& info) { return info.param.name; });

// float32 as in training, in both layouts of images; and 16 bits beside float32 parameters.
TEST(SyncBatchNorm, OfOtherDtypesAndLayouts) {
  const at::Tensor whole = (at::arange(4 * 3 * 4 * 4) * 0.37).sin().view({4, 3, 4, 4}) + 3;
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const auto layout : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
      torch::nn::BatchNorm2d plain(3);
      const at::Tensor x = whole.to(at::kFloat).to(dtype).contiguous(layout);
      const at::Tensor expected = plain(x.to(at::kFloat));
      Strategy strategy = test::strategy_of("mirrored", 2);
      Replicated<nn::SyncBatchNorm> net(strategy, [] { return nn::SyncBatchNorm(3); });
      const auto parts = strategy.run([&](ReplicaContext& replica) {
        at::Tensor part = x.narrow(0, replica.rank(), replica.rank() == 0 ? 1 : 3).detach();
        const at::Tensor y = net.local(replica)->forward(part.requires_grad_());
        y.sum().backward();
        EXPECT_EQ(part.grad().scalar_type(), dtype);
        EXPECT_LT(part.grad().abs().max().item<float>(), 1e-2) << "the sum does not depend on x";
        return y.detach();
      });
      const at::Tensor got = at::cat(parts.values());
      EXPECT_EQ(got.scalar_type(), dtype);
      const double tolerance = dtype == at::kFloat ? 1e-5 : 2e-2;
      EXPECT_TRUE(at::allclose(got.to(at::kFloat), expected, tolerance, tolerance));
      EXPECT_EQ(net.modules().module(0)->buffers()[0].scalar_type(), at::kFloat);
    }
}

TEST(SyncBatchNorm, HasTheNamesOfBatchNorm) {
  const nn::SyncBatchNorm norm(3);
  const torch::nn::BatchNorm1d plain(3);
  EXPECT_EQ(norm->named_parameters().keys(), plain->named_parameters().keys());
  EXPECT_EQ(norm->named_buffers().keys(), plain->named_buffers().keys());
  EXPECT_EQ(c10::str(*norm), "tutti::nn::SyncBatchNorm(3, eps=1e-05)");
}

TEST(SyncBatchNorm, StandsInModulesOfOnesOwn) {
  Strategy strategy = test::strategy_of("mirrored", 2);
  Replicated<torch::nn::Sequential> net(strategy, [] {
    return torch::nn::Sequential(torch::nn::Linear(4, 3), nn::SyncBatchNorm(3));
  });
  EXPECT_TRUE(nn::meets_in_forward(*net.modules().module(0)));
  EXPECT_FALSE(nn::meets_in_forward(*torch::nn::Sequential(torch::nn::BatchNorm1d(3))));
  const auto outputs = strategy.run([&](ReplicaContext& replica) {
    const at::Tensor x = torch::arange(8, at::kFloat).view({2, 4}).sin() + replica.rank();
    return net.local(replica)->forward(x).detach();
  });
  const at::Tensor sums = strategy.reduce(ReduceOp::sum, outputs, {0});
  EXPECT_TRUE(at::allclose(sums, torch::zeros({3}), 1e-5, 1e-5)) << sums;
}

// ---- beside reductions of gradients ----

// Which layers a replica uses depends on its data, so gradients become ready in orders of their
// own, before and after the backward passes that wait for each other.
struct Branches : torch::nn::Module {
  Branches() {
    first = register_module("first", torch::nn::Linear(2, 8));
    norm = register_module("norm", nn::SyncBatchNorm(8));
    wide = register_module("wide", torch::nn::Linear(8, 600));
    left = register_module("left", torch::nn::Linear(600, 600));
    right = register_module("right", torch::nn::Linear(600, 600));
  }
  at::Tensor forward(ReplicaContext& replica, const at::Tensor& x, int branch, bool gathers) {
    at::Tensor y = first(x);
    y = gathers ? y + nn::all_gather(replica, y).mean(0) : norm(y);
    y = wide(y.relu());
    if (branch != 1) y = left(y);
    if (branch != 0) y = right(y);
    return y.sum(1);
  }
  torch::nn::Linear first{nullptr}, wide{nullptr}, left{nullptr}, right{nullptr};
  nn::SyncBatchNorm norm{nullptr};
};

std::vector<at::Tensor> train_branches(const std::string& reduction, bool torch_optimizer,
                                       bool gathers) {
  StrategyOptions options = test::options_of("mirrored", 2);
  options.reduction = reduction;
  options.time_limit = Millis(10'000);
  Strategy strategy(options);
  Replicated<Branches> net(strategy, [] { return std::make_shared<Branches>(); });
  Optimizer optimizer =
      torch_optimizer ? Optimizer(net,
                                  [](std::vector<at::Tensor> parameters) {
                                    return std::make_unique<torch::optim::SGD>(parameters, 0.5);
                                  })
                      : Optimizer(net, optim::sgd({.learning_rate = 0.5}));
  const at::Tensor x = torch::arange(6, at::kFloat).view({3, 2}).sin();
  for (int step = 0; step < 6; ++step)
    strategy.run([&](ReplicaContext& replica) {
      const at::Tensor each = net.local(replica)->forward(replica, x + replica.rank(),
                                                          (step + replica.rank()) % 3, gathers);
      optimizer.minimize(replica, average_loss(each / 1e4, 6));
    });
  return test::copy_of(optimizer.updater().parameters(0));
}

// The fused step exchanges nothing before backward is over.
TEST(MeetingInBackward, GoesWithEveryReductionOfGradients) {
  for (const bool gathers : {false, true}) {
    const auto expected = train_branches("fused", false, gathers);
    for (const char* reduction : {"all_reduce", "to_one_device", "hierarchical_copy"})
      EXPECT_TRUE(test::bits_equal(train_branches(reduction, false, gathers), expected))
          << reduction << gathers;
    const auto by_torch = train_branches("fused", true, gathers);
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(at::allclose(by_torch[i], expected[i], 1e-5, 1e-6)) << i;
  }
}

// ---- refusals ----

std::string refused(const StrategyOptions& options,
                    const std::function<void(ReplicaContext&)>& fn) {
  Strategy strategy(options);
  return message_of<UsageError>([&] { strategy.run(fn); });
}

TEST(SyncBatchNorm, WrongUseIsNamed) {
  const StrategyOptions two{.kind = "mirrored", .replicas = 2, .threads_per_replica = 1};
  EXPECT_THAT(message_of<UsageError>([] { nn::SyncBatchNorm(2)(at::ones({2, 2})); }),
              HasSubstr("outside of Strategy::run"));
  EXPECT_THAT(refused(two, [](auto&) { nn::SyncBatchNorm(2)(at::ones({2, 3})); }),
              HasSubstr("got [2, 3], expected [batch, 2, ...]"));
  EXPECT_THAT(refused(two, [](auto&) { nn::SyncBatchNorm(2)(at::Tensor()); }),
              HasSubstr("got an undefined tensor, expected [batch, 2, ...]"));
  EXPECT_THAT(refused(two, [](auto&) { nn::SyncBatchNorm(2)(at::ones({2, 2}, at::kLong)); }),
              HasSubstr("got Long, expected Float or 16 bits"));
  EXPECT_THAT(
      refused(two,
              [](auto& r) {
                nn::SyncBatchNorm(2)(at::ones({2, 2}, r.rank() == 1 ? at::kDouble : at::kFloat));
              }),
      HasSubstr("got Double, expected Float or 16 bits"));
  EXPECT_THAT(refused(two, [](auto& r) { nn::SyncBatchNorm(2)(at::ones({r.rank(), 2})); }),
              HasSubstr("1 value a channel"));
  EXPECT_THAT(refused({.kind = "one_device", .replicas = 2},
                      [](auto&) { nn::SyncBatchNorm(2)(at::ones({2, 2})); }),
              AllOf(HasSubstr("SyncBatchNorm on replica 0 of 2"), HasSubstr("take turns")));
  EXPECT_THAT(
      refused(two,
              [](auto&) {
                const at::Tensor x =
                    at::rand({2, 2}, at::make_generator<at::CPUGeneratorImpl>(1)).requires_grad_();
                const at::Tensor y = nn::SyncBatchNorm(2)(x).sin().sum();
                torch::autograd::grad({y}, {x}, {}, true, true);
              }),
      HasSubstr("second derivatives"));
}

}  // namespace
}  // namespace tutti
