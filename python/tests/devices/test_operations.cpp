// Every operation of the backend on tensors of devices: the bits of the CPU's tensors, in whatever
// order the devices work, whatever the tensors' strides.
#include <gtest/gtest.h>

#include <utility>

#include "python/tests/devices/ranks.h"

namespace tutti::python::test {
namespace {

constexpr int kOperationSeeds = 8;

using Operation = std::function<Tensors(Rank&)>;
using NamedOperation = std::pair<const char*, Operation>;

Operation all_reduce(c10d::ReduceOp::RedOpType op, at::ScalarType type, at::IntArrayRef sizes) {
  return [op, type, sizes = sizes.vec()](Rank& self) {
    Tensors tensors{self.data(sizes, type)};
    c10d::AllreduceOptions options;
    options.reduceOp = op;
    wait_for(self.backend.allreduce(tensors, options));
    return tensors;
  };
}

Tensors all_reduce_several(Rank& self) {
  Tensors tensors{self.data({3, 5}), self.data({3, 5}, at::kFloat, 7)};
  wait_for(self.backend.allreduce(tensors, {}));
  return tensors;
}

Tensors all_reduce_coalesced(Rank& self) {
  Tensors tensors{self.data({7}), self.data({0}), self.data({4, 3})};
  wait_for(self.backend.allreduce_coalesced(tensors, {}));
  return tensors;
}

Tensors broadcast(Rank& self) {
  Tensors tensors{self.data({3, 5}), self.data({3, 5}, at::kFloat, 9)};
  wait_for(self.backend.broadcast(tensors, {.rootRank = 1, .rootTensor = 1}));
  return tensors;
}

Tensors reduce(Rank& self) {
  Tensors tensors{self.data({3, 5}, at::kBFloat16)};
  wait_for(self.backend.reduce(tensors, {.rootRank = 1}));
  return tensors;
}

Tensors all_gather(Rank& self) {
  Tensors inputs{self.data({2, 3})};
  std::vector<Tensors> outputs{self.rooms(inputs.size() * self.size, {2, 3})};
  wait_for(self.backend.allgather(outputs, inputs, {}));
  return outputs[0];
}

Tensors all_gather_of_complex(Rank& self) {
  Tensors inputs{at::complex(self.data({5}), self.data({5}, at::kFloat, 3))};
  std::vector<Tensors> outputs{self.rooms(self.size, {5}, at::kComplexFloat)};
  wait_for(self.backend.allgather(outputs, inputs, {}));
  return outputs[0];
}

Tensors all_gather_base(Rank& self) {
  at::Tensor input = self.data({2, 3}, at::kLong);
  at::Tensor output = self.room({2 * self.size, 3}, at::kLong);
  wait_for(self.backend._allgather_base(output, input, {}));
  return {output};
}

Tensors all_gather_coalesced(Rank& self) {
  Tensors inputs{self.data({2}), self.data({3, 2})};
  std::vector<Tensors> outputs;
  for (int r = 0; r < self.size; ++r) outputs.push_back({self.room({2}), self.room({3, 2})});
  wait_for(self.backend.allgather_coalesced(outputs, inputs, {}));
  Tensors all;
  for (const auto& list : outputs) all.insert(all.end(), list.begin(), list.end());
  return all;
}

Tensors all_gather_into_tensors(Rank& self) {
  Tensors inputs{self.data({2}), self.data({3, 2})};
  Tensors outputs{self.room({2 * self.size}), self.room({3 * self.size, 2})};
  wait_for(self.backend.allgather_into_tensor_coalesced(outputs, inputs, {}));
  return outputs;
}

Tensors gather(Rank& self) {
  Tensors inputs{self.data({2, 3})};
  std::vector<Tensors> outputs;
  if (self.rank == 1) outputs.push_back(self.rooms(self.size, {2, 3}));
  wait_for(self.backend.gather(outputs, inputs, {.rootRank = 1}));
  return outputs.empty() ? Tensors{} : outputs[0];
}

Tensors scatter(Rank& self) {
  Tensors outputs{self.room({2, 3})};
  std::vector<Tensors> inputs;
  if (self.rank == 1) {
    inputs.emplace_back();
    for (int r = 0; r < self.size; ++r) inputs[0].push_back(self.data({2, 3}, at::kFloat, r));
  }
  wait_for(self.backend.scatter(outputs, inputs, {.rootRank = 1}));
  return outputs;
}

Tensors reduce_scatter(Rank& self) {
  Tensors outputs{self.room({2, 3})};
  std::vector<Tensors> inputs(1);
  for (int r = 0; r < self.size; ++r)
    inputs[0].push_back(self.data({2, 3}, at::kFloat, r + 3 * self.rank));
  wait_for(self.backend.reduce_scatter(outputs, inputs, {}));
  return outputs;
}

Tensors reduce_scatter_base(Rank& self) {
  at::Tensor input = self.data({2 * self.size, 3}, at::kHalf);
  at::Tensor output = self.room({2, 3}, at::kHalf);
  c10d::ReduceScatterOptions options;
  options.reduceOp = c10d::ReduceOp::AVG;
  wait_for(self.backend._reduce_scatter_base(output, input, options));
  return {output};
}

Tensors reduce_scatter_coalesced(Rank& self) {
  Tensors inputs{self.data({2 * self.size}), self.data({self.size, 5})};
  Tensors outputs{self.room({2}), self.room({1, 5})};
  wait_for(self.backend.reduce_scatter_tensor_coalesced(outputs, inputs, {}));
  return outputs;
}

Tensors all_to_all_base(Rank& self) {
  std::vector<int64_t> none;
  at::Tensor input = self.data({2 * self.size, 3}), output = self.room({2 * self.size, 3});
  wait_for(self.backend.alltoall_base(output, input, none, none, {}));
  return {output};
}

// Rank r gives r' its r + r' rows.
Tensors all_to_all_of_unequal_parts(Rank& self) {
  std::vector<int64_t> splits;
  int64_t rows = 0;
  for (int r = 0; r < self.size; ++r) rows += splits.emplace_back(r + self.rank);
  at::Tensor input = self.data({rows, 3}), output = self.room({rows, 3});
  wait_for(self.backend.alltoall_base(output, input, splits, splits, {}));
  return {output};
}

Tensors all_to_all(Rank& self) {
  Tensors inputs, outputs;
  for (int r = 0; r < self.size; ++r) {
    inputs.push_back(self.data({1 + r + self.rank, 2}, at::kFloat, 5 * self.rank + r));
    outputs.push_back(self.room({1 + r + self.rank, 2}));
  }
  wait_for(self.backend.alltoall(outputs, inputs, {}));
  return outputs;
}

// Round a ring, each message sent before its receiver asks: two, of two tags, received in the other
// order.
Tensors messages(Rank& self) {
  const auto contiguous = [](at::Tensor tensor) { return tensor.contiguous(); };
  const int next = (self.rank + 1) % self.size, last = (self.rank + self.size - 1) % self.size;
  Tensors first{contiguous(self.data({5}))}, second{contiguous(self.data({3}, at::kLong))};
  Tensors got_first{contiguous(self.room({5}))}, got_second{contiguous(self.room({3}, at::kLong))};
  const auto one = self.backend.send(first, next, 4), two = self.backend.send(second, next, 3);
  const auto their_second = self.backend.recv(got_second, last, 3);
  const auto their_first = self.backend.recvAnysource(got_first, 4);
  for (const auto& work : {their_first, their_second, one, two}) wait_for(work);
  EXPECT_EQ(their_first->sourceRank(), last);
  return {got_first[0], got_second[0]};
}

Tensors barrier(Rank& self) {
  wait_for(self.backend.barrier({}));
  return {};
}

std::vector<NamedOperation> all_operations() {
  using c10d::ReduceOp;
  return {{"all_reduce", all_reduce(ReduceOp::SUM, at::kFloat, {33, 7})},
          {"all_reduce, many", all_reduce(ReduceOp::SUM, at::kFloat, {100'003})},
          {"all_reduce, a number", all_reduce(ReduceOp::SUM, at::kDouble, {})},
          {"all_reduce, nothing", all_reduce(ReduceOp::SUM, at::kFloat, {0})},
          {"all_reduce, bfloat16", all_reduce(ReduceOp::SUM, at::kBFloat16, {129})},
          {"all_reduce, mean", all_reduce(ReduceOp::AVG, at::kFloat, {129})},
          {"all_reduce, max", all_reduce(ReduceOp::MAX, at::kLong, {129})},
          {"all_reduce, bool", all_reduce(ReduceOp::SUM, at::kBool, {129})},
          {"all_reduce, several", all_reduce_several},
          {"all_reduce, coalesced", all_reduce_coalesced},
          {"broadcast", broadcast},
          {"reduce", reduce},
          {"all_gather", all_gather},
          {"all_gather, complex", all_gather_of_complex},
          {"all_gather, base", all_gather_base},
          {"all_gather, coalesced", all_gather_coalesced},
          {"all_gather, into tensors", all_gather_into_tensors},
          {"gather", gather},
          {"scatter", scatter},
          {"reduce_scatter", reduce_scatter},
          {"reduce_scatter, base", reduce_scatter_base},
          {"reduce_scatter, coalesced", reduce_scatter_coalesced},
          {"all_to_all, base", all_to_all_base},
          {"all_to_all, unequal", all_to_all_of_unequal_parts},
          {"all_to_all", all_to_all},
          {"messages", messages},
          {"barrier", barrier}};
}

class Operations : public BackendOnDevices {
 protected:
  // What every rank has of every operation, on the host.
  using Results = std::vector<std::vector<Tensors>>;
  static Results results(const Group& group) {
    const auto operations = all_operations();
    Results all(static_cast<size_t>(group.size));
    run_all_well(group, [&](Rank& self) {
      for (const auto& [name, operation] : operations) {
        Tensors here;
        for (const auto& tensor : operation(self)) here.push_back(tensor.cpu());
        all[static_cast<size_t>(self.rank)].push_back(std::move(here));
      }
    });
    return all;
  }

  static void expect_equal(const Results& got, const Results& expected) {
    const auto operations = all_operations();
    for (size_t r = 0; r < expected.size(); ++r) {
      ASSERT_EQ(got[r].size(), operations.size()) << "rank " << r;
      for (size_t i = 0; i < operations.size(); ++i) {
        ASSERT_EQ(got[r][i].size(), expected[r][i].size()) << operations[i].first;
        for (size_t t = 0; t < expected[r][i].size(); ++t)
          EXPECT_TRUE(got[r][i][t].equal(expected[r][i][t]))
              << operations[i].first << ", tensor " << t << " of rank " << r;
      }
    }
  }
};

TEST_F(Operations, HaveTheBitsOfTheCpu) {
  for (const int size : {2, 3}) {
    const Results expected = results({.size = size, .on_cuda = false});
    for (const bool strided : {false, true})
      for (const bool one_device : {false, true}) {
        SCOPED_TRACE(fmt::format("{} ranks{}{}", size, strided ? ", strided" : "",
                                 one_device ? ", on one device" : ""));
        tutti::test::in_all_orders(kOperationSeeds, [&] {
          expect_equal(results({.size = size, .one_device = one_device, .strided = strided}),
                       expected);
        });
      }
  }
}

TEST_F(Operations, OneRankMayHaveItsTensorsOnTheCpu) {
  for (const int on_cpu : {0, 1})
    tutti::test::in_all_orders(kOperationSeeds, [&] {
      run_all_well({}, [&](Rank& self) {
        Tensors tensors{self.data({100})};
        const at::Tensor expected = self.data({100}, at::kFloat, 1) + self.data({100}, at::kFloat, 2);
        if (self.rank == on_cpu) tensors[0] = tensors[0].cpu();
        wait_for(self.backend.allreduce(tensors, {}));
        EXPECT_TRUE(tensors[0].cpu().equal(expected.cpu()));
      });
    });
}

}  // namespace
}  // namespace tutti::python::test
