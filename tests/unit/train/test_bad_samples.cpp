// What fit() and evaluate() say of a sample that they cannot use: which one of the dataset it is.
#include <torch/torch.h>

#include "tests/support/expect.h"
#include "tests/unit/train/small_model.h"

namespace tutti {
namespace {

data::Dataset with_label(int64_t sample, int64_t label) {
  const auto flat = three_classes(24).batch(24).epoch({}).batch(0);
  flat.columns[1].as<int64_t>()[sample] = label;
  return data::from_arrays(flat.columns).shuffle({.seed = 5});
}

Model scored_model(const char* kind, const Loss& loss, std::vector<Metric> metrics = {}) {
  Model model(strategy_of(kind, 3), [] { return small_graph(); });
  model.compile({.loss = loss, .metrics = std::move(metrics)});
  return model;
}

std::string told(Model& model, const data::Dataset& data, FitOptions options = {}) {
  options.verbose = 0;
  return message_of<DataError>([&] { model.fit(data, options); });
}

// Of 24 samples in batches of 8: with every seed another step and another replica.
TEST(BadSamples, FitNamesTheSampleStepAndReplica) {
  const auto data = with_label(9, 7).batch(8);
  for (const auto* kind : {"one_device", "mirrored"}) {
    for (const uint64_t seed : {1, 2, 3}) {
      Model model = scored_model(kind, losses::sparse_categorical_crossentropy());
      const auto order = data.epoch({.epoch = 0, .seed = seed});
      int64_t place = 0;
      for (int64_t step = 0; step < 3; ++step)
        for (int64_t row = 0; row < 8; ++row)
          if (order.rows(step)[static_cast<size_t>(row)] == 9) place = step * 8 + row;
      const int replica = place % 8 < 3 ? 0 : place % 8 < 6 ? 1 : 2;  // parts of 3, 3 and 2
      EXPECT_EQ(told(model, data, {.epochs = 2, .seed = seed}),
                fmt::format("fit, epoch 1 of 2, step {} of 3, replica {}: "
                            "sparse_categorical_crossentropy: sample 9 of the dataset has label 7, "
                            "but the model gives 3 classes (labels 0 to 2)",
                            place / 8 + 1, replica));
    }
  }
}

TEST(BadSamples, ValidationAndEvaluateNameTheBatch) {
  for (const auto* kind : {"one_device", "mirrored"}) {
    const auto bad = with_label(9, -1).batch(5);
    Model model = scored_model(kind, losses::sparse_categorical_crossentropy());
    EXPECT_THAT(told(model, three_classes(24).batch(8), {.epochs = 2, .validation = bad}),
                MatchesRegex("fit, validation after epoch 1, batch [1-5] of 5, replica [0-2]: "
                             ".*: sample 9 of the dataset has label -1, .*"));
    Model other = scored_model(kind, losses::sparse_categorical_crossentropy());
    EXPECT_THAT(message_of<DataError>([&] { other.evaluate(bad); }),
                MatchesRegex("evaluate, batch [1-5] of 5, replica [0-2]: .*sample 9 of .*"));
  }
}

TEST(BadSamples, MetricsNameTheSample) {
  const Loss any("any", [](const at::Tensor& y, const at::Tensor&) { return y.pow(2).sum(1); });
  for (const Metric& metric : {metrics::accuracy(), metrics::top_k_accuracy(2), metrics::recall(),
                               metrics::confusion_matrix(), metrics::map_at_k(2)}) {
    Model model = scored_model("one_device", any, {metric});
    EXPECT_THAT(told(model, with_label(13, 3).batch(8)),
                AllOf(HasSubstr("metric "), HasSubstr("sample 13 of the dataset has label 3")))
        << metric.name();
  }
}

constexpr int64_t kVocabulary = 5;

// Of 24 samples of three tokens one has another than 0 to 4.
data::Dataset with_token(int64_t sample, int64_t token) {
  std::vector<int64_t> x, y;
  for (int64_t i = 0; i < 24 * 3; ++i) x.push_back(i % kVocabulary);
  for (int64_t i = 0; i < 24; ++i) y.push_back(i % 3);
  x[static_cast<size_t>(sample * 3 + 1)] = token;
  return data::from_arrays({data::array_of(x, {24, 3}), data::array_of(y, {24})});
}

Model model_of_tokens(const char* kind) {
  Model model(strategy_of(kind, 3), [] {
    const auto tokens = nn::input({3}, DType::int64);
    return nn::Graph(tokens, nn::linear(3)(nn::flatten()(nn::embedding(kVocabulary, 4)(tokens))));
  });
  model.compile({.loss = losses::sparse_categorical_crossentropy()});
  return model;
}

// Batches of 8 in parts of 3, 3 and 2, which are cut again: first and last rows of both.
TEST(BadSamples, ATokenBeyondTheVocabularyIsNamedWithItsSample) {
  for (const auto* kind : {"one_device", "mirrored"})
    for (const int microbatches : {1, 2})
      for (const int64_t sample : {8, 10, 15}) {
        Model model = model_of_tokens(kind);
        EXPECT_EQ(told(model, with_token(sample, kVocabulary).batch(8),
                       {.epochs = 1, .microbatches = microbatches}),
                  fmt::format("fit, epoch 1 of 1, step 2 of 3, replica {}: embedding of 5 tokens: "
                              "sample {} of the dataset has token 5 (position 1), expected 0 to 4",
                              sample == 15 ? 2 : 0, sample))
            << kind << ", microbatches " << microbatches;
      }
  Model model = model_of_tokens("mirrored");
  EXPECT_THAT(message_of<DataError>([&] { model.evaluate(with_token(9, -1).batch(8)); }),
              HasSubstr("evaluate, batch 2 of 3, replica 0: embedding of 5 tokens: sample 9 of the "
                        "dataset has token -1 (position 1)"));
}

TEST(BadSamples, ABatchOfOnesOwnHasItsRows) {
  Model model = scored_model("mirrored", losses::sparse_categorical_crossentropy());
  EXPECT_THAT(message_of<DataError>([&] {
                model.train_on_batch(
                    torch::ones({6, 4}), torch::zeros({6}, torch::kLong),
                    {.sample_weights = torch::tensor({1., 1., 1., 1., 1., -2.}, torch::kFloat)});
              }),
              HasSubstr("replica 2: sample weights: sample 5 of the dataset has -2"));
}

}  // namespace
}  // namespace tutti
