#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "tutti/base/sha256.h"
#include "tutti/data/loader/loader.h"
#include "tutti/data/sources/recognise.h"
#include "tutti/data/sources/strokes.h"
#include "tutti/data/transforms/strokes.h"
#include "tutti/data/transforms/transforms.h"

#include "tests/support/expect.h"
#include "tests/unit/data_sources/strokes_test.h"

namespace tutti::data {
namespace {

using Strokes = StrokeFiles;

TEST_F(Strokes, AllFormatsHaveTheSameRows) {
  const PlainDrawing cat{.key_id = 17, .strokes = kCross};
  const PlainDrawing dog{
      .word = "dog", .key_id = 5, .strokes = {kCross[1]}, .country = "ZZ", .recognized = false};
  for (const fs::path& path : {put("all.ndjson", ndjson_of(dog) + "\n" + ndjson_of(cat)),
                               put("all.csv", kKaggleHeader + csv_of(dog) + csv_of(cat))}) {
    const Dataset data = strokes(path, {.details = true});
    EXPECT_THAT(words_of(data.columns()),
                ElementsAre("strokes float32 [?, 4]", "key_id int64 []", "countrycode uint8 [2]",
                            "recognized bool []", "timestamp int64 []", "y int64 []"));
    EXPECT_THAT(data.classes(), ElementsAre("cat", "dog"));
    ASSERT_EQ(data.num_samples(), 2) << path;
    const auto row = row_of(data, 1), first = row_of(data, 0);
    EXPECT_EQ(values_of<float>(row[0]), kPointsOfCross);
    EXPECT_THAT(values_of<int64_t>(row[1]), ElementsAre(17));
    EXPECT_EQ(text_of(row[2]), "DE");
    EXPECT_THAT(values_of<bool>(row[3]), ElementsAre(true));
    EXPECT_THAT(values_of<int64_t>(row[4]), ElementsAre(1488497110));
    EXPECT_THAT(values_of<int64_t>(row[5]), ElementsAre(0));
    EXPECT_THAT(values_of<bool>(first[3]), ElementsAre(false));
    EXPECT_THAT(values_of<int64_t>(first[5]), ElementsAre(1));
    const KeyedStrokes keyed = keyed_strokes(path);
    EXPECT_THAT(keyed.keys, ElementsAre(5, 17));
    EXPECT_EQ(values_of<float>(row_of(keyed.drawings, 1)[0]), kPointsOfCross);
    EXPECT_EQ(keyed.where(1), path.string() + ", line 3");
  }
  fs::create_directory(folder_ / "binary");
  put("binary/dog.bin", binary_of(dog) + binary_of(dog));
  put("binary/cat.bin", binary_of(cat));
  put("binary/LICENSE", "words");
  const Dataset data = strokes(folder_ / "binary", {.details = true});
  ASSERT_EQ(data.num_samples(), 3);
  const auto row = row_of(data, 0);
  EXPECT_EQ(values_of<float>(row[0]), kPointsOfCross);
  EXPECT_THAT(values_of<int64_t>(row[4]), ElementsAre(1488497110));
  EXPECT_THAT(values_of<int64_t>(row_of(data, 2)[5]), ElementsAre(1));
}

TEST_F(Strokes, RawDrawingsHaveTimesAndDots) {
  const auto path = put("cat.ndjson", ndjson_of({.strokes = kRaw}));
  EXPECT_THAT(values_of<float>(row_of(strokes(path), 0)[0]),
              ElementsAre(-10.5F, 20, 0, 0, 700, 30.25F, 40, 0, 5, 6, 41, 1));
}

// As some programs have them: since 1970, or before what they begin with.
TEST_F(Strokes, TimesAreThoseSinceTheFirstPoint) {
  const auto times = [&](std::vector<double> raw) {
    const auto path = put("t.ndjson", ndjson_of({.strokes = {{{1, 2, 3}, {4, 5, 6}, raw}}}));
    const auto points = values_of<float>(row_of(strokes(path), 0)[0]);
    return std::vector{points[2], points[6], points[10]};
  };
  EXPECT_THAT(times({1488497110000, 1488497110250, 1488497110251}), ElementsAre(0, 250, 251));
  EXPECT_THAT(times({-5, -5, 7}), ElementsAre(0, 0, 12));
  EXPECT_THAT(times({1e300, 1e300, 1e300}), ElementsAre(0, 0, 0));
  EXPECT_THAT(times({0, 1, 1e9}), ElementsAre(0, 1, 1e9F));
  EXPECT_THAT(refusal_of_strokes("[[[1,2],[1,2],[0,1000000001]]]"),
              HasSubstr("stroke 1, point 2: got time 1000000001, expected at most 1000000000 ms "
                        "after the first point's, 0"));
  EXPECT_THAT(refusal_of_strokes("[[[1],[1],[0]],[[1],[1],[1e300]]]"),
              HasSubstr("stroke 2, point 1: got time 1e+300"));
  EXPECT_THAT(refusal_of_strokes("[[[1],[1],[-1e308]],[[1],[1],[1e308]]]"),
              HasSubstr("expected at most"));
}

TEST_F(Strokes, KagglesTestFilesHaveNoWords) {
  const auto path = put(
      "test.csv", "key_id,countrycode,drawing\n9000003627287624,DE,\"" + json_of(kCross) + "\"\n");
  EXPECT_FALSE(strokes_are_labelled(path));
  EXPECT_THAT(message_of<DataError>([&] { strokes(path); }),
              AllOf(HasSubstr("no column \"word\""), HasSubstr("labelled = false")));
  const Dataset data = strokes(path, {.labelled = false});
  EXPECT_THAT(words_of(data.columns()), ElementsAre("strokes float32 [?, 4]"));
  EXPECT_TRUE(data.classes().empty());
  EXPECT_EQ(values_of<float>(row_of(data, 0)[0]), kPointsOfCross);
  EXPECT_THAT(keyed_strokes(path).keys, ElementsAre(9000003627287624));
}

TEST_F(Strokes, ClassesAreThoseOfTheChallengeWhereTheyAreAskedFor) {
  const std::vector<std::string>& classes = kaggle_classes();
  EXPECT_EQ(classes.size(), 340U);
  EXPECT_TRUE(std::ranges::is_sorted(classes));
  EXPECT_EQ(std::set(classes.begin(), classes.end()).size(), 340U);
  const auto path = put("all.ndjson", ndjson_of({.word = "zigzag", .strokes = kCross}));
  EXPECT_THAT(values_of<int64_t>(row_of(strokes(path, {.classes = classes}), 0)[1]),
              ElementsAre(339));
  EXPECT_THAT(
      refusal("all.ndjson",
              ndjson_of({.strokes = kCross}) + ndjson_of({.word = "rifel", .strokes = kCross}), 0,
              {.classes = {"cat", "rifle"}}),
      AllOf(HasSubstr("all.ndjson, line 2"), HasSubstr("\"rifel\""), HasSubstr("rifle")));
}

TEST_F(Strokes, DamageIsNamedWithStrokeAndPoint) {
  EXPECT_THAT(refusal_of_strokes("[[[1,2],[1,2]],[[1],[2]]]"),
              HasSubstr("cat.ndjson, line 1, stroke 2: got 1 point, expected 2 or more"));
  EXPECT_THAT(refusal_of_strokes("[[[1,2],[1,256]]]"),
              HasSubstr("stroke 1, point 2: got y 256, expected a whole number, 0 to 255"));
  EXPECT_THAT(refusal_of_strokes("[[[1,-1],[1,2]]]"), HasSubstr("point 2: got x -1"));
  EXPECT_THAT(refusal_of_strokes("[[[1,2.5],[1,2]]]"), HasSubstr("point 2: got x 2.5"));
  EXPECT_THAT(refusal_of_strokes("[[[1,2,3],[1,2]]]"),
              HasSubstr("stroke 1: got 3 x and 2 y, expected as many: is it cut off?"));
  EXPECT_THAT(refusal_of_strokes("[[[1,2],[1,2],[5]]]"), HasSubstr("got 2 x and 1 times"));
  EXPECT_THAT(refusal_of_strokes("[[[1,2],[1,2],[5,4]]]"),
              HasSubstr("stroke 1, point 2: got time 4 after 5"));
  EXPECT_THAT(refusal_of_strokes("[[[1,2],[1,2],[5,6]],[[1,2],[1,2],[4,9]]]"),
              HasSubstr("stroke 2, point 1: got time 4 after 6"));
  EXPECT_THAT(refusal_of_strokes("[[[1,2],[1,2],[5,6]],[[1,2],[1,2]]]"),
              HasSubstr("stroke 2: got 2 lists, expected 3"));
  EXPECT_THAT(refusal_of_strokes("[[[1,1e6],[1,2],[5,6]]]"), HasSubstr("point 2: got x 1000000"));
  EXPECT_THAT(refusal_of_strokes("[[[1,2]]]"), HasSubstr("expected x and y"));
  EXPECT_THAT(refusal_of_strokes("[[[1,2],[1,2],[1,2],[1,2]]]"), HasSubstr("at most x, y and"));
  EXPECT_THAT(refusal_of_strokes("[]"), HasSubstr("without strokes"));
  EXPECT_THAT(refusal_of_strokes("[[[],[]]]"), HasSubstr("got 0 points"));
  EXPECT_THAT(refusal_of_strokes("7"), HasSubstr("expected a list of strokes"));
  EXPECT_THAT(refusal_of_strokes(R"([[["a",2],[1,2]]])"), HasSubstr("expected a number"));
  for (const char* number :
       {"02", "1.", "1.e5", ".5", "+1", "0x1", "nan", "1e999", "--1", "12345678901x"})
    EXPECT_THAT(refusal_of_strokes(fmt::format("[[[1,{}],[1,2]]]", number)),
                AnyOf(HasSubstr("no JSON"), HasSubstr("a number"), HasSubstr("','")))
        << number;
}

TEST_F(Strokes, DamagedLinesAreNamedAndTheRestIsRead) {
  const std::string good = ndjson_of({.strokes = kCross});
  EXPECT_THAT(refusal("a.ndjson", good + "\n" + good.substr(0, 60) + "\n" + good, 1),
              AllOf(HasSubstr("a.ndjson, line 3: no JSON: "), HasSubstr("line 1, column")));
  const Dataset data = strokes(folder_ / "a.ndjson");
  ASSERT_EQ(data.num_samples(), 3);
  EXPECT_EQ(values_of<float>(row_of(data, 2)[0]), kPointsOfCross);
  EXPECT_THAT(refusal("a.ndjson", good + "[1, 2]\n", 1), HasSubstr("expected an object"));
  EXPECT_THAT(refusal("a.ndjson", good + R"({"word":"cat"})", 1), HasSubstr("no \"drawing\""));
  EXPECT_THAT(refusal("a.ndjson", good + R"({"drawing":[[[1,2],[3,4]]]})", 1),
              HasSubstr("without \"word\""));
  EXPECT_THAT(refusal("a.ndjson", good + good.substr(0, good.size() - 1) + "x\n", 1),
              HasSubstr("no JSON"));
  EXPECT_THAT(refusal("a.ndjson", ndjson_of({.strokes = kCross, .country = "QQ"})),
              HasSubstr("line 1: got country code \"QQ\", expected one of ISO 3166-1"));
  EXPECT_THAT(refusal("a.ndjson", ndjson_of({.strokes = kCross, .timestamp = "2017-13-02"})),
              HasSubstr("got timestamp \"2017-13-02\""));
  EXPECT_THAT(refusal("a.ndjson", R"({"word":"cat","key_id":"1x","drawing":[[[1,2],[3,4]]]})"),
              HasSubstr("got key_id \"1x\""));
  EXPECT_THAT(refusal("a.ndjson", R"({"word":"cat","recognized":1,"drawing":[[[1,2],[3,4]]]})"),
              HasSubstr("expected true or false"));
  // What is not looked at is JSON, too.
  for (const char* member :
       {"\"more\":bare", "\"more\":[1,2}", "\"more\":{\"a\" 1}", "\"more\":\"\t\"", "\"more\":1.e5",
        "\"key_id\":007", "\"countrycode\":DE"})
    EXPECT_THAT(refusal("a.ndjson",
                        fmt::format(R"({{"word":"cat",{},"drawing":[[[1,2],[3,4]]]}})", member)),
                HasSubstr("no JSON"))
        << member;
}

TEST_F(Strokes, DamagedRowsOfCsvAreNamed) {
  const std::string good = csv_of({.strokes = kCross});
  const auto with = [&](const std::string& row) {
    return refusal("a.csv", kKaggleHeader + good + row, 1);
  };
  EXPECT_THAT(with("1,DE,\"[[[1,2],[3\",True,2017-03-02 23:25:10,cat\n"),
              AllOf(HasSubstr("a.csv, line 3, column \"drawing\""), HasSubstr("no JSON")));
  EXPECT_THAT(with("1,DE,words,True,2017-03-02 23:25:10,cat\n"), HasSubstr("no JSON"));
  EXPECT_THAT(with("1,DE,\"[[[1,2],[3,4]]]\",True\n"), HasSubstr("got 4 fields, expected 6"));
  EXPECT_THAT(with("1,DE,\"[[[1,2],[3,4]]]"), HasSubstr("a quote that is never closed"));
  EXPECT_THAT(with("1,DE,\"[[[1,2],[3,4]]]\"x,True,2017-03-02 23:25:10,cat\n"),
              HasSubstr("behind a closing quote"));
  EXPECT_THAT(with("1,DE,\"[[[1,2],[3,4]]]\",maybe,2017-03-02 23:25:10,cat\n"),
              HasSubstr("expected True or False"));
  EXPECT_THAT(refusal("b.csv", "key_id,word\n1,cat\n"), HasSubstr("expected drawing too"));
  EXPECT_THAT(refusal("b.csv", "key_id,key_id,drawing\n"), HasSubstr("\"key_id\" twice"));
  EXPECT_THAT(refusal("b.csv", kKaggleHeader), HasSubstr("got no drawing"));
}

TEST_F(Strokes, DamagedRecordsAreNamed) {
  const std::string good = binary_of({.strokes = kCross});
  EXPECT_THAT(refusal("cat.bin", good + good.substr(0, 20)),
              AllOf(HasSubstr("cat.bin, drawing 2 (byte 31): got 20 bytes"), HasSubstr("cut off")));
  EXPECT_THAT(refusal("cat.bin", good + binary_of({.strokes = {{{1}, {2}, {}}}}), 1),
              HasSubstr("drawing 2 (byte 31), stroke 1: got 1 point"));
  EXPECT_THAT(refusal("cat.bin", binary_of({.strokes = kCross, .country = "Q1"})),
              HasSubstr("got country code \"Q1\""));
  EXPECT_THAT(refusal("cat.bin", binary_of({.strokes = {}})), HasSubstr("without strokes"));
  EXPECT_THAT(refusal("cat.bin", ""), HasSubstr("got no drawing"));
}

TEST_F(Strokes, FoldersOfSeveralKindsAndOtherFilesAreRefused) {
  put("cat.ndjson", ndjson_of({.strokes = kCross}));
  put("dog.bin", binary_of({.strokes = kCross}));
  EXPECT_THAT(message_of<UsageError>([&] { strokes(folder_.path()); }),
              HasSubstr("several formats: cat.ndjson and dog.bin"));
  EXPECT_THAT(message_of<DataError>([&] { strokes(put("notes.txt", "words")); }),
              HasSubstr("got no drawings"));
  fs::create_directory(folder_ / "empty");
  EXPECT_THAT(message_of<DataError>([&] { strokes(folder_ / "empty"); }),
              HasSubstr("no file of drawings"));
}

TEST_F(Strokes, AFileThatChangesWhileItIsReadIsRefused) {
  const auto path = put("cat.ndjson", ndjson_of({.strokes = kCross}));
  const Dataset data = strokes(path, {.keep_bytes = 0}), kept = strokes(path);
  put("cat.ndjson", ndjson_of({.strokes = kRaw}) + ndjson_of({.strokes = kCross}));
  EXPECT_EQ(values_of<float>(row_of(kept, 0)[0]), kPointsOfCross);
  EXPECT_THAT(message_of<DataError>([&] { row_of(data, 0); }), HasSubstr("cat.ndjson"));
}

TEST_F(Strokes, AreRecognised) {
  const auto kind = [&](const fs::path& path) { return name_of(recognise(path).kind); };
  EXPECT_EQ(kind(put("a.ndjson", ndjson_of({.strokes = kCross}))), "strokes");
  EXPECT_EQ(kind(put("a.csv", kKaggleHeader + csv_of({.strokes = kCross}))), "strokes");
  EXPECT_EQ(kind(put("t.csv", "key_id,countrycode,drawing\n1,DE,\"[[[1,2],[3,4]]]\"\n")),
            "strokes");
  EXPECT_EQ(kind(put("a.bin", binary_of({.strokes = kCross}))), "strokes");
  EXPECT_EQ(kind(put("other.ndjson", "{\"a\": 1}\n")), "jsonl");
  EXPECT_EQ(kind(put("other.csv", "key_id,price\n1,2\n3,4\n")), "csv");
  EXPECT_EQ(kind(put("names.csv", "id,key_identity,drawing_room\n1,2,3\n4,5,6\n")), "csv");
  EXPECT_EQ(kind(put("q.csv", "\"drawing\",\"key_id\",\"word\"\n\"[[[1,2],[3,4]]]\",1,cat\n")),
            "strokes");
  EXPECT_EQ(kind(put("d.csv", "drawing,key_id,word\n\"[[[1,2],[3,4]]]\",1,cat\n")), "strokes");
  EXPECT_THAT(strokes(folder_ / "q.csv").classes(), ElementsAre("cat"));
  EXPECT_EQ(kind(folder_.path()), "unknown");  // three kinds of files of drawings
  fs::create_directory(folder_ / "one");
  put("one/cat.bin", binary_of({.strokes = kCross}));
  EXPECT_EQ(kind(folder_ / "one"), "strokes");
  EXPECT_THAT(recognise(folder_ / "one").sentence,
              HasSubstr("strokes (binary) in 1 file (cat.bin)"));
}

// Another key order and blanks, as other programs write: the same values.
TEST_F(Strokes, ReadsJsonHoweverItIsWritten) {
  const auto path = put("a.ndjson",
                        "\xef\xbb\xbf{ \"drawing\" : [ [ [ 0 , 2.55e2 ] , [0,200] ] ], "
                        "\"more\": {\"a\": [1, \"]}\"]}, \"key_id\": 12,"
                        " \"word\": \"caf\\u00e9\"}\r\n");
  const Dataset data = strokes(path, {.labelled = true});
  EXPECT_THAT(data.classes(), ElementsAre("café"));
  EXPECT_THAT(values_of<float>(row_of(data, 0)[0]), ElementsAre(0, 0, 0, 0, 255, 200, 1, 0));
}

// ---- Real drawings: the piece that is shipped, and, where it is there, more.

// ndjson as binary, by the slow and obvious way.
void write_binary(const fs::path& ndjson, const fs::path& binary) {
  for (const auto& entry : fs::directory_iterator(ndjson)) {
    if (entry.path().extension() != ".ndjson") continue;
    const Dataset data = strokes(entry.path(), {.details = true});
    std::string bytes;
    for (int64_t i = 0; i < data.num_samples(); ++i) {
      const auto row = row_of(data, i);
      const auto points = row[0].as<float>();
      PlainDrawing drawing{.key_id = row[1].as<int64_t>()[0],
                           .country = std::string(text_of(row[2])),
                           .recognized = row[3].as<bool>()[0],
                           .seconds = static_cast<uint32_t>(row[4].as<int64_t>()[0])};
      for (size_t at = 0; at < points.size(); at += kStrokeFields) {
        if (points[at + kStrokeNumber] >= static_cast<float>(drawing.strokes.size()))
          drawing.strokes.emplace_back();
        drawing.strokes.back().x.push_back(points[at + kStrokeX]);
        drawing.strokes.back().y.push_back(points[at + kStrokeY]);
      }
      bytes += binary_of(drawing);
    }
    put_bytes(binary / (entry.path().stem().string() + ".bin"), bytes);
  }
}

std::string sha_of(const Batch& batch) {
  std::string bytes;
  for (const Array& column : batch.columns)
    bytes.append(static_cast<const char*>(column.data()), static_cast<size_t>(column.num_bytes()));
  return sha256_hex(bytes);
}

// Of each batch from `begin` on, by a loader.
std::vector<std::string> shas_of(const Dataset& data, int64_t begin, int workers) {
  Loader loader({.workers = workers}, {});
  const Epoch epoch = data.shuffle().batch(32).epoch({.epoch = 1, .seed = 7});
  loader.begin(
      epoch,
      {.first_step = begin, .end_step = epoch.num_batches(), .part = [epoch](int64_t step, int) {
         return BatchPart{step, {0, epoch.batch_size(step)}};
       }});
  std::vector<std::string> shas;
  for (int64_t step = begin; step < epoch.num_batches(); ++step)
    shas.push_back(sha_of(loader.take(step, 0, Deadline(kDefaultTimeLimit))));
  loader.end();
  return shas;
}

Dataset bitmaps(const fs::path& path) {
  return strokes(path).map(transforms::strokes_to_bitmap(64, {.time = true}));
}

void expect_equal_in_both_formats(const fs::path& ndjson, const fs::path& binary, size_t classes) {
  const Dataset lines = bitmaps(ndjson), records = bitmaps(binary);
  EXPECT_GE(lines.classes().size(), classes);
  EXPECT_EQ(lines.classes(), records.classes());
  const std::vector<std::string> straight = shas_of(lines, 0, 0);
  const auto read_each =
      strokes(ndjson, {.keep_bytes = 0}).map(transforms::strokes_to_bitmap(64, {.time = true}));
  EXPECT_EQ(shas_of(read_each, 0, 1), straight);
  EXPECT_EQ(shas_of(records, 0, 2), straight);
  const auto middle = static_cast<int64_t>(straight.size() / 2);
  EXPECT_EQ(shas_of(records, middle, 1), std::vector(straight.begin() + middle, straight.end()));
  EXPECT_EQ(std::set(straight.begin(), straight.end()).size(), straight.size());
}

TEST_F(Strokes, TheShippedPieceIsTheSameInBothFormatsAndResumesInMidEpoch) {
  const fs::path shipped = fs::path(TUTTI_SOURCE_DIR) / "examples/data/strokes";
  write_binary(shipped, folder_.path());
  expect_equal_in_both_formats(shipped, folder_.path(), 10);
}

TEST_F(Strokes, SixtyEightClassesAreTheSameInBothFormatsAndResumeInMidEpoch) {
  const fs::path shared = shared_data() / "quickdraw";
  if (!fs::exists(shared)) GTEST_SKIP() << "needs ../shared/data";
  std::map<std::string, fs::path> classes;
  for (const auto& entry : fs::directory_iterator(shared / "simplified"))
    classes[entry.path().stem().string()] = entry.path();
  for (const char* folder : {"ndjson", "binary"}) fs::create_directory(folder_ / folder);
  for (const auto& [name, path] : classes) {
    if (std::distance(classes.begin(), classes.find(name)) % 4 != 0) continue;
    fs::copy_file(path, folder_ / "ndjson" / path.filename());
    fs::copy_file(shared / "binary" / (name + ".bin"), folder_ / "binary" / (name + ".bin"));
  }
  expect_equal_in_both_formats(folder_ / "ndjson", folder_ / "binary", 68);
}

TEST_F(Strokes, ReadsRealRawDrawings) {
  const fs::path shared = shared_data() / "quickdraw/raw";
  if (!fs::exists(shared)) GTEST_SKIP() << "needs ../shared/data";
  const Dataset data = strokes(shared);
  EXPECT_EQ(data.num_samples(), 1058);
  const Epoch epoch =
      data.map(transforms::strokes_to_sequence(500, {.time = true})).batch(1058).epoch({});
  EXPECT_EQ(epoch.batch(0).columns[0].shape()[0], 1058);
}

}  // namespace
}  // namespace tutti::data
