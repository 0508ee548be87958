#include "tutti/data/npy.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string_view>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/data/detail/gzip.h"
#include "tutti/data/sample.h"

namespace tutti::data {
namespace {

static_assert(std::endian::native == std::endian::little, "files are read as they lie in memory");

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::string_view kMagicInHex = "93 4e 55 4d 50 59";
constexpr size_t kFixedBytes = 8;  // magic and version
// NumPy itself refuses headers beyond 10,000 bytes; one of numbers needs less than 1,000.
constexpr size_t kMostNpyHeaderBytes = 64 << 10;

constexpr std::string_view kExpected =
    "expected one of bool, int8..int64, uint8..uint64, float16, float32, float64";

struct NpyKind {
  std::string_view code;
  DType dtype;
};
constexpr NpyKind kNpyKinds[] = {
    {"b1", DType::boolean}, {"u1", DType::uint8},   {"i1", DType::int8},    {"u2", DType::uint16},
    {"i2", DType::int16},   {"u4", DType::uint32},  {"i4", DType::int32},   {"u8", DType::uint64},
    {"i8", DType::int64},   {"f2", DType::float16}, {"f4", DType::float32}, {"f8", DType::float64},
};

// Reads the header's Python dictionary: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3),
// }. Nothing but such a dictionary of exactly these three keys is taken.
class Dictionary {
 public:
  Dictionary(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  std::string descr;
  bool fortran_order = false;
  std::vector<int64_t> shape;

  void parse() {
    bool seen[3] = {};
    expect('{');
    while (!accept('}')) {
      const std::string key = quoted();
      expect(':');
      const int which = key == "descr" ? 0 : key == "fortran_order" ? 1 : key == "shape" ? 2 : -1;
      if (which < 0 || seen[which]) fail("key \"" + key + "\" is unknown or there twice");
      seen[which] = true;
      value(which);
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_blanks();
    if (at_ != text_.size()) fail("text follows the dictionary");
    if (!seen[0] || !seen[1] || !seen[2]) fail("a key of descr, fortran_order, shape is missing");
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw DataError(fmt::format("{}: damaged .npy header at character {}: {}", where_, at_, why));
  }

  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool accept(char wanted) {
    skip_blanks();
    if (at_ == text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  void expect(char wanted) {
    if (!accept(wanted)) fail(fmt::format("expected '{}'", wanted));
  }
  bool accept_word(std::string_view word) {
    skip_blanks();
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  void value(int which) {
    if (which == 0) {
      skip_blanks();
      if (at_ < text_.size() && text_[at_] == '[')
        fail(fmt::format("dtype is a record; {}", kExpected));
      descr = quoted();
    } else if (which == 1) {
      fortran_order = accept_word("True");
      if (!fortran_order && !accept_word("False")) fail("fortran_order: expected True or False");
    } else {
      tuple();
    }
  }

  std::string quoted() {
    skip_blanks();
    if (at_ == text_.size() || (text_[at_] != '\'' && text_[at_] != '"')) fail("expected a quote");
    const size_t begin = at_ + 1;
    const size_t end = text_.find(text_[at_], begin);
    if (end == std::string_view::npos) fail("a quote is not closed");
    at_ = end + 1;
    return std::string(text_.substr(begin, end - begin));
  }

  // (), (3,), (3, 4) and (3, 4,); Python 2 wrote 3L for 3.
  void tuple() {
    expect('(');
    while (!accept(')')) {
      shape.push_back(number());
      if (accept(',')) continue;
      if (shape.size() == 1) fail("shape: expected a comma, one number alone is no tuple");
      expect(')');
      break;
    }
  }

  int64_t number() {
    skip_blanks();
    const size_t begin = at_;
    int64_t result = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      if (__builtin_mul_overflow(result, 10, &result) ||
          __builtin_add_overflow(result, text_[at_] - '0', &result))
        fail("shape: the number is too large");
    }
    if (at_ == begin) fail("shape: expected a number >= 0");
    if (at_ < text_.size() && text_[at_] == 'L') ++at_;
    return result;
  }

  std::string_view text_;
  const std::string& where_;
  size_t at_ = 0;
};

void set_dtype(const std::string& descr, const std::string& where, NpyHeader& header) {
  const std::string_view order = std::string_view(descr).substr(0, 1);
  const std::string_view code = descr.empty() ? "" : std::string_view(descr).substr(1);
  const auto kind = std::find_if(std::begin(kNpyKinds), std::end(kNpyKinds),
                                 [&](const NpyKind& known) { return known.code == code; });
  if (kind == std::end(kNpyKinds) ||
      std::string_view("<>|=").find(order) == std::string_view::npos ||
      (order == "|" && size_of(kind->dtype) > 1))
    throw DataError(fmt::format("{}: got dtype '{}', {}", where, descr, kExpected));
  header.dtype = kind->dtype;
  header.swapped = order == ">" && size_of(kind->dtype) > 1;
}

void set_shape(std::vector<int64_t> shape, const std::string& where, NpyHeader& header) {
  const auto bytes = bytes_of_shape(header.dtype, shape);
  if (!bytes)
    throw DataError(fmt::format("{}: shape [{}] of {} is larger than any memory", where,
                                fmt::join(shape, ", "), name_of(header.dtype)));
  header.shape = std::move(shape);
  header.num_elements = *bytes / size_of(header.dtype);
}

// Where the dictionary lies: after magic, version and a length of 2 bytes (version 1) or 4.
struct HeaderPlace {
  size_t begin = 0;
  size_t end = 0;
};

HeaderPlace find_header(std::span<const std::byte> bytes, const std::string& where) {
  const auto* text = reinterpret_cast<const char*>(bytes.data());
  const auto* octets = reinterpret_cast<const uint8_t*>(bytes.data());
  if (bytes.size() < kMagic.size() || std::string_view(text, kMagic.size()) != kMagic)
    throw DataError(fmt::format(
        "{}: wrong magic: got {:02x}, expected {} (\\x93NUMPY); this is no .npy file", where,
        fmt::join(octets, octets + std::min(bytes.size(), kMagic.size()), " "), kMagicInHex));
  const auto truncated = [&](size_t needed) {
    return DataError(fmt::format("{}: the header is cut off: got {} bytes, expected {} or more",
                                 where, bytes.size(), needed));
  };
  if (bytes.size() < kFixedBytes) throw truncated(kFixedBytes);
  const int major = octets[6];
  if (major < 1 || major > 3 || octets[7] != 0)
    throw DataError(fmt::format("{}: got .npy version {}.{}, expected 1.0, 2.0 or 3.0", where,
                                major, octets[7]));
  const size_t length_bytes = major == 1 ? 2 : 4;
  HeaderPlace place{.begin = kFixedBytes + length_bytes};
  if (bytes.size() < place.begin) throw truncated(place.begin);
  size_t length = 0;
  for (size_t i = 0; i < length_bytes; ++i) length |= size_t{octets[kFixedBytes + i]} << (8 * i);
  if (length > kMostNpyHeaderBytes)
    throw DataError(
        fmt::format("{}: damaged .npy header: got a length of {} bytes, expected at "
                    "most {}",
                    where, length, kMostNpyHeaderBytes));
  place.end = place.begin + length;
  if (bytes.size() < place.end) throw truncated(place.end);
  return place;
}

void swap_elements(void* data, int64_t num_elements, int64_t element_bytes) {
  auto* at = static_cast<char*>(data);
  for (int64_t i = 0; i < num_elements; ++i, at += element_bytes)
    std::reverse(at, at + element_bytes);
}

[[noreturn]] void fail_size(const std::string& where, const NpyHeader& header, int64_t got) {
  const int64_t expected = header.data_offset + header.num_bytes();
  throw DataError(fmt::format(
      "{}: {}: got {} bytes, expected {} ({} of header, {} for {} [{}])\n  fetch the file again",
      where, got < expected ? "truncated" : "bytes left over", got, expected, header.data_offset,
      header.num_bytes(), name_of(header.dtype), fmt::join(header.shape, ", ")));
}

Array read_plain(const std::filesystem::path& path) {
  const MappedFile file = map_file(path);
  const std::string where = path.string();
  const NpyHeader header = parse_npy_header(file.bytes, where);
  const auto got = static_cast<int64_t>(file.bytes.size());
  if (header.num_bytes() != got - header.data_offset) fail_size(where, header, got);
  const std::byte* first = file.bytes.data() + header.data_offset;
  const auto alignment = static_cast<uintptr_t>(size_of(header.dtype));
  if (!header.swapped && reinterpret_cast<uintptr_t>(first) % alignment == 0)
    return Array::view(const_cast<std::byte*>(first), header.dtype, header.shape, file.owner);
  Array copy = make_array(header.dtype, header.shape);
  if (header.num_bytes() > 0)
    std::memcpy(copy.data(), first, static_cast<size_t>(header.num_bytes()));
  if (header.swapped) swap_elements(copy.data(), header.num_elements, size_of(header.dtype));
  return copy;
}

// The header of a gzipped file, read piece by piece: no more is unpacked than belongs to it.
NpyHeader read_header(detail::GzipReader& reader, const std::string& where) {
  std::vector<std::byte> bytes(kFixedBytes + 4);
  bytes.resize(reader.read(bytes));
  if (bytes.size() < kFixedBytes + 4) return parse_npy_header(bytes, where);
  const auto octet = [&](size_t i) { return std::to_integer<size_t>(bytes[i]); };
  size_t length = octet(8) | octet(9) << 8;
  size_t end = 10 + length;
  if (octet(6) != 1) {
    length |= octet(10) << 16 | octet(11) << 24;
    end = 12 + length;
  }
  if (length > kMostNpyHeaderBytes || end < bytes.size()) return parse_npy_header(bytes, where);
  const size_t have = bytes.size();
  bytes.resize(end);
  bytes.resize(have + reader.read(std::span(bytes).subspan(have)));
  return parse_npy_header(bytes, where);
}

Array read_gzipped(const std::filesystem::path& path) {
  const std::string where = path.string();
  const MappedFile file = map_file(path);
  detail::GzipReader reader(file.bytes, where);
  const NpyHeader header = read_header(reader, where);
  // Deflate cannot shrink by more than 1032:1: a larger claim is caught before memory is taken.
  const auto most = static_cast<int64_t>(file.bytes.size()) * 1032;
  if (header.num_bytes() > most)
    throw DataError(fmt::format(
        "{}: truncated or damaged: got {} compressed bytes, expected data for {} [{}] ({} bytes)",
        where, file.bytes.size(), name_of(header.dtype), fmt::join(header.shape, ", "),
        header.num_bytes()));
  detail::require_unpackable(header.num_bytes(), std::ssize(file.bytes), where);
  Array array = make_array(header.dtype, header.shape);
  const auto expected = static_cast<size_t>(header.num_bytes());
  const size_t got = reader.read({static_cast<std::byte*>(array.data()), expected});
  std::byte one_more{};
  const size_t beyond = got == expected ? reader.read({&one_more, 1}) : 0;
  // How much is left over is not known without unpacking it: at least one byte.
  if (got + beyond != expected)
    fail_size(where, header, header.data_offset + static_cast<int64_t>(got + beyond));
  if (header.swapped) swap_elements(array.data(), header.num_elements, size_of(header.dtype));
  return array;
}

// All before the elements of a version 1.0 file, padded to a multiple of 64.
std::string npy_header(const Array& array, const std::string& where) {
  const auto* kind =
      std::find_if(std::begin(kNpyKinds), std::end(kNpyKinds),
                   [&](const NpyKind& known) { return known.dtype == array.dtype(); });
  if (kind == std::end(kNpyKinds))
    throw UsageError(fmt::format("{}: .npy has no dtype for {}", where, array.to_string()));
  std::string shape;
  for (int64_t dimension : array.shape()) shape += fmt::format("{}, ", dimension);
  std::string header = fmt::format("{{'descr': '{}{}', 'fortran_order': False, 'shape': ({}), }}",
                                   size_of(array.dtype()) == 1 ? '|' : '<', kind->code, shape);
  constexpr size_t kPrefix = kFixedBytes + 2;
  const size_t whole = (kPrefix + header.size() + 1 + 63) / 64 * 64;
  header.append(whole - kPrefix - header.size() - 1, ' ');
  header += '\n';
  std::string prefix(kMagic);
  prefix += {'\x01', '\x00', static_cast<char>(header.size() & 0xff),
             static_cast<char>(header.size() >> 8)};
  return prefix + header;
}

}  // namespace

NpyHeader parse_npy_header(std::span<const std::byte> bytes, const std::string& where) {
  const HeaderPlace place = find_header(bytes, where);
  const auto* text = reinterpret_cast<const char*>(bytes.data());
  Dictionary dictionary({text + place.begin, place.end - place.begin}, where);
  dictionary.parse();
  NpyHeader header;
  header.data_offset = static_cast<int64_t>(place.end);
  set_dtype(dictionary.descr, where, header);
  if (dictionary.fortran_order && dictionary.shape.size() > 1)
    throw DataError(
        fmt::format("{}: got Fortran order with shape [{}], expected C order\n  save it again with "
                    "numpy.ascontiguousarray",
                    where, fmt::join(dictionary.shape, ", ")));
  set_shape(std::move(dictionary.shape), where, header);
  return header;
}

Array read_npy(const std::filesystem::path& path) {
  return path.extension() == ".gz" ? read_gzipped(path) : read_plain(path);
}

void write_npy(const std::filesystem::path& path, const Array& array) {
  const std::string header = npy_header(array, path.string());
  const std::array pieces{std::as_bytes(std::span(header)),
                          std::span(static_cast<const std::byte*>(array.data()),
                                    static_cast<size_t>(array.num_bytes()))};
  write_file_atomically(path, pieces);
}

std::string npy_bytes(const Array& array) {
  std::string bytes = npy_header(array, "npy_bytes");
  bytes.append(static_cast<const char*>(array.data()), static_cast<size_t>(array.num_bytes()));
  return bytes;
}

}  // namespace tutti::data
