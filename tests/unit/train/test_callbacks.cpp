#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "tutti/train/callbacks/callbacks.h"
#include "tutti/train/model/weights.h"

#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/train/small_model.h"

namespace tutti {
namespace {

constexpr double kNotValidated = -1;
constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

// A training whose values are written down beforehand.
class Scripted final : public Training {
 public:
  explicit Scripted(std::string monitor) : monitor_(std::move(monitor)), quantities_{monitor_} {}

  int64_t epoch() const override { return epoch_; }
  int64_t epochs() const override { return 100; }
  int64_t step() const override { return epoch_; }
  int64_t epoch_steps() const override { return 1; }
  int64_t epoch_step() const override { return 1; }
  int64_t epoch_samples() const override { return 1; }
  const std::vector<std::string>& quantities() const override { return quantities_; }
  const NamedValues& values() override { return values_; }
  double learning_rate() const override { return rate_; }
  void stop(std::string) override { stopped_ = true; }
  void set_learning_rate(double learning_rate) override { rate_ = learning_rate; }
  void write(const std::filesystem::path&, std::string_view) override {}
  void save(std::filesystem::path path) override { saved_.push_back(path.string()); }
  void keep_weights() override { kept_ = epoch_; }
  void put_back_weights() override { put_back_ = kept_; }

  /// The epochs, from 1, that were run.
  int64_t run(Callback& callback, const std::vector<double>& values) {
    epoch_ = 0;
    stopped_ = false;
    callback.on_train_begin(*this);
    for (const double value : values) {
      values_.clear();
      if (value != kNotValidated) values_ = {{monitor_, value}};
      callback.on_epoch_begin(*this);
      callback.on_epoch_end(*this);
      rates_.push_back(rate_);
      ++epoch_;
      if (stopped_) break;
    }
    callback.on_train_end(*this);
    return epoch_;
  }

  std::vector<double> rates_;
  std::vector<std::string> saved_;
  int64_t kept_ = -1;
  int64_t put_back_ = -1;

