// Training in bfloat16 with float32 parameters, and with losses that are scaled.
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <cmath>
#include <set>

#include "tutti/nn/graph_module.h"
#include "tutti/nn/layers.h"

#include "tests/support/expect.h"
#include "tests/support/uneven.h"
#include "tests/unit/train/small_model.h"

namespace tutti {
namespace {

/// A convolution, a batch norm, dropout, and one dense layer that is used twice.
struct EveryKindImpl : torch::nn::Module {
  EveryKindImpl() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).padding(1)));
    norm = register_module("norm", torch::nn::BatchNorm2d(4));
    shared = register_module("shared", torch::nn::Linear(64, 64));
    last = register_module("last", torch::nn::Linear(64, 3));
  }
  at::Tensor forward(const at::Tensor& x) {
    auto y = torch::relu(norm(conv(x))).flatten(1);
    y = torch::relu(shared(y));
    y = torch::relu(shared(y));
    seen = y.scalar_type();
    return last(y);
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear shared{nullptr}, last{nullptr};
  at::ScalarType seen = at::kFloat;
};
TORCH_MODULE(EveryKind);

data::Dataset images(int64_t count) {
  std::vector<float> x;
  std::vector<int64_t> y;
  for (int64_t i = 0; i < count; ++i) {
    y.push_back(i % 3);
    for (int64_t k = 0; k < 16; ++k)
      x.push_back(std::sin(static_cast<float>(i * 16 + k)) + (k % 3 == i % 3 ? 1.0F : 0.0F));
  }
  return data::from_arrays({data::array_of(x, {count, 1, 4, 4}), data::array_of(y, {count})});
}

Model compiled(const Strategy& strategy, Precision precision, const optim::Recipe& recipe) {
  Model model(strategy, [] { return EveryKind(); });
  model.compile({.optimizer = recipe,
                 .loss = losses::sparse_categorical_crossentropy(),
                 .metrics = {metrics::accuracy()},
                 .precision = precision});
  return model;
}

const optim::Recipe& adam_clipped() {
  static const optim::Recipe recipe(optim::adam({.learning_rate = 0.01}), {.global_norm = 1.0});
  return recipe;
}

TEST(Bfloat16, ComputesInItAndKeepsFloat32) {
  for (const Precision precision : {Precision::float32, Precision::bfloat16}) {
    Model model = compiled(strategy_of("mirrored", 2), precision, adam_clipped());
    const auto expected = precision == Precision::bfloat16 ? at::kBFloat16 : at::kFloat;
    const auto seen = [&] {
      return std::dynamic_pointer_cast<EveryKindImpl>(model.modules().module(0))->seen;
    };
    model.fit(images(12).batch(6), {.verbose = 0});
    EXPECT_EQ(seen(), expected);
    EXPECT_EQ(model.predict(torch::ones({2, 1, 4, 4})).scalar_type(), at::kFloat);
    EXPECT_EQ(model.predict(images(5).batch(4)).scalar_type(), at::kFloat);
    EXPECT_EQ(seen(), expected);
    for (const auto& tensors :
         {model.modules().module(0)->parameters(), model.modules().module(0)->buffers()})
      for (const at::Tensor& tensor : tensors)
        EXPECT_TRUE(tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kLong);
  }
}

TEST(Bfloat16, LearnsAsFloat32DoesUpToItsPrecision) {
  std::vector<double> losses, accuracies;
  std::set<std::string> fingerprints;
  for (const Precision precision : {Precision::float32, Precision::bfloat16}) {
    Model model = compiled(strategy_of("one_device", 1), precision, adam_clipped());
    const auto data = images(60).shuffle().batch(12);
    const History history = model.fit(data, {.epochs = 8, .validation = data, .verbose = 0});
    losses.push_back(history.last("train_loss"));
    accuracies.push_back(history.last("val_accuracy"));
    fingerprints.insert(model.weights_sha256());
    EXPECT_LT(history.last("train_loss"), 0.6 * history.column("train_loss")[0]);
  }
  EXPECT_NEAR(losses[1], losses[0], 0.05);
  EXPECT_NEAR(accuracies[1], accuracies[0], 0.05);
  EXPECT_EQ(fingerprints.size(), 2U) << "bfloat16 makes a difference";
}

