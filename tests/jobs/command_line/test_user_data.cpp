// `tutti train`, `evaluate` and `predict` on data of a user's own: photos, tables, IDX.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <sstream>
#include <thread>

#include <nlohmann/json.hpp>

#include "tutti/data/sources/csv.h"

#include "tests/jobs/command_line/user_data.h"
#include "tests/support/command.h"
#include "tests/support/temp_folder.h"

namespace tutti::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using Words = std::vector<std::string>;

// Of the order whose end `tutti train` holds out.
constexpr uint64_t kSeedOfHeldOut = 0x7A11DA7E;

CommandResult tutti(const std::string& command, Words words, const Words& more = {}) {
  words.insert(words.begin(), {TUTTI_PROGRAM, command});
  words.insert(words.end(), more.begin(), more.end());
  return run_command(words, {}, Millis{240'000});
}

json first_line(const fs::path& file) { return json::parse(get_bytes(file)); }

std::vector<json> lines_of(const fs::path& file) {
  std::vector<json> lines;
  std::istringstream text(get_bytes(file));
  for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
  return lines;
}

class UserData : public testing::Test {
 protected:
  UserData() {
    put_photos(folder_ / "photos", 20);
    put_photos(folder_ / "more_photos", 6, 2);
    put_flats(folder_ / "flats.csv", 300);
    put_flats(folder_ / "more_flats.csv", 40, 2);
    put_idx(folder_.path(), 100);
    photos_ = folder_ / "photos";
    more_photos_ = folder_ / "more_photos";
    flats_ = folder_ / "flats.csv";
    more_flats_ = folder_ / "more_flats.csv";
    idx_ = folder_ / "train-images-idx3-ubyte";
  }

  // Figures of a training that must succeed; what it says goes to `said_`.
  json figures(const Words& words, const Words& more = {}) {
    Words all = words;
    all.insert(all.end(), {"--threads", "1", "--json", folder_ / "figures.json"});
    const auto result = tutti("train", all, more);
    said_ = result.out;
    EXPECT_EQ(result.exit_code, 0) << testing::PrintToString(all) << result.err << result.out;
    return result.exit_code == 0 ? first_line(folder_ / "figures.json") : json{};
  }

  const TempFolder folder_;
  std::string photos_, more_photos_, flats_, more_flats_, idx_;
  std::string said_;
};

TEST_F(UserData, TrainsTheSameHoweverReplicasArePlaced) {
  const Words trainings[] = {
      {"doodle_cnn", "--data", photos_, "--image-size", "16", "--augment", "--batch-size", "8",
       "--max-steps", "6", "--workers", "2"},
      {"mlp", "--data", flats_, "--target", "dear", "--batch-size", "30", "--max-steps", "6"},
      {"linear_regression", "--data", flats_, "--target", "price", "--batch-size", "30",
       "--max-steps", "6"},
      {"lenet", "--data", idx_, "--batch-size", "10", "--max-steps", "6"}};
  for (const Words& words : trainings) {
    const Words two = {"--replicas", "2"};
    const std::string expected = figures(words, two).at("weights_sha256");
    for (const Words& more : {Words{"--replicas", "2", "--strategy", "mirrored"},
                              Words{"--replicas", "2", "--strategy", "multi_worker"},
                              Words{"--replicas", "2", "--workers", "0"}}) {
      if (more[2] == "--workers" && words.back() == "2") continue;  // given already
      EXPECT_EQ(figures(words, more).at("weights_sha256"), expected)
          << words[0] << testing::PrintToString(more);
    }
  }
}

TEST_F(UserData, PhotosAreLearntTestedAndPredicted) {
  const std::string out = folder_ / "run";
  const json trained =
      figures({"mlp", "--data", photos_, "--validation", more_photos_, "--image-size", "8",
               "--augment", "--batch-size", "10", "--epochs", "8", "--out", out});
  EXPECT_EQ(trained.at("data"), "image_folder");
  EXPECT_EQ(trained.at("val_accuracy"), 1);
  EXPECT_GE(trained.at("input_wait_share").get<double>(), 0);
  EXPECT_THAT(said_, AllOf(HasSubstr("photos: a folder of 2 classes (dark, light)"),
                           HasSubstr("validation: " + more_photos_),
                           HasSubstr("2 classes; 40 samples to train on, 12 to test")));
  const json spec = first_line(fs::path(out) / "data.json");
  EXPECT_EQ(spec.at("classes"), (json{"dark", "light"}));
  EXPECT_EQ(spec.at("shape"), (json{3, 8, 8}));
  EXPECT_EQ(spec, first_line(fs::path(out) / "checkpoints/data.json"));

  for (const std::string& weights : {out, out + "/checkpoints"}) {
    const auto tested = tutti("evaluate", {"mlp", "--data", more_photos_, "--checkpoints", weights,
                                           "--json", folder_ / "test.json"});
    ASSERT_EQ(tested.exit_code, 0) << tested.err;
    EXPECT_EQ(first_line(folder_ / "test.json").at("accuracy"), 1);
    EXPECT_NEAR(first_line(folder_ / "test.json").at("loss").get<double>(),
                trained.at("val_loss").get<double>(), 1e-6);
  }

  const std::string dark = more_photos_ + "/dark/0.jpg", light = more_photos_ + "/light/0.jpg";
  const auto predicted = tutti("predict", {"mlp", "--weights", out, dark, light, "--top", "2",
                                           "--json", folder_ / "said.json"});
  ASSERT_EQ(predicted.exit_code, 0) << predicted.err;
  EXPECT_THAT(predicted.out,
              testing::MatchesRegex(".*dark/0.jpg: dark [01]\\.[0-9]+, light 0\\..*\n"
                                    ".*light/0.jpg: light [01]\\.[0-9]+, dark 0\\..*\n"));
  const auto lines = lines_of(folder_ / "said.json");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[1].at("file"), light);
  EXPECT_EQ(lines[1].at("class"), "light");
  EXPECT_NEAR(lines[1].at("top")[0].at("probability").get<double>() +
                  lines[1].at("top")[1].at("probability").get<double>(),
              1, 1e-6);
}

TEST_F(UserData, ADamagedPhotoIsNamedAndTheOthersArePredicted) {
  const std::string out = folder_ / "run";
  figures({"mlp", "--data", photos_, "--image-size", "8", "--batch-size", "10", "--epochs", "1",
           "--out", out});
  const std::string sound = photos_ + "/dark/1.jpg", damaged = folder_ / "damaged.jpg",
                    missing = folder_ / "missing.jpg";
  put_bytes(damaged, "this is no photo");
  const auto result = tutti("predict", {"mlp", "--weights", out, damaged, sound, missing});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr(sound + ": "), Not(HasSubstr(damaged))));
  EXPECT_THAT(result.err, AllOf(HasSubstr("tutti predict: " + damaged), HasSubstr(missing)));

  // In a training it is an error before the step that would use it, or another photo's place.
  put_bytes(photos_ + "/dark/1.jpg", "this is no photo");
  const Words words = {"mlp", "--data",   photos_, "--image-size", "8",         "--batch-size",
                       "10",  "--epochs", "1",     "--validation", more_photos_};
  const auto ended = tutti("train", words);
  EXPECT_EQ(ended.exit_code, 2) << ended.out;
  EXPECT_THAT(ended.err, AllOf(HasSubstr("dark/1.jpg"), HasSubstr("epoch"),
                               HasSubstr("tutti data verify " + photos_), HasSubstr("--on-bad")));
  figures(words, {"--on-bad", "replace:0.1"});
  EXPECT_THAT(said_, AllOf(HasSubstr("1 damaged sample was replaced"), HasSubstr("dark/1.jpg")));

  // What is tested on, too, and by another command.
  put_bytes(more_photos_ + "/light/2.jpg", "nor is this");
  const auto told = HasSubstr("another sample in place of light/2.jpg");
  EXPECT_THAT(tutti("train", words, {"--on-bad", "replace:0.1"}).err, told);
  const Words test = {"mlp", "--data", more_photos_, "--checkpoints", out};
  const auto refused = tutti("evaluate", test);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("light/2.jpg"));
  const auto tested = tutti("evaluate", test, {"--on-bad", "replace"});
  EXPECT_EQ(tested.exit_code, 0) << tested.err;
  EXPECT_THAT(tested.err, told);
}

