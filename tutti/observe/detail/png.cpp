#include "tutti/observe/detail/png.h"

#include <zlib.h>

#include <string_view>

#include "tutti/base/detail/check.h"
#include "tutti/base/error.h"

// https://www.w3.org/TR/png-3/: a signature, then chunks of length, type, data and checksum.

namespace tutti::detail {
namespace {

void add_big_endian(std::string& bytes, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8)
    bytes.push_back(static_cast<char>(static_cast<unsigned char>(value >> shift)));
}

void add_chunk(std::string& png, std::string_view type, std::string_view data) {
  add_big_endian(png, static_cast<uint32_t>(data.size()));
  const size_t begin = png.size();
  png += type;
  png += data;
  const auto* const checked = reinterpret_cast<const Bytef*>(png.data() + begin);
  add_big_endian(png, static_cast<uint32_t>(::crc32_z(0, checked, png.size() - begin)));
}

std::string deflated(std::string_view bytes) {
  uLongf length = ::compressBound(bytes.size());
  std::string packed(length, 0);
  const int code = ::compress(reinterpret_cast<Bytef*>(packed.data()), &length,
                              reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
  TUTTI_CHECK(code == Z_OK, "zlib answers {}", code);
  packed.resize(length);
  return packed;
}

}  // namespace

std::string png_of(int height, int width, int channels, std::span<const uint8_t> pixels) {
  const bool known = height > 0 && width > 0 && channels >= 1 && channels <= 4;
  // In two steps, so that no product overflows: a row has less than 2^33 bytes.
  const size_t row = known ? static_cast<size_t>(width) * static_cast<size_t>(channels) : 1;
  if (!known || pixels.size() % row != 0 || pixels.size() / row != static_cast<size_t>(height))
    throw UsageError(fmt::format(
        "an image of {} rows, {} columns and {} channels with {} bytes of pixels: sizes are at "
        "least 1, channels 1 to 4, and their product is the number of bytes",
        height, width, channels, pixels.size()));
  // The format's length of a chunk has 31 bits.
  if (pixels.size() > 1'000'000'000)
    throw UsageError(fmt::format("an image of {} bytes: at most 1000000000", pixels.size()));

  std::string rows;
  rows.reserve(pixels.size() + static_cast<size_t>(height));
  for (size_t begin = 0; begin < pixels.size(); begin += row) {
    rows.push_back(0);  // the row as it is: no differences to its neighbours
    rows.append(reinterpret_cast<const char*>(pixels.data() + begin), row);
  }
  constexpr unsigned char kColorTypes[] = {0, 4, 2, 6};  // by channels
  std::string header;
  add_big_endian(header, static_cast<uint32_t>(width));
  add_big_endian(header, static_cast<uint32_t>(height));
  header.push_back(8);
  header.push_back(static_cast<char>(kColorTypes[channels - 1]));
  header.append(3, 0);  // deflate, filters a row, not interlaced
  std::string png = "\x89PNG\r\n\x1a\n";
  add_chunk(png, "IHDR", header);
  add_chunk(png, "IDAT", deflated(rows));
  add_chunk(png, "IEND", "");
  return png;
}

}  // namespace tutti::detail