TEST(Bfloat16, HasTheBitsOfThePartsInTurnWithEverythingElse) {
  // Batches of 7, 7 and 3 over three replicas; accumulated by twos.
  for (const int64_t accumulate : {1, 2})
    for (const auto& recipe : {adam_clipped(), optim::Recipe(optim::lamb())}) {
      std::vector<std::string> fingerprints;
      std::vector<std::vector<double>> losses;
      for (const char* kind : {"one_device", "mirrored", "mirrored", "central_storage"}) {
        Model model = compiled(strategy_of(kind, 3), Precision::bfloat16, recipe);
        const auto data = images(17).shuffle().batch(7);
        const History history = model.fit(
            data, {.epochs = 3, .validation = data, .verbose = 0, .accumulate = accumulate});
        fingerprints.push_back(model.weights_sha256());
        losses.push_back(history.column("train_loss"));
        losses.back().push_back(history.last("val_loss"));
      }
      EXPECT_THAT(fingerprints, Each(fingerprints[0]));
      EXPECT_THAT(losses, Each(losses[0]));
    }
}

nn::Graph planned_graph() {
  const auto image = nn::input({1, 4, 4});
  auto x = nn::relu()(nn::conv2d(8, 3, {.padding = 1})(image));
  x = nn::add(x, nn::conv2d(8, 1)(x));
  x = nn::gelu({.by_tanh = true})(nn::linear(40)(nn::flatten()(nn::max_pool2d(2)(x))));
  return {image, nn::linear(3)(nn::relu()(nn::linear(40)(x)))};
}

TEST(Bfloat16, APlannedGraphHasTheBitsOfThePartsInTurn) {
  ASSERT_EQ(nn::make_module(planned_graph())->why_not_planned(), "");
  for (const int64_t accumulate : {1, 2}) {
    std::vector<std::string> fingerprints;
    for (const char* kind : {"one_device", "mirrored", "mirrored", "central_storage"}) {
      Model model(strategy_of(kind, 3), [] { return planned_graph(); });
      model.compile({.optimizer = adam_clipped(),
                     .loss = losses::sparse_categorical_crossentropy(),
                     .precision = Precision::bfloat16});
      const History history = model.fit(images(17).shuffle().batch(7),
                                        {.epochs = 8, .verbose = 0, .accumulate = accumulate});
      fingerprints.push_back(model.weights_sha256());
      EXPECT_LT(history.last("train_loss"), 0.9 * history.column("train_loss")[0]) << kind;
    }
    EXPECT_THAT(fingerprints, Each(fingerprints[0])) << "accumulated: " << accumulate;
  }
}

TEST(Bfloat16, AScopeLeavesTheThreadAsItWas) {
  const auto dtype = [] {
    return torch::linear(torch::ones({2, 2}), torch::ones({2, 2})).scalar_type();
  };
  EXPECT_EQ(dtype(), at::kFloat);
  {
    const Autocast outer(Precision::bfloat16);
    EXPECT_EQ(dtype(), at::kBFloat16);
    EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
    {
      const Autocast inner(Precision::float32);
      EXPECT_EQ(dtype(), at::kFloat);
    }
    EXPECT_EQ(dtype(), at::kBFloat16);
  }
  EXPECT_EQ(dtype(), at::kFloat);
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
}

