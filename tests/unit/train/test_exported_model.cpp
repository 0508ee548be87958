// Model on networks of .pt2 files (tests/tables/exported/make_for_model.py).
#include <functional>

#include "tutti/checkpoint/folder.h"
#include "tutti/data/safetensors.h"
#include "tutti/exported/module.h"
#include "tutti/loops.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/model/detail/adapters.h"
#include "tutti/train/model/weights.h"

#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/train/exported_nets.h"

namespace tutti {
namespace {

using test::kind_and_height;
using test::places;
using test::TempFolder;

Model picture_model(const Strategy& strategy) {
  Model model(strategy, picture_net());
  model.compile(for_pictures());
  return model;
}

std::string trained_pictures(const std::string& kind, int replicas, uint64_t seed = 7) {
  Model model = picture_model(strategy_of(kind, replicas));
  model.fit(bright_halves(30).shuffle().batch(10), {.epochs = 2, .seed = seed, .verbose = 0});
  return model.weights_sha256();
}

TEST(ExportedModels, DropoutAndBatchNormTrainTheSameAsThreadsAndInTurn) {
  const std::string expected = trained_pictures("one_device", 2);
  EXPECT_EQ(trained_pictures("mirrored", 2), expected);
  EXPECT_EQ(trained_pictures("one_device", 2), expected);
  EXPECT_NE(trained_pictures("one_device", 2, 8), expected);
}

/// both.pt2 as a module of LibTorch.
struct BothByHand : torch::nn::Module {
  BothByHand() {
    place_in = register_module("place_in", torch::nn::Linear(4, 8));
    both = register_module("both", torch::nn::Linear(10, 6));
    kind = register_module("kind", torch::nn::Linear(6, 3));
    height = register_module("height", torch::nn::Linear(6, 1));
  }
  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& in) {
    const auto x = torch::relu(both(torch::cat({torch::relu(place_in(in.at(0))), in.at(1)}, 1)));
    return {kind(x), height(x)};
  }
  torch::nn::Linear place_in{nullptr}, both{nullptr}, kind{nullptr}, height{nullptr};
};

TEST(ExportedModels, TrainsTheBitsOfTheSameModuleOfLibTorch) {
  for (const char* kind : {"one_device", "mirrored"}) {
    const auto trains = [&](auto factory, int64_t inputs) {
      Model model(strategy_of(kind, 2), factory);
      model.compile({.optimizer = optim::adam({.learning_rate = 0.05}),
                     .outputs = kind_and_height(),
                     .num_inputs = inputs});
      model.fit(places(12).batch(6), {.epochs = 3, .verbose = 0});
      return model.weights_sha256();
    };
    const auto by_hand = [] {
      auto module = std::make_shared<BothByHand>();
      detail::copy_values(*both_net()(), *module, kDefaultTimeLimit);
      return module;
    };
    EXPECT_EQ(trains(both_net(), 1), trains(by_hand, 2)) << kind;
  }
}

TEST(ExportedModels, OutputsAreFoundByTheNamesOfTheDictionary) {
  auto outputs = kind_and_height();
  std::swap(outputs[0], outputs[1]);
  Model model(strategy_of("one_device", 1), both_net());
  EXPECT_THAT([&] { model.compile({.outputs = {{.name = "kinds", .loss = outputs[1].loss}}}); },
              ThrowsMessage<UsageError>(HasSubstr("did you mean \"kind\"")));
  EXPECT_THAT([&] { model.compile({.loss = outputs[1].loss}); },
              ThrowsMessage<UsageError>(HasSubstr("\"kind\", \"height\"")));
  EXPECT_THAT([&] { model.compile({.outputs = outputs, .num_inputs = 3}); },
              ThrowsMessage<UsageError>(HasSubstr("num_inputs is 3, the export has 2")));
}

TEST(ExportedModels, EvaluationRunsItsOwnGraph) {
  Model model = picture_model(strategy_of("one_device", 1));
  const auto data = bright_halves(20);
  model.fit(data.batch(10), {.epochs = 3, .validation = data.batch(10), .verbose = 0});
  const std::string before = model.weights_sha256();
  const Scores scores = model.evaluate(data.batch(10));
  const auto columns = data.batch(20).epoch({}).batch(0).columns;
  const at::Tensor images = tensor_of(columns[0]);
  const at::Tensor first = model.predict(images);
  EXPECT_TRUE(at::equal(first, model.predict(images))) << "dropout draws anew";
  EXPECT_NEAR(scores.loss, torch::cross_entropy_loss(first, tensor_of(columns[1])).item<double>(),
              1e-6);
  EXPECT_EQ(model.weights_sha256(), before) << "statistics change in training alone";
}

TEST(ExportedModels, WithoutTheGraphOfEvaluationFitSaysSoBeforeAStep) {
  Model model(strategy_of("one_device", 1), from_export(kExportedNets + "pictures.pt2"));
  model.compile(for_pictures());
  const auto data = bright_halves(20).batch(10);
  const std::string before = model.weights_sha256();
  const auto says = AllOf(HasSubstr("pictures.pt2: was exported for training"),
                          HasSubstr("aten::batch_norm"), HasSubstr(".eval = "));
  EXPECT_THAT([&] { model.fit(data, {.validation = data, .verbose = 0}); },
              ThrowsMessage<UsageError>(says));
  EXPECT_EQ(model.weights_sha256(), before);
  EXPECT_THAT([&] { model.evaluate(data); }, ThrowsMessage<UsageError>(says));
  model.fit(data, {.verbose = 0});
  EXPECT_NE(model.weights_sha256(), before);
}

TEST(ExportedModels, AreComputedAgainWhereASecondForwardIsTheFirst) {
  const parallel::ModelLayout again{.recompute = parallel::Recompute::full()};
  EXPECT_THAT([&] { Model(strategy_of("one_device", 1), picture_net(), again); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("recompute: aten::batch_norm"),
                                              HasSubstr("leave recompute off"))));
  const auto trains = [](const parallel::ModelLayout& layout) {
    Model model(strategy_of("one_device", 2), both_net(), layout);
    model.compile({.outputs = kind_and_height()});
    model.fit(places(12).batch(6), {.verbose = 0, .microbatches = 2});
    return model.weights_sha256();
  };
  EXPECT_EQ(trains(again), trains({}));
}

