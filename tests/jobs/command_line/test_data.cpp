// `tutti data`: what is damaged, and how fast it is read.
#include <gmock/gmock.h>

#include <filesystem>
#include <sstream>

#include <nlohmann/json.hpp>

#include "tests/jobs/command_line/user_data.h"
#include "tests/support/command.h"
#include "tests/support/temp_folder.h"

namespace tutti::test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Words = std::vector<std::string>;

CommandResult data(Words words) {
  words.insert(words.begin(), {TUTTI_PROGRAM, "data"});
  return run_command(words, {}, Millis{120'000});
}

TEST(DataVerify, NamesEachDamagedPhoto) {
  const TempFolder folder;
  put_photos(folder / "photos", 300);
  const auto sound = data({"verify", folder / "photos"});
  EXPECT_EQ(sound.exit_code, 0) << sound.err;
  EXPECT_THAT(sound.out,
              AllOf(HasSubstr("2 classes (dark, light)"), HasSubstr("600 samples read, all sound"),
                    Not(HasSubstr("damaged"))));

  const auto cut = folder / "photos/light/7.jpg";
  put_bytes(folder / "photos/dark/0.jpg", "");
  put_bytes(folder / "photos/dark/299.jpg", "this is no photo");
  put_bytes(cut, get_bytes(cut).substr(0, 400));
  const auto result = data({"verify", folder / "photos"});
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("damaged: dark/0.jpg"), HasSubstr("damaged: dark/299.jpg"),
                    HasSubstr("damaged: light/7.jpg"), Not(HasSubstr("of batch")),
                    HasSubstr("600 samples read, 3 damaged")));
}