TEST_F(UserData, VerifySaysWhatItDoesNotRead) {
  const Words verify = {"verify", more_photos_};
  EXPECT_EQ(tutti("data", verify).exit_code, 0);
  put_bytes(more_photos_ + "/dark/scan.tiff", "II*");
  const auto told = tutti("data", verify);
  EXPECT_EQ(told.exit_code, 1);
  EXPECT_THAT(told.out, AllOf(HasSubstr("1 file is left out: 1 .tiff (dark/scan.tiff)"),
                              HasSubstr("12 samples read, all sound, but not all files")));
  EXPECT_EQ(told.err, "");
}

// A name is no command to a terminal, and no end of a program that writes JSON.
TEST_F(UserData, NamesAreNotObeyed) {
  const fs::path dark = photos_ + "/dark", red = photos_ + "/\x1b[31mred";
  fs::rename(dark, red);
  const Words words = {"mlp", "--data",      photos_, "--image-size", "8", "--batch-size",
                       "8",   "--max-steps", "1"};
  const std::string out = folder_ / "run";
  figures(words, {"--out", out});
  EXPECT_THAT(said_, AllOf(HasSubstr("2 classes (\\x1b[31mred, light)"), Not(HasSubstr("\x1b"))));
  const std::string photo = folder_ / "p\xff.png";
  fs::copy_file(fs::directory_iterator(red)->path(), photo);
  const auto predicted = tutti(
      "predict", {"mlp", photo, "--weights", out, "--top", "2", "--json", folder_ / "p.json"});
  EXPECT_EQ(predicted.exit_code, 0) << predicted.err;
  EXPECT_THAT(predicted.out, AllOf(HasSubstr("p\\xff.png: "), Not(HasSubstr("\x1b"))));
  const json line = first_line(folder_ / "p.json");
  EXPECT_EQ(line.at("file"), (folder_ / "p\ufffd.png").string());
  EXPECT_EQ(line.at("top").size(), 2u);

  fs::rename(red, photos_ + "/\xff");
  const auto refused = tutti("train", words);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("a name is no UTF-8"), HasSubstr("light, \\xff")));
}

