#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "tutti/hlo/gradients.h"
#include "tutti/hlo/ops.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

using hlo::Comparison;
using hlo::Program;
using hlo::Value;
using testing::Not;

Value argument_of(Program& program, DType dtype, hlo::Shape shape) {
  return program.argument({dtype, std::move(shape)}, "a");
}

TEST(HloTypes, AreWrittenAsStableHlo) {
  EXPECT_EQ(hlo::to_string({DType::float32, {64, 10}}), "tensor<64x10xf32>");
  EXPECT_EQ(hlo::to_string({DType::bfloat16, {}}), "tensor<bf16>");
  EXPECT_EQ(hlo::to_string({DType::boolean, {0}}), "tensor<0xi1>");
  EXPECT_EQ(hlo::to_string({DType::uint64, {1}}), "tensor<1xui64>");
  EXPECT_EQ(hlo::num_elements({DType::int32, {}}), 1);
  EXPECT_EQ(hlo::num_elements({DType::int32, {3, 0, 2}}), 0);
}

TEST(HloText, OfASmallProgram) {
  Program program("step 1");
  const Value x = program.argument({DType::float32, {2, 3}}, "x");
  const Value w = program.argument({DType::float32, {3, 1}}, "0.weight");
  program.comment("fc: dot");
  const Value y = dot(x, w);
  program.comment("nobody needs this");
  const Value unused = exp(y);
  program.comment("loss");
  const Value loss = reduce_sum(y * y + stop_gradient(y), {0, 1});
  EXPECT_EQ(program.result(loss, "loss"), 0);
  EXPECT_EQ(program.result(hlo::gradients(loss, std::vector{w})[0], "0.weight"), 1);
  program.give_away(w, 1);
  EXPECT_LT(unused.number(), loss.number());
  EXPECT_EQ(
      program.text(),
      "module @step_1 attributes {mhlo.num_replicas = 1 : i32, mhlo.num_partitions = 1 "
      ": i32} {\n"
      "  func.func public @main(\n"
      "      %x: tensor<2x3xf32>,\n"
      "      %_0_weight: tensor<3x1xf32> {tf.aliasing_output = 1 : i32}\n"
      "  ) -> (\n"
      "      tensor<f32>,  // loss\n"
      "      tensor<3x1xf32>  // 0.weight\n"
      "  ) {\n"
      "    // fc: dot\n"
      "    %0 = stablehlo.dot_general %x, %_0_weight, contracting_dims = [1] x [0], "
      "precision = [HIGHEST, HIGHEST] : (tensor<2x3xf32>, tensor<3x1xf32>) -> tensor<2x1xf32>\n"
      "    // loss\n"
      "    %1 = stablehlo.multiply %0, %0 : tensor<2x1xf32>\n"
      "    %2 = stablehlo.add %1, %0 : tensor<2x1xf32>\n"
      "    %3 = stablehlo.constant dense<0.0> : tensor<f32>\n"
      "    %4 = stablehlo.reduce(%2 init: %3) applies stablehlo.add across dimensions "
      "= [0, 1] : (tensor<2x1xf32>, tensor<f32>) -> tensor<f32>\n"
      "    %5 = stablehlo.constant dense<1.0> : tensor<f32>\n"
      "    // gradients of loss\n"
      "    %6 = stablehlo.broadcast_in_dim %5, dims = [] : (tensor<f32>) -> "
      "tensor<2x1xf32>\n"
      "    %7 = stablehlo.multiply %6, %0 : tensor<2x1xf32>\n"
      "    %8 = stablehlo.multiply %6, %0 : tensor<2x1xf32>\n"
      "    %9 = stablehlo.add %7, %8 : tensor<2x1xf32>\n"
      "    // gradients of fc: dot\n"
      "    %10 = stablehlo.dot_general %9, %x, contracting_dims = [0] x [0], "
      "precision = [HIGHEST, HIGHEST] : (tensor<2x1xf32>, tensor<2x3xf32>) -> tensor<1x3xf32>\n"
      "    %11 = stablehlo.transpose %10, dims = [1, 0] : (tensor<1x3xf32>) -> "
      "tensor<3x1xf32>\n"
      "    return %4, %11 : tensor<f32>, tensor<3x1xf32>\n"
      "  }\n"
      "}\n");
}

