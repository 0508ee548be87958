// Who diverged or stopped, from the records of all ranks.
#include <gmock/gmock.h>

#include "tutti/base/error.h"
#include "tutti/comm/flight/flight_analysis.h"

namespace tutti {
namespace {

using detail::Call;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;
using State = FlightOperation::State;

const Call kReduce{.collective = Collective::all_reduce, .dtype = DType::float32, .elements = 10};
const Call kLonger{.collective = Collective::all_reduce, .dtype = DType::float32, .elements = 12};
const Call kBarrier{.collective = Collective::barrier};
const Call kBroadcast{.collective = Collective::broadcast, .dtype = DType::int64, .root = 2};

struct Step {
  Call call;
  State state = State::done;
};

/// The record of worker = rank, whose group did these steps at train.cpp:1, :2, ...
FlightFile file_of(int rank, int size, const std::vector<Step>& steps,
                   const std::string& failure = "") {
  FlightGroup group{
      .name = "workers", .engine = "tcp", .rank = rank, .size = size, .failure = failure};
  uint64_t collectives = 0;
  uint64_t messages = 0;
  uint32_t line = 0;
  for (const Step& step : steps) {
    const bool message = detail::is_message(step.call.collective);
    group.operations.push_back({.number = message ? ++messages : ++collectives,
                                .call = step.call,
                                .file = "/src/train.cpp",
                                .line = ++line,
                                .function = "main",
                                .state = step.state});
  }
  return {.name = "w" + std::to_string(rank) + ".json",
          .record = {.job = "j",
                     .worker = rank,
                     .num_workers = size,
                     .host = "h" + std::to_string(rank),
                     .pid = 100 + rank,
                     .groups = {group}}};
}

constexpr State kWaits = State::submitted;

struct Case {
  const char* name;
  std::vector<FlightFile> files;
  std::vector<const char*> says;
  std::vector<const char*> not_said = {};
};

void check(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    const std::string text = analyse_flight_records(c.files);
    for (const char* part : c.says) EXPECT_THAT(text, HasSubstr(part)) << c.name;
    for (const char* part : c.not_said) EXPECT_THAT(text, Not(HasSubstr(part))) << c.name;
  }
}

TEST(FlightAnalysis, WhoStopped) {
  const std::vector<Step> waiting = {{kReduce}, {kBarrier}, {kReduce, kWaits}};
  check({
      {"all is well",
       {file_of(0, 2, {{kReduce}}), file_of(1, 2, {{kReduce}})},
       {"2 files of job j\n", "group \"workers\" of 2 ranks, engine tcp",
        "all ranks agree, and nothing is unfinished"},
       {"look first", "missing"}},
      {"one is behind",
       {file_of(0, 3, waiting), file_of(1, 3, {{kReduce}, {kBarrier}}), file_of(2, 3, waiting)},
       {"ranks 0 and 2 are in #3, all_reduce (sum) of 10 float32 at train.cpp:3 (main)",
        "rank 1 is behind: its last call was #2, barrier at train.cpp:2 (main), which is done",
        "look first at rank 1 (pid 101 on h1, w1.json)"}},
      {"of several behind, the last one",
       {file_of(0, 3, waiting), file_of(1, 3, {{kReduce}, {kBarrier, kWaits}}),
        file_of(2, 3, {{kReduce}})},
       {"rank 1 is behind: its last call was #2, barrier at train.cpp:2 (main), in which it is",
        "rank 2 is behind: its last call was #1", "look first at rank 2 (pid 102"},
       {"look first at rank 1"}},
      {"one has called nothing",
       {file_of(0, 2, {{kReduce, kWaits}}), file_of(1, 2, {})},
       {"rank 0 is in #1", "rank 1 is behind: it has called nothing", "look first at rank 1"}},
      {"all are in it",
       {file_of(0, 2, waiting), file_of(1, 2, waiting)},
       {"ranks 0 and 1 are in #3"},
       {"behind", "look first"}},
      {"some have finished",
       {file_of(0, 2, {{kReduce, State::failed}}), file_of(1, 2, {{kReduce}})},
       {"rank 0 is in #1, all_reduce", "rank 1 has finished #1"}},
      {"one left no record",
       {file_of(0, 3, waiting, "all_reduce #3: rank 1 died\n  look at its log"),
        file_of(2, 3, waiting)},
       {"of 3 workers these are missing: 1", "ranks 0 and 2 are in #3",
        "no record of rank 1: killed, stopped, still running",
        "rank 0 ended with an error; rank 0's:\n    all_reduce #3: rank 1 died\n      look at its "
        "log\n",
        "look first at rank 1"},
       {"behind"}},
  });
}

TEST(FlightAnalysis, WhoDiverged) {
  check({
      {"another call",
       {file_of(0, 3, {{kReduce}, {kReduce, kWaits}}),
        file_of(1, 3, {{kReduce}, {kBarrier, kWaits}}),
        file_of(2, 3, {{kReduce}, {kReduce, kWaits}})},
       {"different calls under one number, #2:",
        "ranks 0 and 2 called all_reduce (sum) of 10 float32 at train.cpp:2 (main)",
        "rank 1 called barrier at train.cpp:2 (main)", "look first at rank 1 (pid 101"},
       {"behind", "left out"}},
      {"another length, nobody in the majority",
       {file_of(0, 2, {{kReduce, kWaits}}), file_of(1, 2, {{kLonger, kWaits}})},
       {"rank 0 called all_reduce (sum) of 10 float32", "rank 1 called all_reduce (sum) of 12"},
       {"look first"}},
      {"a call left out",
       {file_of(0, 3, {{kReduce}, {kBarrier}, {kBroadcast}, {kReduce, kWaits}}),
        file_of(1, 3, {{kReduce}, {kBarrier}, {kBroadcast}, {kReduce, kWaits}}),
        file_of(2, 3, {{kReduce}, {kBroadcast}, {kReduce, kWaits}})},
       {"different calls under one number, #2:", "rank 2 seems to have left out #2",
        "look first at rank 2"}},
      {"lengths of all_to_all are each rank's own",
       {file_of(0, 2, {{{.collective = Collective::all_to_all, .elements = 3}}}),
        file_of(1, 2, {{{.collective = Collective::all_to_all, .elements = 5}}})},
       {"all ranks agree"}},
  });
}

TEST(FlightAnalysis, MessagesThatAreWaitedFor) {
  const Call recv{.collective = Collective::recv, .dtype = DType::float32, .root = 1, .tag = 4};
  check({
      {"a message that never came",
       {file_of(0, 2, {{recv, kWaits}, {kBarrier}}), file_of(1, 2, {{kBarrier}})},
       {"rank 0 has a message that is not done: recv of 0 float32 from rank 1, tag 4 at "
        "train.cpp:1"}},
  });
}

TEST(FlightAnalysis, GroupsWithNothingToTellComeLast) {
  FlightFile first = file_of(0, 2, {{kReduce}});
  FlightFile second = file_of(1, 2, {{kReduce}});
  FlightGroup late = file_of(0, 2, {{kReduce, kWaits}}).record.groups[0];
  late.name = "late";
  first.record.groups.push_back(late);
  const std::string text = analyse_flight_records(std::vector{first, second});
  EXPECT_LT(text.find("group \"late\""), text.find("group \"workers\""));
}

TEST(FlightAnalysis, FilesThatDoNotBelongTogetherAreRefused) {
  FlightFile other = file_of(1, 2, {});
  other.record.job = "k";
  EXPECT_THAT(
      [&] { analyse_flight_records(std::vector{file_of(0, 2, {}), other}); },
      ThrowsMessage<UsageError>(HasSubstr("w0.json is of job \"j\", w1.json of job \"k\"")));
  EXPECT_THAT([&] { analyse_flight_records(std::vector{file_of(0, 2, {}), file_of(0, 2, {})}); },
              ThrowsMessage<DataError>(HasSubstr("both are of rank 0 of group \"workers\"")));
  EXPECT_THAT([&] { analyse_flight_records(std::vector{file_of(0, 2, {}), file_of(1, 3, {})}); },
              ThrowsMessage<DataError>(HasSubstr("has 3 ranks, in the other files 2")));
  EXPECT_THROW(analyse_flight_records({}), UsageError);
}

}  // namespace
}  // namespace tutti
