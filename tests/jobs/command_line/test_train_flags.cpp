// What `fit` and `compile` can do, asked for by flags of `tutti train`.
#include <cmath>
#include <cstring>
#include <numbers>
#include <sstream>

#include "tutti/base/array.h"
#include "tutti/data/safetensors.h"

#include "tests/jobs/program.h"

namespace tutti::test {
namespace {

CommandResult train_with(const Words& words) { return tutti(Words{"train"} + words); }

// Numbers of one column of a CSV file.
std::vector<double> column(const std::string& csv, const std::string& name) {
  std::istringstream lines(csv);
  std::vector<double> values;
  size_t wanted = std::string::npos;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream cells(line);
    std::string cell;
    for (size_t i = 0; std::getline(cells, cell, ','); ++i)
      if (wanted == std::string::npos && cell == name)
        wanted = i;
      else if (i == wanted)
        values.push_back(std::stod(cell));
  }
  return values;
}

TEST(TrainFlags, SchedulesClippingAndCallbacksAreTheSameUnderAllStrategies) {
  std::set<std::string> shas;
  for (const std::string strategy : {"one_device", "mirrored", "multi_worker"}) {
    const TempFolder folder;
    // 512 samples are 8 steps an epoch; the second epoch is no improvement of 1000, and the last.
    const Words words = words_of(
        "mlp --data " + std::string(kDoodles) +
        " --take 512 --batch-size 64 --epochs 3 --threads 1"
        " --validation-split 0.01 --replicas 2 --strategy " +
        strategy +
        " --optimizer sgd --learning-rate 0.1 --optimizer-options momentum=0.9 --weight-decay 1e-4"
        " --clip-global-norm 1 --parameter-group *.bias:weight_decay=0 --schedule cosine:alpha=0.5"
        " --warm-up 4 --metrics top_3_accuracy --class-weight cat=2 --early-stopping"
        " min_delta=1000");
    ASSERT_THAT(
        train_with(words + Words{"--model-checkpoint",
                                 "path=" + (folder / "new/{epoch}-{val_accuracy}.st").string(),
                                 "--csv-log", folder / "log.csv", "--tensorboard",
                                 folder / "events", "--json", folder / "figures.json"}),
        Exits(0, Out(HasSubstr("learning rate: warm_up of cosine"))))
        << strategy;
    const std::string csv = get_bytes(folder / "log.csv");
    EXPECT_THAT(column(csv, "val_top_3_accuracy"), SizeIs(2)) << csv;
    const auto rates = column(csv, "learning_rate");
    ASSERT_EQ(rates.size(), 2u) << csv;
    for (size_t epoch = 0; epoch < 2; ++epoch) {
      const double gone = (8.0 * static_cast<double>(epoch) + 7 - 4) / 20;  // of 24 - 4 steps
      EXPECT_NEAR(rates[epoch], 0.1 * (0.5 * (1 + std::cos(std::numbers::pi * gone)) / 2 + 0.5),
                  1e-12);
    }
    // Of each epoch the weights, and their graph beside them.
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder / "new"), {}), 4);
    EXPECT_TRUE(std::filesystem::exists(folder / "events/train"));
    EXPECT_TRUE(std::filesystem::exists(folder / "events/validation"));
    shas.insert(json_in(folder / "figures.json").at("weights_sha256"));
  }
  EXPECT_EQ(shas.size(), 1u);
}

TEST(TrainFlags, LargeBatchesAndTheirNoiseAreTheSameUnderAllStrategies) {
  std::set<std::string> figures;
  for (const std::string strategy : {"one_device", "mirrored", "multi_worker"}) {
    const TempFolder folder;
    const Words words = words_of(
        "mlp --data " + std::string(kDoodles) +
        " --take 1024 --batch-size 256 --epochs 3"
        " --threads 1 --validation-split 0.01 --replicas 2 --strategy " +
        strategy +
        " --optimizer sgd --weight-decay 1e-4 --large-batch base=64,base_rate=0.02,warm_up=2"
        " --noise-scale");
    const auto result = train_with(
        words + Words{"--csv-log", folder / "log.csv", "--json", folder / "figures.json"});
    ASSERT_EQ(result.exit_code, 0) << strategy << result.err << result.out;
    for (const char* line :
         {"large batch: a step has 256 samples, 4 times the 64", "rate 0.02 x 4 = 0.08",
          "large batch: warm-up: in 8 steps", "large batch: weight decay 0.0001: not of 2 of 4",
          "large batch: batch norms at 0: none", "large batch: momentum: no correction",
          "more than ", " samples a step stop paying (a step has 256)"})
      EXPECT_THAT(result.out, HasSubstr(line)) << strategy;
    const std::string csv = get_bytes(folder / "log.csv");
    EXPECT_THAT(column(csv, "learning_rate"),
                ElementsAre(DoubleNear(0.02 + 0.06 * 3 / 8, 1e-12),
                            DoubleNear(0.02 + 0.06 * 7 / 8, 1e-12), 0.08));
    const auto json = json_in(folder / "figures.json");
    EXPECT_EQ(json.at("noise_scale").get<std::vector<double>>(), column(csv, "noise_scale"));
    figures.insert(json.at("weights_sha256").dump() + json.at("noise_scale").dump());
  }
  EXPECT_EQ(figures.size(), 1u);
}

