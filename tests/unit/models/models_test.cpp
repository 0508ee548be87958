#include "tutti/models/models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/base/error.h"
#include "tutti/nn/graph_module.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;

struct Named {
  std::string name;
  nn::Shape shape;
  bool operator==(const Named&) const = default;
};

void PrintTo(const Named& named, std::ostream* out) {
  *out << named.name << " " << nn::to_string(named.shape);
}

std::vector<Named> list(const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  std::vector<Named> out;
  for (const auto& item : tensors) out.push_back({item.key(), item.value().sizes().vec()});
  return out;
}

/// The 62 parameters of torchvision.models.resnet18, in its order.
const std::vector<Named>& torchvision_resnet18() {
  static const std::vector<Named> parameters{
      {"conv1.weight", {64, 3, 7, 7}},
      {"bn1.weight", {64}},
      {"bn1.bias", {64}},
      {"layer1.0.conv1.weight", {64, 64, 3, 3}},
      {"layer1.0.bn1.weight", {64}},
      {"layer1.0.bn1.bias", {64}},
      {"layer1.0.conv2.weight", {64, 64, 3, 3}},
      {"layer1.0.bn2.weight", {64}},
      {"layer1.0.bn2.bias", {64}},
      {"layer1.1.conv1.weight", {64, 64, 3, 3}},
      {"layer1.1.bn1.weight", {64}},
      {"layer1.1.bn1.bias", {64}},
      {"layer1.1.conv2.weight", {64, 64, 3, 3}},
      {"layer1.1.bn2.weight", {64}},
      {"layer1.1.bn2.bias", {64}},
      {"layer2.0.conv1.weight", {128, 64, 3, 3}},
      {"layer2.0.bn1.weight", {128}},
      {"layer2.0.bn1.bias", {128}},
      {"layer2.0.conv2.weight", {128, 128, 3, 3}},
      {"layer2.0.bn2.weight", {128}},
      {"layer2.0.bn2.bias", {128}},
      {"layer2.0.downsample.0.weight", {128, 64, 1, 1}},
      {"layer2.0.downsample.1.weight", {128}},
      {"layer2.0.downsample.1.bias", {128}},
      {"layer2.1.conv1.weight", {128, 128, 3, 3}},
      {"layer2.1.bn1.weight", {128}},
      {"layer2.1.bn1.bias", {128}},
      {"layer2.1.conv2.weight", {128, 128, 3, 3}},
      {"layer2.1.bn2.weight", {128}},
      {"layer2.1.bn2.bias", {128}},
      {"layer3.0.conv1.weight", {256, 128, 3, 3}},
      {"layer3.0.bn1.weight", {256}},
      {"layer3.0.bn1.bias", {256}},
      {"layer3.0.conv2.weight", {256, 256, 3, 3}},
      {"layer3.0.bn2.weight", {256}},
      {"layer3.0.bn2.bias", {256}},
      {"layer3.0.downsample.0.weight", {256, 128, 1, 1}},
      {"layer3.0.downsample.1.weight", {256}},
      {"layer3.0.downsample.1.bias", {256}},
      {"layer3.1.conv1.weight", {256, 256, 3, 3}},
      {"layer3.1.bn1.weight", {256}},
      {"layer3.1.bn1.bias", {256}},
      {"layer3.1.conv2.weight", {256, 256, 3, 3}},
      {"layer3.1.bn2.weight", {256}},
      {"layer3.1.bn2.bias", {256}},
      {"layer4.0.conv1.weight", {512, 256, 3, 3}},
      {"layer4.0.bn1.weight", {512}},
      {"layer4.0.bn1.bias", {512}},
      {"layer4.0.conv2.weight", {512, 512, 3, 3}},
      {"layer4.0.bn2.weight", {512}},
      {"layer4.0.bn2.bias", {512}},
      {"layer4.0.downsample.0.weight", {512, 256, 1, 1}},
      {"layer4.0.downsample.1.weight", {512}},
      {"layer4.0.downsample.1.bias", {512}},
      {"layer4.1.conv1.weight", {512, 512, 3, 3}},
      {"layer4.1.bn1.weight", {512}},
      {"layer4.1.bn1.bias", {512}},
      {"layer4.1.conv2.weight", {512, 512, 3, 3}},
      {"layer4.1.bn2.weight", {512}},
      {"layer4.1.bn2.bias", {512}},
      {"fc.weight", {1000, 512}},
      {"fc.bias", {1000}},
  };
  return parameters;
}

