// `tutti train`, `evaluate`, `predict` and `inspect` on networks that were written in Python
// (tests/tables/exported/make_for_model.py).
#include <chrono>
#include <cstring>
#include <limits>
#include <map>

#include "tests/jobs/command_line/over_hosts.h"
#include "tests/jobs/command_line/user_data_test.h"
#include "tests/support/pt2_files.h"

namespace tutti::test {
namespace {

namespace fs = std::filesystem;

using Files = std::map<std::string, std::string>;

/// Every file below a folder, but locks.
Files files_of(const fs::path& folder) {
  Files files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (entry.is_regular_file() && name != "lock" && name != ".lock")
      files[fs::relative(entry.path(), folder)] = get_bytes(entry.path());
  }
  return files;
}

/// Names of files that are in one alone, or are others.
Words changed(const Files& before, const Files& after) {
  Words names;
  for (const auto& [name, bytes] : before)
    if (!after.contains(name) || after.at(name) != bytes) names.push_back(name);
  for (const auto& [name, bytes] : after)
    if (!before.contains(name)) names.push_back(name);
  return names;
}

class ExportedNetworks : public UserData {
 protected:
  const fs::path tables_ = fs::absolute("tests/tables/exported");
  const std::string net_ = tables_ / "pictures.pt2", eval_ = tables_ / "pictures.eval.pt2";
  Words training(const Words& more = {}) const {
    return Words{net_, "--eval-model", eval_, "--data", idx_, "--batch-size", "10"} + more;
  }
};

TEST_F(ExportedNetworks, ThreadsProcessesAndInTurnTrainTheSameBits) {
  const auto sha = [&](const Words& more) {
    return figures(training({"--max-steps", "6", "--replicas", "2"}), more).at("weights_sha256");
  };
  const auto expected = sha({});
  EXPECT_EQ(sha({"--strategy", "mirrored"}), expected);
  EXPECT_EQ(sha({"--strategy", "multi_worker"}), expected);
}

// With dropout and batch norm.
TEST_F(ExportedNetworks, StagesOfThreadsAndProcessesTrainTheBitsOfOneDevice) {
  const std::string net = tables_ / "pictures.pt2", eval = tables_ / "pictures.eval.pt2";
  const auto sha = [&](const Words& more) {
    return figures(Words{net, "--eval-model", eval, "--data", idx_, "--batch-size", "10"}, more)
        .at("weights_sha256");
  };
  const Words steps{"--max-steps", "6"}, stages{"--mesh", "data=2,stage=2"};
  const auto expected = sha(steps + Words{"--replicas", "2"});
  EXPECT_EQ(sha(steps + stages + Words{"--strategy", "mirrored"}), expected);
  EXPECT_EQ(sha(steps + stages + Words{"--strategy", "mirrored", "--cut", "norm"}), expected);
  const Words processes = stages + Words{"--strategy", "multi_worker"};
  EXPECT_EQ(sha(steps + processes), expected);
  EXPECT_EQ(sha(steps + processes + Words{"--shard", "parameters"}), expected);
  const Words out{"--out", folder_ / "parts", "--cut", "head"};
  sha(processes + out + Words{"--max-steps", "3"});
  EXPECT_EQ(sha(steps + processes + out + Words{"--resume"}), expected) << "resumed";
}

TEST_F(ExportedNetworks, StagesOnTwoHostsTrainTheBitsOfOneDevice) {
  if (const std::string why = TestHosts::why_not(); !why.empty()) GTEST_SKIP() << why;
  const Words net{"train",        tables_ / "pictures.pt2",
                  "--eval-model", tables_ / "pictures.eval.pt2",
                  "--data",       idx_,
                  "--batch-size", "10",
                  "--max-steps",  "6",
                  "--threads",    "1",
                  "--json",       folder_ / "figures.json"};
  const auto sha = [&](const std::string& said) {
    EXPECT_EQ(said, "");
    return said.empty() ? sha_of(json_in(folder_ / "figures.json")) : "";
  };
  for (const int replicas : {1, 2}) {
    const auto alone = tutti(net + Words{"--replicas", std::to_string(replicas)});
    const std::string expected = sha(alone.exit_code == 0 ? "" : alone.err);
    const Words program =
        Words{TUTTI_PROGRAM} + net +
        Words{"--strategy", "multi_worker", "--mesh", fmt::format("data={},stage=2", replicas)};
    std::string failed;
    for (const auto& result : run_over(TestHosts(2), replicas, {program, program}))
      if (result.exit_code != 0) failed += result.err + result.out;
    EXPECT_EQ(sha(failed), expected) << replicas;
  }
}

TEST_F(ExportedNetworks, AreTestedAndPredictedByWhatIsKeptBesideTheWeights) {
  const std::string out = folder_ / "run";
  const json trained = figures(training({"--epochs", "3", "--replicas", "2", "--out", out}));
  EXPECT_THAT(said_, HasSubstr("begins with the weights of " + net_));
  EXPECT_EQ(get_bytes(fs::path(out) / "model.pt2"), get_bytes(net_));
  EXPECT_EQ(get_bytes(fs::path(out) / "model.eval.pt2"), get_bytes(eval_));
  for (const std::string& weights : {out, out + "/checkpoints"}) {
    const auto tested = tutti({"evaluate", "--data", (folder_ / "t10k-images-idx3-ubyte").string(),
                               "--checkpoints", weights, "--json", folder_ / "test.json"});
    ASSERT_EQ(tested.exit_code, 0) << tested.err;
    EXPECT_NEAR(json_in(folder_ / "test.json").at("loss").get<double>(),
                trained.at("val_loss").get<double>(), 1e-6);
  }
  const auto predicted = tutti({"predict", "--weights", out, idx_});
  EXPECT_EQ(predicted.exit_code, 0) << predicted.err;
  EXPECT_THAT(predicted.out, HasSubstr("row 100: "));
}

TEST_F(ExportedNetworks, AdaptersTrainTheSameBitsWhoeverKeepsThem) {
  const auto sha = [&](const Words& more, const std::string& lora = "head:rank=2") {
    return figures(training({"--max-steps", "6", "--replicas", "2", "--lora", lora}), more)
        .at("weights_sha256");
  };
  const auto expected = sha({});
  EXPECT_EQ(sha({"--strategy", "mirrored"}), expected);
  EXPECT_EQ(sha({"--strategy", "multi_worker"}), expected);
  for (const char* shard : {"state", "gradients", "parameters"})
    EXPECT_EQ(sha({"--strategy", "multi_worker", "--shard", shard}), expected) << shard;
  EXPECT_EQ(sha({"--strategy", "parameter_server"}), expected);
  EXPECT_NE(sha({}, "head:rank=2,alpha=1"), expected);
}

TEST_F(ExportedNetworks, WeightsOfARunHaveItsAdaptersAddedIn) {
  const std::string out = folder_ / "adapted";
  const json trained = figures(training({"--epochs", "2", "--out", out, "--lora", "head:rank=2"}));
  EXPECT_THAT(said_, HasSubstr("adapters: 292 of the parameters are trained, beside 1 matrices"));
  EXPECT_EQ(trained.at("parameters_trained"), 2 * (144 + 2));
  EXPECT_EQ(trained.at("parameters"), 36 + 4 + 4 + 288 + 2 + 292);
  EXPECT_TRUE(fs::exists(fs::path(out) / "adapters.safetensors"));
  const std::string test = folder_ / "t10k-images-idx3-ubyte";
  for (const char* place : {"", "/checkpoints", "/model.safetensors", "/adapters.safetensors"}) {
    const std::string weights = out + place;
    const auto tested = tutti(
        {"evaluate", "--data", test, "--checkpoints", weights, "--json", folder_ / "test.json"});
    ASSERT_EQ(tested.exit_code, 0) << tested.err;
    const json figures = json_in(folder_ / "test.json");
    EXPECT_EQ(figures.at("weights_sha256"), trained.at("weights_sha256")) << weights;
    EXPECT_NEAR(figures.at("loss").get<double>(), trained.at("val_loss").get<double>(), 1e-6);
  }
  const auto predicted = tutti({"predict", "--weights", out, idx_});
  EXPECT_EQ(predicted.exit_code, 0) << predicted.err;
  const auto written = tutti({"export", out, "--onnx", folder_ / "net.onnx"});
  EXPECT_EQ(written.exit_code, 0) << written.err;
  const json again =
      figures(training({"--epochs", "3", "--out", out, "--resume", "--lora", "head:rank=2"}));
  EXPECT_EQ(again.at("epochs"), 3);
  EXPECT_THAT(tutti(Words{"train"} + training({"--epochs", "4", "--out", out, "--resume"})),
              Exits(2, Err(HasSubstr("adapters: true in the checkpoint, false here"))));
  fs::remove_all(fs::path(out) / "checkpoints");
  figures(training({"--epochs", "1", "--out", out}));
  EXPECT_FALSE(fs::exists(fs::path(out) / "adapters.safetensors")) << "of an earlier training";
}

TEST_F(ExportedNetworks, AdaptersAreTestedAfterWholeWeightsToo) {
  const std::string out = folder_ / "adapted", end = out + "/model.safetensors";
  const json trained = figures(training({"--epochs", "2", "--out", out, "--lora", "head:rank=2"}));
  // As of a run that has gone on from there.
  fs::last_write_time(end, fs::last_write_time(end) - std::chrono::hours(1));
  const std::string test = folder_ / "t10k-images-idx3-ubyte";
  EXPECT_THAT(tutti({"evaluate", "--data", test, "--checkpoints", out, "--follow", "--idle-limit",
                     "0.5", "--json", folder_ / "test.json"}),
              Exits(1, Err(HasSubstr("no new checkpoint in"))));
  const auto lines = lines_of(folder_ / "test.json");
  ASSERT_GE(lines.size(), 2u);
  EXPECT_THAT(lines.front().at("checkpoint").get<std::string>(), EndsWith("model.safetensors"));
  EXPECT_THAT(lines.back().at("checkpoint").get<std::string>(), HasSubstr("/step-"));
  EXPECT_EQ(lines.back().at("weights_sha256"), trained.at("weights_sha256"));
  // A weight beside the adapters that is none is named as in the file.
  std::string bytes = get_bytes(end);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  const json header = json::parse(bytes.substr(sizeof(length), length));
  const auto begin = header.at("conv.weight").at("data_offsets").at(0).get<size_t>();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(&bytes[sizeof(length) + length + begin], &nan, sizeof(nan));
  put_bytes(end, bytes);
  EXPECT_THAT(tutti({"evaluate", "--data", test, "--checkpoints", end}),
              Exits(1, Err(HasSubstr("parameter \"conv.weight\" has nan at element 0"))));
}

TEST_F(ExportedNetworks, ANetworkThatIsTypedHasNotTheEvaluationOfAnother) {
  const std::string out = folder_ / "run";
  const json trained = figures(training({"--epochs", "1", "--out", out}));
  for (const char* name : {"model.pt2", "model.eval.pt2"})
    put_bytes(fs::path(out) / name, "of another network");
  const auto tested = [&](const std::string& model) {
    return tutti({"evaluate", model, "--data", (folder_ / "t10k-images-idx3-ubyte").string(),
                  "--checkpoints", out, "--json", folder_ / "test.json"});
  };
  // Nothing in the first differs in evaluation; the second has its evaluation beside it.
  fs::copy_file(net_, folder_ / "other.pt2");
  fs::copy_file(eval_, folder_ / "other.eval.pt2");
  for (const std::string& model : {eval_, (folder_ / "other.pt2").string()}) {
    ASSERT_THAT(tested(model), Exits(0)) << model;
    EXPECT_EQ(json_in(folder_ / "test.json").at("weights_sha256"), trained.at("weights_sha256"));
  }
}

TEST_F(ExportedNetworks, AdaptersThatDoNotFitAreRefusedBeforeWork) {
  const auto refused = [&](const std::string& lora, const std::string& says) {
    const std::string out = folder_ / "none";
    EXPECT_THAT(tutti(Words{"train"} + training({"--out", out, "--lora", lora})),
                Exits(2, Err(HasSubstr(says))));
    EXPECT_FALSE(fs::exists(fs::path(out) / "data.json"));
  };
  refused("*.attn.*:rank=8", "--lora \"*.attn.*\": no parameter of " + net_ + " has such a name");
  refused("heads:rank=1", "did you mean \"head\"");
  refused("conv:rank=1", "it fits conv.weight [4, 1, 3, 3] and no matrix");
  refused("head:rank=0", "rank = 0 is out of range; expected 1 or more");
  refused("head:rank=3", "rank = 3 is more than a side of head.weight [2, 144]; expected 1 to 2");
  refused("head:rank=many", "--lora head:rank=many: rank");
  refused("head:ranks=2", "did you mean \"rank\"");
  refused("head:rank=2,alpha=0", "alpha = 0 is out of range");
  const Words mlp = {"train", "mlp", "--data", idx_, "--lora"};
  EXPECT_THAT(tutti(mlp + Words{"linear_3"}),
              Exits(2, Err(HasSubstr("no parameter of mlp has such a name; did you mean "
                                     "\"linear_1\""))));
  EXPECT_THAT(tutti(mlp + Words{"linear_1", "--freeze", "linear_2"}),
              Exits(2, Err(HasSubstr("--lora linear_1 with --freeze linear_2: "))));
  for (const Words& more :
       {Words{"--strategy", "tpu", "--plugin", "cpu"},
        Words{"--mesh", "stage=2", "--strategy", "mirrored"}, Words{"--tensor-blocks", "2"}})
    EXPECT_THAT(tutti(Words{"train"} + training({"--lora", "head:rank=1"}) + more),
                Exits(2, Err(HasSubstr("--lora head:rank=1 with " + more.front()))));
  EXPECT_THAT(tutti(mlp + Words{"linear_1", "--recompute", "every:2"}),
              Exits(2, Err(HasSubstr("--lora linear_1 with --recompute every:2: "))));
  EXPECT_THAT(tutti(Words{"train"} + training({"--lora", "head:rank=1", "--recompute", "every:2"})),
              Exits(2, Err(HasSubstr("--lora head:rank=1 with --recompute every:2: "))));
}

TEST_F(ExportedNetworks, WhatDoesNotFitIsSaidBeforeWork) {
  EXPECT_THAT(
      tutti({"train", net_, "--data", idx_}),
      Exits(2, Err(AllOf(HasSubstr("was exported for training"), HasSubstr("--eval-model")))));
  EXPECT_THAT(tutti(Words{"train"} + training() + Words{"--data", flats_, "--target", "dear"}),
              Exits(2, Err(HasSubstr("--data"))));
  EXPECT_THAT(
      tutti({"train", net_, "--eval-model", eval_, "--data", flats_, "--target", "dear"}),
      Exits(2, Err(HasSubstr("was exported for samples float32 [1, 12, 12], the data has"))));
  EXPECT_THAT(tutti({"train", tables_ / "both.pt2", "--data", idx_}),
              Exits(2, Err(HasSubstr("takes 2 inputs (place, size)"))));
  EXPECT_THAT(tutti(Words{"train"} + training({"--freeze", "heads"})),
              Exits(2, Err(AllOf(HasSubstr("freeze: no parameter of"), HasSubstr("head.bias")))));
  const Words certain{"train",        tables_ / "certain.pt2",
                      "--eval-model", tables_ / "certain.eval.pt2",
                      "--data",       idx_,
                      "--strategy",   "mirrored"};
  EXPECT_THAT(tutti(certain + Words{"--mesh", "tensor=2"}),
              Exits(2, Err(HasSubstr("cut into stages, but not into blocks"))));
  EXPECT_THAT(tutti(certain + Words{"--mesh", "stage=2", "--cut", "heads"}),
              Exits(2, Err(AllOf(HasSubstr("has no module \"heads\""),
                                 HasSubstr("did you mean \"head\"? it can be cut before norm")))));
  EXPECT_THAT(tutti(certain + Words{"--mesh", "stage=4"}),
              Exits(2, Err(HasSubstr("4 stages, but the network can be cut into 3 at most"))));
  EXPECT_THAT(tutti({"train", "mlp", "--eval-model", eval_, "--data", idx_}),
              Exits(2, Err(HasSubstr("is for a model of a .pt2 file; the model is mlp"))));
  EXPECT_THAT(tutti(Words{"train"} + training({"--parameter-group", "heads.*:weight_decay=0"})),
              Exits(2, Err(HasSubstr("the first of its 5 is conv.weight"))));
}

TEST_F(ExportedNetworks, AFrozenPartStaysAndTheRestHasTheSameBitsUnderEachStrategy) {
  const auto trained = [&](const Words& more) {
    const json made = figures(training({"--max-steps", "6", "--replicas", "2"}), more);
    return made.at("weights_sha256").get<std::string>();
  };
  const Words freeze{"--freeze", "conv,norm.*"};
  const std::string expected = trained(freeze + Words{"--out", folder_ / "run"});
  EXPECT_THAT(said_, HasSubstr("frozen: 44 of the parameters"));
  const std::string weights = get_bytes(folder_ / "run" / "model.safetensors");
  EXPECT_THAT(weights, HasSubstr(read_zip(net_).at("data/weights/weight_0").bytes));
  EXPECT_THAT(weights, Not(HasSubstr(read_zip(net_).at("data/weights/weight_3").bytes)));
  for (const char* strategy : {"mirrored", "multi_worker"})
    EXPECT_EQ(trained(freeze + Words{"--strategy", strategy}), expected) << strategy;
  EXPECT_NE(trained({}), expected);
}

TEST_F(ExportedNetworks, ARunThatIsRefusedChangesNothingOfAnEarlierOne) {
  const std::string out = folder_ / "run";
  figures(training({"--epochs", "1", "--out", out}));
  const auto before = files_of(out);
  ASSERT_TRUE(before.contains("model.pt2") && before.contains("checkpoints/data.json"));
  // Another network, one that needs no graph of evaluation.
  const Words other{"train", eval_,      "--data", idx_,    "--batch-size",
                    "10",    "--epochs", "2",      "--out", out};
  EXPECT_THAT(tutti(other), Exits(2, Err(HasSubstr("an earlier training has left"))));
  EXPECT_THAT(changed(before, files_of(out)), IsEmpty());
  EXPECT_THAT(tutti(other + Words{"--resume", "--seed", "5"}),
              Exits(2, Err(HasSubstr("is of another training"))));
  EXPECT_THAT(changed(before, files_of(out)), IsEmpty());
  const Words graph{"train",    "mlp", "--data", idx_, "--batch-size", "10",
                    "--epochs", "2",   "--out",  out,  "--resume"};
  EXPECT_EQ(tutti(graph).exit_code, 2);
  EXPECT_THAT(changed(before, files_of(out)), IsEmpty());
}

TEST_F(ExportedNetworks, OfARunThatWentOnAndWasCutOffTheNewestWeightsAreRead) {
  const std::string out = folder_ / "run", end = out + "/model.safetensors";
  for (const bool of_python : {true, false}) {
    fs::remove_all(out);
    const Words words = of_python ? training() : Words{"mlp", "--data", idx_, "--batch-size", "10"};
    figures(words, {"--epochs", "1", "--out", out});
    const std::string earlier = get_bytes(end);
    const auto time = fs::last_write_time(end);
    const json trained = figures(words, {"--epochs", "3", "--out", out, "--resume"});
    // As it is before the last file is written.
    put_bytes(end, earlier);
    fs::last_write_time(end, time);
    const auto tested = tutti({"evaluate", "--data", (folder_ / "t10k-images-idx3-ubyte").string(),
                               "--checkpoints", out, "--json", folder_ / "test.json"});
    ASSERT_EQ(tested.exit_code, 0) << tested.err;
    EXPECT_NEAR(json_in(folder_ / "test.json").at("loss").get<double>(),
                trained.at("val_loss").get<double>(), 1e-6);
    const auto exported = tutti({"export", out, "--onnx", folder_ / "net.onnx"});
    EXPECT_EQ(exported.exit_code, 0) << exported.err;
    EXPECT_THAT(exported.out, HasSubstr("step-000000000030: weights of")) << of_python;
  }
}

TEST_F(ExportedNetworks, WorkersWhoseFilesDifferInAConstantAreToldWhichOne) {
  std::string table = "a,b,c,d,e,f,kind\n";
  for (int row = 0; row < 60; ++row)
    table += fmt::format("{},{},{},{},{},{},{}\n", row % 7, row % 5, row % 3, row % 11, row % 2,
                         row % 13, std::string(1, static_cast<char>('x' + row % 3)));
  put_bytes(folder_ / "table.csv", table);
  ZipFile zip = read_zip(tables_ / "frozen.pt2");
  put_bytes(folder_ / "net0.pt2", zip.bytes());
  zip.at("data/constants/tensor_0").bytes[3] ^= 1;
  put_bytes(folder_ / "net1.pt2", zip.bytes());
  const auto result = tutti(
      {"run", "-n", "2", "sh", "-c",
       fmt::format("exec {} train {}/net$TUTTI_WORKER.pt2 --data {} --target kind --batch-size 10 "
                   "--max-steps 2 --threads 1 --time-limit 20 --strategy multi_worker",
                   TUTTI_PROGRAM, folder_.path().string(), (folder_ / "table.csv").string())});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, AllOf(HasSubstr("was asked for something else than worker 0"),
                                HasSubstr("constant \"scale\" of the .pt2")));
}

