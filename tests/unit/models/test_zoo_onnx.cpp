// Every network of the zoo as JSON and as ONNX: by a reader of the tests', and by onnxruntime.
#include <torch/torch.h>

#include "tutti/data/safetensors.h"
#include "tutti/models/gpt.h"
#include "tutti/nn/graph_json.h"
#include "tutti/nn/to_onnx.h"

#include "tests/support/expect.h"
#include "tests/support/onnx_evaluate.h"
#include "tests/support/python.h"
#include "tests/support/temp_folder.h"
#include "tests/support/zoo_training.h"

namespace tutti {
namespace {

struct ZooGraph {
  std::string name;
  nn::Graph graph;
};

std::vector<ZooGraph> zoo_graphs() {
  std::vector<ZooGraph> all;
  for (const SmallNetwork& net : small_zoo())
    all.push_back(
        {net.name,
         models::model_by_name(net.name, {.classes = 3, .input = net.input, .width = net.width})});
  all.push_back({"linear_regression", models::linear_regression(4)});
  all.push_back(
      {"auxiliary", models::inception_v3({.classes = 3, .width = 1.0 / 16, .auxiliary = true})});
  all.push_back({"gpt", models::gpt({.vocabulary = 11,
                                     .context = 6,
                                     .layers = 2,
                                     .heads = 2,
                                     .features = 8,
                                     .dropout = 0.1})});
  all.push_back({"gpt_own_head", models::gpt({.vocabulary = 11,
                                              .context = 6,
                                              .layers = 1,
                                              .heads = 2,
                                              .features = 8,
                                              .tied = false,
                                              .gelu_by_tanh = false})});
  return all;
}

std::shared_ptr<nn::GraphModule> zoo_module(const nn::Graph& graph) {
  torch::manual_seed(5);
  auto module = nn::make_module(graph);
  for (auto& buffer : module->named_buffers()) {
    if (buffer.key().ends_with("running_var")) buffer.value().uniform_(0.5, 2);
    if (buffer.key().ends_with("running_mean")) buffer.value().uniform_(-0.5, 0.5);
  }
  module->eval();
  return module;
}

std::vector<at::Tensor> zoo_inputs(const nn::Graph& graph, int64_t batch) {
  std::vector<at::Tensor> inputs;
  for (const nn::Port& port : graph.inputs()) {
    std::vector<int64_t> shape = graph.shape_of(port);
    shape.insert(shape.begin(), batch);
    const auto& node = graph.nodes()[static_cast<size_t>(port.node)];
    inputs.push_back(std::get<nn::op::Input>(node.op).dtype == DType::int64
                         ? at::randint(11, shape, at::kLong)
                         : at::randn(shape));
  }
  return inputs;
}

class ZooOnnx : public ::testing::TestWithParam<size_t> {};

TEST_P(ZooOnnx, IsTheSameFromItsTextAndGivesTheSameAsOnnx) {
  const at::NoGradGuard no_grad;
  const nn::Graph graph = zoo_graphs()[GetParam()].graph;
  const std::string text = nn::graph_to_json(graph);
  const nn::Graph read = nn::graph_from_json(text, "here");
  EXPECT_EQ(nn::graph_to_json(read), text);

  const auto module = zoo_module(graph), again = zoo_module(read);
  const auto inputs = zoo_inputs(graph, 2);
  const auto expected = module->forward_all(inputs), of_text = again->forward_all(inputs);
  const auto got = run_onnx(read_onnx(nn::to_onnx(*module).bytes()), inputs);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(at::equal(of_text[i], expected[i]));
    EXPECT_LE((got[i] - expected[i]).abs().max().item<double>(), 1e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(Each, ZooOnnx, ::testing::Range(size_t{0}, zoo_graphs().size()),
                         [](const auto& info) { return zoo_graphs()[info.param].name; });

void keep(std::vector<data::NamedArray>& arrays, const std::string& name,
          const at::Tensor& tensor) {
  const auto plain = std::make_shared<at::Tensor>(tensor.contiguous());
  const MemorySpan span = span_of(*plain);
  arrays.push_back({name, Array::view(span.data, span.dtype, plain->sizes().vec(), plain)});
}

TEST(OnnxPeers, OnnxruntimeGivesTheSameOfEveryNetwork) {
  const Python python("onnx, onnxruntime");
  if (!python.why_not().empty()) GTEST_SKIP() << python.why_not();
  const at::NoGradGuard no_grad;
  const TempFolder folder;
  for (const auto& [name, graph] : zoo_graphs()) {
    const auto module = zoo_module(graph);
    // One whose weights stand in a file of their own.
    nn::to_onnx(*module).write(folder / (name + ".onnx"), name == "lenet" ? 0 : 1'000'000'000);
    std::vector<data::NamedArray> arrays;
    for (const int64_t batch : {1, 3}) {
      const auto inputs = zoo_inputs(graph, batch);
      const auto outputs = module->forward_all(inputs);
      for (size_t i = 0; i < inputs.size(); ++i)
        keep(arrays, fmt::format("{}/in/{}", batch, graph.inputs()[i].name), inputs[i]);
      for (size_t i = 0; i < outputs.size(); ++i)
        keep(arrays, fmt::format("{}/out/{}", batch, graph.outputs()[i].name), outputs[i]);
    }
    data::write_safetensors(folder / (name + ".safetensors"), arrays);
  }
  python.run(fmt::format(R"(
import pathlib
import numpy as np, onnx, onnxruntime
from safetensors.numpy import load_file
files = sorted(pathlib.Path({:?}).glob("*.onnx"))
assert len(files) == {}, files
for file in files:
    onnx.checker.check_model(str(file), full_check=True)
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    tensors = load_file(file.with_suffix(".safetensors"))
    for batch in ("1", "3"):
        of = lambda kind: {{name.split("/")[2]: value for name, value in tensors.items()
                           if name.startswith(f"{{batch}}/{{kind}}/")}}
        expected = of("out")
        got = session.run(list(expected), of("in"))
        for (name, wanted), made in zip(expected.items(), got):
            assert made.shape == wanted.shape, (file, name, made.shape, wanted.shape)
            apart = np.abs(made - wanted).max()
            assert apart <= 1e-5 * max(1, np.abs(wanted).max()), (file, name, apart)
)",
                         folder.path().string(), zoo_graphs().size()));
}

}  // namespace
}  // namespace tutti
