#include "tutti/data/sources/recognise.h"

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/utf8.h"
#include "tutti/data/detail/gzip.h"
#include "tutti/data/detail/tfrecord_frame.h"
#include "tutti/data/sample.h"
#include "tutti/data/sources/detail/drawing.h"
#include "tutti/data/sources/detail/file_rows.h"
#include "tutti/data/sources/detail/photo_files.h"
#include "tutti/data/sources/detail/recognise_table.h"
#include "tutti/data/sources/detail/record_sources.h"
#include "tutti/data/sources/detail/source_file.h"
#include "tutti/data/sources/image_folder.h"
#include "tutti/data/sources/records.h"

namespace tutti::data {
namespace {

namespace fs = std::filesystem;

using detail::kLookBytes;
// So many folders, and files of each, are looked into for photos: enough to know, and soon done.
constexpr size_t kLookFolders = 5;
constexpr size_t kLookPhotos = 100;
constexpr size_t kLookDrawings = 16;  // files of them

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

constexpr const char* format_words(detail::DrawingFormat format) {
  return format == detail::DrawingFormat::binary ? "binary"
         : format == detail::DrawingFormat::csv  ? "Kaggle's CSV"
                                                 : "ndjson";
}

// What a folder has whose files of one ending are drawings, or, where `other` is not "", some.
Recognised strokes_in(const std::vector<std::string>& names, detail::DrawingFormat format,
                      const std::string& other) {
  if (!other.empty())
    return {.kind = DataKind::unknown,
            .sentence = fmt::format("unknown: drawings as strokes ({}), but {} has none; give a "
                                    "folder of drawings alone, or one of the files",
                                    format_words(format), other)};
  return {.kind = DataKind::strokes,
          .sentence = fmt::format("drawings: strokes ({}) in {} file{} ({})", format_words(format),
                                  names.size(), names.size() == 1 ? "" : "s", some_names(names))};
}

// Each kind of files of drawings that lies in a folder, by the first files of each.
std::vector<Recognised> strokes_among(const fs::path& folder, const std::vector<FileInfo>& listed,
                                      const Files& files) {
  std::vector<Recognised> found;
  for (const char* ending : {".ndjson", ".bin", ".csv"}) {
    const auto names = names_where(listed, [&](const FileInfo& entry) {
      return !entry.folder && entry.name.ends_with(ending);
    });
    std::optional<detail::DrawingFormat> format;
    std::string other;
    for (const std::string& name : std::span(names).first(std::min(names.size(), kLookDrawings))) {
      const fs::path path = folder / name;
      const Array front = files.read(path, 0, std::min(files.info(path).bytes, kLookBytes));
      if (const auto one = detail::drawing_format(text_of(front), name))
        format = one;
      else if (other.empty())
        other = name;
    }
    if (format) found.push_back(strokes_in(names, *format, other));
  }
  return found;
}

bool is_mds_shard(const FileInfo& entry) {  // or a packed one: ".mds.zstd"
  return !entry.folder &&
         (entry.name.ends_with(".mds") || entry.name.find(".mds.") != std::string::npos);
}

// Nothing that is known lies in a folder; `nested` is what is, a level below.
Recognised unknown_folder(const std::vector<FileInfo>& listed, const std::string& nested) {
  if (const auto shards = names_where(listed, is_mds_shard); !shards.empty())
    return {.kind = DataKind::unknown,
            .sentence = fmt::format(
                "unknown: {} shard{} of MDS ({}) without the index.json that lists them and the "
                "columns of their samples; copy it into the folder, too",
                shards.size(), shards.size() == 1 ? "" : "s", some_names(shards))};
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
  for (Recognised& strokes : strokes_among(folder, listed, files))
    kinds.push_back(std::move(strokes));
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

Recognised unknown(std::string_view seen) {
  return {.kind = DataKind::unknown,
          .sentence = fmt::format("unknown: {}; expected photos in folders, doodles (.npy), IDX, a "
                                  "table, JSON lines, text, or records: .tfrecord, .tar, MDS",
                                  seen)};
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
                          const detail::ToldOfTable& told) {
  const std::string where = path.string();
  const int64_t bytes = info.bytes;
  const Array front = files.read(path, 0, std::min(bytes, kLookBytes));  // no pipe, no device
  if (bytes == 0) return unknown("an empty file");
  const std::string_view packing = detail::packing_of_records(text_of(front));
  const bool packed = !packing.empty();
  const std::string look = first_bytes(front, packing, where);
  const bool whole = bytes <= kLookBytes && !packed;
  if (const auto records = recognise_records(info, look, packing)) return *records;
  if (const auto format = detail::drawing_format(look, info.name); format && !packed)
    return {.kind = DataKind::strokes,
            .sentence = fmt::format("drawings: strokes ({})", format_words(*format))};
  if (looks_like_idx(look))
    return {.kind = DataKind::idx,
            .sentence = fmt::format("IDX: an array of {} dimensions{}", static_cast<int>(look[3]),
                                    packed ? ", gzipped" : "")};
  if (packed) return unknown("a gzipped file that is no IDX; unpack it first (gunzip)");
  if (is_utf16(look)) return unknown(kUtf16Words);
  if (const auto format = photo_format(look); !format.empty())
    return unknown(
        fmt::format("one photo ({}), of which tutti predict says what a model makes", format));
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
  if (const auto table = detail::recognise_table(detail::whole_lines(look, whole), name, told))
    return *table;
  return {.kind = DataKind::text, .sentence = fmt::format("text: {} bytes", bytes)};
}

}  // namespace

std::string_view name_of(DataKind kind) noexcept {
  constexpr std::string_view kNames[] = {"image_folder", "quickdraw", "idx",      "csv",
                                         "jsonl",        "text",      "tfrecord", "webdataset",
                                         "mds",          "strokes",   "unknown"};
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
