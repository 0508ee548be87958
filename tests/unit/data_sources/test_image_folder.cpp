#include <gmock/gmock.h>

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
using test::values_of;
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
       "ants/notes.txt", "ants/deeper/3.jpg", ".git/1.jpg", "list.csv"});
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
  EXPECT_THAT(refusal(folder.path(), {.classes = {"ants", "bees", "wasps"}}),
              AllOf(HasSubstr("class \"wasps\" is missing"), HasSubstr("ants, bees")));
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