 private:
  std::string monitor_;
  std::vector<std::string> quantities_;
  NamedValues values_;
  int64_t epoch_ = 0;
  double rate_ = 1;
  bool stopped_ = false;
};

int64_t epochs_until_stop(const callbacks::EarlyStoppingOptions& options,
                          const std::vector<double>& values) {
  Scripted training(options.monitor);
  return training.run(*callbacks::early_stopping(options), values);
}

// What Keras 3's EarlyStopping does with the same values.
TEST(EarlyStopping, EndsWhenNothingGetsBetter) {
  EXPECT_EQ(epochs_until_stop({}, {3, 2, 1, 1, 0}), 4);
  EXPECT_EQ(epochs_until_stop({.patience = 2}, {3, 2, 2.5, 2.5, 0}), 4);
  EXPECT_EQ(epochs_until_stop({.patience = 2}, {3, 2, 2.5, 1, 2, 2, 0}), 6);
  EXPECT_EQ(epochs_until_stop({.min_delta = 0.5}, {3, 2, 1.6, 0}), 3);
  EXPECT_EQ(epochs_until_stop({.patience = 3}, {3, kNotANumber, kNotANumber, kNotANumber, 0}), 4);
  EXPECT_EQ(epochs_until_stop({.baseline = 1.0}, {3, 2, 1.5, 1.2, 0.5}), 5);
  EXPECT_EQ(epochs_until_stop({.patience = 2, .baseline = 1.0}, {3, 2, 2.5, 0.5}), 3);
  EXPECT_EQ(epochs_until_stop({.start_from_epoch = 3}, {3, 4, 5, 6, 7, 8}), 5);
  EXPECT_EQ(epochs_until_stop({.monitor = "val_accuracy"}, {0.1, 0.2, 0.3, 0.3, 0.4}), 4);
  EXPECT_EQ(
      epochs_until_stop({.monitor = "val_accuracy", .better = Better::lower}, {0.3, 0.2, 0.1, 0.2}),
      4);
  const double none = kNotValidated;
  EXPECT_EQ(epochs_until_stop({.patience = 2}, {3, none, 2, none, none, 2.5, none, 2.5, 0}), 8)
      << "epochs that were not validated are not counted";
}

// Of outputs named "score", "auction" and "f1_x": that they fall is good.
TEST(EarlyStopping, TakesALossForALossWhateverItsOutputIsCalled) {
  for (const auto* monitor : {"score_loss", "val_auction_loss", "f1_x_loss", "accuracy_loss",
                              "val_score_mean_squared_error", "recall_error"}) {
    EXPECT_EQ(epochs_until_stop({.monitor = monitor}, {5, 4, 3, 2, 1}), 5) << monitor;
    EXPECT_EQ(epochs_until_stop({.monitor = monitor}, {1, 2, 3, 4, 5}), 2) << monitor;
    Scripted best(monitor);
    best.run(
        *callbacks::model_checkpoint({.path = "best", .monitor = monitor, .save_best_only = true}),
        {3, 2, 4, 1});
    EXPECT_THAT(best.saved_, SizeIs(3)) << monitor;
  }
  EXPECT_EQ(epochs_until_stop({.monitor = "loss_score"}, {1, 2, 3, 3, 5}), 4);
}

TEST(EarlyStopping, PutsBackTheBestWeightsWhateverEndsIt) {
  Scripted training("val_loss");
  const auto callback = callbacks::early_stopping({.patience = 5, .restore_best_weights = true});
  training.run(*callback, {3, 1, 2, 2});
  EXPECT_EQ(training.put_back_, 1);
}

TEST(ReduceOnPlateau, HasTheRatesOfKeras) {
  Scripted training("val_loss");
  training.run(*callbacks::reduce_on_plateau(
                   {.factor = 0.5, .patience = 2, .cooldown = 1, .min_learning_rate = 0.2}),
               {3, 3, 3, 3, 3, 3, 2, 2, 2, 2, 2, 2});
  EXPECT_THAT(training.rates_,
              ElementsAre(1, 1, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0.2, 0.2, 0.2, 0.2));
}

TEST(LearningRateScheduler, IsAskedBeforeEachEpoch) {
  Scripted training("loss");
  training.run(*callbacks::learning_rate_scheduler(
                   [](int64_t epoch, double rate) { return epoch < 2 ? rate : rate / 2; }),
               {1, 1, 1, 1});
  EXPECT_THAT(training.rates_, ElementsAre(1, 1, 0.5, 0.25));
}

// What a checkpoint of the training keeps: null would forget that nothing is better.
TEST(ModelCheckpoint, AnInfiniteBestIsKept) {
  const auto callback = [] {
    return callbacks::model_checkpoint(
        {.path = "best", .monitor = "val_accuracy", .save_best_only = true});
  };
  const auto first = callback(), again = callback();
  Scripted("val_accuracy").run(*first, {1, std::numeric_limits<double>::infinity()});
  again->restore(first->state());
  EXPECT_EQ(again->state(), first->state());
  EXPECT_NE(again->state(), "null");
}

TEST(ModelCheckpoint, NamesFilesByEpochAndValue) {
  Scripted every("val_loss");
  every.run(*callbacks::model_checkpoint({.path = "w-{epoch}-{val_loss}.safetensors"}), {2, 1});
  EXPECT_THAT(every.saved_, ElementsAre("w-0001-2.0000.safetensors", "w-0002-1.0000.safetensors"));
  Scripted best("val_loss");
  best.run(*callbacks::model_checkpoint({.path = "best", .save_best_only = true}), {2, 3, 1, 1});
  EXPECT_THAT(best.saved_, SizeIs(2));
}

TEST(Callbacks, BadOptionsAreNamed) {
  const auto message = [](auto&& make) { return message_of<UsageError>(make); };
  EXPECT_THAT(message([] { callbacks::early_stopping({.patience = -1}); }),
              AllOf(HasSubstr("early_stopping"), HasSubstr("patience = -1")));
  EXPECT_THAT(message([] { callbacks::reduce_on_plateau({.factor = 1}); }),
              AllOf(HasSubstr("factor = 1"), HasSubstr("0 < factor < 1")));
  EXPECT_THAT(message([] { callbacks::model_checkpoint({}); }), HasSubstr("path"));
  EXPECT_THAT(message([] { callbacks::csv_logger(""); }), HasSubstr("path"));
}

// ---- in a fit ----

TEST(FitCallbacks, RunInOrderOnTheChief) {
  for (const char* kind : {"one_device", "mirrored"}) {
    Model model = small_model(strategy_of(kind, 3));
    std::string story;
    const auto note = [&](const char* what) {
      return [&story, what](Training& t) {
        story += fmt::format("{}{}.{} ", what, t.epoch(), t.step());
      };
    };
    const auto tells = callbacks::lambda("tells", {.on_train_begin = note("begin"),
                                                   .on_epoch_begin = note("epoch"),
                                                   .on_step_end = note("step"),
                                                   .on_epoch_end = note("end"),
                                                   .on_train_end = note("over")});
    const auto reads = callbacks::lambda("reads", {.on_epoch_end = [](Training& t) {
                                           EXPECT_GT(t.at("loss"), 0);
                                           EXPECT_GT(t.at("val_accuracy"), 0);
                                         }});
    model.fit(three_classes(20).batch(10), {.epochs = 2,
                                            .validation = three_classes(9).batch(9),
                                            .callbacks = {tells, reads},
                                            .verbose = 0});
    EXPECT_EQ(story,
              "begin0.0 epoch0.0 step0.1 step0.2 end0.2 epoch1.2 step1.3 step1.4 end1.4 over1.4 ")
        << kind;
  }
}

TEST(FitCallbacks, EndTheTrainingAfterTheSameStepEverywhere) {
  for (const char* kind : {"one_device", "mirrored"}) {
    Model model = small_model(strategy_of(kind, 3));
    const auto stops = callbacks::lambda("stops", {.on_step_end = [](Training& t) {
                                           if (t.step() == 5) t.stop("enough");
                                         }});
    const History history =
        model.fit(three_classes(40).batch(10), {.epochs = 9, .callbacks = {stops}, .verbose = 0});
    EXPECT_EQ(history.steps, 5) << kind;
    EXPECT_EQ(model.optimizer().version(), 5) << kind;
    EXPECT_THAT(history.rows, SizeIs(2)) << kind;
  }
}

TEST(FitCallbacks, ThatThrowAreNamed) {
  for (const bool in_step : {true, false}) {
    Model model = small_model(strategy_of("mirrored", 2));
    const auto fails = [](Training&) { throw std::runtime_error("no disk"); };
    const auto callback = in_step ? callbacks::lambda("mine", {.on_step_end = fails})
                                  : callbacks::lambda("mine", {.on_epoch_end = fails});
    EXPECT_EQ(message_of<Error>([&] {
                model.fit(three_classes(20).batch(10), {.callbacks = {callback}, .verbose = 0});
              }),
              in_step ? "fit, epoch 1 of 1, step 1 of 2, callback mine: no disk"
                      : "fit, epoch 1 of 1, after 2 of 2 steps, callback mine: no disk");
    model.fit(three_classes(20).batch(10), {.verbose = 0});  // the model is as good as before
  }
  Model model = small_model(strategy_of("mirrored", 2));
  EXPECT_THAT(message_of<UsageError>([&] {
                model.fit(three_classes(20).batch(10),
                          {.callbacks = {callbacks::early_stopping()}, .verbose = 0});
              }),
              AllOf(HasSubstr("callback early_stopping"), HasSubstr("val_loss")));
}

TEST(FitCallbacks, SaveAndKeepWeightsAfterAnEpochAlone) {
  const TempFolder folder;
  const std::pair<std::string, std::function<void(Training&)>> asks[] = {
      {"save: ", [&](Training& training) { training.save(folder / "weights"); }},
      {"keep_weights: ", [](Training& training) { training.keep_weights(); }},
      {"put_back_weights: ", [](Training& training) { training.put_back_weights(); }},
  };
  for (const auto* kind : {"one_device", "mirrored"})
    for (const auto& [name, ask] : asks) {
      Model model = small_model(strategy_of(kind, 2));
      EXPECT_THAT(message_of<UsageError>([&] {
                    model.fit(three_classes(20).batch(10),
                              {.callbacks = {callbacks::lambda("mine", {.on_step_end = ask})},
                               .verbose = 0});
                  }),
                  AllOf(HasSubstr("callback mine: " + name), HasSubstr("on_epoch_end")));
      EXPECT_EQ(model.optimizer().version(), 1);
      model.fit(three_classes(20).batch(10),
                {.callbacks = {callbacks::lambda("mine", {.on_epoch_end = ask})}, .verbose = 0});
    }
}

TEST(FitCallbacks, EndAtALossThatIsNotFinite) {
  Model model(strategy_of("mirrored", 2), [] { return small_graph(); });
  CompileOptions options = adam_and_accuracy();
  options.optimizer = optim::sgd({.learning_rate = 1e30});
  model.compile(std::move(options));
  const History history =
      model.fit(three_classes(40).batch(10), {.epochs = 5,
                                              .callbacks = {callbacks::terminate_on_nan()},
                                              .verbose = 0,
                                              .on_nan = OnNan::go_on});
  EXPECT_LT(history.steps, 20);
  EXPECT_GE(history.steps, 2);
}

TEST(FitCallbacks, GoOnInALogThatIsThere) {
  const TempFolder folder;
  Model model = small_model(strategy_of("one_device", 1));
  const auto fit = [&](bool append, std::optional<data::Dataset> validation = {}) {
    model.fit(three_classes(20).batch(10),
              {.validation = validation,
               .callbacks = {callbacks::csv_logger(folder / "log.csv", append)},
               .verbose = 0});
    std::ifstream file(folder / "log.csv");
    return std::count(std::istreambuf_iterator<char>(file), {}, '\n');
  };
  EXPECT_EQ(fit(true), 2);
  EXPECT_EQ(fit(true), 3);
  EXPECT_EQ(fit(false), 2);
  EXPECT_THAT(message_of<UsageError>([&] { fit(true, three_classes(9).batch(9)); }),
              HasSubstr("has other columns: epoch,learning_rate,loss,accuracy,top_2_accuracy;"));
}

TEST(FitCallbacks, GiveBackTheBestWeights) {
  for (const char* kind : {"one_device", "mirrored"}) {
    Model model = small_model(strategy_of(kind, 2));
    std::vector<std::string> fingerprints;
    const auto keeps =
        callbacks::lambda("keeps", {.on_epoch_end =
                                        [&](Training& t) {
                                          if (t.epoch() == 1) t.keep_weights();
                                        },
                                    .on_train_end = [](Training& t) { t.put_back_weights(); }});
    const data::Dataset data = three_classes(20).batch(10);
    Model other = small_model(strategy_of(kind, 2));
    other.fit(data, {.epochs = 2, .verbose = 0});
    model.fit(data, {.epochs = 4, .callbacks = {keeps}, .verbose = 0});
    EXPECT_EQ(model.weights_sha256(), other.weights_sha256()) << kind;
  }
}

// That TensorBoard reads such files is tested beside their writer.
TEST(FitCallbacks, WriteEventFilesForTensorBoard) {
  const TempFolder folder;
  Model model = small_model(strategy_of("mirrored", 2));
  model.fit(three_classes(20).batch(10), {.epochs = 2,
                                          .validation = three_classes(9).batch(9),
                                          .callbacks = {callbacks::tensorboard(folder / "run")},
                                          .verbose = 0});
  const auto text_of = [&](const char* part) {
    std::string all;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "run" / part)) {
      std::ifstream file(entry.path(), std::ios::binary);
      all.append(std::istreambuf_iterator<char>(file), {});
    }
    return all;
  };
  EXPECT_THAT(text_of("train"), AllOf(HasSubstr("epoch_loss"), HasSubstr("epoch_accuracy"),
                                      HasSubstr("epoch_learning_rate")));
  EXPECT_THAT(text_of("validation"), AllOf(HasSubstr("epoch_loss"), HasSubstr("epoch_accuracy"),
                                           Not(HasSubstr("learning_rate"))));
}

