#include <torch/torch.h>

#include "tests/jobs/programs/programs.h"
#include "tests/support/small_training.h"

namespace tutti::test {

double epoch_of(Strategy strategy, DistributedDataset& data, int64_t epoch,
                const std::function<double(ReplicaContext&, const DistributedBatch&)>& step) {
  double sum = 0;
  int64_t samples = 0;
  for (auto&& batch : data.epoch(epoch)) {
    sum += strategy.reduce(
        ReduceOp::sum, strategy.run([&](ReplicaContext& replica) { return step(replica, batch); }));
    samples += batch.global_size();
  }
  return sum / static_cast<double>(samples);
}

namespace {

namespace fs = std::filesystem;

// ---- a loop that existed: torch's optimizer, clipping by hand, a rate that falls ----

Learnt converted_loop(const Strategy& strategy, const fs::path&) {
  Strategy own = strategy;
  Replicated<torch::nn::Sequential> net(strategy, [] {
    return torch::nn::Sequential(torch::nn::Flatten(), torch::nn::Linear(28 * 28, 32),
                                 torch::nn::ReLU(), torch::nn::Linear(32, 10));
  });
  Optimizer optimizer(net, [](std::vector<at::Tensor> parameters) {
    return std::make_unique<torch::optim::AdamW>(std::move(parameters),
                                                 torch::optim::AdamWOptions(2e-3));
  });
  auto data = own.distribute(doodles(300).shuffle().batch(30));
  std::vector<double> losses;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    optimizer.set_learning_rate(2e-3 / static_cast<double>(1 + epoch));
    losses.push_back(epoch_of(own, data, epoch, [&](auto& replica, const auto& batch) {
      auto [x, y] = batch.local(replica);
      const auto each =
          torch::cross_entropy_loss(net.local(replica)->forward(x), y, {}, at::Reduction::None);
      auto slopes =
          gradients(average_loss(each, batch.global_size()), optimizer.parameters(replica));
      for (auto& slope : slopes) slope.clamp_(-0.05, 0.05);
      optimizer.apply(replica, slopes);
      return each.sum().template item<double>();
    }));
  }
  return {sha_of(optimizer.updater().parameters(0)), losses.front(), losses.back()};
}

// ---- a GAN: two networks that train each other ----

constexpr int64_t kNoise = 8;  // numbers that a generator begins with

Learnt gan(const Strategy& strategy, const fs::path&) {
  Strategy own = strategy;
  Replicated<torch::nn::Sequential> generator(strategy, [] {
    return torch::nn::Sequential(torch::nn::Linear(kNoise, 32), torch::nn::ReLU(),
                                 torch::nn::Linear(32, 2));
  });
  Replicated<torch::nn::Sequential> critic(strategy, [] {
    return torch::nn::Sequential(torch::nn::Linear(2, 32), torch::nn::ReLU(),
                                 torch::nn::Linear(32, 1));
  });
  Optimizer for_generator(generator, optim::adam({.learning_rate = 1e-3}));
  Optimizer for_critic(critic, optim::adam({.learning_rate = 5e-3}));
  const at::Tensor angles = torch::arange(240) * 0.21;
  const at::Tensor ring = torch::stack({angles.cos(), angles.sin()}, 1).contiguous();
  auto data =
      own.distribute(data::from_arrays({Array::view(ring.data_ptr(), DType::float32, {240, 2},
                                                    std::make_shared<at::Tensor>(ring))})
                         .shuffle()
                         .batch(24));
  const auto against = [](const at::Tensor& logits, double truth) {
    return torch::binary_cross_entropy_with_logits(logits, torch::full_like(logits, truth), {}, {},
                                                   at::Reduction::None)
        .squeeze(1);
  };
  const auto noise = [](ReplicaContext& replica, int64_t rows) {
    return torch::randn({rows, kNoise}, replica.generator());
  };
  std::vector<double> losses;
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    losses.push_back(epoch_of(own, data, epoch, [&](auto& replica, const auto& batch) {
      for_critic.zero_grad(replica);  // of the generator's loss, which went through the critic
      const at::Tensor real = batch.columns(replica).at(0);
      const at::Tensor fake =
          generator.local(replica)->forward(noise(replica, real.size(0))).detach();
      const auto each = against(critic.local(replica)->forward(real), 1) +
                        against(critic.local(replica)->forward(fake), 0);
      for_critic.minimize(replica, average_loss(each, batch.global_size()));
      return each.sum().template item<double>();
    }));
    epoch_of(own, data, epoch, [&](auto& replica, const auto& batch) {
      const int64_t rows = batch.columns(replica).at(0).size(0);
      const auto each = against(
          critic.local(replica)->forward(generator.local(replica)->forward(noise(replica, rows))),
          1);
      const auto loss = average_loss(each, batch.global_size());
      for_generator.minimize(replica, loss);
      return 0.0;
    });
  }
  return {
      sha_of(for_generator.updater().parameters(0)) + sha_of(for_critic.updater().parameters(0)),
      losses.front(), losses.back()};
}

