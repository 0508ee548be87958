#include "tutti/data/sources/recognise.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/typed.h"
#include "tutti/data/detail/gzip.h"
#include "tutti/data/detail/tfrecord_frame.h"
#include "tutti/data/sample.h"
#include "tutti/data/sources/detail/csv_records.h"
#include "tutti/data/sources/detail/file_rows.h"
#include "tutti/data/sources/detail/number_words.h"
#include "tutti/data/sources/detail/photo_files.h"
#include "tutti/data/sources/detail/record_sources.h"
#include "tutti/data/sources/detail/source_file.h"
#include "tutti/data/sources/image_folder.h"
#include "tutti/data/sources/table_spec.h"

namespace tutti::data {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLookBytes = 64 << 10;
constexpr size_t kLookRows = 50;
// So many folders, and files of each, are looked into for photos: enough to know, and soon done.
constexpr size_t kLookFolders = 5;
constexpr size_t kLookPhotos = 100;

std::string some_names(const std::vector<std::string>& names) {
  constexpr size_t kMost = 5;
  if (names.size() <= kMost) return fmt::format("{}", fmt::join(names, ", "));
  return fmt::format("{}, ...", fmt::join(names.begin(), names.begin() + kMost, ", "));
}

std::vector<std::string> names_where(const std::vector<FileInfo>& listed, auto&& wanted) {
  std::vector<std::string> names;
  for (const FileInfo& entry : listed)
    if (wanted(entry)) names.push_back(entry.name);
  return names;
}

bool has_photos(const Files& files, const fs::path& folder, const std::vector<FileInfo>& listed) {
  size_t looks = 0;
  return std::ranges::any_of(listed, [&](const FileInfo& entry) {
    return !entry.folder && ++looks <= kLookPhotos &&
           detail::is_photo_file(files, folder, entry, {});
  });
}

bool is_tar(const FileInfo& entry) { return !entry.folder && entry.name.ends_with(".tar"); }

bool is_tfrecord(const FileInfo& entry) {
  return !entry.folder && (detail::is_numbered(entry.name) ||
                           std::ranges::any_of(detail::kTfrecordEndings, [&](auto ending) {
                             return entry.name.ends_with(ending);
                           }));
}

bool has_mds_index(const fs::path& folder, const std::vector<FileInfo>& listed,
                   const Files& files) {
  const auto index = std::ranges::find(listed, "index.json", &FileInfo::name);
  if (index == listed.end() || index->folder) return false;
  const Array front = files.read(folder / index->name, 0, std::min(index->bytes, kLookBytes));
  return text_of(front).find("\"shards\"") != std::string_view::npos;
}

// Each kind of records that lies in a folder.
std::vector<Recognised> records_among(const fs::path& folder, const std::vector<FileInfo>& listed,
                                      const Files& files) {
  std::vector<Recognised> found;
  const auto add = [&](DataKind kind, const char* what, auto&& wanted) {
    const auto names = names_where(listed, wanted);
    if (!names.empty())
      found.push_back({.kind = kind,
                       .sentence = fmt::format("records: {} in {} file{} ({})", what, names.size(),
                                               names.size() == 1 ? "" : "s", some_names(names))});
  };
  add(DataKind::tfrecord, "TFRecord", is_tfrecord);
  add(DataKind::webdataset, "tars of WebDataset", is_tar);
  if (has_mds_index(folder, listed, files))
    found.push_back({.kind = DataKind::mds, .sentence = "records: MDS, a folder with index.json"});
  return found;
}

std::vector<Recognised> doodles_among(const std::vector<FileInfo>& listed) {
  const auto doodles = names_where(listed, [](const FileInfo& entry) {
    return !entry.folder && (entry.name.ends_with(".npy") || entry.name.ends_with(".npy.gz"));
  });
  if (doodles.empty()) return {};
  return {{.kind = DataKind::quickdraw,
           .sentence = fmt::format("doodles: {} files of classes ({})", doodles.size(),
                                   some_names(doodles))}};
}

// Nothing that is known lies in a folder; `nested` is what is, a level below.
Recognised unknown_folder(const std::vector<FileInfo>& listed, const std::string& nested) {
  const auto folders = names_where(listed, [](const FileInfo& entry) { return entry.folder; });
  const auto plain = names_where(listed, [](const FileInfo& entry) { return !entry.folder; });
  return {.kind = DataKind::unknown,
          .sentence = fmt::format(
              "unknown: a folder of {} folders ({}) and {} files ({}); {}", folders.size(),
              some_names(folders), plain.size(), some_names(plain),
              !nested.empty() ? nested
              : plain.empty() ? "expected a folder of photos a class, doodles as .npy, or shards"
                              : "give one of the files, or a folder of photos a class")};
}

Recognised several_kinds(const std::vector<Recognised>& kinds) {
  std::vector<std::string> sentences;
  for (const Recognised& kind : kinds) sentences.push_back(kind.sentence);
  return {.kind = DataKind::unknown,
          .sentence = fmt::format("unknown: a folder that may be {} things: {}\n  give a folder "
                                  "with one of them, or a single file",
                                  kinds.size(), fmt::join(sentences, "; "))};
}

Recognised recognise_folder(const fs::path& folder, const Files& files) {
  const std::vector<FileInfo> listed = files.list(folder);
  const auto folders = names_where(listed, [](const FileInfo& entry) { return entry.folder; });
  std::vector<Recognised> kinds = doodles_among(listed);
  for (Recognised& records : records_among(folder, listed, files))
    kinds.push_back(std::move(records));
  std::string nested;
  for (size_t i = 0; i < std::min(folders.size(), kLookFolders); ++i) {
    const std::vector<FileInfo> within = files.list(folder / folders[i]);
    if (has_photos(files, folder / folders[i], within)) {
      kinds.push_back({.kind = DataKind::image_folder,
                       .sentence = fmt::format("photos: a folder of {} classes ({})",
                                               folders.size(), some_names(folders))});
      break;
    }
    if (nested.empty() && !records_among(folder / folders[i], within, files).empty())
      nested = fmt::format("shards are a level below: give {}", (folder / folders[i]).string());
    for (const FileInfo& entry : within)
      if (nested.empty() && entry.folder &&
          has_photos(files, folder / folders[i] / entry.name,
                     files.list(folder / folders[i] / entry.name)))
        nested =
            fmt::format("the classes are a level below: give {}", (folder / folders[i]).string());
  }
  if (kinds.size() > 1) return several_kinds(kinds);
  return kinds.empty() ? unknown_folder(listed, nested) : kinds[0];
}

// The bytes at the front of a file, unpacked if they are packed.
std::string first_bytes(const Array& front, std::string_view packing, const std::string& where) {
  constexpr size_t kLookUnpacked = 1024;
  return packing.empty() ? std::string(text_of(front))
                         : detail::unpacked_front(text_of(front), kLookUnpacked, where);
}

bool looks_like_idx(std::string_view bytes) {
  constexpr std::string_view kTypes = "\x08\x09\x0B\x0C\x0D\x0E";
  return bytes.size() > 4 && bytes[0] == '\0' && bytes[1] == '\0' &&
         kTypes.find(bytes[2]) != std::string_view::npos && bytes[3] >= 1 && bytes[3] <= 8;
}

bool looks_like_jsonl(std::string_view text, bool whole) {
  if (text.starts_with(detail::kByteOrderMark)) text.remove_prefix(detail::kByteOrderMark.size());
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos || text[begin] != '{') return false;
  const size_t end = text.find('\n', begin);
  if (end == std::string_view::npos && !whole) return true;  // a line of more than was read
  return is_json(text.substr(begin, end == std::string_view::npos ? end : end - begin));
}

