// What a model's file holds.
#include <filesystem>
#include <map>

#include "tutti/nn/sparse_embedding.h"
#include "tutti/train/model/weight_average.h"

#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/train/small_model.h"

namespace tutti {
namespace {

TEST(ModelSave, AndLoadGiveTheSameWeights) {
  const auto path = std::filesystem::path(::testing::TempDir()) / "tutti_model_test.safetensors";
  Model model = small_model(strategy_of("mirrored", 2));
  model.fit(three_classes(12).batch(6), {.verbose = 0});
  model.save(path);
  Model other(Strategy({.kind = "mirrored", .replicas = 2, .seed = 99}),
              [] { return small_graph(); });
  EXPECT_NE(other.weights_sha256(), model.weights_sha256());
  other.load(path);
  EXPECT_EQ(other.weights_sha256(), model.weights_sha256());
  const auto first = other.modules().module(0)->parameters();
  const auto second = other.modules().module(1)->parameters();
  for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(torch::equal(first[i], second[i]));
  EXPECT_THROW(model.save("/no/such/folder/m.safetensors"), Error);
  EXPECT_THROW(model.load("/no/such/file.safetensors"), DataError);
  std::filesystem::remove(path);
}

TEST(ModelSave, HasMergedBuffersAndEvaluationGivesThemBack) {
  Model model(strategy_of("mirrored", 2), [] {
    const auto input = nn::input({1, 2, 2});
    return nn::Graph(input, nn::linear(3)(nn::flatten()(nn::batch_norm2d().named("bn")(input))));
  });
  model.compile(adam_and_accuracy());
  const auto flat = three_classes(12).batch(12).epoch({}).batch(0);
  const auto data = data::from_arrays({Array::view(flat.columns[0].data(), DType::float32,
                                                   {12, 1, 2, 2}, flat.columns[0].owner()),
                                       flat.columns[1]})
                        .batch(6);
  model.fit(data, {.verbose = 0});
  const auto mean_of = [&](int local) {
    return model.modules().module(local)->named_buffers()["bn.running_mean"].item<double>();
  };
  const double own[2] = {mean_of(0), mean_of(1)};
  ASSERT_NE(own[0], own[1]) << "batch statistics are per replica";
  model.evaluate(data);
  EXPECT_EQ(mean_of(0), own[0]);
  EXPECT_EQ(mean_of(1), own[1]);
  const auto merged = model.modules().merged_buffers();
  for (const auto& [name, value] : merged) {
    if (name == "bn.running_mean") {
      EXPECT_FLOAT_EQ(value.item<float>(), (own[0] + own[1]) / 2);
    } else if (name == "bn.num_batches_tracked") {
      EXPECT_EQ(value.item<int64_t>(), 2);
    }
  }
  const auto x = torch::zeros({1, 1, 2, 2});
  const auto before = model.predict(x);
  const auto path = std::filesystem::path(::testing::TempDir()) / "tutti_merged.safetensors";
  model.save(path);
  model.load(path);
  EXPECT_EQ(mean_of(0), mean_of(1));
  EXPECT_TRUE(torch::equal(model.predict(x), before));
  std::filesystem::remove(path);
}

// ---- loading a part ----

/// small_graph() with another last layer.
nn::Graph graph_of_classes(int64_t classes) {
  const auto input = nn::input({4});
  const auto x = nn::relu()(nn::linear(8).named("body")(input));
  return nn::Graph(input, nn::linear(classes).named("fc")(x));
}

std::map<std::string, at::Tensor> tensors_of(const Model& model, int local = 0) {
  std::map<std::string, at::Tensor> all;
  for (const auto& item : model.modules().module(local)->named_parameters())
    all[item.key()] = item.value().detach().clone();
  for (const auto& item : model.modules().module(local)->named_buffers())
    all[item.key()] = item.value().clone();
  return all;
}

TEST(ModelLoad, LeavesOutWhatIsSkippedInEveryReplica) {
  const auto path = std::filesystem::path(::testing::TempDir()) / "tutti_skip.safetensors";
  Model old(strategy_of("one_device", 1), [] { return graph_of_classes(3); });
  old.save(path);
  for (const char* kind : {"one_device", "mirrored"})
    for (const bool compiled : {false, true}) {
      Model model(Strategy({.kind = kind, .replicas = 2, .threads_per_replica = 1, .seed = 99}),
                  [] { return graph_of_classes(5); });
      if (compiled) model.compile(adam_and_accuracy());
      const auto before = tensors_of(model);
      EXPECT_THAT(message_of<DataError>([&] { model.load(path); }), HasSubstr("\"fc.weight\""));
      const LoadReport report = model.load(path, {.skip = {"fc.*"}});
      EXPECT_EQ(report.skipped, (std::vector<std::string>{"fc.weight", "fc.bias"}));
      EXPECT_EQ(report.loaded, (std::vector<std::string>{"body.weight", "body.bias"}));
      EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
      for (int local = 0; local < 2; ++local) {
        const auto now = tensors_of(model, local);
        for (const char* name : {"fc.weight", "fc.bias"})
          EXPECT_TRUE(torch::equal(now.at(name), before.at(name))) << kind << " " << name;
        for (const char* name : {"body.weight", "body.bias"})
          EXPECT_TRUE(torch::equal(now.at(name), tensors_of(old).at(name))) << kind << " " << name;
      }
      if (compiled) model.fit(three_classes(12).batch(6), {.verbose = 0});
    }
  std::filesystem::remove(path);
}

TEST(ModelLoad, SaysWhatOneSideAloneHas) {
  const auto path = std::filesystem::path(::testing::TempDir()) / "tutti_strict.safetensors";
  Model old(strategy_of("one_device", 1), [] {
    const auto input = nn::input({4});
    return nn::Graph(input, nn::linear(3).named("head")(nn::linear(8).named("body")(input)));
  });
  old.save(path);
  Model model(strategy_of("mirrored", 2), [] { return graph_of_classes(3); });
  const std::string before = model.weights_sha256();
  EXPECT_THROW(model.load(path), DataError);
  EXPECT_EQ(model.weights_sha256(), before);
  const LoadReport report = model.load(path, {.strict = false});
  EXPECT_THAT(report.missing, ::testing::ElementsAre("fc.weight", "fc.bias"));
  EXPECT_THAT(report.unexpected, ::testing::UnorderedElementsAre("head.weight", "head.bias"));
  EXPECT_THAT(
      report.to_string(),
      AllOf(HasSubstr("2 tensors; not in the file, and left as they are: fc.weight, fc.bias; "
                      "not in the model: "),
            HasSubstr("head.weight")));
  const LoadReport skipped = model.load(path, {.skip = {"fc", "head"}});
  EXPECT_THAT(skipped.skipped,
              ::testing::UnorderedElementsAre("fc.weight", "fc.bias", "head.weight", "head.bias"));
  EXPECT_TRUE(skipped.missing.empty() && skipped.unexpected.empty());
  // Shapes must fit all the same; and a pattern must mean something.
  Model other(strategy_of("one_device", 1), [] {
    const auto input = nn::input({4});
    return nn::Graph(input, nn::linear(3).named("fc")(nn::linear(9).named("body")(input)));
  });
  EXPECT_THAT(message_of<DataError>([&] { other.load(path, {.strict = false}); }),
              HasSubstr("\"body.weight\" is float32 [8, 4] in the file, float32 [9, 4] in the"));
  EXPECT_THAT(message_of<UsageError>([&] { model.load(path, {.skip = {"fcc.*"}}); }),
              HasSubstr("skip: unknown tensor of model or file \"fcc.*\""));
  std::filesystem::remove(path);
}

TEST(ModelLoad, RunningStatisticsThatStayAreEachReplicasOwn) {
  const test::TempFolder folder;
  const std::string file = folder / "old.safetensors";
  const auto net = [] {
    const auto input = nn::input({1, 2, 2});
    auto x = nn::batch_norm2d()(nn::conv2d(2, 2)(input));
    return nn::Graph(input, nn::linear(3)(nn::flatten()(x)));
  };
  Model old(strategy_of("one_device", 1), net);
  old.save(file);
  Model model(strategy_of("mirrored", 2), net);
  model.compile(adam_and_accuracy());
  model.fit(three_classes(24, {1, 2, 2}).batch(8), {.verbose = 0});
  std::vector<std::map<std::string, at::Tensor>> before;
  for (int local = 0; local < 2; ++local) before.push_back(tensors_of(model, local));
  const LoadReport report = model.load(file, {.skip = {"*running_mean"}});
  ASSERT_THAT(report.skipped, ::testing::SizeIs(1));
  const std::string stayed = report.skipped[0];
  ASSERT_FALSE(torch::equal(before[0].at(stayed), before[1].at(stayed)));
  for (int local = 0; local < 2; ++local)
    for (const auto& [name, now] : tensors_of(model, local)) {
      const at::Tensor expected =
          name == stayed ? before[static_cast<size_t>(local)].at(name) : tensors_of(old).at(name);
      EXPECT_TRUE(torch::equal(now, expected)) << name << " of replica " << local;
    }
}

TEST(ModelLoad, OnAMeshWhatIsSkippedStaysOnEveryRank) {
  const test::TempFolder folder;
  const std::string old_file = folder / "old.safetensors", file = folder / "mesh.safetensors";
  Model old(strategy_of("one_device", 1), [] { return graph_of_classes(3); });
  old.save(old_file);
  Model model(
      Strategy({.kind = "mirrored", .threads_per_replica = 1, .seed = 99, .mesh = "stage=2"}),
      [] { return graph_of_classes(5); });
  const auto saved = [&] {
    model.save(file);
    Model plain(strategy_of("one_device", 1), [] { return graph_of_classes(5); });
    plain.load(file);
    return tensors_of(plain);
  };
  const auto before = saved();
  EXPECT_EQ(model.load(old_file, {.skip = {"fc"}}).loaded.size(), 2U);
  const auto after = saved();
  for (const char* name : {"fc.weight", "fc.bias"})
    EXPECT_TRUE(torch::equal(after.at(name), before.at(name))) << name;
  for (const char* name : {"body.weight", "body.bias"})
    EXPECT_TRUE(torch::equal(after.at(name), tensors_of(old).at(name))) << name;
}

TEST(ModelOnAMesh, RefusesWhatNeedsAWholeForwardAndCountsBatches) {
  Model model(
      Strategy({.kind = "mirrored", .threads_per_replica = 1, .seed = 99, .mesh = "stage=2"}),
      [] { return graph_of_classes(3); });
  EXPECT_THAT(message_of<UsageError>([&] {
                model.compile({.train_step = [](const StepData& data) -> StepOutcome {
                  return {.losses = data.forward(data.inputs)[0].sum(1)};
                }});
              }),
              HasSubstr("none of which has a whole forward"));
  model.compile(adam_and_accuracy());
  const auto average = std::make_shared<WeightAverage>(model);
  EXPECT_THAT(message_of<UsageError>([&] {
                model.fit(three_classes(8).batch(4), {.callbacks = {average}, .verbose = 0});
              }),
              HasSubstr("on a mesh no rank has all weights"));
  EXPECT_EQ(model.optimizer().version(), 0);
  int begun = 0, ended = 0, predicted = 0;
  const auto counts =
      callbacks::lambda("counts", {.on_test_step_begin = [&](const PassFacts&) { ++begun; },
                                   .on_test_step_end = [&](const PassFacts&) { ++ended; },
                                   .on_predict_step_end = [&](const PassFacts&) { ++predicted; }});
  model.evaluate(three_classes(10).batch(4), {}, 0, {counts});
  model.predict(three_classes(10).batch(4), {counts});
  EXPECT_EQ(begun, 3);
  EXPECT_EQ(ended, 3);
  EXPECT_EQ(predicted, 3);
}

struct TableNet : torch::nn::Module {
  TableNet() {
    user = register_module("user", nn::SparseEmbedding({.name = "user", .width = 2}));
    scale = register_parameter("scale", torch::ones({1}));
  }
  at::Tensor forward(const at::Tensor& keys) { return scale * user(keys).sum(-1, true); }
  nn::SparseEmbedding user{nullptr};
  at::Tensor scale;
};

TEST(ModelSave, SaysWhichTablesItHasNot) {
  const auto path = std::filesystem::path(::testing::TempDir()) / "tutti_tables.safetensors";
  Model model(strategy_of("one_device", 1), [] { return std::make_shared<TableNet>(); });
  ::testing::internal::CaptureStderr();
  model.save(path);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("tutti_tables.safetensors has no rows of embedding table \"user\""));
  std::filesystem::remove(path);
  ::testing::internal::CaptureStderr();
  small_model(strategy_of("one_device", 1)).save(path);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace tutti
