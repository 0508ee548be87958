// Records of runs: the traces of made-up trainings are read as what was put into them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/extras/replay/run_record.h"

#include "tests/support/message_of.h"
#include "tests/support/temp_folder.h"

namespace tutti::plan {
namespace {

using nlohmann::json;
using test::message_of;
using test::put_bytes;
using test::TempFolder;
using ::testing::AllOf;
using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

/// Traces of `processes` workers with `local` replicas each, `steps` in each of two epochs.
struct MadeUp {
  int processes = 2, local = 1;
  int64_t steps = 3;
  json training = {{"strategy", "multi_worker"},
                   {"model_ranks", 1},
                   {"in_turn", 0},
                   {"on_devices", 0},
                   {"shard", ""},
                   {"shares", ""}};
  bool one_machine = true;  ///< else each worker has its own, with a clock of its own

  int ranks() const { return processes * local; }
  /// Milliseconds from a step's begin until a rank was there.
  static double there(int rank, int64_t step) {
    return 10 + 3 * rank + static_cast<double>((step * 7 + rank) % 5);
  }
  static constexpr double kFollows = 4;  ///< milliseconds

  double step_length(int64_t step) const {
    double last = 0;
    for (int rank = 0; rank < ranks(); ++rank) last = std::max(last, there(rank, step));
    return last + kFollows;
  }

  json trace(int worker) const {
    json events = {{{"name", "process_name"}, {"ph", "M"}, {"pid", worker}, {"args", json()}}};
    json facts = training;
    facts["ranks"] = ranks();
    facts["machine"] = one_machine ? "here" : "host " + std::to_string(worker);
    const double clock = one_machine ? 5 : 5 + 1e6 * worker;
    double now = clock;
    events.push_back({{"name", "train.begin"}, {"ph", "i"}, {"ts", 1e3 * now}, {"args", facts}});
    for (int64_t step = 0; step < 2 * steps; ++step) {
      if (step == steps) now += 1000;  // what lies between epochs
      add_step(events, worker, step, now);
      now += step_length(step);
    }
    return {{"displayTimeUnit", "ms"}, {"leftOut", 0}, {"traceEvents", events}};
  }

  void write(const TempFolder& folder) const {
    for (int worker = 0; worker < processes; ++worker)
      put_bytes(folder / file_of(worker), text_of(trace(worker)));
  }
  static std::string file_of(int worker) { return "run." + std::to_string(worker) + ".json"; }

  // As Trace writes it: what the trace is stands before its events.
  static std::string text_of(const json& trace) {
    return R"({"displayTimeUnit":"ms","leftOut":)" + trace.at("leftOut").dump() +
           R"(,"traceEvents":)" + trace.at("traceEvents").dump() + "}\n";
  }

 private:
  static json bar(const char* name, double begin_ms, double ms, const json& arguments) {
    return {{"name", name},
            {"ph", "X"},
            {"ts", 1e3 * begin_ms},
            {"dur", 1e3 * ms},
            {"args", arguments}};
  }

