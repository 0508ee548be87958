// tutti evaluate: figures of weights that a training has written, and of one that still goes on.
#include <filesystem>
#include <numeric>
#include <thread>

#include "tests/jobs/program.h"

namespace tutti::test {
namespace {

Words evaluate(const std::string& checkpoints, const Words& more = {}) {
  return Words{"evaluate", "mlp", "--data", kDoodles, "--checkpoints", checkpoints} + more;
}

json train_into(const std::string& folder) {
  const auto result = tutti({"train", "mlp", "--data", kDoodles, "--epochs", "1", "--max-steps",
                             "20", "--out", folder, "--json", folder + ".json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return json_in(folder + ".json");
}

constexpr const char* kClassTable = "label  precision  recall      f1  samples  class\n";

TEST(Evaluate, GivesTheFiguresOfTheTraining) {
  const TempFolder folder;
  const json trained = train_into(folder / "run");
  for (const std::filesystem::path& place : {folder / "run", folder / "run/model.safetensors"}) {
    const auto result = tutti(evaluate(place, {"--json", folder / "test.json"}));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const auto tested = json_in(folder / "test.json");
    EXPECT_EQ(tested.at("weights_sha256"), trained.at("weights_sha256"));
    EXPECT_EQ(tested.at("accuracy"), trained.at("val_accuracy"));
    EXPECT_NEAR(tested.at("loss").get<double>(), trained.at("val_loss").get<double>(), 1e-6);
    EXPECT_THAT(result.out, HasSubstr("model.safetensors: test loss "));
  }
}

TEST(Evaluate, SaysOfEachClassHowItIsKnown) {
  const TempFolder folder;
  const json trained = train_into(folder / "run");
  const auto result = tutti(evaluate(folder / "run", {"--json", folder / "test.json"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(
      result.out,
      AllOf(HasSubstr(kClassTable), ContainsRegex("\n +0 +[01]\\.[0-9].* airplane\n"),
            HasSubstr("confusion matrix"), ContainsRegex("\n +9( +[0-9]+){10}  rainbow\n")));
  const auto tested = json_in(folder / "test.json");
  const auto confusion = tested.at("confusion").get<std::vector<std::vector<int64_t>>>();
  ASSERT_EQ(confusion.size(), 10U);
  ASSERT_EQ(tested.at("classes").size(), 10U);
  int64_t right = 0, all = 0;
  for (size_t label = 0; label < 10; ++label) {
    const auto& row = confusion[label];
    const int64_t samples = std::accumulate(row.begin(), row.end(), int64_t{0});
    EXPECT_EQ(tested.at("classes")[label].at("samples"), samples);
    all += samples;
    right += row.at(label);
  }
  EXPECT_EQ(all, tested.at("samples"));
  EXPECT_DOUBLE_EQ(static_cast<double>(right) / static_cast<double>(all),
                   trained.at("val_accuracy").get<double>());
  EXPECT_EQ(tested.at("classes")[0].at("class"), "airplane");
}

TEST(Evaluate, DrawsTheConfusionMatrix) {
  const TempFolder folder;
  train_into(folder / "run");
  const std::string picture = folder / "confusion.svg";
  ASSERT_THAT(
      tutti(evaluate(folder / "run", {"--confusion", picture, "--json", folder / "test.json"})),
      Exits(0));
  const std::string svg = get_bytes(picture);
  EXPECT_THAT(svg, AllOf(StartsWith("<svg"), HasSubstr("model.safetensors, accuracy "),
                         HasSubstr(">airplane<"), HasSubstr(">rainbow<"), HasSubstr("</svg>")));
  // The counts of the JSON, each in its square.
  for (const auto& row : json_in(folder / "test.json").at("confusion"))
    for (const int64_t count : row.get<std::vector<int64_t>>())
      if (count > 0) {
        EXPECT_THAT(svg, HasSubstr(">" + std::to_string(count) + "<"));
      }
  EXPECT_THAT(tutti(evaluate(folder / "run", {"--confusion", folder / "not/there.svg"})),
              Exits(2, Err(AllOf(HasSubstr("--confusion"), HasSubstr("not")))));
}

TEST(Evaluate, ReadsSnapshotsOfServers) {
  const TempFolder folder;
  const std::string figures = folder / "train.json";
  const auto trained = tutti({"train", "mlp", "--data", kDoodles, "--epochs", "1", "--max-steps",
                              "20", "--strategy", "parameter_server", "--servers", "2",
                              "--replicas", "1", "--snapshots", folder / "run", "--json", figures});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  ASSERT_THAT(tutti(evaluate(folder / "run", {"--json", folder / "test.json"})),
              Exits(0, Out(HasSubstr("cut-"))));
  const auto tested = json_in(folder / "test.json");
  EXPECT_EQ(tested.at("weights_sha256"), json_in(figures).at("weights_sha256"));
}

TEST(Evaluate, FollowsServersWhoseLastSnapshotComesBehindTheEnd) {
  const TempFolder folder;
  const std::string figures = folder / "train.json", out = folder / "run";
  const auto trained =
      tutti({"train",     "mlp",         "--data",     kDoodles,     "--epochs",
             "1",         "--max-steps", "20",         "--strategy", "parameter_server",
             "--servers", "2",           "--replicas", "1",          "--snapshots",
             out,         "--out",       out,          "--json",     figures});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  for (const Words& more : {Words{}, Words{"--follow", "--idle-limit", "20"}}) {
    ASSERT_THAT(tutti(evaluate(out, more + Words{"--json", folder / "test.json"})),
                Exits(0, Out(HasSubstr("model.safetensors"))));
    EXPECT_EQ(lines_of(folder / "test.json").back().at("weights_sha256"),
              json_in(figures).at("weights_sha256"));
  }
}

TEST(Evaluate, FollowsATrainingToItsEnd) {
  const TempFolder folder;
  CommandResult followed;
  std::jthread sidecar(
      [&] { followed = tutti(evaluate(folder / "run", {"--follow", "--idle-limit", "60"})); });
  train_into(folder / "run");
  sidecar.join();
  EXPECT_EQ(followed.exit_code, 0) << followed.err;
  EXPECT_THAT(
      followed.out,
      AllOf(HasSubstr("waiting for checkpoints"), HasSubstr("model.safetensors: test loss "),
            ContainsRegex("model.safetensors is the last of its job: [1-9][0-9]* checkpoints")));
  const size_t table = followed.out.find(kClassTable);
  ASSERT_NE(table, std::string::npos);
  EXPECT_GT(table, followed.out.find("model.safetensors: test loss ")) << "of the last one alone";
  EXPECT_EQ(followed.out.find(kClassTable, table + 1), std::string::npos);
}

// In a pipe nothing but the figures.
TEST(Evaluate, ShowsABarOnATerminalAndTakesItAway) {
  const TempFolder folder;
  train_into(folder / "run");
  EXPECT_THAT(tutti(evaluate(folder / "run")),
              Exits(0, Out(StartsWith("model.safetensors: test loss ")), Err("")));
  std::string line = TUTTI_PROGRAM;
  for (const std::string& word : evaluate(folder / "run")) line += " '" + word + "'";
  // Both streams are one terminal of no known width.
  EXPECT_THAT(
      run_command({"sh", "-c", "script -qec \"$1\" /dev/null < /dev/null", "sh", line}, {},
                  kProgramLimit),
      Exits(0, Out(ContainsRegex("evaluate  \\[[= ]+\\]  batch 1/10  [0-9,]+ samples/s  [0-9:]+ "
                                 "left.*\r\x1b\\[Kmodel.safetensors: test loss "))));
}

// Which it waits for, where it begins before the training.
TEST(Evaluate, TakesTheModelFromTheTraining) {
  const TempFolder folder;
  CommandResult followed;
  std::jthread sidecar([&] {
    followed = tutti({"evaluate", "--data", kDoodles, "--checkpoints", folder / "run", "--follow",
                      "--idle-limit", "60", "--json", folder / "test.json"});
  });
  const json trained = train_into(folder / "run");
  sidecar.join();
  ASSERT_EQ(followed.exit_code, 0) << followed.err;
  const json last = lines_of(folder / "test.json").back();
  EXPECT_EQ(last.at("model"), "mlp");
  EXPECT_EQ(last.at("weights_sha256"), trained.at("weights_sha256"));
}

// Each by itself, whatever launcher it finds itself under.
TEST(Evaluate, AWorkerMayTest) {
  const TempFolder folder;
  train_into(folder / "run");
  const auto result = tutti(Words{"run", "-n", "2", TUTTI_PROGRAM} + evaluate(folder / "run"));
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
}

TEST(Evaluate, SaysWhatIsMissing) {
  const TempFolder folder;
  EXPECT_THAT(tutti(evaluate(folder / "nowhere")),
              Exits(2, Err(AllOf(HasSubstr("no checkpoint is there"), HasSubstr("--follow")))));
  EXPECT_THAT(tutti(evaluate(folder / "nowhere", {"--follow", "--idle-limit", "0.2"})),
              Exits(1, Err(HasSubstr("no new checkpoint in"))));
  put_bytes(folder / "model.safetensors", "garbage");
  EXPECT_EQ(tutti(evaluate(folder.path())).exit_code, 2);
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  put_bytes(folder / "data.json", R"({"format": "tutti data 1", "kind": "csv", "classes": [],)"
                                  R"( "shape": [1], "transforms": [], "table": )" +
                                      deep + "}");
  EXPECT_THAT(
      tutti({"evaluate", "mlp", "--checkpoints", folder / "model.safetensors", "--data", kDoodles}),
      Exits(2, Err(HasSubstr("nested deeper than 256"))));
}

}  // namespace
}  // namespace tutti::test
