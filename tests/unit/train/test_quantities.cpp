// Names of what is measured: none is there twice.
#include <torch/torch.h>

#include <functional>
#include <map>

#include "tutti/sync/tensors.h"
#include "tutti/train/model/added_losses.h"
#include "tutti/train/model/detail/settings.h"
#include "tutti/train/model/running_metric.h"

#include "tests/support/expect.h"
#include "tests/support/two_outputs.h"
#include "tests/unit/train/small_model.h"

namespace tutti {
namespace {

Model scored() {
  return Model(strategy_of("one_device", 1), [] { return torch::nn::Linear(4, 3); });
}

std::string refusal(CompileOptions options) {
  return message_of<UsageError>([&] { scored().compile(options); });
}

TEST(Quantities, OfOneOutputHaveUnlikeNames) {
  const auto loss = losses::sparse_categorical_crossentropy();
  EXPECT_THAT(refusal({.loss = loss, .metrics = {metrics::accuracy(), metrics::accuracy()}}),
              AllOf(HasSubstr("two quantities called \"accuracy\""), HasSubstr(".named(")));
  EXPECT_THAT(refusal({.loss = loss,
                       .metrics = {metrics::confusion_matrix(), metrics::confusion_matrix()}}),
              HasSubstr("\"confusion_matrix\""));
  for (const auto* name : {"loss", "train_loss", "val_loss", "seconds", "images_per_second"})
    EXPECT_THAT(refusal({.loss = loss, .metrics = {metrics::accuracy().named(name)}}),
                HasSubstr(fmt::format("two quantities called \"{}\"", name)));
  EXPECT_THAT(
      refusal({.loss = loss,
               .metrics = {metrics::accuracy(), metrics::top_k_accuracy(2).named("val_accuracy")}}),
      HasSubstr("\"val_accuracy\""));
  Model model = scored();
  model.compile(
      {.loss = loss, .metrics = {metrics::accuracy(), metrics::accuracy().named("again")}});
  const History history = model.fit(three_classes(12).batch(6), {.verbose = 0});
  EXPECT_EQ(history.column("accuracy"), history.column("again"));
}

TEST(Quantities, OfSeveralOutputsAreThoseWithTheOutputsName) {
  const auto with = [](const std::string& first, const std::string& second, const Metric& metric) {
    const auto loss = losses::sparse_categorical_crossentropy();
    return CompileOptions{.outputs = {{.name = first, .loss = loss, .metrics = {metric}},
                                      {.name = second, .loss = loss, .metrics = {metric}}}};
  };
  scored().compile(with("a", "b", metrics::accuracy()));
  EXPECT_THAT(refusal(with("a", "b", metrics::accuracy().named("loss"))), HasSubstr("\"a_loss\""));
  for (const auto* name : {"train", "val"})
    EXPECT_THAT(refusal(with(name, "b", metrics::accuracy())),
                HasSubstr("give the output another name"));
}

// ---- metrics that weights of samples count in ----

std::vector<Metric> plain_and_weighted() {
  return {metrics::accuracy(), metrics::accuracy().weighted().named("weighted"),
          metrics::true_positives({.only = 1}).weighted()};
}

/// Of outputs [samples, 3] by hand: accuracy, that by weights, and the weights of true positives of
/// class 1.
std::vector<double> by_hand(const at::Tensor& outputs, const at::Tensor& labels,
                            const at::Tensor& weights) {
  const auto right = outputs.argmax(1).eq(labels);
  return {right.to(at::kDouble).mean().item<double>(),
          ((right * weights).sum() / weights.sum()).item<double>(),
          (right * labels.eq(1) * weights).sum().item<double>()};
}

TEST(WeightedMetrics, CountTheWeightsOfTheDataOnAnyNumberOfReplicas) {
  const auto data = test::places(20, /*weights=*/true);
  const auto all = data.batch(20).epoch({}).batch(0);
  for (const int replicas : {1, 3}) {
    Model model(strategy_of("one_device", replicas), test::two_outputs);
    auto outputs = test::kind_and_height();
    outputs[0].metrics = plain_and_weighted();
    model.compile({.optimizer = optim::sgd({.learning_rate = 0.05}), .outputs = outputs});
    const Scores scores = model.evaluate(data.batch(7));
    const auto made = model.predict_all(
        std::vector<at::Tensor>{tensor_of(all.columns[0]), tensor_of(all.columns[1])});
    const auto expected = by_hand(made[0], tensor_of(all.columns[2]), tensor_of(all.columns[4]));
    EXPECT_NEAR(scores.at("kind_accuracy"), expected[0], 1e-12);
    EXPECT_NEAR(scores.at("kind_weighted"), expected[1], 1e-7);
    EXPECT_NEAR(scores.at("kind_true_positives_of_1"), expected[2], 1e-6);
    EXPECT_NE(expected[0], expected[1]);
  }
}

TEST(WeightedMetrics, CountTheWeightsOfClassesInTraining) {
  const auto data = three_classes(12).batch(12);
  const auto all = data.epoch({}).batch(0);
  Model model(strategy_of("mirrored", 2), [] { return small_graph(); });
  model.compile({.optimizer = optim::sgd({.learning_rate = 1e-30}),
                 .loss = losses::sparse_categorical_crossentropy(),
                 .metrics = plain_and_weighted()});
  const at::Tensor labels = tensor_of(all.columns[1]);
  const at::Tensor weights = torch::tensor({1.0, 3.0, 0.5}).index_select(0, labels);
  const auto expected = by_hand(model.predict(tensor_of(all.columns[0])), labels, weights);
  const History history = model.fit(data, {.verbose = 0, .class_weight = {{1, 3}, {2, 0.5}}});
  EXPECT_NEAR(history.last("accuracy"), expected[0], 1e-12);
  EXPECT_NEAR(history.last("weighted"), expected[1], 1e-7);
  EXPECT_NEAR(history.last("true_positives_of_1"), expected[2], 1e-6);
}

TEST(WeightedMetrics, KeepWhatElseTheyAre) {
  const Metric metric = metrics::auc().weighted().following(true);
  EXPECT_TRUE(metric.is_weighted());
  EXPECT_TRUE(metric.named("a").ignoring(-1).is_weighted());
  EXPECT_FALSE(metrics::auc().is_weighted());
  EXPECT_EQ(metric.name(), "auc");
}

// ---- what checkpoints have of an optimizer ----

TEST(OptimizerWords, AreThoseOfEarlierCheckpointsWhereNothingLaterIsOn) {
  EXPECT_EQ(detail::optimizer_words(optim::adam()),
            "adam learning_rate 0.001 beta1 0.9 beta2 0.999 epsilon 1e-08 weight_decay 0, clipped "
            "by value 0, norm 0, global_norm 0");
  EXPECT_THAT(detail::optimizer_words(optim::adam({.amsgrad = true})),
              HasSubstr("weight_decay 0 amsgrad true, clipped"));
}

// ---- class weights of several outputs ----

TEST(ClassWeightsOfOutputs, AreThoseOfALossWithThem) {
  const std::map<int64_t, double> weights{{0, 0.5}, {2, 3}};
  for (const char* kind : {"one_device", "mirrored"}) {
    const auto trained = [&](const FitOptions& options, bool in_loss) {
      Model model(strategy_of(kind, 3), test::two_outputs);
      auto outputs = test::kind_and_height();
      if (in_loss)
        outputs[0].loss = losses::sparse_categorical_crossentropy({.class_weights = {0.5, 1, 3}});
      model.compile({.optimizer = optim::sgd({.learning_rate = 0.05}), .outputs = outputs});
      const History history = model.fit(test::places(20).batch(8), options);
      std::vector<at::Tensor> values;
      for (const auto& one : model.modules().module(0)->parameters())
        values.push_back(one.detach().flatten());
      return std::pair(torch::cat(values), history.last("kind_loss"));
    };
    const auto [expected, loss] = trained({.epochs = 2, .verbose = 0}, true);
    const auto [got, own_loss] =
        trained({.epochs = 2, .verbose = 0, .class_weights = {{"kind", weights}}}, false);
    EXPECT_TRUE(torch::allclose(got, expected, 1e-5, 1e-6)) << kind;
    EXPECT_NEAR(own_loss, loss, 1e-6);
    const auto [plain, plain_loss] = trained({.epochs = 2, .verbose = 0}, false);
    EXPECT_FALSE(torch::allclose(plain, expected, 1e-5, 1e-6))
        << "or the weights would show nothing";
  }
}

TEST(ClassWeightsOfOutputs, ThatMeanNothingAreRefused) {
  Model model = test::two_output_model(strategy_of("mirrored", 2));
  const auto message = [&](FitOptions options, bool weighted = false) {
    options.verbose = 0;
    return message_of<UsageError>([&] { model.fit(test::places(8, weighted).batch(4), options); });
  };
  EXPECT_THAT(message({.class_weights = {{"knd", {{0, 2}}}}}), HasSubstr("did you mean \"kind\"?"));
  EXPECT_THAT(message({.class_weights = {{"height", {{0, 2}}}}}),
              HasSubstr("class_weights of height needs labels, an integer a sample"));
  EXPECT_THAT(message({.class_weights = {{"kind", {{7, 2}}}}}),
              HasSubstr("class_weights of kind has label 7, there are 3 classes"));
  EXPECT_THAT(message({.class_weights = {{"kind", {{0, -2}}}}}), HasSubstr("label 0 is -2"));
  EXPECT_THAT(message({.class_weights = {{"kind", {{0, 2}}}}}, true),
              HasSubstr("give one of them"));
  EXPECT_THAT(message({.class_weight = {{0, 2}}}),
              HasSubstr(".class_weights = {{\"NAME\", {{label"));
  Model single = small_model(strategy_of("one_device", 1));
  EXPECT_THAT(message_of<UsageError>([&] {
                single.fit(three_classes(8).batch(4),
                           {.verbose = 0, .class_weights = {{"output", {{0, 2}}}}});
              }),
              HasSubstr("give class_weight"));
}

// ---- metrics in loops of one's own ----

// What each replica adds in two steps, and what a metric alone makes of all of it.
TEST(RunningMetric, IsTheMetricOfAllSamples) {
  torch::manual_seed(4);
  const at::Tensor outputs = torch::randn({23, 3}), targets = torch::randint(0, 3, {23});
  const at::Tensor weights = torch::rand({23});
  const auto alone = [&](const Metric& metric, bool weighted) {
    std::vector<double> state(static_cast<size_t>(metric.num_states(3)));
    metric.add({.outputs = outputs.const_data_ptr<float>(),
                .labels = targets.const_data_ptr<int64_t>(),
                .rows = 23,
                .width = 3,
                .weights = weighted ? weights.const_data_ptr<float>() : nullptr},
               state);
    return metric.value(state);
  };
  for (const char* kind : {"one_device", "mirrored"})
    for (const bool weighted : {false, true})
      for (const Metric& metric :
           {metrics::accuracy(), metrics::f1(), metrics::top_k_accuracy(2)}) {
        Strategy strategy = strategy_of(kind, 3);
        RunningMetric running(strategy, metric);
        EXPECT_EQ(running.result(), 0) << "of no samples";
        for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 2}, {2, 23}})
          strategy.run([&, begin = begin, end = end](ReplicaContext& replica) {
            const auto own = data::share(end - begin, 3, replica.rank());
            if (own.size() == 0) return;
            const auto part = [&](const at::Tensor& all) {
              return all.slice(0, begin + own.begin, begin + own.end);
            };
            running.update_state(replica, part(outputs), part(targets),
                                 weighted ? part(weights) : at::Tensor());
          });
        EXPECT_NEAR(running.result(), alone(metric, weighted), 1e-6) << metric.name();
        running.reset_state();
        EXPECT_EQ(running.result(), 0);
      }
}

