// What Group notes of its operations, and the file that it becomes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <set>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/comm/flight/flight_log.h"
#include "tutti/comm/flight/flight_record.h"
#include "tutti/comm/group/group.h"

#include "tests/support/comm.h"
#include "tests/support/fake_engine.h"
#include "tests/support/temp_folder.h"

namespace tutti {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;
using State = FlightOperation::State;

/// What the record has of this member.
FlightGroup group_of(const Group& group) { return group.engine().flight_log()->read(); }

Operation all_reduce_of(int64_t elements) {
  return {.collective = Collective::all_reduce,
          .output = {.num_elements = elements, .dtype = DType::int32}};
}

TEST(FlightRecord, HasEveryKindOfOperationWithItsPlace) {
  test::run_all_members(make_shm_threads(2), [](Group group) {
    std::vector<float> data(6), whole(12);
    const uint32_t line = __LINE__ + 1;
    Work work = group.all_reduce(span_of(std::span(data)), ReduceOp::max);
    EXPECT_EQ(group_of(group).operations.size(), 1u);
    work.wait();
    group.all_reduce_now(span_of(std::span(data)), ReduceOp::sum);
    group.broadcast(span_of(std::span(data)), 1).wait();
    group.all_gather(span_of(std::span(data)), span_of(std::span(whole))).wait();
    group.barrier();

    const FlightGroup seen = group_of(group);
    EXPECT_EQ(seen.engine, "shm");
    EXPECT_EQ(seen.rank, group.rank());
    EXPECT_EQ(seen.size, 2);
    EXPECT_EQ(seen.failure, "");
    ASSERT_EQ(seen.operations.size(), 5u);
    const std::string words[] = {"all_reduce (max) of 6 float32", "all_reduce (sum) of 6 float32",
                                 "broadcast of 6 float32 from rank 1", "all_gather of 12 float32",
                                 "barrier"};
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(words_of(seen.operations[i].call), words[i]);
      EXPECT_EQ(seen.operations[i].number, i + 1);
      EXPECT_EQ(seen.operations[i].state, State::done);
      EXPECT_THAT(seen.operations[i].file, HasSubstr("flight_record.cpp"));
    }
    EXPECT_EQ(seen.operations[0].line, line);
    EXPECT_GT(seen.operations[0].begun_us, 1'500'000'000'000'000);
    EXPECT_GE(seen.operations[0].ended_us, seen.operations[0].begun_us);
    EXPECT_EQ(seen.operations[1].begun_us, 0) << "a synchronous call reads no clock";
  });
}

TEST(FlightRecord, KeepsTheLastThousand) {
  const auto engines = make_shm_threads(2);
  FlightLog log("g", *engines[0]);
  for (int i = 1; i <= 2500; ++i) log.done_now(log.begin(all_reduce_of(i), {}, false));
  log.begin(all_reduce_of(2501), {}, false);
  const FlightGroup group = log.read();
  ASSERT_EQ(group.operations.size(), FlightLog::kOperations);
  EXPECT_EQ(group.operations.front().number, 1502u);
  EXPECT_EQ(group.operations.back().number, 2501u);
  EXPECT_EQ(group.operations.back().state, State::submitted);
  EXPECT_EQ(group.operations[998].state, State::done);
}

TEST(FlightRecord, MessagesAreCountedApart) {
  const auto engines = make_shm_threads(2);
  FlightLog log("g", *engines[0]);
  const Operation recv{.collective = Collective::recv, .root = kAnyRank, .tag = 7};
  const auto waiting = log.begin(recv, {}, true);
  const auto reduced = log.begin(all_reduce_of(1), {}, true);
  const auto sent = log.begin({.collective = Collective::send, .root = 1}, {}, true);
  log.done(reduced);
  log.done(sent);
  FlightGroup group = log.read();
  ASSERT_EQ(group.operations.size(), 3u);
  EXPECT_EQ(group.operations[0].number, 1u);
  EXPECT_EQ(group.operations[0].state, State::submitted) << "a later collective says nothing of it";
  EXPECT_EQ(words_of(group.operations[0].call), "recv of 0 float32 from any rank, tag 7");
  EXPECT_EQ(group.operations[1].number, 1u);
  EXPECT_EQ(group.operations[2].number, 2u);
  log.done(waiting);
  EXPECT_EQ(log.read().operations[0].state, State::done);
}

TEST(FlightRecord, ALaterCollectiveEndsThoseBeforeIt) {
  const auto engines = make_shm_threads(2);
  FlightLog log("g", *engines[0]);
  (void)log.begin(all_reduce_of(1), {}, true);
  log.done(log.begin(all_reduce_of(2), {}, true));
  EXPECT_EQ(log.read().operations[0].state, State::done);
}

// Under the thread sanitizer too: every operation is read whole, whatever the writer does.
TEST(FlightRecord, MayBeReadWhileItIsWritten) {
  const auto engines = make_shm_threads(2);
  FlightLog log("g", *engines[0]);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int i = 1; !stop; ++i) log.done(log.begin(all_reduce_of(i), {}, i % 2 == 0));
  });
  for (int i = 0; i < 200; ++i) {
    uint64_t last = 0;
    for (const FlightOperation& operation : log.read().operations) {
      ASSERT_EQ(operation.call.elements, static_cast<int64_t>(operation.number));
      ASSERT_GT(operation.number, last);
      last = operation.number;
    }
  }
  stop = true;
  writer.join();
}

