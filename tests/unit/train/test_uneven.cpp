// Any number of samples over any number of replicas: the parts in turn give the same bits, plain
// LibTorch the same weights, and every sample is met once an epoch.
#include <torch/torch.h>

#include <memory>

#include "tests/support/expect.h"
#include "tests/support/uneven.h"
#include "tests/unit/train/small_model.h"

namespace tutti {
namespace {

std::vector<at::Tensor> parameters_of(const Model& model) {
  std::vector<at::Tensor> all;
  for (const auto& parameter : model.modules().module(0)->parameters())
    all.push_back(parameter.detach().clone());
  return all;
}

/// The oracle: one model, whole batches in the order of the data, SGD by hand. Goes on from
/// `start`.
std::vector<at::Tensor> plainly(const std::vector<at::Tensor>& start,
                                const NumberedSamples& samples, int64_t batch, int64_t steps,
                                double rate, bool weighted) {
  FeaturesNet net;
  const auto parameters = net->parameters();
  {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < start.size(); ++i) parameters[i].copy_(start[i]);
  }
  const auto x = torch::tensor(samples.x).view({-1, 5}), w = torch::tensor(samples.weights);
  const auto y = torch::tensor(samples.y, torch::kLong);
  const int64_t an_epoch = (samples.count() + batch - 1) / batch;
  for (int64_t step = 0; step < steps; ++step) {
    const int64_t begin = step % an_epoch * batch;
    const int64_t size = std::min(batch, samples.count() - begin);
    auto losses = torch::cross_entropy_loss(net(x.narrow(0, begin, size)), y.narrow(0, begin, size),
                                            {}, at::Reduction::None);
    if (weighted) losses = losses * w.narrow(0, begin, size);
    const auto gradients = torch::autograd::grad({losses.mean()}, parameters);
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < gradients.size(); ++i) parameters[i].sub_(rate * gradients[i]);
  }
  return parameters;
}

TEST(Uneven, OneStepIsThatOfOneReplicaAndOfPlainLibTorch) {
  for (const Uneven& uneven : uneven_cases({1, 2, 3, 5})) {
    const NumberedSamples samples(uneven.samples);
    for (const bool weighted : {false, true}) {
      const auto after_a_step = [&](int replicas) {
        Model model(strategy_of("one_device", replicas), [] { return FeaturesNet(); });
        model.compile({.optimizer = optim::sgd({.learning_rate = 0.5}),
                       .loss = losses::sparse_categorical_crossentropy()});
        const auto start = parameters_of(model);
        const auto data = (weighted ? samples.weighted() : samples.plain()).batch(uneven.batch);
        model.fit(data, {.max_steps = 1, .verbose = 0});
        EXPECT_LT(
            test::relative_difference(parameters_of(model),
                                      plainly(start, samples, uneven.batch, 1, 0.5, weighted)),
            1e-5)
            << uneven.words();
        return parameters_of(model);
      };
      EXPECT_LT(test::relative_difference(after_a_step(uneven.replicas), after_a_step(1)), 1e-5)
          << uneven.words();
    }
  }
}

TEST(Uneven, ManyStepsAreThoseOfPlainLibTorch) {
  for (const Uneven& uneven : uneven_cases({3})) {
    const NumberedSamples samples(uneven.samples);
    Model model(strategy_of("mirrored", 3), [] { return FeaturesNet(); });
    model.compile({.optimizer = optim::sgd({.learning_rate = 0.1}),
                   .loss = losses::sparse_categorical_crossentropy()});
    const auto start = parameters_of(model);
    const int64_t steps =
        model.fit(samples.plain().batch(uneven.batch), {.epochs = 3, .verbose = 0}).steps;
    EXPECT_EQ(steps, 3 * ((uneven.samples + uneven.batch - 1) / uneven.batch));
    EXPECT_LT(test::relative_difference(parameters_of(model),
                                        plainly(start, samples, uneven.batch, steps, 0.1, false)),
              1e-5)
        << uneven.words();
  }
}

TEST(Uneven, PlacesOfReplicasGiveTheBitsOfThePartsInTurn) {
  for (const Uneven& uneven : uneven_cases({2, 3, 5})) {
    const auto story = [&](const char* kind) {
      return uneven_story(strategy_of(kind, uneven.replicas), uneven,
                          optim::adam({.learning_rate = 0.05}));
    };
    const std::string in_turn = story("one_device");
    EXPECT_THAT(in_turn, HasSubstr(fmt::format(" {}x3 ", uneven.samples)));
    EXPECT_EQ(story("mirrored"), in_turn) << uneven.words();
    EXPECT_EQ(story("central_storage"), in_turn) << uneven.words();
  }
}

// What updates in other ways: clipping and LAMB need all sums first, others reduce and update a
// copy each.
TEST(Uneven, EveryWayToUpdateTakesReplicasWithoutSamples) {
  const TorchOptimizerFactory torch_adam = [](std::vector<at::Tensor> parameters) {
    return std::make_unique<torch::optim::Adam>(std::move(parameters),
                                                torch::optim::AdamOptions(0.05));
  };
  const OptimizerChoice choices[] = {
      optim::sgd({.learning_rate = 0.1, .momentum = 0.9}),
      optim::Recipe(optim::adam({.learning_rate = 0.05}), {.global_norm = 0.3}),
      optim::Recipe(optim::sgd({.learning_rate = 0.1}), {.value = 0.01}),
      optim::lamb({.learning_rate = 0.05}), torch_adam};
  for (size_t choice = 0; choice < std::size(choices); ++choice)
    for (const Uneven& uneven : {Uneven{10, 3, 4}, Uneven{2, 3, 2}, Uneven{7, 4, 3}}) {
      std::vector<std::string> stories;
      for (const char* kind : {"one_device", "mirrored"})
        for (const char* reduction : {"fused", "all_reduce", "to_one_device"}) {
          StrategyOptions options{.kind = kind, .replicas = uneven.replicas, .seed = 7};
          options.threads_per_replica = 1;
          options.reduction = reduction;
          stories.push_back(uneven_story(Strategy(options), uneven, choices[choice]));
        }
      EXPECT_THAT(stories, Each(stories[0])) << choice << ": " << uneven.words();
    }
}

