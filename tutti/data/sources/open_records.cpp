#include "tutti/data/sources/open_records.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/sha256.h"
#include "tutti/base/suggest.h"
#include "tutti/data/detail/in_parallel.h"
#include "tutti/data/sources/detail/file_rows.h"
#include "tutti/data/sources/detail/photo_columns.h"
#include "tutti/data/sources/detail/record_sources.h"
#include "tutti/data/sources/detail/source_file.h"
#include "tutti/data/sources/detail/tar_members.h"
#include "tutti/data/sources/recognise.h"

namespace tutti::data {
namespace {

namespace fs = std::filesystem;
using SourceHandle = std::shared_ptr<const Source>;

// More is a number that counts something, no class.
constexpr int64_t kMostClasses = 1'000'000;

DataKind kind_of_records(const fs::path& path, const FilesHandle& files) {
  const Recognised found = recognise(path, files);
  if (!is_records(found.kind))
    throw UsageError(fmt::format("{}: {}; expected records: tars, TFRecord or MDS", path.string(),
                                 found.sentence));
  return found.kind;
}

// Where columns are looked at: the first file tells them.
fs::path first_file(const fs::path& path, const FilesHandle& files) {
  switch (kind_of_records(path, files)) {
    case DataKind::webdataset: return detail::record_files(*files, path, detail::kTarEndings)[0];
    case DataKind::tfrecord:
      return detail::record_files(*files, path, detail::kTfrecordEndings, true)[0];
    default: return path;
  }
}

// The first name of "jpg;png".
std::string first_name(const std::string& words) { return words.substr(0, words.find(';')); }

Feature feature_named(const std::string& name, const std::vector<Feature>& all,
                      const fs::path& path) {
  std::vector<std::string> known;
  for (const Feature& feature : all) {
    if (feature.name == name) return feature;
    known.push_back(feature.name);
  }
  throw UsageError(fmt::format("{}: {}", path.string(), unknown_message("feature", name, known)));
}

SourceHandle record_source(const fs::path& path, const std::vector<std::string>& columns,
                           const FilesHandle& files) {
  switch (kind_of_records(path, files)) {
    case DataKind::webdataset:
      return detail::webdataset_source(
          path, {.columns = columns.empty() ? webdataset_columns(path, files) : columns,
                 .any_sizes = true,
                 .index_folder = {},
                 .files = files});
    case DataKind::tfrecord: {
      const std::vector<Feature> all = tfrecord_features(path, files);
      std::vector<Feature> features = columns.empty() ? all : std::vector<Feature>{};
      for (const std::string& name : columns) features.push_back(feature_named(name, all, path));
      return detail::tfrecord_source(
          path, {.features = std::move(features), .index_folder = {}, .files = files});
    }
    default: return detail::mds_source(path, {.columns = columns, .files = files});
  }
}

bool is_whole_number(const Column& column) {
  return column.shape.empty() && !is_floating(column.dtype) && column.dtype != DType::boolean;
}

bool is_photo(const Array& value) {
  return value.dtype() == DType::uint8 && value.shape().size() == 1 &&
         !photo_format(text_of(value)).empty();
}

// So many that one which is damaged hides nothing. Where none can be read, the first one's error.
std::vector<Sample> first_samples(const Source& source) {
  constexpr int64_t kEnoughToTell = 16;
  std::vector<Sample> samples;
  std::exception_ptr first;
  for (int64_t row = 0; row < std::min(kEnoughToTell, source.num_rows()); ++row) {
    try {
      samples.push_back(source.read_row(row));
    } catch (const DataError&) {
      if (!first) first = std::current_exception();
    }
  }
  if (samples.empty() && first) std::rethrow_exception(first);
  return samples;
}

int64_t number_of(const Array& label) {
  switch (label.dtype()) {
    case DType::uint8: return label.as<uint8_t>()[0];
    case DType::int8: return label.as<int8_t>()[0];
    case DType::uint16: return label.as<uint16_t>()[0];
    case DType::int16: return label.as<int16_t>()[0];
    case DType::uint32: return label.as<uint32_t>()[0];
    case DType::int32: return label.as<int32_t>()[0];
    case DType::uint64: return static_cast<int64_t>(label.as<uint64_t>()[0]);
    default: return label.as<int64_t>()[0];
  }
}

size_t place_of_column(const Source& source, const std::string& words) {
  const auto found = std::ranges::find(source.columns(), first_name(words), &Column::name);
  return static_cast<size_t>(found - source.columns().begin());
}

[[noreturn]] void fail_label(const Source& source, int64_t row, const std::string& name,
                             int64_t label, int64_t classes) {
  throw DataError(fmt::format("{}: {} is {}, expected a class, 0 to {}", source.where(row), name,
                              label, classes - 1));
}

// One more than the largest label. A record that cannot be read says nothing here: it is found
// damaged by who reads it; where none can, the first one's error is thrown.
int64_t count_classes(const Source& source, const std::string& label) {
  constexpr int64_t kRowsAtOnce = 256;
  std::atomic<int64_t> most{-1};
  std::mutex mutex;
  std::exception_ptr first;
  detail::in_parallel((source.num_rows() + kRowsAtOnce - 1) / kRowsAtOnce, [&](int64_t piece) {
    const int64_t end = std::min((piece + 1) * kRowsAtOnce, source.num_rows());
    for (int64_t row = piece * kRowsAtOnce; row < end; ++row) {
      int64_t value = 0;
      try {
        value = number_of(source.read_row(row).columns[0]);
      } catch (const DataError&) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
        continue;
      }
      if (value < 0 || value >= kMostClasses) fail_label(source, row, label, value, kMostClasses);
      for (int64_t now = most; now < value && !most.compare_exchange_weak(now, value);) {
      }
    }
  });
  if (most < 0 && first) std::rethrow_exception(first);
  return most + 1;
}

// Two columns of records, as image_folder() names them.
class PhotoRecordsSource final : public SampleSource {
 public:
  // `places`: of a number in the records its label; empty: the number itself.
  PhotoRecordsSource(SourceHandle records, const std::string& image, const std::string& label,
                     std::vector<std::string> classes, std::vector<int64_t> places)
      : records_(std::move(records)),
        image_(place_of_column(*records_, image)),
        label_(place_of_column(*records_, label)),
        classes_(std::move(classes)),
        places_(std::move(places)) {}

