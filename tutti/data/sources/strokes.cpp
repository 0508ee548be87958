#include "tutti/data/sources/strokes.h"

#include <algorithm>
#include <set>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/base/stop.h"
#include "tutti/base/suggest.h"
#include "tutti/data/detail/in_parallel.h"
#include "tutti/data/sources/detail/drawing_files.h"
#include "tutti/data/sources/detail/file_rows.h"

namespace tutti::data {
namespace {

namespace fs = std::filesystem;

using detail::Drawing;
using detail::DrawingFile;
using detail::DrawingFormat;

std::vector<Column> columns_of(const StrokesOptions& options) {
  std::vector<Column> columns{{"strokes", DType::float32, {kAnySize, kStrokeFields}}};
  if (options.details)
    columns.insert(columns.end(), {{"key_id", DType::int64, {}},
                                   {"countrycode", DType::uint8, {2}},
                                   {"recognized", DType::boolean, {}},
                                   {"timestamp", DType::int64, {}}});
  if (options.labelled) columns.push_back({"y", DType::int64, {}});
  return columns;
}

class StrokeSource final : public SampleSource {
 public:
  /// labels[f][w]: that of word w of file f.
  StrokeSource(std::vector<DrawingFile> drawings, std::vector<std::vector<int64_t>> labels,
               StrokesOptions options)
      : drawings_(std::move(drawings)),
        labels_(std::move(labels)),
        options_(std::move(options)),
        columns_(columns_of(options_)) {
    for (const DrawingFile& file : drawings_) rows_.add(file.info, file.num_rows());
  }

  int64_t num_rows() const override { return rows_.num_rows(); }
  const std::vector<Column>& columns() const override { return columns_; }
  const std::vector<std::string>& classes() const override { return options_.classes; }
  std::vector<int64_t> first_rows_of_files() const override { return rows_.first_rows(); }
  std::string fingerprint() const override {
    return rows_.fingerprint(columns_,
                             fmt::format("strokes 1\n{}", fmt::join(options_.classes, "\n")));
  }
  std::string where(int64_t row) const override {
    const auto place = rows_.find(row);
    const DrawingFile& file = drawings_[place.file];
    return fmt::format("{}, {}", file.info.name, file.place_of(place.row));
  }

  /// That, with the folder.
  std::string place_of(int64_t row) const {
    const auto place = rows_.find(row);
    const DrawingFile& file = drawings_[place.file];
    return fmt::format("{}, {}", file.path.string(), file.place_of(place.row));
  }

  /// Throws DataError for a drawing that is damaged, or that has none.
  int64_t key_of(int64_t row) const {
    const auto [number, row_of_file] = rows_.find(row);
    const std::string place = place_of(row);
    const Drawing drawing = drawing_at(drawings_[number], row_of_file, place);
    if (!drawing.key_id) fail_missing("key_id", place);
    return *drawing.key_id;
  }

  Sample read_row(int64_t row) const override {
    const auto [number, row_of_file] = rows_.find(row);
    const DrawingFile& file = drawings_[number];
    const std::string place = place_of(row);
    const Drawing drawing = drawing_at(file, row_of_file, place);
    Array points =
        make_array(DType::float32, {std::ssize(drawing.points) / kStrokeFields, kStrokeFields});
    std::ranges::copy(drawing.points, points.as<float>().begin());
    Sample sample{{std::move(points)}};
    if (options_.details) add_details(drawing, place, sample);
    if (options_.labelled) {
      const int32_t word = file.word_at(row_of_file);
      if (word < 0) fail_missing("word", place);
      sample.columns.push_back(scalar(labels_[number][static_cast<size_t>(word)]));
    }
    return sample;
  }

 private:
  Drawing drawing_at(const DrawingFile& file, int64_t row, const std::string& place) const {
    const Array bytes = file.bytes_of_row(row, *options_.files);
    const std::string_view all = text_of(bytes);
    if (file.format == DrawingFormat::binary) return detail::parse_drawing_record(all, place);
    const std::string_view line = all.substr(0, all.find('\n'));  // blank ones may follow
    return file.format == DrawingFormat::csv ? detail::parse_drawing_row(line, file.fields, place)
                                             : detail::parse_drawing_line(line, place);
  }

  [[noreturn]] static void fail_missing(const char* key, const std::string& place) {
    throw DataError(fmt::format("{}: got a drawing without \"{}\", expected one", place, key));
  }

  static void add_details(const Drawing& drawing, const std::string& place, Sample& sample) {
    if (!drawing.key_id) fail_missing("key_id", place);
    if (drawing.countrycode.empty()) fail_missing("countrycode", place);
    for (Array value : {scalar(*drawing.key_id), bytes_of(drawing.countrycode),
                        scalar(drawing.recognized), scalar(drawing.timestamp)})
      sample.columns.push_back(std::move(value));
  }

