#include "tutti/data/sources/contents.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/data/detail/in_parallel.h"
#include "tutti/data/draw.h"
#include "tutti/data/sources/detail/census.h"
#include "tutti/data/sources/detail/example.h"
#include "tutti/data/sources/detail/file_rows.h"
#include "tutti/data/sources/detail/record_sources.h"
#include "tutti/data/sources/detail/tar_members.h"
#include "tutti/data/sources/recognise.h"
#include "tutti/data/transforms/transforms.h"

namespace tutti::data {
namespace {

namespace fs = std::filesystem;
using detail::Census;
using detail::Value;

// What the bytes of a value should be.
enum class Meant { anything, photo, json };

std::string damage_of_photo(const Array& bytes) {
  static const TransformHandle kDecode = transforms::decode();
  try {
    Draw draw(0);  // it draws nothing
    kDecode->apply({{bytes}}, draw);
    return "";
  } catch (const DataError& error) {
    return error.what();
  }
}

// `what`: the column as errors of the format call it.
Value value_of_bytes(std::string column, const std::string& what, const Array& bytes, Meant meant) {
  Value value{.column = std::move(column), .kind = ""};
  if (meant == Meant::photo || !photo_format(text_of(bytes)).empty())
    value.damage = damage_of_photo(bytes);
  else if (meant == Meant::anything)
    value.bytes_alone = true;
  else if (!is_json(text_of(bytes)))
    value.damage = fmt::format("got {} bytes, expected JSON", bytes.num_bytes());
  if (!value.damage.empty()) value.damage = fmt::format("{}: {}", what, value.damage);
  return value;
}

// Dtype and number of sizes: "float32 [?, ?]".
std::string kind_of(const Array& array) {
  return fmt::format("{} [{}]", name_of(array.dtype()),
                     fmt::join(std::vector<std::string>(array.shape().size(), "?"), ", "));
}

// The samples of a format, one after another.
class Rows {
 public:
  virtual ~Rows() = default;
  virtual int64_t num_rows() const = 0;
  virtual std::string where(int64_t row) const = 0;
  /// By any thread. Throws DataError where nothing of the row can be read.
  virtual std::vector<Value> read(int64_t row) = 0;
  /// What is odd about all of them: `damaged` and notes.
  virtual void tell(ContentsReport&) const {}
};

class TarRows final : public Rows {
 public:
  TarRows(const fs::path& path, const FilesHandle& files) : files_(files) {
    tars_ = detail::indexed_files(detail::record_files(*files, path, detail::kTarEndings),
                                  detail::tar_index_plan(files, {}));
    for (size_t tar = 0; tar < tars_.size(); ++tar)
      for (const detail::MemberGroup& group : detail::groups_of(tars_[tar].index))
        groups_.emplace_back(tar, group);
    find_numbered_photos();
  }

  int64_t num_rows() const override { return std::ssize(groups_); }

  std::string where(int64_t row) const override {
    const auto& [tar, group] = groups_[static_cast<size_t>(row)];
    return detail::place_of(tars_[tar].path, tars_[tar].index, group);
  }

  std::vector<Value> read(int64_t row) override {
    const auto& [tar, group] = groups_[static_cast<size_t>(row)];
    std::vector<Value> values;
    for (int64_t member = group.begin; member < group.end; ++member) {
      const std::string ending = detail::member_name(tars_[tar].index.name(member)).ending;
      if (!ending.empty()) values.push_back(value_of(tars_[tar], member, ending));
    }
    return values;
  }

  void tell(ContentsReport& report) const override {
    if (numbered_photos_ > 0)
      report.damaged.push_back(fmt::format(
          "{} photos are parts of {} samples, told apart by numbers alone: {}\n  what is before "
          "the first dot of a name is its sample: where each is one of its own, name them without "
          "dots; else with letters (frame0.jpg)",
          numbered_photos_, numbered_samples_, numbered_example_));
  }