struct Table {
  size_t fields = 0;
  bool header = false;
  bool decimal_commas = false;  // in all that follows the first row
};

// What whoever asks knows of a table.
struct Told {
  std::optional<bool> header;
  char decimal = '.';
};

using Rows = std::vector<std::vector<std::string>>;

bool is_missing(const std::string& field) {
  return std::ranges::find(usual_missing(), field) != usual_missing().end();
}

bool is_number(const std::string& field) {
  return detail::finite_number(field) || detail::finite_number(field, ',');
}

bool looks_like_number(const std::string& field) {
  return detail::writing_of(field) != detail::NumberWriting::none;
}

// Below the first row, which may name the fields.
bool has_column_of_numbers(const Rows& rows) {
  const auto looked_at = std::span(rows).first(std::min(rows.size(), kLookRows)).subspan(1);
  for (size_t field = 0; field < rows[0].size(); ++field)
    if (std::ranges::all_of(looked_at, [&](const auto& row) {
          return is_missing(row[field]) || is_number(row[field]);
        }))
      return true;
  return false;
}

bool repeats(const Rows& rows, size_t field) {
  return std::any_of(rows.begin() + 1, rows.end(), [&](const auto& row) {
    return row != rows[0] && row[field] == rows[0][field];
  });
}

// Whether the first row has a word where most of the others that have a value have numbers, as
// csv() takes the column then; or a date, a unit, a percentage ("2020-01-22", "100m") where these
// have plain numbers.
bool names_numbers(const Rows& rows, size_t field) {
  int64_t plain = 0, written = 0, words = 0;
  for (size_t row = 1; row < rows.size(); ++row) {
    const std::string& value = rows[row][field];
    if (is_missing(value) || rows[row] == rows[0]) continue;
    ++(is_number(value) ? plain : looks_like_number(value) ? written : words);
  }
  const std::string& name = rows[0][field];
  if (is_missing(name) || is_number(name) || repeats(rows, field)) return false;
  const int64_t numbers = looks_like_number(name) ? plain : plain + written;
  return numbers > 0 && numbers >= words + (looks_like_number(name) ? written : 0);
}

