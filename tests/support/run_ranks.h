/// Runs ranks of a test as processes of their own: the test binary itself, started by exec, so that
/// no thread of LibTorch or OpenMP is lost in a bare fork.
///
///   RANK_PROGRAM(loop_all_reduce) { ... rank.rank, rank.size, rank.descriptors[0] ... }
///
///   TEST(ShmEngine, SurvivorsNameTheDeadRank) {
///     auto out = run_ranks(4, "loop_all_reduce", {.kill = {.rank = 2, .after = "step 3"}});
///     EXPECT_EQ(out[2].signal, SIGKILL);
///     for (int r : {0, 1, 3}) EXPECT_THAT(out[r].error, HasSubstr("rank 2")) << out[r].log;
///   }
///
/// A program ends with exit code 0 when it returns, 1 when it throws (kept in `error`), or as it
/// dies. Every test binary has the main() of rank_main.cpp, which runs the named program instead of
/// the tests when run_ranks asks for it.
#pragma once

#include <csignal>
#include <functional>
#include <string>
#include <vector>

#include "tutti/base/deadline.h"

namespace tutti::test {

/// What a rank program knows of itself.
struct Rank {
  int rank = 0;
  int size = 1;
  std::vector<int> descriptors;        ///< those of RunOptions, under numbers of this process
  std::vector<std::string> arguments;  ///< those of RunOptions

  /// Prints a line at once: what RunOptions::kill.after waits for.
  void mark(const std::string& line) const;
};

using RankProgram = std::function<void(const Rank&)>;

struct KillPlan {
  int rank = -1;         ///< whom; -1 nobody
  std::string after;     ///< once this rank has printed a line that contains this; "" at start
  int signal = SIGKILL;  ///< or SIGSTOP, ... A stopped rank is killed when all others have ended.
                         ///< 0: none is sent
  std::function<void()> then{};  ///< called at that moment too, while the ranks go on
};

struct RunOptions {
  KillPlan kill{};
  Millis limit{60'000};          ///< for all ranks together; then all are killed
  std::vector<int> descriptors;  ///< inherited by every rank (memfd, sockets)
  std::vector<std::string> arguments;
  std::vector<std::string> environment;  ///< extra NAME=value
};

struct RankOutcome {
  int pid = 0;
  int exit_code = -1;  ///< when it exited
  int signal = 0;      ///< when it was killed by one
  std::string error;   ///< what() of the exception that ended it
  std::string
      error_class;  ///< "PeerLost", "Timeout", "Mismatch", "UsageError", ..., "std::exception"
  std::string log;  ///< all it printed, stdout and stderr together
  bool timed_out = false;          ///< killed at the limit
  double seconds_after_kill = -1;  ///< how long it lived after the planned kill; -1 without one
};

/// Starts `size` ranks of `program`, waits for all of them, and leaves no process behind.
std::vector<RankOutcome> run_ranks(int size, const std::string& program,
                                   const RunOptions& options = {});

/// Registers a program under a name; RANK_PROGRAM does this.
struct RegisterRankProgram {
  RegisterRankProgram(const char* name, RankProgram program);
};

/// Runs the program that the environment names and returns its exit code; -1 when none is named.
int run_named_rank_program();

}  // namespace tutti::test

/// Defines and registers a rank program; the body sees `const Rank& rank`.
#define RANK_PROGRAM(name)                                                      \
  static void rank_program_##name(const ::tutti::test::Rank& rank);             \
  static const ::tutti::test::RegisterRankProgram register_rank_program_##name( \
      #name, rank_program_##name);                                              \
  static void rank_program_##name([[maybe_unused]] const ::tutti::test::Rank& rank)
