// `tutti data`: what is damaged, and how fast it is read.
#include <filesystem>
#include <sstream>

#include "tests/jobs/command_line/user_data.h"
#include "tests/jobs/program.h"

namespace tutti::test {
namespace {

CommandResult data(const Words& words) { return tutti(Words{"data"} + words); }

TEST(DataVerify, NamesEachDamagedPhoto) {
  const TempFolder folder;
  put_photos(folder / "photos", 300);
  EXPECT_THAT(
      data({"verify", folder / "photos"}),
      Exits(0, Out(AllOf(HasSubstr("2 classes (dark, light)"),
                         HasSubstr("600 samples read, all sound"), Not(HasSubstr("damaged"))))));

  const auto cut = folder / "photos/light/7.jpg";
  put_bytes(folder / "photos/dark/0.jpg", "");
  put_bytes(folder / "photos/dark/299.jpg", "this is no photo");
  put_bytes(cut, get_bytes(cut).substr(0, 400));
  EXPECT_THAT(
      data({"verify", folder / "photos"}),
      Exits(1, Out(AllOf(HasSubstr("damaged: dark/0.jpg"), HasSubstr("damaged: dark/299.jpg"),
                         HasSubstr("damaged: light/7.jpg"), Not(HasSubstr("of batch")),
                         HasSubstr("600 samples read, 3 damaged")))));
}

TEST(DataVerify, NamesLinesAndBytesOfOtherData) {
  const TempFolder folder;
  put_flats(folder / "flats.csv", 30);
  put_idx(folder.path(), 20);
  put_bytes(folder / "rows.jsonl", "{\"a\": 1}\n{\"a\": 2}\n");
  put_bytes(folder / "text.txt", "Once upon a time,\nthere was a text.\n");
  for (const char* name : {"flats.csv", "train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                           "rows.jsonl", "text.txt"}) {
    EXPECT_THAT(data({"verify", folder / name}), Exits(0, Out(HasSubstr("all sound")))) << name;
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

TEST(DataVerify, NamesStrokesAndPoints) {
  const TempFolder folder;
  EXPECT_THAT(data({"verify", "examples/data/strokes"}),
              Exits(0, Out(AllOf(HasSubstr("drawings: strokes (ndjson) in 10 files"),
                                 HasSubstr("331 samples read, all sound")))));
  const std::string good = R"({"word":"cat","drawing":[[[1,2],[3,4]]]})";
  put_bytes(folder / "cat.ndjson", good + "\n" + good.substr(0, 30) + "\n" + good + "\n" +
                                       R"({"word":"cat","drawing":[[[1,2],[3,256]]]})" + "\n");
  EXPECT_THAT(data({"verify", folder / "cat.ndjson"}),
              Exits(1, Out(AllOf(HasSubstr("cat.ndjson, line 2"), HasSubstr("no JSON"),
                                 HasSubstr("cat.ndjson, line 4, stroke 1, point 2: got y 256"),
                                 HasSubstr("4 samples read, 2 damaged")))));
  put_bytes(folder / "test.csv", "key_id,countrycode,drawing\n1,DE,\"[[[1,2],[3,4]]]\"\n2,QQ,[]\n");
  EXPECT_THAT(data({"verify", folder / "test.csv"}),
              Exits(1, Out(AllOf(HasSubstr("test.csv, line 3"), HasSubstr("country code"),
                                 HasSubstr("2 samples read, 1 damaged")))));
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
  ASSERT_THAT(
      data({"bench", folder / "photos", "--image-size", "16", "--augment", "--batch-size", "20",
            "--epochs", "3", "--workers", "2", "--json", folder / "figures.json"}),
      Exits(0, Out(AllOf(HasSubstr("samples/s"), HasSubstr("MB/s"), HasSubstr("ms a sample"),
                         HasSubstr("decode_crop"), HasSubstr("random_horizontal_flip"),
                         HasSubstr("takes longest")))));
  const json figures = json_in(folder / "figures.json");
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
    EXPECT_THAT(data(words), Exits(0, Out(HasSubstr("samples/s"))));
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
  EXPECT_THAT(data(words + Words{"--on-bad", "replace"}),
              Exits(0, Out(HasSubstr("replaced: dark/3.jpg"))));
}

TEST(Help, OfNewCommandsHasExamples) {
  for (const Words& words : {Words{"data"}, Words{"data", "verify"}, Words{"data", "bench"},
                             Words{"predict"}, Words{"train"}, Words{"evaluate"}}) {
    EXPECT_THAT(tutti(words + Words{"--help"}),
                Exits(0, Out(HasSubstr(words == Words{"data"} ? "verify" : "Example"))));
  }
}

}  // namespace
}  // namespace tutti::test