TEST(RunningMetric, MeansAndMatricesToo) {
  Strategy strategy = strategy_of("mirrored", 2);
  RunningMetric loss = RunningMetric::mean(strategy, "train_loss");
  RunningMetric confusion(strategy, metrics::confusion_matrix());
  strategy.run([&](ReplicaContext& replica) {
    loss.update_state(replica, torch::full({3}, 1.0 + replica.rank(), torch::kDouble));
    loss.update_state(replica, torch::tensor(5.0));
    if (replica.rank() == 1)
      confusion.update_state(replica, torch::tensor({{2.0F, 1.0F}}), torch::tensor({1}));
  });
  EXPECT_NEAR(loss.result(), (3 * 1 + 3 * 2 + 2 * 5) / 8.0, 1e-12);
  EXPECT_EQ(loss.name(), "train_loss");
  EXPECT_EQ(confusion.matrix(), (Matrix{{0, 0}, {1, 0}}));
}

TEST(RunningMetric, WrongUseIsNamed) {
  Strategy strategy = strategy_of("mirrored", 2);
  RunningMetric accuracy(strategy, metrics::accuracy());
  const auto in_run = [&](const std::function<void(ReplicaContext&)>& body) {
    return message_of<UsageError>([&] { strategy.run(body); });
  };
  EXPECT_THAT(message_of<UsageError>([&] { accuracy.matrix(); }), HasSubstr("call result()"));
  EXPECT_THAT(message_of<UsageError>(
                  [&] { RunningMetric(strategy, metrics::confusion_matrix()).result(); }),
              HasSubstr("call matrix()"));
  EXPECT_THAT(in_run([&](ReplicaContext& replica) {
                accuracy.update_state(replica, torch::zeros({2, 3}));
              }),
              HasSubstr("got values alone"));
  Strategy fourth = strategy_of("mirrored", 2);
  RunningMetric mean = RunningMetric::mean(fourth);
  EXPECT_THAT(message_of<UsageError>([&] {
                fourth.run([&](ReplicaContext& replica) {
                  mean.update_state(replica, torch::ones({2, 1}), torch::zeros({2}),
                                    torch::tensor({1.0F, 3.0F}));
                });
              }),
              HasSubstr("metric mean is a mean of values, without targets and weights"));
  Strategy other = strategy_of("mirrored", 2);
  EXPECT_THAT(message_of<UsageError>([&] {
                other.run([&](ReplicaContext& replica) {
                  accuracy.update_state(replica, torch::zeros({2, 3}),
                                        torch::zeros({2}, at::kLong));
                });
              }),
              HasSubstr("update_state"));
  Strategy third = strategy_of("mirrored", 2);
  RunningMetric weighted(third, metrics::accuracy());
  EXPECT_THAT(message_of<UsageError>([&] {
                third.run([&](ReplicaContext& replica) {
                  weighted.update_state(replica, torch::zeros({2, 3}), torch::zeros({2}, at::kLong),
                                        torch::ones({3}));
                });
              }),
              HasSubstr("expected one a sample"));
}

