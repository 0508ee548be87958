/// Calls of a group, as the tests of failures make them.
#pragma once

#include <functional>
#include <vector>

#include "tutti/comm/group/group.h"

namespace tutti::test {

using GroupCall = std::function<void(Group)>;

inline GroupCall all_reduce(int64_t n, DType dtype = DType::float32, ReduceOp op = ReduceOp::sum) {
  return [=](Group group) {
    std::vector<double> memory(static_cast<size_t>(n) + 1);
    group.all_reduce({memory.data(), n, dtype}, op).wait();
  };
}

inline GroupCall broadcast(int64_t n, int root) {
  return [=](Group group) {
    std::vector<float> memory(static_cast<size_t>(n));
    group.broadcast(span_of(std::span(memory)), root).wait();
  };
}

inline const GroupCall kBarrier = [](Group group) { group.barrier(); };

}  // namespace tutti::test
