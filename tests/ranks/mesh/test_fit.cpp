// A model on a mesh trains the bits of one device that computes all parts in turn.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tutti/base/error.h"

#include "tests/ranks/mesh/mesh_training.h"
#include "tests/support/hosts.h"
#include "tests/support/message_of.h"
#include "tests/support/plain_gpt.h"
#include "tests/support/run_workers.h"
#include "tests/support/temp_folder.h"

namespace tutti {
namespace {

using test::MeshCase;
using test::message_of;
using test::train_on_mesh;
using ::testing::HasSubstr;

/// All of 8 parts of a batch and 2 blocks of a layer.
const std::vector<MeshCase>& cases() {
  static const std::vector<MeshCase> all{
      {"data=8", 1},
      {"data=4,tensor=2", 2},
      {"data=1", 8},
      {"tensor=2", 8},
      {"stage=2", 8, "gpipe"},
      {"stage=3", 8, "1f1b"},
      {"stage=4", 8, "zb-h1"},
      {"stage=8", 8, "1f1b"},
      {"stage=2", 8, "interleaved", 2},
      {"stage=2", 8, "interleaved", 3},
      {"stage=2", 8, "zb-v"},
      {"stage=3", 8, "dualpipe-v"},
      {"stage=2,tensor=2", 8, "zb-h1"},
      {"data=2,stage=2", 4, "1f1b", 0, "full"},
      {"data=2,stage=2,tensor=2", 4, "zb-h1"},
      {"data=2,stage=2,tensor=2", 4, "interleaved", 2, "full"},
      {"data=4,stage=2", 2, "gpipe"},
      {"data=2,stage=2", 4, "1f1b", 0, "none", 2, {"transformer.h.1.mlp.c_fc"}},
      {"data=8", 1, "1f1b", 0, "*.mlp.*"},
      {"data=2,stage=2", 4, "interleaved", 2, "every:2"},
      {"data=2,stage=2,tensor=2", 4, "zb-h1", 0, "blocks"},
      {.mesh = "data=8", .shard = "gradients"},
      {.mesh = "data=8", .shard = "parameters"},
      {.mesh = "data=2,shard=2", .microbatches = 2, .shard = "parameters"},
      {.mesh = "data=2,shard=4", .shard = "gradients"},
      {.mesh = "data=2,shard=2,tensor=2", .microbatches = 2, .shard = "state"},
      {.mesh = "shard=2,stage=2,tensor=2",
       .microbatches = 4,
       .pipeline = "zb-h1",
       .shard = "gradients"},
      {.mesh = "data=2,shard=2,stage=2", .microbatches = 2, .shard = "gradients"},
      {.mesh = "data=2,stage=2", .microbatches = 4, .shard = "parameters"},
      {.mesh = "data=2,tensor=2", .microbatches = 4, .shard = "parameters"},
      {.mesh = "data=4,stage=2", .microbatches = 2, .pipeline = "zb-h1", .shard = "parameters"},
      {.mesh = "data=2,stage=2,tensor=2",
       .microbatches = 4,
       .pipeline = "zb-h1",
       .shard = "parameters"},
      {.mesh = "data=2,stage=2,tensor=2",
       .microbatches = 4,
       .recompute = "full",
       .shard = "parameters"},
      {.mesh = "data=2,stage=2",
       .microbatches = 4,
       .pipeline = "interleaved",
       .chunks = 2,
       .shard = "parameters"},
      {.mesh = "data=2,stage=2", .microbatches = 4, .pipeline = "gpipe", .shard = "parameters"},
      {.mesh = "data=2,shard=2,stage=2", .microbatches = 2, .shard = "parameters"},
  };
  return all;
}

const test::MeshTraining& expected() {
  static const test::MeshTraining one = train_on_mesh("one_device", {"data=8,tensor=2", 1});
  return one;
}

/// Figures are sums over a replica's microbatches, then over replicas: their last digits differ.
void expect_same(const test::MeshTraining& training, const test::MeshTraining& other) {
  EXPECT_EQ(training.weights, other.weights);
  EXPECT_THAT(training.figures, ::testing::Pointwise(::testing::DoubleNear(1e-12), other.figures));
}

class MeshFit : public ::testing::TestWithParam<MeshCase> {};

TEST_P(MeshFit, TrainsTheBitsOfOneDevice) {
  expect_same(train_on_mesh("mirrored", GetParam()), expected());
}

INSTANTIATE_TEST_SUITE_P(Threads, MeshFit, ::testing::ValuesIn(cases()), [](const auto& info) {
  std::string name = info.param.word();
  std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
  return name;
});

TEST(MeshFitInTurn, IsTheSameHoweverPartsAreDealt) {
  for (const MeshCase& one : {MeshCase{"data=4,stage=2,tensor=2", 2}, MeshCase{"data=1,stage=3", 8},
                              MeshCase{"data=2,tensor=2", 4, "1f1b", 0, "full"}})
    expect_same(train_on_mesh("one_device", one), expected());
}

// Without blocks and microbatches it is what every other strategy trains.
TEST(MeshFitPlain, IsThatOfReplicas) {
  const auto plain = [](const MeshCase& one, const std::string& kind) {
    return train_on_mesh(kind, one).weights;
  };
  const std::string replicas = plain({"", 1, "1f1b", 0, "none", 1}, "one_device");
  const std::string mirrored = plain({"data=4", 1, "1f1b", 0, "none", 1}, "mirrored");
  EXPECT_EQ(plain({"stage=2", 1, "1f1b", 0, "none", 1}, "mirrored"), replicas);
  EXPECT_EQ(plain({"data=2,stage=2", 2, "1f1b", 0, "none", 1}, "mirrored"), mirrored);
  EXPECT_EQ(plain({"data=1", 4, "1f1b", 0, "none", 1}, "mirrored"), mirrored);
  EXPECT_EQ(plain({"data=4", 1, "1f1b", 0, "full", 1}, "mirrored"), mirrored);
  EXPECT_EQ(plain({"", 1, "1f1b", 0, "blocks", 1}, "one_device"), replicas);
}

TEST(MeshFitUntied, TrainsTheBitsOfOneDevice) {
  const nn::Graph graph = test::small_gpt(/*tied=*/false, /*dropout=*/0, /*layers=*/7);
  const auto one = train_on_mesh("one_device", {"tensor=2", 4}, graph);
  expect_same(train_on_mesh("mirrored", {"stage=3", 4}, graph), one);
  expect_same(train_on_mesh("mirrored", {"stage=3,tensor=2", 4, "zb-h1"}, graph), one);
}

// Also where a whole stage is frozen.
TEST(MeshFitFrozen, TrainsTheBitsOfOneDevice) {
  const nn::Graph graph = test::frozen_gpt();
  const auto one = train_on_mesh("one_device", {"data=8,tensor=2", 1}, graph);
  EXPECT_NE(one.weights, expected().weights);
  const std::vector<std::string> cut{"transformer.h.1.ln_1"};
  for (const MeshCase& other : std::vector<MeshCase>{
           {"data=4,tensor=2", 2},
           {"stage=2", 8, "gpipe", 0, "none", 2, cut},
           {"stage=4", 8, "zb-h1"},
           {"data=2,stage=2,tensor=2", 4, "interleaved", 2, "full"},
           {.mesh = "data=8", .shard = "parameters"},
           {.mesh = "data=2,stage=2", .microbatches = 4, .cut = cut, .shard = "gradients"},
           {.mesh = "data=2,stage=2", .microbatches = 4, .cut = cut, .shard = "parameters"}}) {
    SCOPED_TRACE(other.word());
    expect_same(train_on_mesh("mirrored", other, graph), one);
  }
}

std::map<std::string, at::Tensor> weights_in(const std::string& file, const nn::Graph& graph) {
  Model one(Strategy({.kind = "one_device"}), [graph] { return graph; });
  one.load(file);
  std::map<std::string, at::Tensor> weights;
  for (const auto& parameter : one.modules().module(0)->named_parameters())
    weights[parameter.key()] = parameter.value().detach().clone();
  return weights;
}

// By a step that moves weights so far that their rounding does not count.
TEST(MeshGradients, AreThoseOfAPlainGpt) {
  const models::GptOptions options{.vocabulary = test::kVocabulary,
                                   .context = test::kContext,
                                   .layers = 3,
                                   .heads = 4,
                                   .features = 16};
  const nn::Graph graph = models::gpt(options);
  constexpr double kRate = 1024;
  torch::manual_seed(3);
  const auto x = torch::randint(0, test::kVocabulary, {16, test::kContext}, at::kLong);
  const auto y = torch::randint(0, test::kVocabulary, {16, test::kContext}, at::kLong);
  for (const MeshCase& one : {MeshCase{"data=2,stage=2,tensor=2", 4, "zb-h1", 0, "blocks"},
                              MeshCase{"stage=3", 8, "1f1b"}, MeshCase{"tensor=2", 8}}) {
    const test::TempFolder folder;
    const std::string before = folder / "before.safetensors", after = folder / "after.safetensors";
    Model model = test::make_model(Strategy(test::options_of("mirrored", one)), one, graph);
    model.compile({.optimizer = optim::sgd({.learning_rate = kRate}),
                   .loss = losses::sparse_categorical_crossentropy({.from_logits = true})});
    model.save(before);
    model.fit(data::from_tensors({x, y}).batch(16),
              {.verbose = 0, .microbatches = one.microbatches});
    model.save(after);
    const auto old = weights_in(before, graph), moved = weights_in(after, graph);
    test::PlainGpt plain(old, options);
    torch::cross_entropy_loss(plain.logits(x).flatten(0, 1), y.flatten()).backward();
    for (const auto& [name, weight] : old) {
      const at::Tensor& expected = plain.gradient(name);
      const at::Tensor got = (weight - moved.at(name)) / kRate;
      EXPECT_LT((got - expected).norm().item<double>(), 1e-5 * expected.norm().item<double>())
          << name << " of " << one.word();
    }
  }
}

/// arguments: a case in a word.
RANK_PROGRAM(train_on_mesh_workers) {
  rank.mark("weights " + train_on_mesh("multi_worker", MeshCase::from(rank.arguments[0])).weights);
}

TEST(MeshFitProcesses, TrainTheBitsOfOneDevice) {
  for (const auto& [workers, one] : std::vector<std::pair<int, MeshCase>>{
           {8, {"data=2,stage=2,tensor=2", 4, "zb-h1"}},
           {4, {"stage=2,tensor=2", 8, "zb-v"}},
           {2, {"stage=2", 8}},
           {4, {"stage=4", 8, "interleaved", 2, "full"}},
           {4, {.mesh = "data=2,shard=2,stage=2", .microbatches = 2, .shard = "gradients"}},
           {4, {.mesh = "data=2,stage=2", .microbatches = 4, .shard = "parameters"}},
           {4,
            {.mesh = "data=2,stage=2,tensor=2",
             .microbatches = 4,
             .pipeline = "zb-h1",
             .recompute = "full",
             .shard = "parameters"}}}) {
    const auto out = test::run_workers(workers, "train_on_mesh_workers", {one.word()});
    ASSERT_EQ(out.exit_code, 0) << out.log;
    EXPECT_THAT(test::lines_after(out.log, "weights "),
                ::testing::AllOf(::testing::SizeIs(workers), ::testing::Each(expected().weights)))
        << one.word() << out.log;
  }
}

TEST(MeshFitTwoHosts, TrainTheBitsOfOneDevice) {
  if (const std::string why = test::TestHosts::why_not(); !why.empty()) GTEST_SKIP() << why;
  const test::TestHosts hosts(2);
  for (const MeshCase& one :
       {MeshCase{"data=2,stage=2", 4}, MeshCase{"stage=4", 8, "zb-h1"},
        MeshCase{"stage=2,tensor=2", 8},
        MeshCase{.mesh = "shard=4", .microbatches = 2, .shard = "gradients"},
        MeshCase{.mesh = "data=2,stage=2", .microbatches = 4, .shard = "state"},
        MeshCase{.mesh = "data=2,tensor=2", .microbatches = 4, .shard = "parameters"}})
    for (const auto& node : test::run_nodes(hosts, 2, "train_on_mesh_workers", {one.word()})) {
      ASSERT_EQ(node.exit_code, 0) << node.log;
      EXPECT_THAT(test::lines_after(node.log, "weights "),
                  ::testing::AllOf(::testing::SizeIs(2), ::testing::Each(expected().weights)))
          << one.word();
    }
}

// Layers of LibTorch's own.
std::string train_sequential(const std::string& kind, const MeshCase& one,
                             bool input_of_data = false) {
  torch::manual_seed(5);
  const auto data =
      data::from_tensors({torch::rand({32, 12}), torch::randint(0, 4, {32}, at::kLong)})
          .shuffle()
          .batch(16);
  Model model(Strategy(test::options_of(kind, one)),
              [] {
                using namespace torch::nn;
                return Sequential(Linear(12, 20), ReLU(), BatchNorm1d(20), Linear(20, 16), Tanh(),
                                  Linear(16, 16), ReLU(), Linear(16, 4));
              },
              {.cut = parallel::before(one.cut),
               .schedule = parallel::schedule_choice(one.pipeline, one.chunks),
               .input = input_of_data ? std::nullopt : std::optional(parallel::sample_of(data))});
  model.compile({.optimizer = optim::adam({.learning_rate = 0.01}),
                 .loss = losses::sparse_categorical_crossentropy()});
  model.fit(data,
            {.epochs = 2, .validation = data, .verbose = 0, .microbatches = one.microbatches});
  return model.weights_sha256();
}

TEST(MeshSequential, TrainsTheBitsOfOneRank) {
  const std::string plain = train_sequential("one_device", {"", 4, "1f1b", 0, "none", 1});
  for (const MeshCase& one : std::vector<MeshCase>{{"stage=2", 4, "1f1b", 0, "none", 1},
                                                   {"stage=3", 4, "zb-h1", 0, "none", 1},
                                                   {"stage=2", 4, "interleaved", 2, "none", 1},
                                                   {"stage=2", 4, "gpipe", 0, "none", 1, {"3"}}})
    EXPECT_EQ(train_sequential("mirrored", one), plain) << one.word();
  EXPECT_EQ(train_sequential("mirrored", {"data=2,stage=2", 2, "1f1b", 0, "none", 1}).size(), 64);
}

/// compile() waits for it, and so do copies.
TEST(MeshSequential, WhatGoesInIsTakenFromTheData) {
  const MeshCase one{"stage=2", 4, "1f1b", 0, "none", 1};
  EXPECT_EQ(train_sequential("mirrored", one, /*input_of_data=*/true),
            train_sequential("mirrored", one));
  Model model(Strategy(test::options_of("mirrored", one)), [] {
    return torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::Linear(4, 2));
  });
  model.compile({.loss = losses::mean_squared_error()});
  const Model copy = model;
  EXPECT_THAT(message_of<UsageError>([&] { copy.modules(); }), HasSubstr("sample_of(dataset)"));
  const auto data = data::from_tensors({torch::rand({8, 3}), torch::rand({8, 2})}).batch(4);
  EXPECT_GT(model.evaluate(data).loss, 0);
  EXPECT_EQ(copy.modules().size(), 2);
}

TEST(MeshSequential, ASampleIsARowOfTheFirstColumn) {
  const auto tokens = data::from_tensors({torch::zeros({4, 7}, at::kLong), torch::zeros({4})});
  EXPECT_EQ(parallel::sample_of(tokens.batch(2)), (parallel::Border{{7}, DType::int64}));
  const auto texts =
      tokens.map([](data::Sample sample) { return sample; },
                 {.columns = {{.name = "x", .dtype = DType::int64, .shape = {data::kAnySize}}}});
  EXPECT_THAT(message_of<UsageError>([&] { parallel::sample_of(texts); }),
              HasSubstr("x int64 [?]: its rows differ in shape"));
}

TEST(MeshSequential, RefusesWhatDependsOnTheLayout) {
  const MeshCase one{"stage=2", 4, "1f1b", 0, "none", 1};
  const auto refusal = [&](const parallel::ModelLayout& layout) {
    return message_of<UsageError>([&] {
      Model(
          Strategy(test::options_of("mirrored", one)),
          [] {
            return torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::Dropout(0.5),
                                         torch::nn::Linear(4, 4));
          },
          layout);
    });
  };
  for (const auto& input :
       {std::optional<parallel::Border>(), std::optional(parallel::Border{{4}})})
    EXPECT_THAT(refusal({.input = input}), HasSubstr("draws random numbers outside of tutti::nn"));
}