// ---- metrics that a module gives from inside its forward ----

/// What it gives add_metric() does not depend on its weights.
struct GivingNetImpl : torch::nn::Module {
  explicit GivingNetImpl(std::function<void(const at::Tensor&)> give_in)
      : give(std::move(give_in)) {
    only = register_module("only", torch::nn::Linear(4, 3));
  }
  at::Tensor forward(const at::Tensor& x) {
    give(x);
    return only(x);
  }
  std::function<void(const at::Tensor&)> give;
  torch::nn::Linear only{nullptr};
};
TORCH_MODULE(GivingNet);

const auto give_two = [](const at::Tensor& x) {
  add_metric("first", x.select(1, 0));
  add_metric("rows", torch::tensor(x.size(0)));
};

Model giving(const std::string& kind, int replicas, std::vector<Metric> watched,
             std::function<void(const at::Tensor&)> give = give_two) {
  Model model(strategy_of(kind, replicas), [give] { return GivingNet(give); });
  model.compile({.optimizer = optim::sgd({.learning_rate = 0.1}),
                 .loss = losses::sparse_categorical_crossentropy(),
                 .metrics = std::move(watched)});
  return model;
}

/// Mean of the first feature of three_classes(count).
double mean_of_first(int64_t count) {
  const at::Tensor x = tensor_of(three_classes(count).batch(count).epoch({}).batch(0).columns[0]);
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += x[i][0].item<float>();
  return sum / static_cast<double>(count);
}