 private:
  Value value_of(const detail::IndexedFile& tar, int64_t member, const std::string& ending) const {
    const bool photo = detail::is_photo_ending(ending);
    // A sample has one photo, of whichever kind.
    const std::string column = photo ? ending.substr(0, ending.rfind('.') + 1) + "photo" : ending;
    try {
      const Array bytes = files_->read(tar.path, tar.index.offsets[static_cast<size_t>(member)],
                                       tar.index.bytes[static_cast<size_t>(member)]);
      const detail::MemberKind kind = detail::kind_of_ending(ending);
      if (kind != detail::MemberKind::bytes)
        return {.column = column, .kind = kind_of(detail::decode_member(kind, bytes, ending))};
      const bool json = ending == "json" || ending.ends_with(".json");
      return value_of_bytes(column, fmt::format("member \"{}\"", ending), bytes,
                            photo  ? Meant::photo
                            : json ? Meant::json
                                   : Meant::anything);
    } catch (const DataError& error) {
      return {.column = column, .kind = "", .damage = error.what()};
    }
  }

  // "0.jpg" and "1.jpg" of one sample: more likely photos with a dot in their names.
  void find_numbered_photos() {
    for (const auto& [tar, group] : groups_) {
      std::vector<std::string> names;
      for (int64_t member = group.begin; member < group.end; ++member) {
        const std::string_view name = tars_[tar].index.name(member);
        const std::string ending = detail::member_name(name).ending;
        const size_t dot = ending.rfind('.');
        if (dot != std::string::npos && detail::is_photo_ending(ending) &&
            ending.find_first_not_of("0123456789.-_") == dot + 1)
          names.emplace_back(name);
      }
      if (names.size() < 2) continue;
      numbered_photos_ += std::ssize(names);
      if (numbered_samples_++ == 0) numbered_example_ = names[0] + ", " + names[1];
    }
  }

  FilesHandle files_;
  std::vector<detail::IndexedFile> tars_;
  std::vector<std::pair<size_t, detail::MemberGroup>> groups_;
  int64_t numbered_photos_ = 0, numbered_samples_ = 0;
  std::string numbered_example_;
};

class TfrecordRows final : public Rows {
 public:
  TfrecordRows(const fs::path& path, const FilesHandle& files)
      : records_(detail::tfrecord_source(path, {.files = files})) {
    try {
      examples_ = !detail::values_in(text_of(records_->read_row(0).columns[0])).empty();
    } catch (const DataError& error) {
      why_no_examples_ = error.what();
    }
  }

  int64_t num_rows() const override { return records_->num_rows(); }
  std::string where(int64_t row) const override { return records_->where(row); }

  std::vector<Value> read(int64_t row) override {
    const Sample sample = records_->read_row(row);
    const std::string_view record = text_of(sample.columns[0]);
    if (!examples_) return {};  // any bytes may be in a record
    std::vector<Value> values;
    for (const detail::ExampleValue& found : detail::values_in(record)) {
      Value value{.column = found.name, .kind = found.in_lists ? "" : found.kind};
      for (const std::string_view string : found.strings) {
        const Value own = value_of_bytes(found.name, fmt::format("feature \"{}\"", found.name),
                                         bytes_of(string), Meant::anything);
        if (!own.damage.empty()) value.damage = own.damage;
        value.bytes_alone = value.bytes_alone || own.bytes_alone;
      }
      values.push_back(std::move(value));
      if (found.in_lists) remember_list(found.name);
    }
    return values;
  }

  void tell(ContentsReport& report) const override {
    if (!examples_)
      report.notes.push_back(fmt::format(
          "no columns, checksums alone: {}",
          why_no_examples_.empty() ? "the first record has no feature" : why_no_examples_));
    if (!lists_.empty())
      report.notes.push_back(fmt::format(
          "lists of a SequenceExample, of which no column is made: {}", fmt::join(lists_, ", ")));
  }

 private:
  void remember_list(const std::string& name) {
    const std::lock_guard lock(mutex_);
    lists_.insert(name);
  }

  std::shared_ptr<const Source> records_;
  bool examples_ = false;
  std::string why_no_examples_;
  std::mutex mutex_;
  std::set<std::string> lists_;
};

class MdsRows final : public Rows {
 public:
  MdsRows(const fs::path& folder, const FilesHandle& files)
      : records_(detail::mds_source(folder, {.files = files})) {
    for (const std::string& encoding : detail::mds_encodings(folder, *files))
      meant_.push_back(encoding == "jpeg" || encoding == "png" ? Meant::photo
                       : encoding == "json"                    ? Meant::json
                                                               : Meant::anything);
  }

