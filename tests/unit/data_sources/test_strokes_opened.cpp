// Drawings that are to be predicted, and what is refused before any is parsed.
#include <algorithm>
#include <memory>

#include "tutti/data/sources/recognise.h"

#include "tests/unit/data_sources/strokes_test.h"

namespace tutti::data {
namespace {

using OpenedStrokes = StrokeFiles;

TEST_F(OpenedStrokes, KeysNeedNoCountryAndAreOfTheDrawingsThatArePredicted) {
  const auto row = [](int64_t key) { return fmt::format("{},\"[[[0,{}],[4,9]]]\"\n", key, key); };
  std::string rows = "key_id,drawing\n";
  for (int64_t key = 0; key < 600; ++key) rows += row(key % 256) + (key % 7 == 0 ? " \t\n\n" : "");
  const auto path = put("keys.csv", rows);
  const KeyedStrokes keyed = keyed_strokes(path, {.keep_bytes = 0});
  ASSERT_EQ(keyed.keys.size(), 600U);
  int64_t line = 1;
  for (int64_t i = 0; i < 600; ++i) {
    const auto at = static_cast<size_t>(i);
    ASSERT_EQ(keyed.where(i), fmt::format("{}, line {}", path.string(), ++line));
    ASSERT_EQ(row_of(keyed.drawings, i)[0].as<float>()[kStrokeFields],
              static_cast<float>(keyed.keys[at]));
    if (i % 7 == 0) line += 2;
  }
  put("keys.csv", "key_id,drawing\n" + row(1));
  EXPECT_THAT(message_of<DataError>([&] { row_of(keyed.drawings, 0); }), HasSubstr("keys.csv"));
  EXPECT_THAT(message_of<DataError>([&] { keyed_strokes(put("k.csv", rows + "8,x\n9,y\n")); }),
              HasSubstr("k.csv, line 774, column"));
  EXPECT_THAT(message_of<DataError>(
                  [&] { keyed_strokes(put("k.ndjson", R"({"drawing":[[[1,2],[3,4]]]})")); }),
              HasSubstr("k.ndjson, line 1: got a drawing without \"key_id\""));
  EXPECT_THAT(refusal("k.csv", "key_id,drawing\n9223372036854775808,\"[[[1,2],[3,4]]]\"\n", 0,
                      {.labelled = false}),
              HasSubstr("expected a whole number below 2^63"));
}

TEST_F(OpenedStrokes, OptionsThatCannotBeAreRefused) {
  const auto path = put("cat.ndjson", ndjson_of({.strokes = kCross}));
  const auto said = [&](const StrokesOptions& options) {
    return message_of<UsageError>([&] { strokes(path, options); });
  };
  EXPECT_THAT(said({.classes = {"cat", "dog", "cat"}}), HasSubstr("got \"cat\" twice"));
  EXPECT_THAT(said({.classes = {"cat", ""}}), HasSubstr("got \"\", expected names"));
  EXPECT_THAT(said({.keep_bytes = -1}), HasSubstr("keep_bytes: got -1"));
}

TEST_F(OpenedStrokes, AWordOfNoCharacterIsMissing) {
  const std::string none = ndjson_of({.word = "", .strokes = kCross});
  EXPECT_THAT(refusal("a.ndjson", ndjson_of({.strokes = kCross}) + none, 1),
              HasSubstr("a.ndjson, line 2: got a drawing without \"word\""));
  EXPECT_THAT(strokes(folder_ / "a.ndjson").classes(), ElementsAre("cat"));
  EXPECT_THAT(refusal("a.csv", kKaggleHeader + csv_of({.word = "", .strokes = kCross}) +
                                   csv_of({.strokes = kCross})),
              HasSubstr("a.csv, line 2: got a drawing without \"word\""));
  // None at all is an error at opening.
  const auto path = put("b.ndjson", none);
  EXPECT_THAT(message_of<DataError>([&] { strokes(path); }), HasSubstr("b.ndjson, line 1"));
}

// A file of one letter, of which none is kept.
class OneLetter final : public Files {
 public:
  OneLetter(char letter, int64_t bytes) : letter_(letter), bytes_(bytes) {}
  std::vector<FileInfo> list(const fs::path&) const override { return {}; }
  FileInfo info(const fs::path& path) const override {
    return {.name = path.filename().string(), .bytes = bytes_};
  }
  Array read(const fs::path&, int64_t, int64_t bytes) const override {
    most_ = std::max(most_, bytes);
    Array array = make_array(DType::uint8, {bytes});
    std::ranges::fill(array.as<uint8_t>(), static_cast<uint8_t>(letter_));
    return array;
  }
  int64_t most() const { return most_; }

 private:
  char letter_;
  int64_t bytes_;
  mutable int64_t most_ = 0;
};

TEST_F(OpenedStrokes, ADrawingOfManyMegabytesIsRefusedBeforeItIsInMemory) {
  constexpr int64_t kMost = 64 << 20;
  const auto said = [](const char* name, const std::shared_ptr<const OneLetter>& files) {
    return message_of<DataError>([&] { strokes(name, {.files = files}); });
  };
  const auto line = std::make_shared<const OneLetter>('{', int64_t{1} << 40);
  EXPECT_THAT(said("a.ndjson", line), HasSubstr("a.ndjson, line 1: got more than 67108864 bytes"));
  const auto record = std::make_shared<const OneLetter>('\xff', int64_t{1} << 40);
  EXPECT_THAT(said("a.bin", record),
              HasSubstr("a.bin, drawing 1 (byte 0): got more than 67108864 bytes"));
  for (const auto& files : {line, record}) EXPECT_LE(files->most(), kMost);
  // Whether there are labels the first line says.
  const auto rows = std::make_shared<const OneLetter>('\n', int64_t{1} << 40);
  EXPECT_THAT(message_of<DataError>([&] { strokes_are_labelled("a.csv", rows); }),
              HasSubstr("a.csv: got no line of names"));
  EXPECT_TRUE(strokes_are_labelled("a.ndjson", rows));
  EXPECT_LE(rows->most(), 64 << 10);
}

// As Kaggle's folder has them: the first by name is no drawing.
TEST_F(OpenedStrokes, AFolderIsRecognisedBySeveralOfItsFiles) {
  put("sample_submission.csv", "key_id,word\n1,cat dog\n");
  put("test_simplified.csv", "key_id,countrycode,drawing\n1,DE,\"[[[1,2],[3,4]]]\"\n");
  EXPECT_EQ(name_of(recognise(folder_.path()).kind), "unknown");
  EXPECT_THAT(recognise(folder_.path()).sentence,
              AllOf(HasSubstr("strokes (Kaggle's CSV)"),
                    HasSubstr("sample_submission.csv has none"), HasSubstr("one of the files")));
}

}  // namespace
}  // namespace tutti::data
