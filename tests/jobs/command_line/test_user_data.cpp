// `tutti train`, `evaluate` and `predict` on photos, IDX and other data of a user's own.
#include <sstream>

#include "tutti/data/npy.h"

#include "tests/jobs/command_line/user_data_test.h"

namespace tutti::test {
namespace {

namespace fs = std::filesystem;

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
  const json spec = json_in(fs::path(out) / "data.json");
  EXPECT_EQ(spec.at("classes"), (json{"dark", "light"}));
  EXPECT_EQ(spec.at("shape"), (json{3, 8, 8}));
  EXPECT_EQ(spec, json_in(fs::path(out) / "checkpoints/data.json"));

  for (const std::string& weights : {out, out + "/checkpoints"}) {
    const auto tested = tutti({"evaluate", "mlp", "--data", more_photos_, "--checkpoints", weights,
                               "--json", folder_ / "test.json"});
    ASSERT_EQ(tested.exit_code, 0) << tested.err;
    EXPECT_EQ(json_in(folder_ / "test.json").at("accuracy"), 1);
    EXPECT_NEAR(json_in(folder_ / "test.json").at("loss").get<double>(),
                trained.at("val_loss").get<double>(), 1e-6);
  }

  const std::string dark = more_photos_ + "/dark/0.jpg", light = more_photos_ + "/light/0.jpg";
  ASSERT_THAT(tutti({"predict", "mlp", "--weights", out, dark, light, "--top", "2", "--json",
                     folder_ / "said.json"}),
              Exits(0, Out(MatchesRegex(".*dark/0.jpg: dark [01]\\.[0-9]+, light 0\\..*\n"
                                        ".*light/0.jpg: light [01]\\.[0-9]+, dark 0\\..*\n"))));
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
  EXPECT_THAT(tutti({"predict", "mlp", "--weights", out, damaged, sound, missing}),
              Exits(1, Out(AllOf(HasSubstr(sound + ": "), Not(HasSubstr(damaged)))),
                    Err(AllOf(HasSubstr("tutti predict: " + damaged), HasSubstr(missing)))));

  // In a training it is an error before the step that would use it, or another photo's place.
  put_bytes(photos_ + "/dark/1.jpg", "this is no photo");
  const Words words = {"mlp", "--data",   photos_, "--image-size", "8",         "--batch-size",
                       "10",  "--epochs", "1",     "--validation", more_photos_};
  EXPECT_THAT(
      tutti(Words{"train"} + words),
      Exits(2, Err(AllOf(HasSubstr("dark/1.jpg"), HasSubstr("epoch"),
                         HasSubstr("tutti data verify " + photos_), HasSubstr("--on-bad")))));
  figures(words, {"--on-bad", "replace:0.1"});
  EXPECT_THAT(said_, AllOf(HasSubstr("1 damaged sample was replaced"), HasSubstr("dark/1.jpg")));

