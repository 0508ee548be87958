// MAP@3 from the first epoch to Kaggle's file: in the history, in the early stopping, and scored by
// a program in Python that knows nothing of this one.
#include <algorithm>
#include <cstdio>

#include "tests/jobs/command_line/drawings.h"
#include "tests/jobs/program.h"

namespace tutti::test {
namespace {

namespace fs = std::filesystem;

// A column of a CSV file with a header.
std::vector<double> csv_column(const fs::path& file, const std::string& name) {
  std::istringstream text(get_bytes(file));
  std::vector<double> values;
  int64_t at = -1;
  for (std::string line; std::getline(text, line);) {
    std::istringstream fields(line);
    std::vector<std::string> words;
    for (std::string word; std::getline(fields, word, ',');) words.push_back(word);
    if (at < 0)
      at = std::ranges::find(words, name) - words.begin();
    else
      values.push_back(std::stod(words.at(static_cast<size_t>(at))));
  }
  return values;
}

CommandResult kaggle(const std::string& what, const std::string& truth, const std::string& file) {
  return run_command({"python3", "examples/14_doodles/kaggle.py", what, truth, file});
}

// Epochs until one in a row was not better by `min_delta`, and the best one, from 1.
std::pair<size_t, size_t> stopped_after(const std::vector<double>& values, double min_delta) {
  double best = -1, best_kept = -1;
  size_t best_epoch = 0;
  for (size_t epoch = 1; epoch <= values.size(); ++epoch) {
    const double value = values[epoch - 1];
    if (value > best_kept) best_kept = value, best_epoch = epoch;
    if (value - min_delta <= best) return {epoch, best_epoch};
    best = value;
  }
  return {0, best_epoch};
}

TEST(Map3, StopsATrainingAndChoosesItsBestWeights) {
  const TempFolder folder;
  const std::string log = folder / "log.csv", best = folder / "best-{epoch}.safetensors";
  const auto trained =
      tutti({"train", "mlp", "--data", kDoodles, "--batch-size", "500", "--epochs", "12",
             "--threads", "1", "--metrics", "map_at_3", "--csv-log", log, "--early-stopping",
             "monitor=val_map_at_3,patience=1,min_delta=0.02", "--model-checkpoint",
             "path=" + best + ",monitor=val_map_at_3,save_best_only=true"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const auto values = csv_column(log, "val_map_at_3");
  const auto [stopped, best_epoch] = stopped_after(values, 0.02);
  EXPECT_EQ(stopped, values.size()) << "it ends where the rule says";
  EXPECT_LT(values.size(), 12U);
  EXPECT_GT(values.back(), 0.6);
  EXPECT_TRUE(fs::exists(folder / fmt::format("best-{:04}.safetensors", best_epoch)));
  EXPECT_FALSE(fs::exists(folder / fmt::format("best-{:04}.safetensors", best_epoch + 1)));
}

// Drawings to train on, others to test on as ndjson and as Kaggle has them, and a trained network.
class Drawings : public testing::Test {
 protected:
  Drawings() : drawn_(made_drawings(12, 2, 9000003627287624)) {
    put_ndjson(folder_ / "train", made_drawings(25, 1, 1));
    put_ndjson(folder_ / "test", drawn_);
    put_kaggle_test(folder_ / "test.csv", drawn_);
    put_solution(folder_ / "solution.csv", drawn_);
    run_ = folder_ / "run";
    submission_ = folder_ / "submission.csv";
  }

  // One step, so that it is wrong of some.
  void train() {
    const Words data = {"--data", folder_ / "train", "--validation", folder_ / "test"};
    const Words kept = {"--csv-log", folder_ / "log.csv", "--out", run_};
    const Words how = words_of("--image-size 12 --batch-size 100 --epochs 1 --threads 1");
    const auto trained = tutti(Words{"train", "mlp", "--metrics", "map_at_3"} + how + data + kept);
    ASSERT_EQ(trained.exit_code, 0) << trained.err << trained.out;
  }
  CommandResult predict(const Words& more = {}) const {
    return tutti(Words{"predict", "--weights", run_, folder_ / "test.csv", "--top", "3",
                       "--submission", submission_} +
                 more);
  }

  const TempFolder folder_;
  std::vector<MadeDrawing> drawn_;
  std::string run_, submission_;
};

TEST_F(Drawings, AreSubmittedAndScoreWhatTheHistorySays) {
  train();
  ASSERT_THAT(predict(), Exits(0, Out(HasSubstr("48 drawings, 3 words each")),
                               Err(HasSubstr("3 of the model's 4 classes are none of the "
                                             "challenge's 340"))));
  EXPECT_THAT(kaggle("check", folder_ / "test.csv", submission_),
              Exits(0, Out(HasSubstr("48 drawings, each with 1 to 3 words")),
                    Err(HasSubstr("none of the 340 classes: dash, scribble, tall_post"))));
  const auto scored = kaggle("score", folder_ / "solution.csv", submission_);
  double score = -1;
  ASSERT_EQ(std::sscanf(scored.out.c_str(), "MAP@3 %lf", &score), 1) << scored.out << scored.err;
  EXPECT_NEAR(score, csv_column(folder_ / "log.csv", "val_map_at_3").back(), 1e-6);
  EXPECT_GT(score, 0.3);
  EXPECT_LT(score, 1);
  EXPECT_THAT(get_bytes(submission_), HasSubstr("tall_post"));

  // One word each is the accuracy.
  ASSERT_EQ(predict({"--top", "1"}).exit_code, 2) << "--top is there twice";
  ASSERT_THAT(
      tutti({"predict", "--weights", run_, folder_ / "test.csv", "--submission", submission_}),
      Exits(0, Out(HasSubstr("48 drawings, 1 word each"))));
  const auto first = kaggle("score", folder_ / "solution.csv", submission_);
  ASSERT_EQ(std::sscanf(first.out.c_str(), "MAP@3 %lf", &score), 1) << first.out;
  EXPECT_NEAR(score, csv_column(folder_ / "log.csv", "val_accuracy").back(), 1e-6);
}

TEST_F(Drawings, AreAllReadBeforeASubmissionIsWritten) {
  train();
  const auto refused = [&](const std::string& line, const std::string& answer) {
    put_kaggle_test(folder_ / "test.csv", drawn_);
    put_bytes(folder_ / "test.csv", get_bytes(folder_ / "test.csv") + line + "\n");
    EXPECT_THAT(predict(), Exits(2, Out(Not(HasSubstr("drawings,"))), Err(HasSubstr(answer))))
        << line;
    EXPECT_FALSE(fs::exists(submission_)) << line;
  };
  const char* const kNone = "\n  a submission has a row for each drawing: none is written";
  refused("77,NO,\"[[[0, 5], [0, 5]\"", "line 50");
  refused("77,NO,\"[[[0, 5], [0, 5]\"", kNone);
  refused("77,NO,\"[[[0, 5], [0]]]\"", "line 50");
  refused("77,NO,\"[]\"", "line 50");
  refused("9000003627287624,NO,\"[[[0, 5], [0, 5]]]\"", "each key_id once");
  refused("9000003627287624,NO,\"[[[0, 5], [0, 5]]]\"",
          "test.csv, line 50, key_id 9000003627287624: was there before");
}

TEST_F(Drawings, AreRefusedWhereNoSubmissionCanBe) {
  train();
  put_bytes(folder_ / "empty.csv", "key_id,countrycode,drawing\n");
  const Words words = {"predict", "--weights", run_};
  const std::string test = folder_ / "test.csv";
  const std::pair<Words, const char*> cases[] = {
      {{test, "--top", "4", "--submission", submission_}, "--top 4 with --submission"},
      {{test, "--submission", folder_ / "no/folder/s.csv"}, "--submission"},
      {{test, "--submission", submission_, "--json", folder_ / "s.json"}, "--json"},
      {{folder_ / "nothing.csv", "--submission", submission_}, "nothing.csv"},
      {{folder_ / "empty.csv", "--submission", submission_}, "empty.csv"},
      {{test, "--submission", folder_ / "run/../test.csv"}, "test.csv, which is read"},
      {{test, "--json", test}, "test.csv, which is read"},
      {{folder_ / "test", "--submission", folder_ / "test/s.csv"}, "test, which is read"}};
  for (const auto& [more, answer] : cases)
    EXPECT_THAT(tutti(words + more), Exits(2, Err(HasSubstr(answer))))
        << testing::PrintToString(more);
  EXPECT_FALSE(fs::exists(submission_));
  EXPECT_THAT(get_bytes(test), StartsWith("key_id,countrycode,drawing\n9000003627287624,NO,"));
}

// Rows of a folder are counted through its files; of a file without countries there is a key, too.
TEST_F(Drawings, MayBeAFolderOrHaveNoCountry) {
  train();
  const Words words = {"predict", "--weights", run_, folder_ / "test"};
  EXPECT_THAT(tutti(words),
              Exits(0, Out(AllOf(HasSubstr("/test, row 1: "), HasSubstr("/test, row 48: ")))));
  ASSERT_THAT(tutti(words + Words{"--submission", submission_}),
              Exits(0, Out(HasSubstr("48 drawings, 1 word each"))));
  const std::string of_folder = get_bytes(submission_);
  EXPECT_THAT(of_folder, StartsWith("key_id,word\n9000003627287624,"));
  put_bytes(folder_ / "bare.csv", "drawing,key_id\n\"[[[0, 255], [4, 9]]]\",7\n");
  ASSERT_THAT(
      tutti({"predict", "--weights", run_, folder_ / "bare.csv", "--submission", submission_}),
      Exits(0, Out(HasSubstr("1 drawing"))));
  EXPECT_THAT(get_bytes(submission_), StartsWith("key_id,word\n7,"));
}

TEST_F(Drawings, AreOfTheChallengesClassesWhereTheyAreAskedFor) {
  const Words words = {"train", "mlp", "--data", folder_ / "square", "--validation-split", "0.5"};
  const Words how = words_of("--image-size 12 --max-steps 1 --threads 1");
  const Words kept = {"--classes", "kaggle", "--out", run_};
  fs::create_directories(folder_ / "square");
  fs::copy_file(folder_ / "train/square.ndjson", folder_ / "square/square.ndjson");
  ASSERT_THAT(tutti(words + how + kept), Exits(0, Err(HasSubstr("drawings of 1 of 340 classes"))));
  EXPECT_EQ(json_in(fs::path(run_) / "data.json").at("classes").size(), 340U);
  EXPECT_THAT(predict(), Exits(0, Err(Not(HasSubstr("none of the challenge's")))));
  EXPECT_THAT(kaggle("check", folder_ / "test.csv", submission_),
              Exits(0, Err(Not(HasSubstr("classes")))));
  EXPECT_THAT(tutti(words + how + Words{"--classes", "imagenet"}),
              Exits(2, Err(HasSubstr("kaggle"))));
  EXPECT_THAT(tutti({"train", "mlp", "--data", kDoodles, "--classes", "kaggle"}),
              Exits(2, Err(HasSubstr("is for drawings"))));
}

// Names in quotes, put together.
std::string names_between(const std::string& file, const std::string& begin, char end) {
  const std::string text = get_bytes(file);
  const size_t from = text.find('"', text.find(begin));
  std::string names;
  bool inside = false;
  for (size_t i = from; i < text.size() && (inside || text[i] != end); ++i) {
    if (text[i] == '"')
      inside = !inside;
    else if (inside)
      names += text[i];
  }
  return names;
}

TEST(KaggleChecker, HasTheProgramsClasses) {
  const std::string checkers = names_between("examples/14_doodles/kaggle.py", "CLASSES = (", ')');
  EXPECT_EQ(std::ranges::count(checkers, ','), 339);
  EXPECT_EQ(checkers, names_between("tutti/data/sources/drawing_names.cpp", "kNames =", ';'));
}

// What the checker is for: files that Kaggle would not take.
TEST(KaggleChecker, RefusesWhatIsNoSubmission) {
  const TempFolder folder;
  const auto drawings = made_drawings(1, 3, 100);
  put_kaggle_test(folder / "test.csv", drawings);
  const std::string sound = "key_id,word\n100,dash square scribble\n101,square\n102,tall_post\n";
  const auto checked = [&](const std::string& text) {
    put_bytes(folder / "s.csv", text);
    return kaggle("check", folder / "test.csv", folder / "s.csv");
  };
  EXPECT_EQ(checked(sound + "103,scribble dash\n").exit_code, 0);
  const std::pair<std::string, const char*> cases[] = {
      {sound, "key_id 103 has no row"},
      {sound + "103,\n", "line 5"},
      {sound + "103,a b c d\n", "expected 1 to 3 different words"},
      {sound + "103,a a\n", "expected 1 to 3 different words"},
      {sound + "103,a\n103,b\n", "key_id 103 is there twice"},
      {sound + "103,a\n104,b\n", "key_id 104 is none of the test's"},
      {"key,word\n100,a\n", "expected 'key_id,word'"},
      {sound + "x,a\n", "expected a key and words"}};
  for (const auto& [text, answer] : cases)
    EXPECT_THAT(checked(text), Exits(1, Err(HasSubstr(answer)))) << text;
}

}  // namespace
}  // namespace tutti::test
