// Layers of graphs beside PyTorch's and Keras's, forward and backward: tests/tables/layers.json.
#include <torch/torch.h>

#include <fstream>
#include <functional>

#include "tutti/base/json.h"
#include "tutti/nn/graph_module.h"
#include "tutti/nn/layers.h"

#include "tests/support/expect.h"

namespace tutti::layers_table {
namespace {

/// What a layer is told, by name.
class Told {
 public:
  explicit Told(const Json& json) : json_(json) {}
  int64_t whole(const char* name, int64_t otherwise) const {
    return json_.contains(name) ? json_.at(name).get<int64_t>() : otherwise;
  }
  double number(const char* name, double otherwise) const {
    return json_.contains(name) ? json_.at(name).get<double>() : otherwise;
  }
  bool truth(const char* name, bool otherwise) const {
    return json_.contains(name) ? json_.at(name).get<bool>() : otherwise;
  }
  nn::Shape list(const char* name) const { return json_.at(name).get<nn::Shape>(); }
  nn::Size2d size(const char* name) const {
    const nn::Shape both = list(name);
    return {both.at(0), both.at(1)};
  }
  nn::PoolOptions pool() const {
    return {.stride = whole("stride", 0), .padding = whole("padding", 0)};
  }
  nn::RecurrentLayerOptions recurrent() const {
    return {.layers = whole("layers", 1),
            .bidirectional = truth("bidirectional", false),
            .sequences = truth("sequences", false)};
  }

