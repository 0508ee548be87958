#include <numeric>

#include "tutti/pjrt/client.h"

#include "tests/support/expect.h"
#include "tests/support/hlo_evaluate.h"

namespace tutti {
namespace {

// Twice x, and the sum over both replicas.
constexpr const char* kProgram = R"(
module @twice attributes {mhlo.num_replicas = 2 : i32, mhlo.num_partitions = 1 : i32} {
  func.func public @main(%x: tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<3x2xf32>) {
    %d = stablehlo.add %x, %x : tensor<2x3xf32>
    %s = "stablehlo.all_reduce"(%d) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %q = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %q : tensor<f32>
    }) : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %t = stablehlo.transpose %s, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
    return %d, %t : tensor<2x3xf32>, tensor<3x2xf32>
  }
}
)";

using CpuPlugin = Evaluated;

Array numbers(float from) {
  Array array = Array::zeros(DType::float32, {2, 3});
  std::iota(array.as<float>().begin(), array.as<float>().end(), from);
  return array;
}

std::vector<float> values(const pjrt::Buffer& buffer) {
  const Array array = buffer.to_host(Deadline(Millis{20'000}));
  const auto span = array.as<float>();
  return {span.begin(), span.end()};
}

TEST_F(CpuPlugin, SaysItsDevices) {
  EXPECT_EQ(cpu_client().num_devices(), 2);
  EXPECT_EQ(cpu_client().facts().platform, "cpu");
  EXPECT_EQ(cpu_client().facts().devices.size(), 2U);
  EXPECT_NE(cpu_client().facts().devices[0].id, cpu_client().facts().devices[1].id);
}

TEST_F(CpuPlugin, RunsAProgramOnBoth) {
  const auto program = cpu_client().compile(kProgram, {.replicas = 2});
  EXPECT_EQ(program.num_outputs(), 2);
  Array first = numbers(0), second = numbers(10);
  const pjrt::Buffer a = cpu_client().to_device(first, 0), b = cpu_client().to_device(second, 1);
  std::ranges::fill(first.as<float>(), -1.F);  // it was copied
  const pjrt::Results results = program.run({{&a}, {&b}});
  results.wait(Deadline(Millis{20'000}));
  EXPECT_THAT(values(results.outputs[0][0]), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(values(results.outputs[1][0]), ElementsAre(20, 22, 24, 26, 28, 30));
  EXPECT_EQ(results.outputs[0][1].shape(), (std::vector<int64_t>{3, 2}));
  for (int device : {0, 1})
    EXPECT_THAT(values(results.outputs[size_t(device)][1]), ElementsAre(20, 32, 24, 36, 28, 40))
        << "rows first, whatever order the device keeps";
}

TEST_F(CpuPlugin, SaysWhatAProgramTakesAndGives) {
  constexpr const char* kMixed = R"(module {
  func.func public @main(%a: tensor<2x3xbf16>, %unused: tensor<i64>, %p: tensor<0x4xi1>,
                         %h: tensor<5xf16>) -> (tensor<0x4xi1>, tensor<2x3xf32>, tensor<ui8>) {
    %f = stablehlo.convert %a : (tensor<2x3xbf16>) -> tensor<2x3xf32>
    %c = stablehlo.constant dense<3> : tensor<ui8>
    return %p, %f, %c : tensor<0x4xi1>, tensor<2x3xf32>, tensor<ui8>
  }
})";
  const auto program = cpu_client().compile(kMixed);
  const std::vector<pjrt::ArrayType> takes{{DType::bfloat16, {2, 3}},
                                           {DType::int64, {}},
                                           {DType::boolean, {0, 4}},
                                           {DType::float16, {5}}};
  EXPECT_EQ(program.argument_types(), takes);
  const std::vector<pjrt::ArrayType> gives{
      {DType::boolean, {0, 4}}, {DType::float32, {2, 3}}, {DType::uint8, {}}};
  EXPECT_EQ(program.output_types(), gives);
  EXPECT_EQ(words_of(takes[0]), "bfloat16 [2, 3]");
  EXPECT_EQ(words_of(takes[1]), "int64 []");
}

TEST_F(CpuPlugin, TypesThatWeHaveNotAreNamed) {
  const auto program = cpu_client().compile(
      "module { func.func public @main(%x: tensor<2xcomplex<f32>>) -> tensor<2xcomplex<f32>> "
      "{ return %x : tensor<2xcomplex<f32>> } }");
  EXPECT_THAT(message_of<Error>([&] { program.argument_types(); }),
              HasSubstr("argument 0 has elements of type 15, which tutti has not"));
  EXPECT_THAT(message_of<Error>([&] { program.output_types(); }),
              AllOf(HasSubstr("PJRT_Executable_OutputElementTypes"), HasSubstr("tutti has not")));
}

TEST_F(CpuPlugin, ErrorsNamePluginVersionAndFunction) {
  EXPECT_THAT(
      message_of<Error>([] { cpu_client().compile("module {", {}); }),
      AllOf(ContainsRegex("PJRT plugin xla_cpu_pjrt.so .API 0.[0-9]+., PJRT_Client_Compile:")));
  EXPECT_THAT(message_of<UsageError>([] { cpu_client().compile(kProgram, {.replicas = 3}); }),
              AllOf(HasSubstr("3 replicas on 2 devices"), HasSubstr("from 1 to 2")));
  EXPECT_THAT(message_of<UsageError>([] { cpu_client().to_device(numbers(0), 2); }),
              HasSubstr("there is no device 2"));
}

TEST_F(CpuPlugin, WrongArgumentsAreRefused) {
  const auto program = cpu_client().compile(kProgram, {.replicas = 2});
  const pjrt::Buffer a = cpu_client().to_device(numbers(0), 0);
  const pjrt::Buffer b = cpu_client().to_device(numbers(0), 1);
  EXPECT_THAT(message_of<UsageError>([&] { program.run({{&a}}); }), HasSubstr("as many lists"));
  EXPECT_THAT(message_of<UsageError>([&] { program.run({{&a}, {}}); }), HasSubstr("got 1 and 0"));
  EXPECT_THAT(
      message_of<Error>([&] { program.run({{&a, &a}, {&b, &b}}).wait(Deadline(Millis{20'000})); }),
      HasSubstr("PJRT_LoadedExecutable_Execute"));
}

TEST_F(CpuPlugin, EveryTypeGoesThereAndBack) {
  for (const DType dtype : {DType::boolean, DType::uint8, DType::int8, DType::uint16, DType::int16,
                            DType::uint32, DType::int32, DType::uint64, DType::int64,
                            DType::float16, DType::bfloat16, DType::float32, DType::float64}) {
    const Array array = Array::zeros(dtype, {3});
    static_cast<uint8_t*>(array.data())[0] = 1;
    const Array back = cpu_client().to_device(array, 1).to_host(Deadline(Millis{20'000}));
    EXPECT_EQ(back.dtype(), dtype);
    EXPECT_EQ(back.shape(), array.shape());
    EXPECT_EQ(static_cast<uint8_t*>(back.data())[0], 1) << name_of(dtype);
  }
}

TEST_F(CpuPlugin, ScalarsAndEmptyArraysHaveTheirShapes) {
  EXPECT_EQ(cpu_client().to_device(Array::zeros(DType::float32, {}), 0).shape(),
            std::vector<int64_t>{});
  EXPECT_EQ(cpu_client().to_device(Array::zeros(DType::float32, {0, 4}), 0).shape(),
            (std::vector<int64_t>{0, 4}));
}

}  // namespace
}  // namespace tutti