TEST(TrainFlags, ANanEndsWithTheHistorySoFarWhereAskedTo) {
  const TempFolder folder;
  const std::string out = (folder / "out").string();
  EXPECT_THAT(
      train_with({"mlp", "--data", kDoodles, "--take", "256", "--batch-size", "64", "--epochs", "2",
                  "--optimizer", "sgd", "--learning-rate", "1e30", "--nan", "end", "--out", out}),
      Exits(0, Err(AllOf(HasSubstr("the loss is not finite"),
                         HasSubstr("ends there, with the weights before that step")))));
  EXPECT_TRUE(std::filesystem::exists(folder / "out/history.csv"));
}

std::string sha_with(const Words& more) {
  const Words job = words_of(
      "--take 256 --batch-size 64 --epochs 1 --threads 1 --optimizer sgd --validation-split 0.01");
  return sha_of(figures_of(Words{TUTTI_PROGRAM, "train", "mlp", "--data", kDoodles} + job + more));
}

// With a rate of 0 they stay what they are.
TEST(TrainFlags, FromBeginsWithWeightsThatAreThere) {
  const TempFolder folder;
  const std::string out = folder / "first";
  const std::string learnt = sha_with({"--out", out});
  const Words still = {"--parameter-group", "*:learning_rate_factor=0"};
  EXPECT_NE(sha_with(still), learnt);
  EXPECT_EQ(sha_with(still + Words{"--from", out}), learnt);
  EXPECT_EQ(sha_with(still + words_of("--strategy mirrored --mesh stage=2 --from " + out +
                                      "/model.safetensors")),
            learnt);
  EXPECT_THAT(train_with({"wide", "--data", kDoodles, "--from", out}),
              Exits(2, Err(AllOf(HasSubstr("MODEL wide: "), HasSubstr("are of mlp")))));
}

TEST(TrainFlags, FromTrainsTheSameUnderAllStrategies) {
  const TempFolder folder;
  const std::string out = folder / "first";
  sha_with({"--out", out});
  std::set<std::string> shas;
  for (const std::string& words :
       {"one_device --from " + out, "mirrored --from " + out, "multi_worker --from " + out,
        "multi_worker --shard parameters --from " + out, "central_storage --from " + out,
        "parameter_server --from " + out + "/checkpoints"})
    shas.insert(sha_with(words_of("--replicas 2 --strategy " + words)));
  EXPECT_EQ(shas.size(), 1u);
  EXPECT_FALSE(shas.contains(sha_with(words_of("--replicas 2 --strategy mirrored"))));
}

TEST(TrainFlags, FreezeKeepsWhatItNamesUnderAllStrategies) {
  const TempFolder folder;
  const std::string first = folder / "first";
  sha_with({"--out", first});
  std::set<std::string> shas;
  for (const std::string kind :
       {"one_device", "mirrored", "multi_worker", "central_storage", "parameter_server"})
    shas.insert(sha_with({"--replicas", "2", "--strategy", kind, "--from", first, "--freeze",
                          "linear_1", "--out", folder / kind}));
  EXPECT_EQ(shas.size(), 1u);
  const auto weights_in = [&](const std::string& name) {
    return data::read_safetensors(folder / name / "model.safetensors");
  };
  const auto before = weights_in("first"), after = weights_in("parameter_server");
  for (const std::string name : {"linear_1.weight", "linear_1.bias", "linear_2.weight"}) {
    const Array &old = *before.find(name), &now = *after.find(name);
    const bool same =
        std::memcmp(old.data(), now.data(), static_cast<size_t>(old.num_bytes())) == 0;
    EXPECT_EQ(same, name.starts_with("linear_1")) << name;
  }
}

TEST(TrainFlags, HelpGroupsThem) {
  const auto result = train_with({"--help"});
  EXPECT_EQ(result.exit_code, 0);
  for (const char* group :
       {"Data:", "Training:", "Optimizer:", "Learning rate over the steps:", "Callbacks:",
        "Outputs and checkpoints:", "Strategy:", "Reduction:", "Parameter servers:"})
    EXPECT_THAT(result.out, HasSubstr(std::string("\n") + group + "\n"));
}

}  // namespace
}  // namespace tutti::test
