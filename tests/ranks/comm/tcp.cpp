// The tcp engine beyond the conformance suite: every algorithm over real streams, many stripes,
// options, splitting, messages in numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/support/comm.h"
#include "tests/support/reduce_oracle.h"
#include "tests/support/tcp_members.h"

namespace tutti {
namespace {

using test::Bytes;
using test::Wire;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::StartsWith;

MemorySpan span_of_bytes(Bytes& bytes, DType dtype) {
  return {bytes.data(), static_cast<int64_t>(bytes.size()) / size_of(dtype), dtype};
}

// Small chunks and stripes, so that small buffers go through every path.
TcpOptions small_pieces(Algorithm algorithm, Collective collective, Order order) {
  return {.order = order,
          .table = {{{.collective = collective, .order = order, .algorithm = algorithm}}},
          .chunk_bytes = 4096,
          .min_stripe_bytes = 4096};
}

constexpr Algorithm kAll[] = {Algorithm::direct,           Algorithm::pairwise, Algorithm::doubling,
                              Algorithm::halving_doubling, Algorithm::tree,     Algorithm::ring,
                              Algorithm::double_tree};

TEST(Tcp, AllReduceByEveryAlgorithm) {
  for (Algorithm algorithm : kAll) {
    const bool any = algorithm == Algorithm::ring || algorithm == Algorithm::double_tree;
    for (int ranks : {2, 3, 4, 6, 8}) {
      TcpOptions options =
          small_pieces(algorithm, Collective::all_reduce, any ? Order::any : Order::fixed);
      const auto members = test::make_tcp_members(ranks, options, 3);
      for (DType dtype : {DType::float32, DType::bfloat16, DType::int64})
        for (ReduceOp op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::max})
          for (int64_t n : {1, 5, 1024, 1025, 30'011}) {
            if (op == ReduceOp::mean && !is_floating(dtype)) continue;
            // Integers add in any order to the same.
            if (any && is_floating(dtype) && op != ReduceOp::max) continue;
            std::vector<Bytes> data;
            for (int r = 0; r < ranks; ++r) data.push_back(test::ordinary_values(dtype, n, 7, r));
            const Bytes expected = test::oracle(dtype, op, ReductionShape::flat(ranks), data);
            test::run_all_members(members, [&](Group group) {
              group.all_reduce(span_of_bytes(data[group.rank()], dtype), op).wait();
            });
            for (int r = 0; r < ranks; ++r)
              ASSERT_EQ(test::first_difference(dtype, data[r].data(), expected.data(), n), "")
                  << name_of(algorithm) << ", " << ranks << " ranks, rank " << r << ", "
                  << name_of(op) << " of " << n << " " << name_of(dtype);
          }
    }
  }
}

}  // namespace
}  // namespace tutti
