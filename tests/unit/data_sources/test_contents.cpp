// What `tutti data verify` reads of records, value by value.
#include <gmock/gmock.h>

#include <string>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/data/detail/tfrecord_frame.h"
#include "tutti/data/npy.h"
#include "tutti/data/sources/contents.h"
#include "tutti/data/sources/detail/example.h"
#include "tutti/data/sources/detail/tar.h"
#include "tutti/data/sources/mds.h"

#include "tests/support/message_of.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/data_sources/record_samples.h"

namespace tutti::data {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the oracle's names
using detail::record_of;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

using Members = std::vector<std::pair<std::string, std::string>>;

ContentsReport contents_of_tar(const Members& members) {
  const TempFolder folder;
  std::string tar;
  for (const auto& [name, data] : members) detail::append_tar_member(tar, name, data);
  put_bytes(folder / "a.tar", tar + detail::tar_end());
  return read_contents(folder / "a.tar");
}

ContentsReport contents_of_records(const std::vector<std::string>& records) {
  const TempFolder folder;
  std::string file;
  for (const std::string& record : records) file += record_of(record);
  put_bytes(folder / "a.tfrecord", file);
  return read_contents(folder / "a.tfrecord");
}

std::string npy(int64_t i) { return npy_bytes(array_of(x_at(i), {2, 3})); }

// Two members each, nothing a photo.
Members sound_members(int64_t samples) {
  Members members;
  for (int64_t i = 0; i < samples; ++i) {
    const std::string key = "k" + std::to_string(i);
    members.emplace_back(key + ".x.npy", npy(i));
    members.emplace_back(key + ".cls", std::to_string(i));
  }
  return members;
}

TEST(Contents, ArraysNumbersAndJsonOfATarAreRead) {
  Members members = sound_members(8);
  EXPECT_THAT(contents_of_tar(members).damaged, IsEmpty());
  EXPECT_THAT(contents_of_tar(members).notes, IsEmpty());
  members[2].second.resize(members[2].second.size() - 4);                     // k1.x.npy
  members[5].second = "seven";                                                // k2.cls
  members[6].second = npy_bytes(array_of(std::vector<double>(6, 1.0), {6}));  // k3.x.npy
  members.erase(members.begin() + 9);                                         // k4.cls
  members.emplace_back("k8.x.npy", npy(8));
  members.emplace_back("k8.cls", "8");
  members.emplace_back("k8.json", "{\"cut\": ");
  const ContentsReport report = contents_of_tar(members);
  EXPECT_EQ(report.samples, 9);
  EXPECT_THAT(report.damaged,
              ElementsAre(AllOf(HasSubstr("a.tar, sample \"k1\" (byte "),
                                HasSubstr("member \"x.npy\": got 148 bytes, expected 128")),
                          AllOf(HasSubstr("\"k2\""), HasSubstr("got \"seven\"")),
                          AllOf(HasSubstr("\"k3\""), HasSubstr("\"x.npy\" is float64 [?]"),
                                HasSubstr("expected float32 [?, ?]")),
                          AllOf(HasSubstr("\"k4\""), HasSubstr("there is no \"cls\""),
                                HasSubstr("there are: x.npy")),
                          AllOf(HasSubstr("\"k8\""), HasSubstr("\"json\""))));
}

TEST(Contents, PhotosOfATarAreDecodedWhateverTheyAreCalled) {
  const std::string cut_off = "\xff\xd8\xff";
  const ContentsReport report = contents_of_tar(
      {{"a.jpg", "no photo"}, {"b.png", cut_off}, {"c.image", cut_off}, {"d.image", "words"}});
  EXPECT_THAT(report.damaged,
              ElementsAre(AllOf(HasSubstr("\"a\""), HasSubstr("member \"jpg\": decode()")),
                          AllOf(HasSubstr("\"b\""), HasSubstr("member \"png\": decode()")),
                          AllOf(HasSubstr("\"c\""), HasSubstr("member \"image\": decode()"))));
}

TEST(Contents, WhatIsReadAsBytesAndWhatFewHaveIsSaid) {
  Members members = sound_members(4);
  members.emplace_back("k3.mp4", "film");
  const ContentsReport report = contents_of_tar(members);
  EXPECT_THAT(report.damaged, IsEmpty());
  EXPECT_THAT(report.notes, ElementsAre("read as bytes, whatever they are: mp4 (1)",
                                        "in half of the samples or fewer: mp4 (1)"));
}

// A photo is a column, whether it is a .jpg or a .png.
TEST(Contents, KindsOfPhotosAreNoLack) {
  const std::string photo = "\xff\xd8\xff";
  const ContentsReport report =
      contents_of_tar({{"a.jpg", photo}, {"b.jpg", photo}, {"c.jpeg", photo}, {"d.PNG", photo}});
  EXPECT_THAT(report.damaged, SizeIs(4));
  EXPECT_THAT(report.damaged, Each(Not(HasSubstr("there is no"))));
}

TEST(Contents, PhotosWithDotsInTheirNamesAreFewerSamples) {
  const ContentsReport report = contents_of_tar({{"a.0.json", "1"},
                                                 {"a.1.json", "1"},
                                                 {"p.0.jpg", ""},
                                                 {"p.1.jpg", ""},
                                                 {"p.2.jpg", ""},
                                                 {"q.left.jpg", ""},
                                                 {"q.right.jpg", ""}});
  EXPECT_THAT(report.damaged.back(),
              AllOf(HasSubstr("3 photos are parts of 1 samples"), HasSubstr("p.0.jpg, p.1.jpg")));
}

TEST(Contents, EveryFeatureOfEveryRecordIsRead) {
  const std::vector<Column> columns = {{"x", DType::float32, {kAnySize}},
                                       {"image", DType::uint8, {kAnySize}},
                                       {"label", DType::int64, {}}};
  const auto record = [&](int64_t i, const std::string& image) {
    return detail::encode_example(columns,
                                  {{array_of(x_at(i), {6}), bytes_of(image), scalar(label_of(i))}});
  };
  std::vector<std::string> records;
  for (int64_t i = 0; i < 20; ++i) records.push_back(record(i, "words"));
  const ContentsReport sound = contents_of_records(records);
  EXPECT_EQ(sound.samples, 20);
  EXPECT_THAT(sound.damaged, IsEmpty());
  EXPECT_THAT(sound.notes, ElementsAre("read as bytes, whatever they are: image (20)"));
  records[18] = record(18, "\xff\xd8\xff");
  records[19] = detail::encode_example({columns[0]}, {{array_of(x_at(1), {6})}});
  records[2].resize(records[2].size() - 3);
  EXPECT_THAT(contents_of_records(records).damaged,
              ElementsAre(HasSubstr("record 2 (byte"),
                          AllOf(HasSubstr("record 18"), HasSubstr("feature \"image\": decode()")),
                          AllOf(HasSubstr("record 19"), HasSubstr("there is no \"image\"")),
                          AllOf(HasSubstr("record 19"), HasSubstr("there is no \"label\""))));
}

// A message's field of bytes: number << 3 | 2, length, bytes.
std::string field(int number, const std::string& bytes) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(bytes.size())} + bytes;
}

