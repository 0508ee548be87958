// `tutti train`, `evaluate` and `predict` on tables of a user's own.
#include <fmt/format.h>

#include "tutti/data/sources/csv.h"

#include "tests/jobs/command_line/user_data_test.h"

namespace tutti::test {
namespace {

namespace fs = std::filesystem;

// Of the order whose end `tutti train` holds out.
constexpr uint64_t kSeedOfHeldOut = 0x7A11DA7E;

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
  EXPECT_THAT(tutti(Words{"train"} + words),
              Exits(0, Out(AllOf(HasSubstr("column \"name\" has 60 words in 60 rows"),
                                 HasSubstr("--without \"name\""), HasSubstr("predicts kind")))));
  figures(words, {"--without", "name", "--categorical", "kind", "--out", out});
  EXPECT_THAT(said_, AllOf(HasSubstr("3 classes"), Not(HasSubstr("60 words"))));
  const json spec = json_in(fs::path(out) / "data.json");
  EXPECT_EQ(spec.at("classes"), (json{"3", "4", "5"}));
  EXPECT_EQ(spec.at("shape"), (json{1}));
  EXPECT_THAT(tutti({"train", "mlp", "--data", table, "--target", "kind"}).err,
              AllOf(HasSubstr("column \"area\": got \"-\""), HasSubstr("--missing")));
}

TEST_F(UserData, ATableOfFewRowsIsOneBatchUnlessAnotherIsSaid) {
  std::string text = "area,kind\n";
  for (int row = 0; row < 54; ++row) text += fmt::format("{},{}\n", row, row < 20 ? "a" : "b");
  const std::string table = folder_ / "few.csv";
  put_bytes(table, text);
  const Words words = {"train", "mlp", "--data", table, "--target", "kind", "--epochs", "1"};
  EXPECT_THAT(tutti(words),
              Exits(0, Out(AllOf(HasSubstr("global batch: all 48 samples, which are fewer than"),
                                 HasSubstr("global batch 48")))));
  EXPECT_THAT(tutti(words + Words{"--replicas", "3", "--strategy", "mirrored"}),
              Exits(0, Out(HasSubstr("global batch 48"))));
  EXPECT_THAT(tutti(words + Words{"--batch-size", "128"}),
              Exits(2, Err(HasSubstr("--batch-size 128 is more than the 48 training samples"))));
}

TEST_F(UserData, FeaturesOfATableAreThoseThatAreNamed) {
  const std::string out = folder_ / "run";
  figures({"linear_regression", "--data", flats_, "--target", "price", "--columns", "area,rooms",
           "--batch-size", "30", "--max-steps", "1", "--out", out});
  EXPECT_THAT(said_, HasSubstr("columns: numbers area, rooms; target price, a number\n"));
  std::vector<std::string> names;
  const json spec = json_in(fs::path(out) / "data.json");
  for (const json& column : spec.at("table").at("features")) names.push_back(column.at("name"));
  EXPECT_THAT(names, ElementsAre("area", "rooms"));
  // Others need not be there.
  put_bytes(folder_ / "new.csv", "rooms,area\n2,50\n");
  EXPECT_THAT(tutti({"predict", "linear_regression", "--weights", out, folder_ / "new.csv"}),
              Exits(0, Out(HasSubstr("new.csv, row 1: price "))));
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
    const json column = json_in(fs::path(out) / "data.json").at("table").at("features")[0];
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
    return tutti(Words{"predict", "mlp", "--weights", out, file} + more).out;
  };
  EXPECT_THAT(predicted(named, {}), AllOf(HasSubstr("row 40"), Not(HasSubstr("row 41"))));
  EXPECT_THAT(predicted(bare, {"--header", "no"}),
              AllOf(HasSubstr("row 40"), Not(HasSubstr("row 41"))));
  const auto tested =
      tutti({"evaluate", "mlp", "--checkpoints", out, "--data", bare, "--header", "no"});
  EXPECT_THAT(tested.out, HasSubstr("40 samples")) << tested.err;
  EXPECT_THAT(tutti({"evaluate", "mlp", "--checkpoints", out, "--data", bare}).err,
              AllOf(HasSubstr("unknown column"), HasSubstr("--header no")));
  EXPECT_THAT(tutti({"data", "verify", named}).out, HasSubstr("40 samples read"));
  EXPECT_THAT(tutti({"data", "verify", named, "--header", "no"}).out, HasSubstr("41 samples read"));
  EXPECT_THAT(tutti({"data", "convert", named, folder_ / "rows.mds"}).out, HasSubstr("40 samples"));
  EXPECT_THAT(tutti({"data", "convert", named, folder_ / "all.mds", "--header", "no"}).out,
              HasSubstr("41 samples"));
  figures({"mlp", "--data", bare, "--target", "column0", "--header", "no"}, short_run);
  EXPECT_THAT(said_, HasSubstr("without a line of names"));
  EXPECT_THAT(tutti({"train", "mlp", "--data", photos_, "--header", "no"}).err,
              HasSubstr("--header no: is for tables"));
  EXPECT_THAT(tutti({"predict", "mlp", "--weights", out, named, "--header", "maybe"}).err,
              HasSubstr("--header"));
}

