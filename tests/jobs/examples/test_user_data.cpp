// The examples on data of a user's own, made small here.
#include <filesystem>
#include <fstream>

#include "tests/jobs/command_line/user_data.h"
#include "tests/jobs/examples/programs.h"
#include "tests/support/command.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace tutti::test {
namespace {

TEST(ExamplesOfUserData, PhotosAreToldApartAndADamagedOneReplaced) {
  const TempFolder folder;
  put_photos(folder / "train", 40);
  put_photos(folder / "val", 8, 2);
  put_bytes(folder / "train/dark/3.jpg", "this is no photo");
  ASSERT_THAT(run_command({example("10_photos"), "--strategy", "mirrored", "--replicas", "2",
                           folder.path(), "6"}),
              Exits(0, Out(AllOf(HasSubstr("test accuracy 1.0000"), HasSubstr("dark/3.jpg")))));
}

TEST(ExamplesOfUserData, ATableIsLearnt) {
  const TempFolder folder;
  put_flats(folder / "flats.csv", 500);
  const auto out = run_command({example("11_tables"), folder / "flats.csv", "price"});
  ASSERT_EQ(out.exit_code, 0) << out.out << out.err;
  const size_t at = out.out.find("price off by ");
  ASSERT_NE(at, std::string::npos) << out.out;
  EXPECT_LT(std::stod(out.out.substr(at + 13)), 2000) << "of 20,000 to 170,000";
}

TEST(ExamplesOfUserData, ATextIsReadAndWrittenOn) {
  const TempFolder folder;
  std::string rhyme;
  for (int i = 0; i < 100; ++i) rhyme += "one, two,\nbuckle my shoe\n";
  put_bytes(folder / "rhyme.txt", rhyme);
  const auto out = run_command({example("12_text"), "--strategy", "mirrored", "--replicas", "2",
                                folder / "rhyme.txt", "20"});
  ASSERT_EQ(out.exit_code, 0) << out.out << out.err;
  const std::string said = "after 20 steps\n";
  const size_t at = out.out.find(said);
  ASSERT_NE(at, std::string::npos) << out.out;
  EXPECT_EQ(out.out.size(), at + said.size() + 500 + 1);  // characters of one byte, and a line end
}

}  // namespace
}  // namespace tutti::test