TEST(ExportedModels, OneGraphServesBothModesWhereNothingInItDiffers) {
  Model model(strategy_of("one_device", 1), both_net());
  model.compile({.outputs = kind_and_height()});
  const auto data = places(12).batch(6);
  model.fit(data, {.validation = data, .verbose = 0});
  EXPECT_GT(model.evaluate(data).loss, 0);
}

TEST(ExportedModels, TheEvalFileIsOfTheSameModel) {
  EXPECT_THAT(
      [] { from_export(kExportedNets + "pictures.pt2", {.eval = kExportedNets + "both.pt2"}); },
      ThrowsMessage<DataError>(AllOf(HasSubstr("both.pt2: is no evaluation of"),
                                     HasSubstr("which training's has not"))));
}

TEST(ExportedModels, DataOfAnotherKindIsRefusedBeforeAStep) {
  Model model = picture_model(strategy_of("one_device", 1));
  EXPECT_THAT(
      [&] { model.fit(three_classes(12).batch(4), {.verbose = 0}); },
      ThrowsMessage<UsageError>(AllOf(HasSubstr("is float32 [4] a sample"), HasSubstr("1, 12, 12"),
                                      HasSubstr("as input \"x\""))));
}

TEST(ExportedModels, SavedWeightsHaveTheNamesOfPython) {
  const TempFolder folder;
  Model model = picture_model(strategy_of("one_device", 1));
  model.fit(bright_halves(20).batch(10), {.verbose = 0});
  model.save(folder / "weights.safetensors");
  const auto file = data::read_safetensors(folder / "weights.safetensors");
  for (const char* name :
       {"conv.weight", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var",
        "norm.num_batches_tracked", "head.weight", "head.bias"})
    EXPECT_NE(file.find(name), nullptr) << name;
  EXPECT_EQ(file.arrays.size(), 8u);
  Model other = picture_model(strategy_of("mirrored", 2));
  EXPECT_NE(other.weights_sha256(), model.weights_sha256());
  other.load(folder / "weights.safetensors");
  EXPECT_EQ(other.weights_sha256(), model.weights_sha256());
}

TEST(ExportedModels, ATrainingGoesOnFromItsCheckpoint) {
  const TempFolder folder;
  const auto data = bright_halves(30).shuffle().batch(10);
  const auto run = [&](const std::filesystem::path& to, std::vector<int64_t> steps) {
    std::string sha;
    for (const int64_t last : steps) {
      Model model = picture_model(strategy_of("mirrored", 2));
      model.fit(data, {.epochs = 2,
                       .max_steps = last,
                       .verbose = 0,
                       .checkpoints = {.folder = to, .every_steps = 1, .resume = true}});
      sha = model.weights_sha256();
    }
    return sha;
  };
  EXPECT_EQ(run(folder / "parts", {2, 5}), run(folder / "whole", {5}));
}

