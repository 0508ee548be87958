// tutti evaluate: figures of weights that a training has written, and of one that still goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include <nlohmann/json.hpp>

#include "tests/support/command.h"
#include "tests/support/temp_folder.h"

namespace tutti::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using Words = std::vector<std::string>;

Words evaluate(const std::string& checkpoints, const Words& more = {}) {
  Words words = {TUTTI_PROGRAM,   "evaluate", "mlp", "--data", "examples/data/quickdraw",
                 "--checkpoints", checkpoints};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

nlohmann::json train_into(const std::string& folder) {
  const auto result =
      run_command({TUTTI_PROGRAM, "train", "mlp", "--data", "examples/data/quickdraw", "--epochs",
                   "1", "--max-steps", "20", "--out", folder, "--json", folder + ".json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return nlohmann::json::parse(get_bytes(folder + ".json"));
}

TEST(Evaluate, GivesTheFiguresOfTheTraining) {
  const TempFolder folder;
  const nlohmann::json trained = train_into(folder / "run");
  for (const std::filesystem::path& place : {folder / "run", folder / "run/model.safetensors"}) {
    const auto result = run_command(evaluate(place, {"--json", folder / "test.json"}));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const auto tested = nlohmann::json::parse(get_bytes(folder / "test.json"));
    EXPECT_EQ(tested.at("weights_sha256"), trained.at("weights_sha256"));
    EXPECT_EQ(tested.at("accuracy"), trained.at("val_accuracy"));
    EXPECT_NEAR(tested.at("loss").get<double>(), trained.at("val_loss").get<double>(), 1e-6);
    EXPECT_THAT(result.out, HasSubstr("model.safetensors: test loss "));
  }
}

TEST(Evaluate, ReadsSnapshotsOfServers) {
  const TempFolder folder;
  const std::string figures = folder / "train.json";
  const auto trained =
      run_command({TUTTI_PROGRAM, "train", "mlp", "--data", "examples/data/quickdraw", "--epochs",
                   "1", "--max-steps", "20", "--strategy", "parameter_server", "--servers", "2",
                   "--replicas", "1", "--snapshots", folder / "run", "--json", figures});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const auto result = run_command(evaluate(folder / "run", {"--json", folder / "test.json"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("cut-"));
  const auto tested = nlohmann::json::parse(get_bytes(folder / "test.json"));
  EXPECT_EQ(tested.at("weights_sha256"),
            nlohmann::json::parse(get_bytes(figures)).at("weights_sha256"));
}

TEST(Evaluate, FollowsATrainingToItsEnd) {
  const TempFolder folder;
  CommandResult followed;
  std::jthread sidecar([&] {
    followed = run_command(evaluate(folder / "run", {"--follow", "--idle-limit", "60"}));
  });
  train_into(folder / "run");
  sidecar.join();
  EXPECT_EQ(followed.exit_code, 0) << followed.err;
  EXPECT_THAT(
      followed.out,
      AllOf(HasSubstr("waiting for checkpoints"), HasSubstr("model.safetensors: test loss "),
            ContainsRegex("model.safetensors is the last of its job: [1-9][0-9]* checkpoints")));
}

// Each by itself, whatever launcher it finds itself under.
TEST(Evaluate, AWorkerMayTest) {
  const TempFolder folder;
  train_into(folder / "run");
  Words words = {TUTTI_PROGRAM, "run", "-n", "2"};
  const Words tests = evaluate(folder / "run");
  words.insert(words.end(), tests.begin(), tests.end());
  const auto result = run_command(words);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
}

TEST(Evaluate, SaysWhatIsMissing) {
  const TempFolder folder;
  const auto none = run_command(evaluate(folder / "nowhere"));
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, AllOf(HasSubstr("no checkpoint is there"), HasSubstr("--follow")));
  const auto idle = run_command(evaluate(folder / "nowhere", {"--follow", "--idle-limit", "0.2"}));
  EXPECT_EQ(idle.exit_code, 1);
  EXPECT_THAT(idle.err, HasSubstr("no new checkpoint in"));
  put_bytes(folder / "model.safetensors", "garbage");
  EXPECT_EQ(run_command(evaluate(folder.path())).exit_code, 2);
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  put_bytes(folder / "data.json", R"({"format": "tutti data 1", "kind": "csv", "classes": [],)"
                                  R"( "shape": [1], "transforms": [], "table": )" +
                                      deep + "}");
  const auto endless =
      run_command({TUTTI_PROGRAM, "evaluate", "mlp", "--checkpoints", folder / "model.safetensors",
                   "--data", "examples/data/quickdraw"});
  EXPECT_EQ(endless.exit_code, 2);
  EXPECT_THAT(endless.err, HasSubstr("nested deeper than 256"));
}

}  // namespace
}  // namespace tutti::test
