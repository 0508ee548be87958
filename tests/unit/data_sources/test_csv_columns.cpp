#include <gmock/gmock.h>

#include <cmath>
#include <string>

#include "tutti/base/error.h"
#include "tutti/data/sources/csv_columns.h"

#include "tests/support/message_of.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/data_sources/record_samples.h"

namespace tutti::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using tutti::test::message_of;
using tutti::test::put_bytes;
using tutti::test::TempFolder;

Dataset columns_of_text(const std::string& text, CsvColumnsOptions options = {}) {
  const TempFolder folder;
  put_bytes(folder / "table.csv", text);
  return csv_columns(folder / "table.csv", options);
}

TEST(CsvColumns, EachFieldIsWhatItsValuesAre) {
  const auto rows = columns_of_text(
      "id,size,rooms,view,note\n"
      "9007199254740993,1.5,2,sea,\"a, b\"\n"
      "-4,3,,yard,?\n");
  ASSERT_EQ(rows.num_samples(), 2);
  std::vector<std::string> said;
  for (const Column& column : rows.columns()) said.push_back(column.to_string());
  EXPECT_THAT(said, testing::ElementsAre("id int64 []", "size float32 []", "rooms float32 []",
                                         "view uint8 [?]", "note uint8 [?]"));
  const Epoch epoch = rows.padded_batch(1).epoch({});
  const Batch first = epoch.batch(0), second = epoch.batch(1);
  EXPECT_EQ(first.columns[0].as<int64_t>()[0], 9007199254740993);
  EXPECT_EQ(second.columns[1].as<float>()[0], 3);
  EXPECT_EQ(first.columns[2].as<float>()[0], 2);
  EXPECT_TRUE(std::isnan(second.columns[2].as<float>()[0]));
  EXPECT_EQ(text_of(first.columns[4].rows(0, 1)), "a, b");
  EXPECT_EQ(text_of(second.columns[4].rows(0, 1)), "?");
}

TEST(CsvColumns, WithoutALineOfNames) {
  const auto rows = columns_of_text("1;a\n2;b\n", {.delimiter = ';', .header = false});
  EXPECT_EQ(rows.num_samples(), 2);
  EXPECT_EQ(rows.columns()[1].to_string(), "column1 uint8 [?]");
}

TEST(CsvColumns, NumbersThatFloat32DoesNotHoldAreNamed) {
  testing::internal::CaptureStderr();
  columns_of_text("id,whole\n16777217,16777217\n0.5,3\n");
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("line 2, column id: 16777217 becomes 16777216"),
                    testing::Not(HasSubstr("whole: "))));
  EXPECT_THAT(message_of<DataError>([] { columns_of_text("a\n1\n1e300\n"); }),
              HasSubstr("line 3, column a: got 1e300, expected a number that float32 can hold"));
}

TEST(CsvColumns, ADecimalCommaIsReadWhereItIsTold) {
  const auto rows = columns_of_text("a;b\n1,5;2\n", {.delimiter = ';', .decimal = ','});
  EXPECT_EQ(rows.columns()[0].to_string(), "a float32 []");
  EXPECT_EQ(rows.columns()[1].to_string(), "b int64 []");
  EXPECT_EQ(rows.padded_batch(1).epoch({}).batch(0).columns[0].as<float>()[0], 1.5f);
}

TEST(CsvColumns, WhatIsWrongIsNamed) {
  const auto why = [](const char* text) {
    return message_of<DataError>([&] { columns_of_text(text); });
  };
  EXPECT_THAT(why("a,b\n1,2\n3\n"), AllOf(HasSubstr("line 3"), HasSubstr("got 1 fields")));
  EXPECT_THAT(why("a,a\n1,2\n"), AllOf(HasSubstr("field 2"), HasSubstr("\"a\"")));
  EXPECT_THAT(why("a,b\n"), HasSubstr("no row"));
  EXPECT_THAT(why("a,b\n20000001,2\n,3\n"),
              AllOf(HasSubstr("line 3, column a"), HasSubstr("too large for float32")));
}

}  // namespace
}  // namespace tutti::data
