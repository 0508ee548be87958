// The reduction kernels of every instruction set against the slow oracle, byte by byte.
#include <gtest/gtest.h>

#include <vector>

#include "tutti/base/error.h"
#include "tutti/comm/engine/kernels/dispatch.h"
#include "tutti/comm/engine/reduce_kernels.h"

#include "tests/support/reduce_oracle.h"

namespace tutti {
namespace {

using test::Bytes;

// Those whose sums and conversions have kernels of their own.
constexpr DType kReducible[] = {DType::float32, DType::float64, DType::bfloat16,
                                DType::float16, DType::int32,   DType::int64};
constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::mean, ReduceOp::min, ReduceOp::max};

std::vector<const void*> pointers(const std::vector<Bytes>& inputs) {
  std::vector<const void*> all;
  for (const auto& input : inputs) all.push_back(input.data());
  return all;
}

Bytes reduced(CpuVariant variant, DType dtype, ReduceOp op, const ReductionShape& shape,
              const std::vector<Bytes>& inputs, size_t outs = 1) {
  const int64_t n = static_cast<int64_t>(inputs[0].size()) / size_of(dtype);
  std::vector<Bytes> results(outs, Bytes(inputs[0].size(), 0xaa));
  std::vector<void*> to;
  for (auto& result : results) to.push_back(result.data());
  detail::reduce_with(detail::reduce_table_of(variant), dtype, op, shape, pointers(inputs), to, n);
  for (const auto& result : results) EXPECT_EQ(result, results[0]);
  return results[0];
}

class ReduceKernels : public testing::TestWithParam<CpuVariant> {};

TEST_P(ReduceKernels, EqualTheOracleForEveryDtypeOperationCountAndLength) {
  for (DType dtype : test::kAllDTypes)
    for (ReduceOp op : test::kAllOps)
      for (int replicas : {1, 2, 3, 4, 5, 8, 17}) {
        if (!test::is_defined(dtype, op)) continue;
        for (int64_t n : {0, 1, 7, 33, 256, 257, 1021}) {
          std::vector<Bytes> inputs;
          for (int r = 0; r < replicas; ++r)
            inputs.push_back(test::ordinary_values(dtype, n, 5, r));
          const auto shape = ReductionShape::flat(replicas);
          const Bytes expected = test::oracle(dtype, op, shape, inputs);
          for (size_t outs : {size_t{1}, inputs.size()})
            EXPECT_EQ(test::first_difference(
                          dtype, reduced(GetParam(), dtype, op, shape, inputs, outs).data(),
                          expected.data(), n),
                      "")
                << name_of(dtype) << " " << name_of(op) << " of " << replicas << ", " << n;
        }
      }
}

TEST_P(ReduceKernels, FollowTheShapeOfSeveralHosts) {
  for (const char* text : {"2x2", "2x3", "3+1", "1+2", "1+3", "2+1+4", "5x1"}) {
    const auto shape = ReductionShape::parse(text);
    std::vector<Bytes> inputs;
    for (int r = 0; r < shape.replicas(); ++r)
      inputs.push_back(test::ordinary_values(DType::float32, 500, 9, r));
    const Bytes expected = test::oracle(DType::float32, ReduceOp::sum, shape, inputs);
    EXPECT_EQ(reduced(GetParam(), DType::float32, ReduceOp::sum, shape, inputs), expected) << text;
  }
}

TEST_P(ReduceKernels, GiveTheSameBitsWhereverASliceIsCut) {
  for (DType dtype : kReducible)
    for (int replicas : {2, 3, 4, 7}) {
      constexpr int64_t kLength = 75;
      std::vector<Bytes> inputs;
      for (int r = 0; r < replicas; ++r)
        inputs.push_back(test::ordinary_values(dtype, kLength, 3, r));
      const auto shape = ReductionShape::flat(replicas);
      const Bytes whole = reduced(GetParam(), dtype, ReduceOp::sum, shape, inputs);
      for (int64_t cut = 0; cut <= kLength; ++cut) {
        std::vector<Bytes> left, right;
        for (const auto& input : inputs) {
          left.emplace_back(input.begin(), input.begin() + cut * size_of(dtype));
          right.emplace_back(input.begin() + cut * size_of(dtype), input.end());
        }
        Bytes joined = reduced(GetParam(), dtype, ReduceOp::sum, shape, left);
        const Bytes rest = reduced(GetParam(), dtype, ReduceOp::sum, shape, right);
        joined.insert(joined.end(), rest.begin(), rest.end());
        ASSERT_EQ(joined, whole) << name_of(dtype) << " cut at " << cut;
      }
    }
}

// (x + x) / 2 and min(x, x) are x, so they show both conversions of every 16-bit number.
TEST_P(ReduceKernels, ConvertEverySixteenBitNumberThereAndBack) {
  Bytes all(65536 * 2);
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto number = static_cast<uint16_t>(bits);
    std::memcpy(all.data() + bits * 2, &number, 2);
  }
  for (DType dtype : {DType::float16, DType::bfloat16})
    for (ReduceOp op : {ReduceOp::mean, ReduceOp::min, ReduceOp::max}) {
      // Twice the largest bfloat16 numbers is infinite in float32, so their mean is too.
      const Bytes expected = test::oracle(dtype, op, ReductionShape::flat(2), {all, all});
      const Bytes got = reduced(GetParam(), dtype, op, ReductionShape::flat(2), {all, all});
      EXPECT_EQ(test::first_difference(dtype, got.data(), expected.data(), 65536), "")
          << name_of(dtype) << " " << name_of(op);
    }
}

