// `tutti train` as a user runs it: bad input, figures, equal weights, signals, a killed worker.

#include "tests/jobs/program.h"

namespace tutti::test {
namespace {

CommandResult train(const Words& words) { return tutti(Words{"train"} + words); }

json figures(const Words& words) {
  return figures_of(Words{TUTTI_PROGRAM, "train"} + words + Words{"--data", kDoodles});
}

// Runs a bash script whose $@ is `tutti train ...` and whose $LOG is a file for its output.
CommandResult train_in_script(const TempFolder& folder, const std::string& script,
                              const Words& words) {
  return run_command(
      Words{"bash", "-c", "set -m; " + script, "bash", TUTTI_PROGRAM, "train"} + words +
          words_of("--take 64 --batch-size 16 --epochs 100000 --validation-split 0.01 --data") +
          Words{kDoodles},
      {"LOG=" + (folder / "log").string()}, kProgramLimit);
}

// "$@" in the background, past its first word about an epoch.
const std::string kStart =
    "\"$@\" > $LOG 2>&1 & job=$!; until grep -q 'epoch 1' $LOG; do "
    "kill -0 $job || { cat $LOG; exit 99; }; sleep 0.05; done; ";

TEST(Train, NetworksOfTheZooArePlanned) {
  for (const char* model : {"mlp", "resnet18"}) {
    const auto result = tutti({"train", model, "--data", kDoodles, "--take", "16", "--batch-size",
                               "8", "--max-steps", "2", "--validation-split", "0.001"},
                              {"TUTTI_LOG=info"});
    EXPECT_THAT(
        result,
        Exits(0, Err(AllOf(HasSubstr("tutti info: strategy"), Not(HasSubstr("run by autograd"))))))
        << model;
  }
}

TEST(Train, HelpShowsExamples) {
  EXPECT_THAT(train({"--help"}),
              Exits(0, Out(AllOf(HasSubstr("Examples:"), HasSubstr("tutti train doodle_cnn"),
                                 HasSubstr("--reduction-shape")))));
}

TEST(Train, Verbose0IsSilent) {
  EXPECT_THAT(
      train({"mlp", "--data", kDoodles, "--take", "256", "--max-steps", "1", "--verbose", "0"}),
      Exits(0, Out("")));
}

TEST(Train, FiguresAndFiles) {
  const TempFolder folder;
  const std::string out = folder / "a/b", file = folder / "figures.json";
  ASSERT_THAT(train({"mlp", "--data", kDoodles, "--strategy", "mirrored", "--replicas", "2",
                     "--epochs", "2", "--batch-size", "100", "--out", out, "--json", file}),
              Exits(0, Out(AllOf(HasSubstr("test accuracy"), HasSubstr(out), HasSubstr(file)))));
  EXPECT_THAT(get_bytes(std::filesystem::path(out) / "history.csv"),
              StartsWith("epoch,train_loss"));
  EXPECT_THAT(get_bytes(std::filesystem::path(out) / "history.svg"),
              AllOf(StartsWith("<svg"), HasSubstr("val_accuracy"), HasSubstr("</svg>")));
  EXPECT_GT(std::filesystem::file_size(std::filesystem::path(out) / "model.safetensors"), 400'000u);
  EXPECT_THAT(folder.names(), UnorderedElementsAre("a", "figures.json"));

  const json all = json_in(file);
  EXPECT_EQ(all.at("model"), "mlp");
  EXPECT_EQ(all.at("strategy"), "mirrored");
  EXPECT_EQ(all.at("replicas"), 2);
  EXPECT_EQ(all.at("reduction_shape"), "2");
  EXPECT_EQ(all.at("epochs"), 2);
  EXPECT_EQ(all.at("global_batch"), 100);
  for (const char* name : {"train_seconds", "images_per_second", "step_ms_p50", "step_ms_p99",
                           "val_loss", "val_accuracy"}) {
    ASSERT_TRUE(all.at(name).is_number_float()) << name;
    EXPECT_GT(all.at(name).get<double>(), 0) << name;
  }
  EXPECT_LE(all.at("step_ms_p50").get<double>(), all.at("step_ms_p99").get<double>());
  ASSERT_EQ(all.at("train_loss").size(), 2u);
  EXPECT_LT(all.at("train_loss")[1].get<double>(), all.at("train_loss")[0].get<double>());
  EXPECT_GT(all.at("val_accuracy").get<double>(), 0.7);
  EXPECT_THAT(all.at("weights_sha256").get<std::string>(), MatchesRegex("[0-9a-f]{64}"));
}

TEST(Train, SameWeightsHoweverReplicasArePlaced) {
  for (const std::string replicas : {"2", "3"}) {
    const Words common = words_of(
        "doodle_cnn --max-steps 6 --batch-size 100 --seed 7 --threads 1"
        " --validation-split 0.01 --replicas " +
        replicas);
    const auto sha = [&](const std::string& strategy) {
      const json all = figures(common + Words{"--strategy", strategy});
      EXPECT_EQ(all.at("replicas"), std::stoi(replicas));
      return all.at("weights_sha256").get<std::string>();
    };
    const std::string expected = sha("one_device");
    EXPECT_EQ(sha("mirrored"), expected);
    EXPECT_EQ(sha("mirrored"), expected) << "a second run";
    EXPECT_EQ(sha("multi_worker"), expected);
  }
}

// The margin, in parts of the test samples, is what docs/guide/reductions.md states.
TEST(Train, CompressedGradientsReachTheAccuracyOfWholeOnes) {
  const auto accuracy = [](const std::string& compression) {
    const json all = figures({"mlp", "--epochs", "3", "--strategy", "mirrored", "--replicas", "2",
                              "--threads", "1", "--seed", "3", "--compression", compression});
    EXPECT_EQ(all.at("compression"), compression);
    EXPECT_GT(all.at("wire_bytes_per_step").get<int64_t>(), 0);
    return all.at("val_accuracy").get<double>();
  };
  const double whole = accuracy("none");
  EXPECT_GT(whole, 0.7);
  const std::pair<const char*, double> margins[] = {{"bf16", 0.02},      {"fp16", 0.02},
                                                    {"topk:0.01", 0.08}, {"topk:0.1", 0.03},
                                                    {"onebit", 0.03},    {"powersgd:4", 0.03}};
  for (const auto& [compression, margin] : margins)
    EXPECT_GT(accuracy(compression), whole - margin) << compression;
}

TEST(Train, SeedsAndShapesMakeADifference) {
  const Words common = words_of("mlp --max-steps 5 --threads 1 --validation-split 0.01");
  const auto sha = [&](const Words& more) { return sha_of(figures(common + more)); };
  const std::string first = sha({"--seed", "1"});
  EXPECT_NE(sha({"--seed", "2"}), first);
  EXPECT_NE(sha({"--seed", "1", "--replicas", "6"}), first);
  EXPECT_NE(sha({"--seed", "1", "--reduction-shape", "2x3"}),
            sha({"--seed", "1", "--replicas", "6"}));
}

// They read the command line that started them, and are not behind another one's.
TEST(Train, WorkersThatItStartsTakeWhatIsItsOwn) {
  const Words few = {"mlp", "--data",      kDoodles, "--take",     "64", "--batch-size",
                     "16",  "--max-steps", "1",      "--replicas", "2",  "--threads",
                     "1",   "--grace",     "3"};
  for (const char* strategy : {"multi_worker", "parameter_server --no-backups"})
    EXPECT_THAT(train(few + words_of(std::string("--strategy ") + strategy)), Exits(0)) << strategy;
  EXPECT_THAT(tutti(Words{"run", "-n", "2", TUTTI_PROGRAM, "train"} + few +
                    words_of("--strategy multi_worker")),
              Exits(2, Err(HasSubstr("--grace 3 under multi_worker: "))));
}

TEST(Train, JoinsTheLauncherThatStartedIt) {
  const TempFolder folder;
  const std::string file = folder / "f.json";
  const auto result = tutti({"run", "-n", "2", TUTTI_PROGRAM, "train", "mlp", "--data", kDoodles,
                             "--strategy", "multi_worker", "--max-steps", "5", "--json", file});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json_in(file).at("replicas"), 2);
  EXPECT_THAT(result.out, AllOf(HasSubstr("[0] test accuracy"), Not(HasSubstr("[1] "))));
}

TEST(Train, StopsWhenTheLossIsNoNumber) {
  const Words words = {"mlp", "--data", kDoodles, "--learning-rate", "1e30", "--max-steps", "30"};
  EXPECT_THAT(train(words),
              Exits(1, Err(AllOf(StartsWith("tutti train: "), HasSubstr("step"),
                                 HasSubstr("epoch 1"), HasSubstr("`on_nan` (--nan ignore)")))));
  EXPECT_EQ(train(words + Words{"--nan", "ignore"}).exit_code, 0);
}

TEST(Train, SignalsEndItInOrder) {
  for (const Words& where :
       {Words{"--strategy", "mirrored"}, Words{"--strategy", "multi_worker"}}) {
    const Words words = Words{"doodle_cnn", "--replicas", "2"} + where;
    for (const auto& [name, code] : {std::pair{"INT", 130}, std::pair{"TERM", 143}}) {
      const TempFolder folder;
      const auto result =
          train_in_script(folder, kStart + "kill -" + name + " $job; wait $job", words);
      const std::string log = get_bytes(folder / "log");
      EXPECT_EQ(result.exit_code, code) << where[1] << log << result.err;
      EXPECT_THAT(log, AllOf(HasSubstr("SIG"), Not(HasSubstr("terminate called")),
                             Not(HasSubstr("Exception raised"))))
          << where[1];
    }
  }
}

TEST(Train, SurvivorsNameAKilledWorker) {
  const TempFolder folder;
  const auto result =
      train_in_script(folder,
                      kStart +
                          "kill -KILL $(sed -n 's/^worker 1 pid //p' $LOG); wait $job; code=$?; "
                          "for p in $(sed -n 's/^worker [0-9]* pid //p' $LOG); do "
                          "kill -0 $p 2>/dev/null && exit 98; done; exit $code",
                      {"mlp", "--strategy", "multi_worker", "--replicas", "3"});
  const std::string log = get_bytes(folder / "log");
  EXPECT_EQ(result.exit_code, 137) << log << result.err;
  EXPECT_THAT(log, AllOf(ContainsRegex("\\[0\\] tutti train: .*rank 1"),
                         ContainsRegex("\\[2\\] tutti train: .*rank 1"),
                         HasSubstr("rank 1 was killed by SIGKILL")));
}

}  // namespace
}  // namespace tutti::test
