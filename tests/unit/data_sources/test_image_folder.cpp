#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/data/sources/image_folder.h"

#include "tests/support/message_of.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/data_sources/rows.h"

namespace tutti::data {
namespace {

namespace fs = std::filesystem;
using test::row_of;
using test::words_of;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using tutti::test::message_of;
using tutti::test::put_bytes;
using tutti::test::TempFolder;

// Photos are whatever their names say: a photo's content is its path here.
void add(const TempFolder& folder, const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    fs::create_directories((folder / path).parent_path());
    put_bytes(folder / path, "photo " + path);
  }
}

std::string photo(const Dataset& data, int64_t row) {
  return std::string(text_of(row_of(data, row).at(0)));
}

std::string refusal(const fs::path& folder, ImageFolderOptions options = {}) {
  return message_of<DataError>([&] { image_folder(folder, options); });
}

TEST(ImageFolder, NumbersClassesAndPhotosByTheBytesOfTheirNames) {
  const TempFolder folder;
  add(folder,
      {"bees/2.JPG", "bees/10.jpeg", "ants/z.png", "Wasps/1.webp", "ants/a.jpg", "ants/.hidden.jpg",
       "ants/notes.txt", "ants/.deeper/3.jpg", ".git/1.jpg", "list.csv"});
  const Dataset data = image_folder(folder.path());
  EXPECT_THAT(data.classes(), ElementsAre("Wasps", "ants", "bees"));
  EXPECT_THAT(words_of(data.columns()), ElementsAre("x uint8 [?]", "y int64 []"));
  std::vector<std::string> photos;
  std::vector<int64_t> labels;
  for (int64_t row = 0; row < data.num_samples(); ++row) {
    photos.push_back(photo(data, row));
    labels.push_back(row_of(data, row).at(1).as<int64_t>()[0]);
  }
  EXPECT_THAT(photos, ElementsAre("photo Wasps/1.webp", "photo ants/a.jpg", "photo ants/z.png",
                                  "photo bees/10.jpeg", "photo bees/2.JPG"));
  EXPECT_THAT(labels, ElementsAre(0, 1, 1, 2, 2));
}

TEST(ImageFolder, NumbersClassesAsItIsTold) {
  const TempFolder folder;
  add(folder, {"ants/1.jpg", "bees/2.jpg"});
  const Dataset data = image_folder(folder.path(), {.classes = {"bees", "ants"}});
  EXPECT_THAT(data.classes(), ElementsAre("bees", "ants"));
  EXPECT_EQ(photo(data, 0), "photo bees/2.jpg");
  EXPECT_THAT(refusal(folder.path(), {.classes = {"ants", "bee"}}),
              AllOf(HasSubstr(folder.path().string()), HasSubstr("unknown class \"bees\""),
                    HasSubstr("did you mean \"bee\"")));
}

// Of what is tested on: labels are those of the training, whatever there is.
TEST(ImageFolder, SomeOfTheClassesThatItIsToldMayHaveNoPhoto) {
  const TempFolder folder;
  add(folder, {"ants/1.jpg", "wasps/2.jpg"});
  fs::create_directory(folder / "bees");
  const Dataset data = image_folder(folder.path(), {.classes = {"ants", "bees", "wasps", "yaks"}});
  EXPECT_THAT(data.classes(), ElementsAre("ants", "bees", "wasps", "yaks"));
  ASSERT_EQ(data.num_samples(), 2);
  EXPECT_EQ(row_of(data, 1).at(1).as<int64_t>()[0], 2);
  fs::remove(folder / "ants/1.jpg");
  fs::remove(folder / "wasps/2.jpg");
  EXPECT_THAT(refusal(folder.path(), {.classes = {"ants", "bees", "wasps"}}),
              HasSubstr("got no photo of ants, bees, wasps"));
}

TEST(ImageFolder, ReadsFoldersWithinClasses) {
  const TempFolder folder;
  add(folder, {"ants/b.jpg", "ants/a/z.jpg", "ants/a/y/x.jpg", "bees/deep/1.jpg"});
  const Dataset data = image_folder(folder.path());
  std::vector<std::string> photos;
  for (int64_t row = 0; row < data.num_samples(); ++row) photos.push_back(photo(data, row));
  EXPECT_THAT(photos, ElementsAre("photo ants/a/y/x.jpg", "photo ants/a/z.jpg", "photo ants/b.jpg",
                                  "photo bees/deep/1.jpg"));
  EXPECT_EQ(row_of(data, 3).at(1).as<int64_t>()[0], 1);
  fs::create_directory_symlink(folder / "ants", folder / "ants/a/loop");
  EXPECT_THAT(refusal(folder.path()), HasSubstr("loop: a link leads back to "));
  fs::remove(folder / "ants/a/loop");
  for (const char* name : {"ants", "bees"}) fs::create_symlink("..", folder / name / "up");
  EXPECT_THAT(refusal(folder.path()), HasSubstr("ants/up: a link leads back to "));
}

TEST(ImageFolder, ContentDecidesWhereTheNameSaysNothing) {
  const TempFolder folder;
  add(folder, {"ants/1.jpg", "ants/2.jfif", "ants/3.BMP", "bees/1.jpg", "bees/more/5.tiff",
               "bees/notes.txt", "bees/6.tiff"});
  put_bytes(folder / "bees/4", "\x89PNG, and without an ending");
  put_bytes(folder / "bees/empty", "");
  ASSERT_EQ(::mkfifo((folder / "bees/pipe").c_str(), 0600), 0);
  put_bytes(folder / "beside.jpg", "a photo of no class");
  put_bytes(folder / "list.csv", "no photo");
  std::vector<std::string> told;
  const auto tell = [&](const std::string& words) { told.push_back(words); };
  EXPECT_EQ(image_folder(folder.path(), {.on_left_out = tell}).num_samples(), 5);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_THAT(told[0],
              AllOf(HasSubstr("6 files are left out: "), HasSubstr("2 .tiff (bees/6.tiff, ...)"),
                    HasSubstr("1 .txt (bees/notes.txt)"), HasSubstr("1 .jpg (beside.jpg)"),
                    HasSubstr("2 without an ending (bees/empty, ...)")));
  told.clear();  // who chooses is told nothing
  EXPECT_EQ(
      image_folder(folder.path(), {.extensions = {".jpg"}, .on_left_out = tell}).num_samples(), 2);
  EXPECT_TRUE(told.empty());
}

TEST(ImageFolder, TakesOtherExtensions) {
  const TempFolder folder;
  add(folder, {"a/1.jpg", "a/2.gif", "b/1.GIF"});
  EXPECT_EQ(image_folder(folder.path(), {.extensions = {".gif"}}).num_samples(), 2);
}

TEST(ImageFolder, RefusesFoldersThatTeachNothing) {
  const TempFolder folder;
  EXPECT_THAT(refusal(folder / "nowhere"), HasSubstr("nowhere"));
  EXPECT_THAT(refusal(folder.path()), HasSubstr("got no class"));
  add(folder, {"ants/1.jpg"});
  EXPECT_THAT(refusal(folder.path()),
              AllOf(HasSubstr("one class (\"ants\")"), HasSubstr("allow_one_class")));
  EXPECT_EQ(image_folder(folder.path(), {.allow_one_class = true}).num_samples(), 1);
  add(folder, {"bees/notes.txt"});
  EXPECT_THAT(refusal(folder.path()),
              AllOf(HasSubstr("class \"bees\" is empty: got 1 other files"), HasSubstr(".webp")));
}

TEST(ImageFolder, NamesTheFolderThatMayBeMeant) {
  const TempFolder folder;
  add(folder, {"train/ants/1.jpg", "train/bees/1.jpg", "val/ants/1.jpg"});
  EXPECT_THAT(refusal(folder.path()), HasSubstr("give " + (folder / "train").string()));
}

TEST(ImageFolder, NamesAPhotoThatVanishedOrChanged) {
  const TempFolder folder;
  add(folder, {"ants/1.jpg", "ants/2.jpg", "bees/1.jpg"});
  const Dataset data = image_folder(folder.path());
  EXPECT_EQ(photo(data, 1), "photo ants/2.jpg");
  EXPECT_EQ(photo(data, 2), "photo bees/1.jpg");
  put_bytes(folder / "ants/2.jpg", "another photo");
  EXPECT_THAT(message_of<DataError>([&] { photo(data, 1); }),
              AllOf(HasSubstr("ants/2.jpg"), HasSubstr("changed"), HasSubstr("13 bytes")));
  fs::remove(folder / "ants/2.jpg");
  EXPECT_THAT(message_of<DataError>([&] { photo(data, 1); }),
              AllOf(HasSubstr((folder / "ants/2.jpg").string()), HasSubstr("it was there")));
}

TEST(ImageFolder, AChangedPhotoIsNotFoundInACache) {
  const TempFolder folder, cache;
  add(folder, {"ants/1.jpg", "bees/1.jpg"});
  EXPECT_EQ(photo(image_folder(folder.path()).cache(cache.path()), 0), "photo ants/1.jpg");
  put_bytes(folder / "ants/1.jpg", "another");
  EXPECT_EQ(photo(image_folder(folder.path()).cache(cache.path()), 0), "another");
}

TEST(ImageFolder, ReadsRealPhotos) {
  const fs::path folder = test::shared_data() / "hymenoptera";
  if (!fs::exists(folder)) GTEST_SKIP() << "there is no " << folder;
  const Dataset train = image_folder(folder / "train");
  EXPECT_EQ(train.num_samples(), 140);
  const Dataset held_out = image_folder(folder / "val", {.classes = train.classes()});
  EXPECT_EQ(held_out.num_samples(), 40);
  EXPECT_THAT(photo(held_out, 39), testing::StartsWith("\xFF\xD8\xFF"));
}

}  // namespace
}  // namespace tutti::data
