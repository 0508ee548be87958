// Checkpoints of models with embedding tables: trainings that go on have the rows of those that
// were not interrupted.
#include <torch/torch.h>

#include <cmath>
#include <map>
#include <tuple>

#include "tutti/checkpoint/checkpoint.h"
#include "tutti/checkpoint/folder.h"
#include "tutti/nn/sparse_embedding.h"
#include "tutti/optim/rule.h"
#include "tutti/ps/values/sparse_table.h"

#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/train/checkpointed.h"

namespace tutti::checkpoint_tables {
namespace {

constexpr int64_t kUsers = 40;

// Rows of users that are seen seldom go, and begin anew; items stay, and are float64.
struct RatingsNet : torch::nn::Module {
  explicit RatingsNet(int64_t idle_pushes)
      : user(register_module(
            "user", nn::SparseEmbedding({.name = "user", .width = 3, .idle_pushes = idle_pushes}))),
        item(register_module(
            "item", nn::SparseEmbedding({.name = "item", .width = 2, .dtype = DType::float64}))),
        out(register_module("out", torch::nn::Linear(5, 3))) {}

  at::Tensor forward(const at::Tensor& keys) {
    return out(torch::cat({user(keys), item(keys.remainder(5)).to(torch::kFloat)}, -1));
  }

