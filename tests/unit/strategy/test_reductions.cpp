// Training with a chosen reduction or compression: the bits of the parts in turn, what a resize
// keeps, and what a user's own reduction sees.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <map>
#include <string>

#include "tutti/base/error.h"
#include "tutti/comm/engine/reduce_kernels.h"
#include "tutti/comm/group/more_reductions.h"

#include "tests/support/message_of.h"
#include "tests/support/small_training.h"

namespace tutti {
namespace {

using test::bits_equal;
using test::options_of;
using test::relative_difference;
using test::Trained;
using ::testing::HasSubstr;

optim::Rule rule() { return optim::adam({.learning_rate = 0.01, .epsilon = 1e-4}); }

Trained train(const StrategyOptions& options) {
  return test::train(Strategy(options),
                     [](const ReplicatedModules& modules) { return Optimizer(modules, rule()); });
}

StrategyOptions reducing(const std::string& kind, int replicas, const std::string& reduction) {
  StrategyOptions options = options_of(kind, replicas);
  options.reduction = reduction;
  return options;
}

// Small tensors too: small_cnn has few large ones.
StrategyOptions compressing(const std::string& kind, int replicas, const char* text) {
  StrategyOptions options = options_of(kind, replicas);
  options.compression = compression_from(text);
  options.compression.min_elements = 40;
  return options;
}

// ---- reductions ----

class Reductions : public ::testing::TestWithParam<std::string> {};

TEST_P(Reductions, HaveTheBitsOfTheFusedStepAndOfThePartsInTurn) {
  for (int replicas : {1, 2, 3, 4}) {
    const auto expected = train(options_of("one_device", replicas));
    for (const char* kind : {"one_device", "mirrored"}) {
      const auto trained = train(reducing(kind, replicas, GetParam()));
      EXPECT_TRUE(bits_equal(trained.parameters, expected.parameters)) << kind << replicas;
      EXPECT_EQ(trained.losses, expected.losses) << kind << replicas;
    }
  }
}

TEST_P(Reductions, TakeSixteenBitsOnTheWire) {
  for (int replicas : {2, 3}) {
    auto in_turn = compressing("one_device", replicas, "bf16");
    auto threads = compressing("mirrored", replicas, "bf16");
    in_turn.reduction = threads.reduction = GetParam();
    const auto expected = train(in_turn).parameters;
    EXPECT_TRUE(bits_equal(train(threads).parameters, expected)) << replicas;
    EXPECT_FALSE(bits_equal(train(options_of("one_device", replicas)).parameters, expected));
  }
}

INSTANTIATE_TEST_SUITE_P(BuiltIn, Reductions, ::testing::ValuesIn(cross_device_names()),
                         [](const auto& info) { return info.param; });

// Adds in the order of rank, from what it gathers.
class InOrderOfRank final : public CrossDeviceReduction {
 public:
  explicit InOrderOfRank(std::atomic<int>* calls) : calls_(calls) {}
  std::string_view name() const noexcept override { return "in_order_of_rank"; }

  Work reduce(Group& group, MemorySpan data, ReduceOp, Millis limit) override {
    ++*calls_;
    const auto n = static_cast<size_t>(data.num_elements);
    all_.resize(n * static_cast<size_t>(group.size()));
    group.all_gather(data, span_of(std::span(all_)), limit).wait(limit);
    auto* sum = static_cast<float*>(data.data);
    std::copy_n(all_.begin(), n, sum);
    for (int r = 1; r < group.size(); ++r)
      for (size_t i = 0; i < n; ++i) sum[i] += all_[r * n + i];
    return {};
  }

  void reduce_in_turn(std::span<const MemorySpan> parts, ReduceOp, const ReductionShape&) override {
    ++*calls_;
    for (size_t r = 1; r < parts.size(); ++r)
      for (int64_t i = 0; i < parts[0].num_elements; ++i) at(parts[0], i) += at(parts[r], i);
    for (size_t r = 1; r < parts.size(); ++r)
      for (int64_t i = 0; i < parts[0].num_elements; ++i) at(parts[r], i) = at(parts[0], i);
  }

 private:
  static float& at(const MemorySpan& span, int64_t i) { return static_cast<float*>(span.data)[i]; }