TEST(HloText, GivesEachArgumentANameOfItsOwn) {
  Program program("p");
  for (const char* name : {"a", "a", "a_2", "conv1.weight", "0", "", "m\u00fc"})
    program.result(program.argument({}, name), std::string("two\nlines ") + name);
  EXPECT_THAT(program.text(),
              AllOf(HasSubstr("%a: "), HasSubstr("%a_2: "), HasSubstr("%a_2_2: "),
                    HasSubstr("%conv1_weight: "), HasSubstr("%_0: "), HasSubstr("%_: "),
                    HasSubstr("%m__: "), HasSubstr("// two lines a\n")));
}

TEST(HloText, WritesNumbersThatAreReadAgain) {
  struct Case {
    DType dtype;
    double number;
    const char* text;
  };
  const Case cases[] = {
      {DType::float32, 1, "dense<1.0>"},
      {DType::float32, -0.1, "dense<-0.1>"},
      {DType::float32, 1e-7, "dense<1.0e-07>"},
      {DType::float32, 1.5e30, "dense<1.5e+30>"},
      {DType::float32, INFINITY, "dense<0x7F800000>"},
      {DType::bfloat16, -INFINITY, "dense<0xFF80>"},
      {DType::float32, NAN, "dense<0x7FC00000>"},
      {DType::boolean, 1, "dense<true>"},
      {DType::int32, -2147483648.0, "dense<-2147483648>"},
      {DType::uint32, 4294967295.0, "dense<4294967295>"},
      {DType::int64, 9007199254740993.0, "dense<9007199254740992>"},
  };
  for (const Case& c : cases) {
    Program program("p");
    program.result(constant(program, {c.dtype, {}}, c.number), "number");
    EXPECT_THAT(program.text(), HasSubstr(c.text));
  }
}

TEST(HloText, OfReplicas) {
  Program program("p");
  EXPECT_EQ(all_reduce(argument_of(program, DType::float32, {})).number(), 0);
  program.set_replicas(3);
  program.result(all_reduce(program.value(0)), "sum");
  EXPECT_THAT(program.text(),
              AllOf(HasSubstr("mhlo.num_replicas = 3 : i32"),
                    HasSubstr("replica_groups = dense<[[0, 1, 2]]> : tensor<1x3xi64>")));
}

TEST(HloText, SaysWhatCannotBecomeAResult) {
  Program program("p");
  const Value x = program.argument({DType::float32, {2}}, "x");
  EXPECT_EQ(
      message_of<UsageError>([&] { program.give_away(x, 0); }),
      "hlo::Program::give_away: got tensor<2xf32> for result 0 of 0, expected an argument, and "
      "a result of its type");
  program.result(reduce_sum(x, {0}), "sum");
  EXPECT_THAT(message_of<UsageError>([&] { program.give_away(x, 0); }),
              HasSubstr("tensor<2xf32> for result 0 of 1"));
  program.result(x + 1, "more");
  EXPECT_THAT(message_of<UsageError>([&] { program.give_away(x + 2, 1); }),
              HasSubstr("expected an argument"));
}