  std::vector<DrawingFile> drawings_;
  std::vector<std::vector<int64_t>> labels_;
  StrokesOptions options_;
  std::vector<Column> columns_;
  detail::FileRows rows_;
};

void require_labelled(const std::vector<DrawingFile>& drawings) {
  for (const DrawingFile& file : drawings)
    if (!file.labelled())
      throw DataError(fmt::format(
          "{}: got no column \"word\", expected the class of each drawing\n  is it what is to be "
          "predicted? tutti predict takes it as it is, strokes() with labelled = false",
          file.path.string()));
}

std::vector<std::string> words_there(const std::vector<DrawingFile>& drawings) {
  std::set<std::string> words;
  for (const DrawingFile& file : drawings) words.insert(file.words.begin(), file.words.end());
  return {words.begin(), words.end()};
}

// Where the first drawing of word `word` is.
std::string place_of_word(const DrawingFile& file, size_t word) {
  for (int64_t row = 0; row < file.num_rows(); ++row)
    if (file.word_at(row) == static_cast<int32_t>(word))
      return fmt::format("{}, {}", file.path.string(), file.place_of(row));
  return file.path.string();
}

std::vector<std::vector<int64_t>> labels_of(const std::vector<DrawingFile>& drawings,
                                            const std::vector<std::string>& classes) {
  std::vector<std::vector<int64_t>> labels(drawings.size());
  for (size_t i = 0; i < drawings.size(); ++i)
    for (size_t word = 0; word < drawings[i].words.size(); ++word) {
      const auto known = std::ranges::find(classes, drawings[i].words[word]);
      if (known == classes.end())
        throw DataError(fmt::format("{}: {}", place_of_word(drawings[i], word),
                                    unknown_message("class", drawings[i].words[word], classes)));
      labels[i].push_back(known - classes.begin());
    }
  return labels;
}

void require_stroke_options(const StrokesOptions& options) {
  if (options.keep_bytes < 0)
    throw UsageError(
        fmt::format("strokes: keep_bytes: got {}, expected 0 or more bytes", options.keep_bytes));
  std::set<std::string> seen;
  for (const std::string& name : options.classes)
    if (name.empty() || !seen.insert(name).second)
      throw UsageError(fmt::format("strokes: classes: got \"{}\"{}, expected names that differ",
                                   name, name.empty() ? "" : " twice"));
}

std::shared_ptr<StrokeSource> stroke_source(const fs::path& path, StrokesOptions options) {
  require_stroke_options(options);
  std::vector<DrawingFile> drawings =
      detail::drawing_files(path, *options.files, options.keep_bytes);
  std::vector<std::vector<int64_t>> labels;
  if (options.labelled) {
    require_labelled(drawings);
    const std::vector<std::string> there = words_there(drawings);
    if (options.classes.empty()) options.classes = there;
    labels = labels_of(drawings, options.classes);
    if (there.size() < options.classes.size())
      log(LogLevel::warning, "{}: there are drawings of {} of {} classes", path.string(),
          there.size(), options.classes.size());
  } else {
    options.classes.clear();
  }
  const bool without_words = options.labelled && options.classes.empty();
  auto source =
      std::make_shared<StrokeSource>(std::move(drawings), std::move(labels), std::move(options));
  if (without_words) source->read_row(0);  // throws: it says best what is wrong
  return source;
}

}  // namespace

Dataset strokes(const fs::path& path, StrokesOptions options) {
  return Dataset(stroke_source(path, std::move(options)));
}

bool strokes_are_labelled(const fs::path& path, const FilesHandle& files) {
  return detail::drawings_are_labelled(path, *files);
}

KeyedStrokes keyed_strokes(const fs::path& path, StrokesOptions options) {
  constexpr int64_t kRowsAtOnce = 256;
  options.labelled = false;
  const auto source = stroke_source(path, std::move(options));
  std::vector<int64_t> keys(static_cast<size_t>(source->num_rows()));
  detail::in_parallel((std::ssize(keys) + kRowsAtOnce - 1) / kRowsAtOnce, [&](int64_t piece) {
    throw_if_stop_requested("reading drawings");
    const int64_t end = std::min((piece + 1) * kRowsAtOnce, std::ssize(keys));
    for (int64_t row = piece * kRowsAtOnce; row < end; ++row)
      keys[static_cast<size_t>(row)] = source->key_of(row);
  });
  return {Dataset(source), std::move(keys),
          [source](int64_t row) { return source->place_of(row); }};
}

}  // namespace tutti::data