TEST(Float16, IsRefusedWhereThereIsNoDeviceForIt) {
  Model model(strategy_of("mirrored", 2), [] { return small_graph(); });
  CompileOptions options = adam_and_accuracy();
  options.precision = Precision::float16;
  EXPECT_THAT(message_of<UsageError>([&] { model.compile(options); }),
              AllOf(HasSubstr("precision float16: only CUDA devices"), HasSubstr("use bfloat16")));
  EXPECT_THROW(Autocast{Precision::float16}, UsageError);
  EXPECT_NO_THROW(require_precision(Precision::float16, "cuda"));
  EXPECT_EQ(precision_by_name("bfloat16"), Precision::bfloat16);
  EXPECT_THAT(message_of<UsageError>([] { precision_by_name("bfloat"); }),
              HasSubstr("did you mean \"bfloat16\"?"));
}

TEST(LossScaling, LeavesAStepOutOnAllReplicas) {
  std::vector<std::string> fingerprints;
  for (const char* kind : {"one_device", "mirrored", "central_storage"}) {
    Model model(strategy_of(kind, 3), [] { return small_graph(); });
    // Finite with label 3 too, but without a gradient: the derivative of a root at 0.
    const Loss loss("breaks once", [&](const at::Tensor& y, const at::Tensor& labels) {
      const auto each = torch::cross_entropy_loss(y, labels.clamp_max(2), {}, at::Reduction::None);
      const auto bad = (labels == 3).to(at::kFloat);
      return each + ((1 - bad) + bad * y.pow(2).sum(1) * 0).sqrt() - 1 + bad;
    });
    model.compile({.optimizer = optim::adam({.learning_rate = 0.01}),
                   .loss = loss,
                   .loss_scaling = optim::LossScaling{.initial = 256, .growth_interval = 2}});
    const auto flat = three_classes(24).batch(24).epoch({}).batch(0);
    flat.columns[1].as<int64_t>()[13] = 3;  // in the fourth batch of four
    const auto data = data::from_arrays(flat.columns).batch(4);
    std::vector<double> scales;
    const auto notes =
        callbacks::lambda("notes", {.on_step_end = [&](Training&) {
                            scales.push_back(model.optimizer().loss_scale()->value());
                          }});
    const History history = model.fit(data, {.callbacks = {notes}, .verbose = 0, .accumulate = 2});
    EXPECT_EQ(history.steps, 3);
    EXPECT_THAT(scales, ElementsAre(256, 128, 128)) << kind;
    EXPECT_EQ(model.optimizer().loss_scale()->skipped(), 1);
    EXPECT_TRUE(std::isfinite(history.last("train_loss")));
    for (const at::Tensor& parameter : model.modules().module(0)->parameters())
      EXPECT_TRUE(parameter.isfinite().all().item<bool>());
    fingerprints.push_back(model.weights_sha256());
  }
  EXPECT_THAT(fingerprints, Each(fingerprints[0]));
}

TEST(LossScaling, IsNotToBeSeenWhereNothingOverflows) {
  const auto sha = [](const char* kind, std::optional<optim::LossScaling> scaling) {
    Model model(strategy_of(kind, 3), [] { return small_graph(0.2); });
    CompileOptions options = adam_and_accuracy();
    options.loss_scaling = scaling;
    model.compile(options);
    model.fit(three_classes(17).batch(7), {.epochs = 3, .verbose = 0, .accumulate = 2});
    return model.weights_sha256();
  };
  const std::string plain = sha("one_device", {});
  EXPECT_EQ(sha("one_device", optim::LossScaling{}), plain);
  EXPECT_EQ(sha("mirrored", optim::LossScaling{}), plain);
}

TEST(LossScaling, OptionsOutOfRangeAreRefused) {
  Model model(strategy_of("one_device", 1), [] { return small_graph(); });
  CompileOptions options = adam_and_accuracy();
  options.loss_scaling = optim::LossScaling{.backoff = 2};
  EXPECT_THAT(message_of<UsageError>([&] { model.compile(options); }), HasSubstr("backoff is 2"));
}

}  // namespace
}  // namespace tutti