TEST(HloOperators, MakeTheseShapes) {
  Program program("p");
  const Value x = argument_of(program, DType::float32, {2, 4, 7, 6});
  const Value w = argument_of(program, DType::float32, {4, 2, 3, 2});
  const Value last = argument_of(program, DType::float32, {3, 2, 3, 2});
  struct Case {
    Value value;
    const char* type;
  };
  const Case cases[] = {
      {x + 1, "tensor<2x4x7x6xf32>"},
      {compare(x, Comparison::lt, 0), "tensor<2x4x7x6xi1>"},
      {convert(x, DType::bfloat16), "tensor<2x4x7x6xbf16>"},
      {broadcast(w, {4, 9, 2, 3, 2}, {0, 2, 3, 4}), "tensor<4x9x2x3x2xf32>"},
      {reshape(x, {8, 42}), "tensor<8x42xf32>"},
      {transpose(x, {3, 1, 0, 2}), "tensor<6x4x2x7xf32>"},
      {slice(x, {0, 1, 2, 0}, {2, 3, 7, 6}, {1, 1, 2, 5}), "tensor<2x2x3x2xf32>"},
      {pad(x, {0, 0, 1, -1}, {0, 1, -2, 3}, {0, 1, 2, 0}), "tensor<2x8x18x8xf32>"},
      {concatenate(std::vector{x, x, x}, 3), "tensor<2x4x7x18xf32>"},
      {reduce_sum(x, {3, 0}), "tensor<4x7xf32>"},
      {reduce_max(x, {0, 1, 2, 3}), "tensor<f32>"},
      {dot(x, x, {{0}, {0}, {1, 3}, {1, 3}}), "tensor<2x7x7xf32>"},
      {conv2d(x, w, {2, 1, 1, 2, 2}), "tensor<2x4x4x9xf32>"},
      {conv2d(x, last, {2, 1, 1, 2, 3, hlo::ImageOrder::channels_last}), "tensor<2x2x10x3xf32>"},
      {window_max(x, {3, 2, 2, 2, 1, 1}), "tensor<2x4x4x4xf32>"},
      {window_max(x, {3, 2, 2, 2, 1, 1, hlo::ImageOrder::channels_last}), "tensor<2x2x4x6xf32>"},
      {take_rows(reshape(x, {8, 42}), iota(program, {DType::int64, {3, 5}}, 1)),
       "tensor<3x5x42xf32>"},
      {replica_number(program), "tensor<ui32>"},
  };
  for (const Case& c : cases) EXPECT_EQ(hlo::to_string(c.value.type()), c.type);
}

TEST(HloOperators, AddNothingWhereNothingChanges) {
  Program program("p");
  const Value x = argument_of(program, DType::float32, {2, 3});
  for (const Value same :
       {convert(x, DType::float32), broadcast(x, {2, 3}, {0, 1}), reshape(x, {2, 3}),
        transpose(x, {0, 1}), slice(x, {0, 0}, {2, 3}), pad(x, {0, 0}, {0, 0}, {0, 0}),
        concatenate(std::vector{x}, 0), reverse(x, {}), reduce_sum(x, {}), reduce_max(x, {})})
    EXPECT_EQ(same.number(), x.number());
  EXPECT_EQ(program.num_instructions(), 1);
}

