#include "tutti/data/sources/tfrecord.h"

#include <optional>
#include <set>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/data/detail/gzip.h"
#include "tutti/data/detail/tfrecord_frame.h"
#include "tutti/data/sources/detail/example.h"
#include "tutti/data/sources/detail/file_rows.h"
#include "tutti/data/sources/detail/record_index.h"
#include "tutti/data/sources/detail/record_sources.h"
#include "tutti/data/sources/detail/shard_writer.h"

namespace tutti::data {
namespace {

using detail::FileWindow;
using detail::kFrameHeadBytes;
using detail::kFrameTailBytes;

std::string at_record(const std::filesystem::path& path, int64_t record, int64_t byte) {
  return fmt::format("{}, record {} (byte {})", path.string(), record, byte);
}

// Where the record that begins at `byte` has its data, and how much. Throws DataError with the
// reason alone.
int64_t record_bytes_at(FileWindow& file, int64_t byte) {
  const int64_t left = file.file_bytes() - byte;
  if (left < kFrameHeadBytes)
    throw DataError(fmt::format("the file is cut off: {} bytes are left, expected a head of {}",
                                left, kFrameHeadBytes));
  const auto length = detail::frame_length(file.at(byte, kFrameHeadBytes));
  if (!length)
    throw DataError(byte == 0 ? "this is no TFRecord file, or damaged: the checksum of the first "
                                "length is wrong"
                              : "the checksum of its length is wrong");
  const int64_t rest = left - kFrameHeadBytes;
  if (rest < kFrameTailBytes || *length > static_cast<uint64_t>(rest - kFrameTailBytes))
    throw DataError(
        fmt::format("the file is cut off: {} bytes are left, expected {} of data and {} "
                    "of checksum",
                    rest, *length, kFrameTailBytes));
  return static_cast<int64_t>(*length);
}

// Calls visit(offset of its data, its bytes) for each record.
template <class Visit>
void for_each_record(FileWindow& file, Visit&& visit) {
  int64_t byte = 0;
  for (int64_t record = 0; byte < file.file_bytes(); ++record) {
    int64_t bytes = 0;
    try {
      bytes = record_bytes_at(file, byte);
    } catch (const DataError& error) {
      throw DataError(fmt::format("{}: {}\n  fetch the file again",
                                  at_record(file.path(), record, byte), error.what()));
    }
    visit(byte + kFrameHeadBytes, bytes);
    byte += kFrameHeadBytes + bytes + kFrameTailBytes;
  }
}

detail::RecordIndex index_records(FileWindow& file) {
  detail::RecordIndex index;
  for_each_record(file, [&](int64_t offset, int64_t bytes) { index.add(offset, bytes); });
  return index;
}

detail::IndexPlan index_plan(const FilesHandle& files, const std::filesystem::path& folder) {
  return {.format = "tfrecord 1", .scan = index_records, .files = files, .folder = folder};
}

// "gzip", "zlib" or "".
std::string_view packing_of(FileWindow& file) {
  constexpr int64_t kFrontBytes = 4096;  // enough for zlib to begin
  return detail::packing_of_records(file.at(0, std::min(kFrontBytes, file.file_bytes())));
}

bool is_packed(FileWindow& file) { return !packing_of(file).empty(); }

// Counted before memory is taken: a gzip file does not say how much it becomes.
int64_t unpacked_bytes(std::span<const std::byte> packed, const std::string& where) {
  detail::GzipReader reader(packed, where);
  std::vector<std::byte> piece(64 << 10);
  int64_t bytes = 0;
  for (size_t got = piece.size(); got == piece.size();) {
    got = reader.read(piece);
    bytes += static_cast<int64_t>(got);
    detail::require_unpackable(bytes, std::ssize(packed), where);
  }
  return bytes;
}

Array unpacked(const Files& files, const std::filesystem::path& path) {
  const Array packed = files.read(path);
  const auto from = std::as_bytes(packed.as<uint8_t>());
  Array bytes = make_array(DType::uint8, {unpacked_bytes(from, path.string())});
  detail::GzipReader(from, path.string()).read(std::as_writable_bytes(bytes.as<uint8_t>()));
  log_once("packed " + path.string(), LogLevel::warning,
           "{}: packed by {}, and so read as a whole: its {} bytes stay in memory ({} packed)\n"
           "  unpack it to read records from the disk",
           path.string(), detail::packing_of(text_of(packed)), bytes.num_bytes(),
           packed.num_bytes());
  return bytes;
}

// One file that lies in memory.
class OneInMemory final : public Files {
 public:
  OneInMemory(Array bytes, FileInfo info) : bytes_(std::move(bytes)), info_(std::move(info)) {
    info_.bytes = bytes_.num_bytes();
  }
  std::vector<FileInfo> list(const std::filesystem::path&) const override { return {info_}; }
  FileInfo info(const std::filesystem::path&) const override { return info_; }
  Array read(const std::filesystem::path&, int64_t offset, int64_t bytes) const override {
    return bytes_of(text_of(bytes_.rows(offset, bytes < 0 ? bytes_.num_bytes() : offset + bytes)));
  }