// As of the classes of what is seen in a photo.
TEST(Contents, ListsOfStringsVaryInLength) {
  const auto record = [](const std::vector<std::string>& strings) {
    std::string list;
    for (const std::string& one : strings) list += field(1, one);
    return field(1, field(1, field(1, "text") + field(2, field(1, list))));
  };
  const ContentsReport report =
      contents_of_records({record({"ant"}), record({"bee", "fly", "ant"}), record({"bee", "ant"})});
  EXPECT_EQ(report.samples, 3);
  EXPECT_THAT(report.damaged, IsEmpty());
}

TEST(Contents, ListsOfASequenceExampleAreReadAndSaid) {
  const std::string number = field(3, field(1, "\x07")), broken = field(3, field(1, "\x87"));
  const auto record = [&](const std::string& value) {
    const std::string context = field(1, field(1, "id") + field(2, number));
    const std::string frames = field(1, field(1, "frames") + field(2, field(1, value)));
    return field(1, context) + field(2, frames);
  };
  const ContentsReport sound = contents_of_records({record(number), record(number)});
  EXPECT_THAT(sound.damaged, IsEmpty());
  EXPECT_THAT(sound.notes,
              ElementsAre("lists of a SequenceExample, of which no column is made: frames"));
  EXPECT_THAT(contents_of_records({record(number), record(broken)}).damaged,
              ElementsAre(HasSubstr("record 1")));
}

TEST(Contents, RecordsOfOtherBytesHaveChecksumsAlone) {
  const ContentsReport report = contents_of_records({"any bytes", "others"});
  EXPECT_EQ(report.samples, 2);
  EXPECT_THAT(report.damaged, IsEmpty());
  EXPECT_THAT(report.notes, ElementsAre(HasSubstr("no columns, checksums alone")));
}

TEST(Contents, ValuesOfMdsAreRead) {
  const TempFolder folder;
  std::vector<std::string> images = {"\xff\xd8\xff", "words"};
  write_mds(folder / "a", {{"image", DType::uint8, {kAnySize}}, {"y", DType::int64, {}}},
            [&]() -> std::optional<Sample> {
              if (images.empty()) return std::nullopt;
              Sample sample{{bytes_of(images.back()), scalar(int64_t{1})}};
              images.pop_back();
              return sample;
            });
  const ContentsReport report = read_contents(folder / "a");
  EXPECT_EQ(report.samples, 2);
  EXPECT_THAT(report.damaged, ElementsAre(AllOf(HasSubstr("sample 1 (byte"),
                                                HasSubstr("column \"image\": decode()"))));
  EXPECT_THAT(report.notes, ElementsAre("read as bytes, whatever they are: image (1)"));
  put_bytes(folder / "words", "no records, but words\n");
  EXPECT_THAT(message_of<UsageError>([&] { read_contents(folder / "words"); }),
              HasSubstr("expected records"));
}

}  // namespace
}  // namespace tutti::data
