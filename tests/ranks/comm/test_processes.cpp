// Ranks as processes: the same results as threads, and the failure matrix. Members die, stop and
// leave when entering, in the middle of and between operations; every survivor names them.
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "tests/support/comm.h"
#include "tests/support/expect.h"
#include "tests/support/reduce_oracle.h"
#include "tests/support/run_ranks.h"

namespace tutti {
namespace {

Group join(const Rank& rank) {
  return Group(make_shm(ShmSegment::open(rank.descriptors[0]), rank.rank, false));
}

std::vector<RankOutcome> run(int size, const std::string& program, RunOptions options = {}) {
  const ShmSegment segment = ShmSegment::create(size);
  options.descriptors = {segment.descriptor()};
  return run_ranks(size, program, options);
}

void expect_sum(Group& group, void* data, int64_t n, int members) {
  std::vector<Bytes> inputs;
  for (int r = 0; r < members; ++r) inputs.push_back(ordinary_values(DType::float32, n, 21, r));
  std::memcpy(data, inputs[group.rank()].data(), n * 4);
  group.all_reduce({data, n, DType::float32}, ReduceOp::sum).wait();
  const Bytes expected =
      test::oracle(DType::float32, ReduceOp::sum, ReductionShape::flat(members), inputs);
  const auto difference = test::first_difference(DType::float32, data, expected.data(), n);
  if (!difference.empty()) throw Error(difference);
}

RANK_PROGRAM(reduce_private_and_shared_memory) {
  Group group = join(rank);
  for (int64_t n : {1, 10, 500, 5'000, 100'003}) {
    std::vector<float> own(n);
    expect_sum(group, own.data(), n, rank.size);
    const SharedParts shared = group.allocate(n * 4);
    expect_sum(group, shared.parts[rank.rank].data, n, rank.size);
  }
}

TEST(Processes, GiveTheBitsOfTheOracle) {
  for (const auto& rank : run(3, "reduce_private_and_shared_memory"))
    EXPECT_EQ(rank.exit_code, 0) << rank.log;
}

// Two processes of two threads each: members 2p and 2p + 1 lie in process p.
RANK_PROGRAM(two_members_in_each_process) {
  const ShmSegment segment = ShmSegment::open(rank.descriptors[0]);
  std::vector<std::exception_ptr> thrown(2);
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i)
    threads.emplace_back([&, i] {
      try {
        Group group(make_shm(segment, rank.rank * 2 + i, false));
        std::vector<float> own(60'000);
        expect_sum(group, own.data(), 60'000, 4);
        const SharedParts shared = group.allocate(240'000);
        expect_sum(group, shared.parts[group.rank()].data, 60'000, 4);
      } catch (...) {
        thrown[i] = std::current_exception();
      }
    });
  for (auto& thread : threads) thread.join();
  for (const auto& each : thrown)
    if (each) std::rethrow_exception(each);
}

TEST(Processes, HoldSeveralMembersEach) {
  const ShmSegment segment = ShmSegment::create(4);
  const auto ranks =
      run_ranks(2, "two_members_in_each_process", {.descriptors = {segment.descriptor()}});
  for (const auto& rank : ranks) EXPECT_EQ(rank.exit_code, 0) << rank.log;
}

constexpr int kVictim = 1;

// How the victim ends by itself, when the test does not kill it.
void end_as(const Rank& rank, const std::string& how) {
  if (rank.rank != kVictim) return;
  rank.mark("now");
  if (how == "exit") std::_Exit(3);
  if (how == "throw") throw Error("my own failure");
  if (how == "signal")
    while (true) pause();
}

// All but the victim are in a wait before it would enter.
RANK_PROGRAM(fail_entering) {
  Group group = join(rank);
  group.barrier();
  end_as(rank, rank.arguments[0]);
  std::vector<float> data(100'000);
  group.all_reduce(span_of(std::span(data)), ReduceOp::sum, Millis{std::stoi(rank.arguments[1])})
      .wait();
}

// The victim ends at some point of a long row of operations.
RANK_PROGRAM(fail_in_the_middle) {
  Group group = join(rank);
  const SharedParts shared = group.allocate(4 << 20);
  std::vector<float> own(300'000);
  for (int step = 0;; ++step) {
    MemorySpan data{shared.parts[rank.rank].data, 1 << 20, DType::float32};
    if (step % 2 != 0) data = span_of(std::span(own));
    if (step == 20 && rank.rank == kVictim) {
      (void)group.all_reduce(data, ReduceOp::sum);
      rank.mark("now");
      if (rank.arguments[0] == "exit") std::_Exit(3);
      if (rank.arguments[0] == "throw") throw Error("my own failure");
      continue;
    }
    group.all_reduce(data, ReduceOp::sum, Millis{std::stoi(rank.arguments[1])}).wait();
  }
}

// Survivors are in no wait of ours when it happens; they enter one afterwards.
RANK_PROGRAM(fail_while_others_are_idle) {
  Group group = join(rank);
  int32_t pid = getpid();
  group.broadcast({&pid, 1, DType::int32}, kVictim).wait();
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  group.barrier();
  end_as(rank, rank.arguments[0]);
  pollfd event{pidfd, POLLIN, 0};
  // A stopped process gives no event.
  if (rank.arguments[1] != "1000") poll(&event, 1, 20'000);
  group.barrier(Millis{std::stoi(rank.arguments[1])});
}

// Survivors are in a message, or in an exchange of messages with the victim, when it ends.
RANK_PROGRAM(fail_in_a_message) {
  Group group = join(rank);
  const Millis limit{std::stoi(rank.arguments[1])};
  std::vector<float> data(100'000);
  group.barrier();
  end_as(rank, rank.arguments[0]);
  // One waits for the victim's message, one for it to take a long one, one for anybody's.
  if (rank.rank == 0) group.recv(span_of(std::span(data)), kVictim, 1, limit).wait();
  if (rank.rank == 2) group.send(span_of(std::span(data)), kVictim, 2, limit).wait();
  if (rank.rank == 3) group.recv(span_of(std::span(data)), kAnyRank, 3, limit).wait();
}

RANK_PROGRAM(fail_in_an_exchange) {
  Group group = join(rank);
  const Millis limit{std::stoi(rank.arguments[1])};
  Group part = *group.split(0, -rank.rank);
  std::vector<float> from(400'000), to(400'000);
  for (int step = 0;; ++step) {
    if (step == 5) end_as(rank, rank.arguments[0]);
    part.all_to_all(span_of(std::span(from)), span_of(std::span(to)), {}, {}, limit).wait();
  }
}

struct Fault {
  std::string program, how;
  int signal = 0;
};

class FailureMatrix : public testing::TestWithParam<Fault> {};

TEST_P(FailureMatrix, EverySurvivorNamesTheRank) {
  const Fault& fault = GetParam();
  const bool stopped = fault.signal == SIGSTOP;
  RunOptions options{.limit = Millis{60'000}, .arguments = {fault.how, stopped ? "1000" : "25000"}};
  if (fault.signal != 0) options.kill = {.rank = kVictim, .after = "now", .signal = fault.signal};
  const auto out = run(4, fault.program, options);
  // In the exchange they sit the other way round.
  const bool turned = fault.program == "fail_in_an_exchange";
  for (int r : {0, 2, 3}) {
    EXPECT_EQ(out[r].error_class, stopped ? "Timeout" : "PeerLost") << out[r].log;
    EXPECT_THAT(out[r].error,
                HasSubstr(fmt::format("rank {} (pid {})", turned ? 3 - kVictim : kVictim,
                                      out[kVictim].pid)));
    EXPECT_THAT(out[r].error, HasSubstr(fmt::format("rank {} of 4", turned ? 3 - r : r)));
    EXPECT_FALSE(out[r].timed_out) << "far below the limit of its operation";
    if (stopped && fault.program == "fail_entering") {
      EXPECT_THAT(out[r].error, HasSubstr("which is stopped"));
    }
  }
  if (fault.how == "exit") {
    EXPECT_EQ(out[kVictim].exit_code, 3);
  }
  if (fault.how == "throw") {
    EXPECT_EQ(out[kVictim].error, "my own failure");
  }
}

std::string fault_name(const testing::TestParamInfo<Fault>& info) {
  const int signal = info.param.signal;
  return info.param.program + "_" +
         (signal == SIGKILL   ? "sigkill"
          : signal == SIGSTOP ? "sigstop"
                              : info.param.how);
}

INSTANTIATE_TEST_SUITE_P(
    Shm, FailureMatrix,
    testing::Values(
        Fault{"fail_in_a_message", "exit"}, Fault{"fail_in_a_message", "throw"},
        Fault{"fail_in_a_message", "signal", SIGKILL},
        Fault{"fail_in_a_message", "signal", SIGSTOP}, Fault{"fail_in_an_exchange", "exit"},
        Fault{"fail_in_an_exchange", "throw"}, Fault{"fail_in_an_exchange", "signal", SIGKILL},
        Fault{"fail_in_an_exchange", "signal", SIGSTOP}, Fault{"fail_entering", "exit"},
        Fault{"fail_entering", "throw"}, Fault{"fail_entering", "signal", SIGKILL},
        Fault{"fail_entering", "signal", SIGSTOP}, Fault{"fail_in_the_middle", "exit"},
        Fault{"fail_in_the_middle", "throw"}, Fault{"fail_in_the_middle", "signal", SIGKILL},
        Fault{"fail_in_the_middle", "signal", SIGSTOP}, Fault{"fail_while_others_are_idle", "exit"},
        Fault{"fail_while_others_are_idle", "throw"},
        Fault{"fail_while_others_are_idle", "signal", SIGKILL},
        Fault{"fail_while_others_are_idle", "signal", SIGSTOP}),
    fault_name);

// The victim copies into memory that nobody may write to, and stays there.
const Rank* inside = nullptr;

void stay_inside(int) {
  inside->mark("now");
  while (true) pause();
}

RANK_PROGRAM(fail_inside_a_copy) {
  constexpr int64_t kBytes = 4 << 20;
  Group group = join(rank);
  const SharedParts shared = group.allocate(kBytes);
  MemorySpan data{shared.parts[rank.rank].data, kBytes / 4, DType::float32};
  if (rank.rank == kVictim) {
    inside = &rank;
    std::signal(SIGSEGV, stay_inside);
    data.data = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  group.broadcast(data, 0, Millis{std::stoi(rank.arguments[0])}).wait();
}

// Whoever fails waits until nobody is in its memory; not for one that will never leave it.
TEST(Processes, WhoDiedOrWasStoppedInsideACopyIsNotWaitedFor) {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    const bool stopped = signal == SIGSTOP;
    const auto out = run(3, "fail_inside_a_copy",
                         {.kill = {.rank = kVictim, .after = "now", .signal = signal},
                          .limit = kDefaultTimeLimit * 2 / 3,
                          .arguments = {stopped ? "1000" : "60000"}});
    for (int r : {0, 2}) {
      EXPECT_EQ(out[r].error_class, stopped ? "Timeout" : "PeerLost") << out[r].log;
      EXPECT_THAT(out[r].error, HasSubstr(fmt::format("rank 1 (pid {})", out[kVictim].pid)));
    }
  }
}

RANK_PROGRAM(says_all_threads) {
  (void)make_shm(ShmSegment::open(rank.descriptors[0]), rank.rank, true);
}

TEST(Processes, CannotPassAsThreads) {
  for (const auto& rank : run(2, "says_all_threads")) {
    EXPECT_EQ(rank.error_class, "UsageError") << rank.log;
    EXPECT_THAT(rank.error, HasSubstr("is in another process"));
  }
}

}  // namespace
}  // namespace tutti