TEST(Uneven, WeightsAndUnequalSharesComposeWithEmptyParts) {
  for (const Uneven& uneven : {Uneven{10, 3, 4}, Uneven{3, 3, 2}, Uneven{17, 3, 7}}) {
    std::vector<std::string> plain, weighted, by_class, shared;
    for (const char* kind : {"one_device", "mirrored", "central_storage"}) {
      const auto strategy = [&](std::vector<double> shares = {}) {
        return Strategy({.kind = kind,
                         .replicas = 3,
                         .threads_per_replica = 1,
                         .seed = 7,
                         .shares = std::move(shares)});
      };
      const auto rule = optim::adam({.learning_rate = 0.05});
      plain.push_back(uneven_story(strategy(), uneven, rule));
      weighted.push_back(uneven_story(strategy(), uneven, rule, {}, true));
      by_class.push_back(
          uneven_story(strategy(), uneven, rule, {.class_weight = {{0, 3.0}, {2, 0.5}}}));
      shared.push_back(uneven_story(strategy({2, 1, 1}), uneven, rule));
    }
    for (const auto& stories : {plain, weighted, by_class, shared})
      EXPECT_THAT(stories, Each(stories[0])) << uneven.words();
    EXPECT_NE(plain[0], weighted[0]);
    EXPECT_NE(plain[0], by_class[0]);
  }
}

TEST(Uneven, EverySampleIsMetOnceAnEpoch) {
  for (const Uneven& uneven : uneven_cases({1, 2, 3, 5}))
    for (const char* kind : {"one_device", "mirrored"}) {
      test::Seen seen;
      // The loss sees a sample's number in place of its label.
      Model model(strategy_of(kind, uneven.replicas), [] { return FeaturesNet(); });
      model.compile({.optimizer = optim::sgd(),
                     .loss = Loss("notes", [&](const at::Tensor& y, const at::Tensor& number) {
                       const std::lock_guard lock(seen.mutex);
                       for (int64_t i = 0; i < number.size(0); ++i)
                         ++seen.times[number[i].item<int64_t>()];
                       return y.sum(1);
                     })});
      NumberedSamples samples(uneven.samples);
      for (int64_t i = 0; i < uneven.samples; ++i) samples.y[static_cast<size_t>(i)] = i;
      const auto data = samples.plain().shuffle().batch(uneven.batch);
      EXPECT_EQ(model.fit(data, {.epochs = 3, .verbose = 0}).images, 3 * uneven.samples);
      EXPECT_EQ(model.evaluate(data).samples, uneven.samples);
      ASSERT_EQ(seen.times.size(), static_cast<size_t>(uneven.samples)) << uneven.words();
      for (const auto& [number, times] : seen.times)
        EXPECT_EQ(times, 4) << number << " of " << uneven.words() << ", " << kind;
    }
}

// Batch statistics are each replica's own; one without samples keeps what it had, which counts in
// the mean that is saved.
TEST(Uneven, ABatchNormWithoutSamplesKeepsItsStatistics) {
  std::vector<std::string> fingerprints;
  for (const char* kind : {"one_device", "mirrored", "central_storage"}) {
    Model model(strategy_of(kind, 3), [] {
      const auto input = nn::input({1, 2, 2});
      const auto x = nn::batch_norm2d().named("bn")(nn::conv2d(2, 1)(input));
      return nn::Graph(input, nn::linear(3)(nn::flatten()(nn::relu()(x))));
    });
    model.compile(adam_and_accuracy());
    const auto flat = three_classes(6).batch(6).epoch({}).batch(0);
    const auto images = data::from_arrays(
        {Array::view(flat.columns[0].data(), DType::float32, {6, 1, 2, 2}, flat.columns[0].owner()),
         flat.columns[1]});
    model.fit(images.batch(2), {.epochs = 2, .verbose = 0});
    const auto statistics = [&](int replica) {
      const auto all = model.modules().module(replica)->named_buffers();
      return std::pair(all["bn.running_mean"].clone(),
                       all["bn.num_batches_tracked"].item<int64_t>());
    };
    for (const int replica : {0, 1}) {
      EXPECT_EQ(statistics(replica).second, 6);
      EXPECT_GT(statistics(replica).first.abs().max().item<double>(), 0);
    }
    EXPECT_EQ(statistics(2).second, 0);
    EXPECT_TRUE(torch::equal(statistics(2).first, torch::zeros({2})));
    const auto merged = model.modules().merged_buffers();
    EXPECT_EQ(merged[0].first, "bn.running_mean");
    EXPECT_TRUE(torch::allclose(merged[0].second, (statistics(0).first + statistics(1).first) / 3,
                                1e-6, 1e-9));
    fingerprints.push_back(model.weights_sha256());
  }
  EXPECT_THAT(fingerprints, Each(fingerprints[0]));
}

}  // namespace
}  // namespace tutti