TEST(FitCallbacks, SaveAndLogAndSchedule) {
  const TempFolder folder;
  Model model = small_model(strategy_of("mirrored", 2));
  const auto rate = callbacks::learning_rate_scheduler(
      [](int64_t epoch, double) { return epoch == 0 ? 0.01 : 0.005; });
  const auto save = callbacks::model_checkpoint({.path = folder / "w-{epoch}.safetensors"});
  const History history =
      model.fit(three_classes(20).batch(10),
                {.epochs = 2,
                 .callbacks = {rate, save, callbacks::csv_logger(folder / "log.csv")},
                 .verbose = 0});
  EXPECT_EQ(model.optimizer().learning_rate(), 0.005);
  Model loaded = small_model(strategy_of("one_device", 1));
  loaded.load(folder / "w-0002.safetensors");
  EXPECT_EQ(loaded.weights_sha256(), model.weights_sha256());
  std::ifstream file(folder / "log.csv");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  EXPECT_EQ(text, fmt::format("epoch,learning_rate,loss,accuracy,top_2_accuracy\n"
                              "1,0.01,{},{},{}\n2,0.005,{},{},{}\n",
                              history.rows[0][0], history.rows[0][1], history.rows[0][2],
                              history.rows[1][0], history.rows[1][1], history.rows[1][2]));
}

