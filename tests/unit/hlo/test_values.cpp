// What operators compute, where gradients do not already say it.
#include <cmath>
#include <functional>
#include <vector>

#include "tutti/hlo/ops.h"

#include "tests/support/expect.h"
#include "tests/support/hlo_evaluate.h"
#include "tests/unit/hlo/gradient_check.h"

namespace tutti {
namespace {

using hlo::Comparison;
using hlo::Value;
using Floats = std::vector<float>;

class HloValues : public Evaluated {};

// Each as float32, or as what it is.
std::vector<Floats> values_of(hlo::Program& program, const std::vector<Value>& values,
                              const std::vector<Array>& arguments) {
  for (const Value value : values) program.result(convert(value, DType::float32), "value");
  std::vector<Floats> found;
  for (const Array& array : evaluate(program, arguments)) found.push_back(floats_of(array));
  return found;
}

TEST_F(HloValues, OfBits) {
  hlo::Program program("bits");
  const Value a = constant(program, {DType::uint32, {}}, 12);
  const Value b = constant(program, {DType::uint32, {}}, 10);
  const Value top = constant(program, {DType::int32, {}}, -2147483648.0);
  const Value yes = constant(program, {DType::boolean, {}}, 1);
  const Value no = constant(program, {DType::boolean, {}}, 0);
  EXPECT_THAT(
      values_of(program,
                {bit_and(a, b), bit_or(a, b), bit_xor(a, b), shift_left(a, 30), shift_right(a, 2),
                 shift_right(top, 31), bit_and(yes, no), bit_or(yes, no), a - b * 2,
                 convert(shift_left(convert(a, DType::uint64), 32), DType::float32)},
                {}),
      ElementsAre(Floats{8}, Floats{14}, Floats{6}, Floats{0}, Floats{3}, Floats{1}, Floats{0},
                  Floats{1}, Floats{4294967288.0F}, Floats{51539607552.0F}));
}

TEST_F(HloValues, OfComparisons) {
  hlo::Program program("comparisons");
  const Value a = program.argument({DType::float32, {3}}, "a");
  const Value b = program.argument({DType::float32, {3}}, "b");
  const Value large = convert(constant(program, {DType::uint32, {}}, 4294967295.0), DType::uint32);
  const Value negative = constant(program, {DType::int32, {}}, -1);
  const Value yes = constant(program, {DType::boolean, {}}, 1);
  const std::vector<Value> values{compare(a, Comparison::eq, b),
                                  compare(a, Comparison::ne, b),
                                  compare(a, Comparison::lt, b),
                                  compare(a, Comparison::le, b),
                                  compare(a, Comparison::gt, b),
                                  compare(a, Comparison::ge, b),
                                  select(compare(a, Comparison::gt, b), a, b),
                                  compare(large, Comparison::gt, 1),
                                  compare(negative, Comparison::lt, 1),
                                  compare(yes, Comparison::gt, 0)};
  EXPECT_THAT(
      values_of(program, values, {array_of({3}, Floats{1, 2, 3}), array_of({3}, Floats{2, 2, 2})}),
      ElementsAre(Floats{0, 1, 0}, Floats{1, 0, 1}, Floats{1, 0, 0}, Floats{1, 1, 0},
                  Floats{0, 0, 1}, Floats{0, 1, 1}, Floats{2, 2, 3}, Floats{1}, Floats{1},
                  Floats{1}));
}

TEST_F(HloValues, OfMovedElements) {
  hlo::Program program("moved");
  const Value a =
      iota(program, {DType::int32, {2, 3}}, 1) + iota(program, {DType::int32, {2, 3}}, 0) * 3;
  const Value window = reshape(convert(a, DType::float32) - 10, {1, 1, 2, 3});
  EXPECT_THAT(values_of(program,
                        {a, transpose(a, {1, 0}), slice(a, {0, 0}, {2, 3}, {1, 2}), reverse(a, {1}),
                         pad(a, {0, 1}, {0, -1}, {1, 0}, 9), concatenate(std::vector{a, a}, 1),
                         broadcast(slice(a, {0, 1}, {2, 2}), {2, 2}, {0, 1}), reduce_max(a, {0}),
                         reduce_max(-a - 1, {1}), reduce_max(convert(a, DType::uint64), {0, 1}),
                         window_max(window, {2, 2, 1, 1, 1, 1}), window_sum(window, {2, 3, 1, 1}),
                         take_rows(a, constant(program, {DType::int64, {1}}, 1))},
                        {}),
              ElementsAre(Floats{0, 1, 2, 3, 4, 5}, Floats{0, 3, 1, 4, 2, 5}, Floats{0, 2, 3, 5},
                          Floats{2, 1, 0, 5, 4, 3}, Floats{9, 0, 1, 9, 9, 9, 9, 3, 4},
                          Floats{0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5}, Floats{1, 1, 4, 4},
                          Floats{3, 4, 5}, Floats{-1, -4}, Floats{5},
                          Floats{-10, -9, -8, -8, -7, -6, -5, -5, -7, -6, -5, -5}, Floats{-45},
                          Floats{3, 4, 5}));
}

TEST_F(HloValues, OfFunctions) {
  struct Case {
    std::function<Value(Value)> function;
    double (*expected)(double);
  };
  const Case cases[] = {
      {hlo::exp, std::exp},
      {hlo::log, std::log},
      {hlo::sqrt, std::sqrt},
      {hlo::tanh, std::tanh},
      {hlo::erf, std::erf},
      {[](Value a) { return erf(-a); }, [](double a) { return -std::erf(a); }},
      {hlo::rsqrt, [](double a) { return 1 / std::sqrt(a); }},
      {hlo::sigmoid, [](double a) { return 1 / (1 + std::exp(-a)); }},
      {[](Value a) { return power(a, 1.7); }, [](double a) { return std::pow(a, 1.7); }},
  };
  const Floats at = spread_floats(400, 0, 4, 1);
  hlo::Program program("functions");
  const Value x = program.argument({DType::float32, {400}}, "x");
  std::vector<Value> values;
  for (const Case& c : cases) values.push_back(c.function(x));
  values.push_back(erf(x * 0));
  const std::vector<Floats> found = values_of(program, values, {array_of({400}, at)});
  for (size_t k = 0; k < std::size(cases); ++k)
    for (size_t e = 0; e < at.size(); ++e) {
      const double expected = cases[k].expected(at[e]);
      EXPECT_NEAR(found[k][e], expected, 4e-7 * std::max(1.0, std::abs(expected)))
          << "function " << k << " at " << at[e];
    }
  EXPECT_THAT(found.back(), Each(0));
}

TEST_F(HloValues, OfProductsInGroups) {
  hlo::Program program("products");
  const Value x = reshape(iota(program, {DType::float32, {8}}, 0), {1, 2, 2, 2});
  const Value w = reshape(iota(program, {DType::float32, {4}}, 0) + 1, {2, 1, 1, 2});
  const Value a = reshape(x, {2, 2, 2});
  const std::vector<Value> values{conv2d(x, w, {.pad_width = 1, .groups = 2}),
                                  dot(a, a, {{0}, {0}, {2}, {1}})};
  EXPECT_THAT(values_of(program, values, {}),
              ElementsAre(Floats{0, 2, 1, 4, 8, 3, 16, 32, 15, 24, 46, 21},
                          Floats{2, 3, 6, 11, 46, 55, 66, 79}));
}

TEST_F(HloValues, OfAnArgumentThatBecomesAResult) {
  hlo::Program program("aliases");
  const Value x = program.argument({DType::float32, {2}}, "x");
  program.give_away(x, program.result(x + 1, "more"));
  EXPECT_EQ(floats_of(evaluate(program, {array_of({2}, Floats{1, 2})})[0]), (Floats{2, 3}));
}

}  // namespace
}  // namespace tutti
