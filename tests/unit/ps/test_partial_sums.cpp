#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "tutti/comm/engine/reduce_kernels.h"
#include "tutti/ps/values/partial_sums.h"

namespace tutti::ps {
namespace {

float value_of(int rank) { return std::ldexp(1.0F + static_cast<float>(rank) / 7, 5 * (rank % 4)); }

float add(const ReductionShape& shape, const std::vector<float>& values,
          const std::vector<bool>& there) {
  std::vector<const void*> inputs;
  for (size_t i = 0; i < values.size(); ++i) inputs.push_back(there[i] ? &values[i] : nullptr);
  float sum = 0;
  reduce_inputs(DType::float32, ReduceOp::sum, shape, inputs, &sum, 1);
  return sum;
}

TEST(PartialSums, WholeSubtreesBecomeOnePart) {
  const std::vector<PartialSum> two = {{2, {2, 3}}};
  EXPECT_EQ(partial_sums(ReductionShape::flat(4), 2, 2), two);
  const std::vector<PartialSum> three = {{3, {3}}, {4, {4, 5}}};
  EXPECT_EQ(partial_sums(ReductionShape::flat(6), 3, 3), three);
  const std::vector<PartialSum> host = {{3, {3, 4, 5}}};
  EXPECT_EQ(partial_sums(ReductionShape::parse("3+3"), 3, 3), host);
}

TEST(PartialSums, AddingThemIsAddingAllBitForBit) {
  for (const char* text : {"4", "6", "7", "2x3", "3+1", "2+4+1", "12"}) {
    const ReductionShape shape = ReductionShape::parse(text);
    const int n = shape.replicas();
    std::vector<float> values(n);
    for (int rank = 0; rank < n; ++rank) values[rank] = value_of(rank);
    const float all = add(shape, values, std::vector<bool>(n, true));
    for (int local = 1; local <= n; ++local) {
      if (n % local != 0) continue;
      std::vector<float> parts(n);
      std::vector<bool> there(n, false);
      for (int first = 0; first < n; first += local)
        for (const PartialSum& sum : partial_sums(shape, first, local)) {
          std::vector<bool> mine(n, false);
          for (const int rank : sum.ranks) mine[rank] = true;
          parts[sum.rank] = add(shape, values, mine);
          there[sum.rank] = true;
        }
      EXPECT_EQ(add(shape, parts, there), all) << text << " in workers of " << local;
    }
  }
}

TEST(PartialSums, SeesWhatIsNotFinite) {
  const int64_t count = 20'000;
  const Piece piece{
      .dtype = DType::float32,
      .segments = {{.variable = 0, .begin = 0, .end = count, .offset_bytes = 0},
                   {.variable = 1, .begin = 0, .end = count, .offset_bytes = count * 4}},
      .num_bytes = 2 * count * 4};
  const ReductionShape shape = ReductionShape::flat(2);
  const auto sums = partial_sums(shape, 0, 2);
  std::vector<std::byte> to(piece.num_bytes);
  constexpr float kMax = std::numeric_limits<float>::max();
  for (const auto& [first, second, seen] :
       std::vector<std::tuple<float, float, uint8_t>>{{1, 1, Part::counts},
                                                      {kMax, -kMax, Part::counts},
                                                      {INFINITY, 1, Part::not_finite},
                                                      {1, -INFINITY, Part::not_finite},
                                                      {NAN, 1, Part::not_finite},
                                                      {kMax, kMax, Part::not_finite}}) {
    for (const int64_t place : {int64_t{0}, int64_t{4096}, count - 1}) {
      std::vector<float> of_one(count, 1), of_other(count, 1);
      of_one[place] = first;
      of_other[place] = second;
      const auto parts = add_parts(
          shape, piece, sums,
          [&](int rank, const Segment& segment) -> const void* {
            if (segment.variable == 0) return nullptr;
            return rank == 0 ? of_one.data() : of_other.data();
          },
          to.data());
      EXPECT_EQ(parts, (std::vector<Part>{{0, {Part::left_out, seen}}})) << first << ' ' << second;
    }
  }
}

}  // namespace
}  // namespace tutti::ps