// ---- disks that fail ----

TEST(FitCallbacks, OnAFullDiskTheTrainingGoesOn) {
  const TempFolder folder;
  std::filesystem::create_symlink("/dev/full", folder / "weights");
  for (const char* kind : {"one_device", "mirrored"}) {
    const auto train = [&](Callbacks given) {
      Model model = small_model(strategy_of(kind, 2));
      const History history = model.fit(three_classes(20).batch(10),
                                        {.epochs = 3, .callbacks = std::move(given), .verbose = 0});
      return std::pair{history, model.weights_sha256()};
    };
    testing::internal::CaptureStderr();
    const auto [history, sha256] =
        train({callbacks::csv_logger("/dev/full", true),  // which reads as zeros without an end
               callbacks::model_checkpoint({.path = folder / "weights"})});
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_EQ(std::pair(history.rows.size(), sha256), std::pair(size_t{3}, train({}).second));
    EXPECT_THAT(history.lost, ElementsAre(AllOf(HasSubstr("/dev/full"), HasSubstr("No space left")),
                                          AllOf(HasSubstr((folder / "weights").string()),
                                                HasSubstr("No space left"))));
    const auto first = said.find("the training goes on without it");
    const auto second = said.find("the training goes on without it", first + 1);
    EXPECT_NE(second, std::string::npos) << said;
    EXPECT_EQ(said.find("the training goes on", second + 1), std::string::npos) << said;
  }
}

