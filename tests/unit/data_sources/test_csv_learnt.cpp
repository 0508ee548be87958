// What of a table is learnt, kept, and applied to others: TableSpec; and tables as people have
// them.
#include <cmath>
#include <filesystem>
#include <numeric>
#include <string>

#include "tests/support/expect.h"
#include "tests/unit/data_sources/csv_test.h"
#include "tests/unit/data_sources/rows.h"

namespace tutti::data {
namespace {

namespace fs = std::filesystem;

// Validation, and predictions, through what training has learnt.
TEST_F(Csv, ReadsOtherFilesAsTheFirst) {
  const CsvOptions options{
      .target = "kind", .missing_numbers = MissingNumbers::mean, .standardise = true};
  const TableSpec spec = table_spec(put("size,colour,kind\n1,red,b\n3,blue,a\n"), options);
  const TableSpec again = TableSpec::from_json(spec.to_json(), "saved");
  EXPECT_EQ(again, spec);
  // Other order, another column besides, a value that is missing.
  const fs::path other = put("kind,more,colour,size\na,7,red,5\na,7,red,\n", "other.csv");
  const Dataset data = csv(other, again);
  EXPECT_THAT(data.classes(), ElementsAre("a", "b"));
  EXPECT_THAT(values_of<float>(data, 0), ElementsAre(3, 0, 1, 0, 0, 1));
  EXPECT_THAT(values_of<int64_t>(data, 1), ElementsAre(0, 0));

  const Dataset unlabelled = csv(put("size,colour\n5,red\n", "new.csv"), spec, {.labelled = false});
  EXPECT_THAT(words_of(unlabelled.columns()), ElementsAre("x float32 [3]"));
  EXPECT_THAT(values_of<float>(unlabelled, 0), ElementsAre(3, 0, 1));
  EXPECT_THAT(values_of<float>(csv(other, spec, {.labelled = false}), 0),
              ElementsAre(3, 0, 1, 0, 0, 1));

  const auto refuse = [&](const std::string& bytes) {
    put(bytes, "bad.csv");
    return message_of<DataError>([&] { csv(folder_ / "bad.csv", spec); });
  };
  EXPECT_THAT(refuse("size,colour,kind\n1,red,a\n1,rod,a\n"),
              AllOf(HasSubstr("bad.csv, line 3, column \"colour\": got \"rod\""),
                    HasSubstr("one of the 2 words"), HasSubstr("the nearest is \"red\"")));
  EXPECT_THAT(refuse("size,color,kind\n1,red,a\n"),
              HasSubstr("unknown column \"colour\"; did you mean \"color\""));
  EXPECT_THAT(refuse("size,colour\n1,red\n"), HasSubstr("unknown column \"kind\""));
  EXPECT_THAT(refuse("size,colour,kind\nx,red,a\n"),
              HasSubstr("line 2, column \"size\": got \"x\", expected a number"));
}

TEST_F(Csv, FilesWithoutHeaderMayLackTheTarget) {
  const TableSpec spec = table_spec(put("1,9,2\n3,9,4\n"), {.target = "column1", .header = false});
  EXPECT_THAT(values_of<float>(csv(put("5,6\n", "new.csv"), spec, {.labelled = false}), 0),
              ElementsAre(5, 6));
  EXPECT_THAT(values_of<float>(csv(put("5,9,6\n", "new.csv"), spec, {.labelled = false}), 0),
              ElementsAre(5, 6));
  EXPECT_THAT(message_of<DataError>([&] { csv(put("5,6\n", "new.csv"), spec); }),
              HasSubstr("got 2 fields, expected 3"));
}

// The other file may be written the other way, where fields stand as they did.
TEST_F(Csv, AnotherFileMayHaveALineOfNamesOrNone) {
  const CsvOptions options{.target = "y", .without = {"b"}};
  const TableSpec named = table_spec(put("a,b,y\n1,9,2\n3,9,4\n"), options);
  EXPECT_THAT(named.names, ElementsAre("a", "b", "y"));
  const auto x_of = [&](const TableSpec& spec, const std::string& bytes, bool header) {
    const CsvReading reading{.labelled = false, .header = header};
    return values_of<float>(csv(put(bytes, "new.csv"), spec, reading), 0);
  };
  EXPECT_THAT(x_of(named, "5,9,6\n7,9,8\n", false), ElementsAre(5, 7));
  EXPECT_THAT(x_of(named, "5,9\n", false), ElementsAre(5));
  EXPECT_THAT(x_of(named, "y,a\n6,5\n", true), ElementsAre(5));
  const TableSpec unnamed = table_spec(
      put("1,9,2\n3,9,4\n"), {.target = "column2", .without = {"column1"}, .header = false});
  EXPECT_THAT(x_of(unnamed, "q,r,s\n5,9,6\n", true), ElementsAre(5));
  EXPECT_THAT(x_of(unnamed, "5,9,6\n", false), ElementsAre(5));

  const auto why = [&](const TableSpec& spec, const std::string& bytes) {
    return message_of<DataError>([&] { csv(put(bytes, "new.csv"), spec); });
  };
  EXPECT_THAT(why(unnamed, "q,r,s\n5,9,6\n"),
              AllOf(HasSubstr("line 1, column \"column0\": got \"q\""), HasSubstr("--header yes")));
  EXPECT_THAT(why(named, "5,9,6\n"), AllOf(HasSubstr("unknown column"), HasSubstr("--header no")));
  TableSpec earlier = named;  // as it was saved before the order was kept
  earlier.names.clear();
  EXPECT_THAT(message_of<DataError>([&] { x_of(earlier, "5,9,6\n", false); }),
              HasSubstr("the order of its fields was not kept"));
}

TEST_F(Csv, HalvesLearnOfTheRowsThatAreTrainedOn) {
  std::string bytes = "a,w,y\n";
  for (int i = 0; i < 40; ++i)
    bytes +=
        fmt::format("{},w{},{}\n", i % 9 == 4 ? "" : fmt::format("{}", i * i), i, 1000 - 7 * i);
  const CsvOptions options{.target = "y",
                           .missing_numbers = MissingNumbers::mean,
                           .standardise = true,
                           .standardise_target = true};
  const auto [spec, train, held_out] = csv_halves(put(bytes), options, {.share = 0.25, .seed = 3});
  ASSERT_EQ(train.num_samples(), 30);
  ASSERT_EQ(held_out.num_samples(), 10);

  // The same rows, as they stand.
  const CsvOptions plain{.target = "y", .missing_numbers = MissingNumbers::value, .fill = -1};
  const Halves rows = hold_out(csv(folder_ / "t.csv", plain), {.share = 0.25, .seed = 3});
  const auto column = [](const Dataset& data, size_t index, size_t width) {
    std::vector<double> values;
    const auto all = values_of<float>(data, index);
    for (size_t i = 0; i < all.size(); i += width)
      if (all[i] >= 0) values.push_back(all[i]);
    return values;
  };
  const auto mean_of = [](const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  };
  const auto deviation_of = [&](const std::vector<double>& values) {
    double squares = 0;
    for (const double value : values) squares += std::pow(value - mean_of(values), 2);
    return std::sqrt(squares / static_cast<double>(values.size()));
  };
  const size_t width = static_cast<size_t>(spec.width());
  EXPECT_EQ(width, 41u);  // words of all rows
  const auto a = column(rows.train, 0, width), y = column(rows.train, 1, 1);
  EXPECT_NEAR(spec.features[0].mean, mean_of(a), 1e-9);
  EXPECT_NEAR(spec.features[0].deviation, deviation_of(a), 1e-9);
  EXPECT_NEAR(spec.features[0].fill.value(), mean_of(a), 1e-9);
  EXPECT_NEAR(spec.target->mean, mean_of(y), 1e-9);
  EXPECT_NEAR(spec.target->deviation, deviation_of(y), 1e-9);
  EXPECT_GT(std::abs(spec.target->mean - table_spec(folder_ / "t.csv", options).target->mean), 1);

  // What is held out may change as it likes: nothing of it was learnt.
  EXPECT_NEAR(spec.target->original(static_cast<double>(values_of<float>(held_out, 1)[0])),
              column(rows.held_out, 1, 1)[0], 1e-3);
  EXPECT_THAT(message_of<DataError>([&] {
                csv_halves(put("a,y\n,1\n,2\n,3\n5,4\n"), options, {.share = 0.5, .seed = 0});
                csv_halves(put("a,y\n5,1\n,2\n,3\n,4\n"), options, {.share = 0.5, .seed = 0});
                csv_halves(put("a,y\n,1\n5,2\n,3\n,4\n"), options, {.share = 0.5, .seed = 0});
                csv_halves(put("a,y\n,1\n,2\n5,3\n,4\n"), options, {.share = 0.5, .seed = 0});
              }),
              HasSubstr("column \"a\" has no value in the rows that are trained on"));
  EXPECT_THAT(message_of<UsageError>([&] { csv_halves(put("a,y\n1,2\n"), options); }),
              HasSubstr("none is left to train on"));
}

TEST(TableSpec, SaysWhatItMakes) {
  TableSpec spec;
  spec.features = {{.name = "a"},
                   {.name = "c", .kind = ColumnKind::category, .vocabulary = {"u", "v"}}};
  spec.target = TableColumn{.name = "y"};
  EXPECT_EQ(spec.to_string(),
            "1 number and 1 category (c: 2 words) and the target y make x float32 [3], "
            "y float32 [1]");
}

TEST(TableSpec, RefusesOtherJson) {
  TableSpec spec;
  spec.missing = {"", "?"};
  spec.features = {{.name = "a", .mean = 0.1, .deviation = 3, .fill = 1e-300},
                   {.name = "c", .kind = ColumnKind::category, .vocabulary = {"u", "v"}}};
  spec.target = TableColumn{.name = "y"};
  const std::string json = spec.to_json();
  EXPECT_EQ(TableSpec::from_json(json, "saved"), spec);
  const auto refuse = [&](const std::string& from, const std::string& to) {
    std::string changed = json;
    const size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    changed.replace(at, from.size(), to);
    return message_of<DataError>([&] { TableSpec::from_json(changed, "saved.json"); });
  };
  EXPECT_THAT(refuse("{", "["), HasSubstr("saved.json: no JSON"));
  EXPECT_THAT(refuse("tutti table 1", "tutti table 9"), HasSubstr("tutti table 1"));
  EXPECT_THAT(refuse("\"one_hot\"", "\"one_hit\""), HasSubstr("did you mean \"one_hot\""));
  EXPECT_THAT(refuse("\"header\": true,", ""), HasSubstr("header is missing"));
  EXPECT_THAT(refuse("\"mean\": 0.1", "\"mean\": null"),
              HasSubstr("mean: got null, expected a number"));
  EXPECT_THAT(refuse("\"header\": true", "\"header\": 1"),
              HasSubstr("header: got 1, expected true"));
  EXPECT_THAT(refuse("\"category\"", "\"words\""), HasSubstr("features[1].kind: got \"words\""));
  EXPECT_THAT(refuse("\"deviation\": 3.0", "\"deviation\": 0"),
              HasSubstr("features[0].deviation: got 0, expected a number above 0"));
  EXPECT_THAT(refuse("\"v\"", "\"u\""), HasSubstr("features[1].vocabulary"));
  EXPECT_THAT(refuse("\",\"", "\",,\""), HasSubstr("delimiter: got \",,\", expected a character"));
}

TEST(TableSpec, ReadsWhatEarlierVersionsWroteAndWritesNoNull) {
  TableSpec spec;
  spec.features = {{.name = "a"}};
  std::string json = spec.to_json();
  const std::string decimal = " \"decimal\": \".\",\n";
  ASSERT_NE(json.find(decimal), std::string::npos) << json;
  json.erase(json.find(decimal), decimal.size());
  EXPECT_EQ(TableSpec::from_json(json, "saved"), spec);
  for (const double value : {HUGE_VAL, -HUGE_VAL, std::nan("")}) {
    spec.features[0].mean = value;
    EXPECT_THAT(message_of<DataError>([&] { spec.to_json(); }), HasSubstr("finite"));
  }
}

TEST(RealTables, Adult) {
  const fs::path path = test::shared_data() / "adult/adult.data";
  if (!fs::exists(path)) GTEST_SKIP() << "there is no " << path;
  const Dataset data = csv(path, {.target = "column14"});
  EXPECT_EQ(data.num_samples(), 32'561);
  EXPECT_THAT(data.classes(), ElementsAre("<=50K", ">50K"));
  EXPECT_EQ(data.columns()[0].to_string(), "x float32 [108]");  // 6 numbers, 102 words
  const auto y = values_of<int64_t>(data, 1);
  EXPECT_EQ(std::accumulate(y.begin(), y.end(), int64_t{0}), 7'841);
}

TEST(RealTables, AutoMpg) {
  const fs::path path = test::shared_data() / "auto-mpg/auto-mpg.data";
  if (!fs::exists(path)) GTEST_SKIP() << "there is no " << path;
  const Dataset data = csv(path, {.target = "mpg",
                                  .without = {"name"},
                                  .categorical = {"origin"},
                                  .delimiter = ' ',
                                  .header = false,
                                  .names = {"mpg", "cylinders", "displacement", "horsepower",
                                            "weight", "acceleration", "year", "origin", "name"},
                                  .missing_numbers = MissingNumbers::drop});
  EXPECT_EQ(data.num_samples(), 392);
  EXPECT_THAT(values_of<float>(data.take(1), 0), ElementsAre(8, 307, 130, 3504, 12, 70, 1, 0, 0));
  EXPECT_THAT(values_of<float>(data.take(1), 1), ElementsAre(18));
}

TEST(RealTables, CaliforniaHousing) {
  const fs::path path = test::shared_data() / "california-housing/housing_every4th.csv";
  if (!fs::exists(path)) GTEST_SKIP() << "there is no " << path;
  CsvOptions options{.target = "median_house_value", .missing_numbers = MissingNumbers::error};
  EXPECT_THAT(message_of<DataError>([&] { csv(path, options); }),
              AllOf(HasSubstr("column \"total_bedrooms\""), HasSubstr("as 48 of this column are")));
  options.missing_numbers = MissingNumbers::mean;
  options.standardise = true;
  const Dataset data = csv(path, options);
  EXPECT_EQ(data.num_samples(), 5'160);
  EXPECT_EQ(data.columns()[0].to_string(), "x float32 [13]");
  const auto y = values_of<float>(data, 1);
  EXPECT_NEAR(std::accumulate(y.begin(), y.end(), 0.0) / 5160, 206'931, 1);
  const auto x = values_of<float>(data, 0);
  for (size_t column = 0; column < 8; ++column) {
    double sum = 0;
    for (size_t i = column; i < x.size(); i += 13) sum += static_cast<double>(x[i]);
    EXPECT_NEAR(sum / 5160, 0, 1e-6);
  }
}

}  // namespace
}  // namespace tutti::data