  nn::SparseEmbedding user, item;
  torch::nn::Linear out;
};

data::Dataset ratings() {
  std::vector<int64_t> keys, classes;
  for (int64_t i = 0; i < kUsers; ++i) {
    keys.push_back(i * i % 17 - 3);
    classes.push_back(i % 3);
  }
  return data::from_arrays({data::array_of(keys, {kUsers}), data::array_of(classes, {kUsers})})
      .shuffle()
      .batch(6);
}

struct Setting {
  std::string kind = "mirrored";
  optim::Rule rule = optim::adam({.learning_rate = 0.05});
  int64_t idle_pushes = 2;
};

struct Outcome {
  std::string sha256;
  std::map<std::string, at::Tensor> rows;  // of all keys, by table
};

Model not_compiled(const Setting& c) {
  const Strategy strategy({.kind = c.kind, .replicas = 2, .threads_per_replica = 1, .seed = 7});
  return {strategy, [c] { return std::make_shared<RatingsNet>(c.idle_pushes); }};
}

void compile(Model& model, const Setting& c) {
  model.compile({.optimizer = c.rule, .loss = losses::sparse_categorical_crossentropy()});
}

Model compiled(const Setting& c) {
  Model model = not_compiled(c);
  compile(model, c);
  return model;
}

Outcome outcome_of(Model& model) {
  const torch::NoGradGuard no_grad;
  auto& net = dynamic_cast<RatingsNet&>(*model.modules().module(0));
  const at::Tensor keys = torch::arange(-10, 60);
  return {model.weights_sha256(), {{"user", net.user(keys)}, {"item", net.item(keys)}}};
}

Outcome trained(const Setting& c, CheckpointOptions checkpoints, int64_t cut = 0) {
  Model model = compiled(c);
  FitOptions options{.epochs = 3, .verbose = 0, .checkpoints = std::move(checkpoints)};
  if (cut > 0) {
    options.callbacks = cut_after(cut);
    EXPECT_THROW(model.fit(ratings(), std::move(options)), Error);
    return {};
  }
  model.fit(ratings(), std::move(options));
  return outcome_of(model);
}

void expect_equal(const Outcome& a, const Outcome& b) {
  EXPECT_EQ(a.sha256, b.sha256);
  for (const auto& [name, rows] : a.rows) EXPECT_TRUE(rows.equal(b.rows.at(name))) << name;
}

TEST(CheckpointTables, RowsGoOnWithTheirStatesAndAges) {
  for (const Setting& c :
       {Setting{}, Setting{.rule = optim::sgd({.learning_rate = 0.1})},
        Setting{.rule = optim::nadam({.learning_rate = 0.02})},
        Setting{.rule = optim::adam({.learning_rate = 0.01, .beta2 = 0.5, .amsgrad = true})},
        Setting{.rule = optim::adagrad(), .idle_pushes = 0}}) {
    SCOPED_TRACE(c.rule.name());
    const Outcome straight = trained(c, {});
    for (const int64_t cut : {3, 7, 12}) {
      const TempFolder folder;
      trained(c, {.folder = folder.path(), .every_steps = 2}, cut);
      expect_equal(trained(c, {.folder = folder.path(), .every_steps = 2, .resume = true}),
                   straight);
    }
  }
}

TEST(CheckpointTables, GoOnUnderAnotherStrategy) {
  const Outcome straight = trained({}, {});
  for (const char* kind : {"one_device", "central_storage"}) {
    const TempFolder folder;
    trained({}, {.folder = folder.path(), .every_steps = 2}, 7);
    expect_equal(
        trained({.kind = kind}, {.folder = folder.path(), .every_steps = 2, .resume = true}),
        straight);
  }
}

TEST(CheckpointTables, OfAnotherFormAreAnotherTraining) {
  const TempFolder folder;
  trained({}, {.folder = folder.path(), .every_steps = 2}, 7);
  EXPECT_THAT(message_of<UsageError>([&] {
                trained({.idle_pushes = 5},
                        {.folder = folder.path(), .every_steps = 2, .resume = true});
              }),
              AllOf(HasSubstr("embedding tables"), HasSubstr("evicted after 2 idle pushes"),
                    HasSubstr("evicted after 5 idle pushes")));
}

// ---- Model::load ----

std::string said_by_load(Model& model, const std::filesystem::path& path) {
  ::testing::internal::CaptureStderr();
  model.load(path);
  return ::testing::internal::GetCapturedStderr();
}

TEST(CheckpointTables, LoadTakesTheRows) {
  const TempFolder folder;
  const Outcome straight = trained({}, {.folder = folder.path()});
  for (const char* kind : {"one_device", "mirrored", "central_storage"}) {
    SCOPED_TRACE(kind);
    Model model = compiled({.kind = kind});
    EXPECT_EQ(said_by_load(model, trainings_in(folder.path()).back()), "");
    expect_equal(outcome_of(model), straight);
    EXPECT_THAT(message_of<UsageError>([&] { compile(model, {}); }),
                HasSubstr("make the model anew"));
  }
}

TEST(CheckpointTables, LoadSaysWhichRowsItDoesNotTakeAndWhy) {
  const TempFolder folder;
  const Outcome straight = trained({}, {.folder = folder.path()});
  const auto checkpoint = trainings_in(folder.path()).back();
  const auto expect_said = [&](Model model, const std::filesystem::path& path, auto why) {
    EXPECT_THAT(
        said_by_load(model, path),
        AllOf(HasSubstr("rows of embedding tables \"user\", \"item\" stay as they are"), why));
    EXPECT_EQ(model.weights_sha256(), straight.sha256);
  };
  expect_said(not_compiled({}), checkpoint, HasSubstr("compile() the model before"));
  expect_said(compiled({.rule = optim::sgd()}), checkpoint,
              AllOf(HasSubstr("of optimizer adam"), HasSubstr("here it is sgd")));
  expect_said(
      compiled({.idle_pushes = 5}), checkpoint,
      AllOf(HasSubstr("evicted after 2 idle pushes"), HasSubstr("evicted after 5 idle pushes")));
  Model loaded = compiled({});
  loaded.load(checkpoint);
  loaded.save(folder / "weights.safetensors");
  expect_said(compiled({}), folder / "weights.safetensors", HasSubstr("it has none"));
}

// ---- what is read is checked ----

const std::vector<ps::SparseTableSpec> kTables = {{.name = "t", .width = 2},
                                                  {.name = "u", .width = 1}};

// Of two pushes: keys 9 and 4 in the first, nothing in the second.
struct Tables {
  Tables() : rows(rows_here(kTables, optim::adam())), own(*rows), all(kTables, std::move(rows)) {}
  Tables& pushed() {
    std::vector<float> gradients = {1, 2, 3, 4};
    own.push(0, std::vector<uint64_t>{9, 4}, {gradients.data(), 4, DType::float32}, 0.1);
    own.push(0, {}, {gradients.data(), 0, DType::float32}, 0.1);
    return *this;
  }

