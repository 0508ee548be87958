// Ranks of a tcp group as processes over real sockets: results, and the failure matrix {entering,
// in the middle, idle} x {kill, exit, throw, stop, garbage}. Every survivor names the culprit.
#include <unistd.h>

#include <cstring>

#include "tutti/comm/group/group.h"

#include "tests/support/expect.h"
#include "tests/support/reduce_oracle.h"
#include "tests/support/tcp_processes.h"

namespace tutti {
namespace {

RANK_PROGRAM(tcp_reduce) {
  Group group(make_tcp(std::move(connect_processes(rank).links)));
  for (int64_t n : {1, 10, 5'000, 100'003}) {
    std::vector<Bytes> inputs;
    for (int r = 0; r < rank.size; ++r) inputs.push_back(ordinary_values(DType::float32, n, 21, r));
    Bytes data = inputs[rank.rank];
    group.all_reduce({data.data(), n, DType::float32}, ReduceOp::mean).wait();
    const Bytes expected =
        test::oracle(DType::float32, ReduceOp::mean, ReductionShape::flat(rank.size), inputs);
    const auto difference = test::first_difference(DType::float32, data.data(), expected.data(), n);
    if (!difference.empty()) throw Error(difference);
  }
}

TEST(TcpProcesses, GiveTheBitsOfTheOracle) {
  for (int size : {2, 3})
    for (const auto& rank : run_tcp_ranks(size, "tcp_reduce"))
      EXPECT_EQ(rank.exit_code, 0) << rank.log;
}

constexpr int kTcpVictim = 1;

// How the victim ends, when the test does not kill or stop it.
void end_as(const Rank& rank, const ProcessLinks& links) {
  const std::string& how = rank.arguments[1];
  rank.mark("now");
  if (how == "exit") std::_Exit(3);
  if (how == "throw") throw Error("my own failure");
  if (how == "garbage") {
    const std::string bytes(500, 'x');
    for (const auto* sockets : {&links.data, &links.control})
      for (int socket : *sockets)
        if (socket >= 0) (void)!send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    for (int socket : links.control) {  // until the survivors have given it up
      if (socket < 0) continue;
      pollfd one{socket, POLLIN, 0};
      char byte;
      do {
        errno = 0;
        poll(&one, 1, static_cast<int>(test::kMeetingLimit.count()));
      } while (recv(socket, &byte, 1, 0) > 0 || errno == EAGAIN);
    }
    std::_Exit(0);
  }
  while (true) pause();
}

// arguments: when, how, the limit of the operation in ms.
RANK_PROGRAM(tcp_fail) {
  ProcessLinks links = connect_processes(rank);
  const auto engine = make_tcp(std::move(links.links));
  Group group(engine);
  group.barrier();
  const std::string& when = rank.arguments[0];
  const Millis limit{std::stoi(rank.arguments[2])};
  std::vector<float> data(when == "middle" ? 8'000'000 : 100'000);
  if (when == "idle" && rank.rank != kTcpVictim) {
    // Nothing of the victim is waited for; it ends the group nevertheless.
    group.recv(span_of(std::span(data)), rank.rank == 0 ? 2 : 0, 0, limit).wait();
    return;
  }
  if (rank.rank == kTcpVictim && when != "middle") end_as(rank, links);
  Work work = group.all_reduce(span_of(std::span(data)), ReduceOp::sum, limit);
  if (rank.rank == kTcpVictim) end_as(rank, links);
  work.wait();
}

struct Ending {
  const char* how;
  int signal;
  const char* error_class;
  const char* words;
};

constexpr Ending kEndings[] = {
    {"kill", SIGKILL, "PeerLost", "look first at the last lines of its log"},
    {"exit", 0, "PeerLost", "look first at the last lines of its log"},
    {"throw", 0, "PeerLost", "rank 1 left the group"},
    {"garbage", 0, "PeerLost", "rank 1 sent what is no frame"},
    {"stop", SIGSTOP, "Timeout", "silent: rank 1"},
};

class TcpFailures : public testing::TestWithParam<const char*> {};

TEST_P(TcpFailures, EverySurvivorNamesTheCulprit) {
  for (const Ending& ending : kEndings) {
    const bool stops = ending.signal == SIGSTOP;
    // A rank that is silent, or has left in order, matters only to those who wait for it.
    const bool unnoticed = stops || std::string(ending.how) == "throw";
    if (unnoticed && std::string(GetParam()) == "idle") continue;
    RunOptions options{.arguments = {GetParam(), ending.how, stops ? "400" : "30000"}};
    if (ending.signal != 0)
      options.kill = {.rank = kTcpVictim, .after = "now", .signal = ending.signal};
    const auto ranks = run_tcp_ranks(3, "tcp_fail", options);
    for (int r : {0, 2}) {
      EXPECT_EQ(ranks[r].error_class, ending.error_class) << ending.how << "\n" << ranks[r].log;
      EXPECT_THAT(ranks[r].error, AllOf(HasSubstr("rank 1"), HasSubstr(ending.words)))
          << ending.how;
      EXPECT_FALSE(ranks[r].timed_out) << ending.how;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(When, TcpFailures, testing::Values("entering", "middle", "idle"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tutti
