#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "tutti/data/sources/jsonl.h"

#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/data_sources/rows.h"

namespace tutti::data {
namespace {

namespace fs = std::filesystem;

class Jsonl : public testing::Test {
 protected:
  Dataset open(const std::string& bytes, std::vector<Column> columns = {}) {
    put_bytes(folder_ / "rows.jsonl", bytes);
    return jsonl(folder_ / "rows.jsonl", {.columns = std::move(columns)});
  }
  std::string refusal(const std::string& bytes, std::vector<Column> columns = {}, int64_t row = 0) {
    return message_of<DataError>([&] { row_of(open(bytes, std::move(columns)), row); });
  }
  TempFolder folder_;
};

TEST_F(Jsonl, AByteOrderMarkIsNoPartOfTheFirstLine) {
  const Dataset data = open("\xef\xbb\xbf{\"stars\": 4}\n{\"stars\": 5}\n");
  ASSERT_EQ(data.num_samples(), 2);
  EXPECT_THAT(values_of<int64_t>(data, 0), ElementsAre(4, 5));
  EXPECT_THAT(refusal("\xef\xbb\xbf\n{\"a\": 1}\nwords\n", {}, 1), HasSubstr("line 3"));
}

TEST_F(Jsonl, RecognisesColumnsFromTheFirstLine) {
  const Dataset data = open(
      R"({"text": "Grüße", "stars": 4, "score": 0.5, "seen": true, "ids": [1, 2], "v": [1, 2.5]})"
      "\n\n  \r\n"
      R"({"v": [], "ids": [7], "seen": false, "score": 2, "stars": -1, "text": "", "more": null})");
  EXPECT_THAT(words_of(data.columns()),
              ElementsAre("text uint8 [?]", "stars int64 []", "score float32 []", "seen bool []",
                          "ids int64 [?]", "v float32 [?]"));
  ASSERT_EQ(data.num_samples(), 2);
  const auto first = row_of(data, 0), second = row_of(data, 1);
  EXPECT_EQ(text_of(first[0]), "Grüße");
  EXPECT_THAT(values_of<int64_t>(first[1]), ElementsAre(4));
  EXPECT_THAT(values_of<float>(first[2]), ElementsAre(0.5f));
  EXPECT_THAT(values_of<bool>(first[3]), ElementsAre(true));
  EXPECT_THAT(values_of<int64_t>(first[4]), ElementsAre(1, 2));
  EXPECT_THAT(values_of<float>(first[5]), ElementsAre(1, 2.5f));
  EXPECT_EQ(text_of(second[0]), "");
  EXPECT_THAT(values_of<int64_t>(second[4]), ElementsAre(7));
  EXPECT_THAT(values_of<float>(second[5]), IsEmpty());
}

TEST_F(Jsonl, TakesTheColumnsThatItIsTold) {
  const Dataset data = open(R"({"id": 1, "image": [[1, 2], [3, 4], [5, 6]], "y": 3})"
                            "\n"
                            R"({"y": 2, "image": [[7, 8]], "id": "x"})"
                            "\n",
                            {{"image", DType::float64, {kAnySize, 2}}, {"y", DType::int8, {}}});
  EXPECT_EQ(row_of(data, 0)[0].to_string(), "float64 [3, 2]");
  EXPECT_THAT(values_of<double>(row_of(data, 1)[0]), ElementsAre(7, 8));
  EXPECT_THAT(values_of<int8_t>(row_of(data, 1)[1]), ElementsAre(2));
}

TEST_F(Jsonl, BatchesRowsOfFixedShape) {
  const Dataset data = open("{\"x\": [1, 2], \"y\": 0}\n{\"x\": [3, 4], \"y\": 1}\n",
                            {{"x", DType::float32, {2}}, {"y", DType::int64, {}}});
  EXPECT_THAT(values_of<float>(data, 0), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(values_of<int64_t>(data, 1), ElementsAre(0, 1));
}

TEST_F(Jsonl, FindsLinesAcrossPiecesOfTheFile) {
  // Longer than what is read at a time.
  std::string bytes = "\n{\"s\": \"" + std::string(9 << 20, 'a') + "\"}\n";
  for (int i = 0; i < 3; ++i) bytes += "{\"s\": \"" + std::string(i * (4 << 20), 'b') + "\"}\n";
  const Dataset data = open(bytes);
  ASSERT_EQ(data.num_samples(), 4);
  EXPECT_EQ(row_of(data, 0)[0].num_bytes(), 9 << 20);
  EXPECT_EQ(row_of(data, 3)[0].num_bytes(), 8 << 20);
}

TEST_F(Jsonl, NamesLineAndKeyOfWhatIsWrong) {
  const std::string good = "{\"a\": 1}\n\n";
  const std::vector<Column> whole{{"a", DType::int8, {}}};
  const auto wrong = [&](const std::string& line, const std::vector<Column>& columns) {
    return refusal(good + line + "\n" + good, columns, 1);
  };
  EXPECT_THAT(wrong("{\"a\": 1", whole),
              AllOf(HasSubstr("rows.jsonl, line 3"), HasSubstr("no JSON")));
  EXPECT_THAT(wrong("[1]", whole), HasSubstr("line 3: got array, expected an object"));
  EXPECT_THAT(wrong("{\"A\": 1}", whole),
              HasSubstr("line 3: unknown key \"a\"; did you mean \"A\""));
  EXPECT_THAT(wrong("{\"a\": 1.5}", whole), HasSubstr("\"a\": got \"1.5\", expected int8 []"));
  EXPECT_THAT(wrong("{\"a\": 128}", whole), HasSubstr("expected int8 []"));
  EXPECT_THAT(wrong("{\"a\": \"1\"}", whole), HasSubstr("expected int8 []"));
  EXPECT_THAT(wrong("{\"a\": null}", whole), HasSubstr("expected int8 []"));
  EXPECT_THAT(wrong("{\"a\": [1]}", whole), HasSubstr("expected int8 []"));
  EXPECT_THAT(wrong("{\"a\": 1}", {{"a", DType::int8, {kAnySize}}}),
              HasSubstr("expected int8 [?]"));
  EXPECT_THAT(wrong("{\"a\": \"\xFF\"}", whole), HasSubstr("no JSON"));
  EXPECT_THAT(wrong("{\"a\": -1}", {{"a", DType::uint64, {}}}), HasSubstr("expected uint64 []"));
  EXPECT_THAT(wrong("{\"a\": 1e39}", {{"a", DType::float32, {}}}), HasSubstr("expected float32"));
  EXPECT_THAT(wrong("{\"a\": true}", {{"a", DType::float32, {}}}), HasSubstr("expected float32"));
  EXPECT_THAT(wrong("{\"a\": 1}", {{"a", DType::boolean, {}}}), HasSubstr("expected bool"));
  const auto array = [&](const std::string& value, std::vector<int64_t> shape) {
    return wrong("{\"a\": " + value + "}", {{"a", DType::float32, std::move(shape)}});
  };
  EXPECT_THAT(array("[1, 2]", {3}), HasSubstr("expected float32 [3]"));
  EXPECT_THAT(array("[[1, 2], [3]]", {kAnySize, kAnySize}), HasSubstr("expected float32 [?, ?]"));
  EXPECT_THAT(array("[[1, 2], 3]", {kAnySize, kAnySize}), HasSubstr("expected float32 [?, ?]"));
  EXPECT_THAT(array("[1, [2]]", {kAnySize}), HasSubstr("expected float32 [?]"));
  EXPECT_THAT(array("[1]", {int64_t{1} << 62}), HasSubstr("no memory for float32 [1, 4611686"));
}

TEST_F(Jsonl, RefusesWhatCannotBeTold) {
  EXPECT_THAT(refusal("\n \n"), HasSubstr("got no line (3 bytes)"));
  EXPECT_THAT(refusal(""), HasSubstr("got no line"));
  EXPECT_THAT(refusal("{}"), HasSubstr("without keys"));
  for (const std::string value : {"null", "[]", "{\"b\": 1}", "[[1]]", "[\"a\"]"})
    EXPECT_THAT(refusal("{\"a\": " + value + "}"),
                AllOf(HasSubstr("line 1: \"a\""), HasSubstr(".columns = {{\"a\"")));
  EXPECT_THROW(open("{\"a\": 1}", {{"a", DType::bfloat16, {}}}), UsageError);
}

// What is wrong is printed, which went as deep as the line and ended the process.
TEST_F(Jsonl, AnEndlesslyDeepLineIsAnError) {
  const std::string deep = std::string(100'000, '[') + "1" + std::string(100'000, ']');
  EXPECT_THAT(refusal("{\"a\": " + deep + "}"),
              AllOf(HasSubstr("rows.jsonl, line 1"), HasSubstr("nested deeper than 256")));
  EXPECT_THAT(refusal("{\"a\": 1}\n{\"a\": " + deep + "}\n", {}, 1),
              AllOf(HasSubstr("line 2"), HasSubstr("nested deeper than 256")));
}

// The rows of one file are as others left them; a pipe has no rows to come back to.
TEST_F(Jsonl, APipeIsNotWaitedFor) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_THROW(jsonl(folder_ / "pipe"), DataError);
  EXPECT_THAT(message_of<DataError>([&] { local_files()->read(folder_ / "pipe"); }),
              HasSubstr("got a pipe, expected a regular file"));
}

TEST_F(Jsonl, NamesAFileThatChanged) {
  const Dataset data = open("{\"a\": 1}\n{\"a\": 2}\n");
  put_bytes(folder_ / "rows.jsonl", "{\"a\": 1}\n");
  EXPECT_THAT(message_of<DataError>([&] { row_of(data, 1); }),
              AllOf(HasSubstr("rows.jsonl"), HasSubstr("changed")));
}

TEST_F(Jsonl, ReadsRealLines) {
  const fs::path path = test::shared_data() / "quickdraw/simplified/cat.ndjson";
  if (!fs::exists(path)) GTEST_SKIP() << "there is no " << path;
  const Dataset data = jsonl(
      path, {.columns = {{"word", DType::uint8, {kAnySize}}, {"recognized", DType::boolean, {}}}});
  EXPECT_EQ(data.num_samples(), 25);
  EXPECT_EQ(text_of(row_of(data, 24)[0]), "cat");
}

}  // namespace
}  // namespace tutti::data
