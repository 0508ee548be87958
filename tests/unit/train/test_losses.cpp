// Losses and weights: tensors without a strategy.
#include <torch/torch.h>

#include <filesystem>
#include <fstream>

#include "tutti/base/sha256.h"
#include "tutti/train/losses/losses.h"
#include "tutti/train/model/weights.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

/// What a loss gives for a batch, by kernel and by the obvious way.
struct Results {
  double total = 0;
  at::Tensor value, gradient;
};

Results fused(const Loss& loss, const at::Tensor& output, const at::Tensor& target, double scale,
              const at::Tensor& weights = {}) {
  Results results;
  const auto leaf = output.detach().clone().requires_grad_();
  results.value = loss.kernel().scaled_sum(leaf, target, scale, results.total, weights);
  results.value.backward();
  results.gradient = leaf.grad();
  return results;
}

Results obvious(const Loss& loss, const at::Tensor& output, const at::Tensor& target,
                double scale) {
  const auto leaf = output.detach().to(torch::kFloat64).requires_grad_();
  const auto wanted = target.is_floating_point() ? target.to(torch::kFloat64) : target;
  const auto each = loss.kernel().per_sample(leaf, wanted);
  (each.sum() * scale).backward();
  return {each.sum().item<double>(), each.sum() * scale, leaf.grad()};
}

void expect_equal(const Loss& loss, const at::Tensor& output, const at::Tensor& target) {
  const double scale = 1.0 / 96;
  const auto got = fused(loss, output, target, scale);
  const auto expected = obvious(loss, output, target, scale);
  EXPECT_NEAR(got.total, expected.total, 1e-6 * std::max(1.0, std::abs(expected.total)));
  EXPECT_NEAR(got.value.item<double>(), expected.value.item<double>(), 1e-6);
  EXPECT_TRUE(torch::allclose(got.gradient.to(torch::kFloat64), expected.gradient, 1e-5, 1e-9));
  double evaluated = 0;
  loss.kernel().add_to(output, target, evaluated);
  EXPECT_NEAR(evaluated, got.total, 1e-9 * std::max(1.0, std::abs(got.total)));
}

TEST(CrossEntropy, AgreesWithLibTorchInDouble) {
  torch::manual_seed(5);
  const auto loss = losses::sparse_categorical_crossentropy();
  for (int64_t batch : {1, 7, 64}) {
    for (int64_t classes : {1, 2, 10, 1000}) {
      const auto labels = torch::randint(classes, {batch}, torch::kInt64);
      expect_equal(loss, torch::randn({batch, classes}) * 3, labels);
    }
  }
  // Large logits must not overflow.
  expect_equal(loss, torch::randn({5, 4}) * 1000, torch::zeros({5}, torch::kInt64));
}

TEST(CrossEntropy, GradientTakesWhatStandsAboveInTheGraph) {
  const auto loss = losses::sparse_categorical_crossentropy();
  const auto output = torch::randn({4, 3});
  const auto labels = torch::tensor({0, 1, 2, 0}, torch::kInt64);
  const auto plain = fused(loss, output, labels, 0.25).gradient;
  const auto leaf = output.clone().requires_grad_();
  double total = 0;
  (loss.kernel().scaled_sum(leaf, labels, 0.25, total) * 3).backward();
  EXPECT_TRUE(torch::allclose(leaf.grad(), plain * 3));
}

TEST(CrossEntropy, OtherDtypesAndStridesTakeLibTorchsWay) {
  const auto loss = losses::sparse_categorical_crossentropy();
  const auto labels = torch::tensor({0, 1, 2, 0}, torch::kInt64);
  expect_equal(loss, torch::randn({3, 4}).t(), labels);
  const auto wide = torch::randn({4, 3}, torch::kFloat64);
  EXPECT_NEAR(fused(loss, wide, labels, 1).total, obvious(loss, wide, labels, 1).total, 1e-12);
}