TEST_F(UserData, ATargetThatLooksLikeANumberIsWarnedOf) {
  std::string text = "area;price\n";
  for (int row = 0; row < 40; ++row) text += fmt::format("{};{},{}\n", row, 100 * row, 10 + row);
  const std::string table = folder_ / "comma.csv";
  put_bytes(table, text);
  const Words words = {"mlp",          "--data", table,         "--target", "price",
                       "--batch-size", "10",     "--max-steps", "1"};
  EXPECT_THAT(tutti(Words{"train"} + words),
              Exits(0,
                    Err(AllOf(HasSubstr("column \"price\" is taken for 40 classes"),
                              HasSubstr("has a decimal comma"), HasSubstr("--decimal ,"))),
                    Out(AllOf(HasSubstr("target \"price\" has 40 classes in 40 rows"),
                              HasSubstr("columns: numbers area; target price, 40 classes\n")))));
  const auto numbers = tutti(Words{"train"} + words + Words{"--decimal", ","});
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
  EXPECT_GT(json_in(fs::path(out) / "data.json").at("table").at("features")[0].at("deviation"),
            1e300);
  const auto tested =
      tutti({"evaluate", "linear_regression", "--checkpoints", out, "--data", table});
  EXPECT_EQ(tested.exit_code, 0) << tested.err;
}

TEST_F(UserData, ATablesNumberIsLearntTestedAndPredicted) {
  const std::string out = folder_ / "run";
  const json trained =
      figures({"linear_regression", "--data", flats_, "--target", "price", "--batch-size", "30",
               "--epochs", "40", "--learning-rate", "0.05", "--metrics", "rmse,r2", "--best-by",
               "val_r2_score", "--keep-best", "1", "--out", out});
  EXPECT_LT(trained.at("val_mean_absolute_error").get<double>(), 1000) << "of 20,000 to 170,000";
  EXPECT_FALSE(trained.contains("val_accuracy"));
  EXPECT_THAT(said_,
              AllOf(HasSubstr("a table: 5 columns, delimited by commas"),
                    HasSubstr("predicts price; 270 samples to train on, 30 to test"),
                    HasSubstr("validation: 30 of 300 samples"), HasSubstr("mean_absolute_error")));
  EXPECT_THAT(get_bytes(fs::path(out) / "history.csv"),
              AllOf(HasSubstr("val_root_mean_squared_error"), HasSubstr("val_r2_score")));

  const auto tested = tutti({"evaluate", "linear_regression", "--data", more_flats_,
                             "--checkpoints", out, "--json", folder_ / "test.json"});
  ASSERT_EQ(tested.exit_code, 0) << tested.err;
  EXPECT_LT(json_in(folder_ / "test.json").at("mean_absolute_error").get<double>(), 1000);

  put_bytes(folder_ / "new.csv", "view,area,rooms,dear\nsea,50,2,no\nyard,100,,yes\n");
  ASSERT_THAT(tutti({"predict", "linear_regression", "--weights", out, folder_ / "new.csv",
                     "--json", folder_ / "said.json"}),
              Exits(0, Out(AllOf(HasSubstr("new.csv, row 1: price "), HasSubstr("row 2: price")))));
  const auto lines = lines_of(folder_ / "said.json");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NEAR(lines[0].at("value").get<double>(), 100'000, 5'000);
  EXPECT_NEAR(lines[1].at("value").get<double>(), 100'000, 5'000);
}

}  // namespace
}  // namespace tutti::test