 private:
  Array bytes_;
  FileInfo info_;
};

class TfrecordSource final : public SampleSource {
 public:
  TfrecordSource(const Paths& paths, TfrecordOptions options)
      : files_(options.files), examples_(std::move(options.features)) {
    const auto found = detail::record_files(*files_, paths, detail::kTfrecordEndings, true);
    indexed_.resize(found.size());
    index_all(found, options);
    for (const detail::IndexedFile& file : indexed_) rows_.add(file.info, file.index.size());
    if (num_rows() == 0)
      throw DataError(
          fmt::format("{}: there is no record in {} files", found[0].string(), found.size()));
  }

  int64_t num_rows() const override { return rows_.num_rows(); }
  const std::vector<Column>& columns() const override {
    static const std::vector<Column> kRaw{{"record", DType::uint8, {kAnySize}}};
    return examples_.columns().empty() ? kRaw : examples_.columns();
  }

  Sample read_row(int64_t row) const override {
    const Array frame = read_frame(row);
    const auto bytes = frame.num_bytes() - kFrameHeadBytes - kFrameTailBytes;
    const Array record = frame.rows(kFrameHeadBytes, kFrameHeadBytes + bytes);
    if (examples_.columns().empty()) return {{record}};
    try {
      return examples_.read(text_of(record));
    } catch (const DataError& error) {
      throw DataError(fmt::format("{}: {}", where(row), error.what()));
    }
  }

  std::string where(int64_t row) const override {
    const auto [file, record] = rows_.find(row);
    const detail::IndexedFile& in = indexed_[file];
    return at_record(in.path, record,
                     in.index.offsets[static_cast<size_t>(record)] - kFrameHeadBytes);
  }
  std::string fingerprint() const override { return rows_.fingerprint(columns()); }
  std::vector<int64_t> first_rows_of_files() const override { return rows_.first_rows(); }

 private:
  void index_all(const std::vector<std::filesystem::path>& found, const TfrecordOptions& options) {
    std::vector<std::filesystem::path> plain;
    std::vector<size_t> plain_places;
    in_memory_.resize(found.size());
    for (size_t i = 0; i < found.size(); ++i) {
      FileWindow window(*files_, found[i]);
      if (!is_packed(window)) {
        plain.push_back(found[i]);
        plain_places.push_back(i);
        continue;
      }
      const FileInfo info = files_->info(found[i]);
      in_memory_[i] = std::make_shared<OneInMemory>(unpacked(*files_, found[i]), info);
      FileWindow whole(*in_memory_[i], found[i]);
      indexed_[i] = {found[i], info, index_records(whole)};
    }
    auto indexed = detail::indexed_files(plain, index_plan(files_, options.index_folder));
    for (size_t i = 0; i < plain.size(); ++i) indexed_[plain_places[i]] = std::move(indexed[i]);
  }