TEST(CrossEntropy, NanStaysNan) {
  const auto output = torch::full({1, 3}, std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(std::isnan(
      fused(losses::sparse_categorical_crossentropy(), output, torch::zeros({1}, torch::kInt64), 1)
          .total));
}

TEST(CrossEntropy, NamesBadLabelsAndShapes) {
  const auto loss = losses::sparse_categorical_crossentropy();
  const auto output = torch::zeros({2, 3});
  const auto try_it = [&](const at::Tensor& target) {
    return message_of<Error>([&] { fused(loss, output, target, 1); });
  };
  EXPECT_THAT(try_it(torch::tensor({0, 3}, torch::kInt64)), HasSubstr("row 1"));
  EXPECT_THAT(try_it(torch::tensor({0, 3}, torch::kInt64)), HasSubstr("label 3"));
  EXPECT_THAT(try_it(torch::tensor({0, -1}, torch::kInt64)), HasSubstr("labels 0 to 2"));
  EXPECT_THAT(try_it(torch::zeros({2})), HasSubstr("expected floating [batch, classes]"));
  EXPECT_THAT(try_it(torch::zeros({3}, torch::kInt64)), HasSubstr("[3]"));
}

/// The fused pass as its first version was, in the order in which it must add.
void crossentropy_by_hand(const at::Tensor& output, const at::Tensor& labels, float scale,
                          at::Tensor& gradient, double& total) {
  const auto x = output.accessor<float, 2>();
  auto g = gradient.accessor<float, 2>();
  double all = 0;
  for (int64_t i = 0; i < output.size(0); ++i) {
    const float largest = output[i].max().item<float>();
    double sum = 0;
    for (int64_t c = 0; c < output.size(1); ++c) {
      g[i][c] = std::exp(x[i][c] - largest);
      sum += g[i][c];
    }
    const int64_t label = labels[i].item<int64_t>();
    const auto factor = static_cast<float>(static_cast<double>(scale) / sum);
    for (int64_t c = 0; c < output.size(1); ++c) g[i][c] *= factor;
    g[i][label] -= scale;
    all += std::log(sum) + static_cast<double>(largest) - static_cast<double>(x[i][label]);
  }
  total += all;
}

TEST(CrossEntropy, KeepsItsBitsWhateverWaysThereAreToAskForIt) {
  torch::manual_seed(7);
  const auto output = torch::randn({33, 10}) * 4;
  const auto labels = torch::randint(10, {33}, torch::kInt64);
  auto gradient = torch::empty_like(output);
  double total = 0;
  crossentropy_by_hand(output, labels, static_cast<float>(1.0 / 96), gradient, total);
  const auto expect_bits = [&](const Loss& loss, const at::Tensor& weights) {
    const auto got = fused(loss, output, labels, 1.0 / 96, weights);
    EXPECT_EQ(got.total, total);
    EXPECT_EQ(got.value.item<float>(), static_cast<float>(total * (1.0 / 96)));
    EXPECT_TRUE(torch::equal(got.gradient, gradient));
  };
  expect_bits(losses::sparse_categorical_crossentropy(), {});
  expect_bits(losses::sparse_categorical_crossentropy(), torch::ones({33}));
  expect_bits(losses::sparse_categorical_crossentropy({.from_logits = true}), {});
  const std::vector<double> ones(10, 1.0);
  expect_bits(losses::sparse_categorical_crossentropy({.class_weights = ones}), {});
}

TEST(MeanSquaredError, AgreesWithLibTorchInDouble) {
  torch::manual_seed(6);
  const auto loss = losses::mean_squared_error();
  expect_equal(loss, torch::randn({10, 1}), torch::randn({10, 1}));
  expect_equal(loss, torch::randn({10, 1}), torch::randn({10}));
  expect_equal(loss, torch::randn({10}), torch::randn({10, 1}));
  const auto wide = torch::randn({10}, torch::kFloat64);
  EXPECT_NEAR(fused(loss, wide, wide * 2, 1).total, (wide * wide).sum().item<double>(), 1e-12);
  expect_equal(loss, torch::randn({3, 4, 5}), torch::randn({3, 4, 5}));
  expect_equal(loss, torch::randn({5, 3}).t(), torch::randn({3, 5}));
  const auto message =
      message_of<Error>([&] { fused(loss, torch::zeros({4, 2}), torch::zeros({4}), 1); });
  EXPECT_THAT(message, HasSubstr("[4, 2]"));
}

TEST(Losses, AFunctionOfTheUsersOwn) {
  const Loss absolute("absolute", [](const at::Tensor& y, const at::Tensor& t) {
    return (y - t).abs().flatten(1).sum(1);
  });
  expect_equal(absolute, torch::randn({6, 2}), torch::randn({6, 2}));
  const Loss scalar("scalar", [](const at::Tensor& y, const at::Tensor&) { return y.sum(); });
  EXPECT_THAT(message_of<Error>([&] { fused(scalar, torch::zeros({2, 2}), torch::zeros({2}), 1); }),
              HasSubstr("one value a sample"));
}

// ---- weights ----

torch::nn::Sequential small() {
  torch::manual_seed(9);
  return torch::nn::Sequential(torch::nn::Linear(3, 2), torch::nn::BatchNorm1d(2));
}

std::filesystem::path scratch(const std::string& name) {
  return std::filesystem::path(::testing::TempDir()) / ("tutti_weights_" + name);
}

TEST(Weights, FingerprintIsOfNamesDtypesShapesAndBytesInNameOrder) {
  const ModelState state{{{"b", torch::tensor({1.0F, 2.0F})}, {"a", torch::tensor({{3.0F}})}},
                         {{"0", torch::tensor(7, torch::kInt64)}}};
  std::string bytes = "a float32 [1, 1]\n";
  const auto append = [&](auto value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  append(3.0F);
  bytes += "b float32 [2]\n";
  append(1.0F);
  append(2.0F);
  bytes += "0 int64 []\n";
  append(int64_t{7});
  EXPECT_EQ(weights_sha256(state), sha256_hex(bytes));
}

TEST(Weights, FingerprintSeesEveryChangeAndNoLayout) {
  const auto of = [](const std::string& name, const at::Tensor& tensor) {
    return weights_sha256({{{name, tensor}}, {}});
  };
  const auto tensor = torch::randn({4, 6});
  const auto same = of("w", tensor);
  EXPECT_EQ(of("w", tensor.t().contiguous().t()), same);
  EXPECT_NE(of("v", tensor), same);
  EXPECT_NE(of("w", tensor.reshape({6, 4})), same);
  EXPECT_NE(of("w", tensor.to(torch::kFloat64)), same);
  auto other = tensor.clone();
  other[3][5] += 1e-6;
  EXPECT_NE(of("w", other), same);
}

TEST(Weights, ComeBackFromAFileBitForBit) {
  const auto path = scratch("round_trip.safetensors");
  auto from = small();
  from->forward(torch::randn({8, 3}));
  save_weights(state_of(*from), path);
  auto to = small();
  {
    torch::NoGradGuard no_grad;
    for (auto& parameter : to->parameters()) parameter.zero_();
  }
  EXPECT_NE(weights_sha256(state_of(*to)), weights_sha256(state_of(*from)));
  load_weights(state_of(*to), path);
  EXPECT_EQ(weights_sha256(state_of(*to)), weights_sha256(state_of(*from)));
  EXPECT_TRUE(to->parameters()[0].requires_grad());
  std::filesystem::remove(path);
}

TEST(Weights, AFileThatDoesNotFitIsDescribedAndChangesNothing) {
  const auto path = scratch("misfit.safetensors");
  save_weights({{{"0.weight", torch::zeros({2, 4})},
                 {"0.bias", torch::zeros({2}, torch::kFloat64)},
                 {"1.weights", torch::zeros({2})},
                 {"1.bias", torch::zeros({2})}},
                {{"1.running_mean", torch::zeros({2})},
                 {"1.running_var", torch::zeros({2})},
                 {"1.num_batches_tracked", torch::zeros({}, torch::kInt64)}}},
               path);
  auto module = small();
  const auto before = weights_sha256(state_of(*module));
  const auto message = message_of<Error>([&] { load_weights(state_of(*module), path); });
  EXPECT_THAT(message, HasSubstr("\"0.weight\" is float32 [2, 4] in the file, float32 [2, 3]"));
  EXPECT_THAT(message, HasSubstr("\"0.bias\" is float64 [2] in the file"));
  EXPECT_THAT(message, HasSubstr("\"1.weight\", float32 [2] in the model, is not in the file"));
  EXPECT_THAT(message, HasSubstr("nearest there is \"1.weights\""));
  EXPECT_THAT(message, HasSubstr("\"1.weights\" is not in the model"));
  EXPECT_EQ(weights_sha256(state_of(*module)), before);
  std::filesystem::remove(path);
}

TEST(Weights, TiedParametersAreSavedOnceAndLoadUnderBothNames) {
  struct Tied : torch::nn::Module {
    Tied() {
      first = register_module("first", torch::nn::Linear(2, 2));
      second = register_module("second", torch::nn::Linear(2, 2));
      second->weight = second->register_parameter("tied", first->weight);
    }
    torch::nn::Linear first{nullptr}, second{nullptr};
  } module;
  const auto path = scratch("tied.safetensors");
  auto state = state_of(module);
  EXPECT_EQ(state.parameters.size(), 4U);
  auto both = state;
  both.parameters.emplace_back("second.tied", module.first->weight);
  save_weights(both, path);
  EXPECT_THROW(load_weights(state, path), DataError);
  EXPECT_NO_THROW(load_weights(state, path, all_names(module)));
  both.parameters.back().second = module.first->weight + 1;
  save_weights(both, path);
  const auto before = weights_sha256(state);
  EXPECT_THAT(message_of<DataError>([&] { load_weights(state, path, all_names(module)); }),
              AllOf(HasSubstr("\"second.tied\" has other values than \"first.weight\" in the file"),
                    HasSubstr("tied")));
  EXPECT_EQ(weights_sha256(state), before);
  std::filesystem::remove(path);
}

TEST(Weights, AnEarlierFileSurvivesAFailedSave) {
  EXPECT_THROW(save_weights(state_of(*small()), "/no/such/folder/w.safetensors"), Error);
  EXPECT_THROW(load_weights(state_of(*small()), "/no/such/folder/w.safetensors"), DataError);
}

}  // namespace
}  // namespace tutti