  void add_step(json& events, int worker, int64_t step, double now) const {
    events.push_back(bar("train.step", now, step_length(step),
                         {{"step", step % steps}, {"samples", 100 + step}}));
    for (int i = 0; i < local; ++i) {
      const int rank = worker * local + i;
      const json replica = {{"replica", rank}};
      const double done = there(rank, step);
      events.push_back(bar("train.forward", now, 2, replica));
      if (step % 2 == 0) {  // accumulates: the last backward counts
        events.push_back(bar("sync.backward", now + 2, 1, replica));
        events.push_back(bar("sync.backward", now + 3, done - 3, replica));
        events.push_back(bar("sync.exchange", now + done + 0.5, 1, replica));
      } else {  // has no samples
        events.push_back(bar("sync.exchange", now + done, 1, replica));
      }
    }
  }
};

void expect_as_made(const RunRecord& record, const MadeUp& run) {
  ASSERT_EQ(record.ranks(), run.ranks());
  ASSERT_EQ(record.steps.size(), static_cast<size_t>(2 * run.steps));
  EXPECT_TRUE(record.whole);
  for (int64_t step = 0; step < 2 * run.steps; ++step) {
    const RunStep& read = record.steps[static_cast<size_t>(step)];
    EXPECT_EQ(read.samples, 100 + step);
    EXPECT_NEAR(read.seconds, 1e-3 * run.step_length(step), 1e-8);
    std::vector<double> there;
    for (int rank = 0; rank < run.ranks(); ++rank)
      there.push_back(1e-3 * MadeUp::there(rank, step));
    EXPECT_THAT(read.there, Pointwise(DoubleNear(1e-8), there)) << "step " << step;
  }
}

TEST(RunRecord, IsWhatEachRankDid) {
  for (const auto& [processes, local] : {std::pair{1, 1}, {4, 1}, {1, 3}, {2, 2}})
    for (const bool one_machine : {true, false}) {
      const TempFolder folder;
      const MadeUp run{.processes = processes, .local = local, .one_machine = one_machine};
      run.write(folder);
      put_bytes(folder / "data.json", R"({"kind": "what else lies there"})");
      const RunRecord record = read_run(folder.path());
      EXPECT_EQ(record.strategy, "multi_worker");
      expect_as_made(record, run);
      EXPECT_THAT(record.shares, testing::Each(1.0 / run.ranks()));
    }
}

TEST(RunRecord, HasUnequalShares) {
  const TempFolder folder;
  MadeUp run;
  run.training["shares"] = "3,1";
  run.write(folder);
  EXPECT_THAT(read_run(folder.path()).shares, testing::ElementsAre(0.75, 0.25));
}

TEST(RunRecord, WhatIsBeforeItsTrainingDoesNotCount) {
  const TempFolder folder;
  const MadeUp run{.processes = 1};
  json trace = run.trace(0);
  const json before = {
      {"name", "sync.exchange"}, {"ph", "X"}, {"ts", 0}, {"dur", 1}, {"args", {{"replica", 0}}}};
  trace["traceEvents"].insert(trace["traceEvents"].begin() + 1, before);
  put_bytes(folder / "run.json", MadeUp::text_of(trace));
  expect_as_made(read_run(folder.path()), run);
}

TEST(RunRecord, OfSharesThatAreNoneIsRefused) {
  for (const char* shares : {"1", "1,x", "0,1", "1,1,1"}) {
    const TempFolder folder;
    MadeUp run;
    run.training["shares"] = shares;
    run.write(folder);
    EXPECT_THAT(message_of<DataError>([&] { read_run(folder.path()); }),
                HasSubstr("expected 2 numbers above 0"))
        << shares;
  }
}

TEST(RunRecord, EndsWhereTheFirstTraceEnds) {
  const TempFolder folder;
  const MadeUp run;
  run.write(folder);
  json full = run.trace(1);
  full["leftOut"] = 7;
  json& events = full["traceEvents"];
  size_t steps = 0;
  for (size_t i = 0; i < events.size(); ++i)
    if (events[i]["name"] == "train.step" && ++steps == 3)
      events.erase(events.begin() + static_cast<int64_t>(i), events.end());
  put_bytes(folder / MadeUp::file_of(1), MadeUp::text_of(full));
  const RunRecord record = read_run(folder.path());
  EXPECT_FALSE(record.whole);
  EXPECT_EQ(record.steps.size(), 2U);
}

TEST(RunRecord, AFolderWithoutOneIsNamed) {
  const TempFolder folder;
  const std::string path = folder.path().string();
  const auto answer = [](const std::filesystem::path& where) {
    return message_of<UsageError>([&] { read_run(where); });
  };
  EXPECT_THAT(answer(folder / "none"),
              AllOf(HasSubstr("RUN_DIR " + path + "/none: got nothing there"),
                    HasSubstr("--trace " + path + "/none/trace.json")));
  EXPECT_THAT(answer(folder.path()), AllOf(HasSubstr("got a folder without a record"),
                                           HasSubstr("expected one NAME.json a worker")));
  put_bytes(folder / "figures.json", R"({"images_per_second": 3})");
  EXPECT_THAT(answer(folder.path()), HasSubstr("without a record"));
  EXPECT_THAT(answer(folder / "figures.json"), HasSubstr("got a file, expected the folder"));
}

TEST(RunRecord, TrainingsThatCannotBeReplayedAreRefused) {
  const struct {
    const char* fact;
    json value;
    const char* why;
  } cases[] = {{"strategy", "parameter_server", "wait for parameters within forward"},
               {"in_turn", 1, "take turns"},
               {"on_devices", 1, "GPUs computed"},
               {"model_ranks", 2, "parts of one model"},
               {"shard", "parameters", "waited for parameters"}};
  for (const auto& [fact, value, why] : cases) {
    const TempFolder folder;
    MadeUp run;
    run.training[fact] = value;
    run.write(folder);
    EXPECT_THAT(message_of<UsageError>([&] { read_run(folder.path()); }),
                AllOf(HasSubstr(why), HasSubstr("expected one of mirrored")))
        << fact;
  }
}

TEST(RunRecord, WhatIsNoRunIsRefused) {
  using Spoil = std::function<void(json&)>;
  const auto without = [](const std::string& name) -> Spoil {
    return [name](json& trace) {
      json kept = json::array();
      for (const json& event : trace["traceEvents"])
        if (event["name"] != name) kept.push_back(event);
      trace["traceEvents"] = kept;
    };
  };
  const auto of_event = [](const std::string& name,
                           const std::function<void(json&)>& change) -> Spoil {
    return [name, change](json& trace) {
      for (json& event : trace["traceEvents"])
        if (event["name"] == name) return change(event);
    };
  };
  const struct {
    const char* name;
    Spoil spoil;
    const char* answer;
  } cases[] = {
      {"no training", without("train.begin"), "no training begins in it"},
      {"no steps", without("train.step"), "no step of a training ends in it"},
      {"no exchange", without("sync.exchange"), "nothing of rank 1 of 2"},
      {"no samples", of_event("train.step", [](json& event) { event["args"].erase("samples"); }),
       "a damaged trace"},
      {"no length", of_event("sync.backward", [](json& event) { event["dur"] = "long"; }),
       "a damaged trace"},
      {"a length of ages", of_event("train.step", [](json& event) { event["dur"] = 1e300; }),
       "an event train.step whose dur is 1e+294 s, expected 0 to 1e+10"},
      {"a negative length", of_event("sync.backward", [](json& event) { event["dur"] = -1; }),
       "an event sync.backward whose dur is -1e-06 s"},
      {"begun before time", of_event("sync.exchange", [](json& event) { event["ts"] = -1e300; }),
       "an event sync.exchange whose ts is -1e+294 s"},
      {"samples of no number",
       of_event("train.step", [](json& event) { event["args"]["samples"] = 1e300; }),
       "samples is 1e+300, expected a whole number"},
      {"a rank of no number",
       of_event("sync.exchange", [](json& event) { event["args"]["replica"] = 5'000'000'000; }),
       "replica is 5000000000, expected a whole number"},
      {"other ranks", of_event("train.begin", [](json& event) { event["args"]["ranks"] = 3; }),
       "is of another run than"},
      {"no ranks", of_event("train.begin", [](json& event) { event["args"]["ranks"] = 0; }),
       "a training of 0 ranks, expected 1 to"},
      {"shares", of_event("train.begin", [](json& event) { event["args"]["shares"] = "2,1"; }),
       "is of another run than"},
      {"another worker", of_event("process_name", [](json& event) { event["pid"] = 0; }),
       "are both of worker 0"},
      {"a rank too many",
       of_event("sync.exchange", [](json& event) { event["args"]["replica"] = 2; }), "rank 2 of 2"},
      {"other steps", of_event("train.step", [](json& event) { event["args"]["step"] = 4; }),
       "step 4, where"},
      {"fewer steps",
       [](json& trace) {
         json& events = trace["traceEvents"];
         events.erase(events.end() - 8, events.end());
       },
       "where another rank has 6"}};
  const MadeUp run;
  for (const auto& [name, spoil, answer] : cases) {
    const TempFolder folder;
    run.write(folder);
    json trace = run.trace(1);
    spoil(trace);
    put_bytes(folder / MadeUp::file_of(1), MadeUp::text_of(trace));
    EXPECT_THAT(message_of<DataError>([&] { read_run(folder.path()); }),
                AllOf(HasSubstr(answer), HasSubstr(folder.path().string())))
        << name;
  }
}

TEST(RunRecord, APartOfATraceIsRefused) {
  const TempFolder folder;
  const std::string text = MadeUp::text_of(MadeUp{.processes = 1}.trace(0));
  put_bytes(folder / "run.json", text.substr(0, text.size() / 2));
  EXPECT_THAT(message_of<DataError>([&] { read_run(folder.path()); }),
              AllOf(HasSubstr("run.json"), HasSubstr("a damaged trace")));
}

TEST(RunRecord, TwoTrainingsOfDifferentRanksAreRefused) {
  const TempFolder folder;
  json trace = MadeUp{.processes = 1}.trace(0);
  json again = trace["traceEvents"][1];
  again["args"]["ranks"] = 2;
  trace["traceEvents"].push_back(again);
  put_bytes(folder / "run.json", MadeUp::text_of(trace));
  EXPECT_THAT(message_of<DataError>([&] { read_run(folder.path()); }),
              HasSubstr("two trainings of different ranks"));
}

}  // namespace
}  // namespace tutti::plan
