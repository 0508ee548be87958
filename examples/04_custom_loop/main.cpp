// The training loop written out: what Model::fit does, one floor down.
#include <tutti/tutti.h>

#include <cstdio>
#include <string>

int main(int argc, char** argv) {
  auto strategy = tutti::strategy_from_flags(argc, argv);  // takes its own flags out of argv
  const std::string folder = argc > 1 ? argv[1] : "examples/data/quickdraw";
  const int epochs = argc > 2 ? std::stoi(argv[2]) : 2;

  auto train = tutti::data::quickdraw(folder, {.split = "train"}).shuffle().batch(128);
  tutti::Replicated<torch::nn::Sequential> net(strategy, [] {
    return torch::nn::Sequential(torch::nn::Flatten(), torch::nn::Linear(784, 128),
                                 torch::nn::ReLU(), torch::nn::Linear(128, 10));
  });
  tutti::Optimizer optimizer(net, tutti::optim::adam({.learning_rate = 1e-3}));  // owns the state
  auto data = strategy.distribute(train);

  for (int epoch = 0; epoch < epochs; ++epoch) {
    double sum = 0;
    auto batches = data.epoch(epoch);
    for (auto&& batch : batches) {  // one part per replica
      auto losses = strategy.run([&](tutti::ReplicaContext& replica) {
        auto [x, y] = batch.local(replica);
        auto each =
            torch::cross_entropy_loss(net.local(replica)->forward(x), y, {}, at::Reduction::None);
        auto loss = tutti::average_loss(each, batch.global_size());
        optimizer.minimize(replica, loss);  // backward, SUM over replicas, one update
        return loss.detach();
      });
      sum += strategy.reduce(tutti::ReduceOp::sum, losses).item<double>();
    }
    if (strategy.world().first_rank == 0)
      std::printf("epoch %d: mean loss %.4f\n", epoch, sum / static_cast<double>(batches.size()));
  }
}
