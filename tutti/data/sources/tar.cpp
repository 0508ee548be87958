#include "tutti/data/sources/detail/tar.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

#include "tutti/base/error.h"
#include "tutti/base/typed.h"

namespace tutti::data::detail {
namespace {

// Fields of a header: POSIX.1-1988 ustar; prefix is ustar's alone, GNU has other things there.
struct TarField {
  size_t begin = 0;
  size_t bytes = 0;
};
constexpr TarField kTarName{0, 100}, kTarMode{100, 8}, kTarOwner{108, 8}, kTarGroup{116, 8},
    kTarSize{124, 12}, kTarTime{136, 12}, kTarChecksum{148, 8}, kTarMagic{257, 8},
    kTarPrefix{345, 155};
constexpr size_t kTarType = 156;
// Names and pax headers of more than this are an attack, or damage.
constexpr int64_t kMostNameBytes = 1 << 20;

std::string_view field_of(std::string_view block, TarField field) {
  return block.substr(field.begin, field.bytes);
}

std::string_view until_zero(std::string_view text) { return text.substr(0, text.find('\0')); }

// A number: octal digits, or, where the first bit is set, 95 bits after it (GNU, for 8 GiB and
// more).
int64_t tar_number(std::string_view field, const char* what) {
  uint64_t value = 0;
  if ((static_cast<unsigned char>(field[0]) & 0x80) != 0) {
    for (size_t i = 0; i < field.size(); ++i) {
      const auto byte = static_cast<unsigned char>(i == 0 ? field[i] & 0x7f : field[i]);
      if (value >> 55 != 0) throw DataError(fmt::format("{} is larger than any file", what));
      value = value << 8 | byte;
    }
    return static_cast<int64_t>(value);
  }
  while (field.starts_with(' ')) field.remove_prefix(1);
  field = field.substr(0, field.find_first_of(std::string_view(" \0", 2)));
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value, 8);
  if (!field.empty() && (error != std::errc() || end != field.data() + field.size()))
    throw DataError(fmt::format("{} is no octal number", what));
  return static_cast<int64_t>(value);
}

// The sum of a header's bytes, its checksum taken as blanks; old writers added signed bytes.
bool checksum_is_right(std::string_view block) {
  int64_t as_unsigned = 0, as_signed = 0;
  for (size_t i = 0; i < block.size(); ++i) {
    const bool own = i >= kTarChecksum.begin && i < kTarChecksum.begin + kTarChecksum.bytes;
    as_unsigned += own ? ' ' : static_cast<unsigned char>(block[i]);
    as_signed += own ? ' ' : static_cast<signed char>(block[i]);
  }
  const int64_t said = tar_number(field_of(block, kTarChecksum), "the checksum");
  return said == as_unsigned || said == as_signed;
}

bool all_zeros(std::string_view bytes) {
  return bytes.find_first_not_of('\0') == std::string_view::npos;
}

int64_t padded_bytes(int64_t bytes) { return (bytes + kTarBlock - 1) / kTarBlock * kTarBlock; }

// What pax headers and long names say of the member that follows.
struct Said {
  std::optional<std::string> name;
  std::optional<int64_t> bytes;
};

// Records of a pax header: "30 path=some/long/name\n", the number counts the whole record.
void read_pax(std::string_view text, Said& said) {
  while (!text.empty()) {
    size_t length = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), length);
    const auto digits = static_cast<size_t>(end - text.data());
    if (error != std::errc() || length <= digits + 1 || length > text.size() ||
        text[digits] != ' ' || text[length - 1] != '\n')
      throw DataError("a pax header is damaged: expected \"LENGTH KEY=VALUE\"");
    const std::string_view record = text.substr(digits + 1, length - digits - 2);
    const size_t equals = record.find('=');
    if (equals == std::string_view::npos) throw DataError("a pax header is damaged: no \"=\"");
    const std::string_view key = record.substr(0, equals), value = record.substr(equals + 1);
    if (key.starts_with("GNU.sparse."))
      throw DataError("a sparse file in a tar is not read\n  pack it without --sparse");
    if (key == "path") said.name = std::string(value);
    if (key == "size") {
      said.bytes = number_in<int64_t>(value);
      if (!said.bytes || *said.bytes < 0)
        throw DataError("a pax header is damaged: its size is no number");
    }
    text.remove_prefix(length);
  }
}