bool is_year(const std::string& field) {
  const auto year = number_in<int>(field);
  return field.size() == 4 && year && *year >= 1800 && *year < 2200;
}

bool is_year_over_others(const Rows& rows, size_t field) {
  const auto below = std::span(rows).subspan(1);
  const auto years =
      std::ranges::count_if(below, [&](const auto& row) { return is_year(row[field]); });
  return is_year(rows[0][field]) && 2 * years < std::ssize(below);
}

// Whether the numbers in the first row can be names: years over what are none, and whole numbers
// that count up, three or more ("0,1,2", as tables without names are written by some).
bool numbers_can_be_names(const Rows& rows) {
  std::vector<int64_t> counted;
  for (size_t field = 0; field < rows[0].size(); ++field) {
    if (!is_number(rows[0][field]) || is_year_over_others(rows, field)) continue;
    const auto whole = number_in<int64_t>(rows[0][field]);
    if (!whole || (!counted.empty() && *whole != counted.back() + 1)) return false;
    counted.push_back(*whole);
  }
  return counted.empty() || counted.size() >= 3;
}

// Whether the first row names the fields: words over numbers, beside which numbers may be names
// too; or words and years, of these two or more, all different and none in its column again. A
// field without a name is none of them, but for the first, where an index stands.
bool first_row_names(const Rows& rows) {
  const std::vector<std::string>& first = rows[0];
  bool over_numbers = false, words = true;
  int years = 0;
  for (size_t field = 0; field < first.size(); ++field) {
    over_numbers = over_numbers || names_numbers(rows, field);
    if (is_year_over_others(rows, field)) {
      ++years;
      continue;
    }
    words = words && !looks_like_number(first[field]) &&
            (!is_missing(first[field]) || (field == 0 && first[0].empty()));
  }
  if (over_numbers) return numbers_can_be_names(rows);
  if (!words || years == 1 || std::set(first.begin(), first.end()).size() != first.size())
    return false;
  for (size_t row = 1; row < rows.size(); ++row)
    for (size_t field = 0; field < first.size(); ++field)
      if (!first[field].empty() && rows[row][field] == first[field]) return false;
  return true;
}

// The rows at the front of a text: those of as many fields as the first, and how many others there
// are among the first kLookRows.
struct Front {
  Rows rows;
  size_t others = 0;
  std::map<size_t, size_t> lengths;  // rows by their number of fields
  bool damaged = false;              // among those, too

  size_t same() const { return lengths.contains(rows[0].size()) ? lengths.at(rows[0].size()) : 0; }
  size_t usual_length() const {
    const auto most = std::ranges::max_element(
        lengths, {}, [](const auto& length) { return std::pair(length.second, length.first); });
    return most == lengths.end() ? 0 : most->first;
  }
};

