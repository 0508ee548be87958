#include <torch/torch.h>

#include "tutti/models/models.h"
#include "tutti/nn/graph_module.h"
#include "tutti/nn/residual.h"
#include "tutti/nn/sample_context.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

TEST(Resnet18, HalvesFiveTimesAndTakesOneChannel) {
  const auto graph = models::resnet18();
  nn::Shape before_pool;
  for (const auto& node : graph.nodes()) {
    if (nn::kind_of(node.op) == "global_avg_pool2d") {
      before_pool = graph.nodes()[static_cast<size_t>(node.inputs[0])].shape;
    }
  }
  EXPECT_EQ(before_pool, (nn::Shape{512, 7, 7}));

  const auto doodles =
      nn::make_module(models::resnet18({.classes = 10, .input = {1, 28, 28}, .width = 0.25}));
  EXPECT_EQ(doodles->named_parameters()["conv1.weight"].size(1), 3);
  const auto x = torch::randn({2, 1, 28, 28});
  const auto y = doodles->forward(x);
  EXPECT_EQ(y.sizes(), (std::vector<int64_t>{2, 10}));
  y.sum().backward();
  const auto gradient = doodles->named_parameters()["conv1.weight"].grad();
  EXPECT_TRUE(torch::allclose(gradient.select(1, 0), gradient.select(1, 2), 1e-3, 1e-4));
}

TEST(Resnets, EndTheirBlocksWithANorm) {
  const auto names_of = [](const nn::Graph& graph) {
    std::vector<std::string> names;
    for (const int place : nn::last_batch_norms(graph))
      names.push_back(graph.nodes()[static_cast<size_t>(place)].name);
    return names;
  };
  EXPECT_THAT(names_of(models::resnet18()),
              ElementsAre("layer1.0.bn2", "layer1.1.bn2", "layer2.0.bn2", "layer2.1.bn2",
                          "layer3.0.bn2", "layer3.1.bn2", "layer4.0.bn2", "layer4.1.bn2"));
  const auto deeper = names_of(models::resnet50());
  EXPECT_EQ(deeper.size(), 16U);
  EXPECT_THAT(deeper, Each(EndsWith(".bn3")));
}