TEST(AddedMetrics, AreMeansOverTheSamplesOfAllReplicas) {
  const auto history = [](const std::string& kind, int replicas, FitOptions options) {
    options.epochs = 2;
    options.verbose = 0;
    options.validation = three_classes(7).batch(4);
    return giving(kind, replicas,
                  {metrics::added("first"), metrics::accuracy(), metrics::added("rows")})
        .fit(three_classes(25).batch(10), options);
  };
  const auto expect_first = [](const History& got) {
    for (const double value : got.column("first")) EXPECT_NEAR(value, mean_of_first(25), 1e-12);
    for (const double value : got.column("val_first")) EXPECT_NEAR(value, mean_of_first(7), 1e-12);
  };
  const History one = history("one_device", 1, {});
  expect_first(one);
  EXPECT_EQ(one.column("rows")[0], (10. * 10 + 10. * 10 + 5. * 5) / 25) << "[] is each sample's";
  EXPECT_EQ(one.column("val_rows")[0], (4. * 4 + 3. * 3) / 7);
  for (const int replicas : {2, 3}) {
    const History in_turn = history("one_device", replicas, {});
    expect_first(in_turn);
    const History threads = history("mirrored", replicas, {});
    for (const char* column : {"first", "val_first", "rows", "val_rows", "accuracy"})
      EXPECT_EQ(threads.column(column), in_turn.column(column)) << column;
  }
  expect_first(history("mirrored", 2, {.accumulate = 2}));
  expect_first(history("mirrored", 2, {.class_weight = {{1, 2.5}}}));
}

