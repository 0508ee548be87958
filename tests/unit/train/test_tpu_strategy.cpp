// Strategy tpu: a Model whose steps are compiled, beside one that LibTorch computes.
#include <torch/torch.h>

#include "tutti/data/quickdraw.h"
#include "tutti/models/gpt.h"
#include "tutti/models/models.h"
#include "tutti/nn/graph_module.h"
#include "tutti/strategy/tpu_strategy.h"
#include "tutti/train/model/model.h"

#include "tests/support/expect.h"
#include "tests/support/hlo_evaluate.h"
#include "tests/support/plain_arrays.h"
#include "tests/support/temp_folder.h"

namespace tutti::tpu_strategy {
namespace {

constexpr int kReplicas = 2;

Strategy of(const std::string& kind) {
  return Strategy({.kind = kind,
                   .replicas = kReplicas,
                   .threads_per_replica = 1,
                   .plugin = kind == "tpu" ? "cpu" : "",
                   .pin = false,
                   .seed = 5});
}

/// Without statistics of a part, so that any number of replicas gives the same.
nn::Graph net(int64_t hidden = 8) {
  const auto input = nn::input({12});
  auto x = nn::dropout(0.2)(nn::tanh()(nn::linear(hidden).named("hidden")(input)));
  return {input, nn::linear(3).named("dense")(x)};
}

/// A bias before the norm has a gradient of rounding alone, of which adam makes steps.
nn::Graph net_with_norm() {
  const auto input = nn::input({3, 2, 2});
  auto x = nn::relu()(
      nn::batch_norm2d().named("norm")(nn::conv2d(4, 1, {.bias = false}).named("conv")(input)));
  return {input, nn::linear(3).named("dense")(nn::flatten()(x))};
}

/// 50 samples make batches of 16, 16, 16 and 2; of 49 the last has a replica without any.
data::Dataset samples(int64_t count = 50, const std::vector<int64_t>& shape = {12}) {
  torch::manual_seed(3);
  std::vector<int64_t> all = shape;
  all.insert(all.begin(), count);
  const at::Tensor x = at::randn({count, 12});
  return data::from_arrays({plain_array(x.reshape(all)), plain_array(x.slice(1, 0, 3).argmax(1))})
      .shuffle()
      .batch(16);
}

data::Dataset images(int64_t count) { return samples(count, {3, 2, 2}); }

CompileOptions adam() {
  return {.optimizer = optim::adam({.learning_rate = 0.02}),
          .loss = losses::sparse_categorical_crossentropy(),
          .metrics = {metrics::accuracy()}};
}

FitOptions quiet(int64_t epochs) { return {.epochs = epochs, .verbose = 0}; }

Model compiled(const std::string& kind, const nn::Graph& graph = net(),
               const CompileOptions& options = adam()) {
  Model model(of(kind), [graph] { return graph; });
  model.compile(options);
  return model;
}

double apart(const Model& a, const Model& b) {
  double most = 0;
  const auto other = b.modules().module(0)->named_parameters();
  for (const auto& named : a.modules().module(0)->named_parameters())
    most = std::max(most, (named.value() - other[named.key()]).abs().max().item<double>());
  return most;
}

void expect_near(const History& got, const History& expected, double apart) {
  ASSERT_EQ(got.rows.size(), expected.rows.size());
  EXPECT_EQ(got.steps, expected.steps);
  for (size_t epoch = 0; epoch < got.rows.size(); ++epoch)
    for (size_t column = 0; column + 2 < got.columns.size(); ++column)  // but for times
      EXPECT_NEAR(got.rows[epoch][column], expected.rows[epoch][column], apart)
          << got.columns[column] << " of epoch " << epoch + 1;
}

using TpuStrategies = test::Evaluated;

TEST_F(TpuStrategies, TrainEvaluateAndPredictAsMirroredDoes) {
  for (const int64_t count : {50, 49}) {
    Model tpu = compiled("tpu"), mirrored = compiled("mirrored");
    FitOptions options = quiet(3);
    options.validation = samples(30);
    expect_near(tpu.fit(samples(count), options), mirrored.fit(samples(count), options), 2e-5);
    EXPECT_LE(apart(tpu, mirrored), 2e-5);
    const Scores got = tpu.evaluate(samples(33)), expected = mirrored.evaluate(samples(33));
    EXPECT_NEAR(got.loss, expected.loss, 2e-5);
    EXPECT_NEAR(got.at("accuracy"), expected.at("accuracy"), 1e-9);
    EXPECT_EQ(got.samples, 33);
    EXPECT_LE((tpu.predict(samples(33)) - mirrored.predict(samples(33))).abs().max().item<double>(),
              2e-5);
    for (const int64_t rows : {1, 5}) {
      const at::Tensor x = at::randn({rows, 12});
      EXPECT_LE((tpu.predict(x) - mirrored.predict(x)).abs().max().item<double>(), 2e-5);
    }
  }
}

TEST_F(TpuStrategies, PredictBeforeCompileAndAfterLoad) {
  const TempFolder folder;
  Model mirrored = compiled("mirrored", net_with_norm());
  mirrored.fit(images(50), quiet(1));
  mirrored.save(folder / "weights.safetensors");
  Model tpu(of("tpu"), net_with_norm);
  const at::Tensor x = at::randn({3, 3, 2, 2});
  const at::Tensor before = tpu.predict(x);
  tpu.load(folder / "weights.safetensors");
  EXPECT_LE((tpu.predict(x) - mirrored.predict(x)).abs().max().item<double>(), 1e-5);
  EXPECT_GT((before - mirrored.predict(x)).abs().max().item<double>(), 1e-3);
  tpu.compile(adam());
  tpu.fit(images(50), quiet(1));
  tpu.load(folder / "weights.safetensors");
  EXPECT_LE((tpu.predict(x) - mirrored.predict(x)).abs().max().item<double>(), 1e-5);
}

/// Replicas have statistics of their own, which evaluation averages.
TEST_F(TpuStrategies, StatisticsOfBatchNormsAreAveraged) {
  Model tpu = compiled("tpu", net_with_norm()), mirrored = compiled("mirrored", net_with_norm());
  expect_near(tpu.fit(images(48), quiet(2)), mirrored.fit(images(48), quiet(2)), 1e-4);
  const auto buffers = mirrored.modules().merged_buffers();
  const auto own = tpu.modules().merged_buffers();
  for (size_t i = 0; i < buffers.size(); ++i)
    EXPECT_LE((buffers[i].second - own[i].second).abs().max().item<double>(), 1e-5)
        << buffers[i].first;
  EXPECT_NEAR(tpu.evaluate(images(20)).loss, mirrored.evaluate(images(20)).loss, 1e-4);
  const TempFolder folder;
  tpu.save(folder / "weights.safetensors");
  Model loaded = compiled("mirrored", net_with_norm());
  loaded.load(folder / "weights.safetensors");
  EXPECT_NEAR(loaded.evaluate(images(20)).loss, tpu.evaluate(images(20)).loss, 1e-5);
}

/// Steps, states of the optimizer, masks and order go on where the other strategy left them.
TEST_F(TpuStrategies, CheckpointsResumeUnderMirroredAndBack) {
  Model whole = compiled("mirrored");
  whole.fit(samples(), quiet(4));
  for (const auto& [first, second] :
       {std::pair{"tpu", "mirrored"}, std::pair{"mirrored", "tpu"}, std::pair{"tpu", "tpu"}}) {
    const TempFolder folder;
    FitOptions options = quiet(4);
    options.checkpoints = {.folder = folder / "run", .every_steps = 3};
    options.max_steps = 7;  // in the second epoch
    Model begun = compiled(first);
    begun.fit(samples(), options);
    options.max_steps = 0;
    options.checkpoints.resume = true;
    Model resumed = compiled(second);
    const History history = resumed.fit(samples(), options);
    EXPECT_EQ(history.steps, 16) << first << ", then " << second;
    EXPECT_LE(apart(resumed, whole), 2e-5) << first << ", then " << second;
  }
}

TEST_F(TpuStrategies, AnotherModelsCheckpointIsRefused) {
  const TempFolder folder;
  FitOptions options = quiet(1);
  options.checkpoints = {.folder = folder / "run"};
  compiled("mirrored", net(9)).fit(samples(48), options);
  options.checkpoints.resume = true;
  Model other = compiled("tpu");
  EXPECT_THAT(message_of<DataError>([&] { other.fit(samples(48), options); }),
              HasSubstr("hidden.weight"));
}

TEST_F(TpuStrategies, SecondFitGoesOnAndCompileBeginsAnew) {
  Model tpu = compiled("tpu"), mirrored = compiled("mirrored");
  for (Model* const model : {&tpu, &mirrored}) {
    model->fit(samples(), quiet(1));
    model->fit(samples(), quiet(1));
    model->compile(adam());
    model->fit(samples(), quiet(1));
  }
  EXPECT_LE(apart(tpu, mirrored), 2e-5);
  EXPECT_EQ(tpu.optimizer().version(), mirrored.optimizer().version());
}

TEST_F(TpuStrategies, WeightsOfSamplesAndClassesCount) {
  torch::manual_seed(3);
  const at::Tensor x = at::randn({40, 12});
  const data::Dataset weighted =
      data::from_arrays(
          {plain_array(x), plain_array(x.slice(1, 0, 3).argmax(1)), plain_array(at::rand({40}))})
          .batch(16);
  Model tpu = compiled("tpu"), mirrored = compiled("mirrored");
  expect_near(tpu.fit(weighted, quiet(2)), mirrored.fit(weighted, quiet(2)), 2e-5);
  FitOptions by_class = quiet(2);
  by_class.class_weight = {{0, 3.0}, {2, 0.5}};
  expect_near(tpu.fit(samples(), by_class), mirrored.fit(samples(), by_class), 5e-5);
  EXPECT_LE(apart(tpu, mirrored), 5e-5);
}

TEST_F(TpuStrategies, RatesChangeWithTheStep) {
  CompileOptions options = adam();
  options.optimizer = optim::sgd({.learning_rate = 0.1, .momentum = 0.9});
  options.learning_rate = schedules::cosine({.initial = 0.2, .decay_steps = 12});
  Model tpu = compiled("tpu", net(), options), mirrored = compiled("mirrored", net(), options);
  expect_near(tpu.fit(samples(), quiet(3)), mirrored.fit(samples(), quiet(3)), 2e-5);
  EXPECT_NEAR(tpu.optimizer().learning_rate(), mirrored.optimizer().learning_rate(), 1e-9);
}

TEST_F(TpuStrategies, CallbacksSeeTheSameEpochsAndMayEndThem) {
  struct Ends final : Callback {
    std::string_view name() const override { return "Ends"; }
    void on_step_end(Training& training) override {
      shown = {training.at("loss"), training.at("accuracy")};
    }
    void on_epoch_end(Training& training) override {
      losses.push_back(training.at("loss"));
      EXPECT_NEAR(shown[0], losses.back(), 1e-9) << "after the last step: of all replicas";
      EXPECT_NEAR(shown[1], training.at("accuracy"), 1e-9);
      if (losses.size() == 2) training.stop("two are enough");
    }
    std::vector<double> losses, shown;
  };
  const auto ends = std::make_shared<Ends>();
  Model tpu = compiled("tpu");
  FitOptions options = quiet(5);
  options.callbacks = {ends};
  const History history = tpu.fit(samples(), options);
  ASSERT_EQ(history.rows.size(), 2U);
  EXPECT_EQ(ends->losses[1], history.rows[1][0]);
}

TEST_F(TpuStrategies, LossThatIsNotFiniteIsLeftOut) {
  const at::Tensor x = at::randn({48, 12});
  const at::Tensor y = x.slice(1, 0, 3).argmax(1);
  x[37][0] = NAN;  // in the third batch, of the second replica's rows... or the first's
  const data::Dataset bad = data::from_arrays({plain_array(x), plain_array(y)}).batch(16);
  Model tpu = compiled("tpu"), clean = compiled("tpu");
  EXPECT_THAT(message_of<Error>([&] { tpu.fit(bad, quiet(1)); }),
              AllOf(HasSubstr("not finite"), HasSubstr("step 3 of 3"), HasSubstr("sample 37")));
  FitOptions two = quiet(1);
  two.max_steps = 2;
  clean.fit(bad, two);
  EXPECT_EQ(apart(tpu, clean), 0) << "the weights are those before the bad step";
  EXPECT_EQ(tpu.optimizer().version(), 2);
  FitOptions ends = quiet(3);
  ends.on_nan = OnNan::end;
  Model ended = compiled("tpu");
  EXPECT_EQ(ended.fit(bad, ends).steps, 2);
  FitOptions goes_on = quiet(1);
  goes_on.on_nan = OnNan::go_on;
  Model ruined = compiled("tpu");
  EXPECT_EQ(ruined.fit(bad, goes_on).steps, 3);
  EXPECT_FALSE(ruined.modules().module(0)->parameters()[0].isfinite().all().item<bool>());
}

/// The same steps, of which the program makes several in a run; the last of an epoch fewer.
TEST_F(TpuStrategies, StepsOfOneExecutionAreThoseOfSeveral) {
  CompileOptions options = adam();
  options.learning_rate = schedules::cosine({.initial = 0.05, .decay_steps = 12});
  Model each = compiled("tpu", net(), options);
  const History expected = each.fit(samples(), quiet(3));
  for (const int64_t steps : {2, 3, 50}) {
    options.steps_per_execution = steps;
    Model several = compiled("tpu", net(), options);
    expect_near(several.fit(samples(), quiet(3)), expected, 2e-6);
    EXPECT_LE(apart(several, each), 2e-6) << steps;
  }
  options.steps_per_execution = 0;
  EXPECT_THAT(message_of<UsageError>([&] { compiled("tpu", net(), options); }),
              HasSubstr("steps_per_execution is 0"));
  options.steps_per_execution = 2;
  EXPECT_THAT(message_of<UsageError>([&] { compiled("mirrored", net(), options); }),
              HasSubstr("--steps-per-execution 2 under mirrored"));
}

/// Ended by a callback in the middle of a run, saved, and gone on with; and at steps of no run.
TEST_F(TpuStrategies, RunsOfSeveralStepsAreSavedWhole) {
  struct Ends final : Callback {
    std::string_view name() const override { return "Ends"; }
    void on_step_end(Training& training) override {
      if (training.step() == 5) training.stop("in the first step of a run of three");
    }
  };
  CompileOptions options = adam();
  options.steps_per_execution = 3;
  Model whole = compiled("tpu", net(), options);
  whole.fit(samples(130), quiet(2));
  FitOptions ends = quiet(2);
  ends.callbacks = {std::make_shared<Ends>()};
  Model ended = compiled("tpu", net(), options);
  const int64_t steps = ended.fit(samples(130), ends).steps;
  EXPECT_EQ(steps, 6);
  EXPECT_EQ(ended.optimizer().version(), steps);
  const TempFolder folder;
  FitOptions saved = quiet(2);
  saved.checkpoints = {.folder = folder / "run", .every_steps = 4};
  saved.max_steps = 8;
  Model begun = compiled("tpu", net(), options);
  begun.fit(samples(130), saved);
  saved.max_steps = 0;
  saved.checkpoints.resume = true;
  Model resumed = compiled("tpu", net(), options);
  EXPECT_EQ(resumed.fit(samples(130), saved).steps, 18);
  EXPECT_LE(apart(resumed, whole), 2e-6);
}

TEST_F(TpuStrategies, LossThatIsNotFiniteEndsARunOfSeveralSteps) {
  const at::Tensor x = at::randn({96, 12});
  const at::Tensor y = x.slice(1, 0, 3).argmax(1);
  x[70][3] = NAN;  // of the fifth batch
  const data::Dataset bad = data::from_arrays({plain_array(x), plain_array(y)}).batch(16);
  CompileOptions options = adam();
  options.steps_per_execution = 3;
  Model several = compiled("tpu", net(), options), each = compiled("tpu");
  FitOptions ends = quiet(2);
  ends.on_nan = OnNan::end;
  EXPECT_EQ(several.fit(bad, ends).steps, 4);
  EXPECT_EQ(several.optimizer().version(), 4);
  each.fit(bad, ends);
  EXPECT_LE(apart(several, each), 2e-6);
}

/// What the devices had made stays, whatever ended the fit().
TEST_F(TpuStrategies, WhatAFitThatThrewHasTrainedStays) {
  torch::manual_seed(3);
  const at::Tensor x = at::randn({48, 3, 2, 2});
  const at::Tensor y = at::randint(3, {48});
  const auto data_of = [&](const at::Tensor& labels) {
    return data::from_arrays({plain_array(x), plain_array(labels)}).batch(16);
  };
  at::Tensor wrong = y.clone();
  wrong[40] = 7;
  FitOptions two = quiet(1);
  two.max_steps = 2;
  Model clean = compiled("mirrored", net_with_norm());
  clean.fit(data_of(y), two);
  const TempFolder folder;
  clean.save(folder / "two.safetensors");
  for (const bool loads : {false, true}) {
    Model tpu = compiled("tpu", net_with_norm());
    EXPECT_THAT(message_of<DataError>([&] { tpu.fit(data_of(wrong), quiet(1)); }),
                AllOf(HasSubstr("label 7"), HasSubstr("sample 40")));
    EXPECT_EQ(tpu.optimizer().version(), 2);
    if (loads)
      tpu.load(folder / "two.safetensors");
    else
      tpu.compile(adam());
    EXPECT_LE(apart(tpu, clean), 2e-5) << loads;
    EXPECT_NEAR(tpu.evaluate(data_of(y)).loss, clean.evaluate(data_of(y)).loss, 1e-4) << loads;
  }
}

TEST_F(TpuStrategies, ACompileThatThrowsLeavesWhatWasCompiled) {
  Model tpu = compiled("tpu"), mirrored = compiled("mirrored");
  CompileOptions bad = adam();
  bad.loss = Loss(
      "own", [](const at::Tensor& output, const at::Tensor&) { return output.square().mean(1); });
  EXPECT_THAT(message_of<UsageError>([&] { tpu.compile(bad); }), HasSubstr("StableHLO"));
  expect_near(tpu.fit(samples(), quiet(1)), mirrored.fit(samples(), quiet(1)), 2e-5);
  tpu.modules().module(0)->named_parameters()["hidden.bias"].set_requires_grad(false);
  EXPECT_THAT(message_of<UsageError>([&] { tpu.fit(samples(), quiet(1)); }),
              AllOf(HasSubstr("hidden.bias"), HasSubstr("with_frozen")));
}

TEST_F(TpuStrategies, BadInputIsNamed) {
  const nn::Graph graph =
      models::gpt({.vocabulary = 11, .context = 8, .layers = 1, .heads = 2, .features = 16});
  at::Tensor x = at::randint(11, {24, 8});
  x[9][2] = 11;
  const data::Dataset text = data::from_arrays({plain_array(x), plain_array(x % 11)}).batch(8);
  Model model = compiled("tpu", graph);
  EXPECT_THAT(message_of<DataError>([&] { model.evaluate(text); }),
              AllOf(HasSubstr("token 11"), HasSubstr("evaluate"), HasSubstr("sample 9")));
  EXPECT_THAT(message_of<UsageError>([&] { model.predict(at::rand({2, 8})); }),
              HasSubstr("float32 [2, 8], the model takes int64"));
  EXPECT_EQ(model.predict(at::zeros({0, 8}, at::kLong)).sizes(), at::IntArrayRef({0, 8, 11}));
}

TEST_F(TpuStrategies, TrainOnBatchIsOneStep) {
  Model tpu = compiled("tpu"), mirrored = compiled("mirrored");
  const at::Tensor x = at::randn({9, 12}), y = at::randint(3, {9});
  for (int step = 0; step < 3; ++step)
    EXPECT_NEAR(tpu.train_on_batch(x, y).loss, mirrored.train_on_batch(x, y).loss, 1e-5);
  EXPECT_NEAR(tpu.test_on_batch(x, y).loss, mirrored.test_on_batch(x, y).loss, 1e-5);
}

TEST_F(TpuStrategies, TextTrains) {
  const nn::Graph graph =
      models::gpt({.vocabulary = 11, .context = 8, .layers = 1, .heads = 2, .features = 16});
  torch::manual_seed(2);
  const at::Tensor x = at::randint(11, {24, 8});
  const data::Dataset text =
      data::from_arrays({plain_array(x), plain_array((x + 1) % 11)}).batch(8);
  Model tpu = compiled("tpu", graph), mirrored = compiled("mirrored", graph);
  expect_near(tpu.fit(text, quiet(2)), mirrored.fit(text, quiet(2)), 5e-4);
}

TEST_F(TpuStrategies, WhatCannotBeCompiledIsNamedBeforeWork) {
  const Strategy tpu = of("tpu");
  const auto refused = [](const auto& work) { return message_of<UsageError>(work); };
  EXPECT_THAT(refused([&] { Strategy(tpu).run([](ReplicaContext&) {}); }),
              AllOf(HasSubstr("run: strategy tpu compiles whole steps"),
                    HasSubstr("CompiledTrainer"), HasSubstr("ProgramTrainer")));
  EXPECT_THAT(refused([&] { Model(tpu, [] { return torch::nn::Linear(3, 2); }); }),
              HasSubstr("module of its own"));
  const auto compiles = [&](const CompileOptions& options) {
    Model model(tpu, [] { return net(); });
    model.compile(options);
  };
  CompileOptions options = adam();
  options.optimizer = TorchOptimizerFactory([](std::vector<at::Tensor> parameters) {
    return std::make_unique<torch::optim::SGD>(parameters, 0.1);
  });
  EXPECT_THAT(refused([&] { compiles(options); }), HasSubstr("a torch optimizer"));
  options = adam();
  options.optimizer = optim::Recipe(optim::adam(), {.norm = 1});
  EXPECT_THAT(refused([&] { compiles(options); }), HasSubstr("clipping"));
  Model model = compiled("tpu");
  FitOptions accumulates = quiet(1);
  accumulates.accumulate = 2;
  EXPECT_THAT(refused([&] { model.fit(samples(), accumulates); }), HasSubstr("accumulate 2"));
  EXPECT_THAT(refused([] { Strategy({.kind = "mirrored", .replicas = 1, .plugin = "cpu"}); }),
              HasSubstr("--plugin"));
  EXPECT_THAT(refused([] { Strategy({.kind = "tpu", .plugin = "/nowhere/plugin.so"}); }),
              HasSubstr("/nowhere/plugin.so"));
}

TEST_F(TpuStrategies, OfAResolver) {
  const cluster::TpuResolver resolver("cpu", {});
  connect_to_cluster(resolver);
  EXPECT_EQ(initialize_tpu_system(resolver).platform, "cpu");
  const TpuStrategy one(resolver);
  EXPECT_EQ(one.kind(), "tpu");
  EXPECT_EQ(one.num_replicas_in_sync(), 1);
  EXPECT_EQ(TpuStrategy(resolver, {.replicas = 2}).num_replicas_in_sync(), 2);
  const cluster::TpuResolver many("cpu", {{"TPU_WORKER_HOSTNAMES", "a,b"}, {"TPU_WORKER_ID", "1"}});
  EXPECT_THAT(message_of<UsageError>([&] { connect_to_cluster(many); }),
              AllOf(HasSubstr("2 hosts, of which this is number 1, and nothing says where"),
                    HasSubstr("--node-rank 1 --rendezvous a:")));
}

/// Doodles: the same as mirrored, but for rounding.
class TpuDoodles : public test::Evaluated, public ::testing::WithParamInterface<std::string> {};

TEST_P(TpuDoodles, LearnWhatMirroredDoes) {
  const auto doodles = [](const std::string& split) {
    return data::quickdraw(TUTTI_SOURCE_DIR "/examples/data/quickdraw", {.split = split});
  };
  std::vector<double> accuracy;
  std::vector<History> histories;
  for (const std::string kind : {"tpu", "mirrored"}) {
    Model model = compiled(kind, models::model_by_name(GetParam()),
                           {.optimizer = optim::adam(),
                            .loss = losses::sparse_categorical_crossentropy(),
                            .metrics = {metrics::accuracy()}});
    FitOptions options = quiet(2);
    histories.push_back(model.fit(doodles("train").shuffle().batch(128), options));
    accuracy.push_back(model.evaluate(doodles("test").batch(100)).at("accuracy"));
  }
  EXPECT_NEAR(accuracy[0], accuracy[1], 0.005);
  EXPECT_GT(accuracy[1], 0.5);
  EXPECT_NEAR(histories[0].rows[0][0], histories[1].rows[0][0], 2e-3 * histories[1].rows[0][0]);
}

INSTANTIATE_TEST_SUITE_P(Nets, TpuDoodles, ::testing::Values("mlp", "cnn"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tutti::tpu_strategy