TEST(Zoo, BenchModelsHaveTheSizesOfTheirNames) {
  const struct {
    nn::Graph graph;
    int64_t parameters;
  } cases[] = {
      {models::linear_regression(), 2},
      {models::mlp(), 784 * 128 + 128 + 128 * 10 + 10},
      {models::wide(), 784 * 2048 + 2048 + 2048 * 2048 + 2048 + 2048 * 10 + 10},
      {models::doodle_cnn(), (9 * 16 + 16) + (16 * 9 * 32 + 32) + (32 * 9 * 64 + 64) +
                                 (64 * 3 * 3 * 128 + 128) + (128 * 10 + 10)},
      {models::mlp({.classes = 3, .input = {2, 4, 4}}), 32 * 128 + 128 + 128 * 3 + 3},
      {models::mlp({.width = 0.5}), 784 * 64 + 64 + 64 * 10 + 10},
      {models::lenet(), 61'706},
      {models::vit(), 139'018},
  };
  for (const auto& one : cases) EXPECT_EQ(one.graph.num_parameters(), one.parameters);
}

// A doodle is smaller than some networks can take; the summary says what is done about it.
TEST(Zoo, SmallImagesAreEnlargedWhereTheyMustBe) {
  const struct {
    std::string name;
    nn::Shape image;  // that the first convolution gets
  } cases[] = {{"alexnet", {3, 84, 84}},
               {"inception_v3", {3, 84, 84}},
               {"vgg11", {3, 56, 56}},
               {"resnet50", {3, 28, 28}},
               {"lenet", {1, 28, 28}}};
  for (const auto& [name, image] : cases) {
    const auto graph = models::model_by_name(name, {.classes = 7, .width = 0.125});
    for (const auto& node : graph.nodes()) {
      if (nn::kind_of(node.op) != "conv2d") continue;
      EXPECT_EQ(graph.nodes()[static_cast<size_t>(node.inputs[0])].shape, image) << name;
      break;
    }
  }
  EXPECT_THAT(models::model_by_name("vgg11").summary(), HasSubstr("upsample2d_1"));
}

TEST(Zoo, TheAuxiliaryClassifierIsASecondOutput) {
  const auto graph = models::inception_v3(
      {.classes = 4, .input = {3, 100, 100}, .width = 0.0625, .auxiliary = true});
  const auto module = nn::make_module(graph);
  const nn::SampleContext place({.seed = 1});
  const auto y = module->forward_all(torch::randn({2, 3, 100, 100}));
  ASSERT_EQ(y.size(), 2U);
  EXPECT_EQ(graph.outputs()[1].name, "auxiliary");
  for (const auto& output : y) EXPECT_EQ(output.sizes(), (std::vector<int64_t>{2, 4}));
  (torch::cross_entropy_loss(y[0], torch::tensor({1, 3})) +
   0.4 * torch::cross_entropy_loss(y[1], torch::tensor({1, 3})))
      .backward();
  for (const auto& parameter : module->named_parameters()) {
    EXPECT_TRUE(parameter.value().grad().defined()) << parameter.key();
  }
}

// Convolutions down and up, of which each level's sees what went down there: nothing that a pixel
// says comes from pixels further than the levels reach, and every parameter has a part in it.
TEST(Zoo, UnetSaysOfEachPixelWhatItIs) {
  EXPECT_EQ(models::unet().num_parameters(), 1'927'042);
  const auto graph = models::unet({.classes = 5, .input = {1, 16, 24}, .channels = 4, .levels = 2});
  EXPECT_EQ(graph.output_shape(), (nn::Shape{16, 24, 5}));
  torch::manual_seed(3);
  const auto module = nn::make_module(graph);
  const auto labels = torch::randint(5, {2 * 16 * 24});
  torch::cross_entropy_loss(module->forward(torch::randn({2, 1, 16, 24})).flatten(0, 2), labels)
      .backward();
  for (const auto& parameter : module->named_parameters())
    EXPECT_GT(parameter.value().grad().abs().sum().item<float>(), 0) << parameter.key();

  module->eval();
  const torch::NoGradGuard no_grad;
  const auto x = torch::randn({1, 1, 16, 24});
  auto changed = x.clone();
  changed[0][0][0][0] += 1;
  const auto difference = (module->forward(changed) - module->forward(x)).abs().sum(-1)[0];
  EXPECT_GT(difference[0][0].item<float>(), 0);
  EXPECT_EQ(difference[15][23].item<float>(), 0);
}

TEST(Zoo, CnnAndDoodleCnnAreOneModel) {
  EXPECT_EQ(models::model_by_name("cnn").summary(), models::doodle_cnn().summary());
  EXPECT_EQ(models::model_by_name("doodle_cnn").summary(), models::doodle_cnn().summary());
}

TEST(Zoo, UnknownNamesAndImpossibleSizesAreAnswered) {
  EXPECT_THAT(message_of<UsageError>([&] { models::model_by_name("resnet81"); }),
              AllOf(HasSubstr("resnet81"), HasSubstr("did you mean \"resnet18\"")));
  EXPECT_THROW(models::mlp({.classes = 0}), UsageError);
  EXPECT_THROW(models::alexnet({.width = 0}), UsageError);
  EXPECT_THROW(models::vit({.patch = 5}), UsageError);
  EXPECT_THROW(models::vit({.heads = 5}), UsageError);
  EXPECT_THROW(models::vit({.layers = 0}), UsageError);
  EXPECT_THROW(models::unet({.channels = 0}), UsageError);
  EXPECT_THROW(models::unet({.levels = 64}), UsageError);
  EXPECT_THAT(message_of<UsageError>([] { models::unet({.input = {3, 64, 60}}); }),
              AllOf(HasSubstr("[3, 64, 60]"), HasSubstr("multiples of 8")));
  EXPECT_THROW(models::doodle_cnn({.input = {1, 4, 4}}), UsageError);
  EXPECT_THROW(models::model_by_name("linear_regression"), UsageError);
}

}  // namespace
}  // namespace tutti
