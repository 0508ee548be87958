// `tutti show ring`: what its trace says, against the schedule, and its answers.
#include <cmath>

#include "tutti/base/file.h"
#include "tutti/cli/show/ring.h"
#include "tutti/comm/schedule/schedule.h"

#include "tests/unit/show/shown_files.h"

namespace tutti::cli {
namespace {

// Step, sender, receiver and piece of each send, as the pure schedule has them.
std::vector<std::array<int64_t, 4>> scheduled(int n, int64_t elements) {
  std::vector<std::array<int64_t, 4>> all;
  for (int rank = 0; rank < n; ++rank) {
    const Schedule schedule({.collective = Collective::all_reduce,
                             .algorithm = Algorithm::ring,
                             .rank = rank,
                             .size = n,
                             .num_elements = elements});
    std::vector<Step> steps;
    for (int64_t round = 0; round < schedule.num_rounds(); ++round) {
      schedule.round(round, steps);
      for (const Step& step : steps)
        if (step.action == Step::Action::send)
          all.push_back({round + 1, rank, step.peer, step.begin * n / elements});
    }
  }
  std::ranges::sort(all);
  return all;
}

TEST(ShowRing, TheTraceIsTheSchedule) {
  for (const int n : {2, 3, 5, 12}) {
    const RingTrace trace = run_ring(n, 10'000);
    EXPECT_TRUE(trace.correct);
    EXPECT_EQ(trace.bytes % (4 * n), 0);
    const Shown shown = ring_shown(trace);
    std::vector<std::array<int64_t, 4>> got;
    for (const auto& one : shown.figures.at("messages"))
      got.push_back({one.at("step").get<int64_t>(), one.at("from").get<int64_t>(),
                     one.at("to").get<int64_t>(), one.at("piece").get<int64_t>()});
    std::ranges::sort(got);
    EXPECT_EQ(got, scheduled(n, trace.bytes / 4)) << n;
    EXPECT_EQ(shown.drawing.arrows.size(), 2u * static_cast<size_t>(n * (n - 1)));
    EXPECT_EQ(shown.drawing.ticks.size(), 2u * static_cast<size_t>(n - 1));
  }
}

TEST(ShowRing, BytesAreThoseOfTheFormula) {
  for (const int n : {2, 5}) {
    const RingTrace trace = run_ring(n, int64_t{n} * 4000);
    const Shown shown = ring_shown(trace);
    for (const auto& sent : shown.figures.at("sent_bytes"))
      EXPECT_EQ(sent.get<int64_t>(), 2 * (n - 1) * trace.bytes / n);
    EXPECT_EQ(shown.figures.at("formula_bytes").get<double>(),
              2.0 * (n - 1) / n * static_cast<double>(trace.bytes));
  }
}

TEST(ShowRing, NothingIsReceivedBeforeItIsSent) {
  const Shown shown = ring_shown(run_ring(4, 100'000));
  for (const auto& one : shown.figures.at("messages")) {
    EXPECT_GE(one.at("received_us").get<double>(), one.at("sent_us").get<double>());
    EXPECT_GE(one.at("waited_us").get<double>(), 0);
  }
}

TEST(ShowRing, FiveShowFourStepsOfEachPhase) {
  const ShownFiles files("ring -n 5 --bytes 64K");
  EXPECT_EQ(files.figures.at("scatter_reduce_steps"), 4);
  EXPECT_EQ(files.figures.at("all_gather_steps"), 4);
  EXPECT_EQ(files.figures.at("correct"), true);
  EXPECT_THAT(files.result.out, HasSubstr("step 8 (8 of 8)"));
  EXPECT_THAT(files.result.out, HasSubstr("rank 4 -> rank 0: piece 4, added there"));
  EXPECT_THAT(files.result.out, HasSubstr("2(n-1)/n S"));
  EXPECT_THAT(files.result.out, Not(HasSubstr("\x1b"))) << "no terminal, no animation";
  files.expect_xml();
}

}  // namespace
}  // namespace tutti::cli