Front front_of(std::string_view text, char delimiter) {
  Front front;
  size_t seen = 0;
  try {
    detail::CsvRecords records(text, {.delimiter = delimiter}, "table");
    for (; records.next(); ++seen) {
      const auto fields = records.fields();
      const bool same = front.rows.empty() || fields.size() == front.rows[0].size();
      if (same) front.rows.emplace_back(fields.begin(), fields.end());
      if (seen >= kLookRows) continue;  // looked at for what names repeat
      ++front.lengths[fields.size()];
      if (!same) ++front.others;
    }
  } catch (const DataError&) {
    front.damaged = seen < kLookRows;
  }
  return front;
}

// The table that `text` is when that character delimits: two rows or more of as many fields, two
// or more; of what is called one, most rows, so that the others are found damaged when it is read.
std::optional<Table> table_in(std::string_view text, char delimiter, bool called_table) {
  const Front front = front_of(text, delimiter);
  const Rows& rows = front.rows;
  if (front.damaged && !called_table) return std::nullopt;
  if (rows.size() < 2 || rows[0].size() < 2) return std::nullopt;
  if (front.others >= front.same() || (front.others > 0 && !called_table)) return std::nullopt;
  const bool framed = rows[0][0].empty();  // as text is, and its tables, by bars
  if ((delimiter == ' ' && !has_column_of_numbers(rows)) || (delimiter == '|' && framed))
    return std::nullopt;
  const bool decimal_commas = std::ranges::all_of(std::span(rows).subspan(1), [](const auto& row) {
    return std::ranges::all_of(row, [](const auto& field) { return is_number(field); });
  });
  return Table{.fields = rows[0].size(),
               .header = first_row_names(rows),
               .decimal_commas = decimal_commas && delimiter == ';'};
}

constexpr std::pair<char, const char*> kDelimiters[] = {
    {',', "commas"}, {';', "semicolons"}, {'\t', "tabs"}, {'|', "bars"}, {' ', "blanks"}};

Recognised table_of(const Table& table, char delimiter) {
  const auto* const found =
      std::ranges::find(kDelimiters, delimiter, &std::pair<char, const char*>::first);
  return {
      .kind = DataKind::csv,
      .sentence = fmt::format("a table: {} column{}, delimited by {}, {}", table.fields,
                              table.fields == 1 ? "" : "s", found->second,
                              table.header ? "named by its first line" : "without a line of names"),
      .delimiter = delimiter,
      .header = table.header};
}

// Commas begin fractions where all that stands between semicolons is numbers then ("7,4;0,7").
std::optional<Recognised> recognise_table(std::string_view text, bool called_table,
                                          const Told& told) {
  std::optional<Recognised> found;
  size_t most = 0;
  for (const auto& [delimiter, words] : kDelimiters) {
    // Blanks are within fields, too: they count where there is nothing else, or a lone tab.
    if (most > 2 && delimiter == ' ') break;
    if (delimiter == told.decimal) continue;
    auto table = table_in(text, delimiter, called_table);
    if (!table || (table->fields <= most && !table->decimal_commas)) continue;
    most = table->fields;
    table->header = told.header.value_or(table->header);
    found = table_of(*table, delimiter);
  }
  return found;
}

// What is called a table is one: whoever reads it finds the line that is not as it should be.
Recognised what_is_called_table(std::string_view text, char usual_delimiter, const Told& told) {
  char delimiter = usual_delimiter == told.decimal ? ';' : usual_delimiter;
  Front front = front_of(text, delimiter);
  for (const char other : {',', ';', '\t', '|'}) {
    if (other == told.decimal) continue;
    Front by_other = front_of(text, other);
    if (by_other.usual_length() <= front.usual_length()) continue;
    delimiter = other;
    front = std::move(by_other);
  }
  const bool named = front.rows.size() < 2 || first_row_names(front.rows);
  return table_of(
      {.fields = std::max<size_t>(1, front.usual_length()), .header = told.header.value_or(named)},
      delimiter);
}

Recognised unknown(std::string_view seen) {
  return {.kind = DataKind::unknown,
          .sentence = fmt::format("unknown: {}; expected photos in folders, doodles (.npy), IDX, a "
                                  "table, JSON lines, text, or records: .tfrecord, .tar, MDS",
                                  seen)};
}

// Without its last line, which may be cut off where more follows.
std::string_view whole_lines(std::string_view text, bool whole) {
  const size_t end = text.rfind('\n');
  return whole || end == std::string_view::npos ? text : text.substr(0, end + 1);
}

