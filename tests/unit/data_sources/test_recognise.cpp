#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "tutti/data/detail/tfrecord_frame.h"
#include "tutti/data/sources/recognise.h"

#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/data/gzip_support.h"
#include "tests/unit/data_sources/rows.h"

namespace tutti::data {
namespace {

namespace fs = std::filesystem;

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
      {std::string("\x89PNG\r\n\0\0", 8), DataKind::unknown, "one photo (png)"},
      {"\xff\xd8\xff\xe0 a,b\n1,2\n", DataKind::unknown, "one photo (jpg)"},
      {std::string("\x7f"
                   "ELF\1\0",
                   6),
       DataKind::unknown, "a binary file that begins with 7f 45"},
      {gzip("a,b\n1,2\n"), DataKind::unknown, "gunzip"},
  };
  for (const Case& one : cases) {
    const Recognised found = recognise_bytes(one.bytes);
    EXPECT_EQ(name_of(found.kind), name_of(one.kind)) << one.bytes.substr(0, 40);
    EXPECT_THAT(found.sentence, HasSubstr(one.words));
  }
}

TEST(Recognise, TextInUtf16IsSaidToBeThat) {
  const TempFolder folder;
  for (const char* name : {"file", "rows.csv", "rows.jsonl"})
    for (const std::string& bytes : {std::string("\xFF\xFE"
                                                 "a\0,\0b\0",
                                                 8),
                                     std::string("\xFE\xFF\0a\0,\0b", 8)}) {
      put_bytes(folder / name, bytes);
      const Recognised found = recognise(folder / name);
      EXPECT_EQ(name_of(found.kind), "unknown") << name;
      EXPECT_THAT(found.sentence, HasSubstr("text in UTF-16, expected UTF-8: iconv")) << name;
    }
}

