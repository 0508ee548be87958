// A member that dies while the others still come.
#include <csignal>

#include "tests/support/comm.h"
#include "tests/support/expect.h"
#include "tests/support/run_ranks.h"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;

/// Rank 2 never comes; rank 1 dies while it waits for it.
RANK_PROGRAM(die_while_joining) {
  if (rank.rank == 2) return;
  const auto loss = [&]() -> std::string {
    if (rank.rank == 1) std::raise(SIGKILL);
    return "";
  };
  make_shm(ShmSegment::open(rank.descriptors[0]), rank.rank, false, 20s, loss);
}

RANK_PROGRAM(ask_for_losses) {
  make_shm(ShmSegment::open(rank.descriptors[0]), rank.rank, false, 20s,
           [] { return "rank 1 was eaten"; });
}

TEST(JoiningProcesses, ADeathIsSeenInTheSegment) {
  const auto segment = ShmSegment::create(3);
  const auto out =
      run_ranks(3, "die_while_joining", {.limit = 30s, .descriptors = {segment.descriptor()}});
  EXPECT_EQ(out[0].error_class, "PeerLost") << out[0].log;
  EXPECT_THAT(out[0].error, AllOf(HasSubstr("joining, rank 0 of 3: rank 1 "),
                                  HasSubstr("died before all had come")));
}

TEST(JoiningProcesses, ALossThatOnlyOthersKnowOfCounts) {
  const auto segment = ShmSegment::create(2);
  const auto out =
      run_ranks(1, "ask_for_losses", {.limit = 30s, .descriptors = {segment.descriptor()}});
  EXPECT_EQ(out[0].error_class, "PeerLost") << out[0].log;
  EXPECT_THAT(out[0].error, HasSubstr("joining, rank 0 of 2: rank 1 was eaten before all"));
}

}  // namespace
}  // namespace tutti::test