// Numbers that are names, columns that are none of a model's business, what marks a missing value.
TEST_F(UserData, ColumnsOfATableAreWhatTheFlagsSay) {
  std::string text = "name,area,kind\n";
  for (int row = 0; row < 60; ++row)
    text += fmt::format("flat {},{},{}\n", row, row % 7 == 3 ? "-" : fmt::format("{}", row),
                        3 + row / 20);
  const std::string table = folder_ / "named.csv", out = folder_ / "run";
  put_bytes(table, text);
  const Words words = {"mlp", "--data",   table, "--target",  "kind", "--batch-size",
                       "10",  "--epochs", "2",   "--missing", "-"};
  const auto plain = tutti("train", words);
  EXPECT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_THAT(plain.out, AllOf(HasSubstr("column \"name\" has 60 words in 60 rows"),
                               HasSubstr("--without \"name\""), HasSubstr("predicts kind")));
  figures(words, {"--without", "name", "--categorical", "kind", "--out", out});
  EXPECT_THAT(said_, AllOf(HasSubstr("3 classes"), Not(HasSubstr("60 words"))));
  const json spec = first_line(fs::path(out) / "data.json");
  EXPECT_EQ(spec.at("classes"), (json{"3", "4", "5"}));
  EXPECT_EQ(spec.at("shape"), (json{1}));
  EXPECT_THAT(tutti("train", {"mlp", "--data", table, "--target", "kind"}).err,
              AllOf(HasSubstr("column \"area\": got \"-\""), HasSubstr("--missing")));
}