void refuse_packed(FileWindow& file) {
  constexpr std::pair<std::string_view, const char*> kPacked[] = {{"\x1f\x8b", "gunzip"},
                                                                  {"\x28\xb5\x2f\xfd", "unzstd"},
                                                                  {"BZh", "bunzip2"},
                                                                  {"\xfd"
                                                                   "7zXZ",
                                                                   "unxz"}};
  const std::string_view first = file.at(0, std::min<int64_t>(8, file.file_bytes()));
  for (const auto& [magic, unpack] : kPacked)
    if (first.starts_with(magic))
      throw UsageError(fmt::format(
          "{}: this tar is packed, and its members cannot be read one by one\n  unpack it once: "
          "{} (photos hardly shrink)",
          file.path().string(), unpack));
}

// One archive, header by header.
class TarWalk {
 public:
  explicit TarWalk(FileWindow& file) : file_(file) {}

  int64_t byte() const noexcept { return byte_; }

  // The next member, extended headers applied; nothing at the end.
  std::optional<TarHeader> next() {
    while (true) {
      const std::string_view block = block_at(byte_);
      if (all_zeros(block)) {
        require_nothing_after();
        return std::nullopt;
      }
      TarHeader header = parse_tar_header(block);
      if (!is_extended(header.type)) {
        if (said_.name) header.name = *said_.name;
        if (said_.bytes) header.bytes = *said_.bytes;
        said_ = {};
      }
      data_ = byte_ + kTarBlock;
      if (!file_.holds(data_, static_cast<uint64_t>(header.bytes)))
        throw DataError(fmt::format("the file is cut off: {} bytes are left, expected {} of \"{}\"",
                                    file_.file_bytes() - data_, header.bytes, header.name));
      byte_ = data_ + padded_bytes(header.bytes);
      if (!take_extended(header)) return header;
    }
  }

  int64_t data() const noexcept { return data_; }

 private:
  std::string_view block_at(int64_t byte) {
    if (!file_.holds(byte, kTarBlock))
      throw DataError(
          fmt::format("the file is cut off: {} bytes are left, expected a header or the "
                      "two empty blocks that end a tar",
                      std::max<int64_t>(0, file_.file_bytes() - byte)));
    return file_.at(byte, kTarBlock);
  }

  // pax headers, of one member or all, and GNU's long names of members and of links.
  static bool is_extended(char type) {
    return std::string_view("xgLK").find(type) != std::string_view::npos;
  }

  bool take_extended(const TarHeader& header) {
    if (!is_extended(header.type)) return false;
    if (header.bytes > kMostNameBytes)
      throw DataError(fmt::format("a header of {} bytes for one member", header.bytes));
    const std::string_view text = file_.at(data_, header.bytes);
    if (header.type == 'x') read_pax(text, said_);
    if (header.type == 'L') said_.name = std::string(until_zero(text));
    return true;
  }

  // A second archive behind the end would be passed over in silence.
  void require_nothing_after() {
    const int64_t rest = std::min<int64_t>(file_.file_bytes() - byte_, 64 << 10);
    if (all_zeros(file_.at(byte_, rest))) return;
    throw DataError(
        "bytes follow the end of the tar\n  tars are joined by tar --concatenate, not "
        "by cat");
  }

  FileWindow& file_;
  int64_t byte_ = 0;
  int64_t data_ = 0;
  Said said_;
};

}  // namespace