TEST(DataVerify, NamesLinesAndBytesOfOtherData) {
  const TempFolder folder;
  put_flats(folder / "flats.csv", 30);
  put_idx(folder.path(), 20);
  put_bytes(folder / "rows.jsonl", "{\"a\": 1}\n{\"a\": 2}\n");
  put_bytes(folder / "text.txt", "Once upon a time,\nthere was a text.\n");
  for (const char* name : {"flats.csv", "train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                           "rows.jsonl", "text.txt"}) {
    const auto result = data({"verify", folder / name});
    EXPECT_EQ(result.exit_code, 0) << name << result.err << result.out;
    EXPECT_THAT(result.out, HasSubstr("all sound")) << name;
  }
  EXPECT_EQ(data({"verify", kDoodles}).exit_code, 0);

  put_bytes(folder / "flats.csv", get_bytes(folder / "flats.csv") + "1,2\n1,sea,2\n7\n");
  put_bytes(folder / "rows.jsonl", "{\"a\": 1}\n{\"b\": 2}\n{\"a\": 3}\n{\"a\": x}\n");
  const auto images = folder / "train-images-idx3-ubyte";
  put_bytes(images, get_bytes(images).substr(0, 1000));
  const struct {
    const char* name;
    std::vector<const char*> answer;
  } cases[] = {{"flats.csv", {"line 32", "line 33", "line 34", "3 damaged"}},
               {"rows.jsonl", {"line 2", "line 4", "4 samples read, 2 damaged"}},
               {"train-images-idx3-ubyte", {"1000", "1 damaged"}}};
  for (const auto& c : cases) {
    const auto result = data({"verify", folder / c.name});
    EXPECT_EQ(result.exit_code, 1) << c.name << result.err;
    for (const char* part : c.answer) EXPECT_THAT(result.out, HasSubstr(part)) << c.name;
  }
}

// What is called a table is read as one, however it is written.
TEST(DataVerify, NamesTheLinesOfWhatIsCalledATable) {
  const TempFolder folder;
  const struct {
    const char* bytes;
    std::vector<const char*> answer;
  } cases[] = {
      {"area,view,price\n1,sea,5,\n2,yard,6,\n", {"line 2: got 4 fields, expected 3", "line 3"}},
      {"sep=;\narea;view\n1;sea\n", {"sep=", "take it out"}},
      {"\"area\",\"view\"\n\"1\",3,\"sea\"\n\"2\",4,\"sea\"\n",
       {"line 2: got 3 fields, expected 2"}},
      {"area,view\r1,sea\r2,yard\r", {"line 1", "expected LF or CRLF"}},
      {"One, two.\nA line.\n", {"line 2: got 1 fields, expected 2"}},
  };
  for (const auto& c : cases) {
    put_bytes(folder / "rows.csv", c.bytes);
    const auto result = data({"verify", folder / "rows.csv"});
    EXPECT_EQ(result.exit_code, 1) << c.bytes << result.err;
    EXPECT_THAT(result.out, AllOf(HasSubstr("damaged: "), Not(HasSubstr("sound")))) << c.bytes;
    for (const char* part : c.answer) EXPECT_THAT(result.out, HasSubstr(part)) << c.bytes;
  }
  // As a training reads it that was told how.
  put_bytes(folder / "rows.csv", "1,5;-;2\n2,5;3;2\n3,5;4;1\n");
  EXPECT_THAT(data({"verify", folder / "rows.csv"}).out, HasSubstr("without a line of names"));
  const auto told = data({"verify", folder / "rows.csv", "--decimal", ",", "--missing", "-",
                          "--header", "no", "--categorical", "column2"});
  EXPECT_EQ(told.exit_code, 0) << told.out << told.err;
  EXPECT_THAT(data({"verify", kDoodles, "--decimal", ","}).err, HasSubstr("is for tables"));
}

TEST(DataBench, PrintsStagesAndOneObject) {
  const TempFolder folder;
  put_photos(folder / "photos", 40);
  const auto result =
      data({"bench", folder / "photos", "--image-size", "16", "--augment", "--batch-size", "20",
            "--epochs", "3", "--workers", "2", "--json", folder / "figures.json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("samples/s"), HasSubstr("MB/s"), HasSubstr("ms a sample"),
                                HasSubstr("decode_crop"), HasSubstr("random_horizontal_flip"),
                                HasSubstr("takes longest")));
  const json figures = json::parse(get_bytes(folder / "figures.json"));
  EXPECT_EQ(figures.at("data"), "image_folder");
  EXPECT_EQ(figures.at("samples"), 240);
  EXPECT_GT(figures.at("samples_per_second").get<double>(), 0);
  EXPECT_GT(figures.at("peak_bytes").get<int64_t>(), 0);
  EXPECT_EQ(figures.at("replaced"), 0);
  EXPECT_GE(figures.at("stages").size(), 3u);

  put_flats(folder / "flats.csv", 100);
  for (const Words& words :
       {Words{"bench", folder / "flats.csv", "--target", "price", "--batch-size", "10"},
        Words{"bench", kDoodles, "--workers", "0"}}) {
    const auto other = data(words);
    EXPECT_EQ(other.exit_code, 0) << other.err;
    EXPECT_THAT(other.out, HasSubstr("samples/s"));
  }
  for (const Words& words :
       {Words{"bench", folder / "flats.csv"}, Words{"bench", "not/there"},
        Words{"bench", folder / "photos"}, Words{"bench", kDoodles, "--workers", "x"}})
    EXPECT_EQ(data(words).exit_code, 2) << testing::PrintToString(words);
}

TEST(DataBench, ADamagedPhotoEndsItOrIsReplaced) {
  const TempFolder folder;
  put_photos(folder / "photos", 20);
  put_bytes(folder / "photos/dark/3.jpg", "this is no photo");
  const Words words = {"bench", folder / "photos", "--batch-size", "10"};
  const auto ended = data(words);
  EXPECT_NE(ended.exit_code, 0);
  EXPECT_THAT(ended.err, HasSubstr("dark/3.jpg"));
  Words replacing = words;
  replacing.insert(replacing.end(), {"--on-bad", "replace"});
  const auto replaced = data(replacing);
  EXPECT_EQ(replaced.exit_code, 0) << replaced.err;
  EXPECT_THAT(replaced.out, HasSubstr("replaced: dark/3.jpg"));
}

TEST(Help, OfNewCommandsHasExamples) {
  for (const Words& words : {Words{"data"}, Words{"data", "verify"}, Words{"data", "bench"},
                             Words{"predict"}, Words{"train"}, Words{"evaluate"}}) {
    Words all = {TUTTI_PROGRAM};
    all.insert(all.end(), words.begin(), words.end());
    all.emplace_back("--help");
    const auto result = run_command(all);
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(result.out, HasSubstr(words == Words{"data"} ? "verify" : "Example"));
  }
}

}  // namespace
}  // namespace tutti::test
