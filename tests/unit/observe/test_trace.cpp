#include <gmock/gmock.h>

#include <optional>
#include <thread>

#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/observe/trace.h"

#include "tests/support/message_of.h"
#include "tests/support/temp_folder.h"

namespace tutti {
namespace {

using nlohmann::json;
using test::message_of;
using test::TempFolder;
using testing::AllOf;
using testing::HasSubstr;

// Of a trace, without what names its process.
std::vector<json> events_of(const std::string& text) {
  const json trace = json::parse(text);
  std::vector<json> events = trace.at("traceEvents");
  EXPECT_EQ(events.at(0).at("name"), "process_name");
  events.erase(events.begin());
  return events;
}

Event event_at(std::string_view name, int64_t us, std::span<const Field> fields) {
  return {name, TimePoint(std::chrono::microseconds(us)), fields};
}

TEST(Trace, DrawsWhatHasALengthAsABarAndTheRestAsMarks) {
  Trace trace(3, "worker \"3\"");
  const Field bar[] = {{"piece", int64_t{7}}, {"us", 25.0}};
  const Field mark[] = {{"why", std::string_view("a \"b\"")}, {"share", 0.5}};
  trace.on_event(event_at("ends.last", 130, mark));
  trace.on_event(event_at("begins.first", 150, bar));
  const auto events = events_of(trace.json());
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0], (json{{"name", "begins.first"},
                             {"ph", "X"},
                             {"dur", 25},
                             {"ts", 125},
                             {"pid", 3},
                             {"tid", 0},
                             {"args", {{"piece", 7}}}}));
  EXPECT_EQ(events[1], (json{{"name", "ends.last"},
                             {"ph", "i"},
                             {"s", "t"},
                             {"ts", 130},
                             {"pid", 3},
                             {"tid", 0},
                             {"args", {{"why", "a \"b\""}, {"share", 0.5}}}}));
}

TEST(Trace, GivesEachThreadARow) {
  Trace trace(0, "worker 0");
  trace.on_event(event_at("here", 1, {}));
  std::thread([&] { trace.on_event(event_at("there", 2, {})); }).join();
  trace.on_event(event_at("here", 3, {}));
  const auto events = events_of(trace.json());
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].at("tid"), 0);
  EXPECT_EQ(events[1].at("tid"), 1);
  EXPECT_EQ(events[2].at("tid"), 0);
}

TEST(Trace, IsWrittenAtItsEndToAFileOfItsWorker) {
  const TempFolder folder;
  const auto file = folder.path() / "run.json";
  auto first = std::make_optional<RunningTrace>(file, 0);
  auto fourth = std::make_optional<RunningTrace>(file, 3);
  emit("ps.push", {{"bytes", int64_t{64}}});
  {
    const TimedEvent timed("sync.fill", {"piece", int64_t{1}});
  }
  first->end();
  fourth.reset();
  emit("after.all");
  first.reset();
  for (const auto& [name, worker] : {std::pair{"run.json", 0}, {"run.3.json", 3}}) {
    const auto events = events_of(test::get_bytes((folder.path() / name).string()));
    ASSERT_EQ(events.size(), 2u) << name;
    EXPECT_EQ(events[0].at("name"), "ps.push");
    EXPECT_EQ(events[0].at("pid"), worker);
    EXPECT_EQ(events[1].at("ph"), "X");
    EXPECT_EQ(events[1].at("args"), (json{{"piece", 1}}));
  }
}

TEST(Trace, AFileThatCannotBeMadeIsSaidBefore) {
  EXPECT_THROW(RunningTrace("/no/such/folder/run.json", 0), UsageError);
}

TEST(Trace, AFileThatCannotBeWrittenIsAnErrorOfItsEnd) {
  RunningTrace trace("/dev/full", 0);
  EXPECT_THAT(message_of<Error>([&] { trace.end(); }),
              AllOf(HasSubstr("/dev/full"), HasSubstr("No space left")));
  EXPECT_NO_THROW(trace.end()) << "it was written, or not, once";
}

TEST(Trace, AFileThatCannotBeWrittenIsLoggedWhereNobodyAsks) {
  testing::internal::CaptureStderr();
  {
    const RunningTrace trace("/dev/full", 0);
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("tutti error: "), HasSubstr("/dev/full")));
}

TEST(Trace, TheEnvironmentNamesOneFileForTheWholeProcess) {
  const TempFolder folder;
  const std::string file = folder / "own.json";
  const auto worker = [] { return 0; };
  EXPECT_EQ(trace_by_environment(worker), nullptr);
  setenv(kTraceVariable, file.c_str(), 1);
  auto trace = trace_by_environment(worker);
  EXPECT_EQ(trace_by_environment(worker), trace);
  unsetenv(kTraceVariable);
  emit("once");
  trace.reset();
  EXPECT_EQ(events_of(test::get_bytes(file)).size(), 1u);
}

}  // namespace
}  // namespace tutti
