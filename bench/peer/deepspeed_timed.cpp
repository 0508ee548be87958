// DeepSpeed's all-reduce, timed as mpi_collectives.c times MPI's. deepspeed_shm.py compiles this
// with the sources of the installed package, of which this holds one: only there its functions can
// be called from C++.
#include <chrono>

#include "shm_interface.cpp"  // brings LibTorch's headers

namespace {

void start(int64_t ranks, int64_t rank) {
  initialize(static_cast<int>(ranks), static_cast<int>(rank));
}

void all_reduce(torch::Tensor& data) {
  all_reduce_outer_loop(data, data.numel(), static_cast<int>(data.nbytes()));
}

// Microseconds of each of `iterations` rows of `row` operations, a row's mean; then 1 if every
// result was right, else 0. Rows are sums of sums: there is no maximum here.
std::vector<double> measure(int64_t bytes, int64_t iterations, int64_t row, int64_t ranks,
                            int64_t rank) {
  auto data = torch::empty({bytes / 4});
  auto barrier = torch::zeros({2});
  double wanted = static_cast<double>(ranks * (ranks + 1)) / 2;
  for (int64_t i = 1; i < row; ++i) wanted *= static_cast<double>(ranks);
  std::vector<double> times;
  bool right = true;
  for (int64_t i = 0; i < iterations; ++i) {
    data.fill_(static_cast<double>(rank + 1));
    all_reduce(barrier);
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t j = 0; j < row; ++j) all_reduce(data);
    const std::chrono::duration<double, std::micro> us = std::chrono::steady_clock::now() - begin;
    right = right && (data == wanted).all().item<bool>();
    times.push_back(us.count() / static_cast<double>(row));
  }
  times.push_back(right ? 1 : 0);
  return times;
}

}  // namespace

TORCH_LIBRARY(deepspeed_timed, library) {
  library.def("start", &start);
  library.def("measure", &measure);
}
