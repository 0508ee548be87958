#include <torch/torch.h>

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
  for (const std::string name : {"mlp", "wide", "doodle_cnn", "lenet"}) {
    const auto module =
        nn::make_module(models::model_by_name(name, {.classes = 3, .input = {1, 28, 28}}));
    EXPECT_EQ(module->why_not_planned(), "") << name;
  }
}

}  // namespace
}  // namespace tutti