TarHeader parse_tar_header(std::string_view block) {
  if (block.size() != kTarBlock) throw DataError("a header is cut off");
  if (!checksum_is_right(block)) throw DataError("the checksum of a header is wrong");
  TarHeader header;
  header.type = block[kTarType];
  header.name = until_zero(field_of(block, kTarName));
  const std::string_view magic = field_of(block, kTarMagic);
  const std::string_view prefix = until_zero(field_of(block, kTarPrefix));
  if (magic.starts_with(std::string_view("ustar\0", 6)) && !prefix.empty())
    header.name = fmt::format("{}/{}", prefix, header.name);
  header.bytes = tar_number(field_of(block, kTarSize), "the size of a member");
  if (header.bytes < 0 || header.bytes > std::numeric_limits<int64_t>::max() / 2)
    throw DataError("the size of a member is larger than any file");
  if (header.type == 'S')
    throw DataError("a sparse file in a tar is not read\n  pack it without --sparse");
  // Links and folders have no bytes, whatever their size says.
  if (header.type >= '1' && header.type <= '6') header.bytes = 0;
  return header;
}

void for_each_member(
    FileWindow& file,
    const std::function<void(const std::string& name, int64_t offset, int64_t bytes)>& visit) {
  refuse_packed(file);
  TarWalk walk(file);
  int64_t begin = 0;
  try {
    while (const auto header = walk.next()) {
      if (header->type == '0' || header->type == '\0' || header->type == '7')
        visit(header->name, walk.data(), header->bytes);
      begin = walk.byte();
    }
  } catch (const DataError& error) {
    throw DataError(fmt::format("{}, byte {}: {}{}", file.path().string(), begin, error.what(),
                                begin == 0 ? " (this may be no tar)" : ""));
  }
}

namespace {

void put_octal(std::string& block, TarField field, int64_t value) {
  const std::string digits = fmt::format("{:0{}o}", value, field.bytes - 1);
  block.replace(field.begin, digits.size(), digits);
}

// The same bytes for the same content: owner, group and time are 0, as WebDataset's own writer can
// be told.
void append_tar_header(std::string& archive, std::string_view name, int64_t bytes, char type) {
  std::string block(kTarBlock, '\0');
  block.replace(kTarName.begin, std::min(name.size(), kTarName.bytes),
                name.substr(0, kTarName.bytes));
  put_octal(block, kTarMode, 0444);
  put_octal(block, kTarOwner, 0);
  put_octal(block, kTarGroup, 0);
  put_octal(block, kTarSize, bytes);
  put_octal(block, kTarTime, 0);
  block[kTarType] = type;
  block.replace(kTarMagic.begin, kTarMagic.bytes, std::string_view("ustar  \0", 8));  // GNU's
  block.replace(kTarChecksum.begin, kTarChecksum.bytes, kTarChecksum.bytes, ' ');
  int64_t sum = 0;
  for (const char byte : block) sum += static_cast<unsigned char>(byte);
  block.replace(kTarChecksum.begin, 7, fmt::format("{:06o}", sum) + '\0');
  archive += block;
}

void append_tar_data(std::string& archive, std::string_view data) {
  archive += data;
  archive.append(static_cast<size_t>(padded_bytes(std::ssize(data)) - std::ssize(data)), '\0');
}

}  // namespace

void append_tar_member(std::string& archive, std::string_view name, std::string_view data) {
  if (name.size() > kTarName.bytes) {
    append_tar_header(archive, "././@LongLink", std::ssize(name) + 1, 'L');
    append_tar_data(archive, std::string(name) + '\0');
  }
  append_tar_header(archive, name, std::ssize(data), '0');
  append_tar_data(archive, data);
}

int64_t tar_member_bytes(std::string_view name, int64_t bytes) {
  const bool is_long = name.size() > kTarName.bytes;
  return (is_long ? kTarBlock + padded_bytes(std::ssize(name) + 1) : 0) + kTarBlock +
         padded_bytes(bytes);
}

std::string tar_end() { return std::string(2 * kTarBlock, '\0'); }

}  // namespace tutti::data::detail
