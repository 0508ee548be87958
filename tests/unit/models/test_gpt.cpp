// models::gpt against a GPT of plain LibTorch, under strategies, and what it refuses.
#include <torch/torch.h>

#include <cmath>

#include "tutti/models/gpt.h"
#include "tutti/nn/graph_module.h"
#include "tutti/nn/sample_context.h"
#include "tutti/train/model/model.h"

#include "tests/support/expect.h"
#include "tests/support/plain_gpt.h"

namespace tutti {
namespace {

using models::GptOptions;

constexpr GptOptions kSmallGpt{
    .vocabulary = 11, .context = 8, .layers = 2, .heads = 2, .features = 12};

TEST(Gpt, LogitsAndGradientsAreThoseOfAPlainOne) {
  for (const bool tied : {true, false}) {
    GptOptions options = kSmallGpt;
    options.tied = tied;
    torch::manual_seed(8);
    const auto module = nn::make_module(models::gpt(options));
    {
      const torch::NoGradGuard no_grad;  // far from the small values it begins with
      for (auto& parameter : module->parameters())
        parameter.add_(torch::randn_like(parameter) * 0.3);
    }
    PlainGpt::Weights weights;
    for (const auto& item : module->named_parameters()) weights[item.key()] = item.value();
    PlainGpt plain(weights, options);
    const auto x = torch::randint(11, {3, 8}, torch::kLong);
    const auto y = torch::randint(11, {3, 8}, torch::kLong);
    const auto got = module->forward(x), expected = plain.logits(x);
    EXPECT_LT((got - expected).abs().max().item<double>(), 1e-5);
    double total = 0;
    losses::sparse_categorical_crossentropy()
        .kernel()
        .scaled_sum(got, y, 1.0 / 3, total)
        .backward();
    torch::cross_entropy_loss(expected.flatten(0, 1), y.flatten()).backward();
    for (const auto& item : module->named_parameters())
      EXPECT_LT((item->grad() - plain.gradient(item.key())).abs().max().item<double>(), 1e-5)
          << item.key();
  }
}

TEST(Gpt, NoPositionSeesWhatComesAfterIt) {
  torch::manual_seed(9);
  const auto module = nn::make_module(models::gpt(kSmallGpt));
  const torch::NoGradGuard no_grad;
  const auto x = torch::randint(11, {1, 8}, torch::kLong);
  const auto before = module->forward(x);
  for (int64_t place = 0; place < 8; ++place) {
    auto changed = x.clone();
    changed[0][place] = (x[0][place] + 1) % 11;
    const auto after = module->forward(changed);
    EXPECT_TRUE(torch::allclose(after.narrow(1, 0, place), before.narrow(1, 0, place), 1e-5, 1e-7));
    EXPECT_FALSE(torch::allclose(after[0][place], before[0][place], 1e-3, 1e-5));
  }
}

TEST(Gpt, BeginsAsGpt2Does) {
  torch::manual_seed(10);
  const auto graph = models::gpt({.vocabulary = 65, .features = 128});
  EXPECT_EQ(graph.num_parameters(),
            65 * 128 + 64 * 128 + 4 * (12 * 128 * 128 + 13 * 128) + 2 * 128);
  const auto module = nn::make_module(graph);
  const auto parameters = module->named_parameters();
  const auto deviation = [&](const char* name) { return parameters[name].std().item<double>(); };
  EXPECT_NEAR(deviation("transformer.wte.weight"), 0.02, 0.001);
  EXPECT_NEAR(deviation("transformer.wpe.weight"), 0.02, 0.001);
  EXPECT_NEAR(deviation("transformer.h.3.attn.c_attn.weight"), 0.02, 0.001);
  EXPECT_NEAR(deviation("transformer.h.3.mlp.c_fc.weight"), 0.02, 0.001);
  EXPECT_NEAR(deviation("transformer.h.3.attn.c_proj.weight"), 0.02 / std::sqrt(8), 0.0005);
  EXPECT_NEAR(deviation("transformer.h.3.mlp.c_proj.weight"), 0.02 / std::sqrt(8), 0.0005);
  EXPECT_EQ(parameters["transformer.h.3.mlp.c_proj.bias"].abs().max().item<double>(), 0);
  const auto logits = module->forward(torch::zeros({1, 64}, torch::kLong));
  EXPECT_NEAR(torch::cross_entropy_loss(logits[0], torch::arange(64)).item<double>(), std::log(65),
              0.1);
}

TEST(Gpt, NReplicasTrainTheSameModel) {
  GptOptions options = kSmallGpt;
  options.dropout = 0.1;
  std::vector<int64_t> x, y;
  for (int64_t i = 0; i < 13 * 8; ++i) x.push_back(i * i % 11);
  for (int64_t i = 0; i < 13 * 8; ++i) y.push_back((i + 1) * (i + 1) % 11);
  const auto train = data::from_arrays({data::array_of(x, {13, 8}), data::array_of(y, {13, 8})})
                         .shuffle()
                         .batch(5);
  const auto trained = [&](const char* kind) {
    Model model(Strategy({.kind = kind, .replicas = 2, .threads_per_replica = 1, .seed = 5}),
                [&] { return models::gpt(options); });
    model.compile(
        {.optimizer = optim::Recipe(optim::adamw({.learning_rate = 3e-3}), {.global_norm = 1.0}),
         .loss = losses::sparse_categorical_crossentropy(),
         .metrics = {metrics::perplexity()}});
    const auto history = model.fit(train, {.epochs = 6, .verbose = 0});
    EXPECT_LT(history.column("train_loss").back(), history.column("train_loss").front());
    return std::pair(model.weights_sha256(), history.column("train_loss"));
  };
  const auto expected = trained("one_device");
  EXPECT_EQ(trained("mirrored"), expected);
  EXPECT_EQ(trained("central_storage"), expected);
}

TEST(Gpt, OptionsOutOfRangeAreRefused) {
  const auto refusal = [](GptOptions options) {
    return message_of<UsageError>([&] { models::gpt(options); });
  };
  EXPECT_THAT(
      refusal({.heads = 5}),
      HasSubstr("5 heads do not divide 128 features; possible: 1, 2, 4, 8, 16, 32, 64, 128"));
  EXPECT_THAT(refusal({.vocabulary = 0}), HasSubstr("vocabulary is 0"));
  EXPECT_THAT(refusal({.context = 0}), HasSubstr("context is 0"));
  EXPECT_THAT(refusal({.layers = 0}), HasSubstr("layers is 0"));
  EXPECT_THAT(refusal({.heads = 0}), HasSubstr("heads is 0"));
  EXPECT_THAT(refusal({.mlp = -1}), HasSubstr("mlp is -1"));
  EXPECT_THAT(refusal({.dropout = 1}), HasSubstr("probability is 1"));
}

}  // namespace
}  // namespace tutti