TEST(FitCallbacks, WhatALaterWriteHasIsNotLost) {
  const TempFolder folder;
  for (const char* name : {"log.csv", "weights"})
    std::filesystem::create_symlink("/dev/full", folder / name);
  const auto makes_room = [&](Training& training) {
    if (training.epoch() == 1)
      for (const char* name : {"log.csv", "weights"}) std::filesystem::remove(folder / name);
  };
  Model model = small_model(strategy_of("mirrored", 2));
  const History history =
      model.fit(three_classes(20).batch(10),
                {.epochs = 3,
                 .callbacks = {callbacks::lambda("makes room", {.on_epoch_begin = makes_room}),
                               callbacks::csv_logger(folder / "log.csv"),
                               callbacks::model_checkpoint({.path = folder / "weights"})},
                 .verbose = 0});
  EXPECT_THAT(history.lost, IsEmpty());
  EXPECT_THAT(get_bytes(folder / "log.csv"),
              AllOf(HasSubstr("\n1,"), HasSubstr("\n2,"), HasSubstr("\n3,")));
  Model loaded = small_model(strategy_of("one_device", 1));
  loaded.load(folder / "weights");
  EXPECT_EQ(loaded.weights_sha256(), model.weights_sha256());
}

TEST(FitCallbacks, ALogWithoutAFolderIsRefusedBeforeTheFirstStep) {
  Model model = small_model(strategy_of("mirrored", 2));
  EXPECT_THAT(message_of<UsageError>([&] {
                model.fit(three_classes(20).batch(10),
                          {.callbacks = {callbacks::csv_logger("/not/there.csv")}, .verbose = 0});
              }),
              AllOf(HasSubstr("callback csv_logger"), HasSubstr("no folder /not")));
  EXPECT_EQ(model.optimizer().version(), 0);
}

TEST(Callbacks, AProgressBarWritesALineAnEpoch) {
  const TempFolder folder;
  std::FILE* const out = std::fopen((folder / "log").c_str(), "w");
  Model model = small_model(strategy_of("mirrored", 2));
  model.fit(three_classes(20).batch(8),
            {.epochs = 2, .callbacks = {callbacks::progress_bar(out)}, .verbose = 0});
  std::fclose(out);
  std::ifstream file(folder / "log");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(text, AllOf(HasSubstr("epoch 1/2  loss "), HasSubstr("epoch 2/2  loss "),
                          HasSubstr("accuracy"), HasSubstr("images/s\n")));
}

}  // namespace
}  // namespace tutti
