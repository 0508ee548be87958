// A plain LibTorch program, made distributed in five lines (marked <--). Start it with `tutti run`.
#include <tutti/sync/replicated/distributed_optimizer.h>  // <-- 1
#include <tutti/tutti.h>

#include <cstdio>

int main() {
  tutti::Group world = tutti::join();  // <-- 2
  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::ReLU(),
                              torch::nn::Linear(32, 1));
  torch::optim::Adam adam(model->parameters(), torch::optim::AdamOptions(0.01));
  tutti::broadcast_parameters(*model, world);                  // <-- 3
  tutti::DistributedOptimizer optimizer(*model, adam, world);  // <-- 4

  torch::manual_seed(world.rank());  // <-- 5: every rank reads data of its own
  for (int step = 0; step < 200; ++step) {
    auto x = torch::rand({32, 8});
    auto y = x.sum(1, /*keepdim=*/true);
    optimizer.zero_grad();
    auto loss = torch::mse_loss(model->forward(x), y);
    loss.backward();  // gradients are averaged over the ranks meanwhile
    optimizer.step();
    if (step % 50 == 49 && world.rank() == 0)
      std::printf("step %d: loss %.4f\n", step + 1, loss.item<double>());
  }
}