TEST(HloOperators, SayWhatIsWrong) {
  Program p("p"), q("q");
  const Value x = argument_of(p, DType::float32, {2, 3});
  const Value other = argument_of(q, DType::float32, {2, 3});
  const Value half = argument_of(p, DType::bfloat16, {2, 3});
  const Value flags = argument_of(p, DType::boolean, {2, 3});
  const Value counts = argument_of(p, DType::int32, {3});
  const Value image = argument_of(p, DType::float32, {1, 2, 4, 4});
  const Value kernel = argument_of(p, DType::float32, {3, 2, 3, 3});
  struct Case {
    std::function<void()> action;
    const char* message;
  };
  const Case cases[] = {
      {[&] { x + half; },
       "operator+: got tensor<2x3xf32> and tensor<2x3xbf16>, expected two of one type"},
      {[&] { x* other; },
       "operator*: got values of programs p and q, expected those of one program"},
      {[&] { flags - flags; }, "operator-: got tensor<2x3xi1>, expected numbers, not booleans"},
      {[&] { counts + 0.5; },
       "constant: got 0.5 for tensor<3xi32>, expected a number that it holds"},
      {[&] { counts * 2147483648.0; },
       "constant: got 2147483648 for tensor<3xi32>, expected a number"},
      {[&] { constant(p, {DType::uint32, {}}, -1); }, "constant: got -1 for tensor<ui32>"},
      {[&] { p.argument({DType::float64, {2}}, "a"); },
       "Program::argument: got tensor<2xfloat64>, expected float32, bfloat16, bool, int32"},
      {[&] { p.argument({DType::float32, {-1}}, "a"); },
       "Program::argument: got tensor<-1xf32>, expected no dimension below 0"},
      {[&] { p.result(other, "y"); },
       "Program::result: got a value of program q, expected one of p"},
      {[&] { p.set_replicas(0); }, "Program::set_replicas: got 0, expected 1 or more"},
      {[&] { exp(counts); }, "exp: got tensor<3xi32>, expected float32 or bfloat16"},
      {[&] { power(counts, 2); }, "power: got tensor<3xi32>, expected float32 or bfloat16"},
      {[&] { bit_xor(x, x); }, "bit_xor: got tensor<2x3xf32>, expected integers or booleans"},
      {[&] { shift_left(flags, 1); }, "shift_left: got tensor<2x3xi1>, expected integers"},
      {[&] { shift_right(counts, 32); },
       "shift_right: got 32 bits of tensor<3xi32>, expected 0 to 31"},
      {[&] { compare(x, Comparison::eq, half); },
       "compare: got tensor<2x3xf32> and tensor<2x3xbf16>"},
      {[&] { select(x, x, x); }, "expected a boolean condition of the same shape"},
      {[&] { select(flags, x, half); },
       "select: got tensor<2x3xf32> and tensor<2x3xbf16>, expected two of one type"},
      {[&] { convert(x, DType::float16); }, "convert: got tensor<2x3xfloat16>"},
      {[&] { iota(p, {DType::int32, {2}}, 1); },
       "iota: got dimensions [1], expected each once, from 0 to 0"},
      {[&] { iota(p, {DType::boolean, {2}}, 0); }, "iota: got tensor<2xi1>, expected numbers"},
      {[&] { broadcast(x, {2, 4}, {0, 1}); },
       "broadcast: got tensor<2x3xf32> to [2, 4] by dimensions [0, 1], expected sizes of 1, or the "
       "same"},
      {[&] { broadcast(x, {3, 2}, {1, 0}); }, "expected them in increasing order"},
      {[&] { broadcast(x, {2, 3}, {0}); }, "expected one for each dimension of the value"},
      {[&] { broadcast(x, {2, 3}, {0, 2}); },
       "broadcast: got dimensions [0, 2], expected each once, from 0 to 1"},
      {[&] { reshape(x, {5}); },
       "reshape: got tensor<2x3xf32> to [5], expected as many elements in both"},
      {[&] { transpose(x, {0}); }, "transpose: got [0] for tensor<2x3xf32>, expected 2 numbers"},
      {[&] { transpose(x, {0, 0}); },
       "transpose: got dimensions [0, 0], expected each once, from 0 to 1"},
      {[&] { slice(x, {0, 0}, {2, 4}); },
       "slice: got tensor<2x3xf32> from [0, 0] to [2, 4] by [1, 1], expected 0 <= begin"},
      {[&] { pad(x, {-3, 0}, {0, 0}, {0, 0}); },
       "pad: got tensor<2x3xf32> with [-3, 0] before, [0, 0] after, [0, 0] between"},
      {[&] { concatenate(std::vector<Value>{}, 0); },
       "concatenate: got no values, expected one or more"},
      {[&] { concatenate(std::vector{x, counts}, 0); }, "expected one type but for dimension 0"},
      {[&] { reverse(x, {2}); }, "reverse: got dimensions [2]"},
      {[&] { reduce_sum(flags, {0}); }, "reduce_sum: got tensor<2x3xi1>, expected numbers"},
      {[&] { reduce_max(x, {0, 0}); }, "reduce_max: got dimensions [0, 0]"},
      {[&] { reduce_sum(reduce_sum(x, {0, 1}), {0}); },
       "reduce_sum: got dimensions [0], expected none of a scalar"},
      {[&] { dot(x, x); },
       "dot: got tensor<2x3xf32> and tensor<2x3xf32>, expected [n, k] and [k, m]"},
      {[&] { dot(x, half, {{}, {}, {1}, {1}}); }, "expected one type of elements"},
      {[&] { dot(x, x, {{}, {}, {0}, {1}}); },
       "dot: got tensor<2x3xf32> and tensor<2x3xf32>, batch [] and [], contracted [0] and [1], "
       "expected the same sizes of both"},
      {[&] { dot(x, x, {{0}, {}, {1}, {1}}); }, "expected as many dimensions of each"},
      {[&] { dot(x, x, {{0}, {0}, {0}, {1}}); }, "dot: got dimensions [0, 0]"},
      {[&] { conv2d(x, kernel, {}); }, "conv2d: got tensor<2x3xf32>, expected 4 dimensions"},
      {[&] { conv2d(image, kernel, {.groups = 2}); },
       "conv2d: got tensor<1x2x4x4xf32> and tensor<3x2x3x3xf32> in 2 groups, expected [batch, "
       "channels, height, width] and [outputs, channels / groups, height, width]"},
      {[&] { conv2d(image, kernel, {.stride_width = 0}); },
       "conv2d: got tensor<1x2x4x4xf32>, a window of [3, 3], stride [1, 0], padding [0, 0], "
       "expected a window"},
      {[&] { window_max(image, {5, 1}); },
       "window_max: got tensor<1x2x4x4xf32>, a window of [5, 1]"},
      {[&] { window_sum(counts, {}); }, "window_sum: got tensor<3xi32>, expected float32"},
      {[&] { take_rows(x, x); },
       "take_rows: got tensor<2x3xf32> and tensor<2x3xf32>, expected numbers of int32 or int64"},
      {[&] { take_rows(image, counts); },
       "take_rows: got tensor<1x2x4x4xf32>, expected 2 dimensions"},
      {[&] { all_reduce(flags); }, "all_reduce: got tensor<2x3xi1>, expected numbers"},
  };
  for (const Case& c : cases) {
    const std::string message = message_of<UsageError>(c.action);
    EXPECT_THAT(message, StartsWith("hlo::")) << c.message;
    EXPECT_THAT(message, HasSubstr(c.message));
  }
}

