// `tutti export`: from a training's folder to a file that onnxruntime takes.
#include "tests/jobs/command_line/user_data_test.h"
#include "tests/support/python.h"

namespace tutti::test {
namespace {

namespace fs = std::filesystem;

const Words kShort = {"--max-steps", "4", "--verbose", "0"};

Words trained_on(const std::string& photos, const std::string& run) {
  return Words{"train", "mlp",          "--data", photos,  "--image-size",
               "8",     "--batch-size", "10",     "--out", run} +
         kShort;
}

TEST_F(UserData, IsExportedWithWhatIsDoneToIt) {
  const std::string run = folder_ / "run", file = folder_ / "net.onnx";
  ASSERT_EQ(tutti(trained_on(photos_, run)).exit_code, 0);
  const auto made = tutti({"export", run, "--onnx", file});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_THAT(made.out,
              AllOf(HasSubstr("input \"input\": uint8 [batch, 3, height, width]: decoded"),
                    HasSubstr("output \"output\": float32 [batch, 2]: logits of 2 classes"),
                    HasSubstr("Resize"), HasSubstr("opset 18")));
  const auto plain = tutti({"export", run, "--onnx", file, "--as-is"});
  EXPECT_THAT(plain.out, AllOf(HasSubstr("input \"input\": float32 [batch, 3, 8, 8]\n"),
                               Not(HasSubstr("Resize"))));
  const auto checkpoint = tutti({"export", run + "/checkpoints", "--onnx", file});
  EXPECT_EQ(checkpoint.exit_code, 0) << checkpoint.err;
}

TEST_F(UserData, ThatOnnxCannotSayIsNamed) {
  const std::string run = folder_ / "run", file = folder_ / "net.onnx";
  ASSERT_EQ(tutti(Words{"train", "mlp", "--data", flats_, "--target", "dear", "--batch-size", "30",
                        "--out", run} +
                  kShort)
                .exit_code,
            0);
  const auto refused = tutti({"export", run, "--onnx", file});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("its values are words"), HasSubstr("--as-is")));
  EXPECT_FALSE(fs::exists(file));
  EXPECT_EQ(tutti({"export", run, "--onnx", file, "--as-is"}).exit_code, 0);
}

/// A bitmap of 24 bits, lines from the lowest up, each of a multiple of four bytes.
void put_bitmap(const fs::path& file, int height, int width, const std::vector<uint8_t>& rgb) {
  const int line = (3 * width + 3) / 4 * 4;
  std::string bytes(54 + static_cast<size_t>(line) * static_cast<size_t>(height), '\0');
  const auto number = [&](size_t at, int value) {
    for (int i = 0; i < 4; ++i)
      bytes[at + static_cast<size_t>(i)] = static_cast<char>(value >> (8 * i));
  };
  bytes[0] = 'B';
  bytes[1] = 'M';
  number(2, static_cast<int>(bytes.size()));
  number(10, 54);
  number(14, 40);
  number(18, width);
  number(22, height);
  bytes[26] = 1;
  bytes[28] = 24;
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < 3; ++c)
        bytes[static_cast<size_t>(54 + (height - 1 - y) * line + 3 * x + 2 - c)] =
            static_cast<char>(rgb[static_cast<size_t>((y * width + x) * 3 + c)]);
  put_bytes(file, bytes);
}

TEST_F(UserData, OnnxruntimeSaysOfPhotosWhatPredictSays) {
  const Python python("onnxruntime");
  if (!python.why_not().empty()) GTEST_SKIP() << python.why_not();
  const std::string run = folder_ / "run", file = folder_ / "net.onnx";
  ASSERT_EQ(tutti(trained_on(photos_, run)).exit_code, 0);
  ASSERT_EQ(tutti({"export", run, "--onnx", file}).exit_code, 0);
  RandomStream random(5);
  const int sizes[][2] = {{31, 44}, {50, 23}, {9, 9}};
  Words predict{"predict", "--weights", run, "--top", "2", "--json", folder_ / "said.json"};
  std::string photos = "photos = []\n";
  for (const auto& [height, width] : sizes) {
    std::vector<uint8_t> rgb;
    for (int i = 0; i < height * width * 3; ++i)
      rgb.push_back(static_cast<uint8_t>(random.below(256)));
    const std::string name = fmt::format("{}x{}", height, width);
    put_bitmap(folder_ / (name + ".bmp"), height, width, rgb);
    put_bytes(folder_ / (name + ".rgb"), std::string(rgb.begin(), rgb.end()));
    predict.push_back(folder_ / (name + ".bmp"));
    photos += fmt::format("photos.append(({:?}, {}, {}))\n", (folder_ / (name + ".rgb")).string(),
                          height, width);
  }
  const auto said = tutti(predict);
  ASSERT_EQ(said.exit_code, 0) << said.err;
  python.run(photos + fmt::format(R"(
import json
import numpy as np, onnxruntime
session = onnxruntime.InferenceSession({:?}, providers=["CPUExecutionProvider"])
classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
assert classes == ["dark", "light"], classes
lines = [json.loads(line) for line in open({:?})]
assert len(lines) == len(photos)
for line, (name, height, width) in zip(lines, photos):
    rgb = np.fromfile(name, np.uint8).reshape(1, height, width, 3).transpose(0, 3, 1, 2)
    logits, = session.run(None, {{"input": np.ascontiguousarray(rgb)}})
    chances = np.exp(logits[0] - logits[0].max())
    chances /= chances.sum()
    for one in line["top"]:
        apart = abs(chances[classes.index(one["class"])] - one["probability"])
        assert apart < 0.005, (name, one, chances)
)",
                                  file, (folder_ / "said.json").string()));
}

