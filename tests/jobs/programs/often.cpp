#include <torch/torch.h>

#include "tests/jobs/programs/programs.h"
#include "tests/support/small_training.h"

namespace tutti::test {
namespace {

namespace fs = std::filesystem;

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
  model.compile(
      {.optimizer = optim::adam(), .loss = losses::sparse_categorical_crossentropy()});
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

std::vector<NamedProgram> programs_that_train_often() {
  return {{"k_fold", k_fold, false, true}, {"lecture", lecture, false, true}};
}

}  // namespace tutti::test