TEST_F(ExportedNetworks, NothingOfPythonIsLoadedWhileTheyTrain) {
  // By the dynamic loader's own words, which has what is opened at run time too.
  const auto result = tutti(Words{"train"} + training({"--max-steps", "2", "--threads", "1"}),
                            {"LD_DEBUG=files", "LD_DEBUG_OUTPUT=" + (folder_ / "loaded").string()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::string loaded;
  for (const auto& entry : fs::directory_iterator(folder_.path()))
    if (entry.path().filename().string().starts_with("loaded.")) loaded += get_bytes(entry.path());
  EXPECT_THAT(loaded, HasSubstr("libtorch_cpu.so"));
  for (const char* library : {"libpython", "libtorch_python"})
    EXPECT_THAT(loaded.find(library), std::string::npos) << library;
}

TEST(Programs, AreNotLinkedWithPython) {
  int programs = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(TUTTI_PROGRAM).parent_path())) {
    const std::string name = entry.path().filename();
    if (!entry.is_regular_file() || name.starts_with("test_")) continue;
    const auto linked = run_command({"ldd", entry.path()}, {}, kProgramLimit);
    ASSERT_EQ(linked.exit_code, 0) << name << linked.err;
    EXPECT_THAT(linked.out, AllOf(Not(HasSubstr("libpython")), Not(HasSubstr("libtorch_python"))))
        << name;
    programs += linked.out.find("libtorch_cpu.so") == std::string::npos ? 0 : 1;
  }
  EXPECT_GE(programs, 1);
}

TEST_F(ExportedNetworks, InspectSaysWhatIsInThem) {
  const auto said = tutti({"inspect", net_, "--parameters", "--json", folder_ / "net.json"});
  ASSERT_EQ(said.exit_code, 0) << said.err;
  EXPECT_THAT(said.out,
              AllOf(HasSubstr("input x: float32 ["), HasSubstr(", 1, 12, 12]"),
                    HasSubstr("1  aten::batch_norm"), HasSubstr("head.weight float32 [2, 144]"),
                    HasSubstr("aten::dropout: behaves otherwise in training; "),
                    HasSubstr("it trains here")));
  const json found = json_in(folder_ / "net.json");
  EXPECT_EQ(found.at("operators").at("aten::linear"), 1);
  EXPECT_EQ(found.at("trained_elements"), 36 + 4 + 4 + 288 + 2);
  EXPECT_EQ(found.at("not_served"), json::array());
  EXPECT_THAT(tutti({"inspect", idx_}), Exits(2, Err(HasSubstr("no valid .pt2 file"))));
}

}  // namespace
}  // namespace tutti::test