// Means and deviations of the rows that are trained on, which a table of the test's own cuts alike.
TEST_F(UserData, WhatIsHeldOutOfATableTeachesNothing) {
  const std::string out = folder_ / "run", table = folder_ / "outlier.csv";
  const auto put_table = [&](int row_of_outlier) {
    std::string text = "x,y\n";
    for (int row = 0; row < 40; ++row)
      text += fmt::format("{},{}\n", row == row_of_outlier ? 1'000'000 : row, 2 * row);
    put_bytes(table, text);
  };
  // Of 40 rows 4 are held out: an outlier among them moves nothing, any other does.
  int silent = 0;
  for (int row = 0; row < 40 && silent == 0; ++row) {
    put_table(row);
    const auto halves = data::csv_halves(table, {.target = "y", .standardise = true},
                                         {.share = 0.1, .seed = kSeedOfHeldOut});
    if (halves.spec.features[0].deviation > 100) continue;
    ++silent;
    figures({"linear_regression", "--data", table, "--target", "y", "--batch-size", "9",
             "--max-steps", "1", "--out", out});
    const json column = first_line(fs::path(out) / "data.json").at("table").at("features")[0];
    EXPECT_EQ(column.at("mean"), halves.spec.features[0].mean);
    EXPECT_EQ(column.at("deviation"), halves.spec.features[0].deviation);
    EXPECT_THAT(said_, AllOf(HasSubstr("validation: 4 of 40 samples"),
                             HasSubstr("columns: numbers x; target y, a number\n")));
  }
  EXPECT_EQ(silent, 1);
}

// The same file, read the same by train, evaluate, predict, verify and convert.
TEST_F(UserData, AHeaderIsWhatItLooksLikeOrWhatIsSaid) {
  std::string rows;
  for (int row = 0; row < 40; ++row)
    rows += fmt::format("{},{}\n", row % 2 == 0 ? "p" : "e", row % 4 < 2 ? "f" : "k");
  const std::string named = folder_ / "named.csv", bare = folder_ / "bare.csv",
                    out = folder_ / "run";
  put_bytes(named, "class,cap\n" + rows);
  put_bytes(bare, rows);
  const Words short_run = {"--batch-size", "10", "--max-steps", "1"};
  figures({"mlp", "--data", named, "--target", "class", "--out", out}, short_run);
  EXPECT_THAT(said_, AllOf(HasSubstr("named by its first line"),
                           HasSubstr("columns: words cap (2); target class, 2 classes\n"),
                           HasSubstr("36 samples to train on, 4 to test")));
  const auto predicted = [&](const std::string& file, const Words& more) {
    return tutti("predict", {"mlp", "--weights", out, file}, more).out;
  };
  EXPECT_THAT(predicted(named, {}), AllOf(HasSubstr("row 40"), Not(HasSubstr("row 41"))));
  EXPECT_THAT(predicted(bare, {"--header", "no"}),
              AllOf(HasSubstr("row 40"), Not(HasSubstr("row 41"))));
  const auto tested =
      tutti("evaluate", {"mlp", "--checkpoints", out, "--data", bare}, {"--header", "no"});
  EXPECT_THAT(tested.out, HasSubstr("40 samples")) << tested.err;
  EXPECT_THAT(tutti("evaluate", {"mlp", "--checkpoints", out, "--data", bare}).err,
              AllOf(HasSubstr("unknown column"), HasSubstr("--header no")));
  EXPECT_THAT(tutti("data", {"verify", named}).out, HasSubstr("40 samples read"));
  EXPECT_THAT(tutti("data", {"verify", named, "--header", "no"}).out, HasSubstr("41 samples read"));
  EXPECT_THAT(tutti("data", {"convert", named, folder_ / "rows.mds"}).out, HasSubstr("40 samples"));
  EXPECT_THAT(tutti("data", {"convert", named, folder_ / "all.mds", "--header", "no"}).out,
              HasSubstr("41 samples"));
  figures({"mlp", "--data", bare, "--target", "column0", "--header", "no"}, short_run);
  EXPECT_THAT(said_, HasSubstr("without a line of names"));
  EXPECT_THAT(tutti("train", {"mlp", "--data", photos_, "--header", "no"}).err,
              HasSubstr("--header no: is for tables"));
  EXPECT_THAT(tutti("predict", {"mlp", "--weights", out, named, "--header", "maybe"}).err,
              HasSubstr("--header"));
}

