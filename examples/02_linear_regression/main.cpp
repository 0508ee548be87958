// The linear regression of the tf.distribute guide: one dense unit, the point (1, 1) a hundred
// times. The losses do not depend on the number of replicas.
#include <tutti/tutti.h>

#include <cstdio>

int main(int argc, char** argv) {
  auto strategy = tutti::strategy_from_flags(argc, argv);  // --strategy mirrored --replicas 2

  auto ones = tutti::data::array_of(std::vector<float>(100, 1.0F), {100, 1});
  auto data = tutti::data::from_arrays({ones, ones}).batch(10);

  tutti::Model model(strategy, [] {
    torch::nn::Linear unit(1, 1);
    torch::nn::init::constant_(unit->weight, 0.5);
    torch::nn::init::zeros_(unit->bias);
    return unit;
  });
  model.compile({.optimizer = tutti::optim::sgd({.learning_rate = 0.01}),
                 .loss = tutti::losses::mean_squared_error()});
  auto history = model.fit(data, {.epochs = 2, .verbose = 0});
  if (strategy.world().first_rank == 0)
    for (int epoch = 0; epoch < 2; ++epoch)
      std::printf("epoch %d: loss %.9f\n", epoch, history.column("train_loss").at(epoch));
}
