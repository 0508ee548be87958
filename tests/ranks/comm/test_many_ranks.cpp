// More ranks than cores, by far: threads and processes go on, only slower.
#include <gtest/gtest.h>

#include "tests/support/collective_oracle.h"
#include "tests/support/comm.h"
#include "tests/support/run_ranks.h"

namespace tutti::test {
namespace {

const Call kCalls[] = {
    {.collective = Collective::all_reduce, .op = ReduceOp::mean, .n = 500},
    {.collective = Collective::all_gather, .dtype = DType::uint8, .n = 33},
    {.collective = Collective::reduce_scatter, .dtype = DType::bfloat16, .n = 30},
    {.collective = Collective::all_to_all, .dtype = DType::int32, .n = 20},
    {.collective = Collective::broadcast, .root = 11, .n = 6'000},
};

// Every rank makes all calls, and throws when one gives it what the oracle does not.
void check_all_calls(Group& group) {
  for (const Call& call : kCalls) {
    const auto before = make_all_buffers(call, group.size(), 9);
    Buffers buffers = before[group.rank()];
    for (int i = 0; i < 20; ++i) group.barrier();
    carry_out(call, group, buffers);
    if (buffers.output != expected_output(call, before, group.rank())) throw Error(words_of(call));
  }
}

TEST(ManyRanks, SixtyFourThreads) {
  run_all_members(make_shm_threads(64), [](Group group) { check_all_calls(group); });
}

RANK_PROGRAM(check_as_one_of_many) {
  Group group(make_shm(ShmSegment::open(rank.descriptors[0]), rank.rank, false));
  check_all_calls(group);
}

TEST(ManyRanks, SixteenProcesses) {
  const ShmSegment segment = ShmSegment::create(16);
  for (const auto& rank :
       run_ranks(16, "check_as_one_of_many", {.descriptors = {segment.descriptor()}}))
    EXPECT_EQ(rank.exit_code, 0) << rank.log;
}

}  // namespace
}  // namespace tutti::test
