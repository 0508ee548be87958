// Weights go from Python to tutti and back: the same bytes, and outputs within a tolerance.
#include <filesystem>

#include "tests/support/command.h"
#include "tests/support/expect.h"
#include "tests/support/python.h"
#include "tests/support/temp_folder.h"

namespace tutti::test {
namespace {

const std::filesystem::path kRepository = TUTTI_SOURCE_DIR;
const std::string kBinaries = TUTTI_PROGRAM_DIR;

// A script of the example in .venv; its output.
std::string script(std::vector<std::string> words) {
  words.front() = (kRepository / "examples/09_from_python" / words.front()).string();
  words.insert(words.begin(), (kRepository / ".venv/bin/python").string());
  const auto result = run_command(words);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  return result.out;
}

// Loads weights.safetensors of `folder`, writes ours.npy and saved.safetensors.
std::string load_and_save(const std::string& network, const TempFolder& folder,
                          std::vector<std::string> flags = {}) {
  std::vector<std::string> words{kBinaries + "/09_from_python", network};
  for (const char* name : {"weights.safetensors", "inputs.npy", "ours.npy", "saved.safetensors"})
    words.push_back((folder / name).string());
  words.insert(words.end(), flags.begin(), flags.end());
  const auto result = run_command(words);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  return result.out;
}

TEST(FromPython, StateDictsGoThereAndBack) {
  const Python python("torch, safetensors.torch");
  if (!python.why_not().empty()) GTEST_SKIP() << python.why_not();
  const TempFolder folder;
  script({"pytorch_to_tutti.py", folder.path().string()});
  const std::string one = load_and_save("resnet18", folder);
  const auto check = [&](const char* outputs) {
    return script({"tutti_to_pytorch.py", (folder / "saved.safetensors").string(),
                   (folder / "inputs.npy").string(), (folder / outputs).string(),
                   (folder / "weights.safetensors").string()});
  };
  for (const char* outputs : {"ours.npy", "outputs.npy"})
    EXPECT_EQ(check(outputs), "outputs agree\n122 tensors have the same bytes\n");
  EXPECT_EQ(load_and_save("resnet18", folder, {"--strategy", "mirrored", "--replicas", "2"}), one);
  EXPECT_THAT(check("ours.npy"), HasSubstr("outputs agree"));
}

TEST(FromPython, WhatWasTrainedHereGoesToPyTorch) {
  const Python python("torch, safetensors.torch");
  if (!python.why_not().empty()) GTEST_SKIP() << python.why_not();
  const TempFolder folder;
  const auto trained =
      run_command({kBinaries + "/tutti", "train", "resnet18", "--data", kFewDoodles, "--strategy",
                   "mirrored", "--replicas", "2", "--take", "32", "--batch-size", "16", "--epochs",
                   "1", "--out", folder.path().string()});
  ASSERT_EQ(trained.exit_code, 0) << trained.out << trained.err;
  python.run("import numpy\nnumpy.save('" + (folder / "inputs.npy").string() +
             "', numpy.random.default_rng(1).random((5, 1, 28, 28), numpy.float32))\n");
  std::filesystem::copy_file(folder / "model.safetensors", folder / "weights.safetensors");
  load_and_save("resnet18", folder);
  EXPECT_EQ(script({"tutti_to_pytorch.py", (folder / "model.safetensors").string(),
                    (folder / "inputs.npy").string(), (folder / "ours.npy").string(),
                    (folder / "saved.safetensors").string()}),
            "outputs agree\n122 tensors have the same bytes\n");
}

TEST(FromPython, NetworksGoThereAndTheirWeightsBack) {
  const Python python("torch, safetensors.torch");
  if (!python.why_not().empty()) GTEST_SKIP() << python.why_not();
  const TempFolder folder;
  const std::string net = (folder / "doodles.pt2").string();
  const std::string begin = "import sys, torch\nsys.path[:0] = ['" +
                            (kRepository / "python").string() + "', '" +
                            (kRepository / "examples/09_from_python").string() +
                            "']\nfrom doodles import Doodles\nfrom tutti.export import export, "
                            "load_weights\ntorch.manual_seed(1)\nnet = Doodles()\n";
  python.run(begin + "print(export(net, torch.randn(4, 1, 28, 28), '" + net + "'))\n");
  const auto trained = run_command(
      {kBinaries + "/tutti", "train", net, "--eval-model", (folder / "doodles.eval.pt2").string(),
       "--data", kFewDoodles, "--strategy", "mirrored", "--replicas", "2", "--take", "64",
       "--batch-size", "16", "--epochs", "1", "--out", (folder / "run").string()});
  ASSERT_EQ(trained.exit_code, 0) << trained.out << trained.err;
  // Every tensor is there, and training has changed it.
  python.run(begin + "before = {k: v.clone() for k, v in net.state_dict().items()}\n" +
             "load_weights(net, '" + (folder / "run/model.safetensors").string() + "')\n" +
             "for k, v in net.state_dict().items():\n" +
             "  assert v.isfinite().all() and not torch.equal(v, before[k]), k\n");
}

TEST(FromPython, LayoutOfKerasIsTransposed) {
  const Python python("numpy, safetensors.numpy");
  if (!python.why_not().empty()) GTEST_SKIP() << python.why_not();
  const TempFolder folder;
  script({"keras_layout.py", "to", folder.path().string()});
  load_and_save("mlp", folder);
  EXPECT_EQ(script({"keras_layout.py", "check", folder.path().string(),
                    (folder / "saved.safetensors").string(), (folder / "ours.npy").string()}),
            "the same weights, and outputs agree\n");
}

TEST(FromPython, AnotherNetworkIsRefusedByName) {
  const Python python("numpy, safetensors.numpy");
  if (!python.why_not().empty()) GTEST_SKIP() << python.why_not();
  const TempFolder folder;
  script({"keras_layout.py", "to", folder.path().string()});
  const auto result =
      run_command({kBinaries + "/09_from_python", "lenet",
                   (folder / "weights.safetensors").string(), (folder / "inputs.npy").string(),
                   (folder / "ours.npy").string(), (folder / "saved.safetensors").string()});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("conv1.weight"));
  EXPECT_THAT(result.err, HasSubstr("linear_1.weight"));
  EXPECT_FALSE(std::filesystem::exists(folder / "saved.safetensors"));
}

}  // namespace
}  // namespace tutti::test
