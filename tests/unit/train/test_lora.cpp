// Low-rank adapters on networks of .pt2 files (tests/tables/exported/make_for_model.py).
#include <torch/torch.h>

#include <type_traits>

#include "tutti/checkpoint/checkpoint.h"
#include "tutti/checkpoint/folder.h"
#include "tutti/data/safetensors.h"
#include "tutti/exported/from_export.h"
#include "tutti/exported/module.h"
#include "tutti/models/gpt.h"
#include "tutti/models/models.h"
#include "tutti/nn/graph_module.h"
#include "tutti/strategy/input/from_tensors.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/model/detail/adapters.h"
#include "tutti/train/model/predictor.h"
#include "tutti/train/model/saved_model.h"
#include "tutti/train/model/weights.h"

#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/train/checkpointed.h"

namespace tutti::lora_tests {  // beside other tests' names
namespace {

const std::string kGpt2File = TUTTI_SOURCE_DIR "/tests/tables/exported/gpt2.pt2";
constexpr int64_t kTokens = 17, kLength = 8, kBatch = 6;

// Attention, a matrix of the feed-forward part by its own scale, and the tied one.
const std::vector<nn::Lora> kLoras = {{.pattern = "*.attn.*", .rank = 2},
                                      {.pattern = "*h.1.mlp.c_fc", .rank = 3, .alpha = 6.0},
                                      {.pattern = "*wte*", .rank = 1}};

FromExport adapted_gpt2(std::vector<nn::Lora> loras = kLoras) {
  return from_export(kGpt2File, {.lora = std::move(loras)});
}

data::Dataset texts(int64_t count) {
  torch::manual_seed(5);
  const auto ids = torch::randint(kTokens, {count, kLength + 1});
  return data::from_tensors({ids.slice(1, 0, kLength).contiguous(), ids.slice(1, 1).contiguous()});
}

at::Tensor ids_of(const data::Dataset& data, int64_t batch, int column) {
  return tensor_of(data.epoch({}).batch(batch).columns.at(static_cast<size_t>(column)));
}

Model model_of(const FromExport& net, const Strategy& strategy = strategy_of("one_device", 1),
               OptimizerChoice optimizer = optim::adam({.learning_rate = 0.02})) {
  Model model(strategy, net);
  model.compile(
      {.optimizer = std::move(optimizer), .loss = losses::sparse_categorical_crossentropy()});
  return model;
}

ExportedModule& first_of(Model& model) {
  return dynamic_cast<ExportedModule&>(*model.modules().module(0));
}

std::string base_sha(Model& model) {
  return weights_sha256({unique_parameters(*first_of(model).base()), {}});
}

TEST(LoraModels, AdaptersAloneAreParametersAndChange) {
  Model model = model_of(adapted_gpt2());
  const auto plain = from_export(kGpt2File)();
  const std::string file_sha = weights_sha256({unique_parameters(*plain), {}});
  const auto ids = ids_of(texts(4).batch(4), 0, 0);
  EXPECT_EQ(base_sha(model), file_sha);
  EXPECT_TRUE(at::equal(model.predict(ids), plain->forward(ids))) << "B is 0 at first";
  model.fit(texts(18).batch(kBatch), {.epochs = 2, .verbose = 0});
  EXPECT_EQ(base_sha(model), file_sha);
  EXPECT_FALSE(at::equal(model.predict(ids), plain->forward(ids)));
  std::vector<std::string> names;
  for (const auto& [name, tensor] : unique_parameters(first_of(model))) {
    names.push_back(name);
    EXPECT_TRUE(tensor.requires_grad()) << name;
    EXPECT_GT(tensor.abs().sum().item<double>(), 0) << name;
  }
  EXPECT_EQ(names.size(), 2 * (2 * 2 + 1 + 1));
  EXPECT_THAT(names, Contains("h.0.attn.c_attn.lora_A.weight"));
  EXPECT_THAT(names, Contains("wte.lora_B.weight"));
}

TEST(LoraModels, StatesOfTheOptimizerAreOfTheAdaptersAlone) {
  Model model = model_of(adapted_gpt2());
  model.fit(texts(12).batch(kBatch), {.verbose = 0});
  // rank * (in + out) of each: width 8, qkv 24, feed-forward 32, 17 tokens.
  constexpr int64_t kAdapters = 2 * 2 * ((8 + 24) + (8 + 8)) + 3 * (8 + 32) + (17 + 8);
  int64_t bytes = 0;
  for (const auto& [name, tensor] : model.optimizer().updater().state().tensors)
    if (name != "scalars") bytes += static_cast<int64_t>(tensor.nbytes());
  EXPECT_EQ(bytes, 2 * 4 * kAdapters) << "two states of Adam, float32";
  EXPECT_THAT(model.summary(), HasSubstr(fmt::format("parameters: {} trained, 1,", kAdapters)));
}

// W is set, dL/dW asked of the network without adapters, and the chain rule written out:
// dB = s dW A^T, dA = s B^T dW; of [in, out] W all of it transposed.
template <class Module>
class ByHand {
 public:
  // `plain` gets the weights that the adapters of `adapted` stand beside.
  ByHand(const Module& adapted, std::shared_ptr<Module> plain) : net_(std::move(plain)) {
    detail::copy_values(*adapted.base(), *net_, kDefaultTimeLimit);
    const auto own = adapted.named_parameters(), weights = net_->named_parameters();
    for (const nn::LoraMatrix& matrix : adapted.adapters()) {
      const at::Tensor w = weights[matrix.name];
      const at::Tensor a = own[matrix.name_of_a()].detach().clone(),
                       b = own[matrix.name_of_b()].detach().clone();
      // Of the file, whose Conv1D are [in, out], the embedding alone is not.
      const bool turned = std::is_same_v<Module, ExportedModule> && matrix.name != "wte.weight";
      parts_.push_back({w, (turned ? w.t() : w).detach().clone(), a, b,
                        matrix.lora.alpha.value_or(double(a.size(0))) / double(a.size(0)), turned});
    }
  }

