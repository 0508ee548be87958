// Whole MPI jobs: ranks meet, compute, talk, split, share memory and end.
#include <numeric>

#include "tutti/comm/group/group.h"
#include "tutti/comm/mpi/mpi.h"

#include "tests/jobs/mpi/mpirun.h"
#include "tests/support/expect.h"
#include "tests/support/reduce_oracle.h"

namespace tutti::test {
namespace {

void expect(bool holds, const std::string& what) {
  if (!holds) throw Error("expected: " + what);
}

// Every rank of the job ended well.
void expect_success(const CommandResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
}

RANK_PROGRAM(add_ranks) {
  Group group(make_mpi());
  std::vector<float> data(100'000, static_cast<float>(group.rank() + 1));
  group.all_reduce(span_of(std::span(data)), ReduceOp::sum).wait();
  group.barrier();
  rank.mark(
      fmt::format("rank {} of {}: {} {}", group.rank(), group.size(), data.front(), data.back()));
}

TEST(MpiJob, AddsOverAllRanks) {
  for (int n : {1, 2, 3}) {
    const CommandResult result = mpirun(n, "add_ranks");
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const int sum = n * (n + 1) / 2;
    for (int r = 0; r < n; ++r)
      EXPECT_THAT(result.out, HasSubstr(fmt::format("rank {} of {}: {} {}", r, n, sum, sum)));
  }
}

// Every collective of the suite that all engines pass.
class MpiConformance : public testing::TestWithParam<int> {};

TEST_P(MpiConformance, GivesTheBitsOfTheOracle) {
  const std::string filter = fmt::format("--gtest_filter=Mpi/Conformance.*/{}", GetParam());
  const CommandResult result = mpirun_command(
      GetParam(), {TUTTI_MPI_CONFORMANCE, filter, "--gtest_color=no"}, {}, "TUTTI_LOG=warning");
  expect_success(result);
  EXPECT_THAT(result.out, HasSubstr(" tests from Mpi/Conformance")) << "the suite ran";
  EXPECT_THAT(result.out, Not(HasSubstr("PASSED  ] 0 tests")));
}

INSTANTIATE_TEST_SUITE_P(Ranks, MpiConformance, testing::Values(1, 2, 3, 4));

// Short ones before anybody receives, long ones in pieces, any sender, several tags.
RANK_PROGRAM(pass_messages) {
  Group group(make_mpi({.message_bytes = 100'000}));
  const int me = group.rank();
  const int n = group.size();
  const auto next = (me + 1) % n;
  const auto last = (me + n - 1) % n;
  const auto value = [](int from, int tag, int64_t i) { return from * 1000 + tag * 100 + i % 97; };
  for (int64_t length : {0, 1, 5000, 16'384, 16'385, 300'001}) {
    std::vector<int32_t> out[2];
    std::vector<int32_t> in[2];
    std::vector<Work> works;
    for (int tag : {0, 1}) {
      for (int64_t i = 0; i < length; ++i)
        out[tag].push_back(static_cast<int32_t>(value(me, tag, i)));
      in[tag].resize(static_cast<size_t>(length));
      Work sent = group.send(span_of(std::span(out[tag])), next, tag);
      if (length <= 16'384) {
        expect(sent.test(), "a short message is done at once");
      }
      works.push_back(sent);
    }
    group.barrier();  // messages that wait hold up no collective
    int source = -1;
    works.push_back(group.recv(span_of(std::span(in[1])), last, 1));
    works.push_back(group.recv(span_of(std::span(in[0])), kAnyRank, 0, kDefaultTimeLimit, &source));
    for (Work& work : works) work.wait();
    expect(source == last, "the sender is told");
    for (int tag : {0, 1})
      for (int64_t i = 0; i < length; ++i)
        expect(in[tag][i] == value(last, tag, i), fmt::format("message of {}", length));
  }
  // In order within a pair and a tag, also when receives are waited for in another order.
  std::vector<int32_t> numbers(40);
  std::iota(numbers.begin(), numbers.end(), 0);
  std::vector<int32_t> got(numbers.size());
  std::vector<Work> works;
  for (size_t i = 0; i < numbers.size(); ++i) {
    works.push_back(group.recv(span_of(std::span(got).subspan(i, 1)), last, 7));
    works.push_back(group.send(span_of(std::span(numbers).subspan(i, 1)), next, 7));
  }
  for (auto work = works.rbegin(); work != works.rend(); ++work) work->wait();
  expect(got == numbers, "messages come in order");
}

TEST(MpiJob, PassesMessagesBesideCollectives) {
  for (int n : {2, 3}) expect_success(mpirun(n, "pass_messages"));
}

RANK_PROGRAM(short_of_room) {
  Group group(make_mpi());
  std::vector<int32_t> data(10);
  if (group.rank() == 0) {
    group.send(span_of(std::span(data)), 1).wait();
    group.barrier();
  } else {
    group.recv(span_of(std::span(data).first(9)), 0).wait();
  }
}

TEST(MpiJob, MessageOfAnotherLengthIsAMismatch) {
  const CommandResult result = mpirun(2, "short_of_room");
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("sent 40 bytes under tag 0, rank 1 has room for 36"));
}

// Groups of the odd and the even ranks, in reverse order, used beside the whole; one rank is in
// none.
RANK_PROGRAM(split_ranks) {
  Group whole(make_mpi());
  const int me = whole.rank();
  const bool outside = me == 3;
  std::optional<Group> part = whole.split(outside ? -1 : me % 2, -me);
  expect(part.has_value() == !outside, "a negative color is in no group");
  for (int round = 0; round < 20; ++round) {
    std::vector<int64_t> sum(5000, 1 << me);
    if (part) {
      Work work = part->all_reduce(span_of(std::span(sum)), ReduceOp::sum);
      whole.barrier();
      work.wait();
      expect(sum[17] == (me % 2 == 0 ? 1 + 4 + 16 : 2), "only members add");
    } else {
      whole.barrier();
    }
  }
  if (part) {
    const std::vector<int> order = me % 2 == 0 ? std::vector<int>{4, 2, 0} : std::vector<int>{1};
    expect(order[part->rank()] == me, "ranks are in order of the keys");
  }
}

TEST(MpiJob, SplitsByColorAndKey) { expect_success(mpirun(5, "split_ranks")); }

RANK_PROGRAM(share_memory) {
  Group group(make_mpi());
  const int me = group.rank();
  for (int64_t unit : {0, 1000, 90'000}) {
    SharedParts shared = group.allocate(unit * me);
    expect(static_cast<int>(shared.parts.size()) == group.size(), "a part for each rank");
    for (int r = 0; r < group.size(); ++r) {
      const MemorySpan& part = shared.parts[r];
      const auto* bytes = static_cast<const char*>(part.data);
      expect(part.num_elements == unit * r, "as long as asked for");
      expect(reinterpret_cast<uintptr_t>(bytes) % 64 == 0, "on a line");
      expect(std::all_of(bytes, bytes + part.num_elements, [](char x) { return x == 0; }),
             "zeroed");
    }
    group.barrier();
    if (unit * me > 0) std::memset(shared.parts[me].data, me + 1, static_cast<size_t>(unit * me));
    group.barrier();
    for (int r = 0; r < group.size(); ++r) {
      const auto* bytes = static_cast<const char*>(shared.parts[r].data);
      expect(std::all_of(bytes, bytes + unit * r, [r](char x) { return x == r + 1; }),
             "all see what its rank wrote");
    }
    group.barrier();
  }
}

TEST(MpiJob, AllocatesMemoryThatAllSee) {
  for (int n : {1, 3}) expect_success(mpirun(n, "share_memory"));
}

// A shape of two hosts on one machine: 16-bit pieces cross raw and are added in float32.
RANK_PROGRAM(shaped_sums) {
  const ReductionShape shape = ReductionShape::parse("2+1");
  Group group(make_mpi({.shape = shape, .chunk_bytes = 10'000, .message_bytes = 1000}));
  expect(group.reduction_shape() == shape, "the shape that was asked for");
  for (DType dtype : {DType::bfloat16, DType::float16, DType::float32})
    for (int64_t n : {5, 1024, 1025, 40'003}) {
      std::vector<Bytes> inputs;
      for (int r = 0; r < group.size(); ++r) inputs.push_back(ordinary_values(dtype, n, 3, r));
      Bytes data = inputs[group.rank()];
      group.all_reduce({data.data(), n, dtype}, ReduceOp::mean).wait();
      const Bytes expected = oracle(dtype, ReduceOp::mean, shape, inputs);
      expect(first_difference(dtype, data.data(), expected.data(), n).empty(),
             fmt::format("{} {}: the bits of the shape", n, name_of(dtype)));
    }
}

TEST(MpiJob, AddsInTheShapeThatIsGiven) { expect_success(mpirun(3, "shaped_sums")); }

// Whole numbers, whose sums are exact in any order; a mean that rounds once.
RANK_PROGRAM(sums_in_any_order) {
  Group group(make_mpi({.any_order = true, .message_bytes = 4096}));
  const int n = group.size();
  for (int64_t length : {3, 5000}) {
    std::vector<double> mean(static_cast<size_t>(length), group.rank());
    group.all_reduce(span_of(std::span(mean)), ReduceOp::mean).wait();
    expect(mean.back() == (n - 1) / 2.0, "mean");
    std::vector<uint16_t> bits(static_cast<size_t>(length), 1 << group.rank());
    group.all_reduce(span_of(std::span(bits)), ReduceOp::bit_or).wait();
    expect(bits.back() == (1 << n) - 1, "bits of all ranks");
    std::vector<float> least(static_cast<size_t>(length), static_cast<float>(5 - group.rank()));
    group.all_reduce(span_of(std::span(least)), ReduceOp::min).wait();
    expect(least.back() == 5 - (n - 1), "least, which MPI does not do for floats");
  }
}

TEST(MpiJob, LeavesTheOrderToMpi) { expect_success(mpirun(3, "sums_in_any_order")); }

RANK_PROGRAM(meet) {
  const auto place = make_mpi_meeting_place();
  const std::string mine(place->rank() == 1 ? 65'536 : place->rank(), 'x');
  for (const char* key : {"address", "name"}) {
    const auto all = place->exchange(key, mine, Deadline(kDefaultTimeLimit));
    for (int r = 0; r < place->size(); ++r)
      expect(static_cast<int>(all[r].size()) == (r == 1 ? 65'536 : r), "everybody's text");
  }
  if (place->rank() == 1) return;
  place->exchange("without rank 1", "", Deadline(Millis{300}));
}

TEST(MpiJob, IsAMeetingPlaceThatNamesWhoIsMissing) {
  const CommandResult result = mpirun(3, "meet");
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("meeting through MPI for \"without rank 1\", rank "));
  EXPECT_THAT(result.err, HasSubstr(": rank 1 (pid "));
  EXPECT_THAT(result.err, HasSubstr("did not come within 300 ms"));
}

}  // namespace
}  // namespace tutti::test
