// Focal, Dice, Tversky and CTC: what the tables have not. And what becomes of the samples' losses.
#include <torch/torch.h>

#include <cmath>
#include <functional>

#include "tutti/nn/layers.h"
#include "tutti/strategy/input/from_tensors.h"
#include "tutti/train/losses/overlap.h"

#include "tests/support/expect.h"
#include "tests/unit/train/small_model.h"

namespace tutti {
namespace {

/// What a way through the steps says: repeats are one, blanks (0) fall out.
std::vector<int64_t> said_by(const std::vector<int64_t>& way) {
  std::vector<int64_t> labels;
  for (size_t i = 0; i < way.size(); ++i)
    if (way[i] != 0 && (i == 0 || way[i] != way[i - 1])) labels.push_back(way[i]);
  return labels;
}

/// The definition: all ways, one by one.
double probability_of_all_ways(const at::Tensor& chances, const std::vector<int64_t>& labels) {
  const int64_t steps = chances.size(0), classes = chances.size(1);
  double sum = 0;
  for (int64_t number = 0; number < std::llround(std::pow(classes, steps)); ++number) {
    std::vector<int64_t> way;
    double probability = 1;
    for (int64_t step = 0, rest = number; step < steps; ++step, rest /= classes) {
      way.push_back(rest % classes);
      probability *= chances[step][way.back()].item<double>();
    }
    if (said_by(way) == labels) sum += probability;
  }
  return sum;
}

TEST(Ctc, IsTheProbabilityOfAllWaysThatSayTheLabels) {
  torch::manual_seed(3);
  const auto logits = torch::randn({4, 4, 3}, torch::kFloat64);
  const std::vector<std::vector<int64_t>> labels{{1, 2, 1}, {1, 1, 0}, {2, 0, 0}, {0, 0, 0}};
  const auto target = torch::tensor({1, 2, 1, 1, 1, 0, 2, 0, 0, 0, 0, 0}).view({4, 3});
  const auto losses = losses::ctc().kernel().per_sample(logits, target);
  const auto of_chances =
      losses::ctc({.from_logits = false}).kernel().per_sample(logits.softmax(-1), target);
  for (int64_t i = 0; i < 4; ++i) {
    std::vector<int64_t> own = labels[static_cast<size_t>(i)];
    std::erase(own, 0);
    const double expected = -std::log(probability_of_all_ways(logits.softmax(-1)[i], own));
    EXPECT_NEAR(losses[i].item<double>(), expected, 1e-10);
    EXPECT_NEAR(of_chances[i].item<double>(), expected, 1e-10);
  }
}

TEST(Ctc, TheBlankMayBeTheLastClassAndDtypesAreThoseOfTheOthers) {
  torch::manual_seed(4);
  const auto logits = torch::randn({2, 5, 4});
  const auto target = torch::tensor({1, 2, 3, 3}).view({2, 2});
  const auto first = losses::ctc()(logits, target, Reduction::none);
  // Classes 0, 1, 2, 3 become 3, 0, 1, 2.
  const auto moved = torch::cat({logits.slice(2, 1), logits.slice(2, 0, 1)}, 2);
  const auto last = losses::ctc({.blank = 3})(moved, target - 1, Reduction::none);
  EXPECT_TRUE(torch::allclose(first, last));
  EXPECT_TRUE(
      torch::equal(first, losses::ctc()(logits, target.to(torch::kInt32), Reduction::none)));
  EXPECT_EQ(losses::ctc()(logits.to(torch::kBFloat16), target).scalar_type(), torch::kFloat32);
}

TEST(Ctc, LabelsThatCannotBeAreNamed) {
  const auto logits = torch::zeros({2, 3, 3});
  const auto message = [&](std::vector<int64_t> second) {
    const auto target =
        torch::cat({torch::tensor({1, 2, 0, 0}), torch::tensor(second)}).view({2, 4});
    return message_of<DataError>([&] { losses::ctc()(logits, target); });
  };
  EXPECT_THAT(message({1, 3, 0, 0}), AllOf(HasSubstr("row 1"), HasSubstr("label 3 at position 1"),
                                           HasSubstr("3 classes")));
  EXPECT_THAT(message({-1, 0, 0, 0}), HasSubstr("label -1 at position 0"));
  EXPECT_THAT(message({1, 0, 2, 0}),
              HasSubstr("label 2 at position 2 stands behind the blank (0)"));
  EXPECT_THAT(message({1, 2, 1, 2}), HasSubstr("4 labels, 0 of them like the one before, need 4"));
  EXPECT_THAT(message({1, 1, 2, 0}), HasSubstr("3 labels, 1 of them like the one before, need 4"));
  const auto shapes = [](const at::Tensor& output, const at::Tensor& target, int64_t blank) {
    return message_of<UsageError>([&] { losses::ctc({.blank = blank})(output, target); });
  };
  EXPECT_THAT(shapes(logits, torch::ones({2, 2}), 0), HasSubstr("integers [batch, most labels]"));
  EXPECT_THAT(shapes(logits, torch::ones({3, 2}, torch::kLong), 0), HasSubstr("ctc: got output"));
  EXPECT_THAT(shapes(logits, torch::ones({2, 2}, torch::kLong), 3),
              HasSubstr("blank = 3, but the model gives 3 classes"));
}

TEST(Focal, OfLabelsKeepsWeightsOfClassesAndLeavesLabelsOut) {
  torch::manual_seed(5);
  const auto logits = torch::randn({5, 3}, torch::kFloat64).requires_grad_();
  const auto labels = torch::tensor({0, 2, -1, 1, 2});
  const Loss focal = losses::sparse_categorical_crossentropy(
      {.class_weights = {1, 0.5, 2}, .ignore_label = -1, .gamma = 1.5});
  const auto got = focal(logits, labels, Reduction::none);
  for (const int64_t i : {0, 1, 3, 4}) {
    const double p = logits.softmax(1)[i][labels[i]].item<double>();
    const double weight = std::vector<double>{1, 0.5, 2}[labels[i].item<int64_t>()];
    EXPECT_NEAR(got[i].item<double>(), -weight * std::pow(1 - p, 1.5) * std::log(p), 1e-12);
  }
  EXPECT_EQ(got[2].item<double>(), 0);
  got.sum().backward();
  EXPECT_EQ(logits.grad()[2].abs().sum().item<double>(), 0);
  EXPECT_TRUE(logits.grad().isfinite().all().item<bool>());
}

TEST(Focal, OfWhatIsSurelyRightHasAFiniteGradient) {
  const auto sure = torch::tensor({{200.0F, 0.0F}, {0.0F, 200.0F}});
  const auto target = torch::tensor({{1.0F, 0.0F}, {0.0F, 1.0F}});
  for (const double gamma : {0.0, 0.5, 1.0, 2.0}) {
    for (const Loss& loss : {losses::binary_focal_crossentropy({.gamma = gamma}),
                             losses::categorical_focal_crossentropy({.gamma = gamma})}) {
      const auto output = sure.clone().requires_grad_();
      loss(output, target).backward();
      EXPECT_TRUE(output.grad().isfinite().all().item<bool>()) << loss.name() << " " << gamma;
    }
  }
}

// A sum of probabilities that rounding has made more than 1.
TEST(Focal, OfAProbabilityBeyondOneIsThatOfOne) {
  const float beyond = std::nextafter(1.0F, 2.0F);
  const auto target = torch::tensor({1.0F, 0.0F, 1.0F, 0.0F});
  for (const double gamma : {0.5, 1.5, 2.0}) {
    const Loss focal = losses::binary_focal_crossentropy({.from_logits = false, .gamma = gamma});
    const auto output = torch::tensor({beyond, -1e-7F, -1e-7F, beyond}).requires_grad_();
    const auto got = focal(output, target, Reduction::none);
    const auto within = torch::tensor({1.0F, 0.0F, 0.0F, 1.0F});
    EXPECT_TRUE(torch::equal(got, focal(within, target, Reduction::none))) << gamma << got;
    got.sum().backward();
    EXPECT_TRUE(output.grad().isfinite().all().item<bool>()) << gamma << output.grad();
  }
}

TEST(Overlap, OfNothingInNothingIsKerasOneOrWithSmoothZero) {
  const auto none = torch::zeros({2, 3});
  EXPECT_EQ(losses::dice({.from_logits = false})(none, none).item<double>(), 1);
  EXPECT_NEAR(losses::dice({.from_logits = false, .smooth = 1})(none, none).item<double>(), 0,
              1e-6);
  EXPECT_NEAR(losses::tversky({.from_logits = false, .smooth = 1})(none, none).item<double>(), 0,
              1e-6);
}

// ---- what becomes of the samples' losses ----

TEST(Reductions, AreThoseOfPyTorch) {
  torch::manual_seed(6);
  const auto logits = torch::randn({4, 5, 3}, torch::kFloat64);
  const auto labels = torch::randint(-1, 3, {4, 5}, torch::kLong);
  const auto flat = logits.flatten(0, 1);
  const Loss loss = losses::sparse_categorical_crossentropy({.ignore_label = -1});
  const auto torchs = [&](at::Reduction::Reduction how) {
    return torch::cross_entropy_loss(flat, labels.flatten(), {}, how, -1);
  };
  EXPECT_TRUE(torch::allclose(loss(logits, labels), torchs(at::Reduction::Mean)));
  EXPECT_TRUE(
      torch::allclose(loss(logits, labels, Reduction::sum) * 5, torchs(at::Reduction::Sum)));
  EXPECT_TRUE(torch::allclose(loss(logits, labels, Reduction::none),
                              torchs(at::Reduction::None).view({4, 5}).mean(1)));
  EXPECT_EQ(loss(logits, torch::full({4, 5}, -1)).item<double>(), 0);
  const Loss squares = losses::mean_squared_error();
  const auto a = torch::randn({4, 3}), b = torch::randn({4, 3});
  EXPECT_TRUE(torch::allclose(squares(a, b), torch::mse_loss(a, b)));
  const auto weights = torch::tensor({1.0F, 0.0F, 2.0F, 0.5F});
  const auto each = squares(a, b, Reduction::none, weights);
  EXPECT_TRUE(torch::allclose(each, (a - b).square().mean(1) * weights));
  EXPECT_TRUE(torch::allclose(squares(a, b, Reduction::mean, weights), each.sum() / 4));
  EXPECT_THAT(message_of<UsageError>([&] { squares(a, b, Reduction::sum, torch::ones({3})); }),
              HasSubstr("expected floating [4], one a sample"));
}

// Keras's mean: PyTorch divides by the sum of the weights of the labels.
TEST(Reductions, OfWeightsOfClassesDivideByTheNumberOfSamples) {
  torch::manual_seed(8);
  const auto logits = torch::randn({6, 3}, torch::kFloat64);
  const auto labels = torch::tensor({0, 2, 1, 1, 0, 0});
  const Loss loss = losses::sparse_categorical_crossentropy({.class_weights = {1, 0.5, 3}});
  const auto weights = torch::tensor({1.0, 0.5, 3.0}, torch::kFloat64);
  const double of_labels = weights.index_select(0, labels).sum().item<double>();
  const auto torchs = torch::cross_entropy_loss(logits, labels, weights, at::Reduction::Mean);
  EXPECT_TRUE(torch::allclose(loss(logits, labels), torchs * of_labels / 6));
  EXPECT_FALSE(torch::allclose(loss(logits, labels), torchs));
  EXPECT_TRUE(
      torch::allclose(loss(logits, labels, Reduction::sum),
                      torch::cross_entropy_loss(logits, labels, weights, at::Reduction::Sum)));
}

/// Weights after two steps on 11 samples in batches of 7.
at::Tensor trained(const Loss& loss, const data::Dataset& data, const std::string& kind,
                   int replicas, const std::function<nn::Graph()>& make) {
  Model model(strategy_of(kind, replicas), make);
  model.compile({.optimizer = optim::sgd({.learning_rate = 0.1}), .loss = loss});
  model.fit(data.batch(7), {.verbose = 0});
  std::vector<at::Tensor> values;
  for (const auto& one : model.modules().module(0)->parameters())
    values.push_back(one.detach().flatten());
  return torch::cat(values);
}

/// Readings of four steps, of three classes.
nn::Graph four_steps() {
  const auto input = nn::input({4});
  return nn::Graph(input, nn::reshape({4, 3})(nn::linear(12)(input)));
}

TEST(Ctc, IsEvaluatedAsTheMeanOverSamplesAndNamesTheRowOfABadLabel) {
  torch::manual_seed(9);
  const auto inputs = torch::randn({11, 4});
  auto readings = torch::randint(1, 3, {11, 2}, torch::kLong);
  Model model(strategy_of("mirrored", 2), four_steps);
  model.compile({.optimizer = optim::sgd({.learning_rate = 0.1}), .loss = losses::ctc()});
  const auto losses = losses::ctc()(model.predict(inputs), readings, Reduction::none);
  const Scores scores = model.evaluate(data::from_tensors({inputs, readings}).batch(4));
  EXPECT_NEAR(scores.loss, losses.to(torch::kDouble).mean().item<double>(), 1e-6);
  readings[6][1] = 7;
  const auto bad = data::from_tensors({inputs, readings}).batch(11);
  EXPECT_THAT(message_of<DataError>([&] { model.fit(bad, {.verbose = 0}); }),
              AllOf(HasSubstr("6"), HasSubstr("label 7 at position 1")));
}

TEST(Overlap, TrainsOnReplicasWhatOneProcessTrainsOnTheWholeBatch) {
  torch::manual_seed(7);
  const auto inputs = torch::randn({11, 4});
  const auto masks = torch::randint(2, {11, 3}).to(torch::kFloat);
  const auto labels = torch::randint(3, {11}, torch::kLong);
  const auto readings = torch::randint(1, 3, {11, 2}, torch::kLong);
  const auto of_masks = data::from_tensors({inputs, masks});
  const struct {
    Loss loss;
    data::Dataset data;
    std::function<nn::Graph()> make;
  } cases[] = {
      {losses::dice(), of_masks, [] { return small_graph(); }},
      {losses::tversky({.alpha = 0.3, .beta = 0.7}), of_masks, [] { return small_graph(); }},
      {losses::binary_focal_crossentropy({.alpha = 0.25}), of_masks, [] { return small_graph(); }},
      {losses::categorical_focal_crossentropy(),
       data::from_tensors({inputs, torch::one_hot(labels, 3).to(torch::kFloat)}),
       [] { return small_graph(); }},
      {losses::sparse_categorical_crossentropy({.gamma = 2}), data::from_tensors({inputs, labels}),
       [] { return small_graph(); }},
      {losses::ctc(), data::from_tensors({inputs, readings}), four_steps},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.loss.name());
    const auto alone = trained(c.loss, c.data, "one_device", 1, c.make);
    const auto in_turn = trained(c.loss, c.data, "one_device", 3, c.make);
    EXPECT_TRUE(torch::equal(trained(c.loss, c.data, "mirrored", 3, c.make), in_turn));
    EXPECT_TRUE(torch::allclose(in_turn, alone, 1e-5, 1e-6));
  }
}

}  // namespace
}  // namespace tutti
