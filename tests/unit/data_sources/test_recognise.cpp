#include <gmock/gmock.h>

#include <filesystem>
#include <string>

#include "tutti/base/error.h"
#include "tutti/data/detail/tfrecord_frame.h"
#include "tutti/data/sources/recognise.h"

#include "tests/support/message_of.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/data/gzip_support.h"
#include "tests/unit/data_sources/rows.h"

namespace tutti::data {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using tutti::test::gzip;
using tutti::test::put_bytes;
using tutti::test::TempFolder;
using tutti::test::zlib;

Recognised recognise_bytes(const std::string& bytes) {
  const TempFolder folder;
  put_bytes(folder / "file", bytes);
  return recognise(folder / "file");
}

TEST(Recognise, FilesByTheirContent) {
  struct Case {
    std::string bytes;
    DataKind kind;
    std::string words;
  };
  const std::string idx("\0\0\x08\x03\0\0\0\1\0\0\0\1\0\0\0\1x", 17);
  const std::string line = "{\"text\": \"" + std::string(1 << 17, 'a') + "\"}\n";
  const Case cases[] = {
      {idx, DataKind::idx, "3 dimensions"},
      {gzip(idx), DataKind::idx, "gzipped"},
      {gzip(idx + std::string(1 << 20, '\1')), DataKind::idx, "gzipped"},
      {"{\"a\": 1}\n{\"a\": 2}\n", DataKind::jsonl, "JSON lines"},
      {"\n{\"a\": 1}", DataKind::jsonl, "JSON lines"},
      {line, DataKind::jsonl, "JSON lines"},
      {"{ not JSON\nbut text }\n", DataKind::text, "text"},
      {"Once upon a time,\nthere was, it seems, a line.\n", DataKind::text, "text: 47 bytes"},
      {"word\n", DataKind::text, "text"},
      {"", DataKind::unknown, "empty"},
      {std::string("\x89PNG\r\n\0\0", 8), DataKind::unknown, "89 50 4e 47"},
      {gzip("a,b\n1,2\n"), DataKind::unknown, "gunzip"},
  };
  for (const Case& one : cases) {
    const Recognised found = recognise_bytes(one.bytes);
    EXPECT_EQ(name_of(found.kind), name_of(one.kind)) << one.bytes.substr(0, 40);
    EXPECT_THAT(found.sentence, HasSubstr(one.words));
  }
}

TEST(Recognise, TheEndOfANameCounts) {
  const TempFolder folder;
  const auto kind_of = [&](const char* name, const std::string& bytes) {
    put_bytes(folder / name, bytes);
    return recognise(folder / name).kind;
  };
  const std::string lines = "{\"a\": 1}\n{\"a\": 2}\n", mark = "\xef\xbb\xbf";
  EXPECT_EQ(kind_of("marked", mark + lines), DataKind::jsonl);
  EXPECT_EQ(kind_of("marked.jsonl", mark + lines), DataKind::jsonl);
  EXPECT_EQ(kind_of("broken.jsonl", "{\"a\": 1\n"), DataKind::jsonl);
  EXPECT_EQ(kind_of("words.NDJSON", "no object\n"), DataKind::jsonl);
  EXPECT_EQ(kind_of("pretty.json", "[\n 1,\n 2\n]\n"), DataKind::unknown);
  EXPECT_EQ(kind_of("lines.json", lines), DataKind::jsonl);
  EXPECT_EQ(kind_of("words.tar", "no tar"), DataKind::webdataset);
  EXPECT_EQ(kind_of("words.tfrecord", "no records"), DataKind::tfrecord);
  EXPECT_EQ(kind_of("packed", zlib(detail::record_of("one"))), DataKind::tfrecord);
  EXPECT_EQ(kind_of("words", "x^2 is a square,\nit seems.\n"), DataKind::text);
}

TEST(Recognise, PhotosByTheirContent) {
  const TempFolder folder;
  fs::create_directories(folder / "a/ants");
  fs::create_directories(folder / "a/bees");
  put_bytes(folder / "a/ants/notes.txt", "no photo");
  put_bytes(folder / "a/ants/photo", "\xff\xd8\xff");
  EXPECT_EQ(recognise(folder / "a").kind, DataKind::image_folder);
  fs::remove(folder / "a/ants/photo");
  EXPECT_EQ(recognise(folder / "a").kind, DataKind::unknown);
}

TEST(Recognise, HowTablesAreWritten) {
  struct Case {
    std::string bytes;
    char delimiter;
    bool header;
    std::string words;
  };
  std::string long_table = "a,b\n";
  for (int i = 0; i < 20'000; ++i) long_table += "1234,5678\n";
  const Case cases[] = {
      {"a|b\n1|2\n", '|', true, "2 columns, delimited by bars, named by its first line"},
      {"a,b\n1,2\n", ',', true, "2 columns, delimited by commas, named by its first line"},
      {"1,2\n3,4\n", ',', false, "without a line of names"},
      {"39, State-gov, x\n50, Private, y\n", ',', false, "3 columns"},
      {"a;b\n1,5;2\n", ';', true, "semicolons"},
      {"a\tb c\n1\t2\n", '\t', true, "tabs"},
      {"18.0   8\t\"a b\"\n15.0   8\t\"c\"\n", ' ', false, "3 columns, delimited by blanks"},
      {"id,title\n1,\"One, two\"\n2,Three\n", ',', true, "2 columns"},
      {"colour,kind\nred,a\nblue,b\n", ',', false, "without"},
      {long_table, ',', true, "2 columns"},
  };
  for (const Case& one : cases) {
    const Recognised found = recognise_bytes(one.bytes);
    EXPECT_EQ(name_of(found.kind), "csv") << one.bytes.substr(0, 40);
    EXPECT_EQ(found.delimiter, one.delimiter) << one.bytes.substr(0, 40);
    EXPECT_EQ(found.header, one.header) << one.bytes.substr(0, 40);
    EXPECT_THAT(found.sentence, HasSubstr(one.words));
  }
}

TEST(Recognise, ADamagedTableThatIsCalledOne) {
  const TempFolder folder;
  const std::string damaged = "a,b\n1,2\n3,4\n5\n6,7,8\n9,10\n";
  put_bytes(folder / "rows.csv", damaged);
  put_bytes(folder / "rows.txt", damaged);
  put_bytes(folder / "words.csv", "One, two, three.\nA line.\nAnother,\nand one, more, of them\n");
  EXPECT_EQ(name_of(recognise(folder / "rows.csv").kind), "csv");
  EXPECT_EQ(name_of(recognise(folder / "rows.txt").kind), "text");
  EXPECT_EQ(name_of(recognise(folder / "words.csv").kind), "text");
}

TEST(Recognise, FoldersByWhatIsInThem) {
  const TempFolder folder;
  const auto add = [&](const std::string& path) {
    fs::create_directories((folder / path).parent_path());
    put_bytes(folder / path, "x");
  };
  EXPECT_EQ(recognise(folder.path()).kind, DataKind::unknown);
  add("photos/train/ants/1.jpg");
  add("photos/train/bees/1.JPG");
  add("doodles/cat.npy.gz");
  add("doodles/LICENSE");
  const Recognised photos = recognise(folder / "photos/train");
  EXPECT_EQ(photos.kind, DataKind::image_folder);
  EXPECT_THAT(photos.sentence, HasSubstr("2 classes (ants, bees)"));
  const Recognised doodles = recognise(folder / "doodles");
  EXPECT_EQ(doodles.kind, DataKind::quickdraw);
  EXPECT_THAT(doodles.sentence, HasSubstr("1 files of classes (cat.npy.gz)"));
  const Recognised above = recognise(folder / "photos");
  EXPECT_EQ(above.kind, DataKind::unknown);
  EXPECT_THAT(above.sentence, HasSubstr("give " + (folder / "photos/train").string()));
  EXPECT_THAT(tutti::test::message_of<DataError>([&] { recognise(folder / "none"); }),
              HasSubstr("none"));
}

TEST(Recognise, RealData) {
  const fs::path shared = test::shared_data();
  if (!fs::exists(shared)) GTEST_SKIP() << "there is no " << shared;
  const std::pair<const char*, DataKind> cases[] = {
      {"adult/adult.data", DataKind::csv},
      {"auto-mpg/auto-mpg.data", DataKind::csv},
      {"california-housing/housing_every4th.csv", DataKind::csv},
      {"movielens-small/movies.csv", DataKind::csv},
      {"mnist/train-images-idx3-ubyte.gz", DataKind::idx},
      {"fashion-mnist/t10k-labels-idx1-ubyte.gz", DataKind::idx},
      {"tinyshakespeare/input.txt", DataKind::text},
      {"adult/adult.names", DataKind::text},
      {"quickdraw/simplified/cat.ndjson", DataKind::jsonl},
      {"quickdraw/numpy_bitmap", DataKind::quickdraw},
      {"quickdraw/binary/cat.bin", DataKind::unknown},
      {"hymenoptera/val", DataKind::image_folder},
      {"flowers128", DataKind::image_folder},
      {"mnist", DataKind::unknown},
  };
  for (const auto& [path, kind] : cases)
    EXPECT_EQ(name_of(recognise(shared / path).kind), name_of(kind)) << path;
}

}  // namespace
}  // namespace tutti::data