// ---- policy gradients: each replica plays games of its own ----

constexpr int64_t kGames = 40, kPlaces = 5;

Learnt reinforce(const Strategy& strategy, const fs::path&) {
  Strategy own = strategy;
  Replicated<torch::nn::Linear> policy(strategy, [] { return torch::nn::Linear(kPlaces, 3); });
  Optimizer optimizer(policy, optim::sgd({.learning_rate = 2}));
  std::vector<double> losses;
  for (int round = 0; round < 30; ++round) {
    const auto played = own.run([&](ReplicaContext& replica) {
      const int64_t games = kGames / replica.num_replicas_in_sync();
      const auto place = torch::randint(0, kPlaces, {games}, replica.generator(), torch::kLong);
      const auto chances =
          policy.local(replica)(torch::one_hot(place, kPlaces).to(torch::kFloat)).log_softmax(1);
      const auto move = torch::multinomial(chances.detach().exp(), 1, false, replica.generator());
      const auto reward = (move.squeeze(1) == place % 3).to(torch::kFloat);
      const auto each = -chances.gather(1, move).squeeze(1) * (reward - 0.5);
      optimizer.minimize(replica, average_loss(each, kGames));
      return (1 - reward).sum().item<double>();
    });
    losses.push_back(own.reduce(ReduceOp::sum, played) / kGames);
  }
  return {sha_of(optimizer.updater().parameters(0)), losses.front(), losses.back()};
}

// ---- several trainings ----

torch::nn::Sequential net_of_doodles() {
  return torch::nn::Sequential(torch::nn::Flatten(), torch::nn::Linear(28 * 28, 24),
                               torch::nn::ReLU(), torch::nn::Linear(24, 10));
}

// ---- cross-validation: a model for each third of the doodles that is left out ----

Learnt k_fold(const Strategy& strategy, const fs::path&) {
  constexpr int64_t kFolds = 3, kEach = 80;
  const data::Dataset all = doodles(kFolds * kEach);
  Learnt of_all;
  for (int64_t fold = 0; fold < kFolds; ++fold) {
    const data::Dataset before = all.take(fold * kEach), after = all.skip((fold + 1) * kEach);
    const data::Dataset train = fold == 0            ? after
                                : fold == kFolds - 1 ? before
                                                     : data::concatenate({before, after});
    Model model(strategy, net_of_doodles);
    model.compile({.optimizer = optim::adam({.learning_rate = 3e-3}),
                   .loss = losses::sparse_categorical_crossentropy()});
    const auto held_out = all.skip(fold * kEach).take(kEach).batch(40);
    const Learnt one =
        learnt(model, model.fit(train.shuffle().batch(40), {.epochs = 2, .verbose = 0}));
    of_all.weights += one.weights + fmt::format(" {:.17g} ", model.evaluate(held_out).loss);
    of_all.first += one.first;
    of_all.last += one.last;
  }
  return of_all;
}

// ---- a lecture's program: the Keras way, then a loop of its own, in one file ----

Learnt lecture(const Strategy& strategy, const fs::path&) {
  const data::Dataset train = doodles(240).shuffle().batch(40);
  Model model(strategy, net_of_doodles);
  model.compile({.optimizer = optim::adam(), .loss = losses::sparse_categorical_crossentropy()});
  Learnt both = learnt(model, model.fit(train, {.epochs = 2, .verbose = 0}));

  Strategy own = strategy;
  Replicated<torch::nn::Sequential> net(strategy, net_of_doodles);
  Optimizer optimizer(net, optim::sgd({.learning_rate = 0.05, .momentum = 0.9}));
  auto data = own.distribute(train);
  for (int64_t epoch = 0; epoch < 2; ++epoch)
    both.last = epoch_of(own, data, epoch, [&](auto& replica, const auto& batch) {
      auto [x, y] = batch.local(replica);
      const auto each =
          torch::cross_entropy_loss(net.local(replica)->forward(x), y, {}, at::Reduction::None);
      optimizer.minimize(replica, average_loss(each, batch.global_size()));
      return each.sum().template item<double>();
    });
  both.weights += " " + sha_of(optimizer.updater().parameters(0));
  return both;
}

}  // namespace

std::vector<NamedProgram> programs_that_loop() {
  return {{"converted_loop", converted_loop}, {"gan", gan, false, true}, {"reinforce", reinforce}};
}

std::vector<NamedProgram> programs_that_train_often() {
  return {{"k_fold", k_fold, false, true}, {"lecture", lecture, false, true}};
}

std::string weights_of_mlp(const Strategy& strategy, int64_t epochs,
                           const std::function<void()>& after_epoch) {
  Model model(strategy, [] { return models::mlp(); });
  model.compile({.loss = losses::sparse_categorical_crossentropy()});
  const auto says = callbacks::lambda("says", {.on_epoch_end = [&](Training&) { after_epoch(); }});
  model.fit(doodles(160).batch(20), {.epochs = epochs, .callbacks = {says}, .verbose = 0});
  return model.weights_sha256();
}

}  // namespace tutti::test
