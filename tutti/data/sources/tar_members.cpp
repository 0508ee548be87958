#include "tutti/data/sources/detail/tar_members.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/typed.h"
#include "tutti/data/npy.h"
#include "tutti/data/sources/detail/file_rows.h"
#include "tutti/data/sources/detail/source_file.h"
#include "tutti/data/sources/detail/tar.h"
#include "tutti/data/sources/webdataset.h"

namespace tutti::data {
namespace detail {
namespace {

constexpr std::string_view kIntegerEndings[] = {"cls",   "cls2", "class", "count",
                                                "index", "inx",  "id"};
constexpr std::string_view kPhotoEndings[] = {"jpg", "jpeg", "jpe", "jfif", "png", "webp", "bmp"};

// Of "seg.png": "png".
std::string_view last_part(std::string_view ending) { return ending.substr(ending.rfind('.') + 1); }

Array integer_of(std::string_view text, std::string_view words) {
  while (!text.empty() && std::string_view(" \t\r\n").find(text.back()) != std::string_view::npos)
    text.remove_suffix(1);
  const auto value = number_in<int64_t>(text);
  if (!value)
    throw DataError(fmt::format("member \"{}\": got \"{}\", expected a number in decimal digits",
                                words, text.substr(0, 40)));
  return scalar(*value);
}

Array array_of_npy(const Array& bytes, std::string_view words) {
  const std::string where = fmt::format("member \"{}\"", words);
  const NpyHeader header = parse_npy_header(std::as_bytes(bytes.as<uint8_t>()), where);
  if (header.swapped || header.data_offset + header.num_bytes() != bytes.num_bytes())
    throw DataError(
        fmt::format("{}: got {} bytes, expected {} of header and {} of data, "
                    "little-endian",
                    where, bytes.num_bytes(), header.data_offset, header.num_bytes()));
  Array array = make_array(header.dtype, header.shape);
  if (array.num_bytes() > 0)
    std::memcpy(array.data(), static_cast<const char*>(bytes.data()) + header.data_offset,
                static_cast<size_t>(array.num_bytes()));
  return array;
}

}  // namespace

MemberName member_name(std::string_view name) {
  const size_t slash = name.rfind('/');
  const size_t base = slash == std::string_view::npos ? 0 : slash + 1;
  const size_t dot = name.find('.', base);
  if (dot == std::string_view::npos || dot == base) return {};
  MemberName parts{name.substr(0, dot), std::string(name.substr(dot + 1))};
  make_lower(parts.ending);
  return parts;
}

MemberKind kind_of_ending(std::string_view ending) {
  const std::string_view last = last_part(ending);
  if (std::ranges::find(kIntegerEndings, last) != std::end(kIntegerEndings))
    return MemberKind::integer;
  return last == "npy" ? MemberKind::npy : MemberKind::bytes;
}

Array decode_member(MemberKind kind, const Array& bytes, std::string_view words) {
  switch (kind) {
    case MemberKind::integer: return integer_of(text_of(bytes), words);
    case MemberKind::npy: return array_of_npy(bytes, words);
    case MemberKind::bytes: break;
  }
  return bytes;
}

std::string place_of(const std::filesystem::path& tar, const RecordIndex& index,
                     const MemberGroup& group) {
  return fmt::format("{}, sample \"{}\" (byte {})", tar.string(),
                     member_name(index.name(group.begin)).key,
                     index.offsets[static_cast<size_t>(group.begin)] - kTarBlock);
}

bool is_photo_ending(std::string_view ending) {
  return std::ranges::find(kPhotoEndings, last_part(ending)) != std::end(kPhotoEndings);
}

std::vector<MemberGroup> groups_of(const RecordIndex& index) {
  std::vector<MemberGroup> groups;
  std::string_view key;
  for (int64_t member = 0; member < index.size(); ++member) {
    const MemberName name = member_name(index.name(member));
    if (name.ending.empty()) continue;
    if (groups.empty() || name.key != key) groups.push_back({.begin = member});
    key = name.key;
    groups.back().end = member + 1;
  }
  return groups;
}

RecordIndex index_members(FileWindow& file) {
  RecordIndex index;
  for_each_member(file, [&](const std::string& name, int64_t offset, int64_t bytes) {
    index.add(offset, bytes, name);
  });
  return index;
}

IndexPlan tar_index_plan(FilesHandle files, std::filesystem::path folder) {
  return {.format = "webdataset 1",
          .scan = index_members,
          .files = std::move(files),
          .folder = std::move(folder)};
}

}  // namespace detail

std::vector<std::string> webdataset_endings(const Paths& paths, const FilesHandle& files) {
  detail::FileWindow window(*files, detail::record_files(*files, paths, detail::kTarEndings)[0]);
  std::map<std::string, int64_t> counts;
  detail::for_each_member(window, [&](const std::string& name, int64_t, int64_t) {
    if (const auto parts = detail::member_name(name); !parts.ending.empty()) ++counts[parts.ending];
  });
  std::vector<std::string> endings;
  for (const auto& [ending, count] : counts) endings.push_back(ending);
  std::ranges::stable_sort(endings, std::greater<>(), [&](auto& e) { return counts[e]; });
  return endings;
}

std::vector<std::string> webdataset_columns(const Paths& paths, const FilesHandle& files) {
  detail::FileWindow window(*files, detail::record_files(*files, paths, detail::kTarEndings)[0]);
  const detail::RecordIndex index = detail::index_members(window);
  std::vector<std::string> endings;                        // as they come first
  std::set<std::pair<std::string, std::string>> together;  // of which a sample has both
  for (const detail::MemberGroup& group : detail::groups_of(index)) {
    std::vector<std::string> own;
    for (int64_t member = group.begin; member < group.end; ++member)
      if (auto name = detail::member_name(index.name(member)); !name.ending.empty())
        own.push_back(std::move(name.ending));
    for (const std::string& ending : own) {
      if (std::ranges::find(endings, ending) == endings.end()) endings.push_back(ending);
      for (const std::string& other : own) together.emplace(ending, other);
    }
  }
  const auto what = [](const std::string& ending) {  // "seg." of "seg.png"
    return ending.substr(0, ending.rfind('.') + 1);
  };
  std::vector<std::vector<std::string>> columns;
  for (const std::string& ending : endings) {
    const auto one_of = std::ranges::find_if(columns, [&](const auto& others) {
      return detail::is_photo_ending(ending) && detail::is_photo_ending(others[0]) &&
             what(ending) == what(others[0]) && std::ranges::none_of(others, [&](auto& other) {
               return together.contains({ending, other});
             });
    });
    if (one_of == columns.end())
      columns.push_back({ending});
    else
      one_of->push_back(ending);
  }
  std::vector<std::string> words;
  for (const auto& column : columns) words.push_back(fmt::format("{}", fmt::join(column, ";")));
  return words;
}

std::vector<IndexReport> index_webdataset(const Paths& paths, const IndexOptions& options) {
  return detail::make_indexes(detail::record_files(*options.files, paths, detail::kTarEndings),
                              detail::tar_index_plan(options.files, options.index_folder), options);
}

}  // namespace tutti::data
