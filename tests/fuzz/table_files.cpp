#include "tests/fuzz/table_files.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/data/sources/csv.h"
#include "tutti/data/sources/idx.h"
#include "tutti/data/sources/jsonl.h"
#include "tutti/data/sources/strokes.h"

namespace tutti::test {
namespace {

/// What is relied on without another look.
void table_keeps(bool kept) {
  if (!kept) std::abort();
}

/// Bytes that lie at every path.
class OneFile final : public data::Files {
 public:
  explicit OneFile(std::string_view bytes) : bytes_(bytes) {}
  std::vector<data::FileInfo> list(const std::filesystem::path&) const override { return {}; }
  data::FileInfo info(const std::filesystem::path& path) const override {
    return {.name = path.string(), .bytes = std::ssize(bytes_)};
  }
  Array read(const std::filesystem::path&, int64_t offset, int64_t bytes) const override {
    const auto count = bytes < 0 ? std::string_view::npos : static_cast<size_t>(bytes);
    return data::bytes_of(bytes_.substr(static_cast<size_t>(offset), count));
  }

 private:
  std::string_view bytes_;
};

data::Batch all_rows(const data::Dataset& dataset) {
  return dataset.batch(dataset.num_samples()).epoch({}).batch(0);
}

void read_table(std::string_view bytes, data::CsvOptions options) {
  options.files = std::make_shared<OneFile>(bytes);
  const data::TableSpec spec = data::table_spec("fuzzer", options);
  table_keeps(data::TableSpec::from_json(spec.to_json(), "fuzzer") == spec);
  const data::Dataset learnt = data::csv("fuzzer", options);
  const data::Dataset again = data::csv("fuzzer", spec, {.files = options.files});
  table_keeps(learnt.columns() == again.columns());
  const data::Batch batch = all_rows(again);
  table_keeps(batch.size == learnt.num_samples() && batch.size > 0);
  for (const Array& column : batch.columns)
    if (column.dtype() == DType::float32)
      for (float value : column.as<float>()) table_keeps(std::isfinite(value));
}

void table_keeps_strokes(const Array& strokes) {
  const auto points = strokes.as<float>();
  table_keeps(!points.empty() && points[data::kStrokeNumber] == 0);
  for (size_t at = data::kStrokeFields; at < points.size(); at += data::kStrokeFields) {
    const float* const point = &points[at];
    const float* const before = point - data::kStrokeFields;
    const float next = point[data::kStrokeNumber] - before[data::kStrokeNumber];
    table_keeps(next == 0 || next == 1);
    table_keeps(point[data::kStrokeTime] >= before[data::kStrokeTime]);
  }
  for (const float value : points) table_keeps(std::isfinite(value));
}

// Each drawing by itself: what is wrong with one keeps no other from being read.
void read_strokes(const char* name, std::string_view bytes) {
  constexpr int64_t kMostRows = 50;
  const auto files = std::make_shared<OneFile>(bytes);
  const bool labelled = data::strokes_are_labelled(name, files);
  const data::Dataset dataset =
      data::strokes(name, {.labelled = labelled, .details = bytes.size() % 2 == 0, .files = files});
  for (int64_t row = 0; row < std::min(kMostRows, dataset.num_samples()); ++row) {
    try {
      const auto one = dataset.skip(row).take(1).padded_batch(1);
      table_keeps_strokes(one.epoch({}).batch(0).columns[0]);
    } catch (const Error&) {  // the right answer to most
    }
  }
}

}  // namespace

void csv_file(std::string_view bytes) {
  set_log_level(LogLevel::error);  // what is filled and dropped is said aloud
  const data::CsvOptions ways[] = {
      {},
      {.delimiter = ',',
       .header = true,
       .missing_numbers = data::MissingNumbers::mean,
       .standardise = true},
      {.delimiter = ' ',
       .header = false,
       .comment = '#',
       .missing_numbers = data::MissingNumbers::drop,
       .one_hot = false},
      {.target = "y",
       .delimiter = ';',
       .missing_numbers = data::MissingNumbers::value,
       .standardise_target = true},
  };
  for (const data::CsvOptions& way : ways) {
    try {
      read_table(bytes, way);
    } catch (const Error&) {  // the right answer to most
    }
  }
}

void idx_file(std::string_view bytes) {
  const auto files = std::make_shared<OneFile>(bytes);
  const Array array = data::read_idx("fuzzer", files);
  table_keeps(!array.shape().empty());
  if (array.shape()[0] == 0) return;
  all_rows(data::idx("fuzzer", {.labelled = false, .files = files}));
  data::idx("fuzzer", {.labels = "labels", .files = files});
}

void jsonl_file(std::string_view bytes) {
  const data::Dataset dataset =
      data::jsonl("fuzzer", {.columns = {}, .files = std::make_shared<OneFile>(bytes)});
  table_keeps(dataset.num_samples() > 0);
  dataset.padded_batch(dataset.num_samples()).epoch({}).batch(0);
}

void stroke_lines(std::string_view bytes) { read_strokes("fuzzer.ndjson", bytes); }
void stroke_rows(std::string_view bytes) { read_strokes("fuzzer.csv", bytes); }
void stroke_records(std::string_view bytes) { read_strokes("fuzzer.bin", bytes); }

}  // namespace tutti::test
