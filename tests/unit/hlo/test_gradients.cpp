// Each rule against differences; corners against LibTorch's numbers are in test_gradient_rules.cpp.
#include <fmt/format.h>

#include <functional>
#include <vector>

#include "tutti/hlo/gradients.h"
#include "tutti/hlo/ops.h"

#include "tests/support/expect.h"
#include "tests/support/hlo_evaluate.h"
#include "tests/unit/hlo/gradient_check.h"

namespace tutti {
namespace {

using hlo::Comparison;
using hlo::Value;

class HloGradients : public Evaluated {};

TEST_F(HloGradients, OfFunctionsOfOneElement) {
  struct Case {
    const char* name;
    std::function<Value(Value)> function;
    double lowest = -2, highest = 2;
  };
  const Case cases[] = {
      {"exp", hlo::exp},
      {"log", hlo::log, 0.5, 3},
      {"sqrt", hlo::sqrt, 0.5, 3},
      {"rsqrt", hlo::rsqrt, 0.5, 3},
      {"tanh", hlo::tanh},
      {"sigmoid", hlo::sigmoid},
      {"erf", hlo::erf},
      {"abs", hlo::abs},
      {"negate", [](Value a) { return -a; }},
      {"power 3", [](Value a) { return power(a, 3); }},
      {"power 1", [](Value a) { return power(a, 1); }},
      {"power 0", [](Value a) { return power(a, 0); }},
      {"power -1.5", [](Value a) { return power(a, -1.5); }, 0.5, 3},
      {"numbers", [](Value a) { return 3 - (a * 2 + 1) / 4 - 5; }},
      {"maximum 0.1", [](Value a) { return maximum(a, 0.1); }},
      {"minimum 0.1", [](Value a) { return minimum(a, 0.1); }},
      {"gelu", [](Value a) { return a * (erf(a * 0.70710678) + 1) * 0.5; }},
      {"used twice", [](Value a) { return a * a + a; }},
  };
  for (const Case& c : cases)
    expect_gradients(
        c.name, {{{3, 5}}, [&](const auto& a) { return c.function(a[0]); }, c.lowest, c.highest});
}

TEST_F(HloGradients, OfFunctionsOfTwoElements) {
  struct Case {
    const char* name;
    std::function<Value(Value, Value)> function;
    double lowest = -2, highest = 2;
  };
  const Case cases[] = {
      {"add", [](Value a, Value b) { return a + b; }},
      {"subtract", [](Value a, Value b) { return a - b; }},
      {"multiply", [](Value a, Value b) { return a * b; }},
      {"divide", [](Value a, Value b) { return a / b; }, 1, 3},
      {"maximum", [](Value a, Value b) { return maximum(a, b * 0.9); }},
      {"minimum", [](Value a, Value b) { return minimum(a, b * 0.9); }},
      {"select",
       [](Value a, Value b) { return select(compare(a, Comparison::lt, 0.1), a * b, b - a); }},
  };
  for (const Case& c : cases)
    expect_gradients(c.name, {{{12}, {12}},
                              [&](const auto& a) { return c.function(a[0], a[1] + 0.03); },
                              c.lowest,
                              c.highest});
}

TEST_F(HloGradients, OfWhatMovesElements) {
  struct Case {
    const char* name;
    std::function<Value(Value)> function;  // of [2, 3, 4]
  };
  const Case cases[] = {
      {"broadcast", [](Value a) { return broadcast(a, {2, 5, 3, 4, 2}, {0, 2, 3}); }},
      {"broadcast of 1",
       [](Value a) { return broadcast(slice(a, {0, 1, 0}, {2, 2, 4}), {2, 3, 4}, {0, 1, 2}); }},
      {"broadcast of a scalar",
       [](Value a) { return broadcast(reduce_sum(a, {0, 1, 2}), {2, 2}, {}); }},
      {"reshape", [](Value a) { return reshape(a, {4, 6}); }},
      {"transpose", [](Value a) { return transpose(a, {2, 0, 1}); }},
      {"slice", [](Value a) { return slice(a, {1, 0, 1}, {2, 2, 4}); }},
      {"slice by 2", [](Value a) { return slice(a, {0, 0, 0}, {2, 3, 4}, {1, 2, 2}); }},
      {"slice by 3", [](Value a) { return slice(a, {0, 1, 0}, {2, 3, 4}, {2, 1, 3}); }},
      {"slice of nothing",
       [](Value a) { return concatenate(std::vector{slice(a, {0, 2, 0}, {2, 2, 4}), a}, 1); }},
      {"pad", [](Value a) { return pad(a, {1, 0, 2}, {0, 3, 1}, {0, 0, 0}, 5); }},
      {"pad between", [](Value a) { return pad(a, {0, 1, 0}, {0, 0, 2}, {3, 1, 2}); }},
      {"pad by less", [](Value a) { return pad(a, {0, -1, 1}, {-1, 0, -2}, {0, 0, 1}); }},
      {"pad by less than between",
       [](Value a) { return pad(a, {0, -1, -2}, {0, -1, 3}, {0, 2, 2}); }},
      {"concatenate", [](Value a) { return concatenate(std::vector{a, a * 2, a}, 1); }},
      {"reverse", [](Value a) { return reverse(a, {0, 2}); }},
      {"reduce_sum", [](Value a) { return reduce_sum(a, {2, 0}); }},
      {"reduce_max", [](Value a) { return reduce_max(a, {1}); }},
      {"reduce_max of all", [](Value a) { return reduce_max(a, {0, 1, 2}); }},
      {"softmax",
       [](Value a) {
         const Value e = exp(a - broadcast(reduce_max(a, {2}), a.shape(), {0, 1}));
         return e / broadcast(reduce_sum(e, {2}), a.shape(), {0, 1});
       }},
  };
  for (const Case& c : cases)
    expect_gradients(c.name, {{{2, 3, 4}}, [&](const auto& a) { return c.function(a[0]); }});
}

TEST_F(HloGradients, OfDot) {
  struct Case {
    hlo::Shape a, b;
    hlo::DotDimensions dimensions;
  };
  const Case cases[] = {
      {{3, 4}, {4, 2}, {{}, {}, {1}, {0}}},
      {{4, 3}, {2, 4}, {{}, {}, {0}, {1}}},
      {{3}, {3}, {{}, {}, {0}, {0}}},
      {{3}, {2}, {{}, {}, {}, {}}},
      {{2, 3, 4}, {2, 4, 5}, {{0}, {0}, {2}, {1}}},
      {{3, 2, 4}, {4, 5, 2}, {{1}, {2}, {2}, {0}}},
      {{2, 3, 4, 2}, {4, 2, 3, 2}, {{1}, {2}, {2, 3}, {0, 1}}},
      {{2, 3, 4, 2}, {2, 2, 4, 3}, {{3, 1}, {1, 3}, {2, 0}, {2, 0}}},
  };
  for (const Case& c : cases)
    expect_gradients(fmt::format("dot {}", &c - cases),
                     {{c.a, c.b}, [&](const auto& a) { return dot(a[0], a[1], c.dimensions); }});
}

hlo::Shape last(const hlo::Shape& image) { return {image[0], image[2], image[3], image[1]}; }

struct ConvCase {
  const char* name;
  hlo::Shape x, w;
  hlo::ConvOptions options;
};

TEST_F(HloGradients, OfConvolutions) {
  const ConvCase cases[] = {
      {"1x1", {2, 3, 2, 3}, {4, 3, 1, 1}, {}},
      {"1x1, every second", {2, 2, 4, 5}, {3, 2, 1, 1}, {2, 2}},
      {"1x1, padded", {1, 2, 3, 3}, {2, 2, 1, 1}, {1, 1, 1, 2}},
      {"3x3", {2, 2, 5, 4}, {3, 2, 3, 3}, {1, 1, 1, 1}},
      {"3x3 without padding", {1, 2, 5, 4}, {2, 2, 3, 3}, {}},
      {"3x3, every second, a row left", {2, 2, 6, 5}, {2, 2, 3, 3}, {2, 2, 1, 1}},
      {"3x3, every third, two left", {1, 1, 8, 7}, {2, 1, 3, 3}, {3, 3}},
      {"2x2, every third", {1, 2, 7, 8}, {1, 2, 2, 2}, {3, 3}},
      {"5x3, padded by more", {1, 2, 4, 5}, {2, 2, 5, 3}, {2, 1, 2, 3}},
      {"1x4", {2, 1, 3, 6}, {2, 1, 1, 4}, {1, 2, 0, 1}},
      {"all of it", {2, 2, 3, 4}, {3, 2, 3, 4}, {}},
      {"2 groups", {2, 4, 4, 4}, {6, 2, 3, 3}, {1, 1, 1, 1, 2}},
      {"2 groups, every second, a row left", {1, 4, 6, 6}, {4, 2, 3, 2}, {2, 2, 1, 0, 2}},
      {"a group for each channel", {2, 3, 4, 4}, {3, 1, 3, 3}, {1, 1, 1, 1, 3}},
      {"two outputs of each channel", {1, 3, 5, 5}, {6, 1, 3, 3}, {2, 2, 1, 1, 3}},
      {"1x1 in 3 groups", {2, 6, 3, 2}, {3, 2, 1, 1}, {2, 1, 0, 0, 3}},
  };
  for (const ConvCase& c : cases) {
    expect_gradients(c.name,
                     {{c.x, c.w}, [&](const auto& a) { return conv2d(a[0], a[1], c.options); }});
    hlo::ConvOptions options = c.options;
    options.order = hlo::ImageOrder::channels_last;
    expect_gradients(
        fmt::format("{}, channels last", c.name),
        {{last(c.x), c.w}, [&](const auto& a) { return conv2d(a[0], a[1], options); }});
  }
}

TEST_F(HloGradients, OfWindows) {
  struct Case {
    const char* name;
    hlo::Shape x;
    hlo::WindowOptions options;
  };
  const Case cases[] = {
      {"2x2", {2, 2, 4, 6}, {2, 2, 2, 2}},
      {"2x2, a row and a column left", {2, 1, 5, 7}, {2, 2, 2, 2}},
      {"3x3 by 2, padded", {1, 2, 7, 6}, {3, 3, 2, 2, 1, 1}},
      {"3x3 by 1", {1, 2, 5, 4}, {3, 3, 1, 1}},
      {"3x2 by 2 and 3", {1, 1, 8, 9}, {3, 2, 2, 3, 1, 0}},
      {"1x1 by 2", {1, 1, 4, 5}, {1, 1, 2, 2}},
      {"2x2 by 3, two left", {1, 1, 7, 7}, {2, 2, 3, 3}},
      {"all of it", {2, 3, 4, 3}, {4, 3, 1, 1}},
  };
  for (const Case& c : cases) {
    expect_gradients(
        fmt::format("window_max {}", c.name),
        {{c.x}, [&](const auto& a) { return window_max(a[0], c.options); }, -3, -1, 0.005});
    expect_gradients(fmt::format("window_sum {}", c.name),
                     {{c.x}, [&](const auto& a) { return window_sum(a[0], c.options); }});
    hlo::WindowOptions options = c.options;
    options.order = hlo::ImageOrder::channels_last;
    expect_gradients(
        fmt::format("window_max {}, channels last", c.name),
        {{last(c.x)}, [&](const auto& a) { return window_max(a[0], options); }, -3, -1, 0.005});
    expect_gradients(fmt::format("window_sum {}, channels last", c.name),
                     {{last(c.x)}, [&](const auto& a) { return window_sum(a[0], options); }});
  }
}

TEST_F(HloGradients, OfRows) {
  for (const hlo::Shape& shape : {hlo::Shape{2, 3}, hlo::Shape{4}, hlo::Shape{}})
    expect_gradients(fmt::format("{} dimensions", shape.size()),
                     {{{3, 2}}, [&](const auto& a) {
                        // 0, 0, 1, ...: some rows twice, the last one never
                        const Value numbers = iota(
                            a[0].program(), {DType::int32, {hlo::num_elements({{}, shape})}}, 0);
                        return take_rows(a[0], reshape(numbers / 2, shape)) * 2;
                      }});
}

TEST_F(HloGradients, OfGradientsWhereTheyHaveRules) {
  expect_gradients("the gradient of a gradient", {{{2, 3}, {3, 2}}, [](const auto& a) {
                                                    const Value y = tanh(dot(a[0], a[1]));
                                                    return hlo::gradients(reduce_sum(y * y, {0, 1}),
                                                                          a)[0];
                                                  }});
  expect_gradients("of rows", {{{3, 2}}, [](const auto& a) {
                                 const Value numbers =
                                     iota(a[0].program(), {DType::int64, {4}}, 0) / 2;
                                 const Value y = power(take_rows(a[0], numbers), 3);
                                 return hlo::gradients(reduce_sum(y, {0, 1}), a)[0];
                               }});
}

}  // namespace
}  // namespace tutti
