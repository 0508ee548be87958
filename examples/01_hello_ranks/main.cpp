// The smallest program of several ranks: each brings a tensor, all get the sum.
#include <tutti/tutti.h>

#include <cstdio>

int main() {
  tutti::Group world = tutti::join();  // reads what `tutti run` set; alone, a group of one
  auto x = torch::ones({4}) * (world.rank() + 1);
  world.all_reduce(tutti::span_of(x), tutti::ReduceOp::sum).wait();
  std::printf("rank %d of %d: the sum is %g\n", world.rank(), world.size(), x[0].item<double>());
}
