// What a first program gets wrong, and the line that says what to write instead.
#include <torch/torch.h>

#include "tests/support/expect.h"
#include "tests/unit/train/small_model.h"

namespace tutti {
namespace {

const char* const kBoth[] = {"one_device", "mirrored"};

template <class T>
data::Dataset with_labels(std::vector<int64_t> shape_of_one) {
  const auto flat = three_classes(24).batch(24).epoch({}).batch(0);
  const auto labels = flat.columns[1].as<int64_t>();
  shape_of_one.insert(shape_of_one.begin(), 24);
  return data::from_arrays(
      {flat.columns[0],
       data::array_of(std::vector<T>(labels.begin(), labels.end()), shape_of_one)});
}

std::string fit_refusal(Model& model, const data::Dataset& data, FitOptions options = {}) {
  options.verbose = 0;
  return message_of<UsageError>([&] { model.fit(data, options); });
}

TEST(Labels, OfEveryIntegerTrainAsInt64Does) {
  const auto trained = [](const char* kind, const data::Dataset& data) {
    Model model = small_model(strategy_of(kind, 2));
    model.fit(data.batch(8), {.epochs = 2, .verbose = 0, .class_weight = {{1, 2.0}}});
    return fmt::format("{} {}", model.weights_sha256(),
                       model.evaluate(data.batch(8)).at("accuracy"));
  };
  for (const auto* kind : kBoth) {
    const std::string expected = trained(kind, with_labels<int64_t>({}));
    EXPECT_EQ(trained(kind, with_labels<int32_t>({})), expected);
    EXPECT_EQ(trained(kind, with_labels<uint8_t>({})), expected);
    EXPECT_EQ(trained(kind, with_labels<int64_t>({1})), expected);
    EXPECT_EQ(trained(kind, with_labels<int32_t>({1})), expected);
  }
}

TEST(Labels, ThatAreFloatsAreToBecomeIntegers) {
  for (const auto* kind : kBoth)
    for (const bool of_one_column : {true, false}) {
      Model model = small_model(strategy_of(kind, 2));
      const auto data = of_one_column ? with_labels<float>({1}) : with_labels<float>({});
      EXPECT_THAT(fit_refusal(model, data.batch(8)),
                  AllOf(HasSubstr("fit, epoch 1 of 1, step 1 of 3, replica "),
                        HasSubstr(of_one_column ? "target Float [4, 1]" : "target Float [4]"),
                        HasSubstr("make them int64")));
    }
}

data::Dataset byte_images(std::vector<int64_t> shape_of_one) {
  shape_of_one.insert(shape_of_one.begin(), 6);
  return data::from_arrays({data::array_of(std::vector<uint8_t>(24, 100), shape_of_one),
                            data::array_of(std::vector<int64_t>(6, 1), {6})});
}

template <class Make>
Model model_of(const char* kind, Make make) {
  Model model(strategy_of(kind, 2), make);
  model.compile({.loss = losses::sparse_categorical_crossentropy()});
  return model;
}

TEST(Images, OfBytesAreToBecomeFloatsBeforeTheFirstStepOfAGraph) {
  Model model = small_model(strategy_of("mirrored", 2));
  EXPECT_THAT(fit_refusal(model, byte_images({4}).batch(6)),
              HasSubstr("fit: column 0 (\"x\") is uint8: convert to float32"));
  EXPECT_THAT(message_of<UsageError>([&] { model.predict(byte_images({4}).batch(6)); }),
              HasSubstr("predict: column 0 (\"x\") is uint8: convert to float32"));
}

struct Converts : torch::nn::Module {
  Converts() { layer = register_module("layer", torch::nn::Linear(4, 3)); }
  at::Tensor forward(const at::Tensor& x) { return layer(x.to(torch::kFloat32) / 255); }
  torch::nn::Linear layer{nullptr};
};

struct LooksUp : torch::nn::Module {
  LooksUp() { table = register_module("table", torch::nn::Embedding(50, 3)); }
  at::Tensor forward(const at::Tensor& x) { return table(x.select(1, 0).to(torch::kLong)); }
  torch::nn::Embedding table{nullptr};
};

TEST(Images, OfBytesAreNamedWhereALayerCannotTakeThem) {
  for (const auto* kind : kBoth) {
    Model flat = model_of(kind, [] { return torch::nn::Sequential(torch::nn::Linear(4, 3)); });
    EXPECT_THAT(fit_refusal(flat, byte_images({4}).batch(6)),
                AllOf(HasSubstr("fit, epoch 1 of 1, step 1 of 1, replica "),
                      HasSubstr("column 0 is uint8: convert to float32")));
    Model image = model_of(kind, [] {
      return torch::nn::Sequential(torch::nn::Conv2d(1, 3, 2), torch::nn::Flatten());
    });
    EXPECT_THAT(fit_refusal(image, byte_images({1, 2, 2}).batch(6)),
                HasSubstr("column 0 is uint8: convert to float32"));
    Model converts = model_of(kind, [] { return Converts(); });
    EXPECT_EQ(converts.fit(byte_images({4}).batch(6), {.verbose = 0}).steps, 1);
    Model looks_up = model_of(kind, [] { return LooksUp(); });
    EXPECT_THAT(fit_refusal(looks_up, byte_images({4}).batch(6)),
                AllOf(HasSubstr("index out of range"), Not(HasSubstr("convert"))));
  }
}

TEST(Monitors, OfAValidationThatThereIsNotSaySo) {
  Model model = small_model(strategy_of("mirrored", 2));
  const auto data = three_classes(12).batch(6);
  const auto stops_by = [](const char* monitor) {
    return Callbacks{callbacks::early_stopping({.monitor = monitor})};
  };
  EXPECT_THAT(fit_refusal(model, data, {.callbacks = stops_by("val_acc")}),
              AllOf(HasSubstr("callback early_stopping: unknown quantity \"val_acc\""),
                    HasSubstr("val_... needs `validation` (--validation)")));
  EXPECT_THAT(
      fit_refusal(model, data,
                  {.validation = three_classes(6).batch(6), .callbacks = stops_by("val_acc")}),
      AllOf(HasSubstr("did you mean \"val_accuracy\"?"), Not(HasSubstr("needs"))));
  EXPECT_THAT(
      fit_refusal(model, data,
                  {.checkpoints = {.folder = "unused", .best_kept = 1, .monitor = "val_acc"}}),
      HasSubstr("val_... needs `validation` (--validation)"));
  EXPECT_EQ(model.optimizer().version(), 0);
}

TEST(Monitors, AreNamedByTheNearestOfAllOutputs) {
  Model model(strategy_of("one_device", 1), [] {
    const auto input = nn::input({4});
    return nn::Graph({{"x", input}},
                     {{"kind", nn::linear(3)(input)}, {"size", nn::linear(3)(input)}});
  });
  const OutputOptions kind{.name = "kind",
                           .loss = losses::sparse_categorical_crossentropy(),
                           .metrics = {metrics::accuracy()}};
  OutputOptions size = kind;
  size.name = "size";
  model.compile({.outputs = {kind, size}});
  const auto flat = three_classes(12).batch(12).epoch({}).batch(0);
  const auto data = data::from_arrays({flat.columns[0], flat.columns[1], flat.columns[1]}).batch(6);
  const auto told = [&](const char* monitor) {
    return fit_refusal(
        model, data,
        {.validation = data, .callbacks = {callbacks::early_stopping({.monitor = monitor})}});
  };
  EXPECT_THAT(told("val_size_acc"), AllOf(HasSubstr("did you mean \"val_size_accuracy\"?"),
                                          HasSubstr("Known: loss, kind_loss, size_loss")));
  EXPECT_THAT(told("val_acc"), HasSubstr("did you mean \"val_kind_accuracy\"?"));
}

TEST(Rates, OfAScheduleAreNotACallbacksToo) {
  for (const auto* kind : kBoth) {
    Model model(strategy_of(kind, 2), [] { return small_graph(); });
    CompileOptions options = adam_and_accuracy();
    options.learning_rate = schedules::constant(0.01);
    model.compile(options);
    const auto data = three_classes(12).batch(6);
    EXPECT_THAT(fit_refusal(model, data,
                            {.epochs = 2,
                             .validation = data,
                             .callbacks = {callbacks::reduce_on_plateau({.patience = 9})}}),
                AllOf(HasSubstr("callback reduce_on_plateau"), HasSubstr("schedule \"constant\"")));
    EXPECT_EQ(model.optimizer().version(), 0);
  }
}

TEST(Shapes, ThatAModelDoesNotTakeNameTheOption) {
  Model model(strategy_of("mirrored", 2), [] {
    const auto input = nn::input({3, 8, 8});
    return nn::Graph(input, nn::linear(3)(nn::flatten()(input)));
  });
  model.compile(adam_and_accuracy());
  EXPECT_THAT(fit_refusal(model, three_classes(12, {1, 2, 2}).batch(6)),
              AllOf(HasSubstr("have shape [1, 2, 2], the model takes [3, 8, 8]"),
                    HasSubstr("make it for [1, 2, 2]: `input` of a network")));
}

TEST(Predict, OfASampleWithoutAnAxisOfSamplesIsRefused) {
  Model graph = small_model(strategy_of("one_device", 1));
  EXPECT_THAT(message_of<UsageError>([&] { graph.predict(torch::ones({4})); }),
              AllOf(HasSubstr("predict: input 1 of 1 is Float [4]; expected samples of [4]"),
                    HasSubstr("x.unsqueeze(0)")));
  EXPECT_THAT(message_of<UsageError>([&] { graph.predict(torch::ones({})); }),
              HasSubstr("expected [samples, ...]"));
  // A module of one's own, whose layer takes eight numbers for one sample's.
  Model module =
      model_of("one_device", [] { return torch::nn::Sequential(torch::nn::Linear(8, 3)); });
  EXPECT_THAT(message_of<UsageError>([&] { module.predict(torch::ones({8})); }),
              HasSubstr("gave Float [3] for 8 samples; expected an axis of 8 first"));
  EXPECT_EQ(module.predict(torch::ones({1, 8})).sizes(), (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(module.predict(torch::ones({0, 8})).sizes(), (std::vector<int64_t>{0, 3}));
}

TEST(Losses, WhoseWeightsAreOfOtherClassesAreRefusedFirst) {
  Model model(strategy_of("one_device", 1), [] { return small_graph(); });
  CompileOptions options = adam_and_accuracy();
  options.loss = losses::sparse_categorical_crossentropy({.class_weights = {1, 2}});
  EXPECT_THAT(test::message_of<UsageError>([&] { model.compile(options); }),
              HasSubstr("sparse_categorical_crossentropy: got 2 class_weights, expected 3"));
}

TEST(Metrics, ThatWouldTakeAllMemoryAreRefusedFirst) {
  static constexpr int64_t kClasses = 50'000;
  const auto options = [] {
    return CompileOptions{.loss = losses::sparse_categorical_crossentropy(),
                          .metrics = {metrics::accuracy(), metrics::confusion_matrix()}};
  };
  const auto says = AllOf(HasSubstr("metric confusion_matrix of outputs of 50000 values keeps "
                                    "2500000000 numbers (18.6 GiB) in each replica"),
                          HasSubstr("4096 classes squared"));
  Model graph(strategy_of("one_device", 1), [] {
    const auto input = nn::input({1});
    return nn::Graph(input, nn::linear(kClasses)(input));
  });
  EXPECT_THAT(message_of<UsageError>([&] { graph.compile(options()); }), says);
  // Of a module the width is known by its outputs.
  const auto module = [&] {
    Model made(strategy_of("mirrored", 2),
               [] { return torch::nn::Sequential(torch::nn::Linear(1, kClasses)); });
    made.compile(options());
    return made;
  };
  const auto two = data::from_arrays({data::array_of(std::vector<float>(2, 1.0F), {2, 1}),
                                      data::array_of(std::vector<int64_t>(2, 1), {2})});
  EXPECT_THAT(message_of<UsageError>([&] { module().evaluate(two.batch(2)); }), says);
  Model trained = module();
  EXPECT_THAT(fit_refusal(trained, two.batch(2)), says);
}

TEST(Metrics, OfBinsAreToldToHaveFewerWhereClassesAreMany) {
  Model model(strategy_of("one_device", 1), [] {
    const auto input = nn::input({1});
    return nn::Graph(input, nn::linear(1'000)(input));
  });
  const auto compile = [&](const Metric& metric) {
    model.compile({.loss = losses::sparse_categorical_crossentropy(), .metrics = {metric}});
  };
  EXPECT_THAT(
      message_of<UsageError>([&] { compile(metrics::average_precision()); }),
      AllOf(HasSubstr("at most 16777216 are allowed, 16777 of each value, of which it keeps "
                      "20002"),
            HasSubstr(".bins"), Not(HasSubstr("squared"))));
  EXPECT_NO_THROW(compile(metrics::average_precision({.bins = 16'777 / 2 - 1})));
  EXPECT_THAT(message_of<UsageError>([&] { compile(metrics::auc({.num_thresholds = 10'000})); }),
              HasSubstr(".num_thresholds"));
}

}  // namespace
}  // namespace tutti