  // Head, data and checksum of a record, which are right.
  Array read_frame(int64_t row) const {
    const auto [file, record] = rows_.find(row);
    const detail::IndexedFile& in = indexed_[file];
    const int64_t data = in.index.offsets[static_cast<size_t>(record)];
    const int64_t bytes = in.index.bytes[static_cast<size_t>(record)];
    const Files& from = in_memory_[file] ? *in_memory_[file] : *files_;
    Array frame =
        from.read(in.path, data - kFrameHeadBytes, kFrameHeadBytes + bytes + kFrameTailBytes);
    const std::string_view text = text_of(frame);
    if (detail::frame_length(text.substr(0, kFrameHeadBytes)) != static_cast<uint64_t>(bytes))
      throw DataError(
          fmt::format("{}: its length is not what the index says: the file was changed "
                      "while it was in use, or is damaged",
                      where(row)));
    if (!detail::frame_is_sound(text.substr(kFrameHeadBytes)))
      throw DataError(fmt::format(
          "{}: the checksum of its {} bytes is wrong\n  fetch the file again", where(row), bytes));
    return frame;
  }

  FilesHandle files_;
  detail::ExampleReader examples_;
  std::vector<detail::IndexedFile> indexed_;
  std::vector<FilesHandle> in_memory_;  // of packed files; null for the others
  detail::FileRows rows_;
};

// Checks one file; what was found so far stays when its lengths cannot be followed.
void verify_file(FileWindow& file, const detail::ExampleReader& examples,
                 std::vector<Finding>& found, const std::function<void(int64_t)>& progress) {
  int64_t record = 0;
  int64_t byte = 0;
  const auto add = [&](const Error& error) {
    found.push_back({.file = file.path(), .byte = byte, .record = record, .what = error.what()});
  };
  for (; byte < file.file_bytes(); ++record) {
    int64_t bytes = 0;
    try {
      bytes = record_bytes_at(file, byte);
    } catch (const DataError& error) {
      return add(error);
    }
    const std::string_view data = file.at(byte + kFrameHeadBytes, bytes + kFrameTailBytes);
    try {
      if (!detail::frame_is_sound(data))
        throw DataError(fmt::format("the checksum of its {} bytes is wrong", bytes));
      if (!examples.columns().empty())
        static_cast<void>(examples.read(data.substr(0, static_cast<size_t>(bytes))));
    } catch (const DataError& error) {
      add(error);
    }
    byte += kFrameHeadBytes + bytes + kFrameTailBytes;
    progress(byte);
  }
}

}  // namespace

namespace detail {

std::shared_ptr<const Source> tfrecord_source(const Paths& paths, TfrecordOptions options) {
  return std::make_shared<TfrecordSource>(paths, std::move(options));
}

}  // namespace detail

Dataset tfrecord(const Paths& paths, TfrecordOptions options) {
  return Dataset(detail::tfrecord_source(paths, std::move(options)));
}

namespace {

// What has other numbers of values in another record has any number.
void widen(std::vector<Feature>& features, const std::vector<Feature>& others) {
  for (Feature& feature : features) {
    const auto other = std::ranges::find(others, feature.name, &Feature::name);
    if (other != others.end() && other->dtype == feature.dtype && other->shape != feature.shape)
      feature.shape = {kAnySize};
  }
}

// Feature lists, of which no column is made.
void say_lists(const std::filesystem::path& path, std::string_view record) {
  std::set<std::string> lists;
  for (const detail::ExampleValue& value : detail::values_in(record))
    if (value.in_lists) lists.insert(value.name);
  if (!lists.empty())
    log_once("lists " + path.string(), LogLevel::warning,
             "{}: the lists of its SequenceExamples are no columns, and not read: {}",
             path.string(), fmt::join(lists, ", "));
}

}  // namespace

std::vector<Feature> tfrecord_features(const Paths& paths, const FilesHandle& files) {
  constexpr int kLookRecords = 100;
  const auto path = detail::record_files(*files, paths, detail::kTfrecordEndings, true)[0];
  FileWindow window(*files, path);
  FilesHandle memory;
  std::optional<FileWindow> opened;
  if (is_packed(window)) memory = std::make_shared<OneInMemory>(unpacked(*files, path), FileInfo{});
  FileWindow& file = memory ? opened.emplace(*memory, path) : window;
  std::vector<Feature> features;
  int64_t byte = 0;
  for (int record = 0; record < kLookRecords && byte < file.file_bytes(); ++record) {
    try {
      const int64_t bytes = record_bytes_at(file, byte);
      const std::string_view data = file.at(byte + kFrameHeadBytes, bytes);
      const auto own = detail::features_in(data);
      if (record == 0) {
        features = own;
        say_lists(path, data);
      }
      widen(features, own);
      byte += kFrameHeadBytes + bytes + kFrameTailBytes;
    } catch (const DataError& error) {
      if (record > 0) break;  // who reads it is told
      throw DataError(fmt::format("{}: {}", at_record(path, 0, 0), error.what()));
    }
  }
  return features;
}

std::vector<IndexReport> index_tfrecord(const Paths& paths, const IndexOptions& options) {
  std::vector<std::filesystem::path> plain;
  std::vector<IndexReport> packed;
  for (const auto& path :
       detail::record_files(*options.files, paths, detail::kTfrecordEndings, true)) {
    FileWindow window(*options.files, path);
    if (is_packed(window))
      packed.push_back(
          {.file = path,
           .index = {},
           .before = IndexState::not_needed,
           .why = fmt::format("packed by {}, and so unpacked into memory by who reads it",
                              packing_of(window))});
    else
      plain.push_back(path);
  }
  auto reports =
      detail::make_indexes(plain, index_plan(options.files, options.index_folder), options);
  reports.insert(reports.end(), packed.begin(), packed.end());
  return reports;
}

std::vector<Feature> features_of(const std::vector<Column>& columns) {
  std::vector<Feature> features;
  for (const Column& column : columns) {
    if (column.dtype == DType::float64 || column.dtype == DType::uint64 ||
        (is_floating(column.dtype) && size_of(column.dtype) == 2))
      throw UsageError(
          fmt::format("column \"{}\": a tf.train.Example holds no {}, but float32 and "
                      "int64\n  map() makes them of it",
                      column.name, name_of(column.dtype)));
    // One number of 8 bits is a number; a row of them is a string.
    const bool number = column.dtype == DType::uint8 && column.shape.empty();
    const bool kept = !number && (column.dtype == DType::uint8 || column.dtype == DType::float32);
    features.push_back(
        {.name = column.name, .dtype = kept ? column.dtype : DType::int64, .shape = column.shape});
  }
  return features;
}

Written write_tfrecord(const std::filesystem::path& folder, const std::vector<Column>& columns,
                       const NextSample& next, const WriteOptions& options) {
  features_of(columns);
  detail::ShardWriter writer(folder, "shard-{:05d}.tfrecord", options);
  int64_t number = 0;
  for (auto sample = next(); sample; sample = next()) {
    detail::require_sample(*sample, columns, number++);
    const std::string record = detail::record_of(detail::encode_example(columns, *sample));
    if (writer.is_full(std::ssize(record))) writer.finish_shard();
    writer.shard() += record;
    writer.sample_done();
  }
  if (writer.samples_in_shard() > 0) writer.finish_shard();
  return writer.done();
}

std::vector<Finding> verify_tfrecord(const Paths& paths, const std::vector<Feature>& features,
                                     const VerifyOptions& options) {
  const auto files = detail::record_files(*options.files, paths, detail::kTfrecordEndings, true);
  const detail::ExampleReader examples(features);
  int64_t all_bytes = 0, done_bytes = 0;
  for (const auto& path : files) all_bytes += options.files->info(path).bytes;
  std::vector<Finding> found;
  for (const auto& path : files) {
    int64_t told = done_bytes;
    try {
      FileWindow window(*options.files, path);
      std::optional<FileWindow> opened;
      FilesHandle memory;
      const bool packed = is_packed(window);
      if (packed)
        memory = std::make_shared<OneInMemory>(unpacked(*options.files, path), FileInfo{});
      verify_file(packed ? opened.emplace(*memory, path) : window, examples, found,
                  [&](int64_t byte) {
                    constexpr int64_t kTellEvery = 8 << 20;
                    if (packed || !options.progress || done_bytes + byte < told + kTellEvery)
                      return;
                    options.progress(told = done_bytes + byte, all_bytes);
                  });
      done_bytes += window.file_bytes();
    } catch (const Error& error) {
      found.push_back({.file = path, .what = error.what()});
    }
    if (options.progress) options.progress(done_bytes, all_bytes);
  }
  return found;
}

}  // namespace tutti::data