TEST(FlightRecord, GroupsOfOneAreNotRecorded) {
  Group group;
  group.barrier();
  EXPECT_EQ(group.engine().flight_log(), nullptr);
}

TEST(FlightRecord, NamesAreTheSameOnAllMembers) {
  Group group(std::make_shared<test::FakeEngine>(0, 2), "g");
  EXPECT_EQ(group_of(*group.split(3)).name, "g/split 1 color 3");
  EXPECT_FALSE(group.split(-1));
  EXPECT_EQ(group_of(*group.split(0)).name, "g/split 3 color 0");
  // Without a name, the n-th group of its size for each rank.
  const auto number_of = [](const Group& made) {
    const std::string name = group_of(made).name;
    return std::stoi(name.substr(name.find('#') + 1));
  };
  const Group first(std::make_shared<test::FakeEngine>(0, 77));
  const Group second(std::make_shared<test::FakeEngine>(0, 77));
  const Group other(std::make_shared<test::FakeEngine>(1, 77));
  EXPECT_EQ(number_of(second), number_of(first) + 1);
  EXPECT_EQ(group_of(other).name, group_of(first).name);
  const auto engines = make_shm_threads(2);
  EXPECT_EQ(group_of(Group(engines[0], "workers")).name, "workers");
  EXPECT_EQ(group_of(Group(engines[0])).name, "workers") << "one engine has one log";
}

/// Sets TUTTI_RECORD_DIR for its own life.
struct RecordFolder {
  test::TempFolder folder;
  RecordFolder() { setenv("TUTTI_RECORD_DIR", (folder / "records").c_str(), 1); }
  ~RecordFolder() { unsetenv("TUTTI_RECORD_DIR"); }

  std::set<std::string> names() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "records")) {
      names.insert(entry.path().filename().string());
    }
    return names;
  }
};

TEST(FlightRecord, AFailedGroupLeavesOneFileAProcess) {
  const RecordFolder records;
  set_flight_identity("job 7", 3, 4);
  const auto thrown = test::run_members(make_shm_threads(2), [](Group group) {
    group.barrier();
    if (group.rank() == 1) return group.abort("the loader failed");
    group.barrier();
  });
  set_flight_identity("", -1, 0);
  EXPECT_THAT(test::words_of(thrown[0]), HasSubstr("the loader failed"));
  const auto path = records.folder / "records/flight-job_7-worker3.json";
  const FlightRecord record = parse_flight_record(test::get_bytes(path), path);
  EXPECT_EQ(record.job, "job 7");
  EXPECT_EQ(record.worker, 3);
  EXPECT_EQ(record.num_workers, 4);
  EXPECT_EQ(record.pid, getpid());
  const auto failed_with = [&](int rank) {
    for (const FlightGroup& group : record.groups) {
      if (group.rank == rank && !group.failure.empty()) return group;
    }
    return FlightGroup{};
  };
  EXPECT_EQ(failed_with(1).failure, "the loader failed");
  EXPECT_THAT(failed_with(0).failure, HasSubstr("aborted by rank 1: the loader failed"));
  ASSERT_EQ(failed_with(0).operations.size(), 2u);
  EXPECT_EQ(failed_with(0).operations[1].state, State::failed);
  EXPECT_EQ(records.names(), (std::set<std::string>{"flight-job_7-worker3.json"}));
}

TEST(FlightRecord, AProcessWithoutANumberHasOneFileToo) {
  const RecordFolder records;
  const auto thrown = test::run_members(make_shm_threads(3), [](Group group) {
    if (group.rank() == 1) return group.abort("enough");
    group.barrier();
  });
  EXPECT_THAT(test::words_of(thrown[2]), HasSubstr("enough"));
  const auto names = records.names();
  ASSERT_EQ(names.size(), 1u) << testing::PrintToString(names);
  EXPECT_THAT(*names.begin(), testing::EndsWith("-pid" + std::to_string(getpid()) + ".json"));
}

TEST(FlightRecord, WrongUseEndsNoGroupAndLeavesNoFile) {
  const RecordFolder records;
  const auto engines = make_shm_threads(2);
  Group group(engines[0]);
  EXPECT_THROW(group.barrier(Millis{0}), UsageError);
  EXPECT_EQ(group_of(group).failure, "");
  EXPECT_TRUE(records.folder.names().empty());
}

