/// Sums by engines for devices between the queues of the fake CUDA.
#pragma once

#include <cmath>
#include <memory>
#include <vector>

#include "tests/support/comm.h"
#include "tests/support/fake_cuda/orders.h"
#include "tests/support/fake_cuda/queues.h"
#include "tests/support/fake_nccl/fake_nccl.h"

namespace tutti::test {

inline MemorySpan on_device(MemorySpan span) {
  span.place = {Place::Kind::cuda, 0, {}};
  return span;
}

constexpr int kSteps = 4, kElements = 50;

/// Each rank, on a queue of its own: numbers are written, added up over all ranks, and read,
/// several times in the same memory, and no thread waits for a queue before the end. What was read.
inline std::vector<std::vector<float>> sums_by_queues(
    const std::vector<std::shared_ptr<Engine>>& engines) {
  std::vector<std::vector<float>> read(engines.size());
  std::vector<std::vector<float>> written(engines.size(), std::vector(size_t{kElements}, NAN));
  run_all_members(engines, [&](Group group) {
    const int rank = group.rank();
    auto& queue = fake_cuda::queue_of(rank, 5);
    std::vector<float>& data = written[static_cast<size_t>(rank)];
    std::vector<float>& mine = read[static_cast<size_t>(rank)];
    const Stream stream{reinterpret_cast<uintptr_t>(&queue)};
    MemorySpan span = span_of(std::span(data));
    span.place = {Place::Kind::cuda, static_cast<int16_t>(rank), stream};
    for (int step = 0; step < kSteps; ++step) {
      fake_cuda::enqueue(queue, "write", [&data, rank, step] {
        for (int i = 0; i < kElements; ++i)
          data[static_cast<size_t>(i)] = static_cast<float>((rank + 1) * (step + 1) + i);
      });
      group.all_reduce(span, ReduceOp::sum).wait_on(stream);
      fake_cuda::enqueue(queue, "read", [&] { mine.insert(mine.end(), data.begin(), data.end()); });
    }
    fake_cuda::wait_for(fake_cuda::mark_of(queue), "the end of the test");
  });
  fake_cuda::run_all();  // where a wait was left out there is more
  return read;
}

inline std::vector<std::vector<float>> expected_of_queues(int ranks) {
  std::vector<float> sums;
  for (int step = 0; step < kSteps; ++step)
    for (int i = 0; i < kElements; ++i) {
      int sum = 0;
      for (int rank = 0; rank < ranks; ++rank) sum += (rank + 1) * (step + 1) + i;
      sums.push_back(static_cast<float>(sum));
    }
  return std::vector(static_cast<size_t>(ranks), sums);
}

}  // namespace tutti::test
