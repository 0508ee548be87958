#include "tutti/pt2/archive.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/host.h"
#include "tutti/base/threads.h"

namespace tutti::pt2 {
namespace {

// APPNOTE.TXT of zip: an end record behind a directory of entries, each of which says where a local
// header begins, behind which its bytes are. Numbers are little-endian. A field that is full of
// ones stands, wider, in the "zip64" part of the entry's extra field, or in the zip64 end record.
constexpr uint32_t kLocal = 0x04034b50, kEntry = 0x02014b50, kEnd = 0x06054b50;
constexpr uint32_t kEnd64 = 0x06064b50, kLocator64 = 0x07064b50;
constexpr size_t kLocalBytes = 30, kEntryBytes = 46, kEndBytes = 22;
constexpr size_t kEnd64Bytes = 56, kLocator64Bytes = 20, kMostComment = 0xffff;
constexpr uint64_t kFull32 = 0xffffffff;
constexpr uint16_t kExtra64 = 1, kEncrypted = 1;

// Below this a thread takes longer to start than zlib to add up.
constexpr size_t kBytesOfAThread = 4 << 20;

uint32_t sum_of(std::span<const std::byte> bytes) {
  return static_cast<uint32_t>(
      crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

/// The CRC-32 of all, by pieces on all usable cores.
uint32_t crc32_of(std::span<const std::byte> bytes) {
  const size_t most = bytes.size() / kBytesOfAThread;
  if (most < 2) return sum_of(bytes);
  const auto pieces = std::min<size_t>(most, static_cast<size_t>(host_facts().usable_cores));
  const size_t each = (bytes.size() + pieces - 1) / pieces;
  std::vector<uint32_t> sums(pieces);
  const auto piece = [&](size_t i) {
    return bytes.subspan(i * each, std::min(each, bytes.size() - i * each));
  };
  at_once(static_cast<int>(pieces), "checksums",
          [&](int i) { sums[static_cast<size_t>(i)] = sum_of(piece(static_cast<size_t>(i))); });
  uLong sum = sums[0];
  for (size_t i = 1; i < pieces; ++i)
    sum = crc32_combine(sum, sums[i], static_cast<z_off_t>(piece(i).size()));
  return static_cast<uint32_t>(sum);
}

struct DirectoryEntry {
  std::string name;
  uint64_t size = 0, packed = 0, local = 0;
  uint32_t crc32 = 0;
  uint16_t method = 0, flags = 0;
};

struct Extent {
  uint64_t begin = 0, end = 0;
  std::string_view name;
};

class ZipReader {
 public:
  ZipReader(std::span<const std::byte> file, std::string path)
      : file_(file), path_(std::move(path)) {}

  std::map<std::string, ArchiveRecord, std::less<>> read() {
    read_end();
    std::map<std::string, ArchiveRecord, std::less<>> records;
    uint64_t at = directory_;
    for (uint64_t i = 0; i < entries_; ++i) {
      const DirectoryEntry entry = read_entry(at);
      if (entry.name.ends_with('/') && entry.size == 0) continue;  // a folder
      std::string name = without_root(entry.name);
      const auto [where, is_new] = records.emplace(name, record_of(entry));
      if (!is_new) fail("record \"{}\" is there twice", name);
      extents_.back().name = where->first;
    }
    require_apart();
    return records;
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw DataError(fmt::format("{}: no valid .pt2 file: {}", path_,
                                fmt::format(format, std::forward<Args>(args)...)));
  }

  /// The `bytes` bytes from `at` on; they lie before `end`.
  std::span<const std::byte> piece(uint64_t at, uint64_t bytes, uint64_t end,
                                   std::string_view what) const {
    if (at > end || bytes > end - at)
      fail("{} lies at bytes {} to {}, expected before {}", what, at, at + bytes, end);
    return file_.subspan(at, bytes);
  }

  template <class T>
  static T number(std::span<const std::byte> bytes, size_t at) {
    uint64_t value = 0;
    for (size_t i = 0; i < sizeof(T); ++i)
      value |= std::to_integer<uint64_t>(bytes[at + i]) << (8 * i);
    return static_cast<T>(value);
  }

  size_t find_end() const {
    const size_t size = file_.size();
    if (size >= kEndBytes) {
      const size_t first = size - std::min(size, kEndBytes + kMostComment);
      for (size_t at = size - kEndBytes + 1; at-- > first;)
        if (number<uint32_t>(file_, at) == kEnd &&
            at + kEndBytes + number<uint16_t>(file_, at + 20) == size)
          return at;
    }
    fail("its {} bytes have no zip directory at their end: the file is cut off, or something else",
         size);
  }

  void read_end() {
    const size_t end = find_end();
    const auto fields = file_.subspan(end, kEndBytes);
    uint64_t directory_bytes = number<uint32_t>(fields, 12);
    entries_ = number<uint16_t>(fields, 10);
    directory_ = number<uint32_t>(fields, 16);
    directory_end_ = end;
    const bool has_wide = end >= kLocator64Bytes + kEnd64Bytes &&
                          number<uint32_t>(file_, end - kLocator64Bytes) == kLocator64;
    if (has_wide) {
      const uint64_t at = number<uint64_t>(file_, end - kLocator64Bytes + 8);
      const auto wide = piece(at, kEnd64Bytes, end - kLocator64Bytes, "the zip64 end record");
      if (number<uint32_t>(wide, 0) != kEnd64) fail("there is no zip64 end record at byte {}", at);
      entries_ = number<uint64_t>(wide, 32);
      directory_bytes = number<uint64_t>(wide, 40);
      directory_ = number<uint64_t>(wide, 48);
      directory_end_ = at;
    }
    piece(directory_, directory_bytes, directory_end_, "the directory");
    directory_end_ = directory_ + directory_bytes;
    if (entries_ > directory_bytes / kEntryBytes)
      fail("{} records, for which the directory of {} bytes is too short", entries_,
           directory_bytes);
  }

  DirectoryEntry read_entry(uint64_t& at) const {
    const auto fields = piece(at, kEntryBytes, directory_end_, "an entry of the directory");
    if (number<uint32_t>(fields, 0) != kEntry) fail("no entry of the directory at byte {}", at);
    DirectoryEntry entry{.name = {},
                         .size = number<uint32_t>(fields, 24),
                         .packed = number<uint32_t>(fields, 20),
                         .local = number<uint32_t>(fields, 42),
                         .crc32 = number<uint32_t>(fields, 16),
                         .method = number<uint16_t>(fields, 10),
                         .flags = number<uint16_t>(fields, 8)};
    const uint64_t name = number<uint16_t>(fields, 28), extra = number<uint16_t>(fields, 30);
    const uint64_t comment = number<uint16_t>(fields, 32);
    const auto rest =
        piece(at + kEntryBytes, name + extra + comment, directory_end_, "an entry's name");
    entry.name.assign(reinterpret_cast<const char*>(rest.data()), name);
    widen(entry, rest.subspan(name, extra));
    at += kEntryBytes + rest.size();
    return entry;
  }

  void widen(DirectoryEntry& entry, std::span<const std::byte> extra) const {
    while (extra.size() >= 4) {
      const auto id = number<uint16_t>(extra, 0);
      const size_t bytes = number<uint16_t>(extra, 2);
      if (bytes > extra.size() - 4) fail("record \"{}\" has a damaged extra field", entry.name);
      auto fields = extra.subspan(4, bytes);
      for (uint64_t* field : {&entry.size, &entry.packed, &entry.local}) {
        if (id != kExtra64 || *field != kFull32) continue;
        if (fields.size() < 8) fail("record \"{}\" lacks its zip64 sizes", entry.name);
        *field = number<uint64_t>(fields, 0);
        fields = fields.subspan(8);
      }
      extra = extra.subspan(4 + bytes);
    }
  }

  /// "net/models/model.json" is "models/model.json" of the root folder "net".
  std::string without_root(const std::string& name) {
    const size_t slash = name.find('/');
    const std::string root = name.substr(0, slash);
    if (slash == std::string::npos || slash + 1 == name.size())
      fail("record \"{}\" lies in no root folder", name);
    if (!root_) root_ = root;
    if (*root_ != root)
      fail("records lie in the root folders \"{}\" and \"{}\", expected one", *root_, root);
    return name.substr(slash + 1);
  }

  ArchiveRecord record_of(const DirectoryEntry& entry) {
    if (entry.method != 0 || entry.packed != entry.size || (entry.flags & kEncrypted) != 0)
      fail("record \"{}\" is compressed or encrypted (method {}, {} bytes of {}), expected stored",
           entry.name, entry.method, entry.packed, entry.size);
    const auto local = piece(entry.local, kLocalBytes, directory_, "a record's header");
    if (number<uint32_t>(local, 0) != kLocal)
      fail("record \"{}\" has no header at byte {}", entry.name, entry.local);
    const uint64_t name = number<uint16_t>(local, 26), extra = number<uint16_t>(local, 28);
    const auto called =
        piece(entry.local + kLocalBytes, name + extra, directory_, "a record's header");
    if (std::string_view(reinterpret_cast<const char*>(called.data()), name) != entry.name)
      fail("record \"{}\" is called otherwise in its own header", entry.name);
    const uint64_t begin = entry.local + kLocalBytes + called.size();
    const auto bytes = piece(begin, entry.size, directory_, "record \"" + entry.name + "\"");
    extents_.push_back({entry.local, begin + entry.size, {}});
    return {bytes, entry.crc32};
  }

  void require_apart() {
    std::ranges::sort(extents_, {}, &Extent::begin);
    for (size_t i = 1; i < extents_.size(); ++i)
      if (extents_[i].begin < extents_[i - 1].end)
        fail("records \"{}\" and \"{}\" overlap", extents_[i - 1].name, extents_[i].name);
  }

  std::span<const std::byte> file_;
  std::string path_;
  uint64_t entries_ = 0, directory_ = 0, directory_end_ = 0;
  std::optional<std::string> root_;
  std::vector<Extent> extents_;
};

}  // namespace

Archive::Archive(const std::filesystem::path& path) : Archive(map_file(path), path) {}

Archive::Archive(MappedFile file, const std::filesystem::path& path)
    : path_(path), file_(std::move(file)) {
  records_ = ZipReader(file_.bytes, path_.string()).read();
  require_pt2();
}

void Archive::require_pt2() const {
  const auto require = [this](std::string_view record, std::string_view expected) {
    const std::string_view got = has(record) ? text(record) : "nothing";
    if (got.substr(0, got.find_last_not_of('\n') + 1) != expected)
      throw DataError(
          fmt::format("{}: no valid .pt2 file: \"{}\" says {:.20}, expected {}\n  "
                      "torch.export.save writes what "
                      "is read here; torch.save and TorchScript do not",
                      path_.string(), record, got, expected));
  };
  require("archive_format", "pt2");
  require("archive_version", "0");
  if (has("byteorder")) require("byteorder", "little");
}

std::span<const std::byte> Archive::read(std::string_view name) const {
  const auto found = records_.find(name);
  if (found == records_.end())
    throw DataError(fmt::format("{}: has no record \"{}\"", path_.string(), name));
  const auto bytes = found->second.bytes;
  const uint32_t sum = crc32_of(bytes);
  if (sum != found->second.crc32)
    throw DataError(
        fmt::format("{}: record \"{}\" is damaged: its CRC-32 is {:08x}, expected {:08x}\n  copy "
                    "or export the file again",
                    path_.string(), name, sum, found->second.crc32));
  return bytes;
}

std::string_view Archive::text(std::string_view name) const {
  const auto bytes = read(name);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace tutti::pt2
