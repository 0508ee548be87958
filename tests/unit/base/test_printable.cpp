#include "tutti/base/log.h"
#include "tutti/base/printable.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

TEST(Printable, LeavesWhatATerminalDoesNotObey) {
  for (const std::string text :
       {"", "plain", "one\n  two\n    three", "tab\there", "gr\u00fc\u00df \u20ac \U0001f600",
        "two\n\n  lines", "\u00a0", "\uffff", "\U0010ffff", "a backslash \\x1b of ours"})
    EXPECT_EQ(printable(text), text);
}

TEST(Printable, ShowsControlCharactersAndBytesThatAreNoUtf8) {
  const struct {
    std::string text, shown;
  } cases[] = {
      {"\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"},
      {"\x1b]0;title\x07", "\\x1b]0;title\\x07"},
      {"over\rwritten\b", "over\\x0dwritten\\x08"},
      {std::string("nul\0!", 5), "nul\\x00!"},
      {"\x7f", "\\x7f"},
      {"\u009b31m", "\\xc2\\x9b31m"},  // CSI as one character
      {"\x9b"
       "31m",
       "\\x9b31m"},                // and as a byte
      {"\xc3", "\\xc3"},           // cut off
      {"\xc3(", "\\xc3("},         // not continued
      {"\xc0\x9b", "\\xc0\\x9b"},  // longer than it must be
      {"\xe0\x82\x9b", "\\xe0\\x82\\x9b"},
      {"\xed\xa0\x80", "\\xed\\xa0\\x80"},           // half of a pair
      {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},  // past the last
      {"\xff", "\\xff"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(printable(c.text), c.shown);
    EXPECT_EQ(printable(c.shown), c.shown);
  }
}

TEST(Printable, NoLineAfterTheFirstLooksLikeAMessage) {
  EXPECT_EQ(printable("file a\ntutti: all is well"), "file a\n  tutti: all is well");
  EXPECT_EQ(printable(" a\n b\n  c"), " a\n   b\n  c");
  EXPECT_EQ(printable("ends\n"), "ends\n");
}

TEST(Printable, LeavesOutTheMiddleOfWhatIsLong) {
  const std::string text = "begin " + std::string(1'000'000, 'x') + " end";
  const std::string shown = printable(text);
  EXPECT_THAT(shown, AllOf(StartsWith("begin xxx"), EndsWith("xxx end"),
                           HasSubstr("x ... (995978 bytes left out) ... x"),
                           SizeIs(Le(kMostMessageBytes))));
  EXPECT_EQ(printable(shown), shown);
  EXPECT_EQ(printable(std::string(kMostMessageBytes, 'x')), std::string(kMostMessageBytes, 'x'));
}

TEST(Printable, CutsBetweenCharacters) {
  for (const std::string before : {"", "1", "12", "123"}) {
    std::string text = before;
    for (int i = 0; i < 2000; ++i) text += "\U0001f600";
    const std::string shown = printable(text, 200);
    EXPECT_THAT(shown, AllOf(SizeIs(Le(200U)), Not(HasSubstr("\\x"))));
    EXPECT_EQ(printable(shown, 200), shown) << "no character was cut";
  }
}

TEST(Printable, IsHowErrorsAndLogLinesLeaveTheProcess) {
  EXPECT_EQ(plain_words("file \x1b[2J\nis damaged"), "file \\x1b[2J\n  is damaged");
  testing::internal::CaptureStderr();
  log(LogLevel::error, "file {}\nis damaged", "\x1b[2J");
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("tutti error: file \\x1b[2J\n  is damaged\n"));
}

}  // namespace
}  // namespace tutti
