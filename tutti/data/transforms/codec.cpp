#include "tutti/data/transforms/detail/codec.h"

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/printable.h"
#include "tutti/data/sample.h"

namespace tutti::data::detail {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kPngMagic = "\x89PNG\r\n\x1a\n";

std::string first_bytes(std::string_view bytes) {
  std::string hex;
  for (unsigned char byte : bytes.substr(0, 8)) hex += fmt::format(" {:02x}", byte);
  return hex.substr(1);
}

// Numbers of an EXIF block in the order of bytes that it names.
class Tiff {
 public:
  explicit Tiff(std::string_view bytes) : bytes_(bytes), big_(bytes.starts_with("MM")) {}

  bool valid() const { return bytes_.starts_with("II*\0"sv) || bytes_.starts_with("MM\0*"sv); }
  uint32_t number(size_t at, size_t size) const {
    if (at > bytes_.size() || size > bytes_.size() - at) return 0;
    uint32_t value = 0;
    for (size_t i = 0; i < size; ++i)
      value = value << 8 | static_cast<unsigned char>(bytes_[at + (big_ ? i : size - 1 - i)]);
    return value;
  }

 private:
  std::string_view bytes_;
  bool big_;
};

}  // namespace

void PhotoDecoder::set_size(std::string_view kind, int64_t height, int64_t width,
                            const CodecOptions& options) {
  if (height < 1 || width < 1)
    throw DataError(
        fmt::format("{} photo of {} x {} pixels: expected at least one", kind, width, height));
  if (height > options.max_pixels / width)
    throw DataError(
        fmt::format("{} photo of {} x {} pixels: expected at most {} in all\n  a few bytes can "
                    "claim to be a huge photo; if this one is meant, make it smaller or, in a "
                    "program, raise `max_pixels`",
                    kind, width, height, options.max_pixels));
  height_ = height;
  width_ = width;
}

std::unique_ptr<PhotoDecoder> open_photo(std::string_view bytes, const CodecOptions& options) {
  if (bytes.starts_with("\xff\xd8\xff")) return open_jpeg(bytes, options);
  if (bytes.starts_with(kPngMagic)) return open_png(bytes, options);
  if (bytes.starts_with("RIFF") && bytes.substr(std::min<size_t>(8, bytes.size()), 4) == "WEBP")
    return open_webp(bytes, options);
  if (bytes.starts_with("BM")) return open_bmp(bytes, options);
  if (bytes.empty()) throw DataError("got 0 bytes, expected a JPEG, PNG, WebP or BMP photo");
  throw DataError(fmt::format(
      "got {} bytes that begin with {} (\"{}\"), expected a JPEG (ff d8 ff), PNG (89 50 4e 47), "
      "WebP (52 49 46 46) or BMP photo (42 4d)",
      bytes.size(), first_bytes(bytes), printable(bytes.substr(0, 8))));
}

int exif_orientation(std::string_view bytes) {
  const Tiff tiff(bytes);
  if (!tiff.valid()) return 1;
  constexpr uint32_t kOrientation = 0x0112;
  constexpr size_t kEntryBytes = 12;
  const size_t directory = tiff.number(4, 4);
  const size_t entries = tiff.number(directory, 2);
  for (size_t i = 0; i < entries; ++i) {
    const size_t entry = directory + 2 + i * kEntryBytes;
    if (tiff.number(entry, 2) != kOrientation) continue;
    const uint32_t value = tiff.number(entry + 8, 2);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

Array upright(const Array& image, int orientation) {
  if (orientation == 1) return image;
  const int64_t channels = image.shape()[0], height = image.shape()[1], width = image.shape()[2];
  const bool transposed = orientation >= 5;
  // Of the source, after a transposition if there is one.
  const bool mirror = orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7;
  const bool upend = orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
  Array out = make_array(DType::uint8,
                         {channels, transposed ? width : height, transposed ? height : width});
  const int64_t rows = out.shape()[1], columns = out.shape()[2];
  const auto* from = static_cast<const uint8_t*>(image.data());
  auto* to = static_cast<uint8_t*>(out.data());
  for (int64_t c = 0; c < channels; ++c, from += height * width)
    for (int64_t y = 0; y < rows; ++y)
      for (int64_t x = 0; x < columns; ++x) {
        const int64_t sy = upend ? rows - 1 - y : y, sx = mirror ? columns - 1 - x : x;
        *to++ = transposed ? from[sx * width + sy] : from[sy * width + sx];
      }
  return out;
}

Scratch& decoded_scratch() {
  thread_local Scratch scratch;
  return scratch;
}

void make_gray(uint8_t* rgbx, int64_t pixels) {
  for (int64_t i = 0; i < pixels; ++i, rgbx += 4)
    rgbx[0] = static_cast<uint8_t>(
        (19595U * rgbx[0] + 38470U * rgbx[1] + 7471U * rgbx[2] + 0x8000U) >> 16);
}

}  // namespace tutti::data::detail