  std::unique_ptr<SparseTables::Rows> rows;
  SparseTables::Rows& own;
  SparseTables all;
};

template <class T>
Array with(const Array& array, size_t at, T value) {
  Array changed = Array::zeros(array.dtype(), array.shape());
  std::ranges::copy(array.as<T>(), changed.as<T>().begin());
  changed.as<T>()[at] = value;
  return changed;
}

TEST(CheckpointTables, AreArraysByAscendingKey) {
  const auto state = Tables().pushed().all.state();
  EXPECT_THAT(state.at("0/keys").as<uint64_t>(), ElementsAre(4, 9));
  EXPECT_THAT(state.at("0/ages").as<int64_t>(), ElementsAre(1, 1));
  EXPECT_EQ(state.at("0/rows").to_string(), "float32 [2, 2]");
  EXPECT_EQ(state.at("0/state/exp_avg_sq").to_string(), "float32 [2, 2]");
  EXPECT_EQ(state.at("0/scalars").as<double>()[9], 1) << "updates of the second row";
  EXPECT_EQ(state.at("1/rows").to_string(), "float32 [0, 1]");
  EXPECT_EQ(state.size(), 12);
}

TEST(CheckpointTables, WhatIsNotAsItMustBeIsNamedAndChangesNothing) {
  const auto sound = Tables().pushed().all.state();
  const double nan = std::nan("");
  const std::vector<std::tuple<const char*, Array, const char*>> cases = {
      {"0/keys", Array::zeros(DType::int64, {2}), "uint64"},
      {"0/keys", Array::zeros(DType::uint64, {2, 1}), "uint64"},
      {"0/keys", with<uint64_t>(sound.at("0/keys"), 0, 9), "key 9"},
      {"0/rows", Array::zeros(DType::float32, {2, 3}), "float32 [2, 2]"},
      {"0/rows", Array::zeros(DType::float64, {2, 2}), "float32 [2, 2]"},
      {"0/state/exp_avg", Array::zeros(DType::float32, {1, 2}), "float32 [2, 2]"},
      {"0/scalars", Array::zeros(DType::float64, {2, 4}), "float64 [2, 5]"},
      {"0/scalars", with(sound.at("0/scalars"), 4, nan), "a number of updates"},
      {"0/scalars", with(sound.at("0/scalars"), 4, 1e300), "a number of updates"},
      {"0/scalars", with(sound.at("0/scalars"), 1, 2.0), "key 4"},
      {"0/ages", with<int64_t>(sound.at("0/ages"), 1, -1), "key 9 has age -1"},
      {"1/state/other", Array::zeros(DType::float32, {0}), "of none of the 2 tables"},
  };
  for (const auto& [name, array, words] : cases) {
    Tables tables;
    tables.pushed();
    auto state = sound;
    state[name] = array;
    EXPECT_THAT(message_of<DataError>([&] { tables.all.restore(state); }), HasSubstr(words))
        << name;
    EXPECT_EQ(tables.all.state().at("0/keys").num_elements(), 2);
    auto few = sound;
    few.erase(name);
    if (sound.contains(name)) {
      EXPECT_THAT(message_of<DataError>([&] { tables.all.restore(few); }), HasSubstr(name));
    }
  }
}

}  // namespace
}  // namespace tutti::checkpoint_tables