TEST_P(ReduceKernels, RoundSumsOfSixteenBitNumbersToNearestEven) {
  for (DType dtype : {DType::float16, DType::bfloat16}) {
    // Random bit patterns: subnormals, overflow, infinities and NaN meet each other.
    std::mt19937 random(7);
    std::vector<Bytes> inputs(3, Bytes(20000 * 2));
    for (auto& input : inputs)
      for (auto& byte : input) byte = static_cast<unsigned char>(random());
    const auto shape = ReductionShape::flat(3);
    for (ReduceOp op : kOps) {
      const Bytes expected = test::oracle(dtype, op, shape, inputs);
      const Bytes got = reduced(GetParam(), dtype, op, shape, inputs);
      EXPECT_EQ(test::first_difference(dtype, got.data(), expected.data(), 20000), "")
          << name_of(dtype) << " " << name_of(op);
    }
  }
}

TEST_P(ReduceKernels, ExtremesDoNotDependOnTheOrderOfRanks) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> special = {0.f, -0.f, kNan, -kNan, kInfinity, -kInfinity, 1.f, -1e-42f};
  for (ReduceOp op : {ReduceOp::min, ReduceOp::max})
    for (float a : special)
      for (float b : special) {
        const std::vector<float> x(19, a), y(19, b);
        std::vector<float> forth(19), back(19);
        const auto& table = detail::reduce_table_of(GetParam());
        const void* ab[] = {x.data(), y.data()};
        const void* ba[] = {y.data(), x.data()};
        void* to_forth[] = {forth.data()};
        void* to_back[] = {back.data()};
        const auto shape = ReductionShape::flat(2);
        detail::reduce_with(table, DType::float32, op, shape, ab, to_forth, 19);
        detail::reduce_with(table, DType::float32, op, shape, ba, to_back, 19);
        EXPECT_EQ(std::memcmp(forth.data(), back.data(), 19 * 4), 0) << a << " " << b;
        const float expected = test::oracle_combine(op, a, b);
        EXPECT_EQ(test::first_difference(DType::float32, forth.data(),
                                         std::vector<float>(19, expected).data(), 19),
                  "")
            << name_of(op) << " of " << a << " and " << b;
      }
}

TEST_P(ReduceKernels, LeaveOutNullInputsAndCountThemInTheMean) {
  const auto& table = detail::reduce_table_of(GetParam());
  const std::vector<float> two = {2.f, -0.f, 4.f}, six = {6.f, -0.f, 8.f};
  std::vector<float> out(3);
  void* outs[] = {out.data()};
  const auto run = [&](std::vector<const void*> inputs, ReduceOp op) {
    detail::reduce_with(table, DType::float32, op,
                        ReductionShape::flat(static_cast<int>(inputs.size())), inputs, outs, 3);
    return out;
  };
  EXPECT_EQ(run({nullptr, two.data(), nullptr, six.data()}, ReduceOp::mean),
            (std::vector<float>{2, 0, 3}));
  EXPECT_TRUE(std::signbit(out[1])) << "a missing input is not a zero that is added";
  EXPECT_EQ(run({nullptr, two.data()}, ReduceOp::sum), two);
  EXPECT_EQ(run({six.data(), nullptr, nullptr}, ReduceOp::sum), six);
  EXPECT_EQ(run({nullptr, nullptr, nullptr}, ReduceOp::sum), (std::vector<float>{0, 0, 0}));
  EXPECT_EQ(run({nullptr}, ReduceOp::sum), (std::vector<float>{0, 0, 0}));
}