  // What is tested on, too, and by another command.
  put_bytes(more_photos_ + "/light/2.jpg", "nor is this");
  const auto told = HasSubstr("another sample in place of light/2.jpg");
  EXPECT_THAT(tutti(Words{"train"} + words + Words{"--on-bad", "replace:0.1"}).err, told);
  const Words test = {"mlp", "--data", more_photos_, "--checkpoints", out};
  EXPECT_THAT(tutti(Words{"evaluate"} + test), Exits(2, Err(HasSubstr("light/2.jpg"))));
  EXPECT_THAT(tutti(Words{"evaluate"} + test + Words{"--on-bad", "replace"}), Exits(0, Err(told)));
}

TEST_F(UserData, VerifySaysWhatItDoesNotRead) {
  const Words verify = {"verify", more_photos_};
  EXPECT_EQ(tutti(Words{"data"} + verify).exit_code, 0);
  put_bytes(more_photos_ + "/dark/scan.tiff", "II*");
  EXPECT_THAT(tutti(Words{"data"} + verify),
              Exits(1,
                    Out(AllOf(HasSubstr("1 file is left out: 1 .tiff (dark/scan.tiff)"),
                              HasSubstr("12 samples read, all sound, but not all files"))),
                    Err("")));
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
  EXPECT_THAT(tutti({"predict", "mlp", photo, "--weights", out, "--top", "2", "--json",
                     folder_ / "p.json"}),
              Exits(0, Out(AllOf(HasSubstr("p\\xff.png: "), Not(HasSubstr("\x1b"))))));
  const json line = json_in(folder_ / "p.json");
  EXPECT_EQ(line.at("file"), (folder_ / "p\ufffd.png").string());
  EXPECT_EQ(line.at("top").size(), 2u);

  fs::rename(red, photos_ + "/\xff");
  EXPECT_THAT(tutti(Words{"train"} + words),
              Exits(2, Err(AllOf(HasSubstr("a name is no UTF-8"), HasSubstr("light, \\xff")))));
}

TEST_F(UserData, ClassesOfATableAndOfIdx) {
  const std::string out = folder_ / "run";
  const json rows = figures({"mlp", "--data", flats_, "--target", "view", "--batch-size", "30",
                             "--epochs", "40", "--learning-rate", "0.01", "--out", out});
  EXPECT_GT(rows.at("val_accuracy").get<double>(), 0.8);
  ASSERT_THAT(tutti({"predict", "mlp", "--weights", out, more_flats_}),
              Exits(0, Out(ContainsRegex("row 40: (sea|yard) [01]\\."))));
  const std::string photo = more_photos_ + "/dark/0.jpg";
  EXPECT_THAT(tutti({"predict", "mlp", "--weights", out, photo}),
              Exits(1, Err(HasSubstr(photo + ": is a photo (jpg); the model was trained on csv"))));

  const json images = figures(
      {"mlp", "--data", idx_, "--batch-size", "10", "--epochs", "5", "--out", folder_ / "idx"});
  EXPECT_EQ(images.at("val_accuracy"), 1);
  EXPECT_THAT(said_,
              AllOf(HasSubstr("IDX: an array of 3 dimensions"),
                    HasSubstr("validation: " + (folder_ / "t10k-images-idx3-ubyte").string()),
                    HasSubstr("100 samples to train on, 100 to test")));
  const auto said =
      tutti({"predict", "--weights", folder_ / "idx", folder_ / "t10k-images-idx3-ubyte"});
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
  const auto result = tutti({"predict", file, "--weights", out, file + ".gone"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("banana.npy.gone"));
  std::istringstream lines(result.out);
  int right = 0, all = 0;
  for (std::string line; std::getline(lines, line); ++all)
    right += line.find(": banana ") != std::string::npos ? 1 : 0;
  EXPECT_GT(all, 1000);
  EXPECT_GT(2 * right, all);
  const std::string squares = folder_ / "squares.npy";
  const Array rows = data::read_npy(file);
  data::write_npy(
      squares, Array::view(rows.data(), rows.dtype(), {rows.shape()[0], 28, 28, 1}, rows.owner()));
  std::string said = tutti({"predict", "mlp", "--weights", out, squares}).out;
  for (size_t at; (at = said.find(squares)) != std::string::npos;)
    said.replace(at, squares.size(), file);
  EXPECT_TRUE(said == result.out) << "the rows as [rows, 28, 28, 1] are predicted otherwise";
}

TEST_F(UserData, ASideCarMayBeginBeforeTheTraining) {
  CommandResult followed;
  std::jthread sidecar([&] {
    followed = tutti({"evaluate", "--data", more_flats_, "--checkpoints", folder_ / "run",
                      "--follow", "--idle-limit", "60"});
  });
  figures({"linear_regression", "--data", flats_, "--target", "price", "--batch-size", "30",
           "--epochs", "2", "--out", folder_ / "run"});
  sidecar.join();
  EXPECT_EQ(followed.exit_code, 0) << followed.err;
  EXPECT_THAT(followed.out, AllOf(HasSubstr("mean_absolute_error"),
                                  HasSubstr("model.safetensors is the last of its job")));
}

TEST_F(UserData, DrawingsAreLearntTestedAndTheSameByTwoReplicas) {
  const std::string strokes = "examples/data/strokes", out = folder_ / "run";
  const json one = figures({"doodle_cnn", "--data", strokes, "--batch-size", "20", "--epochs", "6",
                            "--replicas", "2", "--out", out});
  EXPECT_THAT(said_, HasSubstr("drawings: strokes (ndjson) in 10 files (axe.ndjson, "));
  EXPECT_EQ(one.at("data"), "strokes");
  const json two = figures({"doodle_cnn", "--data", strokes, "--batch-size", "20", "--epochs", "6",
                            "--replicas", "2", "--strategy", "multi_worker"});
  EXPECT_EQ(two.at("weights_sha256"), one.at("weights_sha256"));
  const json spec = json_in(fs::path(out) / "data.json");
  EXPECT_EQ(spec.at("transforms"), (json{"strokes_to_bitmap(28)", "to_tensor()"}));
  EXPECT_EQ(spec.at("shape"), (json{1, 28, 28}));
  EXPECT_THAT(
      tutti({"evaluate", "--data", strokes, "--checkpoints", out, "--json", folder_ / "test.json"}),
      Exits(0));
  EXPECT_GT(json_in(folder_ / "test.json").at("accuracy").get<double>(), 0.5);

  figures({"mlp", "--data", strokes, "--strokes", "strokes_to_sequence(40, time)", "--augment",
           "--max-steps", "2", "--batch-size", "20", "--out", out + "2"});
  EXPECT_EQ(json_in(fs::path(out + "2") / "data.json").at("shape"), (json{40, 5}));
  const Words train = {"train", "mlp", "--max-steps", "1", "--data"};
  const struct {
    Words words;
    const char* says;
  } refused[] = {
      {{strokes, "--strokes", "strokes_to_bitmaps(40)"}, "strokes_to_bitmap"},
      {{strokes, "--strokes", "strokes_to_bitmap(2)"}, "--strokes: strokes_to_bitmap(2): expected"},
      {{strokes, "--strokes", "resize(40)"}, "--strokes: "},
      {{strokes, "--strokes", "random_strokes(0.2)"}, "expected samples of one size"},
      {{strokes, "--strokes", "strokes_to_sequence(9, length)"}, "two columns"},
      {{strokes, "--strokes", "strokes_to_bitmap(40)", "--image-size", "40"}, "give one of them"},
      {{flats_, "--target", "price", "--augment"}, "is for photos and drawings"},
      {{photos_, "--strokes", "strokes_to_bitmap(40)"}, "is for drawings"},
  };
  for (const auto& c : refused)
    EXPECT_THAT(tutti(train + c.words), Exits(2, Err(HasSubstr(c.says))));
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

}  // namespace
}  // namespace tutti::test
