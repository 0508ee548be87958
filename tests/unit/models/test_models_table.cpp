// The zoo against torchvision's networks: tests/tables/make_models.py writes the table.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <map>

#include <nlohmann/json.hpp>

#include "tutti/models/models.h"
#include "tutti/nn/graph_module.h"

namespace tutti {
namespace {

using Rows = nlohmann::json;
using Shapes = std::map<std::string, nn::Shape>;

/// With the sizes of the paper.
nn::Graph whole(const std::string& name) {
  if (name == "alexnet") return models::alexnet();
  if (name == "vgg11") return models::vgg11();
  if (name == "vgg11_bn") return models::vgg11_bn();
  if (name == "resnet18") return models::resnet18();
  if (name == "resnet50") return models::resnet50();
  if (name == "vit")
    return models::vit({.classes = 1000,
                        .input = {3, 224, 224},
                        .patch = 16,
                        .layers = 12,
                        .heads = 12,
                        .hidden = 768,
                        .mlp = 3072});
  return models::inception_v3({.auxiliary = name == "inception_v3, auxiliary"});
}

/// That of the table's logits: five classes, an eighth of the units, and a small image.
nn::Graph thin(const std::string& name, const nn::Shape& input) {
  if (name == "vit")
    return models::vit(
        {.classes = 5, .input = input, .patch = 7, .layers = 2, .hidden = 32, .mlp = 64});
  return models::model_by_name(name, {.classes = 5, .input = input, .width = 0.125});
}

Shapes shapes_of(const Rows& rows) {
  Shapes shapes;
  for (const auto& row : rows) shapes.emplace(row[0], row[1].get<nn::Shape>());
  return shapes;
}

Shapes shapes_of(const nn::Graph& graph, bool trainable) {
  Shapes shapes;
  for (const auto& node : graph.nodes()) {
    for (const auto& parameter : node.parameters) {
      if (parameter.trainable == trainable)
        shapes.emplace(nn::full_name(node, parameter), parameter.shape);
    }
  }
  return shapes;
}

Shapes shapes_of(const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  Shapes shapes;
  for (const auto& item : tensors) shapes.emplace(item.key(), item.value().sizes().vec());
  return shapes;
}

/// make_models.py has the same two.
at::Tensor pattern(int64_t count, int64_t begin) {
  constexpr int64_t kPeriod = 1009;
  const auto places = (torch::arange(kPeriod) + begin) * 7919 % kPeriod;
  return (places.to(torch::kDouble) / kPeriod - 0.5).repeat(count / kPeriod + 1).slice(0, 0, count);
}

at::Tensor filled(const at::Tensor& tensor, const std::string& name, int64_t number) {
  auto values = pattern(tensor.numel(), 31 * number).reshape(tensor.sizes());
  const bool weight = name.ends_with("weight") && tensor.dim() == 1;
  const bool learned = name.find("embedding") != std::string::npos || name == "class_token";
  if (tensor.dim() >= 2 && !learned) {
    values = values * std::sqrt(24.0 * static_cast<double>(tensor.size(0)) /
                                static_cast<double>(tensor.numel()));
  }
  return weight || name.ends_with("running_var") ? values * 0.5 + 1 : values;
}

struct Row {
  Rows json;
  std::string name() const { return json.at("name"); }
};
void PrintTo(const Row& row, std::ostream* out) { *out << row.name(); }

class AgainstTorchvision : public ::testing::TestWithParam<Row> {};

TEST_P(AgainstTorchvision, NamesShapesAndCountsAreEqual) {
  const Rows& row = GetParam().json;
  const nn::Graph graph = whole(row.at("name"));
  EXPECT_EQ(graph.num_parameters(), row.at("count").get<int64_t>());
  EXPECT_EQ(shapes_of(graph, true), shapes_of(row.at("parameters")));
  EXPECT_EQ(shapes_of(graph, false), shapes_of(row.at("buffers")));
}

TEST_P(AgainstTorchvision, EqualWeightsGiveEqualLogits) {
  const Rows& row = GetParam().json;
  if (!row.contains("logits")) return;  // another row of the same layers has them
  const auto input = row.at("input").get<nn::Shape>();
  const auto graph = thin(row.at("name"), input);
  const auto module = nn::make_module(graph);
  module->eval();
  EXPECT_EQ(shapes_of(module->named_parameters()), shapes_of(graph, true));
  EXPECT_EQ(shapes_of(module->named_buffers()), shapes_of(graph, false));
  const torch::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> tensors;
  for (const auto& item : module->named_parameters()) tensors.emplace(item.key(), item.value());
  for (const auto& item : module->named_buffers()) {
    if (item.value().is_floating_point()) tensors.emplace(item.key(), item.value());
  }
  int64_t number = 0;
  for (auto& [name, tensor] : tensors) tensor.copy_(filled(tensor, name, number++));
  const auto x = pattern(2 * input[0] * input[1] * input[2], 5) * 2;
  const auto got =
      module->forward(x.to(torch::kFloat).reshape({2, input[0], input[1], input[2]})).flatten();
  const auto wanted = torch::tensor(row.at("logits").get<std::vector<double>>(), torch::kDouble);
  const double largest = wanted.abs().max().item<double>();
  EXPECT_LT((got - wanted).abs().max().item<double>(), 1e-4 * largest) << got << wanted;
}

std::vector<Row> rows() {
  std::ifstream file("tests/tables/models.json");
  std::vector<Row> all;
  for (auto& row : Rows::parse(file)) all.push_back({std::move(row)});
  return all;
}

std::string name_of_row(const ::testing::TestParamInfo<Row>& info) {
  std::string name = info.param.name();
  std::erase_if(name, [](char c) { return c == ',' || c == ' '; });
  return name;
}

INSTANTIATE_TEST_SUITE_P(Zoo, AgainstTorchvision, ::testing::ValuesIn(rows()), name_of_row);

}  // namespace
}  // namespace tutti