TEST(MeshPredict, GivesWhatOneDeviceGives) {
  const auto data = test::small_text();
  const auto predicted = [&](const std::string& kind, const MeshCase& one) {
    Model model = test::make_model(Strategy(test::options_of(kind, one)), one, test::small_gpt());
    return std::pair{model.predict(data),
                     model.predict(torch::zeros({3, test::kContext}, at::kLong))};
  };
  const auto [all, few] = predicted("one_device", {"tensor=2"});
  for (const MeshCase& one : {MeshCase{"stage=3"}, MeshCase{"stage=2,tensor=2"}}) {
    const auto [a, b] = predicted("mirrored", one);
    EXPECT_TRUE(at::equal(a, all)) << one.word();
    EXPECT_TRUE(at::equal(b, few)) << one.word();
  }
}

TEST(MeshModel, RefusesWhatDoesNotFit) {
  const auto refusal = [](const MeshCase& one, const parallel::ModelLayout& layout,
                          const nn::Graph& graph = test::small_gpt()) {
    return message_of<UsageError>(
        [&] { Model(Strategy(test::options_of("mirrored", one)), [&] { return graph; }, layout); });
  };
  EXPECT_THAT(refusal({"stage=2"}, {.cut = parallel::before({"transformer.h.1.ln1"})}),
              HasSubstr("transformer.h.1.ln_1"));
  EXPECT_THAT(refusal({"stage=3"}, {.cut = parallel::before({"transformer.h.1.ln_1"})}),
              HasSubstr("make 2 stages"));
  EXPECT_THAT(refusal({"tensor=2"}, {.plan = {{"*.wtf", parallel::rows()}}}), HasSubstr("wte"));
  const auto six_heads = models::gpt({.vocabulary = 8, .context = 4, .heads = 6, .features = 12});
  EXPECT_THAT(refusal({"tensor=4", 1, "", 0, "", 4},
                      {.plan = {{"*.c_attn", parallel::columns()},
                                {"*.attention", parallel::heads()},
                                {"*.attn.c_proj", parallel::rows()}}},
                      six_heads),
              HasSubstr("6 heads on tensor = 4 (possible: 1, 2, 3, 6)"));
  EXPECT_THAT(message_of<UsageError>([&] {
                Model(Strategy(test::options_of("mirrored", {"stage=2"})),
                      [] { return torch::nn::Linear(2, 2); });
              }),
              HasSubstr("return an nn::Graph"));
  EXPECT_THAT(message_of<UsageError>([&] {
                const MeshCase one{"stage=3", 4, "interleaved", 2};
                Model model = test::make_model(Strategy(test::options_of("mirrored", one)), one,
                                               test::small_gpt());
                model.fit(test::small_text(), {.verbose = 0, .microbatches = 4});
              }),
              HasSubstr("microbatches"));
}

}  // namespace
}  // namespace tutti
