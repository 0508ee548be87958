// The order of updates as a file: what it says comes back, and what is none is named.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/ps/spec/update_order.h"

#include "tests/support/message_of.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/ps/small_job.h"

namespace tutti::ps {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::tutti::test::message_of;
using ::tutti::test::TempFolder;
using Kind = OrderRecord::Kind;

const OrderRecord kRecords[] = {
    {Kind::look, 0, 0, 1},
    {Kind::lease, 1, 0, 0},
    {Kind::push, 4095, kMostOrderedPieces - 1, kOrderNumbers - 1},
    {Kind::leave, 2, 0, 1},
    {Kind::leave, 1, 0, 0},
    {Kind::comes, 1, 0, 0},
};

// Of two workers and two pieces.
const std::vector<OrderRecord> kOrdered = {
    {Kind::look, 0, 0, 1},  {Kind::lease, 1, 0, 0}, {Kind::push, 1, 1, kOrderNumbers - 1},
    {Kind::leave, 1, 0, 1}, {Kind::leave, 0, 0, 0}, {Kind::comes, 0, 0, 0},
    {Kind::push, 0, 0, 3}};

UpdateOrder some_order() {
  Spec spec = testing::two_pieces(2, Staleness::unbounded());
  return {.spec = to_text(spec), .asked = "epochs: 3\nseed: 5\n", .partitions = {kOrdered}};
}

void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST(UpdateOrder, RecordsComeBackFromEightBytes) {
  for (const OrderRecord& record : kRecords) EXPECT_EQ(order_record_from(bits_of(record)), record);
  EXPECT_EQ(order_record_from(bits_of({.number = kOrderNumbers + 3})).number, 3);
  EXPECT_THAT(message_of<DataError>([] { order_record_from(0xF); }),
              HasSubstr("a record of kind 15, expected 0 to 4"));
}

TEST(UpdateOrder, OfAFileIsTheOneThatWasWritten) {
  const TempFolder folder;
  const std::string path = folder / "order";
  const UpdateOrder order = some_order();
  write_order(path, order);
  const UpdateOrder got = read_order(path);
  EXPECT_EQ(got.spec, order.spec);
  EXPECT_EQ(got.asked, order.asked);
  EXPECT_EQ(got.partitions, order.partitions);
  EXPECT_EQ(got.num_workers(), 2);
  EXPECT_EQ(got.num_updates(), 2);
  EXPECT_FALSE(got.interrupted);
  EXPECT_EQ(got.sha256, digest_of_file(path).sha256);
  EXPECT_EQ(words_of_replay(got), "--replay-order with sha256 " + got.sha256);
}

// A server would look for them beyond the ends of what it has.
TEST(UpdateOrder, OfAnotherShapeIsRefusedWithTheByte) {
  const TempFolder folder;
  const std::string path = folder / "order";
  const auto refusal_of = [&](const UpdateOrder& order) {
    write_order(path, order);
    return message_of<DataError>([&] { read_order(path); });
  };
  const std::pair<OrderRecord, const char*> cases[] = {
      {{Kind::push, 2, 0, 0}, "a record of worker 2, expected 0 to 1"},
      {{Kind::leave, 4095, 0, 0}, "a record of worker 4095, expected 0 to 1"},
      {{Kind::push, 0, 2, 0}, "a record of piece 2, expected 0 to 1"},
      {{Kind::look, 0, kMostOrderedPieces - 1, 1}, "a record of piece 1048575, expected 0 to 1"},
      {{Kind::lease, 0, 1, 0}, "a record of piece 1, expected 0"},
      {{Kind::leave, 0, 0, 2}, "a worker that goes with number 2, expected 0 or 1"},
  };
  for (const auto& [record, words] : cases) {
    UpdateOrder order = some_order();
    const size_t at = order.partitions[0].size();
    order.partitions[0].push_back(record);
    write_order(path, order);
    const size_t place = read_file(path).size() - 4 - 8;
    EXPECT_THAT(refusal_of(order),
                AllOf(HasSubstr(path), HasSubstr(fmt::format("byte {}: {}", place, words))))
        << at;
  }
  Spec spec = testing::two_pieces(2, Staleness::unbounded());
  spec.num_partitions = 2;
  const std::pair<OrderRecord, const char*> elsewhere[] = {
      {{Kind::push, 0, 1, 0}, "a record of piece 1 in partition 1, expected in 0"},
      {{Kind::lease, 0, 0, 0}, "a batch in partition 1"}};
  for (const auto& [record, words] : elsewhere)
    EXPECT_THAT(refusal_of({.spec = to_text(spec), .asked = "", .partitions = {{}, {record}}}),
                HasSubstr(words));
  UpdateOrder nonsense = some_order();
  nonsense.spec = "nonsense";
  EXPECT_THAT(refusal_of(nonsense), AllOf(HasSubstr(path), HasSubstr("byte 16")));
}

TEST(UpdateOrder, IsWholeOrRefused) {
  const TempFolder folder;
  const std::string path = folder / "order";
  write_order(path, some_order());
  const std::string whole = read_file(path);
  for (size_t bytes = 0; bytes < whole.size(); bytes += bytes < 40 ? 1 : 37) {
    write(path, whole.substr(0, bytes));
    EXPECT_THAT(message_of<DataError>([&] { read_order(path); }),
                AllOf(HasSubstr(path), HasSubstr("byte"), HasSubstr("--record-order")))
        << bytes;
  }
  write(path, whole.substr(0, whole.size() - 8));
  EXPECT_THAT(message_of<DataError>([&] { read_order(path); }), HasSubstr("it is cut off"));
  write(path, whole + "x");
  EXPECT_THAT(
      message_of<DataError>([&] { read_order(path); }),
      HasSubstr(fmt::format("it has {} bytes, expected {}", whole.size() + 1, whole.size())));
  std::string flipped = whole;
  flipped[whole.size() - 12] = static_cast<char>(flipped[whole.size() - 12] ^ 1);
  write(path, flipped);
  EXPECT_THAT(message_of<DataError>([&] { read_order(path); }), HasSubstr("checksum"));
  std::string newer = whole;
  newer[8] = 2;
  write(path, newer);
  EXPECT_THAT(message_of<UsageError>([&] { read_order(path); }),
              HasSubstr("of version 2, expected 1"));
  EXPECT_THAT(message_of<DataError>([&] { read_order(folder / "none"); }), HasSubstr("none"));
}

TEST(UpdateOrder, OfAnotherJobIsNamed) {
  UpdateOrder order = some_order();
  const Spec same = testing::two_pieces(2, Staleness::unbounded());
  EXPECT_NO_THROW(require_same_training(order, same));
  EXPECT_THAT(message_of<UsageError>(
                  [&] { require_same_training(order, testing::two_pieces(2, Staleness(4))); }),
              AllOf(HasSubstr("--replay-order"), HasSubstr("staleness")));
  EXPECT_THAT(message_of<UsageError>([&] {
                require_same_training(
                    order, testing::two_pieces(2, Staleness::unbounded(), optim::adam()));
              }),
              HasSubstr("the optimizer has name \"sgd\", not \"adam\""));
  EXPECT_NO_THROW(require_same_program(order, order.asked));
  EXPECT_THAT(message_of<UsageError>([&] { require_same_program(order, "epochs: 3\nseed: 6\n"); }),
              AllOf(HasSubstr("it has seed: 5"), HasSubstr("this job has seed: 6")));
}

TEST(UpdateOrder, HasJobsThatItIsOf) {
  Spec spec = testing::two_pieces(2, Staleness::unbounded());
  EXPECT_EQ(objection_to_order(spec, "--record-order"), "");
  spec.delay_compensation = 0.5;
  EXPECT_THAT(objection_to_order(spec, "--record-order"),
              HasSubstr("--record-order with --delay-compensation 0.5"));
  EXPECT_THAT(objection_to_order(testing::two_pieces(2, Staleness(0)), "--replay-order"),
              HasSubstr("--replay-order with --staleness 0"));
  spec = testing::two_pieces(kMostOrderedWorkers + 1, Staleness::unbounded());
  EXPECT_THAT(objection_to_order(spec, "--record-order"),
              HasSubstr("of 4097 workers, at most 4096"));
}

// What one server lacks, the other has; a death has cut off the first one's last record.
TEST(UpdateOrder, OfPartsIsWhatTheyHaveTogether) {
  const TempFolder folder;
  const UpdateOrder order = some_order();
  {
    OrderPart primary(folder / "", 0, 0, 0, order.spec), backup(folder / "", 0, 1, 0, order.spec);
    OrderPart late(folder / "", 0, 2, 4, order.spec);
    for (int i = 0; i < 7; ++i) {
      if (i < 3) primary.add(kOrdered[i]);
      if (i < 5) backup.add(kOrdered[i]);
      if (i >= 4) late.add(kOrdered[i]);
    }
    late.end();
  }
  std::ofstream(folder / "partition-0.server-0.from-0", std::ios::app | std::ios::binary) << "abc";
  write_asked(folder / "", order.asked);
  const UpdateOrder got = merged_order(folder / "", 1);
  EXPECT_EQ(got.partitions, order.partitions);
  EXPECT_EQ(got.spec, order.spec);
  EXPECT_EQ(got.asked, order.asked);
  EXPECT_FALSE(got.interrupted);
  {
    OrderPart(folder / "", 0, 3, 2, order.spec).add(kOrdered[0]);
  }
  EXPECT_THAT(message_of<DataError>([&] { merged_order(folder / "", 1); }),
              HasSubstr("record 2 of partition 0 is another one than another server's"));
}

TEST(UpdateOrder, OfPartsHasNoGap) {
  const TempFolder folder;
  {
    OrderPart(folder / "", 0, 0, 3, some_order().spec).add(kOrdered[0]);
  }
  EXPECT_THAT(message_of<DataError>([&] { merged_order(folder / "", 1); }),
              HasSubstr("partition 0: record 3 comes after -1"));
}

// What a death or a full disk took from its end looks as if it were all.
TEST(UpdateOrder, OfPartsIsAllThatSomebodySaysIsAll) {
  const TempFolder folder;
  const std::string spec = some_order().spec;
  const auto place = folder / "partition-0.server-0.from-0";
  const auto merged = [&](bool failed = false) { return merged_order(folder / "", 1, failed); };
  EXPECT_EQ(merged().spec, "") << "nobody has written anything";
  {
    OrderPart part(folder / "", 0, 0, 0, spec);
    for (const OrderRecord& record : kOrdered) part.add(record);
  }
  const std::string without = read_file(place);
  EXPECT_THAT(message_of<DataError>([&] { merged(); }),
              HasSubstr("partition 0: 7 records, and no server says that these are all"));
  const UpdateOrder interrupted = merged(true);
  EXPECT_TRUE(interrupted.interrupted);
  EXPECT_EQ(interrupted.partitions[0], kOrdered);
  write_order(folder / "order", interrupted);
  EXPECT_TRUE(read_order(folder / "order").interrupted);
  {
    OrderPart part(folder / "", 0, 0, 0, spec);
    for (const OrderRecord& record : kOrdered) part.add(record);
    part.end();
  }
  EXPECT_EQ(read_file(place).size(), without.size() + 8);
  EXPECT_EQ(merged().partitions[0], kOrdered);
  EXPECT_FALSE(merged(true).interrupted);
  {  // a backup has somebody's leaving, which its primary had no time to carry out
    OrderPart part(folder / "", 0, 1, 0, spec);
    for (const OrderRecord& record : kOrdered) part.add(record);
    part.add({Kind::leave, 1, 0, 1});
  }
  EXPECT_EQ(merged().partitions[0], kOrdered);
  // Some records are missing, and not the word that they were there.
  write(place, without.substr(0, without.size() - 8) + read_file(place).substr(without.size()));
  EXPECT_THAT(message_of<DataError>([&] { merged(); }),
              HasSubstr("it ends with record 5, and says that there are 7"));
}

TEST(UpdateOrder, OfAPartitionThatNobodyWroteIsMissed) {
  const TempFolder folder;
  {
    OrderPart part(folder / "", 0, 0, 0, some_order().spec);
    part.add(kOrdered[0]);
    part.end();
  }
  EXPECT_THAT(message_of<DataError>([&] { merged_order(folder / "", 2); }),
              HasSubstr("partition 1: 0 records, and no server says that these are all"));
}

TEST(UpdateOrder, OfPartsIsOfOneJob) {
  const TempFolder folder;
  for (const char* job : {"one", "another"}) {
    OrderPart part(folder / "", 0, job[0] == 'o' ? 0 : 1, 0, some_order().spec, job);
    part.add(kOrdered[0]);
    part.end();
  }
  EXPECT_THAT(message_of<DataError>([&] { merged_order(folder / "", 1); }),
              HasSubstr("and other parts there are of job"));
}

TEST(UpdateOrder, ThatCannotBeWrittenIsSaidAtItsEnd) {
  const TempFolder folder;
  const std::filesystem::path place = folder / "partition-0.server-0.from-0";
  std::filesystem::create_symlink("/dev/full", place);
  for (const bool ends : {true, false}) {
    OrderPart part(folder / "", 0, 0, 0, some_order().spec);
    part.add(kOrdered[0]);
    EXPECT_THAT(message_of<WriteError>([&] { ends ? part.end() : part.flush(); }),
                AllOf(HasSubstr(place.string()), HasSubstr("--record-order")));
  }
}

TEST(UpdateOrder, TakesTheFolderOfItsPartsOfNobody) {
  const TempFolder folder;
  const std::string parts = folder / "parts";
  std::filesystem::create_directories(parts);
  {
    OrderPart(parts, 0, 0, 0, some_order().spec).add(kOrdered[0]);
  }
  write_asked(parts, "seed: 5\n");
  write(parts + "/lock", "");
  write(parts + "/notes.txt", "mine");
  const auto count = [&] {
    return std::distance(std::filesystem::directory_iterator(parts),
                         std::filesystem::directory_iterator());
  };
  EXPECT_THAT(message_of<UsageError>([&] { clear_parts(parts, "lock"); }),
              AllOf(HasSubstr(parts), HasSubstr("notes.txt")));
  EXPECT_EQ(count(), 4);
  std::filesystem::remove(parts + "/notes.txt");
  clear_parts(parts, "lock", false);
  EXPECT_EQ(count(), 3);
  clear_parts(parts, "lock");
  EXPECT_EQ(count(), 1);
}

}  // namespace
}  // namespace tutti::ps
