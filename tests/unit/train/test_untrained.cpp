// What would train nothing, or part of a model, in silence: it is refused.
#include <torch/torch.h>

#include <map>

#include "tests/support/expect.h"
#include "tests/unit/train/small_model.h"

namespace tutti {
namespace {

const char* const kStrategies[] = {"one_device", "mirrored"};

torch::nn::Sequential two_layers(int frozen) {
  torch::nn::Sequential net(torch::nn::Linear(4, 6), torch::nn::Linear(6, 3));
  for (int layer = 0; layer < frozen; ++layer)
    for (auto& parameter : net->children()[static_cast<size_t>(layer)]->parameters())
      parameter.set_requires_grad(false);
  return net;
}

Model frozen_model(const char* kind, int frozen, const Loss& loss) {
  Model model(strategy_of(kind, 2), [frozen] { return two_layers(frozen); });
  model.compile({.optimizer = optim::sgd({.learning_rate = 0.1}), .loss = loss});
  return model;
}

TEST(Untrained, AFrozenModelIsRefusedBeforeTheFirstStep) {
  const auto loss = losses::sparse_categorical_crossentropy();
  for (const auto* kind : kStrategies) {
    Model model = frozen_model(kind, 2, loss);
    EXPECT_THAT(
        message_of<UsageError>([&] { model.fit(three_classes(12).batch(6), {.verbose = 0}); }),
        HasSubstr("all 4 parameters of the model are frozen"));
    EXPECT_EQ(model.optimizer().version(), 0);
    Model half = frozen_model(kind, 1, loss);
    EXPECT_EQ(half.fit(three_classes(12).batch(6), {.verbose = 0}).steps, 2);
  }
}

TEST(Untrained, ALossWithoutAGraphIsRefusedWhereItComes) {
  for (const auto* kind : kStrategies) {
    const Loss loss("cut off", [](const at::Tensor& y, const at::Tensor& labels) {
      const auto each = torch::cross_entropy_loss(y, labels, {}, at::Reduction::None);
      return labels.max().item<int64_t>() == 2 ? each.detach() : each;
    });
    Model model = frozen_model(kind, 0, loss);
    const auto flat = three_classes(12).batch(12).epoch({}).batch(0);
    for (int i = 0; i < 12; ++i) flat.columns[1].as<int64_t>()[i] = i == 10 ? 2 : 0;
    EXPECT_THAT(message_of<UsageError>(
                    [&] { model.fit(data::from_arrays(flat.columns).batch(6), {.verbose = 0}); }),
                AllOf(HasSubstr("fit, epoch 1 of 1, step 2 of 2, replica 1: the loss does not "
                                "depend on any parameter"),
                      HasSubstr("detach()")));
    Model other = frozen_model(kind, 0, losses::sparse_categorical_crossentropy());
    const at::NoGradGuard no_grad;
    EXPECT_THAT(
        message_of<UsageError>([&] { other.fit(three_classes(12).batch(6), {.verbose = 0}); }),
        HasSubstr("NoGradGuard"));
  }
}

TEST(Frozen, ParametersOfAGraphStayAndTheOthersTrainTheSameBits) {
  const auto trained = [](const std::string& kind) {
    Model model(strategy_of(kind, 2),
                [] { return nn::with_frozen(small_graph(), {"linear_1", "linear_2.bias"}); });
    model.compile(adam_and_accuracy());
    EXPECT_THAT(model.summary(), HasSubstr("parameters: 24 trained, 43 frozen\n"));
    const auto values = [&] {
      std::map<std::string, at::Tensor> all;
      for (const auto& parameter : model.modules().module(0)->named_parameters())
        all[parameter.key()] = parameter.value().detach().clone();
      return all;
    };
    const auto before = values();
    model.fit(three_classes(24).batch(6), {.epochs = 2, .verbose = 0});
    const std::string weights = model.weights_sha256();
    for (const auto& [name, value] : values())
      EXPECT_EQ(torch::equal(value, before.at(name)), name != "linear_2.weight") << kind << name;
    return weights;
  };
  const std::string expected = trained("one_device");
  for (const char* kind : {"mirrored", "central_storage"}) EXPECT_EQ(trained(kind), expected);
}

TEST(Frozen, ABatchNormOverOnePixelTakesOneSample) {
  Model model(strategy_of("one_device", 1), [] {
    const auto input = nn::input({4, 1, 1});
    const auto x = nn::batch_norm2d().named("norm")(input);
    return nn::with_frozen(nn::Graph(input, nn::linear(3)(nn::flatten()(x))), {"norm"});
  });
  model.compile(adam_and_accuracy());
  EXPECT_EQ(model.fit(three_classes(13, {4, 1, 1}).batch(6), {.verbose = 0}).steps, 3);
}

struct GivesTwo : torch::nn::Module {
  GivesTwo() { layer = register_module("layer", torch::nn::Linear(4, 3)); }
  std::vector<at::Tensor> forward(const at::Tensor& x) { return {layer(x), layer(2 * x)}; }
  torch::nn::Linear layer{nullptr};
};

TEST(Untrained, OneLossOfAModuleWithTwoOutputsIsRefused) {
  for (const auto* kind : kStrategies) {
    const auto model_of = [&] {
      Model model(strategy_of(kind, 2), [] { return GivesTwo(); });
      model.compile({.loss = losses::sparse_categorical_crossentropy()});
      return model;
    };
    const auto message = HasSubstr("there is one loss, and the model's forward gives 2 tensors");
    EXPECT_THAT(
        message_of<UsageError>([&] { model_of().fit(three_classes(12).batch(6), {.verbose = 0}); }),
        message);
    EXPECT_THAT(message_of<UsageError>([&] { model_of().evaluate(three_classes(12).batch(6)); }),
                message);
  }
}

// The last batch has one sample for replica 0 and none for replica 1.
TEST(Untrained, PredictWantsARowASample) {
  for (const auto* kind : kStrategies) {
    const auto predicted = [&](at::Tensor (*last)(const at::Tensor&)) {
      Model model(strategy_of(kind, 2), [last] {
        return torch::nn::Sequential(torch::nn::Linear(4, 3), torch::nn::Functional(last));
      });
      return model.predict(three_classes(7).batch(6)).sizes().vec();
    };
    EXPECT_THAT(predicted(torch::relu), ElementsAre(7, 3));
    EXPECT_THAT(message_of<UsageError>(
                    [&] { predicted(+[](const at::Tensor& y) { return y.slice(0, 0, 1); }); }),
                HasSubstr("forward of the model gave Float [1, 3] for 3 samples"));
    EXPECT_THAT(
        message_of<UsageError>([&] { predicted(+[](const at::Tensor& y) { return y.sum(); }); }),
        HasSubstr("gave Float [] for 3 samples"));
    EXPECT_THAT(message_of<UsageError>(
                    [&] { predicted(+[](const at::Tensor& y) { return torch::cat({y, y}); }); }),
                HasSubstr("Float [6, 3] for 3 samples"));
  }
}

}  // namespace
}  // namespace tutti