TEST_F(UserData, OnnxruntimePredictsNumbersInTheirUnit) {
  const Python python("onnxruntime");
  if (!python.why_not().empty()) GTEST_SKIP() << python.why_not();
  const std::string run = folder_ / "run", file = folder_ / "net.onnx";
  ASSERT_EQ(tutti(Words{"train", "linear_regression", "--data", flats_, "--target", "price",
                        "--columns", "area", "--batch-size", "30", "--out", run} +
                  kShort)
                .exit_code,
            0);
  const auto made = tutti({"export", run, "--onnx", file});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_THAT(made.out, AllOf(HasSubstr("float64 [batch, 1]: columns area"),
                              HasSubstr("price, in its own unit")));
  put_bytes(folder_ / "two.csv", "area\n30\n95\n");
  ASSERT_EQ(
      tutti({"predict", "--weights", run, folder_ / "two.csv", "--json", folder_ / "said.json"})
          .exit_code,
      0);
  python.run(fmt::format(R"(
import json
import numpy as np, onnxruntime
session = onnxruntime.InferenceSession({:?}, providers=["CPUExecutionProvider"])
got, = session.run(None, {{"input": np.array([[30.0], [95.0]])}})
wanted = [json.loads(line)["value"] for line in open({:?})]
assert np.allclose(got[:, 0], wanted, rtol=1e-5), (got, wanted)
)",
                         file, (folder_ / "said.json").string()));
}

TEST_F(UserData, OnnxruntimeRunsWhatWasTrainedOfAFileOfPythons) {
  const std::string run = folder_ / "run", file = folder_ / "net.onnx";
  const std::string nets = "tests/tables/exported/pictures";
  ASSERT_EQ(tutti(Words{"train", nets + ".pt2", "--eval-model", nets + ".eval.pt2", "--data", idx_,
                        "--batch-size", "10", "--out", run} +
                  kShort)
                .exit_code,
            0);
  const auto made = tutti({"export", run, "--onnx", file});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_THAT(made.out, AllOf(HasSubstr("input \"x\": uint8 [batch, 1, 12, 12]"),
                              HasSubstr("output \"output\": float32 [batch, 2]"),
                              HasSubstr("BatchNormalization")));
  const Python python("onnxruntime");
  if (!python.why_not().empty()) GTEST_SKIP() << python.why_not();
  ASSERT_EQ(tutti({"predict", "--weights", run, folder_ / "t10k-images-idx3-ubyte", "--json",
                   folder_ / "said.json"})
                .exit_code,
            0);
  python.run(fmt::format(R"(
import json
import numpy as np, onnxruntime
session = onnxruntime.InferenceSession({:?}, providers=["CPUExecutionProvider"])
classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
images = np.fromfile({:?}, np.uint8)[16:].reshape(-1, 1, 12, 12)
logits, = session.run(None, {{"x": images}})
lines = [json.loads(line) for line in open({:?})]
assert len(lines) == len(images)
for line, row in zip(lines, logits):
    chances = np.exp(row - row.max())
    chances /= chances.sum()
    assert abs(chances[classes.index(line["class"])] - line["probability"]) < 1e-5, (line, chances)
)",
                         file, (folder_ / "t10k-images-idx3-ubyte").string(),
                         (folder_ / "said.json").string()));
}

TEST_F(UserData, ExportSaysWhatIsMissing) {
  const auto no_weights = tutti({"export", folder_.path(), "--onnx", folder_ / "x.onnx"});
  EXPECT_EQ(no_weights.exit_code, 2);
  EXPECT_THAT(no_weights.err, HasSubstr("no weights are there"));
  const auto no_file = tutti({"export", folder_.path()});
  EXPECT_EQ(no_file.exit_code, 2);
  EXPECT_THAT(no_file.err, HasSubstr("--onnx"));
}

}  // namespace
}  // namespace tutti::test