  std::atomic<int>* calls_;
  std::vector<float> all_;
};

TEST(UsersReduction, IsWhatAddsTheGradients) {
  constexpr int kReplicas = 4;  // ((0 + 1) + 2) + 3 is not the built-in order
  std::atomic<int> calls = 0, made = 0;
  const auto with = [&](const char* kind) {
    StrategyOptions options = options_of(kind, kReplicas);
    options.make_reduction = [&] {
      ++made;
      return std::make_unique<InOrderOfRank>(&calls);
    };
    return options;
  };
  const auto in_turn = train(with("one_device"));
  EXPECT_GT(calls, 0);
  calls = made = 0;
  EXPECT_EQ(Strategy(with("mirrored")).options().reduction, "in_order_of_rank");
  made = 0;
  const auto threads = train(with("mirrored"));
  EXPECT_EQ(made, kReplicas + 1) << "one a replica, and one that says its name";
  EXPECT_GT(calls, 0);
  EXPECT_TRUE(bits_equal(threads.parameters, in_turn.parameters));
  const auto built_in = train(options_of("one_device", kReplicas));
  EXPECT_FALSE(bits_equal(threads.parameters, built_in.parameters));
  EXPECT_LT(relative_difference(threads.parameters, built_in.parameters), 1e-2);
}

TEST(ReductionChoice, WrongOnesAreRefused) {
  const auto message = [](const StrategyOptions& options) {
    return test::message_of<UsageError>([&] { Strategy strategy(options); });
  };
  EXPECT_THAT(message(reducing("mirrored", 2, "allreduce")),
              HasSubstr("did you mean \"all_reduce\"?"));
  auto both = compressing("mirrored", 2, "topk:0.1");
  both.make_reduction = [] { return cross_device_by_name("all_reduce")(); };
  EXPECT_THAT(message(both), HasSubstr("topk:0.1: it gathers"));
  auto none = options_of("mirrored", 2);
  none.make_reduction = [] { return std::unique_ptr<CrossDeviceReduction>(); };
  EXPECT_THAT(message(none), HasSubstr("returned null"));
  auto whole_buckets = options_of("mirrored", 2);
  whole_buckets.make_reduction = adasum();
  EXPECT_THAT(message(whole_buckets), HasSubstr("adasum combines whole buckets"));
  auto wrong = options_of("mirrored", 2);
  wrong.compression = {.kind = Compression::Kind::power_sgd, .rank = 0};
  EXPECT_THAT(message(wrong), HasSubstr("rank = 0"));
}

TEST(ReductionChoice, IsResolved) {
  EXPECT_EQ(Strategy(options_of("one_device", 2)).options().reduction, "fused");
  EXPECT_EQ(Strategy(compressing("one_device", 2, "onebit")).options().reduction, "all_reduce");
}

// ---- compression ----

class Compressions : public ::testing::TestWithParam<const char*> {};

TEST_P(Compressions, HaveTheBitsOfThePartsInTurn) {
  // 5 replicas: global batches of 2 leave three of them without samples.
  for (int replicas : {1, 2, 3, 5}) {
    const auto expected = train(compressing("one_device", replicas, GetParam()));
    for (int run = 0; run < 2; ++run) {
      const auto threads = train(compressing("mirrored", replicas, GetParam()));
      EXPECT_TRUE(bits_equal(threads.parameters, expected.parameters)) << replicas;
      EXPECT_EQ(threads.losses, expected.losses) << replicas;
    }
    EXPECT_FALSE(
        bits_equal(train(options_of("one_device", replicas)).parameters, expected.parameters));
  }
}

TEST_P(Compressions, BeforeTheirFirstStepChangeNothing) {
  auto options = compressing("mirrored", 2, GetParam());
  options.compression.start_step = 1'000;
  EXPECT_TRUE(bits_equal(train(options).parameters, train(options_of("mirrored", 2)).parameters));
  options.compression.start_step = 3;
  auto in_turn = options;
  in_turn.kind = "one_device";
  const auto late = train(options).parameters;
  EXPECT_TRUE(bits_equal(late, train(in_turn).parameters));
  EXPECT_FALSE(bits_equal(late, train(compressing("mirrored", 2, GetParam())).parameters));
}

TEST_P(Compressions, SendFewerBytes) {
  const auto bytes = [](const StrategyOptions& options) {
    Strategy strategy(options);
    Replicated<torch::nn::Sequential> net(strategy, test::small_cnn);
    Optimizer optimizer(net, rule());
    auto batches = strategy.distribute(test::small_data()).epoch(0);
    test::train_step(strategy, net, optimizer, *batches.begin());
    return optimizer.wire_bytes_per_step();
  };
  const int64_t plain = bytes(reducing("mirrored", 2, "all_reduce"));
  EXPECT_GE(plain, 4 * (54 + 6 + 3840 + 40 + 160 + 4)) << "S, and what aligns tensors";
  EXPECT_LT(plain, 4 * (54 + 6 + 3840 + 40 + 160 + 4) + 6 * 64);
  EXPECT_LT(bytes(compressing("mirrored", 2, GetParam())), plain * 6 / 10);
  EXPECT_EQ(bytes(compressing("one_device", 2, GetParam())),
            bytes(compressing("mirrored", 2, GetParam())));
  EXPECT_EQ(bytes(compressing("mirrored", 1, GetParam())), 0);
}

// A training that is looked at in between.
struct Training {
  explicit Training(const StrategyOptions& options) : strategy(options) {}

  void steps(int64_t from, int64_t to) {
    auto epoch = strategy.distribute(test::small_data()).epoch(0);
    for (int64_t step = from; step < to; ++step)
      test::train_step(strategy, net, optimizer,
                       *DistributedDataset::Batches::iterator(&epoch, step));
  }
  std::vector<at::Tensor> parameters() const {
    return test::copy_of(optimizer.updater().parameters(0));
  }

