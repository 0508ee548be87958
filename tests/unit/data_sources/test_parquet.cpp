#include <string>
#include <thread>
#include <vector>

#include "tutti/data/sources/detail/record_sources.h"
#include "tutti/data/sources/parquet.h"

#include "tests/support/expect.h"
#include "tests/unit/data_sources/record_samples.h"

namespace tutti::data {
namespace {

using detail::parquet_source;

const std::vector<std::string> kColumns = {"x", "ids", "text", "image", "score", "even", "label"};

void expect_row(const Sample& sample, int64_t i) {
  EXPECT_EQ(elements<float>(sample.columns[0]), x_at(i));
  EXPECT_EQ(elements<int64_t>(sample.columns[1]), ids_at(i));
  EXPECT_EQ(text_of(sample.columns[2]), text_at(i));
  EXPECT_EQ(text_of(sample.columns[3]), image_at(i));
  EXPECT_THAT(elements<float>(sample.columns[4]), ElementsAre(static_cast<float>(i) / 8));
  EXPECT_THAT(elements<bool>(sample.columns[5]), ElementsAre(i % 2 == 0));
  EXPECT_THAT(elements<int64_t>(sample.columns[6]), ElementsAre(label_of(i)));
}

// A build either reads Parquet or says what to do about it.
TEST(Parquet, ReadsWhatPyarrowWroteOrSaysWhyNot) {
  const TempFolder folder;
  const auto path = copied(folder, "table.parquet");
  if (!parquet_available()) {
    EXPECT_THAT(message_of<UsageError>([&] { parquet(path); }), HasSubstr("TUTTI_WITH_PARQUET=ON"));
    return;
  }
  const auto source = parquet_source({path, path}, {.columns = kColumns, .cache_bytes = 1});
  ASSERT_EQ(source->num_rows(), 2 * kRecords);
  EXPECT_EQ(source->columns()[0].to_string(), "x float32 [6]");
  EXPECT_EQ(source->columns()[1].to_string(), "ids int64 [?]");
  EXPECT_THAT(source->first_rows_of_files(), ElementsAre(0, kRecords));
  std::vector<std::jthread> threads;
  for (int64_t first = 0; first < 3; ++first)
    threads.emplace_back([&, first] {
      for (int64_t k = 0; k < 2 * kRecords; ++k) {
        const int64_t row = (first * 11 + k * 7) % (2 * kRecords);
        expect_row(source->read_row(row), row % kRecords);
      }
    });
}

TEST(Parquet, BadFilesAndColumnsAreNamed) {
  if (!parquet_available()) GTEST_SKIP() << "needs Parquet (TUTTI_WITH_PARQUET=ON)";
  const TempFolder folder;
  const auto path = copied(folder, "table.parquet");
  EXPECT_THAT(message_of<UsageError>([&] { parquet(path, {.columns = {"lable"}}); }),
              AllOf(HasSubstr("table.parquet"), HasSubstr("did you mean \"label\"")));
  const auto gaps = parquet_source(path, {.columns = {"gap"}});
  EXPECT_THAT(elements<int32_t>(gaps->read_row(6).columns[0]), ElementsAre(6));
  EXPECT_THAT(message_of<DataError>([&] { gaps->read_row(7); }),
              HasSubstr("table.parquet, row 7: column \"gap\" is null"));
  cut(path, 3000);
  EXPECT_THAT(message_of<DataError>([&] { parquet(path); }), HasSubstr("table.parquet"));
  put_bytes(path, "");
  EXPECT_THROW(parquet(path), DataError);
}

}  // namespace
}  // namespace tutti::data
