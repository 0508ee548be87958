// A rank of a mesh that dies or hangs is named by every other one, and nobody waits longer than the
// limit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

#include "tutti/base/event.h"

#include "tests/ranks/mesh/mesh_training.h"
#include "tests/ranks/train/slow_disk.h"
#include "tests/support/run_workers.h"
#include "tests/support/temp_folder.h"

namespace tutti {
namespace {

using test::MeshCase;
using ::testing::Each;
using ::testing::HasSubstr;

/// Sends this process a signal at an event of the second step.
class SignalAt final : public Sink {
 public:
  SignalAt(std::string name, int64_t after, int signal)
      : name_(std::move(name)), after_(after), signal_(signal) {}
  void on_event(const Event& event) noexcept override {
    if (event.name == name_ && ++seen_ == after_) ::raise(signal_);
  }

 private:
  std::string name_;
  int64_t after_;
  int signal_;
  std::atomic<int64_t> seen_{0};
};

struct Phase {
  const char* name;
  const char* event;  ///< or fsync(): a part of a checkpoint is written, and has not its name yet
  int64_t after;      ///< so many of them
};
/// Of a rank with one stage and 4 microbatches.
const std::vector<Phase>& phases() {
  static const std::vector<Phase> all{{"forward", "pipeline.F", 6},
                                      {"backward", "pipeline.B", 6},
                                      {"update", "sync.exchange", 2},
                                      {"checkpoint", "train.step", 2},
                                      {"save", "fsync()", 3}};
  return all;
}

constexpr Millis kLimit{3'000};

/// arguments: a case in a word, a folder, the victim, the number of the phase, the signal.
RANK_PROGRAM(train_and_fail) {
  const MeshCase one = MeshCase::from(rank.arguments[0]);
  const Phase& phase = phases()[std::stoul(rank.arguments[3])];
  const int signal = std::stoi(rank.arguments[4]);
  if (rank.rank == std::stoi(rank.arguments[2])) {
    if (phase.event == std::string_view("fsync()"))
      test::signal_in_fsync(static_cast<int>(phase.after), signal);
    else
      add_sink(std::make_shared<SignalAt>(phase.event, phase.after, signal));
  }
  StrategyOptions options = test::options_of("multi_worker", one);
  options.time_limit = kLimit;
  Model model = test::make_model(Strategy(options), one, test::small_gpt());
  try {
    model.fit(test::small_text(),
              {.epochs = 4,
               .verbose = 0,
               .microbatches = one.microbatches,
               .checkpoints = {.folder = rank.arguments[1], .every_steps = 1, .resume = true}});
    rank.mark("trained");
  } catch (const std::exception& error) {
    std::string words = error.what();
    std::ranges::replace(words, '\n', ' ');
    rank.mark("error " + words);
  }
}

struct Failure {
  MeshCase mesh;
  int workers;
  int victim;
  size_t phase;
  int signal;
};

struct Layout {
  MeshCase mesh;
  int workers;
  std::vector<int> victims;
};

/// Each kill, and of the stops, which take the limit, one a phase; with TUTTI_ALL_FAILURES all.
std::vector<Failure> failures() {
  const bool every = std::getenv("TUTTI_ALL_FAILURES") != nullptr;
  const std::vector<Layout> layouts{
      {{.mesh = "data=2,stage=2", .microbatches = 4, .shard = "parameters"},
       4,
       every ? std::vector{0, 1, 2, 3} : std::vector{2}},
      {{"stage=3", 4}, 3, {0, 1, 2}},
      {{"tensor=2", 4}, 2, {0, 1}},
      {{"stage=2,tensor=2", 4, "zb-h1"}, 4, {2}}};
  std::vector<Failure> all;
  for (size_t phase = 0; phase < phases().size(); ++phase) {
    std::vector<Failure> stops;
    for (const auto& [mesh, workers, victims] : layouts)
      for (const int victim : victims) {
        all.push_back({mesh, workers, victim, phase, SIGKILL});
        stops.push_back({mesh, workers, victim, phase, SIGSTOP});
      }
    const auto last = stops.rbegin() + static_cast<std::ptrdiff_t>(phase % stops.size());
    all.insert(all.end(), every ? stops.rbegin() : last, every ? stops.rend() : last + 1);
  }
  return all;
}

class MeshFailure : public ::testing::TestWithParam<Failure> {};

TEST_P(MeshFailure, IsNamedByEverybody) {
  const auto& [mesh, workers, victim, phase, signal] = GetParam();
  const test::TempFolder folder;
  // A single wait that was not given the limit would take longer.
  const auto out = test::run_workers(workers, "train_and_fail",
                                     {mesh.word(), folder.path(), std::to_string(victim),
                                      std::to_string(phase), std::to_string(signal)},
                                     {}, /*end_on_failure=*/false, kDefaultTimeLimit);
  EXPECT_FALSE(out.timed_out) << out.log;
  const auto pids = test::lines_after(out.log, fmt::format("worker {} pid ", victim));
  ASSERT_EQ(pids.size(), 1U) << out.log;
  const auto errors = test::lines_after(out.log, "error ");
  EXPECT_EQ(std::ssize(errors), workers - 1) << out.log;
  EXPECT_THAT(errors,
              Each(HasSubstr(fmt::format("(pid {}){}", pids[0],
                                         signal == SIGKILL ? " died" : ", which is stopped"))))
      << out.log;
  EXPECT_THAT(test::lines_after(out.log, "trained"), ::testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Matrix, MeshFailure, ::testing::ValuesIn(failures()),
                         [](const auto& info) {
                           std::string name =
                               fmt::format("{}_{}_{}_{}", info.param.mesh.mesh, info.param.victim,
                                           phases()[info.param.phase].name,
                                           info.param.signal == SIGKILL ? "killed" : "stopped");
                           std::erase_if(name, [](char c) {
                             return c != '_' && !std::isalnum(static_cast<unsigned char>(c));
                           });
                           return name;
                         });

}  // namespace
}  // namespace tutti