TEST(ExportedModels, LoopsOfOnesOwnTakeThemToo) {
  const auto run = [](const std::string& kind) {
    Strategy strategy = strategy_of(kind, 2);
    const Replicated<ExportedModule> modules(strategy, picture_net());
    Optimizer optimizer(modules, optim::sgd({.learning_rate = 0.1}));
    const auto columns = bright_halves(8).batch(8).epoch({}).batch(0).columns;
    const at::Tensor images = tensor_of(columns[0]), labels = tensor_of(columns[1]);
    for (int step = 0; step < 3; ++step)
      strategy.run([&](ReplicaContext& replica) {
        const auto mine = [&](const at::Tensor& all) {
          return all.slice(0, replica.rank() * 4, replica.rank() * 4 + 4);
        };
        const auto outputs = modules.local(replica)->forward(mine(images));
        optimizer.minimize(
            replica, torch::cross_entropy_loss(outputs, mine(labels), {}, at::Reduction::None), 8);
      });
    return weights_sha256(state_of(*modules.modules().module(0)));
  };
  EXPECT_EQ(run("mirrored"), run("one_device"));
}

struct AdaptedLoop {
  std::string kind = "mirrored";
  double alpha = 4;
  float first_of_base = 0;  ///< 0: as in the file
};

/// Of the whole weights behind `until` steps; with a folder it goes on from what is there.
std::string adapted_loop(const AdaptedLoop& loop, const std::filesystem::path& folder,
                         int64_t until) {
  torch::manual_seed(3);  // draws the adapters
  Strategy strategy = strategy_of(loop.kind, 2);
  const Replicated<ExportedModule> modules(
      strategy, from_export(kExportedNets + "mlp.pt2",
                            {.lora = {{.pattern = "*", .rank = 2, .alpha = loop.alpha}}}));
  if (loop.first_of_base != 0)
    for (int local = 0; local < 2; ++local) {
      const at::NoGradGuard no_grad;
      const auto& base = *detail::adapted(*modules.modules().module(local))->base();
      base.parameters().front().view(-1)[0].fill_(loop.first_of_base);
    }
  Optimizer optimizer(modules, optim::adam({.learning_rate = 0.05}));
  int64_t step = 0;
  Checkpoint checkpoint(strategy, {.folder = folder, .every_steps = 1, .resume = true});
  checkpoint.add("net", modules).add("optimizer", optimizer).add("step", step);
  checkpoint.restore();
  for (; step < until; checkpoint.after_step(++step))
    strategy.run([&](ReplicaContext& replica) {
      const auto x = torch::full({2, 6}, 0.1 * double(step + replica.rank()));
      optimizer.minimize(replica, modules.local(replica)->forward(x).square().mean(1), 4);
    });
  if (!folder.empty()) {
    EXPECT_EQ(checkpoint.end(), "");
  }
  return weights_sha256(merged_state_of(*modules.modules().module(0)));
}

TEST(ExportedModels, LoopsWithAdaptersGoOnBesideTheWeightsThatTheyBeganWith) {
  const TempFolder folder;
  const std::string expected = adapted_loop({}, "", 4);
  EXPECT_NE(adapted_loop({}, folder.path(), 2), expected);
  const auto refused = [&](const AdaptedLoop& loop, const std::string& why) {
    EXPECT_THAT(message_of<UsageError>([&] { adapted_loop(loop, folder.path(), 4); }),
                AllOf(HasSubstr("\"net\""), HasSubstr(why)));
  };
  refused({.first_of_base = 2}, "its adapters stand beside other weights: sha256 ");
  refused({.alpha = 5}, "has other adapters, by matrix and scale (alpha / rank): ");
  const auto other =
      from_export(kExportedNets + "mlp.pt2", {.lora = {{.pattern = "*", .rank = 2, .alpha = 4}}})();
  const auto saved = trainings_in(folder.path()).back();
  detail::load_module(*other, saved);
  EXPECT_NE(weights_sha256(merged_state_of(*other)), expected);
  other->base()->parameters().front().detach().zero_();
  EXPECT_THAT(message_of<UsageError>([&] { detail::load_module(*other, saved); }),
              HasSubstr("its adapters stand beside other weights"));
  EXPECT_EQ(adapted_loop({.kind = "one_device"}, folder.path(), 4), expected);
}

TEST(ExportedModules, SayWhichGraphsTheyRun) {
  const std::string words = c10::str(*picture_net()());
  EXPECT_THAT(words, ContainsRegex("ExportedModule\\(graph [0-9a-f]+, of evaluation [0-9a-f]+\\)"));
  EXPECT_NE(c10::str(*from_export(kExportedNets + "pictures.eval.pt2")()), words);
}

TEST(ExportedModules, ACloneHasItsOwnValues) {
  const auto module = picture_net()();
  const auto copy = std::dynamic_pointer_cast<ExportedModule>(module->clone());
  ASSERT_NE(copy, nullptr);
  const auto x = torch::randn({3, 1, 12, 12});
  module->eval();
  EXPECT_TRUE(copy->is_training());
  copy->eval();
  EXPECT_TRUE(at::equal(module->forward(x), copy->forward(x)));
  {
    const at::NoGradGuard no_grad;
    copy->named_parameters()["head.weight"].zero_();
  }
  EXPECT_FALSE(at::equal(module->forward(x), copy->forward(x)));
}

}  // namespace
}  // namespace tutti
