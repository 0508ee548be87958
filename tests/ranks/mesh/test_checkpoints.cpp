// Checkpoints know no mesh: a training goes on by another layout, to the bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tutti/base/error.h"
#include "tutti/base/event.h"
#include "tutti/checkpoint/checkpoint.h"
#include "tutti/checkpoint/folder.h"

#include "tests/ranks/mesh/mesh_training.h"
#include "tests/support/message_of.h"
#include "tests/support/run_workers.h"
#include "tests/support/temp_folder.h"

namespace tutti {
namespace {

using test::MeshCase;
using ::testing::HasSubstr;

/// Twelve steps in all; to the end, or to `max_steps`.
std::string train_kept(const std::string& kind, const MeshCase& one, const test::TempFolder& folder,
                       int64_t max_steps = 0, const nn::Graph& graph = test::small_gpt()) {
  Model model = test::make_model(Strategy(test::options_of(kind, one)), one, graph);
  model.fit(test::small_text(),
            {.epochs = 4,
             .max_steps = max_steps,
             .verbose = 0,
             .microbatches = one.microbatches,
             .checkpoints = {.folder = folder.path(), .every_steps = 1, .resume = true}});
  return model.weights_sha256();
}

const std::string& straight() {
  static const std::string weights = [] {
    const test::TempFolder folder;
    return train_kept("one_device", {"data=8,tensor=2"}, folder);
  }();
  return weights;
}

struct Pair {
  std::string from_kind, to_kind;
  MeshCase from, to;
};

class MeshResume : public ::testing::TestWithParam<Pair> {};

TEST_P(MeshResume, GoesOnWithTheSameBits) {
  const auto& [from_kind, to_kind, from, to] = GetParam();
  const test::TempFolder folder;
  train_kept(from_kind, from, folder, 4);  // in the middle of an epoch
  EXPECT_EQ(train_kept(to_kind, to, folder), straight());
}

const std::vector<Pair> kPairs = {
    {"mirrored", "mirrored", {"stage=2", 8}, {"data=2,tensor=2", 4}},
    {"mirrored", "mirrored", {"data=2,tensor=2", 4}, {"stage=3", 8}},
    {"mirrored", "mirrored", {"stage=2", 8, "interleaved", 2}, {"stage=2", 8, "zb-v"}},
    {"mirrored", "mirrored", {"stage=3", 8, "dualpipe-v"}, {"data=2,stage=2,tensor=2", 4, "zb-h1"}},
    {"mirrored", "one_device", {"data=2,stage=2,tensor=2", 4}, {"data=4,stage=2", 2}},
    {"one_device", "mirrored", {"tensor=2", 8}, {"stage=2,tensor=2", 8, "gpipe"}},
    {"mirrored", "mirrored", {"data=8", 1}, {"stage=4", 8, "1f1b", 0, "full"}},
    {"mirrored", "mirrored", {"stage=4", 8}, {"data=8", 1}},
    {"mirrored", "mirrored", {"data=4,stage=2", 2}, {"data=1", 8}},
    {"mirrored",
     "mirrored",
     {.mesh = "data=2,stage=2", .microbatches = 4, .shard = "parameters"},
     {"stage=3", 8}},
    {"mirrored",
     "mirrored",
     {"stage=2,tensor=2", 8},
     {.mesh = "data=2,stage=2,tensor=2", .microbatches = 4, .shard = "parameters"}},
};

std::string name_of(const MeshCase& from, const MeshCase& to) {
  std::string name = fmt::format("{}to{}", from.word(), to.word());
  std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
  return name;
}

INSTANTIATE_TEST_SUITE_P(Layouts, MeshResume, ::testing::ValuesIn(kPairs),
                         [](const auto& info) { return name_of(info.param.from, info.param.to); });

/// Kills this process once so many steps are done.
class KillAfter final : public Sink {
 public:
  explicit KillAfter(int steps) : steps_(steps) {}
  void on_event(const Event& event) noexcept override {
    if (event.name == "train.step" && ++done_ == steps_) ::raise(SIGKILL);
  }