TEST(Resnet18, ParametersAndBuffersAreTorchvisions) {
  const auto graph = models::resnet18();
  EXPECT_EQ(graph.num_parameters(), 11'689'512);
  const auto module = nn::make_module(graph);
  EXPECT_EQ(list(module->named_parameters()), torchvision_resnet18());

  std::vector<Named> buffers;
  for (const auto& parameter : torchvision_resnet18()) {
    // Each batch norm, known by its one-dimensional weight, has three buffers.
    const size_t suffix = parameter.name.rfind(".weight");
    if (suffix == std::string::npos || parameter.shape.size() != 1) continue;
    const std::string norm = parameter.name.substr(0, suffix);
    buffers.push_back({norm + ".running_mean", parameter.shape});
    buffers.push_back({norm + ".running_var", parameter.shape});
    buffers.push_back({norm + ".num_batches_tracked", {}});
  }
  EXPECT_EQ(buffers.size(), 60U);
  EXPECT_EQ(list(module->named_buffers()), buffers);
}

TEST(Resnet18, HalvesFiveTimesAndTakesOneChannel) {
  const auto graph = models::resnet18();
  nn::Shape before_pool;
  for (const auto& node : graph.nodes()) {
    if (nn::kind_of(node.op) == "global_avg_pool2d") {
      before_pool = graph.nodes()[static_cast<size_t>(node.inputs[0])].shape;
    }
  }
  EXPECT_EQ(before_pool, (nn::Shape{512, 7, 7}));

  const auto doodles = nn::make_module(models::resnet18({.classes = 10, .input = {1, 28, 28}}));
  EXPECT_EQ(doodles->named_parameters()["conv1.weight"].size(1), 3);
  const auto x = torch::randn({2, 1, 28, 28});
  const auto y = doodles->forward(x);
  EXPECT_EQ(y.sizes(), (std::vector<int64_t>{2, 10}));
  y.sum().backward();
  const auto gradient = doodles->named_parameters()["conv1.weight"].grad();
  EXPECT_TRUE(torch::allclose(gradient.select(1, 0), gradient.select(1, 2), 1e-3, 1e-4));
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
  };
  for (const auto& one : cases) EXPECT_EQ(one.graph.num_parameters(), one.parameters);
}

TEST(Zoo, EachModelTrainsOneStep) {
  for (const auto& name : models::model_names()) {
    const bool regression = name == "linear_regression";
    const nn::Shape shape = regression ? nn::Shape{3} : nn::Shape{1, 28, 28};
    const auto module =
        nn::make_module(models::model_by_name(name, {.classes = 7, .input = shape}));
    std::vector<int64_t> batch{4};
    batch.insert(batch.end(), shape.begin(), shape.end());
    const auto y = module->forward(torch::randn(batch));
    EXPECT_EQ(y.sizes(), (std::vector<int64_t>{4, regression ? 1 : 7})) << name;
    y.sum().backward();
    for (const auto& parameter : module->named_parameters()) {
      EXPECT_TRUE(parameter.value().grad().defined()) << name << " " << parameter.key();
    }
  }
}

TEST(Zoo, CnnAndDoodleCnnAreOneModel) {
  EXPECT_EQ(models::model_by_name("cnn").summary(), models::doodle_cnn().summary());
  EXPECT_EQ(models::model_by_name("doodle_cnn").summary(), models::doodle_cnn().summary());
}

TEST(Zoo, UnknownNamesAndImpossibleSizesAreAnswered) {
  try {
    models::model_by_name("resnet81");
    FAIL() << "no error";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("resnet81"));
    EXPECT_THAT(error.what(), HasSubstr("did you mean \"resnet18\""));
  }
  EXPECT_THROW(models::mlp({.classes = 0}), UsageError);
  EXPECT_THROW(models::doodle_cnn({.input = {1, 4, 4}}), UsageError);
  EXPECT_THROW(models::model_by_name("linear_regression"), UsageError);
}

}  // namespace
}  // namespace tutti
