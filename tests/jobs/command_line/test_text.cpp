// `tutti train gpt`, `evaluate` and `generate`: a model of a text, from the command line alone.
#include <algorithm>
#include <cmath>

#include "tests/jobs/program.h"

namespace tutti::test {
namespace {

namespace fs = std::filesystem;

class TextModel : public testing::Test {
 protected:
  TextModel() {
    std::string rhyme;
    for (int i = 0; i < 60; ++i) rhyme += "one, two,\nbuckle my shoe é\n";
    put_bytes(text_, rhyme);
  }

  Words training(const Words& more = {}) const {
    Words words = words_of(
                      "train gpt --context 12 --layers 1 --heads 2 --features 16 --threads 1"
                      " --batch-size 10 --learning-rate 0.01 --max-steps 12") +
                  Words{"--data", text_, "--json", figures_};
    for (size_t i = 0; i < more.size(); ++i) {
      const auto known = std::ranges::find(words, more[i]);
      if (more[i].starts_with("--") && known != words.end())
        known[1] = more[++i];  // in the place of what stands there
      else
        words.push_back(more[i]);
    }
    return words;
  }
  json trained(const Words& more = {}) {
    const auto result = tutti(training(more));
    said_ = result.out;
    EXPECT_EQ(result.exit_code, 0) << result.err << result.out;
    return result.exit_code == 0 ? json_in(figures_) : json{};
  }
  std::string written(const Words& more) {
    const auto result = tutti(Words{"generate", run_, "--threads", "1"} + more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  }

  const TempFolder folder_;
  const std::string text_ = folder_ / "rhyme.txt", run_ = folder_ / "run",
                    figures_ = folder_ / "figures.json";
  std::string said_;
};

TEST_F(TextModel, TrainsTheSameHoweverReplicasArePlaced) {
  const Words two = {"--replicas", "2", "--dropout", "0.1", "--stride", "1"};
  const json expected = trained(two);
  for (const char* strategy : {"mirrored", "multi_worker"}) {
    const json got = trained(two + Words{"--strategy", strategy});
    EXPECT_EQ(got.at("weights_sha256"), expected.at("weights_sha256")) << strategy;
    EXPECT_EQ(got.at("val_perplexity"), expected.at("val_perplexity")) << strategy;
  }
}

TEST_F(TextModel, IsAdaptedBesideWeightsThatStay) {
  const std::string base = folder_ / "base";
  trained({"--out", base});
  const Words lora = {"--from",     base, "--lora",    "*.attn:rank=2,alpha=1",
                      "--replicas", "2",  "--dropout", "0.1"};
  const json expected = trained(lora + Words{"--out", run_});
  EXPECT_EQ(expected.at("parameters_trained"), 2 * ((16 + 48) + (16 + 16)));
  for (const char* strategy : {"mirrored", "multi_worker"})
    EXPECT_EQ(trained(lora + Words{"--strategy", strategy}).at("weights_sha256"),
              expected.at("weights_sha256"))
        << strategy;
  for (const std::string& weights : {run_, run_ + "/model.safetensors"}) {
    const auto tested = tutti(
        {"evaluate", "--data", text_, "--checkpoints", weights, "--json", folder_ / "test.json"});
    ASSERT_EQ(tested.exit_code, 0) << tested.err;
    EXPECT_EQ(json_in(folder_ / "test.json").at("weights_sha256"), expected.at("weights_sha256"));
  }
  EXPECT_THAT(written({"--tokens", "5"}), ::testing::Not(::testing::IsEmpty()));
  EXPECT_THAT(tutti({"evaluate", "--data", text_, "--checkpoints", run_ + "/checkpoints"}),
              Exits(2, Err(HasSubstr("its adapters stand beside other weights"))))
      << "those of --from, which are in another folder";
}

TEST_F(TextModel, IsLearntTestedAndWrites) {
  const json figures =
      trained({"--max-steps", "150", "--stride", "1", "--epochs", "5", "--out", run_});
  EXPECT_EQ(figures.at("data"), "text");
  EXPECT_NEAR(figures.at("val_perplexity"), std::exp(figures.at("val_loss").get<double>()), 1e-4);
  EXPECT_LT(figures.at("val_perplexity").get<double>(), 2);
  EXPECT_THAT(
      said_, AllOf(HasSubstr("validation: the last 10 % of " + text_), HasSubstr("18 characters; "),
                   HasSubstr("test perplexity 1."), HasSubstr("characters/s")));
  const json spec = json_in(fs::path(run_) / "data.json");
  EXPECT_EQ(spec.at("kind"), "text");
  EXPECT_EQ(spec.at("classes").size(), 18u);
  EXPECT_EQ(spec.at("gpt").at("features"), 16);

  ASSERT_THAT(
      tutti({"evaluate", "--data", text_, "--checkpoints", run_, "--json", folder_ / "test.json"}),
      Exits(0, Out(HasSubstr("perplexity 1."))));
  EXPECT_LT(json_in(folder_ / "test.json").at("perplexity").get<double>(), 2);

  const Words long_one = {"--prompt", "buckle", "--tokens", "30", "--seed", "1"};
  const std::string text = written(long_one);
  EXPECT_THAT(text, StartsWith("buckle"));
  EXPECT_EQ(written(long_one), text);
  EXPECT_EQ(written({"--prompt", "buckle", "--tokens", "8", "--top-k", "1"}), "buckle my shoe\n");
  EXPECT_EQ(written({"--tokens", "5", "--temperature", "0.01"}), "\nbuckl\n");
  const auto other = tutti({"generate", run_ + "/checkpoints", "--tokens", "1"});
  EXPECT_EQ(other.exit_code, 0) << other.err;
}

TEST_F(TextModel, GoesOnFromACheckpointBitForBit) {
  const auto straight = trained({"--max-steps", "20"});
  trained({"--max-steps", "8", "--out", run_});
  const auto resumed = trained({"--max-steps", "20", "--out", run_, "--resume"});
  EXPECT_EQ(resumed.at("weights_sha256"), straight.at("weights_sha256"));
}

TEST_F(TextModel, IsTestedOnAnotherText) {
  put_bytes(folder_ / "more.csv", "one,two\ntwo,one\nmy shoe,one\n");  // a table, but for gpt
  const json figures = trained({"--validation", folder_ / "more.csv"});
  EXPECT_GT(figures.at("val_loss").get<double>(), 0);
  put_bytes(folder_ / "greek.txt", "one, two, λ, three, four, five");
  EXPECT_THAT(tutti(training({"--validation", folder_ / "greek.txt"})),
              Exits(2, Err(HasSubstr("got the character \"λ\""))));
}

}  // namespace
}  // namespace tutti::test
