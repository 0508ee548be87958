// Stages, shards and recomputation of networks of .pt2 files.
#include <ATen/CPUGeneratorImpl.h>

#include "tutti/exported/module.h"
#include "tutti/exported/stages.h"

#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/train/exported_nets.h"

namespace tutti {
namespace {

using test::kind_and_height;
using test::places;
using test::TempFolder;

FromExport plain_net(const std::string& name) { return from_export(kExportedNets + name + ".pt2"); }

FromExport certain_net() {
  return from_export(kExportedNets + "certain.pt2", {.eval = kExportedNets + "certain.eval.pt2"});
}

data::Dataset some_words(int64_t count) {
  torch::manual_seed(4);
  const auto words = torch::randint(0, 17, {count, 11}, at::kLong);
  return data::from_tensors(
      {words.narrow(1, 0, 10).contiguous(), words.narrow(1, 1, 10).contiguous()});
}

/// How a training is dealt out: a mesh, or replicas alone.
struct Dealt {
  std::string mesh{};
  int replicas = 0;
  int microbatches = 1;
  parallel::ModelLayout layout{};
  std::string shard{};
  std::string kind = "mirrored";
};

std::string trained(const FromExport& net, const CompileOptions& options, const data::Dataset& data,
                    const Dealt& dealt, const std::filesystem::path& folder = {},
                    int64_t steps = 0) {
  StrategyOptions how{.kind = dealt.kind, .threads_per_replica = 1, .seed = 7};
  how.mesh = dealt.mesh;
  how.shard = dealt.shard;
  if (!dealt.shard.empty()) how.shard_bucket_bytes = 1 << 10;
  if (dealt.replicas > 0) how.replicas = dealt.replicas;
  Model model(Strategy(how), net, dealt.layout);
  model.compile(options);
  FitOptions fit{.epochs = 2, .verbose = 0, .microbatches = dealt.microbatches};
  if (steps > 0) fit.max_steps = steps;
  if (!folder.empty()) fit.checkpoints = {.folder = folder, .every_steps = 1, .resume = true};
  fit.validation = data;
  model.fit(data, fit);
  return model.weights_sha256();
}

CompileOptions of_classes() {
  return {.optimizer = optim::adam({.learning_rate = 0.01}),
          .loss = losses::sparse_categorical_crossentropy({.from_logits = true})};
}

parallel::ModelLayout before(std::vector<std::string> modules) {
  return {.cut = parallel::before(std::move(modules))};
}

void expect_refused(const FromExport& net, const Dealt& dealt, const std::string& why) {
  StrategyOptions how{.kind = "mirrored", .threads_per_replica = 1, .mesh = dealt.mesh};
  EXPECT_THAT([&] { Model(Strategy(how), net, dealt.layout); },
              ThrowsMessage<UsageError>(HasSubstr(why)));
}

std::string words_trained(const Dealt& dealt) {
  return trained(plain_net("blocks"), of_classes(), some_words(16).shuffle().batch(8), dealt);
}

TEST(ExportedStages, TrainTheBitsOfOneDevice) {
  const std::string expected = words_trained({.replicas = 4, .kind = "one_device"});
  const std::vector<Dealt> cases{
      {.mesh = "stage=2", .microbatches = 4},
      {.mesh = "data=2,stage=2", .microbatches = 2},
      {.mesh = "stage=3", .microbatches = 4, .layout = before({"h.1", "h.2.up"})},
      {.mesh = "stage=4", .microbatches = 4, .layout = {.schedule = parallel::zb_h1()}},
      {.mesh = "stage=2", .microbatches = 4, .layout = {.schedule = parallel::interleaved(2)}},
      {.mesh = "data=2,stage=2", .microbatches = 2, .kind = "one_device"},
  };
  for (size_t i = 0; i < cases.size(); ++i) EXPECT_EQ(words_trained(cases[i]), expected) << i;
}

TEST(ExportedStages, BatchNormsAndInputsThatGoByTrainTheBitsOfOneDevice) {
  const auto pictures = [](const Dealt& dealt) {
    return trained(certain_net(), for_pictures(), bright_halves(20).shuffle().batch(10), dealt);
  };
  EXPECT_EQ(pictures({.mesh = "data=2,stage=2"}), pictures({.replicas = 2, .kind = "one_device"}));
  EXPECT_EQ(pictures({.mesh = "data=2,stage=2", .layout = before({"norm"})}),
            pictures({.replicas = 2, .kind = "one_device"}));
  const auto both = [](const Dealt& dealt) {
    return trained(both_net(), {.outputs = kind_and_height()}, places(12).batch(6), dealt);
  };
  EXPECT_EQ(both({.mesh = "stage=2", .microbatches = 2, .layout = before({"height"})}),
            both({.replicas = 2, .kind = "one_device"}));
}

TEST(ExportedStages, FrozenParametersStayAndTheRestTrainsTheBitsOfOneDevice) {
  // "token" is tied to the head, so that both stages have it.
  const std::string net = kExportedNets + "blocks.pt2";
  const auto part = [&](const Dealt& dealt) {
    return trained(from_export(net, {.freeze = {"token", "h.0.qkv", "h.2"}}), of_classes(),
                   some_words(16).shuffle().batch(8), dealt);
  };
  const std::string expected = part({.replicas = 4, .kind = "one_device"});
  EXPECT_NE(expected, words_trained({.replicas = 4, .kind = "one_device"}));
  EXPECT_EQ(part({.mesh = "stage=2", .microbatches = 4}), expected);
  EXPECT_EQ(part({.mesh = "data=2,stage=2", .microbatches = 2, .layout = before({"h.1"})}),
            expected);
  EXPECT_EQ(part({.mesh = "data=2,stage=2", .microbatches = 2, .shard = "parameters"}), expected);
  expect_refused(from_export(net, {.freeze = {"h", "norm", "place"}}), {.mesh = "stage=3"},
                 "the network can be cut into");
}

TEST(ExportedStages, ATrainingGoesOnInAnotherLayout) {
  const TempFolder folder;
  const auto run = [&](const Dealt& dealt, const std::filesystem::path& to, int64_t steps) {
    return trained(plain_net("blocks"), of_classes(), some_words(16).shuffle().batch(8), dealt, to,
                   steps);
  };
  const Dealt stages{.mesh = "stage=2", .microbatches = 2}, replicas{.replicas = 2};
  const std::string expected = run(stages, folder / "whole", 4);
  run(stages, folder / "parts", 2);
  EXPECT_EQ(run(stages, folder / "parts", 4), expected);
  run(stages, folder / "other", 1);
  EXPECT_EQ(run(replicas, folder / "other", 4), expected);
}

TEST(ExportedStages, WhatCannotBeCutIsSaidWithTheReason) {
  const FromExport blocks = plain_net("blocks");
  expect_refused(blocks, {.mesh = "stage=2", .layout = before({"h.7"})},
                 "has no module \"h.7\" to be cut before; did you mean \"h.0\"? it can be cut "
                 "before ");
  expect_refused(blocks, {.mesh = "stage=3", .layout = before({"h.2", "h.1"})},
                 "a cut is before h.2, the next one before h.1, which begins earlier");
  expect_refused(blocks, {.mesh = "stage=3", .layout = before({"h.1", "h.1.ln_1"})},
                 "which begins at the same place");
  expect_refused(blocks, {.mesh = "stage=3", .layout = before({"h.1"})},
                 "make 2 stages; 3 ranks on axis stage");
  expect_refused(blocks, {.mesh = "stage=3", .layout = before({"h.1.ln_1", "token"})},
                 "cannot be cut before token: the model begins with it; it can be cut before ");
  expect_refused(plain_net("cnn"), {.mesh = "stage=2", .layout = before({"features.2"})},
                 "cannot be cut before features.2: aten::relu_");
  expect_refused(plain_net("mlp"), {.mesh = "stage=3"},
                 "3 stages, but the network can be cut into 2 at most");
  const std::string drops = kExportedNets + "pictures.pt2";
  expect_refused(from_export(drops, {.eval = drops}), {.mesh = "stage=2"},
                 "whose graph of evaluation draws random numbers cannot be cut into stages");
  expect_refused(blocks, {.mesh = "tensor=2"}, "it can be cut into stages, but not into blocks");
  expect_refused(blocks, {.mesh = "data=2", .layout = before({"h.7"})}, "has no module \"h.7\"");
  const FromExport adapted =
      from_export(kExportedNets + "blocks.pt2", {.lora = {{.pattern = "h.*.qkv", .rank = 2}}});
  for (const char* mesh : {"stage=2", "data=2"})
    expect_refused(adapted, {.mesh = mesh, .layout = before({"h.1"})},
                   "a network with adapters (lora) is not cut");
}

TEST(ExportedStages, ShardsOfParametersAndStagesTrainTheBitsOfOneDevice) {
  const std::string expected = words_trained({.replicas = 4, .kind = "one_device"});
  const std::vector<Dealt> cases{
      {.mesh = "data=4", .shard = "parameters"},
      {.mesh = "data=2,stage=2", .microbatches = 2, .shard = "parameters"},
      {.mesh = "data=2,stage=2", .microbatches = 2, .shard = "gradients"},
  };
  for (size_t i = 0; i < cases.size(); ++i) EXPECT_EQ(words_trained(cases[i]), expected) << i;
}

TEST(ExportedStages, WhatIsComputedAgainTrainsTheBitsOfOneDevice) {
  const std::string expected = words_trained({.replicas = 4, .kind = "one_device"});
  for (const char* again : {"full", "blocks", "every:2", "h.*.up,norm"}) {
    const parallel::ModelLayout layout{.recompute = parallel::recompute_choice(again)};
    EXPECT_EQ(words_trained({.mesh = "data=2,stage=2", .microbatches = 2, .layout = layout}),
              expected)
        << again;
    EXPECT_EQ(words_trained({.replicas = 4, .layout = layout}), expected) << again;
  }
  const auto dropped = [](const Dealt& dealt) {
    return trained(from_export(kExportedNets + "gpt.pt2", {.eval = kExportedNets + "gpt.eval.pt2"}),
                   of_classes(), some_words(16).shuffle().batch(8), dealt);
  };
  for (const int replicas : {1, 2}) {
    const std::string masks = dropped({.replicas = replicas, .microbatches = 2});
    for (const char* again : {"full", "every:2", "block.*"}) {
      const parallel::ModelLayout layout{.recompute = parallel::recompute_choice(again)};
      EXPECT_EQ(dropped({.replicas = replicas, .microbatches = 2, .layout = layout}), masks)
          << again << ", " << replicas;
    }
  }
  const auto recompute = [](const char* what) {
    return parallel::ModelLayout{.recompute = parallel::recompute_choice(what)};
  };
  expect_refused(plain_net("mlp"), {.mesh = "stage=2", .layout = recompute("blocks")},
                 "the model has no blocks");
  expect_refused(certain_net(), {.mesh = "stage=2", .layout = recompute("full")},
                 "a second forward would not be the first");
  expect_refused(plain_net("blocks"), {.layout = recompute("h.9.*")}, "h.9.*");
}

// ---- random numbers ----

FromExport dropped_net() {
  return from_export(kExportedNets + "dropped.pt2", {.eval = kExportedNets + "dropped.eval.pt2"});
}

std::string dropped_trained(const Dealt& dealt, const std::filesystem::path& folder = {},
                            int64_t steps = 0) {
  return trained(dropped_net(), of_classes(), some_words(16).shuffle().batch(8), dealt, folder,
                 steps);
}

TEST(ExportedStagesThatDraw, TrainTheBitsOfOneDeviceWhereverTheyAreCut) {
  const ExportedCuts cuts(dropped_net()());
  const auto possible = cuts.places().with_parameters(cuts.training());
  ASSERT_GT(possible.size(), 8u);
  const std::string expected = dropped_trained({.replicas = 2, .kind = "one_device"});
  for (const size_t place : possible) {
    const std::string name = cuts.places().all[place].names.front();
    EXPECT_EQ(dropped_trained({.mesh = "stage=2", .microbatches = 2, .layout = before({name})}),
              expected)
        << name;
  }
}

TEST(ExportedStagesThatDraw, TrainTheBitsOfOneDeviceByEachScheduleAndNumberOfMicrobatches) {
  for (const int parts : {1, 3}) {
    const std::string expected = dropped_trained({.replicas = parts, .kind = "one_device"});
    EXPECT_EQ(dropped_trained({.replicas = 1, .microbatches = parts}), expected) << parts;
    for (const auto& schedule :
         {parallel::gpipe(), parallel::one_f_one_b(), parallel::zb_h1(), parallel::zb_v()}) {
      const parallel::ModelLayout layout{.schedule = schedule};
      EXPECT_EQ(dropped_trained({.mesh = "stage=2", .microbatches = parts, .layout = layout}),
                expected)
          << parts << ", " << schedule.name;
    }
  }
  const std::string expected = dropped_trained({.replicas = 4, .kind = "one_device"});
  const std::vector<Dealt> cases{
      {.mesh = "stage=2", .microbatches = 4, .layout = {.schedule = parallel::interleaved(2)}},
      {.mesh = "stage=4", .microbatches = 4},
      {.mesh = "data=2,stage=2", .microbatches = 2},
      {.mesh = "data=2,stage=2", .microbatches = 2, .kind = "one_device"},
      {.mesh = "data=2,stage=2", .microbatches = 2, .shard = "parameters"},
      {.mesh = "data=4", .shard = "parameters"},
  };
  for (size_t i = 0; i < cases.size(); ++i) EXPECT_EQ(dropped_trained(cases[i]), expected) << i;
}

TEST(ExportedStagesThatDraw, DrawTheSameWhenTheyAreComputedAgain) {
  const std::string expected = dropped_trained({.replicas = 4, .kind = "one_device"});
  for (const char* again : {"full", "every:2", "h.*,noise"}) {
    const parallel::ModelLayout layout{.recompute = parallel::recompute_choice(again)};
    EXPECT_EQ(dropped_trained({.mesh = "data=2,stage=2", .microbatches = 2, .layout = layout}),
              expected)
        << again;
    EXPECT_EQ(dropped_trained({.replicas = 4, .layout = layout}), expected) << again;
  }
}

TEST(ExportedStagesThatDraw, GoOnInTheMiddleOfAnEpochInAnotherLayout) {
  const TempFolder folder;
  const Dealt stages{.mesh = "stage=2", .microbatches = 2}, replicas{.replicas = 2};
  const std::string expected = dropped_trained(stages, folder / "whole", 4);
  EXPECT_NE(dropped_trained(stages, folder / "parts", 1), expected);
  EXPECT_NE(dropped_trained(stages, folder / "parts", 3), expected);
  EXPECT_EQ(dropped_trained(stages, folder / "parts", 4), expected);
  dropped_trained(replicas, folder / "other", 3);
  EXPECT_EQ(dropped_trained(stages, folder / "other", 4), expected);
}

// What a generator was left at before is nothing to it, and it leaves generators as they are.
TEST(ExportedStagesThatDraw, DrawByTheSeedOfFitAlone) {
  const auto run = [](uint64_t of_torch, uint64_t seed) {
    Model model(strategy_of("one_device", 1), dropped_net());
    model.compile(of_classes());
    const auto data = some_words(16).batch(8);
    torch::manual_seed(of_torch);
    const auto before = at::detail::getDefaultCPUGenerator().get_state();
    model.fit(data, {.seed = seed, .verbose = 0});
    EXPECT_TRUE(at::equal(before, at::detail::getDefaultCPUGenerator().get_state()));
    return model.weights_sha256();
  };
  EXPECT_EQ(run(1, 5), run(2, 5));
  EXPECT_NE(run(1, 5), run(1, 6));
}

}  // namespace
}  // namespace tutti