TEST_P(ReduceKernels, WriteOverTheirInputs) {
  for (int replicas : {2, 3, 4, 6}) {
    std::vector<Bytes> inputs;
    for (int r = 0; r < replicas; ++r)
      inputs.push_back(test::ordinary_values(DType::bfloat16, 999, 11, r));
    const auto shape = ReductionShape::flat(replicas);
    const Bytes expected = test::oracle(DType::bfloat16, ReduceOp::sum, shape, inputs);
    std::vector<void*> outs;
    for (auto& input : inputs) outs.push_back(input.data());
    detail::reduce_with(detail::reduce_table_of(GetParam()), DType::bfloat16, ReduceOp::sum, shape,
                        pointers(inputs), outs, 999);
    for (const auto& input : inputs) EXPECT_EQ(input, expected) << replicas;
  }
}

// What hierarchies do: each host's part of the tree, then the tree of the hosts, then the result.
TEST_P(ReduceKernels, PartialResultsGiveTheBitsOfTheWholeTree) {
  const auto& table = detail::reduce_table_of(GetParam());
  const auto whole = ReductionShape::parse("3+1+2");
  const auto hosts = ReductionShape::flat(3);
  constexpr int64_t kLength = 517;
  for (DType dtype : test::kAllDTypes)
    for (ReduceOp op : test::kAllOps) {
      if (!test::is_defined(dtype, op)) continue;
      std::vector<Bytes> inputs;
      for (int r = 0; r < 6; ++r) inputs.push_back(test::ordinary_values(dtype, kLength, 13, r));
      const auto all = pointers(inputs);
      const DType wide = accumulator_of(dtype);
      std::vector<Bytes> partials(3, Bytes(static_cast<size_t>(kLength * size_of(wide))));
      size_t first = 0;
      for (size_t host = 0; host < 3; ++host) {
        const auto count = static_cast<size_t>(whole.replicas_per_host()[host]);
        detail::reduce_partial_with(table, dtype, op, ReductionShape::flat(static_cast<int>(count)),
                                    std::span(all).subspan(first, count), partials[host].data(),
                                    kLength);
        first += count;
      }
      void* total = partials[1].data();
      detail::reduce_with(table, wide, partial_op(op), hosts, pointers(partials), {&total, 1},
                          kLength);
      Bytes result(inputs[0].size());
      detail::finish_with(table, dtype, op, total, result.data(), kLength, 6);
      const Bytes expected = test::oracle(dtype, op, whole, inputs);
      EXPECT_EQ(test::first_difference(dtype, result.data(), expected.data(), kLength), "")
          << name_of(dtype) << " " << name_of(op);
    }
}

INSTANTIATE_TEST_SUITE_P(Variants, ReduceKernels, testing::ValuesIn(runnable_variants()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(ReduceInputs, RefuseWhatHasNoMeaning) {
  int32_t number = 1;
  const void* inputs[] = {&number, &number};
  EXPECT_THROW(
      reduce_inputs(DType::int32, ReduceOp::mean, ReductionShape::flat(2), inputs, &number, 1),
      UsageError);
  for (ReduceOp op : test::kAllOps)
    for (DType dtype : test::kAllDTypes)
      if (!test::is_defined(dtype, op)) {
        EXPECT_THROW(reduce_inputs(dtype, op, ReductionShape::flat(2), inputs, &number, 1),
                     UsageError)
            << name_of(op) << " of " << name_of(dtype);
      }
  EXPECT_THROW(
      reduce_inputs(DType::int32, ReduceOp::sum, ReductionShape::flat(3), inputs, &number, 1),
      Error);
}

}  // namespace
}  // namespace tutti
