// Corners, where differences say nothing: LibTorch's numbers.
#include <cmath>
#include <functional>
#include <vector>

#include "tutti/hlo/gradients.h"
#include "tutti/hlo/ops.h"

#include "tests/support/expect.h"
#include "tests/support/hlo_evaluate.h"

namespace tutti {
namespace {

using hlo::Comparison;
using hlo::Value;
using Floats = std::vector<float>;

// Gradients of the sum of what `build` makes of vectors, or of arguments of `shape`.
std::vector<Floats> gradients_of(const std::vector<Floats>& arguments,
                                 const std::function<Value(const std::vector<Value>&)>& build,
                                 hlo::Shape shape = {}) {
  hlo::Program program("corners");
  std::vector<Value> values;
  std::vector<Array> arrays;
  for (const Floats& argument : arguments) {
    arrays.push_back(
        array_of(shape.empty() ? hlo::Shape{int64_t(argument.size())} : shape, argument));
    values.push_back(program.argument({DType::float32, arrays.back().shape()}, "a"));
  }
  Value sum = build(values);
  while (!sum.shape().empty()) sum = reduce_sum(sum, {0});
  for (const Value gradient : hlo::gradients(sum, values)) program.result(gradient, "gradient");
  std::vector<Floats> found;
  for (const Array& array : evaluate(program, arrays)) found.push_back(floats_of(array));
  return found;
}

class HloGradientRules : public Evaluated {};

TEST_F(HloGradientRules, GoInHalvesWhereTwoAreEqual) {
  EXPECT_THAT(gradients_of({{1, 2, 3}, {3, 2, 1}}, [](auto& a) { return maximum(a[0], a[1]); }),
              ElementsAre(Floats{0, 0.5, 1}, Floats{1, 0.5, 0}));
  EXPECT_THAT(gradients_of({{1, 2, 3}, {3, 2, 1}}, [](auto& a) { return minimum(a[0], a[1]); }),
              ElementsAre(Floats{1, 0.5, 0}, Floats{0, 0.5, 1}));
  EXPECT_THAT(gradients_of({{1, 2}}, [](auto& a) { return maximum(a[0], a[0]); }),
              ElementsAre(Floats{1, 1}));
}

TEST_F(HloGradientRules, AreZeroAtCornersOfNumbers) {
  EXPECT_THAT(gradients_of({{-1, 0, 2}}, [](auto& a) { return maximum(a[0], 0.0); }),
              ElementsAre(Floats{0, 0, 1}));
  EXPECT_THAT(gradients_of({{-1, 0, 2}}, [](auto& a) { return minimum(a[0], 0.0); }),
              ElementsAre(Floats{1, 0, 0}));
  EXPECT_THAT(gradients_of({{-1, 0, 2}}, [](auto& a) { return abs(a[0]); }),
              ElementsAre(Floats{-1, 0, 1}));
}

TEST_F(HloGradientRules, OfPowersAtZero) {
  const auto at_zero = [](double exponent) {
    return gradients_of({{0}}, [&](auto& a) { return power(a[0], exponent); })[0][0];
  };
  EXPECT_EQ(at_zero(0), 0);
  EXPECT_EQ(at_zero(1), 1);
  EXPECT_EQ(at_zero(2), 0);
  EXPECT_EQ(at_zero(0.5), INFINITY);
}

TEST_F(HloGradientRules, OfTheLargestGoToAllOfThemInEqualParts) {
  EXPECT_THAT(gradients_of({{1, 3, 3, 2, 3}}, [](auto& a) { return reduce_max(a[0], {0}) * 6; }),
              ElementsAre(Floats{0, 2, 2, 0, 2}));
}

TEST_F(HloGradientRules, OfAWindowGoToItsFirstLargest) {
  const hlo::Shape shape{1, 1, 3, 4};
  EXPECT_THAT(gradients_of(
                  {Floats(12, -5)}, [](auto& a) { return window_max(a[0], {2, 2, 1, 2}); }, shape),
              ElementsAre(Floats{1, 0, 1, 0, 1, 0, 1, 0, 0, 0, 0, 0}));
  // Padding is below all: a window with only two elements in it takes the first of them.
  EXPECT_THAT(
      gradients_of(
          {Floats(12, -5)}, [](auto& a) { return window_max(a[0], {2, 2, 2, 2, 1, 0}); }, shape),
      ElementsAre(Floats{1, 0, 1, 0, 1, 0, 1, 0, 0, 0, 0, 0}));
  // Windows overlap: the first of all and the last of its row are chosen twice.
  EXPECT_THAT(gradients_of(
                  {{0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 9}},
                  [](auto& a) { return window_max(a[0], {3, 3, 1, 1, 1, 0}); }, shape),
              ElementsAre(Floats{2, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 1}));
}

TEST_F(HloGradientRules, OfRowsAddUp) {
  const auto found =
      gradients_of({{1, 2, 3, 4, 5, 6}},
                   [](auto& a) {
                     const Value numbers = convert(
                         iota(a[0].program(), {DType::float32, {3}}, 0) * 0.7, DType::int32);
                     return take_rows(a[0], numbers);  // 0, 0, 1
                   },
                   {3, 2});
  EXPECT_THAT(found, ElementsAre(Floats{2, 2, 1, 1, 0, 0}));
}

TEST_F(HloGradientRules, StopWhereTheyAreTold) {
  EXPECT_THAT(gradients_of({{2, 3}}, [](auto& a) { return a[0] * stop_gradient(a[0]); }),
              ElementsAre(Floats{2, 3}));
  EXPECT_THAT(gradients_of({{2, 3}, {5}}, [](auto& a) { return stop_gradient(a[0]); }),
              ElementsAre(Floats{0, 0}, Floats{0}));
  EXPECT_THAT(gradients_of({{2, 3}},
                           [](auto& a) {
                             return convert(compare(a[0], Comparison::gt, 2), DType::float32) +
                                    convert(convert(a[0], DType::int32), DType::float32);
                           }),
              ElementsAre(Floats{0, 0}));
}

TEST_F(HloGradientRules, OfValuesOnTheWay) {
  hlo::Program program("way");
  const Value x = program.argument({}, "x");
  const Value y = x * x;
  const Value loss = y * y * 3;
  const Value later = loss * 2;
  for (const Value gradient : hlo::gradients(loss, std::vector{x, y, loss, later, y}))
    program.result(gradient, "gradient");
  std::vector<float> found;
  for (const Array& array : evaluate(program, {array_of({}, Floats{2})}))
    found.push_back(array.as<float>()[0]);
  EXPECT_EQ(found, (Floats{96, 24, 1, 0, 24}));
}

TEST_F(HloGradientRules, OfCrossEntropyAreSoftmaxMinusOneHot) {
  hlo::Program program("mlp");
  const Value x = program.argument({DType::float32, {4, 6}}, "x");
  const Value y = program.argument({DType::int32, {4}}, "y");
  const Value w1 = program.argument({DType::float32, {6, 5}}, "w1");
  const Value w2 = program.argument({DType::float32, {5, 3}}, "w2");
  const Value hidden = maximum(dot(x, w1), 0.0);
  const Value logits = dot(hidden, w2);
  const auto along_rows = [&](Value a) { return broadcast(a, {4, 3}, {0}); };
  const Value moved = logits - along_rows(stop_gradient(reduce_max(logits, {1})));
  const Value exponentials = exp(moved);
  const Value sums = reduce_sum(exponentials, {1});
  const Value classes = iota(program, {DType::int32, {4, 3}}, 1);
  const Value hot = convert(compare(classes, Comparison::eq, along_rows(y)), DType::float32);
  const Value log_chances = moved - along_rows(log(sums));
  const Value loss = -reduce_sum(log_chances * hot, {0, 1}) / 4;
  const auto gradients = hlo::gradients(loss, std::vector{logits, w1, w2});
  const Value expected = (exponentials / along_rows(sums) - hot) / 4;
  const Value expected_w2 = dot(transpose(hidden, {1, 0}), expected);
  const Value into_hidden = dot(expected, transpose(w2, {1, 0}));
  const Value masked = into_hidden * convert(compare(hidden, Comparison::gt, 0), DType::float32);
  const Value expected_w1 = dot(transpose(x, {1, 0}), masked);
  for (const Value value :
       {gradients[0], expected, gradients[1], expected_w1, gradients[2], expected_w2})
    program.result(value, "value");

  const auto wave = [](int count, double step) {
    Floats elements;
    for (int k = 0; k < count; ++k) elements.push_back(float(std::sin(step * (k + 1))));
    return elements;
  };
  const auto results =
      evaluate(program, {array_of({4, 6}, wave(24, 0.7)), array_of({4}, std::vector{0, 2, 1, 2}),
                         array_of({6, 5}, wave(30, 1.3)), array_of({5, 3}, wave(15, 2.1))});
  for (size_t pair = 0; pair < 6; pair += 2) {
    const Floats found = floats_of(results[pair]);
    EXPECT_THAT(found,
                ::testing::Pointwise(::testing::FloatNear(1e-6F), floats_of(results[pair + 1])));
    EXPECT_THAT(found, Contains(::testing::Gt(0.01F)));
  }
}

TEST_F(HloGradientRules, OfASumOverReplicasAreSumsToo) {
  hlo::Program program("replicas");
  program.set_replicas(2);
  const Value x = program.argument({DType::float32, {2}}, "x");
  const Value mine = program.argument({DType::float32, {2}}, "mine");
  const Value sum = all_reduce(x);
  const Value loss = reduce_sum(sum * mine, {0});
  program.result(sum, "sum");
  program.result(hlo::gradients(loss, std::vector{x})[0], "gradient");
  program.result(replica_number(program) * 1, "number");
  const auto results =
      Evaluation(program).run({{array_of({2}, Floats{1, 2}), array_of({2}, Floats{3, 5})},
                               {array_of({2}, Floats{10, 20}), array_of({2}, Floats{30, 50})}});
  for (uint32_t replica = 0; replica < 2; ++replica) {
    EXPECT_EQ(floats_of(results[replica][0]), (Floats{11, 22}));
    EXPECT_EQ(floats_of(results[replica][1]), (Floats{33, 55}));
    EXPECT_EQ(results[replica][2].as<uint32_t>()[0], replica);
  }
}

// A sum in bfloat16 ends at 256: 257 is not one of its numbers. Products stay float32.
TEST_F(HloGradientRules, SumBfloat16InFloat32) {
  hlo::Program program("sums");
  const Value ones = constant(program, {DType::bfloat16, {1, 1024}}, 1);
  const Value image = reshape(ones, {1, 1, 32, 32});
  const Value table = constant(program, {DType::bfloat16, {2, 1}}, 1);
  const Value numbers = constant(program, {DType::int32, {1024}}, 1);
  const Value rows = reduce_sum(convert(take_rows(table, numbers), DType::float32), {0, 1});
  const std::vector<Value> sums{
      reduce_sum(ones, {0, 1}),
      dot(ones, transpose(ones, {1, 0})),
      conv2d(image, image, {}),
      window_sum(image, {32, 32}),
      slice(hlo::gradients(rows, std::vector{table})[0], {1, 0}, {2, 1}),
  };
  for (const Value sum : sums) {
    const bool product = sum.number() == sums[1].number() || sum.number() == sums[2].number();
    EXPECT_EQ(sum.dtype(), product ? DType::float32 : DType::bfloat16);
    program.result(convert(sum, DType::float32), "sum");
  }
  for (const Array& array : evaluate(program, {})) EXPECT_EQ(floats_of(array), Floats{1024});
}

TEST_F(HloGradientRules, GoThroughBfloat16) {
  const auto found = gradients_of({{1, 2, 3, 4}, {0.5, 1, 1.5, 2}}, [](auto& a) {
    const Value x = reshape(convert(a[0], DType::bfloat16), {1, 1, 2, 2});
    const Value w = reshape(convert(a[1], DType::bfloat16), {1, 1, 2, 2});
    const Value flat = reshape(x, {1, 4});
    const Value product = dot(flat, reshape(w, {4, 1}));
    const Value y = reshape(conv2d(x, w, {}), {1, 1}) + product;
    return convert(y, DType::float32);
  });
  EXPECT_THAT(found, ElementsAre(Floats{1, 2, 3, 4}, Floats{2, 4, 6, 8}));
}

TEST(HloGradientErrors, SayWhatHasNone) {
  hlo::Program program("wrong"), other("other");
  const Value x = program.argument({DType::float32, {1, 1, 4, 4}}, "x");
  const Value number = program.argument({DType::int32, {}}, "number");
  const Value loss = reduce_sum(x, {0, 1, 2, 3});
  const auto message = [](Value of, std::vector<Value> values) {
    return message_of<UsageError>([&] { hlo::gradients(of, values); });
  };
  EXPECT_EQ(message(x, {x}),
            "hlo::gradients: got a loss of tensor<1x1x4x4xf32>, expected a scalar of float32");
  EXPECT_EQ(message(convert(loss, DType::bfloat16), {x}),
            "hlo::gradients: got a loss of tensor<bf16>, expected a scalar of float32");
  EXPECT_EQ(message(loss, {number}),
            "hlo::gradients: got tensor<i32>, expected float32 or bfloat16");
  EXPECT_EQ(
      message(loss, {other.argument({}, "y")}),
      "hlo::gradients: got values of programs wrong and other, expected those of one program");

  const auto again = [&](Value y) {
    const Value first = hlo::gradients(reduce_sum(y * y, {0, 1, 2, 3}), std::vector{x})[0];
    return message(reduce_sum(first, {0, 1, 2, 3}), {x});
  };
  EXPECT_EQ(
      again(window_max(x, {2, 2})),
      "hlo::gradients: got a gradient of window_max between the values and the loss, expected "
      "instructions that have a rule");
  EXPECT_THAT(again(conv2d(x, x, {.pad_height = 1, .pad_width = 1})),
              HasSubstr("got a gradient of conv2d between"));
}

}  // namespace
}  // namespace tutti
