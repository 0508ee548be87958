// The file that Kaggle's challenge of doodles takes: its rows, and what is refused.
#include <fmt/format.h>

#include <limits>

#include "tutti/base/error.h"
#include "tutti/cli/data/stroke_flags.h"
#include "tutti/cli/train/submission.h"

#include "tests/support/expect.h"
#include "tests/support/message_of.h"
#include "tests/support/temp_folder.h"

namespace tutti::cli {
namespace {

using test::message_of;
using Labels = std::vector<int64_t>;
using Keys = std::vector<int64_t>;

// "a.csv, line 2" of its first row.
auto lines_in(const std::string& file) {
  return [file](int64_t row) { return fmt::format("{}, line {}", file, row + 2); };
}

const std::vector<std::string> kClasses = {"The Eiffel Tower", "alarm clock", "cat"};

TEST(Submission, HasARowForEachDrawingInTheOrderOfTheFiles) {
  Submission submission(kClasses);
  submission.expect(Keys{9000003627287624, 0}, lines_in("a.csv"));
  submission.expect(Keys{std::numeric_limits<int64_t>::max()}, lines_in("b.csv"));
  submission.say(Labels{1, 0, 2});
  submission.say(Labels{2});
  submission.say(Labels{0, 2});
  EXPECT_EQ(submission.text(),
            "key_id,word\n"
            "9000003627287624,alarm_clock The_Eiffel_Tower cat\n"
            "0,cat\n"
            "9223372036854775807,The_Eiffel_Tower cat\n");
}

TEST(Submission, WithoutAPredictionOfEachDrawingIsNone) {
  Submission submission(kClasses);
  submission.expect(Keys{5, 6}, lines_in("a.csv"));
  submission.expect(Keys{7, 8}, lines_in("b.csv"));
  for (int i = 0; i < 3; ++i) submission.say(Labels{i});
  EXPECT_EQ(submission.next_place(), "b.csv, line 3, key_id 8");
  EXPECT_THAT(
      message_of<DataError>([&] { return submission.text(); }),
      AllOf(HasSubstr("1 of 4 drawings have no prediction"), HasSubstr("b.csv, line 3, key_id 8")));
}

TEST(Submission, TakesEachKeyOnce) {
  Submission submission(kClasses);
  submission.expect(Keys{5, 6}, lines_in("a.csv"));
  EXPECT_THAT(message_of<DataError>([&] { submission.expect(Keys{7, 6}, lines_in("b.csv")); }),
              AllOf(HasSubstr("b.csv, line 3, key_id 6"), HasSubstr("a.csv, line 3"),
                    HasSubstr("each key_id once")));
}

TEST(Submission, RefusesWordsThatAreNone) {
  Submission submission(kClasses);
  submission.expect(Keys{5}, lines_in("a.csv"));
  const std::pair<Labels, const char*> cases[] = {{{}, "got 0 words, expected 1 to 3"},
                                                  {{0, 1, 2, 0}, "got 4 words, expected 1 to 3"},
                                                  {{0, 3}, "got label 3, there are 3 classes"},
                                                  {{-1}, "got label -1"},
                                                  {{2, 2}, "got cat twice"}};
  for (const auto& [labels, answer] : cases)
    EXPECT_THAT(message_of<UsageError>([&] { submission.say(labels); }),
                AllOf(HasSubstr("a.csv, line 2, key_id 5"), HasSubstr(answer)));
  EXPECT_EQ(submission.num_said(), 0);
  submission.say(Labels{0});
  EXPECT_THAT(message_of<UsageError>([&] { submission.say(Labels{0}); }),
              HasSubstr("beyond the 1 drawings"));
}

TEST(Submission, RefusesClassesThatAreNoWords) {
  for (const std::string name : {"", "a,b", "a\"b", "a\nb", "a\tb"})
    EXPECT_THAT(message_of<UsageError>([&] { Submission({"cat", name}); }),
                HasSubstr("cannot be a word"))
        << name;
  EXPECT_THAT(message_of<UsageError>([] { Submission({"alarm clock", "cat", "alarm_clock"}); }),
              AllOf(HasSubstr("\"alarm clock\" and \"alarm_clock\""), HasSubstr("one word")));
}

TEST(Submission, NamesClassesThatTheChallengeHasNot) {
  EXPECT_EQ(words_without_a_class({"The Eiffel Tower", "alarm clock", "cat"}), "");
  EXPECT_EQ(words_without_a_class(data::kaggle_classes()), "");
  EXPECT_THAT(words_without_a_class({"rifle", "cat", "a_dog"}),
              AllOf(HasSubstr("2 of the model's 3 classes are none of the challenge's 340"),
                    HasSubstr(": rifle, a_dog; tutti train --classes kaggle")));
  EXPECT_THAT(words_without_a_class({"1", "2", "3", "4", "5", "6"}),
              HasSubstr(": 1, 2, 3, 4, 5, ...;"));
}

TEST(Submission, IsNoFileThatIsRead) {
  const test::TempFolder folder;
  test::put_bytes(folder / "test.csv", "drawings");
  std::filesystem::create_directory(folder / "drawings");
  std::filesystem::create_directory_symlink(folder.path(), folder / "same");
  const std::vector<std::string> inputs{folder / "drawings", folder / "test.csv", "not there"};
  for (const char* file : {"test.csv", "drawings/../test.csv", "same/test.csv"})
    EXPECT_THAT(message_of<UsageError>([&] { require_no_input("--json", folder / file, inputs); }),
                AllOf(HasSubstr("--json"), HasSubstr("test.csv, which is read")))
        << file;
  EXPECT_THAT(message_of<UsageError>(
                  [&] { require_no_input("--json", folder / "drawings/out.csv", inputs); }),
              HasSubstr("drawings, which is read"));
  for (const std::string& file :
       std::vector<std::string>{folder / "out.csv", folder / "no/out.csv", "out.csv"})
    EXPECT_NO_THROW(require_no_input("--json", file, inputs)) << file;
}

TEST(StrokeFlags, TakeWhatANetworkTakes) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(stroke_transforms("", 0), (Names{"strokes_to_bitmap(28)", "to_tensor()"}));
  EXPECT_EQ(stroke_transforms("strokes_to_sequence(9)", 0), (Names{"strokes_to_sequence(9)"}));
  EXPECT_THAT(message_of<UsageError>([] { stroke_transforms("random_strokes(0.2)", 0); }),
              AllOf(HasSubstr("--strokes: random_strokes(0.2): makes strokes float32 [?, 4]"),
                    HasSubstr("drawn anew"), HasSubstr("--augment")));
  EXPECT_EQ(stroke_classes("kaggle"), data::kaggle_classes());
  EXPECT_TRUE(stroke_classes("").empty());
}

}  // namespace
}  // namespace tutti::cli