TEST(HloText, OfARepeatedProgramHasAWhileLoop) {
  Program program("steps");
  const Value w = program.argument({DType::float32, {2}}, "w");
  const Value x = program.argument({DType::float32, {2}}, "x");
  const Value constant = program.argument({DType::float32, {2}}, "constant");
  program.comes_anew(x);
  program.give_away(w, program.result(w + x * constant, "w"));
  program.result(reduce_sum(w, {0}), "sum");
  const std::string text = program.text(3);
  EXPECT_THAT(text, HasSubstr("func.func private @pass"));
  EXPECT_THAT(text, HasSubstr("%x0: tensor<2xf32> {tf.aliasing_output = 0 : i32},\n"
                              "      %x1: tensor<3x2xf32>,\n      %x2: tensor<2xf32>\n"));
  EXPECT_THAT(text, HasSubstr("-> (\n      tensor<2xf32>,\n      tensor<3xf32>\n"));
  EXPECT_THAT(text, HasSubstr("stablehlo.while"));
  EXPECT_THAT(program.text(1), Not(HasSubstr("stablehlo.while")));
  EXPECT_THAT(message_of<UsageError>([&] { program.text(0); }), HasSubstr("0 passes"));
  EXPECT_THAT(message_of<UsageError>([&] { program.comes_anew(w); }), HasSubstr("not given away"));
}

TEST(HloOperators, SayInWhichOrderTheyWantImages) {
  Program p("p");
  const Value image = argument_of(p, DType::float32, {1, 2, 4, 4});
  const Value kernel = argument_of(p, DType::float32, {3, 2, 3, 3});
  EXPECT_THAT(message_of<UsageError>(
                  [&] { conv2d(image, kernel, {.order = hlo::ImageOrder::channels_last}); }),
              HasSubstr("in 1 groups, expected [batch, height, width, channels] and [outputs, "));
}

}  // namespace
}  // namespace tutti
