// tcp, and hier over it, through wires that are slow, pass odd pieces, or stop.
#include "tests/ranks/comm/conformance.h"
#include "tests/support/expect.h"
#include "tests/support/hier.h"
#include "tests/support/throttle.h"

namespace tutti::test {
namespace {

constexpr int64_t kBytesPerMs = 20'000;
constexpr int64_t kPiece = 997;

std::vector<std::shared_ptr<Engine>> members_over(Throttle& wires, int size) {
  std::vector<std::shared_ptr<Engine>> engines;
  for (TcpLinks& links : tcp_links(size, 1, [&](int a, int b) { return wires.link_between(a, b); }))
    engines.push_back(make_tcp(std::move(links), {}));
  return engines;
}

/// Two hosts of two ranks.
std::vector<std::shared_ptr<Engine>> hosts_over(Throttle& wires) {
  return make_hier_threads({2, 2}, 4096, [&](int ranks) { return members_over(wires, ranks); });
}

std::vector<Call> calls() {
  return {{.collective = Collective::all_reduce, .n = 5},
          {.collective = Collective::all_reduce, .dtype = DType::bfloat16, .n = 60'001},
          {.collective = Collective::all_reduce, .n = 300'001},
          {.collective = Collective::reduce_scatter, .n = 10'001},
          {.collective = Collective::all_gather, .n = 10'001},
          {.collective = Collective::broadcast, .root = 1, .n = 70'001},
          {.collective = Collective::all_to_all, .n = 5'001},
          {.collective = Collective::barrier}};
}

void expect_conform(const std::vector<std::shared_ptr<Engine>>& members) {
  const int size = members.front()->size();
  for (const Call& call : calls()) {
    const auto before = make_all_buffers(call, size, 1);
    auto buffers = before;
    run_all_members(members, [&](Group group) { carry_out(call, group, buffers[group.rank()]); });
    for (int r = 0; r < size; ++r)
      EXPECT_EQ(buffers[r].output, expected_output(call, before, r))
          << "rank " << r << ": " << words_of(call);
  }
}

TEST(SlowWires, GiveTheBitsOfTheOracle) {
  Throttle wires(kBytesPerMs, kPiece);
  const auto members = members_over(wires, 3);
  wires.start();
  expect_conform(members);
}

TEST(SlowWires, GiveTheBitsOfTheOracleBetweenHosts) {
  Throttle wires(kBytesPerMs, kPiece);
  const auto members = hosts_over(wires);
  wires.start();
  expect_conform(members);
}

// The wires stall in the middle of a long message.
std::vector<std::string> reduce_in_a_stall(int64_t milliseconds, Millis limit) {
  Throttle wires(kBytesPerMs, kPiece);
  const auto members = members_over(wires, 2);
  wires.stall_after(200'000, milliseconds);
  wires.start();
  const auto thrown = run_members(members, [&](Group group) {
    std::vector<float> data(500'000, 1);
    group.all_reduce(span_of(std::span(data)), ReduceOp::sum, limit).wait();
    if (data.back() != static_cast<float>(group.size())) throw Error("a wrong sum");
  });
  EXPECT_TRUE(wires.has_stalled());
  std::vector<std::string> words;
  for (const auto& one : thrown) words.push_back(test::words_of(one));
  return words;
}

TEST(SlowWires, AStallWithinTheLimitIsNoError) {
  EXPECT_THAT(reduce_in_a_stall(700, Millis{60'000}), Each(""));
}

TEST(SlowWires, AWireThatStallsForGoodEndsWithTheLimitAndNamesThePeer) {
  const auto words = reduce_in_a_stall(INT64_MAX, Millis{1'500});
  EXPECT_THAT(words[0], AllOf(StartsWith("Timeout: "), HasSubstr("rank 1"), HasSubstr("1500 ms")));
  EXPECT_THAT(words[1], AllOf(StartsWith("Timeout: "), HasSubstr("rank 0"), HasSubstr("1500 ms")));
}

}  // namespace
}  // namespace tutti::test
