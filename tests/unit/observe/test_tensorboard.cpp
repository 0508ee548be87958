#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "tutti/base/error.h"
#include "tutti/data/detail/tfrecord_frame.h"
#include "tutti/observe/tensorboard.h"

#include "tests/support/command.h"
#include "tests/support/full_disk.h"
#include "tests/support/message_of.h"
#include "tests/support/python.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/observe/event_reader.h"

namespace tutti {
namespace {

using test::doubles_of;
using test::Message;
using test::message_of;
using test::records_of;
using test::TempFolder;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

double fixed_clock() { return 1'600'000'000.25; }

// The Summary.Value of each event of the file, the version left out.
std::vector<Message> values_of(const EventWriter& writer) {
  std::vector<Message> values;
  for (const std::string& record : records_of(test::get_bytes(writer.file()))) {
    const Message event(record);
    if (event.has(5)) values.push_back(event.inner(5).inner(1));
  }
  return values;
}

Message histogram_of(const std::vector<double>& elements) {
  const TempFolder folder;
  EventWriter writer(folder.path());
  writer.histogram("h", 0, elements);
  return values_of(writer).at(0).inner(5);
}

// The first record of TensorFlow's own event files has 24 bytes, and so these before them.
TEST(Record, IsFramedAsTensorFlowFramesIt) {
  const std::string record = data::detail::record_of(std::string(24, 'x'));
  EXPECT_EQ(record.substr(0, 12), std::string("\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22", 12));
  EXPECT_EQ(record.size(), 24u + 16);
  EXPECT_THAT(records_of(record + data::detail::record_of("")),
              ElementsAre(std::string(24, 'x'), ""));
}

TEST(EventWriter, NamesItsFileAndBeginsItWithTheVersion) {
  const TempFolder folder;
  const EventWriter first(folder / "runs/a", fixed_clock);
  const EventWriter second(folder / "runs/a", fixed_clock);
  EXPECT_NE(first.file(), second.file());
  EXPECT_EQ(first.file().parent_path(), folder / "runs/a");
  EXPECT_THAT(first.file().filename().string(),
              MatchesRegex("events\\.out\\.tfevents\\.1600000000\\..+\\." +
                           std::to_string(::getpid()) + "\\.[0-9]+"));
  const auto records = records_of(test::get_bytes(first.file()));
  ASSERT_EQ(records.size(), 1u);
  const Message event(records[0]);
  EXPECT_EQ(event.at<double>(1), fixed_clock());
  EXPECT_EQ(event.text(3), "brain.Event:2");
}

TEST(EventWriter, EachEventIsThereAtOnceWithTimeAndStep) {
  const TempFolder folder;
  double now = 10;
  EventWriter writer(folder.path(), [&now] { return now; });
  now = 11.5;
  writer.scalar("loss", -1, 0.1);
  auto records = records_of(test::get_bytes(writer.file()));
  ASSERT_EQ(records.size(), 2u);
  const Message event(records[1]);
  EXPECT_EQ(event.at<double>(1), 11.5);
  EXPECT_EQ(static_cast<int64_t>(event.at<uint64_t>(2)), -1);
  EXPECT_EQ(event.inner(5).inner(1).text(1), "loss");
  EXPECT_EQ(event.inner(5).inner(1).at<float>(2), 0.1f);
  writer.scalar("loss", int64_t{1} << 40, std::numeric_limits<double>::quiet_NaN());
  writer.flush();
  records = records_of(test::get_bytes(writer.file()));
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(Message(records[2]).at<uint64_t>(2), uint64_t{1} << 40);
  EXPECT_TRUE(std::isnan(values_of(writer).at(1).at<float>(2)));
  EXPECT_FALSE(writer.failed());
}

TEST(EventWriter, HistogramsCountEveryFiniteValueOnce) {
  const Message usual = histogram_of({3, 1, 1, 31, -2 + 3});
  EXPECT_EQ(usual.at<double>(1), 1);
  EXPECT_EQ(usual.at<double>(2), 31);
  EXPECT_EQ(usual.at<double>(3), 5);
  EXPECT_EQ(usual.at<double>(4), 37);
  EXPECT_EQ(usual.at<double>(5), 973);
  std::vector<double> limits(30);
  std::iota(limits.begin(), limits.end(), 2);  // of [1, 2), [2, 3), ..., [30, 31]
  EXPECT_EQ(doubles_of(usual.text(6)), limits);
  std::vector<double> counts(30);
  counts[0] = 3;
  counts[2] = 1;
  counts[29] = 1;
  EXPECT_EQ(doubles_of(usual.text(7)), counts);

  constexpr double kMost = std::numeric_limits<double>::max();
  const Message widest = histogram_of({-kMost, 0, kMost});
  const auto widest_counts = doubles_of(widest.text(7));
  EXPECT_EQ(std::accumulate(widest_counts.begin(), widest_counts.end(), 0.0), 3);
  EXPECT_TRUE(std::ranges::is_sorted(doubles_of(widest.text(6))));

  constexpr double kLeast = std::numeric_limits<double>::denorm_min();
  for (const auto& [elements, num] :
       {std::pair(std::vector<double>{2.5, 2.5}, 2.0), {{0, kLeast, 2 * kLeast}, 3.0}}) {
    const Message narrow = histogram_of(elements);
    EXPECT_THAT(doubles_of(narrow.text(6)), ElementsAre(elements.back()));
    EXPECT_THAT(doubles_of(narrow.text(7)), ElementsAre(num));
  }
}

TEST(EventWriter, WhatIsNotFiniteIsLeftOutOfHistogramsAndSaidOnce) {
  const TempFolder folder;
  EventWriter writer(folder.path());
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> some = {1, kInf, -kInf, std::nanf("")};
  testing::internal::CaptureStderr();
  writer.histogram("gradients of a", 7, some);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("\"gradients of a\", step 7: 3 of 4 values are NaN or infinite"));
  testing::internal::CaptureStderr();
  writer.histogram("gradients of a", 8, std::span(some).subspan(1));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  const auto values = values_of(writer);
  EXPECT_EQ(values.at(0).inner(5).at<double>(3), 1);
  EXPECT_EQ(values.at(1).inner(5).at<double>(3), 0);
  EXPECT_FALSE(values.at(1).inner(5).has(6));
}

TEST(EventWriter, RefusesWhatReadersWouldNotTake) {
  const TempFolder folder;
  EventWriter writer(folder.path());
  const auto before = std::filesystem::file_size(writer.file());
  EXPECT_THROW(writer.scalar("", 0, 1), UsageError);
  EXPECT_THROW(writer.scalar("\xff", 0, 1), UsageError);
  EXPECT_THROW(writer.text("t", 0, "\xc3"), UsageError);
  EXPECT_THROW(writer.hparams({{"\xff", 1.0}}, {}), UsageError);
  EXPECT_THROW(writer.hparams({{"a", std::string("\xff")}}, {}), UsageError);
  EXPECT_THROW(writer.hparams({}, {"\xff"}), UsageError);
  const std::vector<uint8_t> pixels(12);
  for (const auto& [height, width, channels] :
       {std::array{2, 2, 4}, {2, 2, 5}, {0, 2, 3}, {2, -2, 3}, {1, 5, 1}, {1 << 30, 1 << 30, 4}}) {
    EXPECT_THROW(writer.image("i", 0, {height, width, channels, pixels}), UsageError);
  }
  EXPECT_EQ(std::filesystem::file_size(writer.file()), before);
  writer.scalar("one", 0, 1);
  EXPECT_THAT(message_of<UsageError>([&] { writer.text("one", 0, "two"); }),
              HasSubstr("tag \"one\" is that of a scalar, and now of a text"));
}

TEST(EventWriter, SaysWhichFolderItCannotUse) {
  const TempFolder folder;
  test::put_bytes(folder / "file", "");
  EXPECT_THAT(message_of<Error>([&] { EventWriter(folder / "file"); }),
              HasSubstr((folder / "file").string()));
  EXPECT_THAT(message_of<Error>([&] { EventWriter(folder / "file/run"); }),
              HasSubstr((folder / "file/run").string() + " for TensorBoard's files: Not a dir"));
}

TEST(EventWriter, AFullDiskEndsTheFileAndNothingElse) {
  const TempFolder folder;
  EventWriter writer(folder.path());
  // More than the log has, which is captured in a file.
  writer.text("note", 0, std::string(100'000, 'x'));
  const auto whole = std::filesystem::file_size(writer.file());
  testing::internal::CaptureStderr();
  {
    const test::FullDisk disk(whole + 10);
    writer.scalar("loss", 1, 1);
    writer.scalar("loss", 2, 1);
    writer.flush();
    EXPECT_THAT(message_of<Error>([&] {
                  const test::FullDisk fuller(10);
                  EventWriter(folder / "other");
                }),
                HasSubstr("File too large"));
  }
  writer.scalar("loss", 3, 1);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(writer.failed());
  EXPECT_THAT(log, HasSubstr(writer.file().string()));
  EXPECT_THAT(log, HasSubstr("File too large"));
  EXPECT_THAT(log.substr(log.find("cannot write") + 1), Not(HasSubstr("cannot write")));
  EXPECT_EQ(std::filesystem::file_size(writer.file()), whole);
  EXPECT_EQ(values_of(writer).size(), 1u);
  EXPECT_TRUE(std::filesystem::is_empty(folder / "other"));
}

// What read_events.py expects.
std::vector<EventWriter::GraphNode> small_graph_of_boxes() {
  return {{.name = "x", .operation = "input", .inputs = {}, .shape = {-1, 4}},
          {.name = "block/dense",
           .operation = "linear",
           .inputs = {"x"},
           .shape = {-1, 3},
           .words = {{"computes", "linear(3)"}}}};
}

TEST(Graph, IsAGraphDefOfItsBoxes) {
  const TempFolder folder;
  EventWriter writer(folder.path());
  writer.graph(small_graph_of_boxes());
  const auto records = records_of(test::get_bytes(writer.file()));
  ASSERT_EQ(records.size(), 2U);
  const Message graph = Message(records[1]).inner(4);
  const Message last = graph.inner(1);  // of repeated fields the last
  EXPECT_EQ(last.text(1), "block/dense");
  EXPECT_EQ(last.text(2), "linear");
  EXPECT_EQ(last.text(3), "x");
  EXPECT_EQ(last.inner(5).text(1), "computes");
  EXPECT_EQ(last.inner(5).inner(2).text(2), "linear(3)");
  EXPECT_TRUE(graph.has(4));
}

TEST(Graph, WhoseBoxesDoNotFitIsAnError) {
  const TempFolder folder;
  EventWriter writer(folder.path());
  auto boxes = small_graph_of_boxes();
  boxes[1].inputs = {"y"};
  EXPECT_THAT(message_of<UsageError>([&] { writer.graph(boxes); }),
              HasSubstr("node \"block/dense\" has input \"y\", which is no node"));
  boxes[1].name = "x";
  EXPECT_THAT(message_of<UsageError>([&] { writer.graph(boxes); }), HasSubstr("two nodes \"x\""));
  boxes[1].name = "";
  EXPECT_THAT(message_of<UsageError>([&] { writer.graph(boxes); }),
              HasSubstr("a node without a name"));
  EXPECT_EQ(records_of(test::get_bytes(writer.file())).size(), 1U);  // the version alone
}

void write_run(const std::filesystem::path& folder, double rate, bool fused) {
  EventWriter writer(folder, fixed_clock);
  writer.hparams({{"rate", rate},
                  {"limit", std::numeric_limits<double>::infinity()},
                  {"rule", std::string("adam")},
                  {"fused", fused}},
                 {"loss/train", "loss/test"});
  constexpr double kInf = std::numeric_limits<double>::infinity();
  writer.scalar("loss/train", -1, 0.5);
  writer.scalar("loss/train", 0, -kInf);
  writer.scalar("loss/train", 1, kInf);
  writer.scalar("loss/train", 2, std::numeric_limits<double>::quiet_NaN());
  writer.scalar("far", 5'000'000'000, 1);
  writer.scalar("loss/test", 0, 0.25);
  std::vector<double> rising(101);
  for (size_t i = 0; i < rising.size(); ++i) rising[i] = static_cast<double>(i) / 100;
  writer.histogram("weights", 1, rising);
  writer.histogram("constant", 1, std::vector<float>(3, 2.5f));
  writer.histogram("empty", 1, std::vector<float>());
  writer.text("note", 3, "# Größe\n\n- *a*\n- b\n");
  for (int channels = 1; channels <= 4; ++channels) {
    std::vector<uint8_t> pixels(static_cast<size_t>(3 * 5 * channels));
    for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>(i * 7);
    writer.image("image/" + std::to_string(channels), 2, {3, 5, channels, pixels});
  }
  writer.graph(small_graph_of_boxes());
  writer.flush();
}

TEST(TensorBoardPython, ReadsWhatWeWrite) {
  const test::Python python("tensorboard");
  if (!python.why_not().empty()) GTEST_SKIP() << python.why_not();
  const TempFolder folder;
  write_run(folder / "first", 0.001, false);
  write_run(folder / "second", 0.01, true);
  const auto result = test::run_command(
      {".venv/bin/python", "tests/unit/observe/read_events.py", folder.path().string()});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
}

}  // namespace
}  // namespace tutti