  Strategy strategy;
  Replicated<torch::nn::Sequential> net{strategy, test::small_cnn};
  Optimizer optimizer{net, rule()};
};

UpdaterState copy_of(UpdaterState state) {
  for (auto& [name, tensor] : state.tensors) tensor = tensor.clone();
  for (NamedTensors& replica : state.replicas)
    for (auto& [name, tensor] : replica) tensor = tensor.clone();
  return state;
}

// By parameter, the sum of what replicas have not sent yet; all in one row.
at::Tensor held_back(const std::vector<NamedTensors>& replicas) {
  std::map<std::string, at::Tensor> sums{{"", torch::zeros({1})}};
  for (const NamedTensors& replica : replicas)
    for (const auto& [name, tensor] : replica)
      if (name.starts_with("residual/"))
        sums[name] = sums[name].defined() ? sums[name] + tensor : tensor.clone();
  std::vector<at::Tensor> rows;
  for (const auto& [name, sum] : sums) rows.push_back(sum);
  return torch::cat(rows);
}

// What replica 2 has kept back goes to replica 0: threads and turns lose the same, nothing.
TEST_P(Compressions, GoOnAfterAResize) {
  const auto weights = [&](const char* kind) {
    Training training(compressing(kind, 3, GetParam()));
    training.steps(0, 2);
    training.strategy.resize(2);
    training.steps(2, 4);
    EXPECT_EQ(training.optimizer.version(), 4);
    return training.parameters();
  };
  EXPECT_TRUE(bits_equal(weights("mirrored"), weights("one_device")));
}

// A state that is put back into fewer replicas is that of a resize.
TEST_P(Compressions, GoOnFromAStateAsAfterAResize) {
  for (const int left : {1, 2, 3}) {
    Training whole(compressing("mirrored", 3, GetParam())),
        part(compressing("mirrored", left, GetParam()));
    whole.steps(0, 2);
    part.optimizer.updater().restore(copy_of(whole.optimizer.updater().state()),
                                     unique_parameters(*whole.net.modules().module(0)));
    if (left < 3) whole.strategy.resize(left);
    whole.steps(2, 4);
    part.steps(2, 4);
    EXPECT_TRUE(bits_equal(whole.parameters(), part.parameters())) << left;
  }
}

// Nothing of what replicas have held back is lost or doubled, also where there are more of them.
TEST_P(Compressions, KeepTheSumOfWhatIsHeldBack) {
  Training three(compressing("mirrored", 3, GetParam()));
  three.steps(0, 3);
  const UpdaterState state = copy_of(three.optimizer.updater().state());
  EXPECT_EQ(held_back(state.replicas).numel() == 1, std::string(GetParam()).ends_with("16"));
  for (const int replicas : {1, 2, 3, 5}) {
    Training other(compressing("mirrored", replicas, GetParam()));
    other.optimizer.updater().restore(state, unique_parameters(*three.net.modules().module(0)));
    const auto kept = other.optimizer.updater().state().replicas;
    EXPECT_EQ(std::ssize(kept), replicas);
    EXPECT_TRUE(torch::allclose(held_back(kept), held_back(state.replicas)));
  }
}

TEST(CompressionState, ThatDoesNotFitIsNamed) {
  Training plain(options_of("mirrored", 2)), coded(compressing("mirrored", 2, "powersgd:1")),
      other(compressing("mirrored", 2, "powersgd:2"));
  plain.steps(0, 1);
  coded.steps(0, 1);
  const auto parameters = unique_parameters(*plain.net.modules().module(0));
  const auto words = [&](Training& into, const Training& from) {
    const UpdaterState state = copy_of(from.optimizer.updater().state());
    return message_of<UsageError>([&] { into.optimizer.updater().restore(state, parameters); });
  };
  EXPECT_THAT(words(coded, plain), HasSubstr("it is of a training without"));
  EXPECT_THAT(words(other, coded), HasSubstr("factor/"));
}

INSTANTIATE_TEST_SUITE_P(Kinds, Compressions,
                         ::testing::Values("bf16", "fp16", "topk:0.05", "onebit", "powersgd:1"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase_if(name, [](char c) { return !std::isalnum(c); });
                           return name;
                         });

// Plain gradient descent on the mean of squares: what is kept back arrives in the end, so that the
// minimum is reached although a step sends one element of fifty.
TEST(ErrorFeedback, ReachesTheMinimum) {
  for (const char* text : {"topk:0.02", "onebit", "powersgd:1"}) {
    Strategy strategy(compressing("mirrored", 2, text));
    Replicated<torch::nn::Linear> net(
        strategy, [] { return torch::nn::Linear(torch::nn::LinearOptions(20, 5).bias(false)); });
    Optimizer optimizer(net, optim::sgd({.learning_rate = 0.01}));
    const auto target = torch::arange(100, at::kFloat).reshape({5, 20}) / 100;
    for (int step = 0; step < 1500; ++step)
      strategy.run([&](ReplicaContext& replica) {
        const auto& weight = net.local(replica)->weight;
        optimizer.minimize(replica, (weight - target).square().sum() / 2);
      });
    const auto off = (net.modules().module(0)->parameters()[0] - target).abs().max().item<float>();
    EXPECT_LT(off, 0.02) << text;
  }
}

}  // namespace
}  // namespace tutti