TEST_F(UserData, ATargetThatLooksLikeANumberIsWarnedOf) {
  std::string text = "area;price\n";
  for (int row = 0; row < 40; ++row) text += fmt::format("{};{},{}\n", row, 100 * row, 10 + row);
  const std::string table = folder_ / "comma.csv";
  put_bytes(table, text);
  const Words words = {"mlp",          "--data", table,         "--target", "price",
                       "--batch-size", "10",     "--max-steps", "1"};
  const auto classes = tutti("train", words);
  EXPECT_EQ(classes.exit_code, 0) << classes.err;
  EXPECT_THAT(classes.err, AllOf(HasSubstr("column \"price\" is taken for 40 classes"),
                                 HasSubstr("has a decimal comma"), HasSubstr("--decimal ,")));
  EXPECT_THAT(classes.out, AllOf(HasSubstr("target \"price\" has 40 classes in 40 rows"),
                                 HasSubstr("columns: numbers area; target price, 40 classes\n")));
  const auto numbers = tutti("train", words, {"--decimal", ","});
  EXPECT_THAT(numbers.out,
              AllOf(HasSubstr("target price, a number\n"), HasSubstr("predicts price")));
  EXPECT_EQ(numbers.err, "");
}

TEST_F(UserData, NumbersOfAnySizeAreTrainedOnAndTested) {
  std::string text = "a,y\n";
  for (int row = 0; row < 40; ++row) text += fmt::format("{}e300,{}\n", 1 + row % 7, row);
  const std::string table = folder_ / "huge.csv", out = folder_ / "run";
  put_bytes(table, text);
  figures({"linear_regression", "--data", table, "--target", "y", "--batch-size", "10",
           "--max-steps", "1", "--out", out});
  EXPECT_GT(first_line(fs::path(out) / "data.json").at("table").at("features")[0].at("deviation"),
            1e300);
  const auto tested =
      tutti("evaluate", {"linear_regression", "--checkpoints", out, "--data", table});
  EXPECT_EQ(tested.exit_code, 0) << tested.err;
}

TEST_F(UserData, ATablesNumberIsLearntTestedAndPredicted) {
  const std::string out = folder_ / "run";
  const json trained =
      figures({"linear_regression", "--data", flats_, "--target", "price", "--batch-size", "30",
               "--epochs", "40", "--learning-rate", "0.05", "--out", out});
  EXPECT_LT(trained.at("val_mean_absolute_error").get<double>(), 1000) << "of 20,000 to 170,000";
  EXPECT_FALSE(trained.contains("val_accuracy"));
  EXPECT_THAT(said_,
              AllOf(HasSubstr("a table: 5 columns, delimited by commas"),
                    HasSubstr("predicts price; 270 samples to train on, 30 to test"),
                    HasSubstr("validation: 30 of 300 samples"), HasSubstr("mean_absolute_error")));

  const auto tested = tutti("evaluate", {"linear_regression", "--data", more_flats_,
                                         "--checkpoints", out, "--json", folder_ / "test.json"});
  ASSERT_EQ(tested.exit_code, 0) << tested.err;
  EXPECT_LT(first_line(folder_ / "test.json").at("mean_absolute_error").get<double>(), 1000);

  put_bytes(folder_ / "new.csv", "view,area,rooms,dear\nsea,50,2,no\nyard,100,,yes\n");
  const auto predicted = tutti("predict", {"linear_regression", "--weights", out,
                                           folder_ / "new.csv", "--json", folder_ / "said.json"});
  ASSERT_EQ(predicted.exit_code, 0) << predicted.err;
  EXPECT_THAT(predicted.out, AllOf(HasSubstr("new.csv, row 1: price "), HasSubstr("row 2: price")));
  const auto lines = lines_of(folder_ / "said.json");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NEAR(lines[0].at("value").get<double>(), 100'000, 5'000);
  EXPECT_NEAR(lines[1].at("value").get<double>(), 100'000, 5'000);
}

