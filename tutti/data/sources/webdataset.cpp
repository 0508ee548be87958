#include "tutti/data/sources/webdataset.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <set>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/data/detail/content.h"
#include "tutti/data/npy.h"
#include "tutti/data/sources/detail/file_rows.h"
#include "tutti/data/sources/detail/record_index.h"
#include "tutti/data/sources/detail/record_sources.h"
#include "tutti/data/sources/detail/shard_writer.h"
#include "tutti/data/sources/detail/tar.h"
#include "tutti/data/sources/detail/tar_members.h"

namespace tutti::data {
namespace {

using detail::FileWindow;
using detail::groups_of;
using detail::kind_of_ending;
using detail::member_name;
using detail::MemberKind;
using detail::RecordIndex;
using Group = detail::MemberGroup;

// A column as asked for: "jpg;png;jpeg".
struct Wanted {
  std::string words;
  std::vector<std::string> endings;
  MemberKind kind = MemberKind::bytes;
};

std::vector<Wanted> wanted_of(const std::vector<std::string>& columns) {
  std::vector<Wanted> all;
  std::set<std::string> seen;
  for (const std::string& words : columns) {
    Wanted wanted{.words = words};
    for (size_t begin = 0; begin <= words.size();) {
      const size_t end = std::min(words.find(';', begin), words.size());
      wanted.endings.push_back(member_name("k." + words.substr(begin, end - begin)).ending);
      begin = end + 1;
    }
    wanted.kind = kind_of_ending(wanted.endings[0]);
    for (const std::string& ending : wanted.endings) {
      if (ending.empty() || !seen.insert(ending).second)
        throw UsageError(
            fmt::format("webdataset: column \"{}\" has an ending that is empty or there "
                        "twice; expected as in {{\"jpg;png\", \"cls\"}}",
                        words));
      if (kind_of_ending(ending) != wanted.kind)
        throw UsageError(
            fmt::format("webdataset: column \"{}\": a number, an array and bytes are "
                        "different columns",
                        words));
    }
    all.push_back(std::move(wanted));
  }
  return all;
}

std::string key_of(const RecordIndex& index, const Group& group) {
  return std::string(member_name(index.name(group.begin)).key);
}

// The member of a group for each column; -1 where there is none. Throws DataError, with the reason
// alone, for an ending that is there twice.
std::vector<int64_t> members_for(const RecordIndex& index, const Group& group,
                                 const std::vector<Wanted>& wanted) {
  std::map<std::string, int64_t> there;
  for (int64_t member = group.begin; member < group.end; ++member) {
    const std::string ending = member_name(index.name(member)).ending;
    if (!ending.empty() && !there.emplace(ending, member).second)
      throw DataError(fmt::format("member \"{}\" is there twice", index.name(member)));
  }
  std::vector<int64_t> members;
  for (const Wanted& column : wanted) {
    members.push_back(-1);
    for (const std::string& ending : column.endings)
      if (const auto found = there.find(ending); found != there.end() && members.back() < 0)
        members.back() = found->second;
  }
  return members;
}

[[noreturn]] void fail_lacking(const RecordIndex& index, const Group& group, const Wanted& column) {
  std::vector<std::string_view> there;
  for (int64_t member = group.begin; member < group.end; ++member)
    there.push_back(index.name(member));
  throw DataError(fmt::format("there is no member \"{}\"; there are: {}", column.words,
                              fmt::join(there, ", ")));
}

class WebdatasetSource final : public SampleSource {
 public:
  WebdatasetSource(const Paths& paths, const WebdatasetOptions& options)
      : files_(options.files), wanted_(wanted_of(options.columns)), any_sizes_(options.any_sizes) {
    if (wanted_.empty())
      throw UsageError("webdataset: no columns are named; expected as in {\"jpg;png\", \"cls\"}");
    tars_ = detail::indexed_files(detail::record_files(*files_, paths, detail::kTarEndings),
                                  detail::tar_index_plan(files_, options.index_folder));
    for (const detail::IndexedFile& tar : tars_) add_groups(tar);
    report_lacking();
    for (size_t c = 0; c < wanted_.size(); ++c) columns_.push_back(column_of(c));
  }

  int64_t num_rows() const override { return rows_.num_rows(); }
  const std::vector<Column>& columns() const override { return columns_; }

  Sample read_row(int64_t row) const override {
    try {
      Sample sample;
      for (size_t c = 0; c < wanted_.size(); ++c) {
        sample.columns.push_back(read_member(row, c));
        const Array& array = sample.columns.back();
        if (wanted_[c].kind == MemberKind::npy && !detail::fits(array, columns_[c]))
          throw DataError(fmt::format("member \"{}\" is {}, expected {} as in the first sample",
                                      wanted_[c].words, array.to_string(),
                                      columns_[c].to_string()));
      }
      return sample;
    } catch (const DataError& error) {
      throw DataError(fmt::format("{}: {}", where(row), error.what()));
    }
  }