TEST(Recognise, APipeIsNotWaitedFor) {
  const TempFolder folder;
  ASSERT_EQ(::mkfifo((folder / "table.csv").c_str(), 0600), 0);
  EXPECT_THAT(message_of<DataError>([&] { recognise(folder / "table.csv"); }),
              HasSubstr("got a pipe, expected a regular file"));
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
      {"colour,kind\nred,a\nblue,b\n", ',', true, "named by its first line"},
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

// As people write names, and rows that may be taken for them.
TEST(Recognise, WhetherTheFirstLineOfATableNamesItsColumns) {
  struct Case {
    const char* bytes;
    bool header;
  };
  const Case cases[] = {
      // words alone: names where they differ and none comes again in its column
      {"class,cap,odor\np,f,a\ne,k,c\ne,f,a\n", true},
      {"p,f,a\ne,k,c\ne,f,a\n", false},
      {"p,f,f\ne,k,c\n", false},
      {"sea,?,a\nyard,b,c\n", false},
      // numbers among the names
      {"town,2019,2020,price\nsea,50,51,100\nyard,97,98,97\n", true},
      {"label,0,1,2\n7,0,0,255\n4,0,0,1\n", true},
      {"label,1x1,1x2\n7,0,0\n4,0,1\n", true},
      {"country,Lat,1/22/20\nItaly,41.9,0\nPeru,-9.2,1\n", true},
      {"18.5,8,chevy\n15,8,buick\n", false},
      {"country,2020-01-22,2020-01-23\nSpain,1,2\nItaly,3,4\n", true},
      {"name,100m,200m\nEva,12.5,25\nUwe,13,27\n", true},
      {"country,2019,2020\nSpain,1.5,2.5\nItaly,3.5,4.5\n", true},
      {"Spain,2019\nItaly,310\nPeru,250\n", false},
      {"17,unknown,1\n42,7,0\n23,9,1\n31,4,0\n", false},
      {"A/5 21171,7,3\n17599,71,1\n113803,53,1\n", false},
      {"2021,unknown\n2020,7\n2019,9\n", false},
      // no column without a gap
      {"species,bill,sex\nGentoo,43.8,male\nAdelie,NA,NA\n", true},
      {"species,bill,flipper\nGentoo,-,1\nAdelie,4,-\nAdelie,5,2\n", true},
      {"Gentoo,-,1\nAdelie,4,-\nAdelie,-,2\n", false},
      {"Adelie,NA,male\nGentoo,43.8,male\nAdelie,40,female\n", false},
      // numbers in another writing are no names
      {"0,370;14285,71\n0,626;13857,14\n", false},
      {"ratio;price\n0,370;14285,71\n0,626;13857,14\n", true},
      {"2019-01-02,50%\n2019-01-03,60%\n", false},
      // an index without a name; files put together; a name that is there twice is for csv() to see
      {",a,b\n0,x,y\n1,x,z\n", true},
      {"a,b\n1,2\na,b\n3,4\n", true},
      {"a,a\n1,2\n", true},
  };
  for (const Case& one : cases) {
    EXPECT_EQ(recognise_bytes(one.bytes).kind, DataKind::csv) << one.bytes;
    EXPECT_EQ(recognise_bytes(one.bytes).header, one.header) << one.bytes;
    const TempFolder folder;
    put_bytes(folder / "file", one.bytes);
    for (const bool told : {true, false})
      EXPECT_EQ(recognise(folder / "file", local_files(), told).header, told) << one.bytes;
  }
  // Commas and semicolons cut these into as many fields.
  const TempFolder folder;
  put_bytes(folder / "file", "7,4;0,7\n7,8;0,88\n");
  EXPECT_EQ(recognise(folder / "file").delimiter, ';');
  put_bytes(folder / "file", "x,y;z\np,q;r\ns,t;u\n");
  EXPECT_EQ(recognise(folder / "file").delimiter, ',');
  EXPECT_EQ(recognise(folder / "file", local_files(), {}, ',').delimiter, ';');
  // A name that comes again after the rows by which a table is known.
  std::string late = "red,a\n";
  for (int row = 0; row < 100; ++row) late += "blue,b\ngreen,c\n";
  EXPECT_FALSE(recognise_bytes(late + "red,c\n").header);
  EXPECT_TRUE(recognise_bytes(late).header);
}

// Whoever opens it finds the line.
TEST(Recognise, WhatIsCalledATableIsOne) {
  struct Case {
    const char* bytes;
    char delimiter;
    const char* words;
  };
  const Case cases[] = {
      {"area,view\n1,sea,\n2,yard,\n3,sea,\n", ',', "3 columns"},
      {"sep=;\narea;view\n1;sea\n2;yard\n", ';', "2 columns"},
      {"\"area\",\"view\"\n\"1\",37,\"sea\"\n\"2\",35,\"yard\"\n", ',', "3 columns"},
      {"area,view\r1,sea\r2,yard\r", ',', "a table"},
      {"price\n1\n2\n", ',', "1 column,"},
      {"a,b\n", ',', "2 columns"},
      {"One, two, three.\nA line.\nAnother,\nand one, more, of them\n", ',', "a table"},
  };
  const TempFolder folder;
  for (const Case& one : cases)
    for (const char* name : {"rows.csv", "ROWS.CSV", "rows.tsv"}) {
      put_bytes(folder / name, one.bytes);
      const Recognised found = recognise(folder / name);
      EXPECT_EQ(name_of(found.kind), "csv") << one.bytes;
      if (std::string(name) == "rows.tsv") continue;
      EXPECT_EQ(found.delimiter, one.delimiter) << one.bytes;
      EXPECT_THAT(found.sentence, HasSubstr(one.words));
    }
  put_bytes(folder / "one.tsv", "price\n1\n");
  EXPECT_EQ(recognise(folder / "one.tsv").delimiter, '\t');
}

TEST(Recognise, ADamagedTableThatIsCalledOne) {
  const TempFolder folder;
  const std::string damaged = "a,b\n1,2\n3,4\n5\n6,7,8\n9,10\n";
  put_bytes(folder / "rows.csv", damaged);
  put_bytes(folder / "rows.txt", damaged);
  put_bytes(folder / "words.csv", "One, two, three.\nA line.\nAnother,\nand one, more, of them\n");
  EXPECT_EQ(name_of(recognise(folder / "rows.csv").kind), "csv");
  EXPECT_EQ(name_of(recognise(folder / "rows.txt").kind), "text");
  EXPECT_EQ(name_of(recognise(folder / "words.csv").kind), "csv");
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
  EXPECT_THAT(message_of<DataError>([&] { recognise(folder / "none"); }), HasSubstr("none"));
}

TEST(Recognise, ShardsOfMdsNeedTheirIndex) {
  const TempFolder folder;
  put_bytes(folder / "shard.00000.mds", "x");
  put_bytes(folder / "shard.00001.mds.zstd", "x");
  put_bytes(folder / "notes.txt", "x");
  const auto expected = AllOf(HasSubstr("2 shards of MDS (shard.00000.mds, shard.00001.mds.zstd)"),
                              HasSubstr("without the index.json"));
  for (const char* index : {"", "{}"}) {
    if (*index != '\0') put_bytes(folder / "index.json", index);
    EXPECT_EQ(name_of(recognise(folder.path()).kind), "unknown");
    EXPECT_THAT(recognise(folder.path()).sentence, expected) << index;
  }
  put_bytes(folder / "index.json", "{\"version\": 2, \"shards\": []}");
  EXPECT_EQ(name_of(recognise(folder.path()).kind), "mds");
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
      {"quickdraw/simplified/cat.ndjson", DataKind::strokes},
      {"quickdraw/numpy_bitmap", DataKind::quickdraw},
      {"quickdraw/binary/cat.bin", DataKind::strokes},
      {"quickdraw/raw", DataKind::strokes},
      {"hymenoptera/val", DataKind::image_folder},
      {"flowers128", DataKind::image_folder},
      {"mnist", DataKind::unknown},
  };
  for (const auto& [path, kind] : cases)
    EXPECT_EQ(name_of(recognise(shared / path).kind), name_of(kind)) << path;
}

}  // namespace
}  // namespace tutti::data