TEST_F(UserData, ClassesOfATableAndOfIdx) {
  const std::string out = folder_ / "run";
  const json rows = figures({"mlp", "--data", flats_, "--target", "view", "--batch-size", "30",
                             "--epochs", "40", "--learning-rate", "0.01", "--out", out});
  EXPECT_GT(rows.at("val_accuracy").get<double>(), 0.8);
  const auto predicted = tutti("predict", {"mlp", "--weights", out, more_flats_});
  ASSERT_EQ(predicted.exit_code, 0) << predicted.err;
  EXPECT_THAT(predicted.out, testing::ContainsRegex("row 40: (sea|yard) [01]\\."));

  const json images = figures(
      {"mlp", "--data", idx_, "--batch-size", "10", "--epochs", "5", "--out", folder_ / "idx"});
  EXPECT_EQ(images.at("val_accuracy"), 1);
  EXPECT_THAT(said_,
              AllOf(HasSubstr("IDX: an array of 3 dimensions"),
                    HasSubstr("validation: " + (folder_ / "t10k-images-idx3-ubyte").string()),
                    HasSubstr("100 samples to train on, 100 to test")));
  const auto said =
      tutti("predict", {"mlp", "--weights", folder_ / "idx", folder_ / "t10k-images-idx3-ubyte"});
  EXPECT_THAT(said.out, AllOf(HasSubstr(", row 1: 0 "), HasSubstr(", row 100: 1 ")));
}

