#include <filesystem>
#include <string>

#include "tutti/data/sources/mds.h"
#include "tutti/data/sources/open_records.h"
#include "tutti/data/sources/recognise.h"
#include "tutti/data/sources/tfrecord.h"
#include "tutti/data/sources/webdataset.h"

#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/data_sources/record_samples.h"

namespace tutti::data {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPhotos = 10;
const auto kWriters = {write_tfrecord, write_webdataset, write_mds};

std::string photo_at(int64_t i) {
  return (i % 2 == 0 ? "\xff\xd8\xff jpeg " : "\x89PNG png ") + std::to_string(i);
}

// `labels` columns of whole numbers beside a photo: i % 3, and the same again.
void write_labelled(const fs::path& folder, decltype(write_mds) write,
                    const std::vector<std::string>& labels, int64_t first_label = 0) {
  std::vector<Column> columns = {{"image", DType::uint8, {kAnySize}}};
  for (const std::string& label : labels) columns.push_back({label, DType::int64, {}});
  int64_t i = 0;
  write(folder, columns,
        [&]() -> std::optional<Sample> {
          if (i == kPhotos) return std::nullopt;
          Sample sample{{bytes_of(photo_at(i))}};
          for (size_t l = 0; l < labels.size(); ++l)
            sample.columns.push_back(scalar(i % 3 + first_label));
          ++i;
          return sample;
        },
        {});
}

TEST(PhotoRecords, AreTheSameInEveryFormat) {
  for (const auto write : kWriters) {
    const TempFolder folder;
    write_labelled(folder / "a", write, {"label"});
    const Dataset photos = photo_records(folder / "a");
    EXPECT_EQ(photos.num_samples(), kPhotos);
    EXPECT_THAT(photos.classes(), ElementsAre("0", "1", "2"));
    const Epoch epoch = photos.padded_batch(1).epoch({});
    for (int64_t i = 0; i < kPhotos; ++i) {
      const Batch row = epoch.batch(i);
      EXPECT_EQ(text_of(row.columns[0].rows(0, 1)), photo_at(i));
      EXPECT_EQ(row.columns[1].as<int64_t>()[0], i % 3);
    }
  }
}

TEST(PhotoRecords, ClassesAreTheNamedOnes) {
  const TempFolder folder;
  write_labelled(folder / "a", write_tfrecord, {"label"});
  put_bytes(folder / "a/label.labels.txt", "ant\nbee\r\ncow\n");
  EXPECT_THAT(photo_records(folder / "a").classes(), ElementsAre("ant", "bee", "cow"));
  EXPECT_THAT(photo_records(folder / "a/shard-00000.tfrecord").classes(),
              ElementsAre("ant", "bee", "cow"));
  const Dataset other = photo_records(folder / "a", {.classes = {"bee", "yak", "cow", "ant"}});
  EXPECT_THAT(other.classes(), ElementsAre("bee", "yak", "cow", "ant"));
  const Epoch epoch = other.padded_batch(1).epoch({});
  for (int64_t i = 0; i < 3; ++i)  // ant, bee, cow
    EXPECT_EQ(epoch.batch(i).columns[1].as<int64_t>()[0], (std::vector{3, 0, 2})[i]);
  EXPECT_THAT(message_of<DataError>([&] { photo_records(folder / "a", {.classes = {"x", "y"}}); }),
              HasSubstr("unknown class \"ant\""));
  EXPECT_EQ(photo_records(folder / "a", {.classes = {"0", "1", "2"}}).num_classes(), 3);
  fs::remove(folder / "a/label.labels.txt");
  const Dataset two = photo_records(folder / "a", {.classes = {"x", "y"}});
  EXPECT_THAT(message_of<DataError>([&] { two.padded_batch(1).epoch({}).batch(2); }),
              AllOf(HasSubstr("shard-00000.tfrecord, record 2"), HasSubstr("label is 2"),
                    HasSubstr("0 to 1")));
}

TEST(PhotoRecords, WhatIsNotClearIsAnErrorWithTheColumns) {
  const TempFolder folder;
  write_labelled(folder / "two", write_mds, {"label", "height"});
  EXPECT_THAT(message_of<UsageError>([&] { photo_records(folder / "two"); }),
              AllOf(HasSubstr("more than one column may be the label"),
                    HasSubstr("image (a photo), label (a whole number), height")));
  EXPECT_EQ(photo_records(folder / "two", {.label = "height"}).num_classes(), 3);
  EXPECT_THAT(message_of<UsageError>([&] { photo_records(folder / "two", {.label = "image"}); }),
              HasSubstr("got \"image\" as the label"));
  write_labelled(folder / "none", write_mds, {});
  EXPECT_THAT(message_of<UsageError>([&] { photo_records(folder / "none"); }),
              HasSubstr("no column is a label"));
  write_labelled(folder / "negative", write_webdataset, {"label"}, -1);
  EXPECT_THAT(message_of<DataError>([&] { photo_records(folder / "negative"); }),
              AllOf(HasSubstr("sample \"000000000\""), HasSubstr("label.cls is -1")));
  put_bytes(folder / "text", "no records\n");
  EXPECT_THAT(message_of<UsageError>([&] { photo_records(folder / "text"); }),
              HasSubstr("expected records"));
}

TEST(OpenRecords, HasAllColumnsOrThoseThatAreNamed) {
  for (const auto write : kWriters) {
    const TempFolder folder;
    write_labelled(folder / "a", write, {"label", "height"});
    const std::vector<std::string> names = record_columns(folder / "a");
    ASSERT_EQ(names.size(), 3u);
    EXPECT_EQ(open_records(folder / "a").columns().size(), 3u);
    const Dataset some = open_records(folder / "a", {names[2], names[0]});
    ASSERT_EQ(some.columns().size(), 2u);
    EXPECT_EQ(some.columns()[0].name, names[2].substr(0, names[2].find(';')));
    EXPECT_THROW(open_records(folder / "a", {"nothing"}), UsageError);
  }
}

TEST(WebdatasetColumns, PhotosOfWhichASampleHasOneAreOneColumn) {
  const TempFolder folder;
  write_labelled(folder / "a", write_webdataset, {"label"});
  EXPECT_THAT(webdataset_columns(folder / "a"), ElementsAre("image.jpg;image.png", "label.cls"));
}

TEST(RecogniseRecords, ByContentAndByName) {
  const TempFolder folder;
  const std::pair<decltype(&write_mds), DataKind> kinds[] = {
      {write_tfrecord, DataKind::tfrecord},
      {write_webdataset, DataKind::webdataset},
      {write_mds, DataKind::mds}};
  for (const auto& [write, kind] : kinds) {
    const fs::path place = folder / std::string(name_of(kind));
    write_labelled(place, *write, {"label"});
    EXPECT_EQ(name_of(recognise(place).kind), name_of(kind));
    EXPECT_TRUE(is_records(kind));
  }
  fs::copy_file(folder / "tfrecord/shard-00000.tfrecord", folder / "any_name");
  EXPECT_EQ(recognise(folder / "any_name").kind, DataKind::tfrecord);
  fs::copy_file(folder / "webdataset/shard-00000.tar", folder / "other_name");
  EXPECT_EQ(recognise(folder / "other_name").kind, DataKind::webdataset);
  put_bytes(folder / "damaged.tfrecord", std::string(100, '\x7f'));
  EXPECT_EQ(recognise(folder / "damaged.tfrecord").kind, DataKind::tfrecord);
  for (const char* part : {"mds/shard.00000.mds", "mds/index.json"})
    EXPECT_THAT(recognise(folder / part).sentence, HasSubstr("give the folder")) << part;

  fs::create_directory(folder / "both");
  put_bytes(folder / "both/a.tar", "x");
  put_bytes(folder / "both/a.tfrecord", "x");
  const Recognised both = recognise(folder / "both");
  EXPECT_EQ(both.kind, DataKind::unknown);
  EXPECT_THAT(both.sentence, AllOf(HasSubstr("may be 2 things"), HasSubstr("a.tar"),
                                   HasSubstr("a.tfrecord"), HasSubstr("give a folder")));
  put_bytes(folder / "both/index.json", "{}");  // of something else
  EXPECT_THAT(recognise(folder / "both").sentence, HasSubstr("may be 2 things"));
  fs::create_directories(folder / "above/train");
  put_bytes(folder / "above/train/a.tar", "x");
  EXPECT_THAT(recognise(folder / "above").sentence,
              HasSubstr("give " + (folder / "above/train").string()));
}

TEST(IndexRecords, AreMadeOnceAndAgainWhenTheyAreOlder) {
  const TempFolder folder;
  write_labelled(folder / "a", write_webdataset, {"label"});
  const fs::path tar = folder / "a/shard-00000.tar",
                 index = folder / "a/shard-00000.tar.tutti-index";
  const auto state = [&](bool check) {
    const auto reports = index_webdataset(folder / "a", {.check = check});
    EXPECT_EQ(reports.size(), 1u);
    return std::pair(reports.at(0).before, reports.at(0).made);
  };
  EXPECT_EQ(state(true), std::pair(IndexState::missing, false));
  EXPECT_FALSE(fs::exists(index));
  EXPECT_EQ(state(false), std::pair(IndexState::missing, true));
  EXPECT_EQ(state(false), std::pair(IndexState::up_to_date, false));
  tutti::test::flip_byte(index, 70);
  EXPECT_EQ(state(true), std::pair(IndexState::damaged, false));
  EXPECT_EQ(state(false), std::pair(IndexState::damaged, true));
  fs::last_write_time(tar, fs::last_write_time(tar) + std::chrono::seconds(1));
  EXPECT_EQ(state(true), std::pair(IndexState::older, false));
  EXPECT_EQ(state(false), std::pair(IndexState::older, true));
  EXPECT_EQ(index_webdataset(folder / "a").at(0).records, 2 * kPhotos);  // members

  tutti::test::cut(tar, 3000);
  const IndexReport cut = index_webdataset(tar).at(0);
  EXPECT_FALSE(cut.made);
  EXPECT_THAT(cut.error, AllOf(HasSubstr("shard-00000.tar, byte"), HasSubstr("cut off")));
}

}  // namespace
}  // namespace tutti::data
