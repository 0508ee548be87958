// The gradient noise scale: its arithmetic against plain sums, a quadratic whose answer is known,
// and what fit() makes of it.
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "tutti/train/report/noise_scale.h"

#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/train/checkpointed.h"
#include "tests/unit/train/small_model.h"

namespace tutti {
namespace {

// Gradients of samples by part, each a list of numbers.
using Parts = std::vector<std::vector<std::vector<double>>>;

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

Parts random_parts(const std::vector<int>& sizes, int dimensions, int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::normal_distribution<double> normal(0.3, 1);
  Parts parts;
  for (const int size : sizes) {
    auto& part = parts.emplace_back();
    for (int i = 0; i < size; ++i) {
      auto& sample = part.emplace_back();
      for (int d = 0; d < dimensions; ++d) sample.push_back(normal(random));
    }
  }
  return parts;
}

std::vector<double> mean_of(const std::vector<std::vector<double>>& samples) {
  std::vector<double> mean(samples.at(0).size(), 0);
  for (const auto& sample : samples)
    for (size_t d = 0; d < mean.size(); ++d)
      mean[d] += sample[d] / static_cast<double>(samples.size());
  return mean;
}

struct Measured {
  GradientSquares squares;
  std::vector<int64_t> samples;
};

// As the fused step has it: each part's sum over the number of all samples.
Measured measured(const Parts& parts) {
  Measured made;
  std::vector<std::vector<double>> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  for (const auto& part : parts) {
    made.samples.push_back(static_cast<int64_t>(part.size()));
    if (part.empty()) {
      made.squares.parts.push_back(0);
      continue;
    }
    const auto mean = mean_of(part);
    const double share = static_cast<double>(part.size()) / static_cast<double>(all.size());
    made.squares.parts.push_back(share * share * dot(mean, mean));
  }
  const auto mean = mean_of(all);
  made.squares.sum = dot(mean, mean);
  return made;
}

// McCandlish et al., appendix A.1, of equal parts.
TEST(NoiseScaleSums, AreThoseOfThePaperForEqualParts) {
  for (const int parts : {2, 4, 7}) {
    const auto made = measured(random_parts(std::vector(static_cast<size_t>(parts), 5), 3, parts));
    NoiseScale scale;
    scale.add(made.squares, made.samples);
    const double big = 5.0 * parts, small = 5;
    double square_of_small = 0;
    for (const double squares : made.squares.parts)
      square_of_small += squares * parts * parts / parts;
    const double gradient = (big * made.squares.sum - small * square_of_small) / (big - small);
    const double noise = (square_of_small - made.squares.sum) / (1 / small - 1 / big);
    EXPECT_NEAR(scale.gradient_square(), gradient, 1e-9);
    EXPECT_NEAR(scale.noise(), noise, 1e-9);
    EXPECT_DOUBLE_EQ(scale.value(), scale.noise() / scale.gradient_square());
  }
}

// The variance within samples from that between means of unequal parts.
TEST(NoiseScaleSums, OfUnequalPartsAreAnAnalysisOfVariance) {
  for (const std::vector<int>& sizes : {std::vector{1, 9}, {6, 3, 2}, {4, 0, 5}}) {
    const auto parts = random_parts(sizes, 4, sizes[0]);
    const auto made = measured(parts);
    NoiseScale scale;
    scale.add(made.squares, made.samples);
    std::vector<std::vector<double>> all;
    for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
    const auto mean = mean_of(all);
    double between = 0;
    int with_samples = 0;
    for (const auto& part : parts) {
      if (part.empty()) continue;
      ++with_samples;
      auto away = mean_of(part);
      for (size_t d = 0; d < away.size(); ++d) away[d] -= mean[d];
      between += static_cast<double>(part.size()) * dot(away, away);
    }
    const double noise = between / (with_samples - 1);
    EXPECT_NEAR(scale.noise(), noise, 1e-9);
    EXPECT_NEAR(scale.gradient_square(), dot(mean, mean) - noise / static_cast<double>(all.size()),
                1e-9);
  }
}

TEST(NoiseScaleSums, LearnNothingFromOnePartNoGradientAndWhatIsNotFinite) {
  NoiseScale scale;
  EXPECT_TRUE(std::isnan(scale.value()));
  EXPECT_THAT(scale.to_string(8), HasSubstr("unknown, no update had two parts with samples"));
  const auto before = scale.state();
  scale.add({}, {});
  scale.add({.parts = {1, 0}, .sum = 1}, std::vector<int64_t>{4, 0});
  scale.add({.parts = {0, 0}, .sum = 0}, std::vector<int64_t>{4, 4});
  scale.add({.parts = {1, std::nan("")}, .sum = std::nan("")}, std::vector<int64_t>{4, 4});
  EXPECT_EQ(scale.state(), before);
  scale.add({.parts = {0.25, 0.25}, .sum = 0.01}, std::vector<int64_t>{4, 4});
  EXPECT_LT(scale.gradient_square(), 0);
  EXPECT_TRUE(std::isnan(scale.value()));
  EXPECT_THAT(scale.to_string(8), HasSubstr("the noise hides the gradient"));
}

// Five that stand for an update each, then one that stands for eight.
TEST(NoiseScaleSums, FadeAndGoOnFromTheirState) {
  const auto made = measured(random_parts({3, 4}, 2, 1));
  auto other = measured(random_parts({3, 4}, 2, 2));
  other.squares.updates = 8;
  NoiseScale scale;
  for (int i = 0; i < 5; ++i) scale.add(made.squares, made.samples);
  NoiseScale resumed;
  resumed.restore(scale.state());
  scale.add(other.squares, other.samples);
  resumed.add(other.squares, other.samples);
  EXPECT_EQ(scale.state(), resumed.state());
  NoiseScale one, two;
  one.add(made.squares, made.samples);
  two.add(other.squares, other.samples);
  const double kept_of_one = std::pow(0.99, 1.0 / 8);
  double faded = 0;
  for (int i = 0; i < 5; ++i) faded = kept_of_one * faded + 1 - kept_of_one;
  faded *= 0.99;
  EXPECT_NEAR(scale.noise(), (faded * one.noise() + 0.01 * two.noise()) / (faded + 0.01), 1e-12);
}

TEST(NoiseScaleSums, SayBeyondWhatBatchMoreSamplesStopPaying) {
  NoiseScale scale;
  scale.restore(std::array{1.0, 1234.0, 1.0});
  EXPECT_THAT(scale.to_string(64),
              AllOf(HasSubstr("1234 samples; more than 1200 samples a step stop paying"),
                    HasSubstr("(a step has 64)")));
  scale.restore(std::array{1.0, 0.2, 1.0});
  EXPECT_THAT(scale.to_string(64), HasSubstr("more than 1 samples"));
}

// ---- a quadratic: loss 1/2 x' H x + noise' x, so that G = H x and Sigma is that of the noise ----

constexpr int64_t kDimensions = 64;
constexpr int64_t kSamples = 160'000;

struct QuadraticImpl : torch::nn::Module {
  QuadraticImpl() {
    x = register_parameter("x", at::linspace(-1, 2, kDimensions));
    h = at::linspace(0.2, 1.5, kDimensions);
  }
  at::Tensor forward(const at::Tensor& noise) const {
    return noise.matmul(x) + 0.5 * (x * h * x).sum();
  }
  double gradient_square() const {
    return (h * x.detach()).to(at::kDouble).square().sum().item<double>();
  }
  at::Tensor x, h;
};
TORCH_MODULE(Quadratic);

TEST(NoiseScaleOfAQuadratic, IsTheKnownOneWithinFivePercent) {
  const double gradient = Quadratic()->gradient_square();
  for (const double known : {16.0, 100.0}) {
    torch::manual_seed(5);
    // Deviations from 1/2 to 3/2, scaled so that their squares add up to what is wanted.
    at::Tensor deviations = at::linspace(0.5, 1.5, kDimensions);
    deviations *= std::sqrt(known * gradient / deviations.square().sum().item<double>());
    const at::Tensor noise = torch::randn({kSamples, kDimensions}) * deviations;
    const at::Tensor targets = at::zeros({kSamples}, at::kFloat);
    Model model(strategy_of("one_device", 4), [] { return Quadratic(); });
    model.compile({.optimizer = optim::sgd({.learning_rate = 1e-12}),
                   .loss = Loss("itself", [](const at::Tensor& y, const at::Tensor&) { return y; }),
                   .measures = {.noise_scale = true}});
    const History history = model.fit(noise, targets, {.epochs = 1, .verbose = 0, .batch = 64});
    EXPECT_NEAR(history.noise_scale / known, 1, 0.05) << known;
    EXPECT_EQ(history.last("noise_scale"), history.noise_scale);
  }
}

// ---- fit ----

// Samples of one class, most of them: what there is to learn is seen through the noise.
data::Dataset mostly_one_class(int64_t count) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  std::vector<float> x;
  std::vector<int64_t> y;
  for (int64_t i = 0; i < count; ++i) {
    y.push_back(i % 7 == 0 ? 1 : 0);
    for (int64_t f = 0; f < 4; ++f) x.push_back(normal(random));
  }
  return data::from_arrays({data::array_of(x, {count, 4}), data::array_of(y, {count})});
}

struct Told {
  std::string sha256;
  std::vector<double> scales;
};

Told fit_measured(const std::string& kind, int replicas, const OptimizerChoice& optimizer,
                  bool measures, FitOptions options = {}) {
  Model model(strategy_of(kind, replicas), [] { return small_graph(0.2); });
  CompileOptions compile = adam_and_accuracy();
  compile.optimizer = optimizer;
  compile.measures.noise_scale = measures;
  model.compile(compile);
  options.epochs = 3;
  options.verbose = 0;
  options.validation = three_classes(12).batch(6);
  const History history = model.fit(mostly_one_class(50).shuffle().batch(8), options);
  return {model.weights_sha256(), measures ? history.column("noise_scale") : std::vector<double>()};
}

TEST(NoiseScaleOfAFit, HasTheBitsOfThePartsInTurnAndChangesNone) {
  const std::vector<OptimizerChoice> optimizers = {
      optim::adam({.learning_rate = 1e-3}),
      optim::Recipe(optim::sgd({.learning_rate = 0.01}), {.global_norm = 0.3}),
      optim::lamb({.learning_rate = 1e-3})};
  for (const auto& optimizer : optimizers)
    for (const int replicas : {2, 3})
      for (const int64_t accumulate : {1, 2})
        for (const int microbatches : {1, 2}) {
          if (accumulate > 1 && microbatches > 1) continue;  // fit has one of them
          const FitOptions options{.accumulate = accumulate, .microbatches = microbatches};
          const Told in_turn = fit_measured("one_device", replicas, optimizer, true, options);
          const Told threads = fit_measured("mirrored", replicas, optimizer, true, options);
          EXPECT_EQ(in_turn.scales.size(), 3U);
          EXPECT_TRUE(std::isfinite(in_turn.scales.back()))
              << replicas << accumulate << microbatches;
          EXPECT_THAT(threads.scales,
                      ::testing::Pointwise(::testing::NanSensitiveDoubleEq(), in_turn.scales));
          EXPECT_EQ(threads.sha256, in_turn.sha256);
          EXPECT_EQ(fit_measured("mirrored", replicas, optimizer, false, options).sha256,
                    in_turn.sha256);
        }
}

// One update, of which plain LibTorch computes each part's gradient.
TEST(NoiseScaleOfAFit, CountsTheSamplesOfEachPart) {
  for (const auto& [batch, accumulate, replicas] :
       {std::tuple{10L, 1L, 3}, {5L, 2L, 2}, {4L, 3L, 3}}) {
    const int64_t all = std::min<int64_t>(10, batch * accumulate);
    torch::manual_seed(3);
    const at::Tensor x = torch::randn({10, 4});
    const at::Tensor y = at::zeros({10}, at::kLong);
    torch::nn::Linear plain(4, 3);
    Model model(strategy_of("mirrored", replicas), [&] {
      torch::nn::Linear made(4, 3);
      const at::NoGradGuard no_grad;
      made->weight.copy_(plain->weight);
      made->bias.copy_(plain->bias);
      return made;
    });
    model.compile({.optimizer = optim::sgd({.learning_rate = 0.1}),
                   .loss = losses::sparse_categorical_crossentropy(),
                   .measures = {.noise_scale = true}});
    const auto data = data::from_arrays({array_of(x), array_of(y)}).batch(batch);
    const History history =
        model.fit(data, {.max_steps = 1, .verbose = 0, .accumulate = accumulate});
    std::vector<std::vector<int64_t>> rows(static_cast<size_t>(replicas));
    for (int64_t begin = 0; begin < all; begin += batch) {
      const int64_t size = std::min(batch, all - begin);
      for (int part = 0; part < replicas; ++part) {
        const data::Share share = data::share(size, replicas, part);
        for (int64_t row = share.begin; row < share.end; ++row)
          rows[static_cast<size_t>(part)].push_back(begin + row);
      }
    }
    GradientSquares squares;
    std::vector<int64_t> samples;
    at::Tensor sum;
    for (const auto& own : rows) {
      plain->zero_grad();
      const at::Tensor index = at::tensor(own);
      const auto each = torch::cross_entropy_loss(plain->forward(x.index_select(0, index)),
                                                  y.index_select(0, index), {}, at::Reduction::Sum);
      (each / static_cast<double>(all)).backward();
      const at::Tensor gradient =
          at::cat({plain->weight.grad().flatten(), plain->bias.grad()}).to(at::kDouble);
      squares.parts.push_back(gradient.square().sum().item<double>());
      samples.push_back(std::ssize(own));
      sum = sum.defined() ? sum + gradient : gradient;
    }
    squares.sum = sum.square().sum().item<double>();
    NoiseScale expected;
    expected.add(squares, samples);
    ASSERT_TRUE(std::isfinite(expected.value())) << batch;
    EXPECT_NEAR(history.noise_scale, expected.value(), 1e-3 * expected.value()) << batch;
  }
}

TEST(NoiseScaleOfAFit, IsSeenByCallbacksAndGoesOnFromACheckpoint) {
  TempFolder folder;
  const auto fit = [&](Callbacks callbacks, bool resume, const std::string& name) {
    Model model(strategy_of("mirrored", 2), [] { return small_graph(); });
    CompileOptions compile = adam_and_accuracy();
    compile.measures.noise_scale = true;
    model.compile(compile);
    FitOptions options{.epochs = 4, .callbacks = std::move(callbacks), .verbose = 0};
    options.checkpoints = {.folder = folder.path() / name, .every_steps = 3, .resume = resume};
    return model.fit(mostly_one_class(40).shuffle().batch(8), options);
  };
  std::vector<double> seen;
  const History whole = fit(
      {callbacks::lambda(
          "watch", {.on_epoch_end =
                        [&](Training& training) { seen.push_back(training.at("noise_scale")); }})},
      false, "whole");
  EXPECT_EQ(seen, whole.column("noise_scale"));
  EXPECT_THROW(fit(cut_after(11), false, "cut"), Cut);
  EXPECT_THAT(fit({}, true, "cut").column("noise_scale"),
              ::testing::Pointwise(::testing::NanSensitiveDoubleEq(), whole.column("noise_scale")));
}

TEST(NoiseScaleOfAFit, IsRefusedWhereNothingMeasuresIt) {
  const auto refused = [](const StrategyOptions& strategy, const OptimizerChoice& optimizer) {
    Model model{Strategy(strategy), [] { return small_graph(); }};
    CompileOptions compile = adam_and_accuracy();
    compile.optimizer = optimizer;
    compile.measures.noise_scale = true;
    return message_of<UsageError>([&] { model.compile(compile); });
  };
  const StrategyOptions two{.kind = "mirrored", .replicas = 2, .threads_per_replica = 1};
  StrategyOptions one = two, reduced = two, sharded = two;
  one.replicas = 1;
  reduced.reduction = "all_reduce";
  sharded.shard = "state";
  const TorchOptimizerFactory torch_sgd = [](std::vector<at::Tensor> parameters) {
    return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                               torch::optim::SGDOptions(0.1));
  };
  EXPECT_THAT(refused(one, optim::adam()), HasSubstr("two replicas or more"));
  for (const auto& [strategy, optimizer] : std::vector<std::pair<StrategyOptions, OptimizerChoice>>{
           {two, torch_sgd}, {reduced, optim::adam()}, {sharded, optim::adam()}})
    EXPECT_THAT(refused(strategy, optimizer),
                HasSubstr("--noise-scale: it is measured where the fused step adds gradients"));
}

}  // namespace
}  // namespace tutti
