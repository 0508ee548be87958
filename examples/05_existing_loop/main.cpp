// A plain LibTorch program, made distributed in five lines (marked <--), and kept on disk in five
// more (marked <++). Start it with `tutti run`.
#include <tutti/sync/replicated/distributed_optimizer.h>  // <-- 1
#include <tutti/tutti.h>

#include <cstdio>
#include <string>

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::stoi(argv[1]) : 200;
  const std::string folder = argc > 2 ? argv[2] : "";  // of checkpoints: goes on where it was
  tutti::Group world = tutti::join();                  // <-- 2
  torch::manual_seed(0);                               // the same model whenever it runs
  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::ReLU(),
                              torch::nn::Linear(32, 1));
  torch::optim::Adam adam(model->parameters(), torch::optim::AdamOptions(0.01));
  tutti::broadcast_parameters(*model, world);                  // <-- 3
  tutti::DistributedOptimizer optimizer(*model, adam, world);  // <-- 4

  torch::manual_seed(world.rank());  // <-- 5: every rank reads data of its own
  int step = 0;
  tutti::Checkpoint kept(world, {.folder = folder, .every_steps = 50, .resume = true});  // <++ 1
  kept.add("model", *model).add("adam", optimizer).add("step", step);                    // <++ 2
  kept.restore();                                                                        // <++ 3
  while (step < steps) {
    auto x = torch::rand({32, 8});
    auto y = x.sum(1, /*keepdim=*/true);
    optimizer.zero_grad();
    auto loss = torch::mse_loss(model->forward(x), y);
    loss.backward();  // gradients are averaged over the ranks meanwhile
    optimizer.step();
    kept.after_step(++step);  // <++ 4
    if (step % 50 == 0 && world.rank() == 0)
      std::printf("step %d: loss %.4f\n", step, loss.item<double>());
  }
  kept.end();  // <++ 5
  if (world.rank() == 0)
    std::printf("weights %s\n", tutti::weights_sha256(tutti::state_of(*model)).c_str());
}
