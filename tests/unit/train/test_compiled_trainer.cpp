#include <torch/torch.h>

#include <limits>

#include "tutti/data/quickdraw.h"
#include "tutti/data/safetensors.h"
#include "tutti/models/gpt.h"
#include "tutti/models/models.h"
#include "tutti/nn/graph_module.h"
#include "tutti/nn/layers.h"
#include "tutti/nn/sample_context.h"
#include "tutti/train/lowered/compiled_trainer.h"
#include "tutti/train/model/model.h"

#include "tests/support/expect.h"
#include "tests/support/hlo_evaluate.h"
#include "tests/support/plain_arrays.h"
#include "tests/support/temp_folder.h"

namespace tutti::compiled {
namespace {

const Millis kPatience{120'000};

std::map<std::string, Array> values_of(const nn::GraphModule& module) {
  std::map<std::string, Array> values;
  for (const auto& named : module.named_parameters())
    values[named.key()] = plain_array(named.value());
  for (const auto& named : module.named_buffers()) values[named.key()] = plain_array(named.value());
  return values;
}

/// Without statistics of a part, so that any number of replicas gives the same.
nn::Graph net_with_dropout() {
  const auto input = nn::input({12});
  auto x = nn::dropout(0.3)(nn::tanh()(nn::linear(8).named("hidden")(input)));
  return {input, nn::linear(3).named("dense")(x)};
}

struct Rows {
  at::Tensor x, y;
  CompiledPart part(int64_t begin, int64_t end) const {
    return {{plain_array(x.slice(0, begin, end))}, plain_array(y.slice(0, begin, end))};
  }
};

Rows rows_of(int64_t count) { return {at::randn({count, 12}), at::randint(3, {count})}; }

CompiledTrainer trainer_of(const nn::Graph& graph, CompiledOptions options = {}) {
  return {graph, losses::sparse_categorical_crossentropy(), optim::adam({.learning_rate = 0.01}),
          cpu_client(), options};
}

void expect_values_near(const CompiledTrainer& got, const CompiledTrainer& expected, double apart) {
  const auto values = got.values();
  for (const auto& [name, array] : expected.values())
    EXPECT_LE((torch_tensor(values.at(name)) - torch_tensor(array)).abs().max().item<double>(),
              apart)
        << name;
}

using CompiledTraining = Evaluated;

TEST_F(CompiledTraining, OfTwoReplicasIsThatOfOneWhateverTheirRowsAre) {
  const nn::Graph graph = net_with_dropout();
  torch::manual_seed(4);
  const auto values = values_of(*nn::make_module(graph));
  CompiledTrainer one = trainer_of(graph, {.seed = 9}),
                  two = trainer_of(graph, {.replicas = 2, .seed = 9});
  one.load(values);
  two.load(values);
  const std::vector<std::pair<int64_t, int64_t>> batches{{6, 3}, {7, 4}, {5, 5}, {4, 0}};
  for (const auto& [rows, first] : batches) {
    const Rows batch = rows_of(rows);
    const auto expected = one.step({batch.part(0, rows)}, 0.01);
    const auto got = two.step({batch.part(0, first), batch.part(first, rows)}, 0.01);
    EXPECT_NEAR(got.loss(Deadline(kPatience)), expected.loss(Deadline(kPatience)), 1e-6);
  }
  EXPECT_EQ(two.updates(), 4);
  expect_values_near(two, one, 1e-6);
}

TEST_F(CompiledTraining, GoesOnFromValuesThatWereRead) {
  const nn::Graph graph = net_with_dropout();
  torch::manual_seed(4);
  CompiledTrainer whole = trainer_of(graph, {.replicas = 2, .seed = 9});
  whole.load(values_of(*nn::make_module(graph)));
  std::vector<Rows> batches;
  for (int i = 0; i < 4; ++i) batches.push_back(rows_of(6));
  const auto step = [&](CompiledTrainer& trainer, int i) {
    const Rows& batch = batches[static_cast<size_t>(i)];
    trainer.step({batch.part(0, 3), batch.part(3, 6)}, 0.01).loss(Deadline(kPatience));
  };
  step(whole, 0);
  step(whole, 1);
  CompiledTrainer resumed = trainer_of(graph, {.replicas = 2, .seed = 9});
  resumed.load(whole.values());
  resumed.set_updates(whole.updates());
  for (const int i : {2, 3}) {
    step(whole, i);
    step(resumed, i);
  }
  expect_values_near(resumed, whole, 0);
}

/// Rows without a label that counts take no part in the mean.
TEST_F(CompiledTraining, LabelsThatDoNotCountAreLeftOutOfTheMean) {
  const nn::Graph graph = net_with_dropout();
  const Loss loss = losses::sparse_categorical_crossentropy({.ignore_label = 2});
  torch::manual_seed(4);
  const auto values = values_of(*nn::make_module(graph));
  const at::Tensor x = at::randn({6, 12}), y = at::tensor({0, 2, 1, 2, 0, 2}, at::kLong);
  CompiledTrainer all(graph, loss, optim::sgd(), cpu_client(), {.seed = 9});
  all.load(values);
  const double got = all.step({{{plain_array(x)}, plain_array(y)}}, 0.1).loss(Deadline(kPatience));
  const auto module = nn::make_module(graph);
  for (auto& named : module->named_parameters())
    named.value().set_data(torch_tensor(values.at(named.key())));
  const nn::SampleContext here({.seed = 9});
  const at::Tensor each = loss.kernel().per_sample(module->forward(x), y);
  EXPECT_NEAR(got, each.sum().item<double>() / 3, 1e-5);
  (each.sum() / 3).backward();
  const auto after = all.values();
  for (const auto& named : module->named_parameters()) {
    const at::Tensor moved = named.value() - 0.1 * named.value().grad();
    EXPECT_LE((torch_tensor(after.at(named.key())) - moved).abs().max().item<double>(), 1e-6)
        << named.key();
  }
}

TEST_F(CompiledTraining, StepsOverlapWithWhatTheHostDoes) {
  const nn::Graph graph = net_with_dropout();
  CompiledTrainer trainer = trainer_of(graph, {.outputs = true});
  torch::manual_seed(4);
  trainer.load(values_of(*nn::make_module(graph)));
  const Rows batch = rows_of(6);
  std::vector<CompiledResult> results;
  for (int i = 0; i < 5; ++i) results.push_back(trainer.step({batch.part(0, 6)}, 0.05));
  EXPECT_LT(results.back().loss(Deadline(kPatience)), results.front().loss(Deadline(kPatience)));
  EXPECT_EQ(results[2].outputs(Deadline(kPatience))[0].shape(), (std::vector<int64_t>{6, 3}));
}

TEST_F(CompiledTraining, PredictsAsTheModuleDoes) {
  const nn::Graph graph = models::doodle_cnn({.classes = 4});
  torch::manual_seed(4);
  const auto module = nn::make_module(graph);
  CompiledTrainer trainer = trainer_of(graph);
  trainer.load(values_of(*module));
  module->eval();
  for (const int64_t rows : {3, 2}) {
    const at::Tensor x = at::rand({rows, 1, 28, 28});
    const auto outputs = trainer.predict({plain_array(x)});
    EXPECT_LE((torch_tensor(outputs[0]) - module->forward(x)).abs().max().item<double>(), 1e-5);
  }
}

TEST_F(CompiledTraining, InBfloat16IsNearThatInFloat32) {
  const nn::Graph graph = models::doodle_cnn({.classes = 4});
  torch::manual_seed(4);
  const auto values = values_of(*nn::make_module(graph));
  const CompiledPart part{{plain_array(at::rand({8, 1, 28, 28}))},
                          plain_array(at::randint(4, {8}))};
  std::vector<double> losses;
  for (const DType product : {DType::float32, DType::bfloat16}) {
    CompiledTrainer trainer = trainer_of(graph, {.product = product});
    trainer.load(values);
    losses.push_back(trainer.step({part}, 0.001).loss(Deadline(kPatience)));
    losses.push_back(trainer.step({part}, 0.001).loss(Deadline(kPatience)));
  }
  EXPECT_NEAR(losses[2], losses[0], 0.03);
  EXPECT_NEAR(losses[3], losses[1], 0.05);
  EXPECT_NE(losses[2], losses[0]) << "products were in float32";
}

nn::Graph net_with_norm(bool synchronized = false) {
  const auto input = nn::input({2, 3, 3});
  const auto x = nn::batch_norm2d({.synchronized = synchronized}).named("norm")(input);
  return {input, nn::linear(3).named("dense")(nn::flatten()(nn::relu()(x)))};
}

CompiledPart images(const at::Tensor& x, const at::Tensor& y, int64_t begin, int64_t end) {
  return {{plain_array(x.slice(0, begin, end))}, plain_array(y.slice(0, begin, end))};
}

/// A replica without rows gives nothing to sums, and keeps its statistics.
TEST_F(CompiledTraining, AReplicaWithoutRowsChangesNothing) {
  const nn::Graph graph = net_with_norm();
  torch::manual_seed(4);
  const auto values = values_of(*nn::make_module(graph));
  const at::Tensor x = at::randn({4, 2, 3, 3}), y = at::randint(3, {4});
  CompiledTrainer one = trainer_of(graph), two = trainer_of(graph, {.replicas = 2});
  one.load(values);
  two.load(values);
  const double expected = one.step({images(x, y, 0, 4)}, 0.01).loss(Deadline(kPatience));
  EXPECT_NEAR(two.step({images(x, y, 0, 4), images(x, y, 0, 0)}, 0.01).loss(Deadline(kPatience)),
              expected, 1e-6);
  for (const auto& [name, array] : one.values()) {
    at::Tensor wanted = torch_tensor(array).to(at::kFloat);
    const at::Tensor made = torch_tensor(two.values().at(name)).to(at::kFloat);
    // The mean over replicas, of which the second has its first statistics.
    if (name.starts_with("norm.running")) wanted = (wanted + torch_tensor(values.at(name))) / 2;
    EXPECT_LE((made - wanted).abs().max().item<double>(), 1e-6) << name;
  }
}

TEST_F(CompiledTraining, StatisticsOfAllReplicasAreThoseOfOne) {
  const nn::Graph graph = net_with_norm(/*synchronized=*/true);
  torch::manual_seed(4);
  const auto values = values_of(*nn::make_module(net_with_norm()));
  const at::Tensor x = at::randn({7, 2, 3, 3}) + 1, y = at::randint(3, {7});
  CompiledTrainer one = trainer_of(graph), two = trainer_of(graph, {.replicas = 2});
  one.load(values);
  two.load(values);
  for (int step = 0; step < 2; ++step)
    EXPECT_NEAR(two.step({images(x, y, 0, 4), images(x, y, 4, 7)}, 0.01).loss(Deadline(kPatience)),
                one.step({images(x, y, 0, 7)}, 0.01).loss(Deadline(kPatience)), 1e-5);
  expect_values_near(two, one, 1e-5);
}

/// Whatever a row loses that only fills a part up: here the logarithm of 0.
TEST_F(CompiledTraining, RowsThatFillAPartUpLoseNothing) {
  const auto input = nn::input({12});
  const nn::Graph graph(input, nn::linear(3, {.bias = false}).named("dense")(input));
  CompiledTrainer trainer(graph, losses::poisson(), optim::sgd(), cpu_client(), {.replicas = 2});
  trainer.load({{"dense.weight", plain_array(at::full({3, 12}, 0.1))}});
  const at::Tensor x = at::rand({3, 12}) + 0.1, y = at::rand({3, 3});
  const auto part = [&](int64_t begin, int64_t end) {
    return CompiledPart{{plain_array(x.slice(0, begin, end))}, plain_array(y.slice(0, begin, end))};
  };
  EXPECT_TRUE(std::isfinite(trainer.step({part(0, 2), part(2, 3)}, 0.1).loss(Deadline(kPatience))));
  for (const auto& [name, array] : trainer.values())
    EXPECT_TRUE(torch_tensor(array).isfinite().all().item<bool>()) << name;
}

TEST_F(CompiledTraining, StatesBeginWhereTheRuleSays) {
  const nn::Graph graph = net_with_dropout();
  const CompiledTrainer trainer(graph, losses::sparse_categorical_crossentropy(),
                                optim::adagrad({.initial_accumulator = 0.5}), cpu_client());
  EXPECT_EQ(trainer.values().at("dense.bias.sum").as<float>()[0], 0.5F);
  EXPECT_EQ(trainer.values().at("dense.bias").as<float>()[0], 0.F);
}

TEST_F(CompiledTraining, LabelsAndTokensOutOfRangeAreNamedWithTheirRow) {
  CompiledTrainer trainer = trainer_of(net_with_dropout());
  const Rows batch = rows_of(4);
  const CompiledPart bad{{plain_array(batch.x)}, plain_array(at::tensor({0, 1, 7, 2}, at::kLong))};
  EXPECT_THAT(message_of<DataError>([&] { trainer.step({bad}, 0.1); }), HasSubstr("label 7"));
  EXPECT_EQ(trainer.updates(), 0);

  const auto tokens = nn::input({2}, DType::int64);
  const nn::Graph text(tokens, nn::linear(3)(nn::flatten()(nn::embedding(5, 4)(tokens))));
  CompiledTrainer reader = trainer_of(text);
  const Array wrong = plain_array(at::tensor({1, 4, 5, 0}, at::kLong).reshape({2, 2}));
  EXPECT_THAT(message_of<DataError>([&] { reader.predict({wrong}); }), HasSubstr("token 5"));
  EXPECT_THAT(message_of<DataError>(
                  [&] { reader.step({{{wrong}, plain_array(at::zeros({2}, at::kLong))}}, 0.1); }),
              HasSubstr("token 5"));
}

TEST_F(CompiledTraining, StepsOutOfRangeAreNamedWithTheirRow) {
  const auto x = nn::input({4, 2}), count = nn::input({1}, DType::int64);
  const nn::Graph graph({{"x", x}, {"count", count}},
                        {{"y", nn::linear(3)(nn::lstm(2).named("strokes")(x, count))}});
  CompiledTrainer trainer = trainer_of(graph);
  const std::vector<Array> wrong{plain_array(at::zeros({2, 4, 2})),
                                 plain_array(at::tensor({4, 500}, at::kLong).reshape({2, 1}))};
  EXPECT_THAT(message_of<DataError>([&] { trainer.predict(wrong); }),
              HasSubstr("lstm \"strokes\": row 1 of the batch has 500 steps"));
  EXPECT_THAT(message_of<DataError>(
                  [&] { trainer.step({{wrong, plain_array(at::zeros({2}, at::kLong))}}, 0.1); }),
              HasSubstr("row 1 of the batch has 500 steps"));
  EXPECT_EQ(trainer.updates(), 0);
}

/// By one run of a program, at rates of their own, also where a part has fewer rows.
TEST_F(CompiledTraining, SeveralStepsOfARunAreThoseOfOneEach) {
  const nn::Graph graph = net_with_dropout();
  torch::manual_seed(4);
  const auto values = values_of(*nn::make_module(graph));
  const CompiledOptions options{.replicas = 2, .seed = 9, .outputs = true};
  CompiledTrainer each = trainer_of(graph, options), together = trainer_of(graph, options);
  each.load(values);
  together.load(values);
  const std::vector<double> rates{0.01, 0.03, 0.002};
  std::vector<std::vector<CompiledPart>> steps;
  for (const int64_t rows : {6, 5, 3}) {
    const Rows batch = rows_of(rows);
    steps.push_back({batch.part(0, 3), batch.part(3, rows)});
  }
  const auto got = together.steps(steps, rates);
  for (size_t k = 0; k < steps.size(); ++k) {
    const CompiledResult expected = each.step(steps[k], rates[k]);
    EXPECT_NEAR(got[k].loss(Deadline(kPatience)), expected.loss(Deadline(kPatience)), 1e-6);
    const auto outputs = got[k].outputs(Deadline(kPatience));
    const auto wanted = expected.outputs(Deadline(kPatience));
    for (size_t replica = 0; replica < 2; ++replica) {
      ASSERT_EQ(outputs[replica].shape(), wanted[replica].shape());
      const at::Tensor off = torch_tensor(outputs[replica]) - torch_tensor(wanted[replica]);
      EXPECT_LE(off.numel() == 0 ? 0 : off.abs().max().item<double>(), 1e-6);
    }
  }
  EXPECT_EQ(together.updates(), 3);
  expect_values_near(together, each, 2e-6);
  EXPECT_THAT(message_of<UsageError>([&] { together.steps(steps, {0.1}); }),
              HasSubstr("3 steps, 1 learning rates"));
}

TEST_F(CompiledTraining, StepsAfterABadLossAreLeftOutUntilTheyAreTakenBack) {
  const nn::Graph graph = net_with_dropout();
  torch::manual_seed(4);
  const auto values = values_of(*nn::make_module(graph));
  CompiledTrainer clean = trainer_of(graph, {.replicas = 2, .seed = 9}),
                  bad = trainer_of(graph, {.replicas = 2, .seed = 9, .leaves_out_bad = true});
  clean.load(values);
  bad.load(values);
  const Rows good = rows_of(6);
  Rows broken = rows_of(6);
  broken.x[4][2] = std::numeric_limits<float>::quiet_NaN();
  const auto step = [](CompiledTrainer& trainer, const Rows& rows) {
    return trainer.step({rows.part(0, 3), rows.part(3, 6)}, 0.01).loss(Deadline(kPatience));
  };
  step(clean, good);
  step(bad, good);
  EXPECT_EQ(bad.take_back_left_out(), 0);
  EXPECT_FALSE(std::isfinite(step(bad, broken)));
  EXPECT_TRUE(std::isfinite(step(bad, good))) << "left out all the same";
  expect_values_near(bad, clean, 1e-6);
  EXPECT_EQ(bad.updates(), 3);
  EXPECT_EQ(bad.made().left_out, 2);
  EXPECT_EQ(bad.made().updates, 1) << "to look changes nothing";
  EXPECT_EQ(bad.take_back_left_out(), 2);
  EXPECT_EQ(bad.updates(), 1);
  step(clean, good);
  step(bad, good);
  expect_values_near(bad, clean, 1e-6);
}

/// As two rows of weight 1, and none of weight 0.
TEST_F(CompiledTraining, RowsCountByTheirWeights) {
  const auto input = nn::input({12});
  const nn::Graph graph(input, nn::linear(3).named("dense")(input));
  torch::manual_seed(4);
  const auto values = values_of(*nn::make_module(graph));
  const Rows two = rows_of(2);
  const Rows three{at::cat({two.x, at::randn({1, 12})}), at::cat({two.y, two.y.slice(0, 0, 1)})};
  const Rows doubled{at::cat({two.x.slice(0, 0, 1), two.x}),
                     at::cat({two.y.slice(0, 0, 1), two.y})};
  CompiledTrainer weighted = trainer_of(graph), plain = trainer_of(graph);
  weighted.load(values);
  plain.load(values);
  CompiledPart part = three.part(0, 3);
  part.weights = plain_array(at::tensor({2.F, 1.F, 0.F}));
  EXPECT_NEAR(weighted.step({part}, 0.1).loss(Deadline(kPatience)),
              plain.step({doubled.part(0, 3)}, 0.1).loss(Deadline(kPatience)), 1e-6);
  expect_values_near(weighted, plain, 1e-6);
  part.weights = plain_array(at::ones({2}));
  EXPECT_THAT(message_of<UsageError>([&] { weighted.step({part}, 0.1); }),
              HasSubstr("weights are float32 [2], expected float32 [3]"));
}

TEST_F(CompiledTraining, WhatDoesNotFitIsNamed) {
  const nn::Graph graph = net_with_dropout();
  CompiledTrainer trainer = trainer_of(graph, {.replicas = 2});
  EXPECT_THAT(message_of<UsageError>([&] { trainer.load({{"nobody", Array()}}); }),
              HasSubstr("no parameter, state or buffer \"nobody\""));
  EXPECT_THAT(
      message_of<UsageError>([&] { trainer.load({{"dense.bias", plain_array(at::zeros({4}))}}); }),
      AllOf(HasSubstr("\"dense.bias\" is float32 [4]"), HasSubstr("tensor<3xf32>")));
  const Rows batch = rows_of(4);
  EXPECT_THAT(message_of<UsageError>([&] { trainer.step({batch.part(0, 4)}, 0.1); }),
              HasSubstr("got 1 parts for 2 replicas"));
  EXPECT_THAT(
      message_of<UsageError>([&] { trainer.step({batch.part(0, 0), batch.part(0, 0)}, 0.1); }),
      HasSubstr("without rows"));
  const Rows wide{at::randn({4, 13}), batch.y};
  EXPECT_THAT(
      message_of<UsageError>([&] { trainer.step({wide.part(0, 2), wide.part(2, 4)}, 0.1); }),
      HasSubstr("input \"input\" is float32 [2, 13]"));
  const CompiledPart uneven{{plain_array(batch.x)}, plain_array(batch.y.slice(0, 0, 3))};
  EXPECT_THAT(message_of<UsageError>([&] { trainer.step({uneven, uneven}, 0.1); }),
              HasSubstr("4 rows of inputs, 3 of targets"));
  const CompiledPart scalar{{plain_array(at::zeros({}))}, plain_array(batch.y)};
  EXPECT_THAT(message_of<UsageError>([&] { trainer.step({scalar, scalar}, 0.1); }),
              HasSubstr("input \"input\" is float32 []"));
  EXPECT_THAT(message_of<UsageError>([&] { trainer.set_updates(-1); }), HasSubstr("-1 updates"));
  EXPECT_THAT(message_of<UsageError>([&] { trainer_of(graph, {.product = DType::int32}); }),
              HasSubstr("products of int32"));
  EXPECT_THAT(message_of<UsageError>([&] {
                CompiledTrainer(graph,
                                losses::sparse_categorical_crossentropy({.class_weights = {1, 2}}),
                                optim::sgd(), cpu_client());
              }),
              HasSubstr("weights of 2 classes, the model gives 3"));
  EXPECT_THAT(message_of<UsageError>([&] { trainer_of(graph, {.replicas = 3}); }),
              AllOf(HasSubstr("3 replicas on the 2 devices"), HasSubstr("cpu")));
}

std::map<std::string, Array> arrays_of(const std::filesystem::path& weights) {
  std::map<std::string, Array> arrays;
  for (const auto& [name, array] : data::read_safetensors(weights).arrays)
    arrays.emplace(name, array);
  return arrays;
}

/// Doodles, beside our own kernels on two replicas in the same order.
class CompiledDoodles : public Evaluated, public ::testing::WithParamInterface<std::string> {
 protected:
  static data::Dataset doodles(const std::string& split) {
    return data::quickdraw(TUTTI_SOURCE_DIR "/examples/data/quickdraw", {.split = split});
  }

  static double accuracy(CompiledTrainer& trainer) {
    const data::Epoch epoch = doodles("test").batch(100).epoch({});
    double right = 0;
    for (int64_t step = 0; step < epoch.num_batches(); ++step) {
      const data::Batch batch = epoch.batch(step);
      const at::Tensor outputs = torch_tensor(trainer.predict({batch.columns[0]})[0]);
      right += outputs.argmax(1).eq(torch_tensor(batch.columns[1])).sum().item<double>();
    }
    return right / static_cast<double>(epoch.num_samples());
  }
};

TEST_P(CompiledDoodles, LearnsWhatMirroredDoes) {
  constexpr int64_t kEpochs = 2;
  constexpr int kReplicas = 2;
  const nn::Graph graph = models::model_by_name(GetParam());
  const data::Dataset train = doodles("train").shuffle().batch(64);
  const optim::Rule rule = optim::adam({.learning_rate = 0.001});
  Model model(
      Strategy({.kind = "mirrored", .replicas = kReplicas, .threads_per_replica = 1, .seed = 5}),
      [&] { return graph; });
  model.compile({.optimizer = rule,
                 .loss = losses::sparse_categorical_crossentropy(),
                 .metrics = {metrics::accuracy()}});
  CompiledTrainer trainer(graph, losses::sparse_categorical_crossentropy(), rule, cpu_client(),
                          {.replicas = kReplicas, .seed = 5});
  const TempFolder folder;
  model.save(folder / "begun.safetensors");
  trainer.load(arrays_of(folder / "begun.safetensors"));

  for (int64_t e = 0; e < kEpochs; ++e) {
    const data::Epoch epoch = train.epoch({.epoch = e, .seed = 5});
    for (int64_t step = 0; step < epoch.num_batches(); ++step) {
      std::vector<CompiledPart> parts;
      for (int r = 0; r < kReplicas; ++r) {
        const data::Batch part =
            epoch.part(step, data::share(epoch.batch_size(step), kReplicas, r));
        parts.push_back({{part.columns[0]}, part.columns[1]});
      }
      const double loss = trainer.step(parts, 0.001).loss(Deadline(kPatience));
      const data::Batch whole = epoch.batch(step);
      const double expected =
          model.train_on_batch(torch_tensor(whole.columns[0]), torch_tensor(whole.columns[1])).loss;
      if (e == 0 && step < 20) {
        EXPECT_NEAR(loss, expected, 1e-4 * expected) << "step " << step;
      }
    }
  }
  const double ours = model.evaluate(doodles("test").batch(100)).at("accuracy");
  EXPECT_NEAR(accuracy(trainer), ours, 0.005);
  EXPECT_GT(ours, 0.5);
}

INSTANTIATE_TEST_SUITE_P(Nets, CompiledDoodles, ::testing::Values("mlp", "cnn"),
                         [](const auto& info) { return info.param; });

/// Networks of the zoo, small images: three steps beside LibTorch's modules.
class CompiledZoo : public Evaluated, public ::testing::WithParamInterface<std::string> {};

nn::Graph zoo_graph(const std::string& name) {
  if (name == "gpt")
    return models::gpt({.vocabulary = 11, .context = 8, .layers = 2, .heads = 2, .features = 16});
  return models::model_by_name(name, {.classes = 3, .width = 0.25});
}

TEST_P(CompiledZoo, TrainsThreeSteps) {
  constexpr double kRate = 0.01;
  constexpr double kApart = 0.02;  // batch norms of a pixel's six values make much of rounding
  const nn::Graph graph = zoo_graph(GetParam());
  const Loss loss = losses::sparse_categorical_crossentropy();
  torch::manual_seed(6);
  const auto module = nn::make_module(graph);
  CompiledTrainer trainer(graph, loss, optim::sgd({.learning_rate = kRate}), cpu_client());
  trainer.load(values_of(*module));
  std::vector<int64_t> shape = graph.input_shape();
  shape.insert(shape.begin(), 6);
  const bool text = GetParam() == "gpt";
  const at::Tensor x = text ? at::randint(11, shape) : at::rand(shape);
  const at::Tensor y = text ? at::randint(11, shape) : at::randint(3, {6});
  const auto step = [&] {
    return trainer.step({{{plain_array(x)}, plain_array(y)}}, kRate).loss(Deadline(kPatience));
  };

  module->train();
  const nn::SampleContext here({});
  const at::Tensor expected = loss.kernel().per_sample(module->forward(x), y).mean();
  expected.backward();
  EXPECT_NEAR(step(), expected.item<double>(), 5e-4) << "the first loss";
  const auto after = trainer.values();
  for (const auto& named : module->named_parameters()) {
    if (!named.value().grad().defined()) continue;
    const at::Tensor moved = (named.value() - torch_tensor(after.at(named.key()))) / kRate;
    const double size = named.value().grad().norm().item<double>();
    EXPECT_LE((moved - named.value().grad()).norm().item<double>(), kApart * size + 1e-3)
        << named.key() << ", of " << size;
  }
  EXPECT_TRUE(std::isfinite(step()));
  EXPECT_TRUE(std::isfinite(step()));
}

INSTANTIATE_TEST_SUITE_P(Small, CompiledZoo, ::testing::Values("mlp", "cnn", "lenet", "gpt"),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Large, CompiledZoo, ::testing::Values("resnet18", "inception_v3", "vit"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tutti::compiled