TEST(FlightRecord, IsWrittenWhereAsked) {
  const test::TempFolder folder;
  const auto engines = make_shm_threads(2);
  const Group group(engines[0], "asked for");
  write_flight_record(folder / "now.json");
  const FlightRecord record =
      parse_flight_record(test::get_bytes(folder / "now.json"), folder / "now.json");
  ASSERT_FALSE(record.groups.empty());
  EXPECT_EQ(record.groups.back().name, "asked for");
  EXPECT_THAT([&] { write_flight_record(folder / "no/such.json"); },
              ThrowsMessage<Error>(AllOf(HasSubstr("no/such.json"), HasSubstr("No such file"))));
}

FlightRecord sample() {
  FlightRecord record{.job = "j", .worker = 1, .num_workers = 2, .host = "h", .pid = 9};
  const auto add = [&](detail::Call call, State state) {
    record.groups.back().operations.push_back({.number = 4,
                                               .call = call,
                                               .file = "a.cpp",
                                               .line = 8,
                                               .function = "f",
                                               .state = state,
                                               .begun_us = 5});
  };
  record.groups.push_back({.name = "g", .engine = "tcp", .rank = 1, .size = 2, .failure = "why"});
  add({.collective = Collective::reduce,
       .reduce = ReduceOp::bit_xor,
       .dtype = DType::int8,
       .root = 1,
       .elements = 3},
      State::done);
  add({.collective = Collective::recv,
       .dtype = DType::bfloat16,
       .root = kAnyRank,
       .tag = 2,
       .elements = 1},
      State::submitted);
  add({.collective = Collective::barrier, .dtype = DType::uint8}, State::failed);
  return record;
}

TEST(FlightRecord, JsonAndBackIsTheSame) {
  const FlightRecord record = sample();
  const FlightRecord back = parse_flight_record(to_json(record), "x.json");
  EXPECT_EQ(to_json(back), to_json(record));
  ASSERT_EQ(back.groups.size(), 1u);
  ASSERT_EQ(back.groups[0].operations.size(), 3u);
  EXPECT_EQ(back.groups[0].operations[0].call, record.groups[0].operations[0].call);
  EXPECT_EQ(back.groups[0].operations[1].call, record.groups[0].operations[1].call);
  EXPECT_EQ(back.groups[0].operations[2].state, State::failed);
}

TEST(FlightRecord, DamagedFilesAreNamedWithTheirField) {
  const std::string whole = to_json(sample());
  const struct {
    const char* from;
    const char* to;
    const char* says;
  } cases[] = {
      {"\"tutti_flight_record\": 1", "\"tutti_flight_record\": 2", "tutti_flight_record is 2"},
      {"\"tutti_flight_record\"", "\"other\"", "tutti_flight_record is missing"},
      {"\"job\": \"j\"", "\"job\": 7", "job is 7, expected a text"},
      {"\"worker\": 1", "\"worker\": -2", "worker is -2, expected a whole number from -1"},
      {"\"pid\": 9", "\"pid\": 1e9", "pid is 1000000000.0, expected a whole number"},
      {"\"rank\": 1", "\"rank\": 2", "groups[0].rank is 2 in a group of 2"},
      {"\"failure\": \"why\"", "\"failure\": null", "groups[0].failure is null"},
      {"\"operation\": \"reduce\"", "\"operation\": \"redcue\"",
       "groups[0].operations[0].operation is \"redcue\", which is none that is known"},
      {"\"dtype\": \"int8\"", "\"dtype\": \"int9\"", "groups[0].operations[0].dtype is \"int9\""},
      {"\"state\": \"submitted\"", "\"state\": \"\"", "groups[0].operations[1].state is \"\""},
      {"\"tag\": 2", "\"tug\": 2", "groups[0].operations[1].tag is missing"},
      {"\"elements\": 3", "\"elements\": 99999999999999999999",
       "groups[0].operations[0].elements is"},
  };
  for (const auto& c : cases) {
    std::string text = whole;
    const size_t at = text.find(c.from);
    ASSERT_NE(at, std::string::npos) << c.from;
    text.replace(at, std::string(c.from).size(), c.to);
    EXPECT_THAT([&] { parse_flight_record(text, "x.json"); },
                ThrowsMessage<DataError>(AllOf(HasSubstr("x.json"), HasSubstr(c.says))))
        << c.from;
  }
  for (const std::string& text : {std::string(), whole.substr(0, whole.size() / 2)}) {
    EXPECT_THAT([&] { parse_flight_record(text, "x.json"); },
                ThrowsMessage<DataError>(HasSubstr("x.json: not JSON at byte")));
  }
  EXPECT_THROW(parse_flight_record("[]", "x.json"), DataError);
  EXPECT_THAT([&] { parse_flight_record(std::string(100'000, '['), "x.json"); },
              ThrowsMessage<DataError>(HasSubstr("x.json: line 1, column 257")));
}

}  // namespace
}  // namespace tutti