// Records in one file; nothing where it holds something else.
std::optional<Recognised> recognise_records(const FileInfo& info, std::string_view look,
                                            std::string_view packing) {
  const auto head = look.substr(0, static_cast<size_t>(detail::kFrameHeadBytes));
  const bool framed = std::ssize(head) == detail::kFrameHeadBytes && detail::frame_length(head);
  const bool tar = look.size() > 262 && look.substr(257, 5) == "ustar";
  if (framed || (is_tfrecord(info) && !detail::is_numbered(info.name)))
    return Recognised{.kind = DataKind::tfrecord,
                      .sentence = fmt::format("records: TFRecord{}{}",
                                              packing.empty() ? "" : ", packed by ", packing)};
  if (tar && !packing.empty())
    return unknown("a gzipped tar, in which no sample can be found; unpack it first (gunzip)");
  if (tar || is_tar(info))
    return Recognised{.kind = DataKind::webdataset, .sentence = "records: a tar of WebDataset"};
  if (info.name.ends_with(".mds") ||
      (info.name == "index.json" && look.find("\"shards\"") != std::string_view::npos))
    return unknown("a part of an MDS dataset; give the folder of its index.json");
  return std::nullopt;
}

Recognised recognise_file(const fs::path& path, const FileInfo& info, const Files& files,
                          const Told& told) {
  const std::string where = path.string();
  const int64_t bytes = info.bytes;
  const Array front = files.read(path, 0, std::min(bytes, kLookBytes));  // no pipe, no device
  if (bytes == 0) return unknown("an empty file");
  const std::string_view packing = detail::packing_of_records(text_of(front));
  const bool packed = !packing.empty();
  const std::string look = first_bytes(front, packing, where);
  const bool whole = bytes <= kLookBytes && !packed;
  if (const auto records = recognise_records(info, look, packing)) return *records;
  if (looks_like_idx(look))
    return {.kind = DataKind::idx,
            .sentence = fmt::format("IDX: an array of {} dimensions{}", static_cast<int>(look[3]),
                                    packed ? ", gzipped" : "")};
  if (packed) return unknown("a gzipped file that is no IDX; unpack it first (gunzip)");
  const std::string name = path.filename().string();
  static const std::vector<std::string> kLines = {".jsonl", ".ndjson"}, kJson = {".json"};
  if (detail::has_ending(name, kLines))
    return {.kind = DataKind::jsonl, .sentence = "JSON lines: one object a line"};
  if (look.find('\0') != std::string::npos)
    return unknown(fmt::format(
        "a binary file that begins with {:02x}",
        fmt::join(std::span(front.as<uint8_t>()).first(std::min<size_t>(8, look.size())), " ")));
  if (looks_like_jsonl(look, whole))
    return {.kind = DataKind::jsonl, .sentence = "JSON lines: one object a line"};
  if (detail::has_ending(name, kJson)) return unknown("JSON that is no object a line");
  static const std::vector<std::string> kTables = {".csv", ".tsv"}, kTabs = {".tsv"};
  const bool called_table = detail::has_ending(name, kTables);
  const std::string_view lines = whole_lines(look, whole);
  if (const auto table = recognise_table(lines, called_table, told)) return *table;
  if (called_table)
    return what_is_called_table(lines, detail::has_ending(name, kTabs) ? '\t' : ',', told);
  return {.kind = DataKind::text, .sentence = fmt::format("text: {} bytes", bytes)};
}

}  // namespace

std::string_view name_of(DataKind kind) noexcept {
  constexpr std::string_view kNames[] = {"image_folder", "quickdraw", "idx",      "csv",
                                         "jsonl",        "text",      "tfrecord", "webdataset",
                                         "mds",          "unknown"};
  return kNames[static_cast<size_t>(kind)];
}

bool is_records(DataKind kind) noexcept {
  return kind == DataKind::tfrecord || kind == DataKind::webdataset || kind == DataKind::mds;
}

Recognised recognise(const fs::path& path, const FilesHandle& files, std::optional<bool> header,
                     char decimal) {
  const FileInfo info = files->info(path);
  return info.folder ? recognise_folder(path, *files)
                     : recognise_file(path, info, *files, {.header = header, .decimal = decimal});
}

}  // namespace tutti::data