 private:
  int steps_;
  std::atomic<int> done_{0};
};

/// arguments: a case in a word, a folder, the step after which worker 1 is killed (0: none).
RANK_PROGRAM(train_kept_on_mesh) {
  const MeshCase one = MeshCase::from(rank.arguments[0]);
  const int kill_after = std::stoi(rank.arguments[2]);
  if (kill_after > 0 && rank.rank == 1) add_sink(std::make_shared<KillAfter>(kill_after));
  Model model =
      test::make_model(Strategy(test::options_of("multi_worker", one)), one, test::small_gpt());
  model.fit(test::small_text(),
            {.epochs = 4,
             .verbose = 0,
             .microbatches = one.microbatches,
             .checkpoints = {.folder = rank.arguments[1], .every_steps = 1, .resume = true}});
  rank.mark("weights " + model.weights_sha256());
}

struct KilledPair {
  int workers;
  MeshCase from, to;
};

class MeshResumeOfProcesses : public ::testing::TestWithParam<KilledPair> {};

TEST_P(MeshResumeOfProcesses, GoesOnAfterSigkill) {
  const auto& [workers, from, to] = GetParam();
  const test::TempFolder folder;
  const auto killed =
      test::run_workers(workers, "train_kept_on_mesh", {from.word(), folder.path(), "5"});
  EXPECT_NE(killed.exit_code, 0) << killed.log;
  ASSERT_FALSE(trainings_in(folder.path()).empty()) << killed.log;
  const auto out =
      test::run_workers(workers, "train_kept_on_mesh", {to.word(), folder.path(), "0"});
  ASSERT_EQ(out.exit_code, 0) << out.log;
  EXPECT_THAT(test::lines_after(out.log, "weights "),
              ::testing::AllOf(::testing::SizeIs(workers), ::testing::Each(straight())))
      << out.log;
}

const std::vector<KilledPair> kKilledPairs = {
    {4, {"stage=2,tensor=2", 8}, {"data=2,stage=2", 4}},
    {2, {"stage=2", 8, "zb-v"}, {"tensor=2", 8}},
    {2, {"stage=2", 8, "dualpipe-v"}, {"stage=2", 8, "interleaved", 2}},
    {2, {"tensor=2", 8}, {"stage=2", 8, "gpipe"}},
    {4, {"data=4", 2}, {"stage=4", 8, "1f1b", 0, "full"}},
    {4, {"stage=4", 8}, {"data=4", 2}},
    {4,
     {"data=2,tensor=2", 4},
     {.mesh = "data=2,stage=2", .microbatches = 4, .shard = "parameters"}},
    {4,
     {.mesh = "data=2,stage=2", .microbatches = 4, .shard = "parameters"},
     {.mesh = "data=2,tensor=2", .microbatches = 4, .shard = "parameters"}}};

INSTANTIATE_TEST_SUITE_P(Layouts, MeshResumeOfProcesses, ::testing::ValuesIn(kKilledPairs),
                         [](const auto& info) { return name_of(info.param.from, info.param.to); });

TEST(MeshResumeFrozen, GoesOnWithTheSameBitsWithoutStatesOfWhatIsFrozen) {
  const nn::Graph graph = test::frozen_gpt();
  const test::TempFolder whole, folder;
  const std::string expected = train_kept("one_device", {"data=8,tensor=2"}, whole, 0, graph);
  const MeshCase first_is_frozen{"stage=2", 8, "1f1b", 0, "none", 2, {"transformer.h.1.ln_1"}};
  train_kept("mirrored", first_is_frozen, folder, 4, graph);
  const auto tensors = TrainingCheckpoint(trainings_in(folder.path()).back()).tensors();
  std::vector<std::string> frozen, trained;
  for (const auto& [name, array] : tensors) {
    if (name.ends_with("transformer.h.0.ln_1.weight")) frozen.push_back(name);
    if (name.ends_with("transformer.h.2.ln_1.weight")) trained.push_back(name);
  }
  EXPECT_THAT(frozen, ::testing::ElementsAre("parameters/transformer.h.0.ln_1.weight"));
  EXPECT_THAT(trained, ::testing::SizeIs(3)) << "with two states of adamw";
  EXPECT_EQ(train_kept("mirrored", {.mesh = "data=8", .shard = "state"}, folder, 0, graph),
            expected);
}

TEST(MeshCheckpoint, HasWholeTensors) {
  const test::TempFolder folder;
  train_kept("mirrored", {"data=2,stage=2,tensor=2", 4}, folder, 2);
  const TrainingCheckpoint checkpoint(trainings_in(folder.path()).back());
  EXPECT_EQ(checkpoint.manifest().mesh, "data=2,stage=2,tensor=2");
  EXPECT_EQ(checkpoint.manifest().replicas, 2);
  EXPECT_EQ(checkpoint.manifest().microbatches, 4);
  EXPECT_EQ(checkpoint.manifest().tensor_blocks, 2);
  const auto tensors = checkpoint.tensors();
  EXPECT_THAT(tensors.at("parameters/transformer.wte.weight").shape(),
              ::testing::ElementsAre(test::kVocabulary, 16));
  EXPECT_EQ(tensors.count("parameters/lm_head.weight"), 0);  // tied

  // And into a model without a mesh.
  Model plain(Strategy(test::options_of("one_device", {"", 1, "1f1b", 0, "none", 1})),
              [] { return test::small_gpt(); });
  plain.load(trainings_in(folder.path()).back());
}

TEST(MeshWeights, AreSavedAndLoadedWhole) {
  const test::TempFolder folder;
  const auto file = folder.path() / "model.safetensors";
  const MeshCase plain{"", 1, "1f1b", 0, "none", 1};
  Model one(Strategy(test::options_of("one_device", plain)), [] { return test::small_gpt(); });
  one.save(file);
  for (const MeshCase& mesh : {MeshCase{"stage=3"}, MeshCase{"stage=2,tensor=2"},
                               MeshCase{"stage=2", 2, "interleaved", 2}}) {
    StrategyOptions options = test::options_of("mirrored", mesh);
    options.seed = 99;
    Model model = test::make_model(Strategy(options), mesh, test::small_gpt());
    EXPECT_NE(model.weights_sha256(), one.weights_sha256());
    model.load(file);
    EXPECT_EQ(model.weights_sha256(), one.weights_sha256());
    const auto again = folder.path() / "again.safetensors";
    model.save(again);
    one.load(again);
    EXPECT_EQ(model.weights_sha256(), one.weights_sha256());
  }
  const auto wrong = folder.path() / "wrong.safetensors";
  Model other(Strategy(test::options_of("one_device", plain)),
              [] { return test::small_gpt(true, 0, 2); });
  other.save(wrong);
  Model model = test::make_model(Strategy(test::options_of("mirrored", {"stage=2"})), {"stage=2"},
                                 test::small_gpt());
  const std::string before = model.weights_sha256();
  EXPECT_THAT(test::message_of<DataError>([&] { model.load(wrong); }),
              HasSubstr("transformer.h.2"));
  EXPECT_EQ(model.weights_sha256(), before);
}

TEST(MeshCallbacks, SeeTheLossAndKeepTheBestWeights) {
  const MeshCase mesh{"stage=2,tensor=2", 8};
  const auto trained = [](const std::string& kind, const MeshCase& one) {
    Model model = test::make_model(Strategy(test::options_of(kind, one)), one, test::small_gpt());
    std::vector<double> losses;
    const auto data = test::small_text();
    model.fit(data, {.epochs = 3,
                     .validation = data,
                     .callbacks = {callbacks::early_stopping({.monitor = "val_loss",
                                                              .min_delta = 10,
                                                              .patience = 1,
                                                              .restore_best_weights = true})},
                     .verbose = 0,
                     .microbatches = one.microbatches});
    return model.weights_sha256();
  };
  EXPECT_EQ(trained("mirrored", mesh), trained("one_device", {"data=8,tensor=2"}));
}

}  // namespace
}  // namespace tutti
