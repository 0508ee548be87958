#include <torch/torch.h>

#include "tutti/models/gpt.h"
#include "tutti/nn/sample_context.h"

#include "tests/support/expect.h"
#include "tests/support/planned.h"
#include "tests/support/zoo_training.h"

namespace tutti {
namespace {

class PlannedZoo : public ::testing::TestWithParam<SmallNetwork> {};

TEST_P(PlannedZoo, HasTheBitsOfAutograd) {
  const auto& [name, input, width] = GetParam();
  const nn::Graph graph =
      models::model_by_name(name, {.classes = 3, .input = input, .width = width});
  std::vector<int64_t> shape = input;
  shape.insert(shape.begin(), 3);
  torch::manual_seed(2);
  const nn::SampleContext place({.seed = 1, .step = 0, .first_row = 0});
  expect_planned_is_by_autograd(graph, torch::randn(shape));
}

INSTANTIATE_TEST_SUITE_P(Each, PlannedZoo, ::testing::ValuesIn(small_zoo()),
                         [](const auto& info) { return info.param.name; });

TEST(PlannedZooNames, TheNetsOfTheShowcaseArePlanned) {
  for (const std::string name :
       {"mlp", "wide", "doodle_cnn", "lenet", "resnet18", "resnet50", "vit"}) {
    models::ImageOptions options{.classes = 3, .input = {1, 28, 28}};
    if (name.starts_with("resnet")) options.width = 1.0 / 16;
    const auto module = nn::make_module(models::model_by_name(name, options));
    EXPECT_EQ(module->why_not_planned(), "") << name;
  }
}

TEST(PlannedGpt, HasTheBitsOfAutograd) {
  const nn::SampleContext place({.seed = 1, .step = 0, .first_row = 0});
  for (const bool tied : {true, false})
    for (const double dropout : {0.0, 0.1}) {
      const nn::Graph graph = models::gpt({.vocabulary = 50,
                                           .context = 17,
                                           .layers = 2,
                                           .heads = 4,
                                           .features = 32,
                                           .tied = tied,
                                           .dropout = dropout});
      EXPECT_EQ(nn::make_module(graph)->why_not_planned(), "");
      expect_planned_is_by_autograd(graph, torch::randint(50, {3, 17}, at::kLong));
    }
}

/// Of five samples two replicas get three and two.
TEST(PlannedGpt, TrainsTheSameWeightsInTurnAndOnThreads) {
  torch::manual_seed(3);
  const auto tokens = torch::randint(30, {10, 9}, at::kLong);
  const auto next = torch::roll(tokens, -1, 1).contiguous();
  const auto trained = [&](const std::string& kind, bool planned) {
    Model model(Strategy({.kind = kind, .replicas = 2, .threads_per_replica = 1, .seed = 5}), [&] {
      auto module = nn::make_module(models::gpt({.vocabulary = 30,
                                                 .context = 9,
                                                 .layers = 2,
                                                 .heads = 2,
                                                 .features = 16,
                                                 .dropout = 0.1}));
      module->set_planned(planned);
      return module;
    });
    model.compile({.optimizer = optim::adam({.learning_rate = 1e-3}),
                   .loss = losses::sparse_categorical_crossentropy()});
    for (int64_t step = 0; step < 4; ++step)
      model.train_on_batch(tokens.slice(0, step % 2 * 5, step % 2 * 5 + 5),
                           next.slice(0, step % 2 * 5, step % 2 * 5 + 5));
    return model.weights_sha256();
  };
  const auto expected = trained("one_device", false);
  EXPECT_EQ(trained("one_device", true), expected);
  EXPECT_EQ(trained("mirrored", true), expected);
  EXPECT_EQ(trained("mirrored", false), expected);
}

}  // namespace
}  // namespace tutti