  double step(const at::Tensor& ids, const at::Tensor& wanted, double rate) {
    for (Part& part : parts_) {
      const at::NoGradGuard no_grad;
      const at::Tensor sum = part.base + part.scale * part.b.mm(part.a);
      part.w.copy_(part.turned ? sum.t() : sum);
      part.w.mutable_grad() = at::Tensor();
    }
    const auto loss = torch::cross_entropy_loss(net_->forward(ids).flatten(0, 1), wanted.flatten());
    loss.backward();
    for (Part& part : parts_) {
      const at::NoGradGuard no_grad;
      const at::Tensor dw = part.turned ? part.w.grad().t() : part.w.grad();
      const at::Tensor da = part.scale * part.b.t().mm(dw), db = part.scale * dw.mm(part.a.t());
      part.a -= rate * da;
      part.b -= rate * db;
    }
    return loss.template item<double>();
  }

  std::vector<at::Tensor> adapters() const {
    std::vector<at::Tensor> all;
    for (const Part& part : parts_) all.insert(all.end(), {part.a, part.b});
    return all;
  }

 private:
  struct Part {
    at::Tensor w, base, a, b;
    double scale;
    bool turned;
  };
  std::shared_ptr<Module> net_;
  std::vector<Part> parts_;
};

template <class Module, class Factory>
void expect_trains_as_by_hand(const Factory& adapted, std::shared_ptr<Module> plain) {
  constexpr double kRate = 0.3;
  Model model(strategy_of("one_device", 1), adapted);
  model.compile({.optimizer = optim::sgd({.learning_rate = kRate}),
                 .loss = losses::sparse_categorical_crossentropy()});
  const auto& module = dynamic_cast<const Module&>(*model.modules().module(0));
  ByHand<Module> by_hand(module, std::move(plain));
  const auto data = texts(4 * kBatch).batch(kBatch);
  double loss = 0;
  for (int64_t batch = 0; batch < 4; ++batch)
    loss += by_hand.step(ids_of(data, batch, 0), ids_of(data, batch, 1), kRate) / 4;
  const History history = model.fit(data, {.verbose = 0});
  EXPECT_NEAR(history.last("train_loss"), loss, 1e-5);
  const auto expected = by_hand.adapters();
  const auto own = unique_parameters(module);
  ASSERT_EQ(own.size(), expected.size());
  for (size_t i = 0; i < own.size(); ++i)
    EXPECT_TRUE(torch::allclose(own[i].second, expected[i], 1e-4, 1e-6)) << own[i].first;
}

nn::Graph small_gpt() {
  return models::gpt({.vocabulary = kTokens,
                      .context = kLength,
                      .layers = 2,
                      .heads = 2,
                      .features = 8,
                      .dropout = 0});
}

TEST(LoraModels, TrainWhatALoopByHandTrains) {
  expect_trains_as_by_hand(adapted_gpt2(), from_export(kGpt2File)());
  expect_trains_as_by_hand([] { return nn::make_module(small_gpt(), kLoras); },
                           nn::make_module(small_gpt()));
}

TEST(LoraGraphs, EveryMatrixOfANetworkIsReadWithItsAdapter) {
  const models::ImageOptions images{.classes = 10, .input = {1, 28, 28}};
  std::vector<nn::Graph> graphs = {small_gpt()};
  for (const char* name : {"mlp", "doodle_cnn", "vit"})
    graphs.push_back(models::model_by_name(name, images));
  for (const nn::Graph& graph : graphs) {
    const at::NoGradGuard no_grad;
    const auto adapted = nn::make_module(graph, {{.pattern = "*", .rank = 1}});
    const auto parameters = adapted->named_parameters();
    for (const auto& one : parameters) one.value().normal_(0, 0.5);
    const auto plain = nn::make_module(graph);
    const auto weights = plain->named_parameters();
    for (const auto& [name, merged] : adapted->merged_parameters()) weights[name].copy_(merged);
    adapted->eval();
    plain->eval();
    const at::Tensor x = graph.num_parameters() == graphs[0].num_parameters()
                             ? torch::randint(kTokens, {3, kLength})
                             : torch::rand({3, 1, 28, 28});
    const at::Tensor y = adapted->forward(x);
    EXPECT_LE((plain->forward(x) - y).abs().max().item<double>(), 1e-6);
    for (const nn::LoraMatrix& matrix : adapted->adapters()) {
      const at::Tensor b = parameters[matrix.name_of_b()], kept = b.clone();
      b.zero_();
      EXPECT_FALSE(at::equal(adapted->forward(x), y)) << matrix.name;
      b.copy_(kept);
    }
  }
}

TEST(LoraGraphs, SavedWeightsAreMergedAndNormsInfer) {
  const TempFolder folder;
  const auto trained = [&](const std::string& kind) {
    Model model(strategy_of(kind, 2), [] {
      return nn::make_module(graph_with_state(), {{.pattern = "linear_*", .rank = 2}});
    });
    model.compile(adam_and_accuracy());
    const auto before = state_of(*model.modules().module(0)).buffers;
    std::vector<at::Tensor> copies;
    for (const auto& [name, buffer] : before) copies.push_back(buffer.clone());
    EXPECT_FALSE(copies.empty());
    model.fit(samples(), {.epochs = 2, .verbose = 0});
    for (size_t i = 0; i < before.size(); ++i)
      EXPECT_TRUE(at::equal(before[i].second, copies[i])) << before[i].first;
    model.save(folder / (kind + ".safetensors"));
    const auto x = torch::ones({3, 1, 2, 2});
    Model plain = load_model(strategy_of("one_device", 1), folder / (kind + ".safetensors"));
    EXPECT_LE((plain.predict(x) - model.predict(x)).abs().max().item<double>(), 1e-6);
    EXPECT_EQ(plain.weights_sha256(), model.weights_sha256());
    return model.weights_sha256();
  };
  EXPECT_EQ(trained("mirrored"), trained("one_device"));
}

TEST(LoraModels, SavedWeightsAreMergedUnderTheNamesOfPython) {
  for (const Precision precision : {Precision::float32, Precision::bfloat16}) {
    const TempFolder folder;
    const auto compiled = [&](const FromExport& net) {
      Model model(strategy_of("one_device", 2), net);
      model.compile({.optimizer = optim::adam({.learning_rate = 0.02}),
                     .loss = losses::sparse_categorical_crossentropy(),
                     .precision = precision});
      return model;
    };
    Model model = compiled(adapted_gpt2());
    model.fit(texts(18).batch(kBatch), {.epochs = 2, .verbose = 0});
    model.save(folder / "w.safetensors");
    std::vector<std::string> names, expected;
    for (const auto& array : data::read_safetensors(folder / "w.safetensors").arrays)
      names.push_back(array.name);
    for (const auto& one : unique_parameters(*from_export(kGpt2File)()))
      expected.push_back(one.first);
    EXPECT_THAT(names, ::testing::UnorderedElementsAreArray(expected));
    const auto ids = ids_of(texts(4).batch(4), 0, 0);
    const at::Tensor wanted = model.predict(ids);
    for (const FromExport& net : {from_export(kGpt2File), adapted_gpt2()}) {
      Model other = compiled(net);
      other.load(folder / "w.safetensors");
      EXPECT_LE((other.predict(ids) - wanted).abs().max().item<double>(), 1e-6);
      EXPECT_EQ(other.weights_sha256(), model.weights_sha256());
    }
  }
}

TEST(LoraModels, ThreadsAndReplicasInTurnTrainTheSameBits) {
  const auto trained = [](const std::string& kind) {
    Model model = model_of(adapted_gpt2(), strategy_of(kind, 2));
    model.fit(texts(20).shuffle().batch(kBatch), {.epochs = 2, .verbose = 0});
    return model.weights_sha256();
  };
  EXPECT_EQ(trained("mirrored"), trained("one_device"));
}

// Trains to each of the steps in turn, by models of their own.
std::string trained_to(const std::vector<int64_t>& steps, const std::filesystem::path& folder,
                       const FromExport& net, const std::filesystem::path& from = {}) {
  std::string sha;
  for (const int64_t last : steps) {
    Model model(strategy_of("mirrored", 2), net);
    if (!from.empty()) model.load(from);
    model.compile({.optimizer = optim::adam({.learning_rate = 0.02}),
                   .loss = losses::sparse_categorical_crossentropy()});
    model.fit(texts(20).shuffle().batch(kBatch),
              {.epochs = 3,
               .max_steps = last,
               .verbose = 0,
               .checkpoints = {.folder = folder, .every_steps = 1, .resume = true}});
    sha = model.weights_sha256();
  }
  return sha;
}

TEST(LoraModels, CheckpointsHaveTheAdaptersAloneAndGoOnBesideTheSameBase) {
  const TempFolder folder;
  const auto parts = folder / "parts";
  const std::string straight = trained_to({9}, folder / "straight", adapted_gpt2());
  EXPECT_EQ(trained_to({3, 9}, parts, adapted_gpt2()), straight);

  const auto newest = trainings_in(parts).back();
  size_t adapters = 0;
  for (const auto& [name, array] : TrainingCheckpoint(newest).tensors()) {
    if (!name.starts_with("parameters/")) continue;
    EXPECT_THAT(name, HasSubstr(".lora_"));
    ++adapters;
  }
  EXPECT_EQ(adapters, 12u);
  Model other = model_of(adapted_gpt2());
  other.load(newest);
  EXPECT_EQ(other.weights_sha256(), straight);

  const auto goes_on = [&](const FromExport& net, const std::filesystem::path& from = {}) {
    return [&, from] { trained_to({12}, parts, net, from); };
  };
  const auto doubled = from_export(kGpt2File)();
  {
    const at::NoGradGuard no_grad;
    doubled->named_parameters()["wpe.weight"].mul_(2);
  }
  save_weights(state_of(*doubled), folder / "doubled.safetensors");
  EXPECT_THAT(goes_on(adapted_gpt2(), folder / "doubled.safetensors"),
              ThrowsMessage<UsageError>(AllOf(HasSubstr("its adapters stand beside other weights"),
                                              HasSubstr("the same --from"))));
  auto scaled = kLoras;
  scaled[1].alpha = 3.0;
  EXPECT_THAT(goes_on(adapted_gpt2(scaled)),
              ThrowsMessage<UsageError>(HasSubstr("has other adapters, by matrix and scale")));
  auto wider = kLoras;
  wider[0] = {.pattern = "*.attn.*", .rank = 4};
  EXPECT_THAT(goes_on(adapted_gpt2(wider)),
              ThrowsMessage<DataError>(HasSubstr("float32 [2, 8] in the file")));
  EXPECT_THAT(goes_on(from_export(kGpt2File)),
              ThrowsMessage<UsageError>(HasSubstr("adapters: true in the checkpoint, false here")));
  EXPECT_EQ(trained_to({9}, parts, adapted_gpt2()), straight) << "nothing has changed";
}

TEST(LoraModels, APredictorTakesWholeWeightsAndAdaptersOfItsBase) {
  const TempFolder folder;
  const auto file = folder / "w.safetensors", checkpoints = folder / "checkpoints";
  Model model = model_of(adapted_gpt2());
  model.fit(texts(12).batch(kBatch), {.verbose = 0, .checkpoints = {.folder = checkpoints}});
  model.save(file);
  const auto ids = ids_of(texts(4).batch(4), 0, 0);
  const at::Tensor expected = model.predict(ids);
  for (const auto& place : {file, checkpoints}) {
    const at::Tensor got = Predictor::load(adapted_gpt2(), place).predict(ids);
    EXPECT_LE((got - expected).abs().max().item<double>(), 1e-6) << place;
  }
  auto scaled = kLoras;
  scaled[1].alpha = 3.0;
  EXPECT_THAT([&] { Predictor::load(adapted_gpt2(scaled), checkpoints); },
              ThrowsMessage<UsageError>(HasSubstr("has other adapters, by matrix and scale")));
  EXPECT_THAT([&] { Predictor::load(from_export(kGpt2File), checkpoints); },
              ThrowsMessage<DataError>(AllOf(HasSubstr("has the adapters of a network (--lora) "
                                                       "alone"),
                                             Not(HasSubstr("is not in the file")))));
}

// Drawn alike where `seed` is.
Model model_with_norms(uint64_t seed) {
  Model model(strategy_of("one_device", 1), [seed] {
    torch::manual_seed(seed);
    return nn::make_module(graph_with_state(), {{.pattern = "linear_*", .rank = 2}});
  });
  model.compile(adam_and_accuracy());
  return model;
}

TEST(LoraGraphs, AdaptersInAFileAreTakenBesideTheBaseThatTheyAreOf) {
  const TempFolder folder;
  const auto file = folder / "adapters.safetensors", bare = folder / "bare.safetensors";
  Model model = model_with_norms(1);
  model.fit(samples(), {.verbose = 0, .checkpoints = {.folder = folder / "checkpoints"}});
  const torch::nn::Module& module = *model.modules().module(0);
  detail::save_adapters(*detail::adapted(module), state_of(module), file);
  save_weights(state_of(module), bare);  // says of no base
  for (const auto& path : {file, bare}) {
    Model other = model_with_norms(1);
    EXPECT_NE(other.weights_sha256(), model.weights_sha256());
    other.load(path);
    EXPECT_EQ(other.weights_sha256(), model.weights_sha256());
  }
  EXPECT_THAT([&] { model_with_norms(2).load(file); },
              ThrowsMessage<UsageError>(HasSubstr("its adapters stand beside other weights")));
  EXPECT_NO_THROW(model_with_norms(2).load(bare));
  EXPECT_THAT([&] { load_model(strategy_of("one_device", 1), folder / "checkpoints"); },
              ThrowsMessage<DataError>(HasSubstr("has the adapters of a network (--lora) alone")));
}

TEST(LoraGraphs, AdaptersAndWhatTheyStandBesideMoveTogether) {
  const auto module = nn::make_module(graph_with_state(), {{.pattern = "linear_*", .rank = 2}});
  for (const bool with_device : {false, true}) {
    if (with_device)
      module->to(at::Device(at::kCPU), at::kDouble);
    else
      module->to(at::kDouble);
    for (const auto& tensors : {module->parameters(), module->base()->parameters()})
      for (const at::Tensor& tensor : tensors) EXPECT_EQ(tensor.scalar_type(), at::kDouble);
    module->to(at::kFloat);
  }
}

TEST(LoraModels, WhatFitsNothingIsSaidWhenTheFileIsRead) {
  EXPECT_THAT([] { adapted_gpt2({{.pattern = "*.attention.*"}}); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("lora \"*.attention.*\": no parameter of"),
                                              HasSubstr("gpt2.pt2 has such a name"))));
  EXPECT_THAT([] { adapted_gpt2({{.pattern = "*.ln_1"}}); },
              ThrowsMessage<UsageError>(HasSubstr("h.0.ln_1.weight [8] and no matrix")));
  EXPECT_THAT([] { adapted_gpt2({{.pattern = "*.c_attn", .rank = 9}}); },
              ThrowsMessage<UsageError>(HasSubstr("expected 1 to 8")));
}

TEST(LoraModules, ACloneHasItsOwnAdaptersAndBase) {
  const auto module = adapted_gpt2()();
  const auto parameters = module->named_parameters();
  {
    const at::NoGradGuard no_grad;
    for (const auto& one : parameters) one.value().normal_();
  }
  const auto copy = std::dynamic_pointer_cast<ExportedModule>(module->clone());
  ASSERT_NE(copy, nullptr);
  const auto sha = [](const ExportedModule& of) { return weights_sha256(merged_state_of(of)); };
  EXPECT_EQ(sha(*copy), sha(*module));
  module->clear_adapters();
  EXPECT_NE(sha(*copy), sha(*module));
  EXPECT_EQ(sha(*module), weights_sha256(state_of(*from_export(kGpt2File)())));
}

}  // namespace
}  // namespace tutti::lora_tests
