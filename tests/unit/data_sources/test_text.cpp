#include <filesystem>
#include <string>

#include "tutti/data/sources/text.h"

#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/data_sources/rows.h"

namespace tutti::data {
namespace {

namespace fs = std::filesystem;

class Text : public testing::Test {
 protected:
  Dataset open(const std::string& bytes, TextOptions options) {
    put_bytes(folder_ / "t.txt", bytes);
    return text(folder_ / "t.txt", options);
  }
  std::string refusal(const std::string& bytes, TextOptions options) {
    return message_of<DataError>([&] { open(bytes, options); });
  }
  // A row as its characters: what x and y say.
  std::vector<std::string> spelled(const Dataset& data, size_t column) {
    std::vector<std::string> rows(static_cast<size_t>(data.num_samples()));
    const auto labels = values_of<int64_t>(data, column);
    const size_t length = labels.size() / rows.size();
    for (size_t i = 0; i < labels.size(); ++i)
      rows[i / length] += data.classes()[static_cast<size_t>(labels[i])];
    return rows;
  }
  TempFolder folder_;
};

TEST_F(Text, CutsWindowsOfCharacters) {
  const Dataset data = open("zebra, Ä€😀b\n", {.length = 4});
  EXPECT_THAT(words_of(data.columns()), ElementsAre("x int64 [4]", "y int64 [4]"));
  EXPECT_THAT(data.classes(), ElementsAre("\n", " ", ",", "a", "b", "e", "r", "z", "Ä", "€", "😀"));
  EXPECT_THAT(spelled(data, 0), ElementsAre("zebr", "a, Ä"));
  EXPECT_THAT(spelled(data, 1), ElementsAre("ebra", ", Ä€"));
}

TEST_F(Text, HasAsManyWindowsAsFit) {
  for (int64_t length = 1; length <= 5; ++length)
    for (int64_t stride = 1; stride <= 4; ++stride)
      for (size_t size = static_cast<size_t>(length) + 1; size < 14; ++size) {
        const std::string whole = std::string("abcdefghijklmn").substr(0, size);
        std::vector<std::string> expected;
        for (size_t at = 0; at + static_cast<size_t>(length) < size;
             at += static_cast<size_t>(stride))
          expected.push_back(whole.substr(at, static_cast<size_t>(length)));
        EXPECT_EQ(spelled(open(whole, {.length = length, .stride = stride}), 0), expected);
      }
}

TEST_F(Text, TakesBytesAsTheyAre) {
  const Dataset data = open(std::string("\xFF\x00\x80", 3), {.length = 2, .unit = TextUnit::bytes});
  EXPECT_EQ(data.num_classes(), 256);
  EXPECT_THAT(values_of<int64_t>(data, 0), ElementsAre(255, 0));
  EXPECT_THAT(values_of<int64_t>(data, 1), ElementsAre(0, 128));
}

TEST_F(Text, NumbersCharactersAsItIsTold) {
  const Dataset data = open("abba", {.length = 3, .classes = {"b", "a"}});
  EXPECT_THAT(values_of<int64_t>(data, 0), ElementsAre(1, 0, 0));
  EXPECT_THAT(refusal("ab\nbÄa", {.length = 3, .classes = {"a", "b", "\n"}}),
              AllOf(HasSubstr("t.txt, byte 4 (line 2)"), HasSubstr("\"Ä\" (U+00C4)"),
                    HasSubstr("3 classes")));
  for (const std::string name : {"", "ab", "\xFF"})
    EXPECT_THROW(open("ab", {.length = 1, .classes = {name}}), UsageError);
  EXPECT_THROW(open("ab", {.length = 1, .classes = {"a", "a"}}), UsageError);
  EXPECT_THROW(open("ab", {.length = 1, .unit = TextUnit::bytes, .classes = {"a"}}), UsageError);
}

TEST_F(Text, RefusesWhatIsNoUtf8) {
  // Cut off, longer than need be, half a surrogate pair, beyond the last, a tail without head.
  for (const std::string bad : {"\xC3", "\xE2\x82", "\xC0\xAF", "\xE0\x80\xAF", "\xED\xA0\x80",
                                "\xF4\x90\x80\x80", "\x80", "\xFE", "\xF0\x80\x80\x80", "\xC3z"})
    EXPECT_THAT(refusal("a\n€" + bad, {.length = 1}), HasSubstr("byte 5 (line 2)"));
  EXPECT_THAT(refusal("caf\xE9", {.length = 1}), HasSubstr("in Latin-1 it is \"é\": iconv"));
  EXPECT_THAT(refusal("\xFF\xFEz", {.length = 1}), HasSubstr("got text in UTF-16"));
}

TEST_F(Text, RefusesTooLittle) {
  EXPECT_THAT(refusal("€€€", {.length = 3}), HasSubstr("got 3 characters, expected 4"));
  EXPECT_THAT(refusal("", {.length = 1}), HasSubstr("got 0 characters, expected 2"));
  EXPECT_THAT(refusal("\xEF\xBB\xBF"
                      "ab",
                      {.length = 2}),
              HasSubstr("got 2 characters"));
  EXPECT_THROW(open("abc", {.length = 0}), UsageError);
  EXPECT_THROW(open("abc", {.length = 1, .stride = -1}), UsageError);
}

TEST_F(Text, CutsWindowsBetweenShares) {
  const std::string whole = "abcdefghijé";  // 11 characters in 12 bytes
  const auto head = open(whole, {.length = 3, .end = 0.7});
  const auto tail = open(whole, {.length = 3, .begin = 0.7});
  EXPECT_THAT(spelled(head, 0), ElementsAre("abc", "def"));
  EXPECT_THAT(spelled(head, 1), ElementsAre("bcd", "efg"));
  EXPECT_THAT(spelled(tail, 0), ElementsAre("hij"));
  EXPECT_THAT(spelled(tail, 1), ElementsAre("ijé"));
  EXPECT_EQ(head.classes(), tail.classes());
  EXPECT_EQ(head.num_classes(), 11);
  EXPECT_THAT(refusal(whole, {.length = 4, .begin = 0.7}),
              HasSubstr("got 4 characters from 70 % to 100 %, expected 5 or more"));
  for (const auto& [begin, end] : {std::pair(-0.1, 1.0), {0.5, 0.5}, {0.0, 1.1}, {0.9, 0.1}})
    EXPECT_THROW(open(whole, {.length = 1, .begin = begin, .end = end}), UsageError);
}

TEST(TextLabels, AreThoseOfTheClassesGiven) {
  const std::vector<std::string> classes{"\n", "a", "é"};
  EXPECT_THAT(text_labels("éa\n", classes, "here"), ElementsAre(2, 1, 0));
  EXPECT_THAT(text_labels("", classes, "here"), ElementsAre());
  EXPECT_THAT(
      message_of<DataError>([&] { text_labels("aéx", classes, "--prompt"); }),
      AllOf(HasSubstr("--prompt, byte 3"), HasSubstr("\"x\" (U+0078)"), HasSubstr("3 classes")));
  EXPECT_THROW(text_labels("\xFF", classes, "here"), DataError);
}

TEST_F(Text, ReadsARealText) {
  const fs::path path = test::shared_data() / "tinyshakespeare/input.txt";
  if (!fs::exists(path)) GTEST_SKIP() << "there is no " << path;
  const Dataset data = text(path, {.length = 64});
  EXPECT_EQ(data.num_classes(), 65);
  EXPECT_EQ(data.num_samples(), (1'115'394 - 65) / 64 + 1);
  EXPECT_TRUE(spelled(data.take(1), 0)[0].starts_with("First Citizen:\n"));
}

}  // namespace
}  // namespace tutti::data
