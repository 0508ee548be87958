// The built-in cross-device reductions: the same bits as the oracle, whatever the engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/error.h"
#include "tutti/comm/group/cross_device.h"

#include "tests/support/comm.h"
#include "tests/support/message_of.h"
#include "tests/support/reduce_oracle.h"

namespace tutti {
namespace {

using test::Bytes;
using testing::HasSubstr;

constexpr Millis kLimit{20'000};
constexpr int64_t kLengths[] = {0, 1, 63, 4099};

class BuiltIn : public testing::TestWithParam<std::string> {};

TEST_P(BuiltIn, HasTheBitsOfTheOneOrder) {
  for (const char* engine : {"shm", "shm staged"})
    for (int size : {1, 2, 3, 4, 5}) {
      const auto shape = ReductionShape::flat(size);
      test::run_all_members(test::make_engines(engine, size), [&](Group group) {
        const auto reduction = cross_device_by_name(GetParam())();
        EXPECT_EQ(reduction->name(), GetParam());
        for (DType dtype : {DType::float32, DType::bfloat16, DType::float16, DType::float64})
          for (ReduceOp op : {ReduceOp::sum, ReduceOp::mean})
            for (int64_t n : kLengths) {
              std::vector<Bytes> inputs;
              for (int r = 0; r < size; ++r)
                inputs.push_back(test::ordinary_values(dtype, n, 7, r));
              Bytes mine = inputs[static_cast<size_t>(group.rank())];
              mine.reserve(8);
              reduction->reduce(group, {mine.data(), n, dtype}, op, kLimit).wait(kLimit);
              EXPECT_EQ(mine, test::oracle(dtype, op, shape, inputs))
                  << engine << " " << size << " " << name_of(dtype) << " " << n;
            }
      });
    }
}

TEST_P(BuiltIn, HasTheSameBitsForReplicasThatTakeTurns) {
  for (const char* text : {"1", "2", "3", "4", "2x3", "3+1"}) {
    const auto shape = ReductionShape::parse(text);
    std::vector<Bytes> inputs;
    for (int r = 0; r < shape.replicas(); ++r)
      inputs.push_back(test::ordinary_values(DType::float32, 500, 8, r));
    const Bytes expected = test::oracle(DType::float32, ReduceOp::sum, shape, inputs);
    std::vector<MemorySpan> parts;
    for (Bytes& input : inputs) parts.push_back({input.data(), 500, DType::float32});
    cross_device_by_name(GetParam())()->reduce_in_turn(parts, ReduceOp::sum, shape);
    EXPECT_THAT(inputs, testing::Each(expected)) << text;
  }
}

// A program's own messages between the same members are not taken for the reduction's.
TEST_P(BuiltIn, LeavesMessagesOfTheProgramAlone) {
  test::run_all_members(test::make_engines("shm", 2), [&](Group group) {
    float token = static_cast<float>(group.rank() + 10), got = 0;
    const int other = 1 - group.rank();
    Work sent = group.send(span_of(std::span(&token, 1)), other, 0, kLimit);
    float value = 1;
    cross_device_by_name(GetParam())()
        ->reduce(group, span_of(std::span(&value, 1)), ReduceOp::sum, kLimit)
        .wait(kLimit);
    EXPECT_EQ(value, 2);
    group.recv(span_of(std::span(&got, 1)), other, 0, kLimit).wait(kLimit);
    sent.wait(kLimit);
    EXPECT_EQ(got, static_cast<float>(other + 10));
  });
}

INSTANTIATE_TEST_SUITE_P(Reductions, BuiltIn, testing::ValuesIn(cross_device_names()),
                         [](const auto& info) { return info.param; });

TEST(CrossDeviceNames, UnknownOnesGetTheNearest) {
  EXPECT_THAT(test::message_of<UsageError>([] { cross_device_by_name("hierarchical-copi"); }),
              HasSubstr("did you mean \"hierarchical_copy\"?"));
}

}  // namespace
}  // namespace tutti
