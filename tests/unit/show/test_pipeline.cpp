// `tutti show pipeline`: what ranks did, against the schedule that they were given.
#include "tutti/cli/show/pipeline.h"

#include "tests/unit/show/made_events.h"
#include "tests/unit/show/shown_files.h"

namespace tutti::cli {
namespace {

std::string order_of(const std::vector<mesh::Action>& actions) {
  std::string text;
  for (const mesh::Action& action : actions)
    text += (text.empty() ? "" : ",") + std::string(1, mesh::letter_of(action.kind)) +
            std::to_string(action.microbatch);
  return text;
}

TEST(ShowPipeline, RanksDoWhatTheScheduleSays) {
  for (const char* name : {"1f1b", "gpipe", "zb-h1"}) {
    const auto schedule = mesh::schedule_by_name(name, {.ranks = 2, .microbatches = 4});
    const Shown shown = pipeline_shown(run_pipeline(schedule));
    const OrderedJson& got = shown.figures;
    for (size_t rank = 0; rank < 2; ++rank)
      EXPECT_EQ(got.at("order").at(rank), order_of(schedule.actions[rank])) << name;
    // 4 outputs to rank 1, 4 gradients back.
    EXPECT_EQ(shown.drawing.arrows.size(), 8u) << name;
    for (const auto& arrow : shown.drawing.arrows) EXPECT_LE(arrow.begin, arrow.end);
  }
}

TEST(ShowPipeline, OneForwardOneBackwardByHand) {
  const auto schedule = mesh::schedule_by_name("1f1b", {.ranks = 2, .microbatches = 4});
  const OrderedJson got = pipeline_shown(run_pipeline(schedule)).figures;
  EXPECT_EQ(got.at("order").at(0), "F0,F1,B0,F2,B1,F3,B2,B3");
  EXPECT_EQ(got.at("order").at(1), "F0,B0,F1,B1,F2,B2,F3,B3");
  EXPECT_DOUBLE_EQ(got.at("idle_by_schedule").get<double>(), 0.2) << "(p - 1) / (m + p - 1)";
  // An action begins after what it needs has ended on the other rank.
  const auto when = [&](int stage, const char* what, int microbatch, const char* field) {
    for (const auto& one : got.at("actions"))
      if (one.at("stage") == stage && one.at("what") == what && one.at("microbatch") == microbatch)
        return one.at(field).get<double>();
    ADD_FAILURE() << what << microbatch << " of stage " << stage << " is missing";
    return 0.0;
  };
  for (int i = 0; i < 4; ++i) {
    EXPECT_GE(when(1, "F", i, "begin_us"), when(0, "F", i, "end_us"));
    EXPECT_GE(when(0, "B", i, "begin_us"), when(1, "B", i, "end_us"));
  }
}

// A rank that waits for a core does not compute meanwhile.
TEST(ShowPipeline, ComputedIsTimeOnACore) {
  PipelineTrace trace{.schedule = mesh::schedule_by_name("gpipe", {.ranks = 2, .microbatches = 1}),
                      .events = {}};
  const auto add = [&](const char* name, double when_us, double us, double cpu_us, int stage) {
    trace.events.push_back(
        test::made_event(name, when_us, us, {{"stage", stage}, {"microbatch", 0}}));
    trace.events.back().fields.emplace("cpu_us", cpu_us);
  };
  add("pipeline.F", 100, 100, 30, 0);
  add("pipeline.waited", 100, 100, 5, 1);
  add("pipeline.F", 200, 100, 100, 1);
  add("pipeline.B", 300, 100, 60, 1);
  add("pipeline.waited", 300, 200, 5, 0);
  add("pipeline.B", 400, 100, 50, 0);
  const OrderedJson got = pipeline_shown(trace).figures;
  EXPECT_EQ(got.at("busy_us"), OrderedJson({80, 160}));
  EXPECT_EQ(got.at("without_core_us"), OrderedJson({120, 40}));
  EXPECT_EQ(got.at("waited_us"), OrderedJson({200, 100}));
  EXPECT_DOUBLE_EQ(got.at("idle").get<double>(), 1 - 240.0 / 800);
}

TEST(ShowPipeline, WhatIsOnACoreIsPartOfTheTimeThatItTakes) {
  const auto schedule = mesh::schedule_by_name("1f1b", {.ranks = 2, .microbatches = 2});
  for (const auto& event : run_pipeline(schedule).events) {
    EXPECT_LE(event.real("cpu_us"), event.real("us") + 1000) << event.name;  // clocks tick apart
    if (event.name != "pipeline.waited") {
      EXPECT_GT(event.real("cpu_us"), 0) << event.name;
    }
  }
}

TEST(ShowPipeline, TheProgramDrawsIt) {
  const ShownFiles files("pipeline -n 3 --microbatches 3");
  EXPECT_THAT(files.result.out, HasSubstr("rank 0 -> rank 1: output of microbatch 0"));
  EXPECT_THAT(files.result.out, HasSubstr("rank 2 -> rank 1: gradient of microbatch 0"));
  files.expect_xml();
}

}  // namespace
}  // namespace tutti::cli
