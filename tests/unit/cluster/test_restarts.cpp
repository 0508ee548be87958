// Whether a job that failed starts again: stories of lives, with what is decided after each.
#include <csignal>

#include "tutti/cluster/launch/restarts.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;

/// A life that ended with worker 1, in this step.
LaunchResult life(int64_t step, const std::string& error_class = "error") {
  LaunchResult result{.exit_code = 1, .root_cause = "rank 1 exited with code 1", .root_worker = 1};
  result.workers = {{.worker = 0, .exit_code = 1, .error_class = "PeerLost", .step = step + 1},
                    {.worker = 1, .exit_code = 1, .error_class = error_class, .step = step}};
  return result;
}

LaunchResult life_in(int64_t training, int64_t step) {
  LaunchResult result = life(step);
  for (WorkerResult& worker : result.workers) worker.training = training;
  return result;
}

LaunchResult life_with_signal(int64_t step) {
  LaunchResult result = life(step);
  result.signal = SIGTERM;
  return result;
}

LaunchResult life_elsewhere() {
  LaunchResult result = life(3);
  result.root_worker = -1;
  return result;
}

constexpr Millis kEnd{-1};
constexpr int64_t kNoStep = -1;

struct Story {
  const char* name;
  int most;
  std::vector<LaunchResult> lives;
  std::vector<Millis> pauses;  // kEnd: it ends
  const char* words;           // that come last
};

TEST(Restarts, Stories) {
  const Story stories[] = {
      {"none asked for", 0, {life(3)}, {kEnd}, ""},
      {"success", 3, {LaunchResult{}}, {kEnd}, ""},
      {"each life came further", 3, {life(3), life(7), life(9)}, {1s, 1s, 1s}, "(3 of 3) in 1 s"},
      {"not further: it waits longer", 3, {life(9), life(7), life(8)}, {1s, 2s, 4s}, "in 4 s"},
      {"at most a minute",
       9,
       std::vector<LaunchResult>(8, life(kNoStep)),
       {1s, 2s, 4s, 8s, 16s, 32s, 60s, 60s},
       "the whole job is started again (8 of 9) in 60 s"},
      {"so often and no more",
       2,
       {life(1), life(2), life(3)},
       {1s, 1s, kEnd},
       "none of its 2 restarts is left"},
      {"a step that fails always",
       3,
       {life(7), life(7)},
       {1s, kEnd},
       "step 7 has failed for the second time: the job is not started again"},
      {"the same step of another training",
       3,
       {life_in(1, 5), life_in(2, 5), life_in(3, 2)},
       {1s, 1s, 1s},
       "(3 of 3) in 1 s"},
      {"a step of the second training that fails always",
       3,
       {life_in(2, 5), life_in(2, 5)},
       {1s, kEnd},
       "step 5 of training 2 has failed for the second time"},
      {"and one that fails again later", 9, {life(7), life(9), life(7)}, {1s, 1s, kEnd}, "step 7"},
      {"the last restart, too", 1, {life(7), life(7)}, {1s, kEnd}, "for the second time"},
      {"no step is not the same step", 3, {life(kNoStep), life(kNoStep)}, {1s, 2s}, "(2 of 3)"},
      {"wrong use stays wrong", 3, {life(1, "UsageError")}, {kEnd}, ""},
      {"so does a damaged file", 3, {life(1, "DataError")}, {kEnd}, ""},
      {"it was asked to end", 3, {life(1, "Interrupted")}, {kEnd}, ""},
      {"and by a signal after it had failed", 3, {life_with_signal(1)}, {kEnd}, ""},
      {"the cause is on another node", 3, {life_elsewhere()}, {kEnd}, ""},
  };
  for (const Story& story : stories) {
    Restarts restarts(story.most);
    std::vector<Millis> pauses;
    std::string words;
    for (const LaunchResult& one : story.lives) {
      const auto verdict = restarts.after(one);
      pauses.push_back(verdict.again ? verdict.pause : kEnd);
      words = verdict.words;
    }
    EXPECT_EQ(pauses, story.pauses) << story.name;
    EXPECT_THAT(words, HasSubstr(story.words)) << story.name;
    if (*story.words == '\0') {
      EXPECT_EQ(words, "") << story.name;
    }
  }
}

TEST(Restarts, SayWhereALifeEnded) {
  EXPECT_EQ(Restarts(3).after(life(7)).words,
            "that was in step 7; the whole job is started again (1 of 3) in 1 s");
  EXPECT_EQ(Restarts(3).after(life_in(1, 7)).words,
            "that was in step 7; the whole job is started again (1 of 3) in 1 s");
  EXPECT_EQ(Restarts(3).after(life_in(2, 7)).words,
            "that was in step 7 of training 2; the whole job is started again (1 of 3) in 1 s");
  EXPECT_EQ(Restarts(3).after(life(kNoStep)).words,
            "the whole job is started again (1 of 3) in 1 s");
}

}  // namespace
}  // namespace tutti