  int64_t num_rows() const override { return records_->num_rows(); }
  std::string where(int64_t row) const override { return records_->where(row); }

  std::vector<Value> read(int64_t row) override {
    const Sample sample = records_->read_row(row);
    std::vector<Value> values;
    for (size_t c = 0; c < sample.columns.size(); ++c) {
      const Column& column = records_->columns()[c];
      const bool bytes = column.dtype == DType::uint8 && column.shape == std::vector{kAnySize};
      values.push_back(bytes
                           ? value_of_bytes(column.name, fmt::format("column \"{}\"", column.name),
                                            sample.columns[c], meant_[c])
                           : Value{.column = column.name, .kind = kind_of(sample.columns[c])});
    }
    return values;
  }

 private:
  std::shared_ptr<const Source> records_;
  std::vector<Meant> meant_;  // by column
};

std::unique_ptr<Rows> rows_at(const fs::path& path, const FilesHandle& files) {
  const Recognised found = recognise(path, files);
  switch (found.kind) {
    case DataKind::webdataset: return std::make_unique<TarRows>(path, files);
    case DataKind::tfrecord: return std::make_unique<TfrecordRows>(path, files);
    case DataKind::mds: return std::make_unique<MdsRows>(path, files);
    default:
      throw UsageError(fmt::format("{}: {}; expected records: tars, TFRecord or MDS", path.string(),
                                   found.sentence));
  }
}

// What is wrong with rows, in their order.
class Damages {
 public:
  void add(int64_t row, std::string what) {
    const std::lock_guard lock(mutex_);
    by_row_[row].push_back(std::move(what));
  }
  int64_t rows() const {
    const std::lock_guard lock(mutex_);
    return std::ssize(by_row_);
  }
  std::vector<std::string> lines(const Rows& rows) const {
    std::vector<std::string> lines;
    for (const auto& [row, all] : by_row_) {
      const std::string place = rows.where(row) + ": ";
      for (const std::string& what : all)
        lines.push_back(what.starts_with(place) ? what : place + what);
    }
    return lines;
  }

 private:
  mutable std::mutex mutex_;
  std::map<int64_t, std::vector<std::string>> by_row_;
};

void read_row(Rows& rows, int64_t row, Census& census, Damages& damages) {
  std::vector<Value> values;
  try {
    values = rows.read(row);
  } catch (const DataError& error) {
    return damages.add(row, error.what());
  }
  for (const Value& value : values)
    if (!value.damage.empty()) damages.add(row, value.damage);
  census.add(row, values);
}

}  // namespace

ContentsReport read_contents(const fs::path& path, const ContentsOptions& options) {
  // Samples between two looks at the clock, at progress and at signals, and those of one thread.
  constexpr int64_t kSamplesAtOnce = 1024, kSamplesOfAPiece = 64;
  const std::unique_ptr<Rows> rows = rows_at(path, options.files);
  const int64_t all = rows->num_rows();
  Census census(all);
  Damages damages;
  for (int64_t begin = 0; begin < all; begin += kSamplesAtOnce) {
    const int64_t end = std::min(begin + kSamplesAtOnce, all);
    detail::in_parallel((end - begin + kSamplesOfAPiece - 1) / kSamplesOfAPiece, [&](int64_t i) {
      const int64_t first = begin + i * kSamplesOfAPiece;
      for (int64_t row = first; row < std::min(first + kSamplesOfAPiece, end); ++row)
        read_row(*rows, row, census, damages);
    });
    if (options.progress) options.progress(end, all, damages.rows());
  }
  census.for_each_odd([&](int64_t row, std::string what) { damages.add(row, std::move(what)); });
  ContentsReport report{.samples = all, .damaged = damages.lines(*rows), .notes = {}};
  if (const std::string bytes = census.bytes_alone(); !bytes.empty())
    report.notes.push_back("read as bytes, whatever they are: " + bytes);
  if (const std::string rare = census.rare(); !rare.empty())
    report.notes.push_back("in half of the samples or fewer: " + rare);
  rows->tell(report);
  return report;
}

}  // namespace tutti::data
