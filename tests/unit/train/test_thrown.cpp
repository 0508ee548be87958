// What a user's Source or loss throws says where: epoch, step and replica.
#include <torch/torch.h>

#include <algorithm>
#include <stdexcept>

#include "tutti/train/callbacks/callbacks.h"

#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/train/small_model.h"

namespace tutti {
namespace {

struct Missing final : data::Source {
  explicit Missing(bool of_tutti_in) : of_tutti(of_tutti_in) {}
  int64_t num_rows() const override { return 60; }
  const std::vector<data::Column>& columns() const override { return batches.columns(); }
  data::Batch gather(std::span<const int64_t> rows) const override {
    if (std::ranges::find(rows, 40) != rows.end()) {
      if (of_tutti) throw DataError("no JPEG: 40.jpg");
      throw std::runtime_error("no JPEG: 40.jpg");
    }
    data::Batch batch{.columns = {}, .size = std::ssize(rows)};
    for (const data::Column& column : columns())
      batch.columns.push_back(data::make_column(column, batch.size));
    std::ranges::fill(batch.columns[0].as<float>(), 1.0F);
    std::ranges::fill(batch.columns[1].as<int64_t>(), 1);
    return batch;
  }
  data::Dataset batches = three_classes(60);
  bool of_tutti;
};

// Row 40 is in the third of four batches of 15, replica 1's part of 7.
constexpr const char* kSample = "row 40, sample 11 of batch 3 of epoch 1, in read: no JPEG: 40.jpg";

TEST(Thrown, BySourcesNamesEpochStepAndReplica) {
  for (const auto* kind : {"one_device", "mirrored"}) {
    const auto data = [](bool of_tutti) {
      return data::Dataset(std::make_shared<Missing>(of_tutti)).batch(15);
    };
    const auto model = [&] { return small_model(strategy_of(kind, 2)); };
    Model of_users = model();
    EXPECT_EQ(
        message_of<DataError>([&] { of_users.fit(data(false), {.epochs = 2, .verbose = 0}); }),
        "fit, epoch 1 of 2, step 3 of 4, replica 1: " + std::string(kSample));
    Model ours = model();
    EXPECT_EQ(message_of<DataError>([&] { ours.fit(data(true), {.epochs = 2, .verbose = 0}); }),
              "fit, epoch 1 of 2, step 3 of 4, replica 1: " + std::string(kSample));
    Model evaluated = model();
    EXPECT_EQ(message_of<DataError>([&] { evaluated.evaluate(data(true)); }),
              "evaluate, batch 3 of 4, replica 1: " + std::string(kSample));
    Model predicting = model();
    EXPECT_EQ(message_of<DataError>([&] { predicting.predict(data(false)); }),
              "predict, batch 3 of 4, replica 1: " + std::string(kSample));
  }
}

TEST(Thrown, ByALossNamesEpochStepAndReplica) {
  for (const auto* kind : {"one_device", "mirrored"}) {
    Model model(strategy_of(kind, 2), [] { return small_graph(); });
    model.compile({.loss = Loss("mine", [](const at::Tensor& y, const at::Tensor& labels) {
                     if (labels.eq(2).any().item<bool>()) throw std::out_of_range("no such label");
                     return y.sum(1);
                   })});
    const auto flat = three_classes(12).batch(12).epoch({}).batch(0);
    for (int i = 0; i < 12; ++i) flat.columns[1].as<int64_t>()[i] = i == 10 ? 2 : 0;
    EXPECT_EQ(message_of<Error>(
                  [&] { model.fit(data::from_arrays(flat.columns).batch(6), {.verbose = 0}); }),
              "fit, epoch 1 of 1, step 2 of 2, replica 1: no such label")
        << kind;
  }
}

Strategy local_strategy(const char* kind, const LocalUpdates& local) {
  return Strategy(
      {.kind = kind, .replicas = 2, .threads_per_replica = 1, .seed = 7, .local = local});
}

bool are_alike(Model& model) {
  const Updater& updater = model.optimizer().updater();
  for (size_t i = 0; i < updater.parameters(0).size(); ++i)
    if (!updater.parameters(0)[i].equal(updater.parameters(1)[i])) return false;
  return true;
}

// Four updates, of which one is behind the last averaging, as a callback throws.
TEST(Thrown, WhileAMeanIsShownLeavesEachReplicaItsOwn) {
  for (const auto* kind : {"one_device", "mirrored"}) {
    const auto fit = [&](bool throws) {
      Model model = small_model(local_strategy(kind, {.every = 3}));
      const data::Dataset data = three_classes(24).batch(6);
      const auto callback = callbacks::lambda("mine", {.on_epoch_end = [&](Training&) {
                                                EXPECT_TRUE(are_alike(model));
                                                EXPECT_NO_THROW(model.weights_sha256());
                                                if (throws) throw std::runtime_error("no disk");
                                              }});
      const auto first = [&] { model.fit(data, {.callbacks = {callback}, .verbose = 0}); };
      if (throws) {
        EXPECT_THAT(message_of<Error>(first), HasSubstr("callback mine: no disk"));
        EXPECT_FALSE(are_alike(model));
        const char* const why = "1 update after the last averaging each replica has weights";
        EXPECT_THAT(message_of<UsageError>([&] { model.weights_sha256(); }), HasSubstr(why));
        EXPECT_THAT(message_of<UsageError>([&] { model.evaluate(data); }), HasSubstr(why));
        EXPECT_THAT(message_of<UsageError>([&] { model.predict(data); }), HasSubstr(why));
        model.optimizer().updater().averaged()->average();  // as fit() would have
      } else {
        first();
      }
      model.fit(data, {.verbose = 0});
      EXPECT_TRUE(are_alike(model));
      return model.weights_sha256();
    };
    EXPECT_EQ(fit(true), fit(false)) << kind;
  }
}

TEST(Thrown, NothingStaysOfTheWeightsBeforeALoad) {
  const test::TempFolder folder;
  const auto file = folder / "weights.safetensors";
  const LocalUpdates local{.every = 2,
                           .outer = {.learning_rate = 0.7, .momentum = 0.9, .nesterov = true}};
  const data::Dataset data = three_classes(24).batch(6);
  Model other = small_model(strategy_of("mirrored", 2));
  other.fit(data, {.epochs = 3, .verbose = 0});
  other.save(file);
  for (const auto* kind : {"one_device", "mirrored"}) {
    Model before(local_strategy(kind, local), [] { return small_graph(); });
    before.load(file);
    before.compile(adam_and_accuracy());
    Model after = small_model(local_strategy(kind, local));
    after.load(file);
    EXPECT_EQ(after.weights_sha256(), before.weights_sha256());
    for (Model* const one : {&before, &after}) one->fit(data, {.verbose = 0});
    EXPECT_EQ(after.weights_sha256(), before.weights_sha256()) << kind;
  }
}

struct OwnStop final : std::runtime_error {
  using std::runtime_error::runtime_error;
};

TEST(Thrown, AClassOfTheProgramsOwnStaysWhatItIs) {
  for (const auto* kind : {"one_device", "mirrored"}) {
    Model model(strategy_of(kind, 2), [] { return small_graph(); });
    model.compile({.loss = Loss("mine", [](const at::Tensor&, const at::Tensor&) -> at::Tensor {
                     throw OwnStop("enough");
                   })});
    testing::internal::CaptureStderr();
    EXPECT_THROW(model.fit(three_classes(12).batch(6), {.verbose = 0}), OwnStop);
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                HasSubstr("fit, epoch 1 of 1, step 1 of 2, replica 0: enough"))
        << kind;
  }
}

}  // namespace
}  // namespace tutti