  std::string where(int64_t row) const override {
    const detail::IndexedFile& tar = tars_[rows_.find(row).file];
    return detail::place_of(tar.path, tar.index, groups_[static_cast<size_t>(row)]);
  }
  std::string fingerprint() const override {
    std::string how;
    for (const Wanted& wanted : wanted_) how += "\n" + wanted.words;
    return rows_.fingerprint(columns_, how);
  }
  std::vector<int64_t> first_rows_of_files() const override { return rows_.first_rows(); }

 private:
  void add_groups(const detail::IndexedFile& tar) {
    const std::vector<Group> groups = groups_of(tar.index);
    rows_.add(tar.info, std::ssize(groups));
    for (const Group& group : groups) {
      groups_.push_back(group);
      try {
        const std::vector<int64_t> members = members_for(tar.index, group, wanted_);
        members_.insert(members_.end(), members.begin(), members.end());
      } catch (const DataError& error) {
        throw DataError(
            fmt::format("{}: {}", detail::place_of(tar.path, tar.index, group), error.what()));
      }
    }
  }

  int64_t member_of(int64_t row, size_t column) const {
    return members_[static_cast<size_t>(row) * wanted_.size() + column];
  }

  // The first row that has a column's member; num_rows() where none has.
  int64_t first_with(size_t column) const {
    int64_t row = 0;
    while (row < num_rows() && member_of(row, column) < 0) ++row;
    return row;
  }

  void report_lacking() const {
    if (num_rows() == 0)
      throw DataError(
          fmt::format("{}: there is no sample in {} tars", tars_[0].path.string(), tars_.size()));
    for (size_t c = 0; c < wanted_.size(); ++c) {
      if (first_with(c) == num_rows())
        throw UsageError(fmt::format(
            "webdataset: no sample has a member \"{}\"; those of {} are: {}", wanted_[c].words,
            tars_[0].path.string(), fmt::join(webdataset_endings(tars_[0].path, files_), ", ")));
      int64_t lacking = 0, first = -1;
      for (int64_t row = num_rows() - 1; row >= 0; --row)
        if (member_of(row, c) < 0) ++lacking, first = row;
      if (lacking > 0)
        log(LogLevel::warning, "webdataset: {} of {} samples have no member \"{}\", first {}",
            lacking, num_rows(), wanted_[c].words, where(first));
    }
  }

  Column column_of(size_t c) const {
    const Wanted& wanted = wanted_[c];
    const std::string& name = wanted.endings[0];
    if (wanted.kind == MemberKind::integer) return {name, DType::int64, {}};
    if (wanted.kind == MemberKind::bytes) return {name, DType::uint8, {kAnySize}};
    const int64_t row = first_with(c);
    try {
      const Array array = read_member(row, c);
      return {name, array.dtype(), any_sizes_ ? shape_of_all(c, row) : array.shape()};
    } catch (const DataError& error) {
      throw DataError(fmt::format("{}: {}", where(row), error.what()));
    }
  }

  // Members of other bytes have other shapes: a look at one of each tells where they differ. One
  // that is damaged is told to who reads it.
  std::vector<int64_t> shape_of_all(size_t c, int64_t first) const {
    std::vector<int64_t> shape = read_member(first, c).shape();
    std::set<int64_t> seen{bytes_of_member(first, c)};
    for (int64_t row = first + 1; row < num_rows(); ++row) {
      if (std::ranges::count(shape, kAnySize) == std::ssize(shape)) break;
      if (member_of(row, c) < 0 || !seen.insert(bytes_of_member(row, c)).second) continue;
      try {
        const std::vector<int64_t> other = read_member(row, c).shape();
        for (size_t d = 0; d < shape.size() && other.size() == shape.size(); ++d)
          if (other[d] != shape[d]) shape[d] = kAnySize;
      } catch (const DataError&) {
      }
    }
    return shape;
  }

  int64_t bytes_of_member(int64_t row, size_t c) const {
    return tars_[rows_.find(row).file].index.bytes[static_cast<size_t>(member_of(row, c))];
  }

  Array read_member(int64_t row, size_t c) const {
    const detail::IndexedFile& tar = tars_[rows_.find(row).file];
    const int64_t member = member_of(row, c);
    if (member < 0) fail_lacking(tar.index, groups_[static_cast<size_t>(row)], wanted_[c]);
    const Array bytes = files_->read(tar.path, tar.index.offsets[static_cast<size_t>(member)],
                                     tar.index.bytes[static_cast<size_t>(member)]);
    return detail::decode_member(wanted_[c].kind, bytes, wanted_[c].words);
  }

