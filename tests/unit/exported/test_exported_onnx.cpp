// Files of .pt2 as ONNX: what PyTorch's eager module gives, which the fixtures have.
#include <torch/torch.h>

#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "tutti/data/safetensors.h"
#include "tutti/exported/from_export.h"
#include "tutti/exported/module.h"
#include "tutti/exported/to_onnx.h"
#include "tutti/sync/tensors.h"

#include "tests/support/expect.h"
#include "tests/support/onnx_evaluate.h"
#include "tests/support/python.h"

namespace tutti::exported_onnx {
namespace {

namespace fs = std::filesystem;

const fs::path kFiles = "tests/tables/exported";
/// Those whose evaluation ONNX can say.
const std::vector<std::string> kNets = {"mlp",  "cnn",   "gpt",    "lstm", "frozen",
                                        "dlrm", "named", "mobile", "unet", "vit"};

struct Fixture {
  fs::path file;  ///< of evaluation
  std::map<std::string, at::Tensor> trained;
  std::vector<at::Tensor> inputs, outputs;
};

Fixture fixture(const std::string& name) {
  Fixture made{.file = kFiles / (name + ".eval.pt2")};
  if (!fs::exists(made.file)) made.file = kFiles / (name + ".pt2");
  const auto tensors = data::read_safetensors(kFiles / (name + ".safetensors"));
  for (const auto& [tensor, array] : tensors.arrays)
    if (tensor.starts_with("final.")) made.trained[tensor.substr(6)] = tensor_of(array).clone();
  for (size_t i = 0; const Array* array = tensors.find("step4.input." + std::to_string(i)); ++i)
    made.inputs.push_back(tensor_of(*array).clone());
  for (size_t i = 0; const Array* array = tensors.find("evaluation.output." + std::to_string(i));
       ++i)
    made.outputs.push_back(tensor_of(*array).clone());
  return made;
}

class ExportedOnnx : public ::testing::TestWithParam<std::string> {};

TEST_P(ExportedOnnx, GivesWhatEagerPyTorchGives) {
  const Fixture given = fixture(GetParam());
  ASSERT_FALSE(given.outputs.empty());
  const auto program = exported::to_onnx(given.file, given.trained);
  const auto got = run_onnx(read_onnx(program.bytes()), given.inputs);
  ASSERT_EQ(got.size(), given.outputs.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].sizes(), given.outputs[i].sizes());
    EXPECT_LE((got[i] - given.outputs[i]).abs().max().item<double>(), 1e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(Each, ExportedOnnx, ::testing::ValuesIn(kNets),
                         [](const auto& info) { return info.param; });

TEST(ExportedOnnxFile, NamesWhatHasNoCounterpart) {
  EXPECT_THAT(message_of<UsageError>([] { exported::to_onnx(kFiles / "control.pt2"); }),
              AllOf(HasSubstr("higher_order.cond"), HasSubstr("aten::randn_like")));
  EXPECT_THAT(message_of<UsageError>([] { exported::to_onnx(kFiles / "cnn.pt2"); }),
              AllOf(HasSubstr("aten::batch_norm"), HasSubstr("export the module after eval()")));
}

TEST(ExportedOnnxFile, RefusesValuesOfAnotherShapeAndThoseThatAreMissing) {
  exported::OnnxValues values;
  for (const auto& one : from_export(kFiles / "mlp.pt2")()->named_parameters())
    values.emplace(one.key(), one.value());
  const auto refused = [&] {
    return message_of<DataError>([&] { exported::to_onnx(kFiles / "mlp.pt2", values); });
  };
  values["head.weight"] = at::zeros({3, 11});
  EXPECT_THAT(refused(), HasSubstr("\"head.weight\" is Float [3, 11]"));
  values.erase("head.weight");
  EXPECT_THAT(refused(), HasSubstr("\"head.weight\" of the graph is not among the"));
}

TEST(OnnxPeers, OnnxruntimeGivesWhatEagerPyTorchGives) {
  const Python python("onnx, onnxruntime");
  if (!python.why_not().empty()) GTEST_SKIP() << python.why_not();
  const TempFolder folder;
  for (const std::string& name : kNets) {
    const Fixture given = fixture(name);
    const auto program = exported::to_onnx(given.file, given.trained);
    program.write(folder / (name + ".onnx"));
    std::ofstream(folder / (name + ".names")) << [&] {
      nlohmann::json names;
      for (const auto& port : program.inputs()) names["in"].push_back(port.name);
      for (const auto& port : program.outputs()) names["out"].push_back(port.name);
      return names.dump();
    }();
  }
  python.run(fmt::format(R"(
import json, pathlib
import numpy as np, onnx, onnxruntime
from safetensors.numpy import load_file
for file in sorted(pathlib.Path({:?}).glob("*.onnx")):
    onnx.checker.check_model(str(file), full_check=True)
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = json.loads(file.with_suffix(".names").read_text())
    tensors = load_file(pathlib.Path({:?}) / (file.stem + ".safetensors"))
    inputs = {{name: tensors[f"step4.input.{{i}}"] for i, name in enumerate(names["in"])}}
    for i, made in enumerate(session.run(names["out"], inputs)):
        wanted = tensors[f"evaluation.output.{{i}}"]
        assert made.shape == wanted.shape, (file, i, made.shape, wanted.shape)
        apart = np.abs(made - wanted).max()
        assert apart <= 1e-5 * max(1, np.abs(wanted).max()), (file, i, apart)
)",
                         folder.path().string(), kFiles.string()));
}

}  // namespace
}  // namespace tutti::exported_onnx