  int64_t num_rows() const override { return records_->num_rows(); }
  const std::vector<std::string>& classes() const override { return classes_; }
  const std::vector<Column>& columns() const override { return detail::encoded_photo_columns(); }

  Sample read_row(int64_t row) const override {
    Sample sample = records_->read_row(row);
    const int64_t number = number_of(sample.columns[label_]);
    const int64_t numbers = places_.empty() ? std::ssize(classes_) : std::ssize(places_);
    if (number < 0 || number >= numbers)
      fail_label(*records_, row, records_->columns()[label_].name, number, numbers);
    const int64_t label = places_.empty() ? number : places_[static_cast<size_t>(number)];
    return {{std::move(sample.columns[image_]), scalar(label)}};
  }

  std::string where(int64_t row) const override { return records_->where(row); }
  std::string fingerprint() const override {
    return sha256_hex(
        fmt::format("photos\n{}{}", records_->fingerprint(), fmt::join(places_, " ")));
  }
  std::vector<int64_t> first_rows_of_files() const override {
    return records_->first_rows_of_files();
  }

 private:
  SourceHandle records_;
  size_t image_;
  size_t label_;
  std::vector<std::string> classes_;
  std::vector<int64_t> places_;
};

// Where `own`, the names of what the records number, stand among `classes`; empty: they are these.
// Classes that have no names but their numbers are taken by them.
std::vector<int64_t> places_among(const std::vector<std::string>& classes,
                                  const std::vector<std::string>& own, const fs::path& path) {
  if (own.empty() || own == classes || classes == detail::numbered_classes(std::ssize(classes)))
    return {};
  std::vector<int64_t> places;
  for (const std::string& name : own) {
    const auto found = std::ranges::find(classes, name);
    if (found == classes.end())
      throw DataError(
          fmt::format("{}: {}", path.string(), unknown_message("class", name, classes)));
    places.push_back(found - classes.begin());
  }
  return places;
}

// The label's column: the one that was named, or the only one.
std::string chosen_label(const fs::path& path, const PhotoColumns& columns,
                         const std::string& label) {
  const auto fail = [&](const std::string& what) {
    throw UsageError(
        fmt::format("{}: {}; its columns are: {}", path.string(), what, columns.to_string()));
  };
  if (columns.images.empty()) fail("no column holds photos (JPEG, PNG, WebP or BMP)");
  if (columns.images.size() > 1)
    fail("more than one column holds photos, expected one; a program may choose");
  if (!label.empty() && std::ranges::find(columns.labels, label) == columns.labels.end())
    fail(fmt::format("got \"{}\" as the label, expected a column of one whole number", label));
  if (label.empty() && columns.labels.size() != 1)
    fail(columns.labels.empty() ? "no column is a label, one whole number a sample"
                                : "more than one column may be the label: name it");
  return label.empty() ? columns.labels[0] : label;
}

}  // namespace

