// A forward that fails says which layer, what it got and what it takes.
#include <torch/torch.h>

#include "tests/support/expect.h"
#include "tests/unit/train/small_model.h"

namespace tutti {
namespace {

torch::nn::Sequential layers_for(int64_t features) {
  return torch::nn::Sequential(
      torch::nn::Linear(4, 6), torch::nn::Functional(torch::relu),
      torch::nn::Linear(torch::nn::LinearOptions(features, 3).bias(false)));
}

struct TwoParts : torch::nn::Module {
  TwoParts() {
    first = register_module("first", torch::nn::Linear(4, 6));
    second = register_module("second", torch::nn::Linear(8, 3));
  }
  at::Tensor forward(const at::Tensor& x) { return second(first(x)); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};

template <class Make>
std::string told(const char* kind, Make make, const at::Tensor& inputs) {
  Model model(strategy_of(kind, 2), make);
  model.compile({.loss = losses::sparse_categorical_crossentropy()});
  return message_of<UsageError>(
      [&] { model.train_on_batch(inputs, torch::zeros({inputs.size(0)}, torch::kLong)); });
}

TEST(ForwardErrors, NameTheLayerOfASequential) {
  for (const auto* kind : {"one_device", "mirrored"}) {
    EXPECT_THAT(told(
                    kind, [] { return layers_for(5); }, torch::ones({4, 4})),
                AllOf(HasSubstr("for an input Float [2, 4]: layer \"2\""),
                      HasSubstr("Linear(in_features=5, out_features=3, bias=false), got Float "
                                "[2, 6]: "),
                      Not(HasSubstr("Exception raised from"))));
    EXPECT_THAT(told(
                    kind, [] { return layers_for(6); }, torch::ones({4, 4}, torch::kDouble)),
                AllOf(HasSubstr("layer \"0\""), HasSubstr("got Double [2, 4]")));
  }
}

TEST(ForwardErrors, ListThePartsOfAModuleOfOnesOwn) {
  for (const auto* kind : {"one_device", "mirrored"})
    EXPECT_THAT(told(
                    kind, [] { return TwoParts(); }, torch::ones({4, 4})),
                AllOf(HasSubstr("an input Float [2, 4]"), HasSubstr("2x6 and 8x3"),
                      HasSubstr("its \"second\" is torch::nn::Linear(in_features=8, ")));
}

TEST(ForwardErrors, AreThoseOfEvaluateAndPredictToo) {
  Model model(strategy_of("mirrored", 2), [] { return layers_for(6); });
  EXPECT_THAT(message_of<UsageError>([&] { model.predict(torch::ones({4, 3})); }),
              HasSubstr("layer \"0\""));
  EXPECT_THAT(message_of<UsageError>([&] { model.predict(three_classes(6, {2, 2}).batch(4)); }),
              HasSubstr("got Float [2, 2, 2]"));
}

TEST(ForwardErrors, WhatAModuleThrowsItselfStaysAsItIs) {
  Model model(strategy_of("one_device", 1), [] {
    return torch::nn::Sequential(
        torch::nn::Linear(4, 3),
        torch::nn::Functional([](const at::Tensor&) -> at::Tensor { throw DataError("mine"); }));
  });
  EXPECT_EQ(message_of<DataError>([&] { model.predict(torch::ones({4, 4})); }), "mine");
}

}  // namespace
}  // namespace tutti
