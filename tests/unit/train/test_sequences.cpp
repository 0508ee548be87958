// Targets with a label a position: losses, metrics, and N replicas as one.
#include <torch/torch.h>

#include <cmath>

#include "tutti/sync/tensors.h"

#include "tests/support/expect.h"
#include "tests/unit/train/padded.h"
#include "tests/unit/train/small_model.h"

namespace tutti {
namespace {

struct SequenceLoss {
  double total = 0;
  at::Tensor gradient;
};

SequenceLoss of_kernel(const Loss& loss, const at::Tensor& logits, const at::Tensor& labels,
                       const at::Tensor& weights = {}) {
  SequenceLoss result;
  const auto leaf = logits.detach().clone().requires_grad_();
  loss.kernel().scaled_sum(leaf, labels, 0.25, result.total, weights).backward();
  result.gradient = leaf.grad();
  return result;
}

/// Position by position, in double.
SequenceLoss sequence_loss_slowly(const at::Tensor& logits, const at::Tensor& labels,
                                  const at::Tensor& weights,
                                  const std::vector<double>& class_weights) {
  const auto leaf = logits.detach().to(torch::kDouble).requires_grad_();
  at::Tensor sum = torch::zeros({}, torch::kDouble);
  for (int64_t row = 0; row < logits.size(0); ++row) {
    const auto flat = labels[row].flatten();
    const auto rows = leaf[row].reshape({flat.numel(), logits.size(-1)});
    for (int64_t place = 0; place < flat.numel(); ++place) {
      const auto label = flat[place].item<int64_t>();
      const double weight = (weights.defined() ? weights[row].item<double>() : 1) *
                            (class_weights.empty() ? 1 : class_weights[static_cast<size_t>(label)]);
      sum = sum - weight / static_cast<double>(flat.numel()) * rows[place].log_softmax(0)[label];
    }
  }
  (sum * 0.25).backward();
  return {sum.item<double>(), leaf.grad()};
}

TEST(Sequences, CrossEntropyIsTheMeanOverPositions) {
  torch::manual_seed(5);
  const std::vector<double> uneven{0.5, 2, 1, 0, 3};
  for (const auto& shape : {std::vector<int64_t>{4, 6}, {4, 1}, {3, 2, 2}}) {
    std::vector<int64_t> of_logits = shape;
    of_logits.push_back(5);
    const auto logits = torch::randn(of_logits) * 3;
    const auto labels = torch::randint(5, shape, torch::kInt64);
    for (const at::Tensor& weights : {at::Tensor(), torch::rand({shape[0]})})
      for (const auto& class_weights : {std::vector<double>{}, uneven}) {
        const auto loss = losses::sparse_categorical_crossentropy({.class_weights = class_weights});
        const auto expected = sequence_loss_slowly(logits, labels, weights, class_weights);
        // The fused pass, and LibTorch's way for another dtype.
        for (const at::Tensor& given : {logits, logits.to(torch::kDouble)}) {
          const auto got = of_kernel(loss, given, labels, weights);
          EXPECT_NEAR(got.total, expected.total, 1e-5);
          EXPECT_TRUE(
              torch::allclose(got.gradient.to(torch::kDouble), expected.gradient, 1e-5, 1e-7));
          double evaluated = 0;
          loss.kernel().add_to(given, labels, evaluated, weights);
          EXPECT_NEAR(evaluated, got.total, 1e-9);
        }
        EXPECT_EQ(loss.kernel().per_sample(logits, labels).sizes(),
                  (std::vector<int64_t>{shape[0]}));
      }
  }
}

TEST(Sequences, SmoothedAndOfProbabilitiesTheSame) {
  torch::manual_seed(6);
  const auto logits = torch::randn({3, 4, 5});
  const auto labels = torch::randint(5, {3, 4}, torch::kInt64);
  const auto flat = [&](const Loss& loss, const at::Tensor& outputs) {
    return loss.kernel().per_sample(outputs.flatten(0, 1), labels.flatten()).view({3, 4}).mean(1);
  };
  const auto smooth = losses::sparse_categorical_crossentropy({.label_smoothing = 0.1});
  EXPECT_TRUE(torch::allclose(smooth.kernel().per_sample(logits, labels), flat(smooth, logits)));
  const auto chances = losses::sparse_categorical_crossentropy({.from_logits = false});
  const auto outputs = logits.softmax(-1);
  EXPECT_TRUE(
      torch::allclose(chances.kernel().per_sample(outputs, labels), flat(chances, outputs)));
}

TEST(Sequences, BadLabelsAndShapesAreNamed) {
  const auto loss = losses::sparse_categorical_crossentropy();
  const auto refusal = [&](const at::Tensor& labels) {
    return message_of<Error>([&] { of_kernel(loss, torch::zeros({2, 3, 4}), labels); });
  };
  EXPECT_THAT(
      refusal(torch::tensor({{0, 1, 2}, {0, 4, 0}}, torch::kInt64)),
      AllOf(HasSubstr("row 1"), HasSubstr("label 4 at position 1"), HasSubstr("labels 0 to 3")));
  for (const auto& shape : {std::vector<int64_t>{2}, {2, 1}, {2, 4}, {3, 3}, {2, 3, 1}})
    EXPECT_THAT(refusal(torch::zeros(shape, torch::kInt64)),
                HasSubstr("of sequences [batch, length, classes] and [batch, length]"));
}

constexpr int64_t kPositions = 6, kTokens = 5;

/// What comes next is the double of it, but for some.
data::Dataset doubled(int64_t samples) {
  std::vector<int64_t> x, y;
  for (int64_t i = 0; i < samples * kPositions; ++i) {
    x.push_back((i * i + i / 7) % kTokens);
    y.push_back(i % 11 == 0 ? 0 : 2 * x.back() % kTokens);
  }
  return data::from_arrays(
      {data::array_of(x, {samples, kPositions}), data::array_of(y, {samples, kPositions})});
}

Model doubling_model(const Strategy& strategy) {
  Model model(strategy, [] {
    const auto tokens = nn::input({kPositions}, DType::int64);
    const auto embedding = nn::embedding(kTokens, 8).named("tokens_in");
    auto x = nn::relu()(nn::linear(8)(embedding(tokens)));
    return nn::Graph(tokens, nn::tied_linear(embedding)(nn::dropout(0.1)(x)));
  });
  model.compile(
      {.optimizer = optim::Recipe(optim::adamw({.learning_rate = 0.02}), {.global_norm = 1.0}),
       .loss = losses::sparse_categorical_crossentropy(),
       .metrics = {metrics::perplexity(), metrics::accuracy(), metrics::confusion_matrix()}});
  return model;
}

TEST(Sequences, NReplicasTrainTheSameModelAsOneDevice) {
  const auto train = doubled(23).shuffle().batch(7);  // the last has 2, of 3 replicas one has none
  const auto trained = [&](const char* kind) {
    Model model = doubling_model(strategy_of(kind, 3));
    const History history = model.fit(train, {.epochs = 3, .verbose = 0});
    return std::tuple(model.weights_sha256(), history.column("train_loss").back(),
                      history.column("perplexity").back());
  };
  const auto expected = trained("one_device");
  for (const char* kind : {"mirrored", "central_storage"}) EXPECT_EQ(trained(kind), expected);
}

TEST(Sequences, OneReplicaWithTheWholeBatchTakesTheSameStep) {
  const auto step = [](int replicas) {
    const auto tokens = nn::input({kPositions}, DType::int64);
    const auto embedding = nn::embedding(kTokens, 8).named("tokens_in");
    Model model(strategy_of("one_device", replicas),
                [&] { return nn::Graph(tokens, nn::tied_linear(embedding)(embedding(tokens))); });
    model.compile({.optimizer = optim::sgd({.learning_rate = 0.5}),
                   .loss = losses::sparse_categorical_crossentropy()});
    model.fit(doubled(5).batch(5), {.verbose = 0});
    return model.modules().module(0)->parameters()[0].detach().clone();
  };
  EXPECT_TRUE(torch::allclose(step(1), step(2), 1e-5, 1e-6));
}

TEST(Sequences, MetricsCountPositions) {
  Model model = doubling_model(strategy_of("mirrored", 2));
  model.fit(doubled(20).batch(5), {.epochs = 20, .verbose = 0});
  const auto test = doubled(9);
  const Scores scores = model.evaluate(test.batch(4));
  EXPECT_NEAR(scores.at("perplexity"), std::exp(scores.loss), 1e-5);
  const auto all = test.batch(9).epoch({}).batch(0);
  const auto said = model.predict(tensor_of(all.columns[0])).argmax(-1);
  const auto right = said.eq(tensor_of(all.columns[1])).to(torch::kDouble).mean().item<double>();
  EXPECT_NEAR(scores.at("accuracy"), right, 1e-12);
  EXPECT_GT(right, 0.8);
  double counted = 0;
  for (const auto& row : scores.matrix("confusion_matrix"))
    for (const double count : row) counted += count;
  EXPECT_EQ(counted, 9 * kPositions);
  EXPECT_EQ(scores.samples, 9);
}

TEST(Sequences, WhatGoesInMustBeWhatTheModelReads) {
  Model model = doubling_model(strategy_of("one_device", 1));
  const auto floats =
      data::from_arrays({data::array_of(std::vector<float>(12), {2, kPositions}),
                         data::array_of(std::vector<int64_t>(12), {2, kPositions})});
  EXPECT_THAT(message_of<UsageError>([&] { model.fit(floats.batch(2), {.verbose = 0}); }),
              HasSubstr("is float32, the model takes int64"));
  EXPECT_THAT(message_of<UsageError>([&] {
                model.fit(doubled(4).batch(2), {.verbose = 0, .class_weight = {{1, 2.0}}});
              }),
              HasSubstr("class_weight needs labels, an integer a sample"));
  const auto wrong = data::from_arrays(
      {data::array_of(std::vector<int64_t>(12, 1), {2, kPositions}),
       data::array_of(std::vector<int64_t>{0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0}, {2, kPositions})});
  EXPECT_THAT(message_of<DataError>([&] { model.fit(wrong.batch(2), {.verbose = 0}); }),
              AllOf(HasSubstr("sample 1 of the dataset"), HasSubstr("label 9 at position 2")));
}

// ---- labels that do not count; the oracle is PyTorch's mean over the whole batch ----

struct LeavesOut {
  int64_t padding;
  losses::SparseCrossentropyOptions options;
};

const LeavesOut kLeavesOut[] = {{-100, {.ignore_label = -100}},
                                {2, {.ignore_label = 2}},
                                {2, {.class_weights = {1, 1, 0}}},
                                {7, {.class_weights = {1, 1, 1}, .ignore_label = 7}}};

TEST(WhatCounts, EvaluatesToTorchsMeanOverAllBatchesAndReplicas) {
  for (const auto& [padding, options] : kLeavesOut) {
    const Padded data(padding);
    const double expected = data.loss(torch::ones({3}), padding).item<double>();
    for (const int replicas : {1, 2, 3})
      for (const int64_t batch : {6, 4, 1}) {
        Model model = factors_model("mirrored", replicas, options);
        EXPECT_NEAR(model.evaluate(data.batch(batch)).loss, expected, 1e-6)
            << padding << ": " << replicas << " replicas, batches of " << batch;
      }
  }
}

TEST(WhatCounts, OneStepIsTorchsOnTheWholeBatch) {
  for (const auto& [padding, options] : kLeavesOut) {
    const Padded data(padding);
    const auto factors = torch::ones({3}).requires_grad_();
    const at::Tensor loss = data.loss(factors, padding);
    loss.backward();
    const at::Tensor expected = factors.detach() - 0.5 * factors.grad();
    for (const int replicas : {1, 2, 4})
      for (const int64_t accumulate : {1, 3}) {
        std::string in_turn;
        for (const char* kind : {"one_device", "mirrored", "central_storage"}) {
          if (replicas == 1 && kind != std::string("one_device")) continue;
          Model model = factors_model(kind, replicas, options);
          const History history =
              model.fit(data.batch(6 / accumulate), {.verbose = 0, .accumulate = accumulate});
          EXPECT_EQ(history.steps, 1);
          EXPECT_NEAR(history.last("train_loss"), loss.item<double>(), 1e-6) << kind;
          EXPECT_TRUE(
              torch::allclose(model.modules().module(0)->parameters()[0], expected, 1e-5, 1e-6))
              << kind << ", " << replicas << " replicas, accumulate " << accumulate;
          if (in_turn.empty()) in_turn = model.weights_sha256();
          EXPECT_EQ(model.weights_sha256(), in_turn) << kind;
        }
      }
  }
}

TEST(WhatCounts, TheSameInMicrobatchesAndBySampleWeights) {
  const Padded data(-100);
  const auto weights = torch::tensor({1.0F, 0.5F, 2.0F, 0.0F, 3.0F, 1.0F});
  const auto weighted =
      data::from_arrays({array_of(data.logits), array_of(data.labels), array_of(weights)}).batch(6);
  // As in Keras weights do not change what the sum is divided by.
  const auto factors = torch::ones({3}).requires_grad_();
  const auto each = torch::cross_entropy_loss((data.logits * factors).view({24, 3}),
                                              data.labels.flatten(), {}, at::Reduction::None, -100);
  const auto loss = (each.view({6, 4}) * weights.unsqueeze(1)).sum() / data.counts().sum();
  loss.backward();
  const at::Tensor expected = factors.detach() - 0.5 * factors.grad();
  for (const char* kind : {"one_device", "mirrored"})
    for (const int microbatches : {1, 2}) {
      Model model = factors_model(kind, 2, {.ignore_label = -100});
      const History history = model.fit(weighted, {.verbose = 0, .microbatches = microbatches});
      EXPECT_NEAR(history.last("train_loss"), loss.item<double>(), 1e-6);
      EXPECT_TRUE(torch::allclose(model.modules().module(0)->parameters()[0], expected, 1e-5, 1e-6))
          << kind << ", " << microbatches;
    }
}

TEST(WhatCounts, AModelInPartsTrainsTheBitsOfReplicas) {
  const auto trained = [](const char* kind, const char* mesh, int microbatches) {
    Model model(Strategy({.kind = kind, .threads_per_replica = 1, .seed = 7, .mesh = mesh}), [] {
      const auto tokens = nn::input({kPositions}, DType::int64);
      const auto x = nn::relu()(nn::linear(8)(nn::embedding(kTokens, 8)(tokens)));
      return nn::Graph(tokens, nn::linear(kTokens)(x));
    });
    model.compile({.optimizer = optim::adam({.learning_rate = 0.02}),
                   .loss = losses::sparse_categorical_crossentropy({.ignore_label = 0}),
                   .metrics = {metrics::accuracy()}});
    const History history = model.fit(doubled(23).shuffle().batch(8),
                                      {.epochs = 2, .verbose = 0, .microbatches = microbatches});
    return std::tuple(model.weights_sha256(), history.column("train_loss").back(),
                      history.column("accuracy").back());
  };
  const auto [weights, loss, accuracy] = trained("mirrored", "data=4", 1);
  for (const auto& [kind, mesh, microbatches] : {std::tuple{"one_device", "data=4", 1},
                                                 {"mirrored", "data=2,stage=2", 2},
                                                 {"mirrored", "stage=2", 4},
                                                 {"one_device", "data=2,stage=2", 2}}) {
    const auto [other_weights, other_loss, other_accuracy] = trained(kind, mesh, microbatches);
    EXPECT_EQ(other_weights, weights) << kind << " " << mesh;
    EXPECT_NEAR(other_loss, loss, 1e-12) << kind << " " << mesh;
    EXPECT_NEAR(other_accuracy, accuracy, 1e-12) << kind << " " << mesh;
  }
}

TEST(WhatCounts, OtherWaysOfTheLossLeaveOutTheSame) {
  const Padded data(-100);
  const auto counts = data.counts().view({6, 4});
  for (const bool from_logits : {true, false})
    for (const double smoothing : {0.0, 0.2}) {
      const losses::SparseCrossentropyOptions plain{
          .from_logits = from_logits, .label_smoothing = smoothing, .class_weights = {1, 3, 2}};
      losses::SparseCrossentropyOptions ignoring = plain;
      ignoring.ignore_label = -100;
      const auto outputs = from_logits ? data.logits : data.logits.softmax(-1);
      // Position by position, those that count alone.
      const Loss alone = losses::sparse_categorical_crossentropy(plain);
      const auto each =
          alone.kernel().per_sample(outputs.view({24, 3}), data.labels.flatten().clamp_min(0));
      const auto expected = (each.view({6, 4}) * counts).mean(1);
      const Loss loss = losses::sparse_categorical_crossentropy(ignoring);
      EXPECT_TRUE(torch::allclose(loss.kernel().per_sample(outputs, data.labels), expected));
      const auto got = of_kernel(loss, outputs, data.labels);
      EXPECT_NEAR(got.total, expected.sum().item<double>(), 1e-5);
      EXPECT_EQ(got.gradient.masked_select(counts.logical_not().unsqueeze(-1))
                    .count_nonzero()
                    .item<int64_t>(),
                0);
      EXPECT_TRUE(torch::allclose(
          of_kernel(loss, outputs.to(torch::kDouble), data.labels).gradient.to(torch::kFloat),
          got.gradient, 1e-4, 1e-6));
      EXPECT_EQ(loss.kernel().counted(data.labels), counts.sum().item<int64_t>());
    }
}

TEST(WhatCounts, ABatchOfPaddingAloneChangesNothing) {
  Padded data(-100);
  data.labels.fill_(-100);
  for (const char* kind : {"one_device", "mirrored"}) {
    Model model = factors_model(kind, 2, {.ignore_label = -100},
                                {metrics::accuracy(), metrics::perplexity()});
    const History history = model.fit(data.batch(6), {.verbose = 0});
    EXPECT_EQ(history.last("train_loss"), 0);
    EXPECT_EQ(history.last("accuracy"), 0);
    EXPECT_TRUE(torch::equal(model.modules().module(0)->parameters()[0], torch::ones({3})));
  }
}

TEST(WhatCounts, MetricsLeaveOutTheLabelOfTheLoss) {
  const Padded data(-100);
  const auto counts = data.counts();
  const auto logits = data.logits.view({24, 3}).index({counts});
  const auto labels = data.labels.flatten().index({counts});
  Model model =
      factors_model("mirrored", 2, {.ignore_label = -100},
                    {metrics::accuracy(), metrics::perplexity(), metrics::confusion_matrix(),
                     metrics::f1(), metrics::top_k_accuracy(2), metrics::map_at_k(3)});
  Model plain(strategy_of("one_device", 1), [] { return Factors(); });
  plain.compile(
      {.loss = losses::sparse_categorical_crossentropy(),
       .metrics = {metrics::accuracy(), metrics::perplexity(), metrics::confusion_matrix(),
                   metrics::f1(), metrics::top_k_accuracy(2), metrics::map_at_k(3)}});
  const Scores got = model.evaluate(data.batch(4));
  const Scores expected =
      plain.evaluate(data::from_arrays({array_of(logits), array_of(labels)}).batch(5));
  for (const auto& [name, value] : expected.metrics) EXPECT_NEAR(got.at(name), value, 1e-6) << name;
  EXPECT_EQ(got.matrix("confusion_matrix"), expected.matrix("confusion_matrix"));
  EXPECT_NEAR(got.loss, expected.loss, 1e-6);
  EXPECT_EQ(got.samples, 6);
}

TEST(WhatCounts, AMetricAloneIgnoresWhatItIsTold) {
  const std::vector<float> outputs{0, 1, 1, 0, 0, 1, 1, 0};
  const std::vector<int64_t> labels{1, -1, 0, 0};
  std::vector<double> state(2);
  const Metric accuracy = metrics::accuracy().ignoring(-1);
  accuracy.add({.outputs = outputs.data(), .labels = labels.data(), .rows = 4, .width = 2}, state);
  EXPECT_EQ(state, (std::vector<double>{2, 3}));
  const std::vector<int64_t> bad{1, -1, 5, 0};
  EXPECT_THAT(message_of<DataError>([&] {
                accuracy.add(
                    {.outputs = outputs.data(), .labels = bad.data(), .rows = 4, .width = 2},
                    state);
              }),
              AllOf(HasSubstr("row 2 of the batch"), HasSubstr("label 5")));
}

}  // namespace
}  // namespace tutti
