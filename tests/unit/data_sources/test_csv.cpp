// Tables: how they are written, what they become, and what is wrong in them.
#include <cmath>
#include <filesystem>
#include <string>

#include "tutti/data/sources/csv_columns.h"
#include "tutti/data/sources/recognise.h"

#include "tests/support/expect.h"
#include "tests/unit/data_sources/csv_test.h"
#include "tests/unit/data_sources/rows.h"

namespace tutti::data {
namespace {

namespace fs = std::filesystem;

TEST_F(Csv, NumbersAreXAndTheTargetIsY) {
  const Dataset data = open("a,price,b\n1,10,-2.5\n3e2,20,+.5\n", {.target = "price"});
  EXPECT_THAT(words_of(data.columns()), ElementsAre("x float32 [2]", "y float32 [1]"));
  EXPECT_THAT(values_of<float>(data, 0), ElementsAre(1, -2.5f, 300, .5f));
  EXPECT_THAT(values_of<float>(data, 1), ElementsAre(10, 20));
  EXPECT_TRUE(data.classes().empty());
}

TEST_F(Csv, WordsAreOneHotAndAWordAsTargetIsAClass) {
  const Dataset data = open("size,colour,kind\n1,red,b\n2,blue,a\n3,red,b\n", {.target = "kind"});
  EXPECT_THAT(words_of(data.columns()), ElementsAre("x float32 [3]", "y int64 []"));
  EXPECT_THAT(values_of<float>(data, 0), ElementsAre(1, 0, 1,  //
                                                     2, 1, 0,  //
                                                     3, 0, 1));
  EXPECT_THAT(values_of<int64_t>(data, 1), ElementsAre(1, 0, 1));
  EXPECT_THAT(data.classes(), ElementsAre("a", "b"));
}

TEST_F(Csv, WordsAreColumnsOfTheirOwnForEmbeddings) {
  const std::string bytes = "user,stars,film\n7,1,x\n10,2,y\n7,3,x\n";
  const CsvOptions options{.target = "stars", .categorical = {"user"}, .one_hot = false};
  const Dataset data = open(bytes, options);
  EXPECT_THAT(words_of(data.columns()),
              ElementsAre("user int64 []", "film int64 []", "y float32 [1]"));
  EXPECT_THAT(values_of<int64_t>(data, 0), ElementsAre(1, 0, 1));  // "10" before "7": by bytes
  EXPECT_THAT(values_of<int64_t>(data, 1), ElementsAre(0, 1, 0));
  EXPECT_THAT(values_of<float>(data, 2), ElementsAre(1, 2, 3));
}

TEST_F(Csv, TakesTheColumnsThatItIsTold) {
  const std::string bytes = "a,b,c,d\n1,2,3,4\n";
  EXPECT_THAT(values_of<float>(open(bytes), 0), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(values_of<float>(open(bytes, {.columns = {"d", "a"}}), 0), ElementsAre(4, 1));
  EXPECT_THAT(values_of<float>(open(bytes, {.target = "a", .without = {"c"}}), 0),
              ElementsAre(2, 4));
  EXPECT_THAT(misuse(bytes, {.target = "e"}), HasSubstr("unknown column \"e\""));
  EXPECT_THAT(misuse(bytes, {.columns = {"a", "e"}}), HasSubstr("unknown column \"e\""));
  EXPECT_THAT(misuse(bytes, {.columns = {"a", "b", "a"}}),
              HasSubstr("column \"a\" of `columns` (--columns) is named twice"));
  EXPECT_THAT(misuse(bytes, {.target = "b", .columns = {"a", "b"}}),
              HasSubstr("column \"b\" of `columns` (--columns) is the target"));
  EXPECT_THAT(misuse(bytes, {.columns = {"a", "b"}, .without = {"b", "c"}}),
              HasSubstr("column \"b\" of `columns` (--columns) is in `without` (--without) too"));
  EXPECT_THAT(misuse("price\n1\n", {.without = {"prize"}}), HasSubstr("did you mean \"price\""));
  EXPECT_THAT(misuse("price\n1\n", {.target = "price"}), HasSubstr("no column is left"));
  EXPECT_THAT(misuse("a\n1\n", {.names = {"a"}}), HasSubstr("files without header"));
}

// Ways to write the same two rows.
TEST_F(Csv, ReadsTheSameFromEveryWayOfWriting) {
  struct Way {
    std::string bytes;
    CsvOptions options;
  };
  const Way ways[] = {
      {"a,b\n1,x y\n2,\"\"\"z\"\"\"\n", {}},
      {"\xEF\xBB\xBF"
       "a,b\r\n1,x y\r\n2,\"\"\"z\"\"\"\r\n\r\n  \r\n",
       {}},
      {"\n\"a\" , \"b\"\n\n 1 ,  x y \n2, \"\"\"z\"\"\"", {}},
      {"a;b\n1;x y\n2;\"\"\"z\"\"\"\n", {.delimiter = ';'}},
      {"a\tb\n1\tx y\n2\t\"\"\"z\"\"\"", {.delimiter = '\t'}},
      {"  a   b \n1\t \"x y\"  \r\n  2 \"\"\"z\"\"\" ", {.delimiter = ' '}},
      {"# made by hand\na,b\n1,x y\n # 3,4\n2,\"\"\"z\"\"\"\n#", {.comment = '#'}},
      {"1,x y\n2,\"\"\"z\"\"\"\n", {.header = false, .names = {"a", "b"}}},
  };
  for (const Way& way : ways) {
    SCOPED_TRACE(way.bytes);
    const TableSpec spec = table_spec(put(way.bytes), way.options);
    ASSERT_EQ(spec.features.size(), 2u);
    EXPECT_EQ(spec.features[0].name, "a");
    EXPECT_EQ(spec.features[1].name, "b");
    EXPECT_THAT(spec.features[1].vocabulary, ElementsAre("\"z\"", "x y"));
    EXPECT_THAT(values_of<float>(open(way.bytes, way.options), 0), ElementsAre(1, 0, 1, 2, 1, 0));
  }
}

// What recognise() tells `tutti train` of a path: one guess, whatever reads it.
TEST_F(Csv, AFileIsReadAsItLooks) {
  struct Look {
    std::string bytes;
    char delimiter;
    bool header;
  };
  const Look looks[] = {
      {"a,b,w\n1,2,x\n3,4,y\n", ',', true}, {"1,2,x\n3,4,y\n", ',', false},
      {"a;b;w\n1;2;x\n3;4;y\n", ';', true}, {"1\t2\tx\n3\t4\ty\n", '\t', false},
      {"a|b|w\n1|2|x\n3|4|y\n", '|', true}, {"1 2  x\n3 4  y\n", ' ', false},
  };
  for (const char* name : {"t.csv", "t.data"})
    for (const Look& look : looks) {
      SCOPED_TRACE(look.bytes);
      const fs::path path = put(look.bytes, name);
      const TableSpec spec = table_spec(path);
      EXPECT_EQ(spec.delimiter, look.delimiter);
      EXPECT_EQ(spec.header, look.header);
      EXPECT_EQ(recognise(path).delimiter, look.delimiter);
      EXPECT_EQ(recognise(path).header, look.header);
      EXPECT_THAT(values_of<float>(csv(path), 0), ElementsAre(1, 2, 1, 0, 3, 4, 0, 1));
      EXPECT_EQ(csv_halves(path, {}, {.share = 0.5}).spec.names, spec.names);
      EXPECT_EQ(csv_columns(path).num_samples(), 2);
      EXPECT_THAT(verify_csv(path), ElementsAre());
    }
  const TableSpec commented = table_spec(put("# one; two; three\n1;x\n2;y\n"), {.comment = '#'});
  EXPECT_EQ(commented.delimiter, ';');
  EXPECT_FALSE(commented.header);
}

TEST_F(Csv, WhatIsToldIsFollowedWhateverItLooksLike) {
  const auto spec_of = [&](const std::string& bytes, const CsvOptions& options) {
    return table_spec(put(bytes), options);
  };
  EXPECT_THAT(spec_of("a;b\n1;2\n3;4\n", {.delimiter = ','}).names, ElementsAre("a;b"));
  EXPECT_THAT(spec_of("1,2\n3,4\n", {.header = true}).names, ElementsAre("1", "2"));
  const TableSpec row = spec_of("p,q\nr,s\n", {.header = false});
  EXPECT_THAT(row.features[0].vocabulary, ElementsAre("p", "r"));
  EXPECT_THAT(spec_of("p,q\nr,s\n", {}).features[0].vocabulary, ElementsAre("r"));
  EXPECT_EQ(csv_columns(folder_ / "t.csv", {.header = false}).num_samples(), 2);
  EXPECT_THAT(spec_of("1,2\n3,4\n", {.names = {"a", "b"}}).names, ElementsAre("a", "b"));
  EXPECT_THAT(misuse("a,b\n1,2\n", {.names = {"a", "b"}}), HasSubstr("header = false"));
  EXPECT_THAT(misuse("1,2\n3,4\n", {.target = "price"}),
              AllOf(HasSubstr("unknown column \"price\""), HasSubstr("--header yes")));
}

TEST_F(Csv, QuotesHoldDelimitersAndLines) {
  const TableSpec spec =
      table_spec(put("a,b\n\"x,\ny\",1\n\"\",2\n5\" pipe,3\n"), {.columns = {"a"}, .missing = {}});
  EXPECT_THAT(spec.features[0].vocabulary, ElementsAre("", "5\" pipe", "x,\ny"));
  EXPECT_THAT(refusal("a,b\n\"x,\n\ny\",1\n2\n"), HasSubstr("line 5: got 1 fields"));
}

TEST_F(Csv, NamesColumnsThatHaveNoName) {
  const TableSpec spec = table_spec(put("1,2\n"), {.header = false});
  EXPECT_THAT(spec.names, ElementsAre("column0", "column1"));
  EXPECT_EQ(table_spec(put(",b\n1,2\n")).features[0].name, "column0");
}

TEST_F(Csv, Standardises) {
  const Dataset data = open("a,b,y\n1,5,10\n3,5,20\n", {.target = "y", .standardise = true});
  EXPECT_THAT(values_of<float>(data, 0), ElementsAre(-1, 0, 1, 0));
  EXPECT_THAT(values_of<float>(data, 1), ElementsAre(10, 20));
  const CsvOptions options{.target = "y", .standardise = true, .standardise_target = true};
  const TableSpec spec = table_spec(put("a,b,y\n1,5,10\n3,5,20\n"), options);
  EXPECT_THAT(values_of<float>(csv(folder_ / "t.csv", spec), 1), ElementsAre(-1, 1));
  EXPECT_EQ(spec.target->original(-1), 10);
  EXPECT_EQ(spec.features[1].deviation, 1);
}

TEST_F(Csv, MeansAreThoseOfALongSum) {
  std::string bytes = "a\n";
  long double sum = 0, squares = 0;
  constexpr int kRows = 1000;
  const auto value = [](int i) { return 1e6 + std::sin(i); };
  for (int i = 0; i < kRows; ++i) bytes += fmt::format("{}\n", value(i));
  for (int i = 0; i < kRows; ++i) sum += value(i);
  for (int i = 0; i < kRows; ++i) squares += std::pow(value(i) - sum / kRows, 2);
  const TableSpec spec = table_spec(put(bytes), {.standardise = true});
  EXPECT_NEAR(spec.features[0].mean, static_cast<double>(sum / kRows), 1e-8);
  EXPECT_NEAR(spec.features[0].deviation, static_cast<double>(std::sqrt(squares / kRows)), 1e-9);
}

TEST_F(Csv, MissingNumbers) {
  const std::string bytes = "a,b,c\n1,2,u\n?,4,v\n5,,w\n7,6,?\n";
  EXPECT_THAT(refusal(bytes, {.missing_numbers = MissingNumbers::error}),
              AllOf(HasSubstr("t.csv, line 3, column \"a\""), HasSubstr("missing")));
  const CsvOptions numbers{.columns = {"a", "b"}};
  const auto with = [&](MissingNumbers policy) {
    CsvOptions options = numbers;
    options.missing_numbers = policy;
    options.fill = -9;
    testing::internal::CaptureStderr();
    const auto x = values_of<float>(open(bytes, options), 0);
    return std::pair(x, testing::internal::GetCapturedStderr());
  };
  const float mean_a = 13.f / 3;
  EXPECT_EQ(with(MissingNumbers::mean).first, (std::vector<float>{1, 2, mean_a, 4, 5, 4, 7, 6}));
  EXPECT_EQ(values_of<float>(open(bytes, numbers), 0), with(MissingNumbers::mean).first);
  EXPECT_EQ(with(MissingNumbers::value).first, (std::vector<float>{1, 2, -9, 4, 5, -9, 7, 6}));
  EXPECT_EQ(with(MissingNumbers::drop).first, (std::vector<float>{1, 2, 7, 6}));
  EXPECT_EQ(with(MissingNumbers::drop).second, "");  // said once
  // A word that lacks is a word; drop leaves out its row.
  EXPECT_EQ(table_spec(folder_ / "t.csv", {.columns = {"c"}}).features[0].vocabulary[0], "?");
  const CsvOptions drop{.columns = {"c"}, .missing_numbers = MissingNumbers::drop};
  EXPECT_THAT(table_spec(folder_ / "t.csv", drop).features[0].vocabulary,
              ElementsAre("u", "v", "w"));
  EXPECT_EQ(open(bytes, drop).num_samples(), 3);
}

TEST_F(Csv, KnowsHowOthersWriteMissingValues) {
  const std::string bytes = "a\n1\nNA\nN/A\nNaN\nnan\nnull\nNULL\n?\n\"\"\n4\n";
  const auto x = values_of<float>(open(bytes, {.missing_numbers = MissingNumbers::drop}), 0);
  EXPECT_EQ(x, (std::vector<float>{1, 4}));
  EXPECT_THAT(refusal("a\n1\n2\nNA\n", {.missing = {"", "?"}}),
              HasSubstr("got \"NA\", expected a number"));
  EXPECT_THAT(refusal("y,a\n1,2\nNA,3\n", {.target = "y"}),
              AllOf(HasSubstr("line 3, column \"y\""), HasSubstr("take such rows out")));
}

TEST_F(Csv, VerifyNamesAllThatIsWrong) {
  const auto found = [&](const std::string& bytes, const CsvOptions& options = {}) {
    return verify_csv(put(bytes), options);
  };
  EXPECT_THAT(found("age,word\n1,a\nNA,b\n3,\"c\nd\"\n"), ElementsAre());
  EXPECT_THAT(found("age,word\n1,a\n2\nold,b\n3,c,d\n\"4\"x,e\n5,6\nyoung,7\n8,\"g\n9,h\n"),
              ElementsAre(HasSubstr("line 3: got 1 fields, expected 2"),
                          AllOf(HasSubstr("line 4, column \"age\": got \"old\""),
                                HasSubstr("as 3 of 5 values are")),
                          HasSubstr("line 5: got 3 fields"),
                          HasSubstr("line 6, character 4: got 'x' behind a closing quote"),
                          HasSubstr("line 8, column \"age\": got \"young\""),
                          HasSubstr("line 9, character 3: got a quote that is never closed")));
  EXPECT_THAT(found("n\n1\n2\nx\n", {.categorical = {"n"}}), ElementsAre());
  EXPECT_THAT(found("a,b\n1,2,\n3,4,\n"),
              ElementsAre(HasSubstr("line 2: got 3 fields, expected 2"), HasSubstr("line 3")));
  EXPECT_THAT(message_of<DataError>([&] { found("a,b\n"); }), HasSubstr("got no row"));
}

TEST_F(Csv, SaysWhatItFillsAndDrops) {
  const auto said = [&](const CsvOptions& options) {
    testing::internal::CaptureStderr();
    open("a,b\n1,2\n,3\n", options);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(said({.missing_numbers = MissingNumbers::mean}),
              AllOf(HasSubstr("t.csv: 1 of 2 rows lack \"a\": taken as 1")));
  EXPECT_THAT(said({.missing_numbers = MissingNumbers::drop}),
              HasSubstr("t.csv: 1 of 2 rows lack a value: left out"));
}

TEST_F(Csv, ATargetIsNeverMadeUp) {
  for (const auto policy : {MissingNumbers::error, MissingNumbers::mean, MissingNumbers::value})
    EXPECT_THAT(refusal("a,y\n1,2\n2,\n", {.target = "y", .missing_numbers = policy}),
                HasSubstr("line 3, column \"y\""));
}

TEST_F(Csv, NamesLineAndColumnOfWhatIsWrong) {
  const std::string good = "age,b\n1,2\n3,4\n";
  EXPECT_THAT(refusal(good + "5\n"),
              AllOf(HasSubstr("t.csv, line 4: got 1 fields, expected 2"), HasSubstr("\"b\"")));
  EXPECT_THAT(refusal(good + "5,6,7\n"),
              AllOf(HasSubstr("line 4: got 3 fields, expected 2"), HasSubstr("\"7\" follows")));
  EXPECT_THAT(refusal(good + "old,6\n"),
              AllOf(HasSubstr("t.csv, line 4, column \"age\": got \"old\", expected a number"),
                    HasSubstr("2 of 3 values"), HasSubstr("categorical")));
  EXPECT_THAT(refusal(good + "inf,6\n"), HasSubstr("got \"inf\", expected a number"));
  EXPECT_THAT(refusal(good + "1e999,6\n"), HasSubstr("got \"1e999\", expected a number"));
  EXPECT_THAT(refusal(good + "1e39,6\n"), HasSubstr("that float32 can hold"));
  EXPECT_THAT(refusal(good + "0x1,6\n"), HasSubstr("got \"0x1\""));
  EXPECT_THAT(refusal(good + "5, \"6\n7\n"),
              HasSubstr("line 4, character 4: got a quote that is never closed"));
  EXPECT_THAT(refusal(good + "\"5\"x,6\n"),
              HasSubstr("line 4, character 4: got 'x' behind a closing quote"));
  EXPECT_THAT(refusal("a b\n\"1\"2 3\n", {.delimiter = ' '}), HasSubstr("line 2, character 4"));
  EXPECT_THAT(refusal("a,a\n1,2\n"), HasSubstr("column \"a\" is there twice"));
  EXPECT_THAT(refusal("a,b\n1,\n2,\n"), HasSubstr("column \"b\" has no value"));
}

TEST_F(Csv, RefusesWhatIsNoTable) {
  EXPECT_THAT(refusal(""), HasSubstr("got no row"));
  EXPECT_THAT(refusal("\n\n"), HasSubstr("got no row"));
  EXPECT_THAT(refusal("a,b\n"), HasSubstr("got no row"));
  EXPECT_THAT(refusal("a\n?\n", {.missing_numbers = MissingNumbers::drop}),
              HasSubstr("got no row without a missing value"));
  EXPECT_THAT(refusal(std::string("\xFF\xFE"
                                  "a\0",
                                  4)),
              HasSubstr("UTF-16"));
  EXPECT_THAT(refusal("a\n\xE4\n"),
              AllOf(HasSubstr("line 2, column \"a\": got byte e4, which is no UTF-8"),
                    HasSubstr("in Latin-1 it is \"ä\"")));
  EXPECT_THAT(refusal("\n1,gr\xF6\xDF"
                      "e\n1,2\n",
                      {.header = true}),
              HasSubstr("line 2, name 2: got byte f6"));
  EXPECT_THAT(message_of<DataError>([&] { csv(folder_ / "none.csv"); }), HasSubstr("none.csv"));
  for (const char delimiter : {'"', '\n', '\r', '\0'})
    EXPECT_THAT(misuse("a\n1\n", {.delimiter = delimiter}), HasSubstr("delimiter"));
  EXPECT_THAT(misuse("a\n1\n", {.comment = ','}), HasSubstr("comment"));
}

TEST_F(Csv, ALaterTableInAnotherEncodingIsToldSo) {
  const std::string path = folder_ / "towns.csv";
  put_bytes(path, "town,y\nOrléans,1\nParis,2\n");
  const TableSpec spec = table_spec(path, {.target = "y"});
  put_bytes(path,
            "town,y\nParis,1\nOrl\xE9"
            "ans,2\n");
  EXPECT_THAT(message_of<DataError>([&] { csv(path, spec); }),
              AllOf(HasSubstr("line 3, column \"town\""), HasSubstr("it has byte e9"),
                    HasSubstr("iconv -f latin1")));
  put_bytes(path, "town,y\nParis,1\nOrle\u0301ans,2\n");
  EXPECT_THAT(message_of<DataError>([&] { csv(path, spec); }),
              HasSubstr("\"Orl\u00e9ans\" looks the same and is other bytes"));
}

TEST_F(Csv, RefusesMoreWordsThanOneHotCanHold) {
  std::string bytes = "a\n";
  for (int i = 0; i <= 1000; ++i) bytes += fmt::format("word{}\n", i);
  EXPECT_THAT(misuse(bytes, {}), AllOf(HasSubstr("1001 different words"), HasSubstr("one_hot")));
  EXPECT_EQ(open(bytes, {.one_hot = false}).num_samples(), 1001);
}

TEST_F(Csv, ADecimalCommaIsReadWhereItIsTold) {
  const std::string bytes = "area;ratio;price\n50;0,370;14285,71\n97;-1,5e1;+13857,14\n";
  const CsvOptions comma{.target = "price", .delimiter = ';', .decimal = ','};
  const Dataset data = open(bytes, comma);
  EXPECT_THAT(values_of<float>(data, 0), ElementsAre(50, 0.37f, 97, -15));
  EXPECT_THAT(values_of<float>(data, 1), ElementsAre(14285.71f, 13857.14f));
  EXPECT_THAT(verify_csv(folder_ / "t.csv", comma), ElementsAre());
  const TableSpec spec =
      TableSpec::from_json(table_spec(folder_ / "t.csv", comma).to_json(), "saved");
  EXPECT_EQ(spec.decimal, ',');
  EXPECT_THAT(values_of<float>(csv(folder_ / "t.csv", spec), 1), ElementsAre(14285.71f, 13857.14f));
  // Quotes let it stand beside the delimiter; a point is no number then.
  EXPECT_THAT(values_of<float>(open("a,b\n\"1,5\",2\n", {.delimiter = ',', .decimal = ','}), 0),
              ElementsAre(1.5f, 2));
  EXPECT_THAT(refusal("a\n1,5\n2,5\n1.5\n", {.delimiter = ';', .decimal = ','}),
              HasSubstr("line 4, column \"a\": got \"1.5\", expected a number"));
  EXPECT_THAT(misuse("a\n1\n", {.decimal = 'x'}), HasSubstr("decimal 'x'"));
}

// Each way to write a number that is none here, as a target and as a feature.
TEST_F(Csv, WarnsOfWordsThatLookLikeNumbers) {
  const auto said = [&](const std::string& values, const CsvOptions& options) {
    // A file of its own: it is said once.
    const fs::path path = put(values, fmt::format("{}.csv", ++files_));
    testing::internal::CaptureStderr();
    csv(path, options);
    return testing::internal::GetCapturedStderr();
  };
  struct Case {
    const char* words;
    const char* writing;
  };
  const Case cases[] = {
      {"14285,71\n13857,14\n", "\"13857,14\" has a decimal comma: `decimal` (--decimal ,)"},
      {"0,370\n1,626\n2,123\n", "\"0,370\" has a decimal comma"},
      {"100,000\n97,000\n", "\"100,000\" has its thousands apart"},
      {"1.234.567,89\n2.345.678,9\n", "has its thousands apart"},
      {"1 000\n20 000\n", "has its thousands apart"},
      {"50%\n60.5 %\n?\n", "\"50%\" is a percentage"},
      {"1.0D+00\n2.5D-01\n", "\"1.0D+00\" has the exponent of Fortran"},
      {"2019-01-02\n2019-02-03\n", "\"2019-01-02\" is a date or a time"},
      {"12:30\n12:45\n", "\"12:30\" is a date or a time"},
      {"$100\n$1,250.5\n", "is a number with something beside it"},
      {"12 kg\n5 kg\n70kg\n", "is a number with something beside it"},
  };
  for (const Case& one : cases) {
    const std::string bytes = std::string("n;v\n") + [&] {
      std::string rows;
      std::string_view rest = one.words;
      for (size_t end; (end = rest.find('\n')) != rest.npos; rest.remove_prefix(end + 1))
        rows += "1;" + std::string(rest.substr(0, end + 1));
      return rows;
    }();
    EXPECT_THAT(said(bytes, {.target = "v", .delimiter = ';'}),
                AllOf(HasSubstr("column \"v\""), HasSubstr("classes"), HasSubstr(one.writing)));
    EXPECT_THAT(said(bytes, {.delimiter = ';'}),
                AllOf(HasSubstr("column \"v\""), HasSubstr("words"), HasSubstr(one.writing),
                      HasSubstr("--categorical v")));
    EXPECT_EQ(said(bytes, {.categorical = {"v"}, .delimiter = ';'}), "");
  }
  for (const char* words :
       {"sea\nyard\n", "10th\n11th\n7th-8th\n", "0-17\n18-24\n", "a1\nb2\n", "sea\nyard\n50%\n"})
    EXPECT_EQ(said(std::string("v\n") + words, {}), "") << words;
  EXPECT_THAT(refusal("a;b\n1;2\n3;4\n1,5;6\n", {.delimiter = ';'}),
              AllOf(HasSubstr("got \"1,5\", expected a number"), HasSubstr("--decimal ,")));
}

TEST_F(Csv, WarnsOfWholeNumbersThatFloat32Rounds) {
  const auto said = [&](const std::string& bytes, const CsvOptions& options = {}) {
    const fs::path path = put(bytes, fmt::format("{}.csv", ++files_));
    testing::internal::CaptureStderr();
    csv(path, options);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(said("id,a\n16777216,1\n-16777216,2\n16777218,3\n0.1,123456789.5\n"), "");
  EXPECT_THAT(said("a,id\n1,16777217\n2,5\n3,33554435\n"),
              AllOf(HasSubstr("line 2, column \"id\": 16777217 is read as 16777216"),
                    HasSubstr("rounds 2 whole numbers"), HasSubstr("--categorical")));
  EXPECT_THAT(said("a,id\n1,16777217.0\n"), HasSubstr("16777217.0 is read as"));
  // What float64 rounds before, and what is beyond int64.
  EXPECT_THAT(said("id\n9007199254740993\n"), HasSubstr("is read as 9007199254740992"));
  EXPECT_THAT(said("id\n123456789012345678901\n"), HasSubstr("123456789012345678901 is read as"));
  EXPECT_THAT(said("a,y\n1,16777217\n", {.target = "y"}),
              AllOf(HasSubstr("column \"y\""), HasSubstr("the target")));
  // Standardised ones keep what differs, until the rest is too large.
  EXPECT_EQ(said("id\n1260759144\n1260759179\n1260759182\n", {.standardise = true}), "");
  EXPECT_THAT(said("id\n1260759144\n1260759179\n2\n", {.standardise = true}),
              HasSubstr("1260759144 is read as"));
  EXPECT_EQ(said("id\n16777217\n16777219\n", {.categorical = {"id"}}), "");
}

TEST_F(Csv, StandardisesNumbersAsLargeAndAsSmallAsTheyAre) {
  const TableSpec spec = table_spec(put("a,b,c\n1e300,-1.7e308,1e-200\n3e300,1.7e308,3e-200\n"),
                                    {.standardise = true});
  EXPECT_DOUBLE_EQ(spec.features[0].mean, 2e300);
  EXPECT_DOUBLE_EQ(spec.features[0].deviation, 1e300);
  EXPECT_DOUBLE_EQ(spec.features[1].deviation, 1.7e308);
  EXPECT_DOUBLE_EQ(spec.features[2].deviation, 1e-200);
  EXPECT_EQ(TableSpec::from_json(spec.to_json(), "saved"), spec);
  EXPECT_THAT(values_of<float>(csv(folder_ / "t.csv", spec), 0), ElementsAre(-1, -1, -1, 1, 1, 1));
}

TEST_F(Csv, LinesThatEndInCRAloneAreNamed) {
  EXPECT_THAT(refusal("area,price\r50,1\r97,2\r"),
              AllOf(HasSubstr("t.csv, line 1, character 11: got a line that ends in CR alone"),
                    HasSubstr("expected LF or CRLF")));
  EXPECT_THAT(refusal("a,b\n1,2\r3,4\n5,6\n"), HasSubstr("line 2, character 4"));
  EXPECT_THAT(values_of<float>(open("a,b\r\n1,2\r\r\n3,\"4\"\r\n"), 0), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(table_spec(put("a\n\"x\ry\"\n")).features[0].vocabulary, ElementsAre("x\ry"));
}

TEST_F(Csv, SaysWhatMayBeWrongWithAllRows) {
  EXPECT_THAT(refusal("area,price\n50,1,\n97,2,\n"),
              AllOf(HasSubstr("line 2: got 3 fields, expected 2"),
                    HasSubstr("the delimiter at the end of each row")));
  EXPECT_THAT(refusal("\"area\",\"price\"\n\"1\",50,1\n"),
              AllOf(HasSubstr("line 2: got 3 fields, expected 2"), HasSubstr("as R writes")));
  EXPECT_THAT(refusal("sep=;\narea;view;price\n50;sea;1\n", {.delimiter = ';'}),
              AllOf(HasSubstr("line 2: got 3 fields, expected 2"), HasSubstr("Excel's")));
  EXPECT_THAT(refusal("sep=;\narea;price\n50;1\n", {.delimiter = ';'}),
              AllOf(HasSubstr("line 1: got \"sep=\", expected the names"), HasSubstr("Excel's")));
}

TEST_F(Csv, ShuffledRowsAreTheRows) {
  std::string bytes = "a,w,y\n";
  for (int i = 0; i < 100; ++i) bytes += fmt::format("{},w{},{}\n", i, i % 7, 2 * i);
  const Batch batch = open(bytes, {.target = "y"}).shuffle().batch(100).epoch({.seed = 5}).batch(0);
  const auto x = values_of<float>(batch.columns[0]);
  const auto y = values_of<float>(batch.columns[1]);
  EXPECT_NE(y[1], 2);
  for (size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(y[i], 2 * x[i * 8]);
    for (int word = 0; word < 7; ++word)
      EXPECT_EQ(x[i * 8 + 1 + static_cast<size_t>(word)],
                static_cast<int>(x[i * 8]) % 7 == word ? 1 : 0);
  }
}

}  // namespace
}  // namespace tutti::data