TEST_F(UserData, DoodlesArePredictedToo) {
  const std::string out = folder_ / "run";
  figures({"mlp", "--data", kDoodles, "--epochs", "1", "--max-steps", "50", "--out", out});
  // Of the project's doodles, unpacked.
  const std::string file = folder_ / "banana.npy";
  ASSERT_EQ(
      run_command({"bash", "-c", "zcat -f " + std::string(kDoodles) + "/banana.npy* > " + file})
          .exit_code,
      0);
  const auto result = tutti("predict", {"mlp", "--weights", out, file, file + ".gone"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("banana.npy.gone"));
  std::istringstream lines(result.out);
  int right = 0, all = 0;
  for (std::string line; std::getline(lines, line); ++all)
    right += line.find(": banana ") != std::string::npos ? 1 : 0;
  EXPECT_GT(all, 1000);
  EXPECT_GT(2 * right, all);
}

TEST_F(UserData, ASideCarMayBeginBeforeTheTraining) {
  CommandResult followed;
  std::jthread sidecar([&] {
    followed = tutti("evaluate", {"linear_regression", "--data", more_flats_, "--checkpoints",
                                  folder_ / "run", "--follow", "--idle-limit", "60"});
  });
  figures({"linear_regression", "--data", flats_, "--target", "price", "--batch-size", "30",
           "--epochs", "2", "--out", folder_ / "run"});
  sidecar.join();
  EXPECT_EQ(followed.exit_code, 0) << followed.err;
  EXPECT_THAT(followed.out, AllOf(HasSubstr("mean_absolute_error"),
                                  HasSubstr("model.safetensors is the last of its job")));
}

// Beside the checkout, never shipped.
TEST_F(UserData, RealDataIsLearntTheSameByTwoReplicas) {
  const fs::path shared = fs::current_path().parent_path() / "shared/data";
  if (!fs::exists(shared)) GTEST_SKIP() << "there is no " << shared;
  const std::string at = shared.string() + "/";
  const struct {
    Words words;
    const char* figure;
    double low, high;
  } cases[] = {
      {{"linear_regression", "--data", at + "california-housing/housing_every4th.csv", "--target",
        "median_house_value", "--epochs", "20", "--learning-rate", "0.01"},
       "val_mean_absolute_error",
       40'000,
       58'000},
      {{"mlp", "--data", at + "auto-mpg/auto-mpg.data", "--target", "column0", "--batch-size", "32",
        "--epochs", "30"},
       "val_mean_absolute_error",
       1,
       3},
      {{"mlp", "--data", at + "adult/adult.data", "--target", "column14", "--epochs", "2"},
       "val_accuracy",
       0.82,
       1},
      {{"mlp", "--data", at + "mnist/train-images-idx3-ubyte.gz", "--epochs", "1"},
       "val_accuracy",
       0.9,
       1},
      {{"doodle_cnn", "--data", at + "flowers128", "--image-size", "32", "--augment", "--epochs",
        "3", "--batch-size", "64"},
       "val_accuracy",
       0.35,
       1},
      {{"mlp", "--data", at + "hymenoptera/train", "--validation", at + "hymenoptera/val",
        "--image-size", "32", "--epochs", "2", "--batch-size", "20"},
       "val_accuracy",
       0.3,
       1},
  };
  for (const auto& c : cases) {
    const json one = figures(c.words, {"--replicas", "2"});
    const double value = one.at(c.figure);
    EXPECT_GT(value, c.low) << c.words[2];
    EXPECT_LE(value, c.high) << c.words[2];
    const json two = figures(c.words, {"--replicas", "2", "--strategy", "multi_worker"});
    EXPECT_EQ(two.at("weights_sha256"), one.at("weights_sha256")) << c.words[2];
  }
}

TEST_F(UserData, WhatDoesNotFitIsSaidBeforeTraining) {
  const std::string text = folder_ / "words.txt", one = folder_ / "one.csv",
                    nothing = folder_ / "nothing";
  put_bytes(text, "Once upon a time,\nthere was a text.\n");
  put_bytes(one, "a,b\n1,x\n2,x\n3,x\n");
  fs::create_directory(nothing);
  const std::string other = folder_ / "other_classes";
  put_photos(other, 2);
  fs::rename(other + "/dark", other + "/dusky");
  const struct {
    Words words;
    std::vector<const char*> answer;
  } cases[] = {
      {{"linear_regression", "--data", photos_}, {"[3, 64, 64]", "there are", "resnet18"}},
      {{"resnet18", "--data", flats_, "--target", "price"},
       {"[6]", "there are linear_regression, mlp, wide"}},
      {{"linear_regression", "--data", flats_, "--target", "view"},
       {"predicts a number", "2 classes", "there are mlp, wide"}},
      {{"lenet", "--data", photos_, "--image-size", "8"}, {"there are", "resnet18"}},
      {{"vit", "--data", photos_, "--image-size", "64"}, {"7", "there are"}},
      {{"mlp", "--data", flats_}, {"--target COLUMN", "rooms, area, view, price, dear"}},
      {{"mlp", "--data", flats_, "--target", "prize"}, {"prize", "price"}},
      {{"mlp", "--data", one, "--target", "b"}, {"--target b", "\"x\" in all rows"}},
      {{"mlp", "--data", photos_, "--target", "price"}, {"--target price", "tables"}},
      {{"mlp", "--data", photos_, "--without", "a,b"}, {"--without a", "tables"}},
      {{"mlp", "--data", idx_, "--categorical", "price"}, {"--categorical price", "tables"}},
      {{"mlp", "--data", idx_, "--missing", "-"}, {"--missing -", "tables"}},
      {{"mlp", "--data", flats_, "--target", "price", "--without", "romms"},
       {"romms", "\"rooms\""}},
      {{"mlp", "--data", idx_, "--image-size", "32"}, {"--image-size 32", "photos"}},
      {{"mlp", "--data", flats_, "--target", "price", "--augment"}, {"--augment", "photos"}},
      {{"mlp", "--data", photos_, "--image-size", "0"}, {"--image-size", "got \"0\""}},
      {{"mlp", "--data", text}, {"--data", "text", "text is for model gpt"}},
      {{"mlp", "--data", nothing}, {"nothing", "expected"}},
      {{"mlp", "--data", photos_, "--validation", flats_}, {"flats.csv", "image_folder"}},
      {{"mlp", "--data", photos_, "--validation", other}, {"dusky"}},
      {{"mlp", "--data", photos_, "--validation", "not/there"}, {"not/there"}},
      {{"mlp", "--data", photos_, "--validation", more_photos_, "--validation-split", "0.2"},
       {"--validation-split with --validation"}},
      {{"mlp", "--data", photos_, "--validation-split", "0.99"},
       {"0.99", "none is left to train on"}},
      {{"mlp", "--data", photos_, "--validation-split", "1.5"}, {"--validation-split"}},
      {{"mlp", "--data", photos_}, {"--batch-size 128", "36"}},
      {{"mlp", "--data", flats_, "--target", "price", "--metrics", "f1"},
       {"--metrics f1", "price is a number"}},
      {{"mlp", "--data", flats_, "--target", "price", "--class-weight", "yes=2"},
       {"--class-weight", "price is a number"}},
      {{"mlp", "--data", flats_, "--target", "price", "--early-stopping", "monitor=val_accuracy"},
       {"--early-stopping", "val_mean_absolute_error"}},
      {{"mlp", "--data", photos_, "--workers", "many"}, {"--workers", "auto"}},
      {{"mlp", "--data", photos_, "--workers", "257"}, {"--workers", "256"}},
      {{"mlp", "--data", photos_, "--loader-memory", "0"}, {"--loader-memory"}},
      {{"mlp", "--data", photos_, "--ahead", "0"}, {"--ahead"}},
      {{"mlp", "--data", photos_, "--on-bad", "replce"}, {"did you mean \"replace\"?"}},
      {{"mlp", "--data", photos_, "--on-bad", "replace:2"}, {"--on-bad", "0 to 1"}},
  };
  for (const auto& c : cases) {
    const std::string line = testing::PrintToString(c.words);
    const auto result = tutti("train", c.words);
    EXPECT_EQ(result.exit_code, 2) << line << result.err;
    EXPECT_THAT(result.err, HasSubstr("tutti train: ")) << line;
    for (const char* part : c.answer) EXPECT_THAT(result.err, HasSubstr(part)) << line;
    EXPECT_EQ(result.out, "") << line;
  }
}

TEST_F(UserData, PredictAndEvaluateNeedWhatTheTrainingSaid) {
  const std::string out = folder_ / "run";
  figures({"mlp", "--data", flats_, "--target", "price", "--batch-size", "30", "--epochs", "1",
           "--out", out});
  const auto bare = folder_ / "bare";
  fs::create_directory(bare);
  fs::copy_file(fs::path(out) / "model.safetensors", bare / "model.safetensors");
  const struct {
    std::string command;
    Words words;
    const char* answer;
  } cases[] = {
      {"predict", {"mlp", "--weights", out}, "FILES"},
      {"predict", {"mlp", more_flats_}, "--weights"},
      {"predict", {"mlp", "--weights", folder_ / "none", more_flats_}, "no weights are there"},
      {"predict", {"mlp", "--weights", bare, more_flats_}, "no data.json"},
      {"predict", {"mlp", "--weights", out, more_flats_, "--top", "2"}, "a number is predicted"},
      {"predict", {"resnet18", "--weights", out, more_flats_}, "are of mlp"},
      {"evaluate", {"wide", "--checkpoints", out, "--data", more_flats_}, "are of mlp"},
      {"evaluate", {"mlp", "--checkpoints", bare, "--data", more_flats_}, "no data.json"},
      {"evaluate", {"mlp", "--checkpoints", out, "--data", photos_}, "trained on csv"},
  };
  for (const auto& c : cases) {
    const auto result = tutti(c.command, c.words);
    EXPECT_EQ(result.exit_code, 2) << testing::PrintToString(c.words) << result.err;
    EXPECT_THAT(result.err, AllOf(StartsWith("tutti " + c.command + ": "), HasSubstr(c.answer)));
  }
}

}  // namespace
}  // namespace tutti::test
