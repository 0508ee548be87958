// train_on_batch, test_on_batch, validation_split and summary.
#include <functional>
#include <optional>

#include "tutti/sync/tensors.h"

#include "tests/support/expect.h"
#include "tests/unit/train/small_model.h"

namespace tutti {
namespace {

/// Column `column` of batch `step` of data in order.
at::Tensor column_of_batch(const data::Dataset& data, int64_t step, size_t column) {
  return tensor_of(data.epoch({}).batch(step).columns[column]);
}

TEST(OnBatch, StepsAreThoseOfFit) {
  const auto data = three_classes(24).batch(10);  // 10, 10 and 4: three replicas get unequal parts
  std::string first;
  for (const char* kind : {"one_device", "mirrored", "central_storage"}) {
    Model by_fit = small_model(strategy_of(kind, 3), 0.3);
    const History history = by_fit.fit(data, {.epochs = 2, .verbose = 0});
    Model by_batch = small_model(strategy_of(kind, 3), 0.3);
    double loss = 0;
    for (int epoch = 0; epoch < 2; ++epoch) {
      loss = 0;
      for (int64_t step = 0; step < 3; ++step) {
        const Scores scores =
            by_batch.train_on_batch(column_of_batch(data, step, 0), column_of_batch(data, step, 1));
        EXPECT_EQ(scores.samples, step == 2 ? 4 : 10);
        loss += scores.loss * static_cast<double>(scores.samples) / 24;
      }
    }
    EXPECT_NEAR(loss, history.last("train_loss"), 1e-12);
    EXPECT_EQ(by_batch.weights_sha256(), by_fit.weights_sha256()) << kind;
    EXPECT_EQ(by_batch.optimizer().version(), 6);
    if (first.empty()) first = by_batch.weights_sha256();
    EXPECT_EQ(by_batch.weights_sha256(), first) << kind;
  }
}

TEST(OnBatch, ScoresAreOfThisBatchBeforeTheUpdate) {
  const auto data = three_classes(9).batch(9);
  const auto x = column_of_batch(data, 0, 0);
  const auto y = column_of_batch(data, 0, 1);
  Model model = small_model(strategy_of("mirrored", 2));
  const Scores before = model.evaluate(data);
  const Scores tested = model.test_on_batch(x, y);
  EXPECT_EQ(tested.loss, before.loss);
  EXPECT_EQ(tested.at("accuracy"), before.at("accuracy"));
  EXPECT_EQ(tested.samples, 9);
  const Scores trained = model.train_on_batch(x, y);
  EXPECT_NEAR(trained.loss, before.loss, 1e-6);
  EXPECT_EQ(trained.at("accuracy"), before.at("accuracy"));
  EXPECT_LT(model.test_on_batch(x, y).loss, before.loss);
  // Columns need not lie side by side.
  const auto wide = torch::cat({x, x}, 1);
  EXPECT_EQ(model.test_on_batch(wide.narrow(1, 0, 4), y).loss, model.test_on_batch(x, y).loss);
}

TEST(OnBatch, WeighsSamples) {
  const auto data = three_classes(9).batch(9);
  const auto x = column_of_batch(data, 0, 0);
  const auto y = column_of_batch(data, 0, 1);
  const auto weights = torch::where(y == 1, 2.5, 1.0).to(torch::kFloat);
  const auto sha = [&](const BatchWeights& how) {
    Model model = small_model(strategy_of("mirrored", 2));
    model.train_on_batch(x, y, how);
    return model.weights_sha256();
  };
  EXPECT_EQ(sha({.sample_weights = weights}), sha({.class_weight = {{1, 2.5}}}));
  EXPECT_NE(sha({.sample_weights = weights}), sha({}));
  Model model = small_model(strategy_of("one_device", 1));
  EXPECT_GT(model.test_on_batch(x, y, 2 * torch::ones({9})).loss,
            1.99 * model.test_on_batch(x, y).loss);
}

TEST(OnBatch, RefusesWhatDoesNotFit) {
  Model model = small_model(strategy_of("mirrored", 2));
  const auto x = torch::zeros({6, 4});
  const auto y = torch::zeros({6}, torch::kLong);
  const struct {
    std::function<void()> call;
    const char* says;
  } cases[] = {
      {[&] { model.train_on_batch(at::Tensor(), y); }, "train_on_batch: inputs: expected a tensor"},
      {[&] { model.test_on_batch(x, torch::tensor(1)); }, "test_on_batch: targets"},
      {[&] { model.train_on_batch(x.narrow(0, 0, 0), y.narrow(0, 0, 0)); }, "no samples"},
      {[&] { model.train_on_batch(x, y.narrow(0, 0, 5)); }, "5"},
      {[&] { model.train_on_batch(x.narrow(1, 0, 3), y); }, "the model takes [4]"},
      {[&] { model.train_on_batch(x, y, {.sample_weights = y}); }, "expected a weight"},
      {[&] {
         model.train_on_batch(x, y, {.sample_weights = torch::ones({6}), .class_weight = {{1, 2}}});
       },
       "give one of them"},
      {[] {
         Model fresh(strategy_of("one_device", 1), [] { return small_graph(); });
         fresh.test_on_batch(torch::zeros({6, 4}), torch::zeros({6}, torch::kLong));
       },
       "compile()"},
  };
  for (const auto& [call, says] : cases) EXPECT_THAT(message_of<UsageError>(call), HasSubstr(says));
}

TEST(Fit, ValidatesOnTheLastSamplesWhichItLeavesOut) {
  const auto run = [](const data::Dataset& train, FitOptions options) {
    Model model = small_model(strategy_of("mirrored", 2));
    options.epochs = 2;
    options.verbose = 0;
    const History history = model.fit(train, options);
    return fmt::format("{} {}", model.weights_sha256(), history.last("val_loss"));
  };
  const auto both = three_classes(30).shuffle().batch(10).split_last(0.3);
  EXPECT_EQ(both.second.num_samples(), 9);
  EXPECT_EQ(run(three_classes(30).shuffle().batch(10), {.validation_split = 0.3}),
            run(both.first, {.validation = both.second}));
  EXPECT_NE(run(three_classes(30).shuffle().batch(10), {.validation_split = 0.3}),
            run(three_classes(30).shuffle().batch(10), {.validation_split = 0.2}));

  Model model = small_model(strategy_of("mirrored", 2));
  const auto refused = [&](const FitOptions& options) {
    return message_of<UsageError>([&] { model.fit(three_classes(4).batch(4), options); });
  };
  for (const double bad : {-0.1, 1.0, 2.0, std::nan("")})
    EXPECT_THAT(refused({.validation_split = bad}), HasSubstr("validation_split is"));
  EXPECT_THAT(refused({.validation = three_classes(4).batch(4), .validation_split = 0.5}),
              HasSubstr("give one of them"));
  EXPECT_THAT(refused({.validation_split = 0.9}), HasSubstr("leave none"));
}

TEST(Model, SummaryCountsWhatAReplicaTakes) {
  Model model(strategy_of("mirrored", 2), [] { return small_graph(); });
  const std::string table =
      "layer     output shape    parameters\n"
      "input     [4]                      0\n"
      "linear_1  [8]                     40\n"
      "relu_1    [8]                      0\n"
      "linear_2  [3]                     27\n"
      "67 parameters\n"
      "parameters: 67 trained, 0 frozen\n"
      "bytes a replica: 268 parameters, 268 gradients, 0 buffers, ";
  EXPECT_EQ(model.summary(), table + "optimizer states: after compile()\n");
  model.compile(adam_and_accuracy());
  EXPECT_EQ(model.summary(), table + "536 optimizer states\n");

  struct Own : torch::nn::Module {
    Own() {
      dense = register_module("dense", torch::nn::Linear(4, 3));
      dense->weight.set_requires_grad(false);
      norm = register_module("norm", torch::nn::BatchNorm1d(3));
    }
    at::Tensor forward(const at::Tensor& x) { return norm(dense(x)); }
    torch::nn::Linear dense{nullptr};
    torch::nn::BatchNorm1d norm{nullptr};
  };
  Model own(strategy_of("one_device", 1), [] { return std::make_shared<Own>(); });
  own.compile({.optimizer =
                   [](std::vector<at::Tensor> parameters) {
                     return std::make_unique<torch::optim::SGD>(parameters, 0.1);
                   },
               .loss = losses::sparse_categorical_crossentropy()});
  EXPECT_THAT(
      own.summary(),
      MatchesRegex(
          "layer  kind  *parameters\n"
          "dense  Linear\\(in_features=4, out_features=3, bias=true\\)  *15\n"
          "norm   BatchNorm1d\\(3, eps=1e-05, momentum=0.1, affine=true, .*=true\\)  *6\n"
          "parameters: 9 trained, 12 frozen\n"
          "bytes a replica: 84 parameters, 36 gradients, 32 buffers, optimizer states: a torch "
          "optimizer's own\n"));
}

TEST(OnBatch, SummaryOfASequentialHasLayersAndShapes) {
  Model model(strategy_of("mirrored", 2), [] {
    return torch::nn::Sequential(torch::nn::Conv2d(1, 2, 3), torch::nn::Flatten(),
                                 torch::nn::Dropout(0.5), torch::nn::Linear(8, 3));
  });
  EXPECT_THAT(
      model.summary({1, 4, 4}),
      MatchesRegex("layer  kind  *output shape  *parameters\n"
                   "0  *Conv2d\\(1, 2, kernel_size=.*\\) *\\[2, 2, 2\\]  *20\n"
                   "1  *Flatten\\(.*\\) *\\[8\\]  *0\n"
                   "2  *Dropout\\(.*\\) *\\[8\\]  *0\n"
                   "3  *Linear\\(in_features=8, out_features=3, bias=true\\) *\\[3\\]  *27\n"
                   "parameters: 47 trained(.|\n)*"));
  EXPECT_TRUE(model.modules().module(0)->is_training());
  EXPECT_THAT(model.summary(), MatchesRegex("layer  kind  *parameters\n(.|\n)*"));
  EXPECT_THAT(message_of<UsageError>([&] { (void)model.summary({1, 5, 4}); }),
              AllOf(HasSubstr("layer \"3\""), HasSubstr("[1, 5, 4]")));
  EXPECT_TRUE(model.modules().module(0)->is_training());
}

// ---- callbacks of steps and passes ----

/// Writes down what it is told of.
std::shared_ptr<Callback> scribe(std::string& story, bool every_worker = false) {
  const auto train = [&](const char* what) {
    return [&story, what](Training& t) {
      story += fmt::format("{} {}/{}\n", what, t.epoch_step(), t.epoch_steps());
    };
  };
  const auto pass = [&](const char* what) {
    return [&story, what](const PassFacts& f) {
      story += fmt::format("{} {}/{} of {}", what, f.batch, f.batches, f.samples);
      for (const auto& [name, value] : f.values) story += ", " + name;
      story += "\n";
    };
  };
  return callbacks::lambda("scribe", {.on_train_begin = train("train begin"),
                                      .on_step_begin = train("step begin"),
                                      .on_step_end = train("step end"),
                                      .on_train_end = train("train end"),
                                      .on_test_begin = pass("test begin"),
                                      .on_test_step_begin = pass("test step begin"),
                                      .on_test_step_end = pass("test step end"),
                                      .on_test_end = pass("test end"),
                                      .on_predict_begin = pass("predict begin"),
                                      .on_predict_step_begin = pass("predict step begin"),
                                      .on_predict_step_end = pass("predict step end"),
                                      .on_predict_end = pass("predict end"),
                                      .on_every_worker = every_worker});
}

TEST(PassCallbacks, SeeBeginAndEndOfTrainTestPredictAndStep) {
  const auto data = three_classes(6).batch(4);
  for (const char* kind : {"one_device", "mirrored"}) {
    Model model = small_model(strategy_of(kind, 2));
    std::string fitted, tested, predicted;
    model.fit(
        data,
        {.validation = three_classes(3).batch(2), .callbacks = {scribe(fitted)}, .verbose = 0});
    EXPECT_EQ(fitted,
              "train begin 0/0\nstep begin 0/2\nstep end 1/2\nstep begin 1/2\nstep end 2/2\n"
              "test begin 0/2 of 3\ntest step begin 0/2 of 3\ntest step end 0/2 of 3\n"
              "test step begin 1/2 of 3\ntest step end 1/2 of 3\n"
              "test end 2/2 of 3, loss, accuracy, top_2_accuracy\ntrain end 2/2\n")
        << kind;
    model.evaluate(data, {}, 0, {scribe(tested)});
    EXPECT_EQ(tested,
              "test begin 0/2 of 6\ntest step begin 0/2 of 6\ntest step end 0/2 of 6\n"
              "test step begin 1/2 of 6\ntest step end 1/2 of 6\n"
              "test end 2/2 of 6, loss, accuracy, top_2_accuracy\n")
        << kind;
    const auto x = column_of_batch(three_classes(6).batch(6), 0, 0);
    model.predict(x, {.batch = 3, .callbacks = {scribe(predicted)}});
    EXPECT_EQ(predicted,
              "predict begin 0/2 of 6\npredict step begin 0/2 of 6\npredict step end 0/2 of 6\n"
              "predict step begin 1/2 of 6\npredict step end 1/2 of 6\npredict end 2/2 of 6\n")
        << kind;
  }
}

TEST(PassCallbacks, ARateSetAtTheBeginOfAStepIsThatOfTheStep) {
  const auto trained = [](const Callbacks& with, std::optional<RateSchedule> rate) {
    Model model(strategy_of("mirrored", 2), [] { return small_graph(); });
    CompileOptions options = adam_and_accuracy();
    options.learning_rate = std::move(rate);
    model.compile(std::move(options));
    model.fit(three_classes(20).batch(10), {.epochs = 2, .callbacks = with, .verbose = 0});
    return model.weights_sha256();
  };
  const auto rate_of = [](int64_t step) { return 0.1 / static_cast<double>(1 + step); };
  const auto at_begin = callbacks::lambda(
      "at begin", {.on_step_begin = [&](Training& t) { t.set_learning_rate(rate_of(t.step())); }});
  EXPECT_EQ(trained({at_begin}, std::nullopt), trained({}, RateSchedule("mine", rate_of)));
}

TEST(PassCallbacks, ThatThrowAreNamedWithTheirPlace) {
  const auto data = three_classes(6).batch(4);
  for (const char* kind : {"one_device", "mirrored"}) {
    Model model = small_model(strategy_of(kind, 2));
    const auto fails = [](const PassFacts& f) {
      if (f.batch == 1) throw Error("no more");
    };
    const auto test = callbacks::lambda("mine", {.on_test_step_end = fails});
    EXPECT_EQ(message_of<Error>([&] { model.evaluate(data, {}, 0, {test}); }),
              "evaluate, batch 2 of 2, callback mine: no more");
    EXPECT_EQ(message_of<Error>([&] {
                model.fit(data, {.validation = data, .callbacks = {test}, .verbose = 0});
              }),
              "fit, validation after epoch 1, batch 2 of 2, callback mine: no more");
    const auto step = callbacks::lambda("mine", {.on_step_begin = [](Training& t) {
                                          if (t.epoch_step() == 1) throw Error("no more");
                                        }});
    EXPECT_EQ(message_of<Error>([&] { model.fit(data, {.callbacks = {step}, .verbose = 0}); }),
              "fit, epoch 1 of 1, step 2 of 2, callback mine: no more");
    EXPECT_EQ(message_of<UsageError>([&] { model.predict(data, {nullptr}); }),
              "callbacks: one of them is null");
  }
}

}  // namespace
}  // namespace tutti