TEST(AddedMetrics, OfSeveralCallsAreMeansOverAllThatWasGiven) {
  const auto twice = [](const at::Tensor& x) {
    add_metric("first", x.select(1, 0));
    add_metric("first", torch::tensor(1.0));
  };
  Model model = giving("mirrored", 2, {metrics::added("first").named("both")}, twice);
  EXPECT_NEAR(model.evaluate(three_classes(9).batch(4)).at("both"), (mean_of_first(9) + 1) / 2,
              1e-12);
}

TEST(AddedMetrics, AreGivenAndNamedOrRefused) {
  const auto fitted = [](Model model, FitOptions options = {}) {
    options.verbose = 0;
    return message_of<UsageError>([&] { model.fit(three_classes(12).batch(12), options); });
  };
  EXPECT_THAT(fitted(giving("mirrored", 2, {metrics::added("first")})),
              HasSubstr("add_metric \"rows\": compile() has no such metric"));
  EXPECT_THAT(fitted(giving("mirrored", 2, {})),
              HasSubstr(".metrics = {tutti::metrics::added(\"first\")}"));
  EXPECT_THAT(fitted(giving("mirrored", 2, {metrics::added("frist")})),
              HasSubstr("forward has not called add_metric(\"frist\", ...)"));
  EXPECT_THAT(fitted(giving("mirrored", 2, {metrics::added("first"), metrics::added("rows")}),
                     {.microbatches = 2}),
              HasSubstr("add_metric \"first\": a batch that comes in microbatches"));
  EXPECT_THAT(fitted(giving("mirrored", 2, {metrics::added("first")},
                            [](const at::Tensor&) { add_metric("first", torch::ones({5})); })),
              HasSubstr("got values Double [5], expected [6], one for each sample"));
  EXPECT_THAT(fitted(giving("mirrored", 2, {metrics::added("first")},
                            [](const at::Tensor& x) { add_metric("first", x); })),
              HasSubstr("got values Float [6, 4], expected numbers [samples]"));
  EXPECT_THAT(message_of<UsageError>([] { metrics::added(""); }), HasSubstr("the name is empty"));
  Strategy strategy = strategy_of("one_device", 1);
  RunningMetric running(strategy, metrics::added("first"));
  EXPECT_THAT(message_of<UsageError>([&] {
                strategy.run([&](ReplicaContext& replica) {
                  running.update_state(replica, torch::ones({2, 3}), torch::ones({2, 3}));
                });
              }),
              HasSubstr("in a loop of one's own AddedLosses::metrics() has it"));
}

// Rows of a loss that leaves labels out are its own affair.
TEST(AddedMetrics, CountAllSamplesWhateverLabelsCount) {
  Model model(strategy_of("mirrored", 2), [] { return GivingNet(give_two); });
  model.compile({.optimizer = optim::sgd({.learning_rate = 0.1}),
                 .loss = losses::sparse_categorical_crossentropy({.ignore_label = 2}),
                 .metrics = {metrics::added("first"), metrics::added("rows")}});
  EXPECT_NEAR(model.evaluate(three_classes(9).batch(4)).at("first"), mean_of_first(9), 1e-12);
}

TEST(AddedMetrics, AreTakenInLoopsOfOnesOwn) {
  GivingNet net(give_two);
  const at::Tensor x = torch::randn({5, 4});
  net(x);  // nobody takes them
  const AddedLosses added;
  net(x);
  const AddedMetrics got = added.metrics(5);
  EXPECT_TRUE(got.at("first").equal(x.select(1, 0).to(torch::kDouble)));
  EXPECT_TRUE(got.at("rows").equal(torch::full({5}, 5.0, torch::kDouble)));
  EXPECT_FALSE(added.of(5).defined());
}

}  // namespace
}  // namespace tutti
