#include "tutti/base/utf8.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

TEST(Utf8, KnowsItsCharacters) {
  const struct {
    std::string_view bytes;
    char32_t value;
  } cases[] = {{"a", U'a'}, {"é", U'é'}, {"€", U'€'}, {"😀", U'😀'}, {"\x7f", 0x7f}};
  for (const auto& [bytes, value] : cases) {
    const auto character = first_character(std::string(bytes) + "z");
    ASSERT_TRUE(character) << bytes;
    EXPECT_EQ(character->value, value) << bytes;
    EXPECT_EQ(character->bytes, bytes.size()) << bytes;
  }
  EXPECT_EQ(first_wrong_byte("café €😀"), std::string_view("café €😀").size());
  EXPECT_EQ(first_wrong_byte(""), 0U);
}

TEST(Utf8, NamesAWrongByteAndWhatItMayBe) {
  for (const char* bad : {"\xC3", "\xE2\x82", "\xC0\xAF", "\xE0\x80\xAF", "\xED\xA0\x80",
                          "\xF4\x90\x80\x80", "\x80", "\xFE", "\xF0\x80\x80\x80", "\xC3z"}) {
    EXPECT_FALSE(first_character(bad));
    EXPECT_EQ(first_wrong_byte(std::string("é") + bad), 2U);
  }
  EXPECT_THAT(wrong_byte_words('\xE9'),
              AllOf(HasSubstr("byte e9"), HasSubstr("in Latin-1 it is \"é\": iconv -f latin1")));
  EXPECT_THAT(wrong_byte_words('\xA3'), HasSubstr("it is \"£\""));
  EXPECT_THAT(wrong_byte_words('\x92'), AllOf(HasSubstr("byte 92"), HasSubstr("-f cp1252")));
  EXPECT_TRUE(is_utf16("\xFF\xFE"));
  EXPECT_TRUE(is_utf16("\xFE\xFFz"));
  EXPECT_FALSE(is_utf16("\xFF\xD8\xFF"));
}

}  // namespace
}  // namespace tutti