 private:
  const Json& json_;
};

using Make = std::function<nn::Layer(const Told&)>;

const std::map<std::string, Make>& layers() {
  using namespace nn;
  static const std::map<std::string, Make> all{
      {"sigmoid", [](const Told&) { return sigmoid(); }},
      {"tanh", [](const Told&) { return nn::tanh(); }},
      {"gelu", [](const Told&) { return gelu(); }},
      {"leaky_relu", [](const Told& t) { return leaky_relu(t.number("slope", 0)); }},
      {"elu", [](const Told& t) { return elu(t.number("alpha", 0)); }},
      {"selu", [](const Told&) { return selu(); }},
      {"silu", [](const Told&) { return silu(); }},
      {"hard_sigmoid", [](const Told&) { return hard_sigmoid(); }},
      {"hard_swish", [](const Told&) { return hard_swish(); }},
      {"softplus", [](const Told&) { return softplus(); }},
      {"mish", [](const Told&) { return mish(); }},
      {"relu6", [](const Told&) { return relu6(); }},
      {"softmax", [](const Told&) { return softmax(); }},
      {"log_softmax", [](const Told&) { return log_softmax(); }},
      {"conv1d",
       [](const Told& t) {
         return conv1d(t.whole("out_channels", 0), t.whole("kernel", 0),
                       {.stride = t.whole("stride", 1),
                        .padding = t.whole("padding", 0),
                        .groups = t.whole("groups", 1),
                        .bias = t.truth("bias", true)});
       }},
      {"conv_transpose1d",
       [](const Told& t) {
         return conv_transpose1d(t.whole("out_channels", 0), t.whole("kernel", 0),
                                 {.stride = t.whole("stride", 1),
                                  .padding = t.whole("padding", 0),
                                  .output_padding = t.whole("output_padding", 0),
                                  .bias = t.truth("bias", true)});
       }},
      {"conv_transpose2d",
       [](const Told& t) {
         ConvTranspose2dOptions options{.stride = t.whole("stride", 1),
                                        .output_padding = t.whole("output_padding", 0),
                                        .bias = t.truth("bias", true)};
         if (options.output_padding > 0) options.padding = t.size("padding");
         return conv_transpose2d(t.whole("out_channels", 0), t.size("kernel"), options);
       }},
      {"max_pool1d", [](const Told& t) { return max_pool1d(t.whole("kernel", 0), t.pool()); }},
      {"avg_pool1d", [](const Told& t) { return avg_pool1d(t.whole("kernel", 0), t.pool()); }},
      {"global_avg_pool1d", [](const Told&) { return global_avg_pool1d(); }},
      {"global_max_pool1d", [](const Told&) { return global_max_pool1d(); }},
      {"embedding",
       [](const Told& t) { return embedding(t.whole("vocabulary", 0), t.whole("features", 0)); }},
      {"lstm", [](const Told& t) { return lstm(t.whole("units", 0), t.recurrent()); }},
      {"gru", [](const Told& t) { return gru(t.whole("units", 0), t.recurrent()); }},
      {"group_norm",
       [](const Told& t) {
         return group_norm(t.whole("groups", 0), {.epsilon = t.number("epsilon", 1e-5)});
       }},
      {"reshape", [](const Told& t) { return reshape(t.list("shape")); }},
      {"permute", [](const Told& t) { return permute(t.list("order")); }},
      {"slice", [](const Told& t) { return slice(t.whole("begin", -1), t.whole("end", -1)); }},
  };
  return all;
}

const std::map<std::string, nn::Value (*)(const nn::Value&, const nn::Value&)>& layers_of_two() {
  static const std::map<std::string, nn::Value (*)(const nn::Value&, const nn::Value&)> all{
      {"subtract", nn::subtract},
      {"multiply", nn::multiply},
      {"maximum", nn::maximum},
      {"minimum", nn::minimum}};
  return all;
}

at::Tensor tensor_of(const Json& json) {
  return at::tensor(json.at("values").get<std::vector<double>>(), at::kDouble)
      .reshape(json.at("shape").get<std::vector<int64_t>>());
}

/// Tokens, masks and numbers of steps are whole numbers.
bool is_whole(const std::string& layer, size_t input) {
  return layer == "embedding" || (input == 1 && (layer == "lstm" || layer == "gru"));
}

nn::Graph graph_of(const Json& one, const std::vector<at::Tensor>& inputs) {
  const auto layer = one.at("layer").get<std::string>();
  std::vector<nn::NamedValue> named;
  for (size_t i = 0; i < inputs.size(); ++i)
    named.push_back(
        {"x" + std::to_string(i), nn::input(inputs[i].sizes().slice(1).vec(),
                                            is_whole(layer, i) ? DType::int64 : DType::float32)});
  if (const auto two = layers_of_two().find(layer); two != layers_of_two().end())
    return {named, {{"y", two->second(named.at(0).value, named.at(1).value)}}};
  const nn::Layer made = layers().at(layer)(Told(one.at("options"))).named("layer");
  const nn::Value y =
      named.size() == 1 ? made(named[0].value) : made(named.at(0).value, named.at(1).value);
  return {named, {{"y", y}}};
}

void expect_near(const at::Tensor& got, const at::Tensor& expected, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(got.sizes(), expected.sizes()) << what;
  if (expected.numel() == 0) return;
  const double scale = std::max(1.0, expected.abs().max().item<double>());
  EXPECT_LE((got.to(at::kDouble) - expected).abs().max().item<double>(), tolerance * scale) << what;
}

void check(const Json& one, at::ScalarType dtype, double tolerance) {
  const auto layer = one.at("layer").get<std::string>();
  std::vector<at::Tensor> inputs;
  for (const Json& input : one.at("inputs")) {
    const at::Tensor values = tensor_of(input);
    inputs.push_back(is_whole(layer, inputs.size()) ? values.to(at::kLong)
                                                    : values.to(dtype).requires_grad_());
  }
  nn::GraphModule module(graph_of(one, inputs));
  module.to(dtype);
  size_t parameters = 0;
  for (const auto& own : module.named_parameters()) {
    const at::NoGradGuard no_grad;
    own.value().copy_(tensor_of(one.at("parameters").at(own.key().substr(sizeof("layer")))));
    ++parameters;
  }
  EXPECT_EQ(parameters, one.at("parameters").size());
  const at::Tensor y = module.forward_all(inputs).front();
  expect_near(y.detach(), tensor_of(one.at("output")), tolerance, "output");
  (y * tensor_of(one.at("weights")).to(dtype)).sum().backward();
  for (const auto& [name, gradient] : one.at("gradients").items()) {
    const bool of_input = name.starts_with("input ");
    const at::Tensor own = of_input ? inputs.at(std::stoul(name.substr(6)))
                                    : module.named_parameters()["layer." + name];
    ASSERT_TRUE(own.grad().defined()) << name;
    expect_near(own.grad(), tensor_of(gradient), tolerance, name);
  }
}

const Json& table() {
  static const Json all = [] {
    std::ifstream file("tests/tables/layers.json");
    if (!file) throw std::runtime_error("tests/tables/layers.json is not there");
    return parse_json(std::string(std::istreambuf_iterator<char>(file), {}));
  }();
  return all;
}

class LayersTable : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(LayersTable, HasTheValuesAndGradientsOfTorchAndKeras) {
  for (const Json& one : table()) {
    const auto name = one.at("name").get<std::string>();
    SCOPED_TRACE(name);
    const double in_double = name.ends_with("Keras") ? 2e-8 : 1e-10;  // some constants in float32
    check(one, GetParam(), GetParam() == at::kDouble ? in_double : 1e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(In, LayersTable, ::testing::Values(at::kDouble, at::kFloat),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(LayersTableOf, BothPeersHasEveryLayer) {
  std::map<std::string, std::set<std::string>> peers;
  for (const Json& one : table()) {
    const auto name = one.at("name").get<std::string>();
    peers[one.at("layer").get<std::string>()].insert(name.substr(name.rfind(' ') + 1));
  }
  EXPECT_EQ(peers.size(), layers().size() + layers_of_two().size());
  for (const auto& [layer, of] : peers) {
    const bool keras_alone = layer.starts_with("global_");  // torch has no layer of that name
    EXPECT_EQ(of.size(), keras_alone ? 1U : 2U) << layer;
  }
}

}  // namespace
}  // namespace tutti::layers_table