  FilesHandle files_;
  std::vector<Wanted> wanted_;
  bool any_sizes_;
  std::vector<detail::IndexedFile> tars_;
  detail::FileRows rows_;
  std::vector<Group> groups_;     // of each row
  std::vector<int64_t> members_;  // of each row, one a column; -1: it has none
  std::vector<Column> columns_;
};

// What a member of bytes is called: of a photo, its content decides.
std::string bytes_ending(const std::string& name, std::string_view photo) {
  const std::string_view last = std::string_view(name).substr(name.rfind('.') + 1);
  if (detail::is_photo_ending(name)) {
    const bool jpeg = last == "jpeg" || last == "jpe" || last == "jfif";
    const bool other = !photo.empty() && photo != (jpeg ? "jpg" : last);
    return other ? fmt::format("{}{}", name.substr(0, name.size() - last.size()), photo) : name;
  }
  constexpr std::string_view kKnown[] = {"txt", "json", "bin"};
  if (std::ranges::find(kKnown, last) != std::end(kKnown)) return name;
  return fmt::format("{}.{}", name, photo.empty() ? "bin" : photo);
}

// The bytes of an array as a member, and what its name ends with.
std::pair<std::string, std::string> member_for(const Column& column, const Array& array) {
  const MemberKind named = kind_of_ending(column.name);
  const bool integer = array.shape().empty() && !is_floating(array.dtype());
  if (integer) {
    int64_t value = 0;
    std::memcpy(&value, array.data(), static_cast<size_t>(array.num_bytes()));
    const int shift = 64 - 8 * static_cast<int>(size_of(array.dtype()));
    const bool is_signed = array.dtype() == DType::int8 || array.dtype() == DType::int16 ||
                           array.dtype() == DType::int32;
    if (is_signed) value = static_cast<int64_t>(static_cast<uint64_t>(value) << shift) >> shift;
    return {named == MemberKind::integer ? column.name : column.name + ".cls",
            std::to_string(value)};
  }
  if (array.dtype() == DType::uint8 && array.shape().size() == 1 && !column.fixed()) {
    const std::string_view bytes = text_of(array);
    return {bytes_ending(column.name, photo_format(bytes)), std::string(bytes)};
  }
  return {named == MemberKind::npy ? column.name : column.name + ".npy", npy_bytes(array)};
}

}  // namespace

namespace detail {

std::shared_ptr<const Source> webdataset_source(const Paths& paths,
                                                const WebdatasetOptions& options) {
  return std::make_shared<WebdatasetSource>(paths, options);
}

}  // namespace detail

Dataset webdataset(const Paths& paths, const WebdatasetOptions& options) {
  return Dataset(detail::webdataset_source(paths, options));
}

Written write_webdataset(const std::filesystem::path& folder, const std::vector<Column>& columns,
                         const NextSample& next, const WriteOptions& options) {
  detail::ShardWriter writer(folder, "shard-{:05d}.tar", options);
  int64_t number = 0;
  for (auto sample = next(); sample; sample = next(), ++number) {
    detail::require_sample(*sample, columns, number);
    std::vector<std::pair<std::string, std::string>> members;
    int64_t bytes = 0;
    for (size_t c = 0; c < columns.size(); ++c) {
      auto [ending, data] = member_for(columns[c], sample->columns[c]);
      members.emplace_back(fmt::format("{:09d}.{}", number, ending), std::move(data));
      bytes += detail::tar_member_bytes(members.back().first, std::ssize(members.back().second));
    }
    if (writer.is_full(bytes, 2 * detail::kTarBlock)) writer.finish_shard({}, detail::tar_end());
    for (const auto& [name, data] : members) detail::append_tar_member(writer.shard(), name, data);
    writer.sample_done();
  }
  if (writer.samples_in_shard() > 0) writer.finish_shard({}, detail::tar_end());
  return writer.done();
}

std::vector<Finding> verify_webdataset(const Paths& paths, const std::vector<std::string>& columns,
                                       const VerifyOptions& options) {
  const auto tars = detail::record_files(*options.files, paths, detail::kTarEndings);
  const std::vector<Wanted> wanted = wanted_of(columns);
  int64_t all_bytes = 0, done_bytes = 0;
  for (const auto& tar : tars) all_bytes += options.files->info(tar).bytes;
  std::vector<Finding> found;
  for (const auto& tar : tars) {
    RecordIndex index;
    bool whole = false;
    try {
      FileWindow window(*options.files, tar);
      done_bytes += window.file_bytes();
      detail::for_each_member(window, [&](const std::string& name, int64_t offset, int64_t bytes) {
        index.add(offset, bytes, name);
      });
      whole = true;
    } catch (const Error& error) {
      found.push_back({.file = tar, .what = error.what()});
    }
    std::vector<Group> groups = groups_of(index);
    if (!whole && !groups.empty()) groups.pop_back();  // what it lacks may come after the damage
    int64_t record = 0;
    for (const Group& group : groups) {
      try {
        const std::vector<int64_t> members = members_for(index, group, wanted);
        for (size_t c = 0; c < wanted.size(); ++c)
          if (members[c] < 0) fail_lacking(index, group, wanted[c]);
      } catch (const DataError& error) {
        found.push_back(
            {.file = tar,
             .byte = index.offsets[static_cast<size_t>(group.begin)] - detail::kTarBlock,
             .record = record,
             .what = fmt::format("sample \"{}\": {}", key_of(index, group), error.what())});
      }
      ++record;
    }
    if (options.progress) options.progress(done_bytes, all_bytes);
  }
  return found;
}

}  // namespace tutti::data
