// Graphs as ONNX give what their modules give in evaluation.
#include <torch/torch.h>

#include <set>

#include "tutti/nn/graph_module.h"
#include "tutti/nn/to_onnx.h"

#include "tests/support/expect.h"
#include "tests/support/onnx_evaluate.h"
#include "tests/support/operator_graphs.h"
#include "tests/support/temp_folder.h"

namespace tutti::as_onnx {
namespace {

using test::operator_graphs;

std::shared_ptr<nn::GraphModule> module_of_moved_norms(const nn::Graph& graph) {
  torch::manual_seed(7);
  auto module = nn::make_module(graph);
  for (auto& buffer : module->named_buffers()) {
    if (buffer.key().ends_with("running_var")) buffer.value().uniform_(0.5, 2);
    if (buffer.key().ends_with("running_mean")) buffer.value().uniform_(-1, 1);
  }
  module->eval();
  return module;
}

std::vector<at::Tensor> inputs_of(const nn::Graph& graph, int64_t batch) {
  std::vector<at::Tensor> inputs;
  for (const nn::Port& port : graph.inputs()) {
    std::vector<int64_t> shape = graph.shape_of(port);
    shape.insert(shape.begin(), batch);
    const auto& input = std::get<nn::op::Input>(graph.nodes()[static_cast<size_t>(port.node)].op);
    inputs.push_back(input.dtype == DType::int64 ? at::randint(7, shape, at::kLong)
                                                 : at::randn(shape));
  }
  return inputs;
}

class ToOnnx : public ::testing::TestWithParam<size_t> {};

TEST_P(ToOnnx, HasTheValuesOfTheModule) {
  const at::NoGradGuard no_grad;
  const nn::Graph& graph = operator_graphs()[GetParam()].graph;
  const auto module = module_of_moved_norms(graph);
  const test::OnnxFile file = test::read_onnx(nn::to_onnx(*module).bytes());
  ASSERT_EQ(file.inputs.size(), graph.inputs().size());
  ASSERT_EQ(file.outputs.size(), graph.outputs().size());
  for (const int64_t batch : {1, 3}) {
    const auto inputs = inputs_of(graph, batch);
    const auto expected = module->forward_all(inputs);
    const auto got = test::run_onnx(file, inputs);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(file.outputs[i].name, graph.outputs()[i].name);
      ASSERT_EQ(got[i].sizes(), expected[i].sizes());
      EXPECT_LE((got[i] - expected[i]).abs().max().item<double>(), 1e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Each, ToOnnx, ::testing::Range(size_t{0}, operator_graphs().size()),
                         [](const auto& info) {
                           return std::string(operator_graphs()[info.param].name);
                         });

TEST(ToOnnxFile, SaysWhatItIs) {
  const nn::Graph graph = test::graphs::of({2, 5, 4}, {nn::conv2d(3, 3).named("first")});
  nn::GraphModule module(graph);
  const test::OnnxFile file = test::read_onnx(nn::to_onnx(module).bytes());
  EXPECT_EQ(file.ir_version, onnx::kIrVersion);
  EXPECT_EQ(file.opset, onnx::kOpset);
  EXPECT_EQ(file.producer, "tutti");
  EXPECT_EQ(file.inputs[0].name, "input");
  EXPECT_THAT(file.inputs[0].shape, ElementsAre("batch", "2", "5", "4"));
  EXPECT_THAT(file.outputs[0].shape, ElementsAre("batch", "3", "3", "2"));
  EXPECT_TRUE(at::equal(file.weights.at("first.weight"),
                        module.named_parameters()["first.weight"].detach()));
  EXPECT_EQ(file.nodes[0].name, "first/Conv");
}

TEST(ToOnnxFile, HasATiedWeightOnce) {
  const auto input = nn::input({5}, DType::int64);
  const auto embedding = nn::embedding(7, 6).named("tokens");
  const nn::Graph graph(input, nn::tied_linear(embedding)(embedding(input)));
  const test::OnnxFile file = test::read_onnx(nn::to_onnx(nn::GraphModule(graph)).bytes());
  EXPECT_EQ(file.weights.size(), 1U);
  EXPECT_EQ(file.inputs[0].type, 7);
}

TEST(ToOnnxFile, KeepsNamesApartThatUsersChose) {
  // A parameter that is called as the output, and a layer whose node would be called as another's.
  const auto input = nn::input({3, 4});
  const auto y = nn::add_position().named("output")(nn::linear(4).named("a/MatMul")(input));
  const nn::Graph graph({{"x", input}}, {{"output", nn::linear(2).named("a")(y)}});
  nn::GraphModule module(graph);
  const auto x = at::randn({2, 3, 4});
  const auto got = test::run_onnx(test::read_onnx(nn::to_onnx(module).bytes()), {x});
  EXPECT_TRUE(at::allclose(got[0], module.forward(x)));
}

TEST(ToOnnxFile, RefusesWeightsThatAreNotTheGraphs) {
  const nn::Graph graph = test::graphs::of({4}, {nn::linear(2).named("fc")});
  nn::OnnxState state = nn::onnx_state_of(nn::GraphModule(graph));
  state.at("fc.weight") = Array::zeros(DType::float32, {2, 5});
  EXPECT_THAT(message_of<UsageError>([&] { nn::to_onnx(graph, state); }),
              AllOf(HasSubstr("\"fc.weight\" is float32 [2, 5]"), HasSubstr("float32 [2, 4]")));
  state.erase("fc.weight");
  EXPECT_THAT(message_of<UsageError>([&] { nn::to_onnx(graph, state); }),
              HasSubstr("\"fc.weight\" is missing"));
}

TEST(ToOnnxFile, RefusesAMaskThatItHasNoOperatorFor) {
  const auto x = nn::input({5, 3}), mask = nn::input({5});
  const nn::Graph graph({{"x", x}, {"mask", mask}}, {{"y", nn::lstm(4).named("strokes")(x, mask)}});
  EXPECT_THAT(message_of<UsageError>([&] { nn::to_onnx(nn::GraphModule(graph)); }),
              AllOf(HasSubstr("lstm \"strokes\" has a mask of its 5 steps"),
                    HasSubstr("give it the number of steps, [1]")));
}

TEST(ToOnnxFile, SaysDtypesOfWhatIsOnlyMoved) {
  const auto tokens = nn::input({6}, DType::int64), x = nn::input({6});
  const nn::Graph moved(tokens, nn::slice(1, 3)(nn::reshape({2, 3})(tokens)));
  EXPECT_EQ(test::read_onnx(nn::to_onnx(nn::GraphModule(moved)).bytes()).outputs[0].type, 7);
  const nn::Graph mixed({{"x", x}, {"tokens", tokens}}, {{"y", nn::multiply(x, tokens)}});
  EXPECT_THAT(message_of<UsageError>([&] { nn::to_onnx(nn::GraphModule(mixed)); }),
              HasSubstr("onnx: multiply \"multiply_1\" joins float32 and int64"));
}

TEST(ToOnnxFile, LargeWeightsStandBesideIt) {
  const nn::Graph graph =
      test::graphs::of({40}, {nn::linear(30).named("a"), nn::linear(40).named("b")});
  nn::GraphModule module(graph);
  const TempFolder folder;
  const auto written = nn::to_onnx(module).write(folder / "net.onnx", /*most_inside=*/2000);
  EXPECT_EQ(written.data, folder / "net.onnx.data");
  const std::string data = get_bytes(written.data);
  const test::OnnxFile file = test::read_onnx(get_bytes(folder / "net.onnx"));
  EXPECT_EQ(written.bytes, std::ssize(data) + std::ssize(get_bytes(folder / "net.onnx")));
  ASSERT_EQ(file.outside.size(), 2U) << "biases are small and stay inside";
  for (const auto& [name, place] : file.outside) {
    EXPECT_EQ(place.at("location"), "net.onnx.data");
    const size_t offset = std::stoul(place.at("offset")), length = std::stoul(place.at("length"));
    EXPECT_EQ(offset % 4096, 0U);
    const at::Tensor weight = module.named_parameters()[name].detach();
    EXPECT_EQ(data.substr(offset, length),
              std::string(static_cast<const char*>(weight.data_ptr()), weight.nbytes()));
  }
}

}  // namespace
}  // namespace tutti::as_onnx
