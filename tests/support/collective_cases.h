/// The differentiable collectives, each on inputs that are small, unlike, and where possible
/// uneven.
#pragma once

#include <torch/torch.h>

#include <ostream>
#include <string>
#include <vector>

#include "tutti/nn/collectives.h"

#include "tests/support/finite_differences.h"

namespace tutti::test {

struct CollectiveCase {
  std::string name;
  std::function<at::Tensor(int rank, int replicas)> input;
  std::function<at::Tensor(ReplicaContext&, const at::Tensor&)> output;

  friend std::ostream& operator<<(std::ostream& out, const CollectiveCase& one) {
    return out << one.name;
  }

  ReplicaInput input_of(int replicas) const {
    return [*this, replicas](int rank) { return input(rank, replicas); };
  }
  /// Another function of the output on each replica, none of them linear.
  ReplicaLoss loss() const {
    return [output = output](ReplicaContext& replica, const at::Tensor& x) {
      const at::Tensor y = output(replica, x);
      const at::Tensor factors = at::arange(1, y.numel() + 1, at::kDouble).view(y.sizes());
      return (y * (factors + 0.5 * replica.rank()) * 0.3).sin().sum();
    };
  }
};

inline at::Tensor unlike_values(std::vector<int64_t> shape, int rank) {
  const at::Tensor values = at::empty(shape, at::kDouble);
  for (int64_t i = 0; i < values.numel(); ++i)
    values.data_ptr<double>()[i] = 0.1 * static_cast<double>(((i + 3) * (2 * rank + 5)) % 17) - 0.7;
  return values;
}

inline std::vector<CollectiveCase> collective_cases() {
  using nn::all_gather, nn::all_reduce, nn::all_to_all, nn::reduce_scatter;
  const auto alike = [](std::vector<int64_t> shape) {
    return [shape](int rank, int) { return unlike_values(shape, rank); };
  };
  // Replica r sends r + s rows to replica s: nothing from the first to itself.
  const auto sent = [](int rank, int replicas) {
    std::vector<int64_t> sizes;
    for (int s = 0; s < replicas; ++s) sizes.push_back(rank + s);
    return sizes;
  };
  const auto growing = [](int replicas) {
    std::vector<int64_t> sizes;
    for (int s = 0; s < replicas; ++s) sizes.push_back(s);
    return sizes;
  };
  return {
      {"all_reduce_sum", alike({2, 3}), [](auto& r, const auto& x) { return all_reduce(r, x); }},
      {"all_reduce_mean", alike({3}),
       [](auto& r, const auto& x) { return all_reduce(r, x, ReduceOp::mean); }},
      {"all_reduce_of_a_scalar", alike({}),
       [](auto& r, const auto& x) { return all_reduce(r, x); }},
      {"all_reduce_of_a_transposed", alike({2, 3}),
       [](auto& r, const auto& x) { return all_reduce(r, x.t()); }},
      {"all_gather_uneven", [](int rank, int) { return unlike_values({rank, 2}, rank); },
       [](auto& r, const auto& x) { return all_gather(r, x); }},
      {"all_gather_last_axis", [](int rank, int) { return unlike_values({2, rank + 1}, rank); },
       [](auto& r, const auto& x) { return all_gather(r, x, -1); }},
      {"reduce_scatter_sum", [](int rank, int n) { return unlike_values({2 * n, 2}, rank); },
       [](auto& r, const auto& x) { return reduce_scatter(r, x); }},
      {"reduce_scatter_mean_axis_1", [](int rank, int n) { return unlike_values({2, n}, rank); },
       [](auto& r, const auto& x) { return reduce_scatter(r, x, ReduceOp::mean, 1); }},
      {"reduce_scatter_uneven",
       [](int rank, int n) { return unlike_values({n * (n - 1) / 2, 2}, rank); },
       [growing](auto& r, const auto& x) {
         return reduce_scatter(r, x, ReduceOp::sum, 0, growing(r.num_replicas_in_sync()));
       }},
      {"broadcast_first", alike({2, 2}),
       [](auto& r, const auto& x) { return nn::broadcast(r, x); }},
      {"broadcast_last", alike({3}),
       [](auto& r, const auto& x) { return nn::broadcast(r, x, r.num_replicas_in_sync() - 1); }},
      {"all_to_all_equal", [](int rank, int n) { return unlike_values({2 * n, 2}, rank); },
       [](auto& r, const auto& x) { return all_to_all(r, x); }},
      {"all_to_all_uneven_axis_1",
       [](int rank, int n) { return unlike_values({2, n * rank + n * (n - 1) / 2}, rank); },
       [sent](auto& r, const auto& x) {
         return all_to_all(r, x, 1, sent(r.rank(), r.num_replicas_in_sync()));
       }},
  };
}

}  // namespace tutti::test