std::vector<std::string> record_columns(const fs::path& path, const FilesHandle& files) {
  if (kind_of_records(path, files) == DataKind::webdataset) return webdataset_columns(path, files);
  std::vector<std::string> names;
  const SourceHandle source = record_source(first_file(path, files), {}, files);
  for (const Column& column : source->columns()) names.push_back(column.name);
  return names;
}

Dataset open_records(const fs::path& path, const std::vector<std::string>& columns,
                     const FilesHandle& files) {
  return Dataset(record_source(path, columns, files));
}

std::string PhotoColumns::to_string() const {
  std::vector<std::string> words;
  for (const std::string& image : images) words.push_back(image + " (a photo)");
  for (const std::string& label : labels) words.push_back(label + " (a whole number)");
  words.insert(words.end(), others.begin(), others.end());
  return fmt::format("{}", fmt::join(words, ", "));
}

PhotoColumns photo_columns(const fs::path& path, const FilesHandle& files) {
  const fs::path first_path = first_file(path, files);
  const std::vector<std::string> names = record_columns(first_path, files);
  const SourceHandle source = record_source(first_path, {}, files);
  const std::vector<Sample> samples = first_samples(*source);
  PhotoColumns found;
  for (size_t c = 0; c < names.size(); ++c) {
    const bool photos = std::ranges::any_of(
        samples, [&](const Sample& sample) { return is_photo(sample.columns[c]); });
    (is_whole_number(source->columns()[c]) ? found.labels
     : photos                              ? found.images
                                           : found.others)
        .push_back(names[c]);
  }
  return found;
}

Dataset photo_records(const fs::path& path, const PhotoRecordsOptions& options) {
  const PhotoColumns columns = photo_columns(path, options.files);
  const std::string label = chosen_label(path, columns, options.label);
  const std::vector<std::string> own = label_names(path, label, options.files);
  std::vector<std::string> classes = options.classes.empty() ? own : options.classes;
  std::vector<int64_t> places = places_among(classes, own, path);
  if (classes.empty())
    classes = detail::numbered_classes(
        count_classes(*record_source(path, {label}, options.files), label));
  if (classes.size() < 2)
    throw DataError(
        fmt::format("{}: got one class ({} is 0 in all samples), expected two or more: with one "
                    "there is nothing to learn",
                    path.string(), label));
  return Dataset(std::make_shared<PhotoRecordsSource>(
      record_source(path, {columns.images[0], label}, options.files), columns.images[0], label,
      std::move(classes), std::move(places)));
}

std::string labels_file(const std::string& label) { return label + ".labels.txt"; }

std::vector<std::string> label_names(const fs::path& path, const std::string& label,
                                     const FilesHandle& files) {
  const fs::path folder = files->info(path).folder ? path
                          : path.has_parent_path() ? path.parent_path()
                                                   : fs::path(".");
  const std::vector<FileInfo> listed = files->list(folder);
  if (std::ranges::find(listed, labels_file(label), &FileInfo::name) == listed.end()) return {};
  const Array bytes = files->read(folder / labels_file(label));
  std::vector<std::string> names;
  for (std::string_view text = text_of(bytes); !text.empty();) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string name(text.substr(0, end));
    if (name.ends_with('\r')) name.pop_back();
    names.push_back(std::move(name));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return names;
}

}  // namespace tutti::data
