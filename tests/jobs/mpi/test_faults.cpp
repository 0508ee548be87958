// MPI jobs that fail: who throws what, and that nobody hangs. The launcher ends a job whose rank
// dies; told not to, it leaves the survivors time to say what they saw.
#include <algorithm>
#include <csignal>
#include <thread>

#include "tutti/comm/group/group.h"
#include "tutti/comm/mpi/mpi.h"

#include "tests/jobs/mpi/mpirun.h"
#include "tests/support/comm.h"
#include "tests/support/expect.h"

namespace tutti::test {
namespace {

bool is_open_mpi() {
  const CommandResult version = run_command({TUTTI_MPIRUN, "--version"}, launcher_settings());
  return (version.out + version.err).find("open-mpi.org") != std::string::npos;
}

// The launcher's word for letting the others go on: Open MPI's, else MPICH's.
std::vector<std::string> let_them_live() {
  return {is_open_mpi() ? "--enable-recovery" : "-disable-auto-cleanup"};
}

// MPICH's own launcher does not outlive a rank that is killed.
class MpiDeaths : public testing::Test {
 protected:
  void SetUp() override {
    if (!is_open_mpi()) GTEST_SKIP() << "needs the launcher of Open MPI";
  }
};

// How rank r ended, on a line of its own.
void tell(const Rank& rank, int r, const std::function<void()>& body) {
  std::string words = "nothing";
  try {
    body();
  } catch (...) {
    words = words_of(std::current_exception());
  }
  std::ranges::replace(words, '\n', ' ');
  rank.mark(fmt::format("[rank {} ended with {}]", r, words));
}

std::string line_of(const CommandResult& result, int r) {
  const size_t begin = result.out.find(fmt::format("[rank {} ended", r));
  if (begin == std::string::npos) return "no line of rank " + std::to_string(r);
  return result.out.substr(begin, result.out.find('\n', begin) - begin);
}

// 8 MB of float32, again and again.
void add_forever(Group& group) {
  std::vector<float> data(2'000'000, 1);
  while (true) group.all_reduce(span_of(std::span(data)), ReduceOp::mean).wait();
}

RANK_PROGRAM(die_at_work) {
  Group group(make_mpi());
  tell(rank, group.rank(), [&] {
    group.barrier();
    if (group.rank() == 1) std::raise(SIGKILL);
    add_forever(group);
  });
}

TEST_F(MpiDeaths, SurvivorsNameTheDeadRank) {
  const CommandResult result = mpirun(3, "die_at_work", let_them_live());
  EXPECT_FALSE(result.timed_out);
  for (int r : {0, 2})
    EXPECT_THAT(line_of(result, r), AllOf(HasSubstr("PeerLost: all_reduce #2"),
                                          HasSubstr("rank 1 (pid "), HasSubstr(") died")))
        << result.out << result.err;
}

TEST(MpiFaults, TheLauncherEndsTheRest) {
  const CommandResult result = mpirun(3, "die_at_work");
  EXPECT_FALSE(result.timed_out);
  EXPECT_NE(result.exit_code, 0);
}

RANK_PROGRAM(die_waiting_for_message) {
  Group group(make_mpi());
  tell(rank, group.rank(), [&] {
    int32_t number = 5;
    const MemorySpan data = span_of(std::span(&number, 1));
    if (group.rank() == 1) {
      group.send(data, 0).wait();
      std::raise(SIGKILL);
    }
    group.recv(data, 1).wait();  // was sent before it died
    group.recv(data, 1).wait();
  });
}

TEST_F(MpiDeaths, ADeadRankSendsNoMessage) {
  const CommandResult result = mpirun(2, "die_waiting_for_message", let_them_live());
  EXPECT_THAT(line_of(result, 0),
              AllOf(HasSubstr("PeerLost: recv from rank 1 (tag 0)"), HasSubstr(") died")))
      << result.out << result.err;
}

RANK_PROGRAM(stop_at_work) {
  Group group(make_mpi());
  int32_t pid = getpid();
  std::vector<int32_t> pids(static_cast<size_t>(group.size()));
  group.all_gather(span_of(std::span(&pid, 1)), span_of(std::span(pids))).wait();
  tell(rank, group.rank(), [&] {
    group.barrier();
    if (group.rank() == 2) std::raise(SIGSTOP);
    std::vector<float> data(100, 1);
    group.all_reduce(span_of(std::span(data)), ReduceOp::sum, Millis{500}).wait();
  });
  kill(pids[2], SIGKILL);  // the launcher would wait for it
}

TEST(MpiFaults, AStoppedRankIsNamedWhenTheLimitPasses) {
  const CommandResult result = mpirun(3, "stop_at_work", let_them_live());
  EXPECT_FALSE(result.timed_out);
  const std::string both = line_of(result, 0) + line_of(result, 1);
  EXPECT_THAT(both, AllOf(HasSubstr("Timeout: all_reduce #3"), HasSubstr("silent: rank 2 (pid "),
                          HasSubstr("which is stopped: its last call was barrier (#2)")))
      << result.out << result.err;
}

RANK_PROGRAM(abort_from_a_thread) {
  Group group(make_mpi());
  tell(rank, group.rank(), [&] {
    group.barrier();
    std::thread other;
    if (group.rank() == 0) other = std::thread([&] { group.abort("the disk is full"); });
    try {
      add_forever(group);
    } catch (const Error&) {
      if (other.joinable()) other.join();
      throw;
    }
  });
}

TEST(MpiFaults, AbortFreesEveryRank) {
  const CommandResult result = mpirun(3, "abort_from_a_thread", let_them_live());
  EXPECT_THAT(line_of(result, 0), AllOf(HasSubstr("ended with Error: "),
                                        HasSubstr("aborted by rank 0: the disk is full")))
      << result.out << result.err;
  for (int r : {1, 2})
    EXPECT_THAT(line_of(result, r), AllOf(HasSubstr("ended with PeerLost: "),
                                          HasSubstr("aborted by rank 0: the disk is full")));
}

RANK_PROGRAM(disagree) {
  Group group(make_mpi());
  tell(rank, group.rank(), [&] {
    std::vector<float> data(10, 1);
    const auto length = static_cast<size_t>(group.rank() == 1 ? 9 : 10);
    group.all_reduce(span_of(std::span(data).first(length)), ReduceOp::sum).wait();
  });
}

TEST(MpiFaults, DisagreementShowsBothCalls) {
  const CommandResult result = mpirun(3, "disagree", let_them_live());
  for (int r : {0, 1, 2})
    EXPECT_THAT(line_of(result, r), AllOf(HasSubstr("Mismatch: all_reduce #1"),
                                          HasSubstr("all_reduce (sum) of 10 float32"),
                                          HasSubstr("rank 1 called all_reduce (sum) of 9 float32")))
        << result.out << result.err;
}

RANK_PROGRAM(leave_early) {
  std::optional<Group> group{make_mpi()};
  const int me = group->rank();
  tell(rank, me, [&] {
    group->barrier();
    if (me == 1) return group.reset();
    group->barrier();
  });
}

TEST(MpiFaults, WhoLeavesIsMissed) {
  const CommandResult result = mpirun(3, "leave_early", let_them_live());
  EXPECT_THAT(line_of(result, 1), HasSubstr("ended with nothing"));
  for (int r : {0, 2})
    EXPECT_THAT(line_of(result, r),
                AllOf(HasSubstr("PeerLost: barrier #2"), HasSubstr("left the group")))
        << result.out << result.err;
}

// A group of a split fails for itself: the whole goes on.
RANK_PROGRAM(fail_in_a_part) {
  Group whole(make_mpi());
  std::optional<Group> part = whole.split(whole.rank() / 2);
  tell(rank, whole.rank(), [&] {
    if (whole.rank() == 0) part->abort("enough");
    if (whole.rank() < 2) {
      try {
        part->barrier();
      } catch (const Error&) {
        rank.mark("the part failed");
      }
    }
    whole.barrier();
  });
}

TEST(MpiFaults, APartFailsForItself) {
  const CommandResult result = mpirun(3, "fail_in_a_part", let_them_live());
  EXPECT_THAT(result.out, HasSubstr("the part failed"));
  for (int r : {0, 1, 2}) EXPECT_THAT(line_of(result, r), HasSubstr("ended with nothing"));
}

RANK_PROGRAM(other_options) {
  tell(rank, rank.rank, [] {
    const auto place = make_mpi_meeting_place();
    make_mpi({.chunk_bytes = place->rank() == 0 ? 1000 : 2000});
  });
}

TEST(MpiFaults, OptionsAreTheSameOnEveryRank) {
  const CommandResult result = mpirun(2, "other_options", let_them_live());
  EXPECT_THAT(result.out, AllOf(HasSubstr("Mismatch: make_mpi"), HasSubstr("chunks of 1000 bytes"),
                                HasSubstr("chunks of 2000 bytes")))
      << result.err;
}

}  // namespace
}  // namespace tutti::test
