// BMP as it is written by nearly everybody: pixels that are not compressed. Ours, for no library of
// those that we need reads it: libjpeg-turbo's TurboJPEG does, but only files that have a path.
#include <array>
#include <cstdlib>
#include <cstring>

#include "tutti/base/error.h"
#include "tutti/data/transforms/detail/codec.h"

namespace tutti::data::detail {
namespace {

// Places in a file: BITMAPFILEHEADER of 14 bytes, then BITMAPCOREHEADER (12 bytes), or
// BITMAPINFOHEADER (40) and what later ones add at its end.
constexpr size_t kFileHeader = 14, kCoreHeader = 12, kInfoHeader = 40, kLargestHeader = 124;
constexpr size_t kPixelsAt = 10, kHeaderSize = 14, kMasks = kFileHeader + kInfoHeader;
constexpr uint32_t kNotCompressed = 0, kBitFields = 3;

class BmpDecoder final : public PhotoDecoder {
 public:
  BmpDecoder(std::string_view bytes, const CodecOptions& options)
      : gray_(options.gray), bytes_(bytes) {
    const size_t header = number(kHeaderSize, 4);
    if (header != kCoreHeader && (header < kInfoHeader || header > kLargestHeader))
      throw DataError(
          fmt::format("damaged BMP of {} bytes: a header of {}, expected {} or {} to {}",
                      bytes.size(), header, kCoreHeader, kInfoHeader, kLargestHeader));
    core_ = header == kCoreHeader;
    const auto width = static_cast<int32_t>(core_ ? number(18, 2) : number(18, 4));
    const auto height = static_cast<int32_t>(core_ ? number(20, 2) : number(22, 4));
    top_down_ = height < 0;
    set_size("BMP", std::abs(int64_t{height}), width, options);
    bits_ = number(core_ ? 24 : 28, 2);
    require_plain(core_ ? kNotCompressed : number(30, 4));
    stride_ = (width_ * bits_ + 31) / 32 * 4;
    pixels_ = number(kPixelsAt, 4);
    if (bits_ <= 8) read_palette(kFileHeader + header);
    const auto there = static_cast<int64_t>(bytes.size());
    if (pixels_ < static_cast<int64_t>(kFileHeader + header))
      throw DataError(
          fmt::format("damaged BMP of {} bytes: its pixels begin at byte {}, expected "
                      "{} or more",
                      there, pixels_, kFileHeader + header));
    if (stride_ * height_ > there - pixels_)
      throw DataError(fmt::format("cut off BMP: got {} bytes, expected {} for {} x {} pixels",
                                  there, pixels_ + stride_ * height_, width_, height_));
  }

  int orientation() const override { return 1; }
  bool scale_to(int) override { return false; }

  Pixels read(const Region&) override {
    uint8_t* pixels = decoded_scratch().at_least(4 * (height_ * width_ + kPixelsBeyond));
    for (int64_t y = 0; y < height_; ++y) {
      const int64_t row = top_down_ ? y : height_ - 1 - y;
      read_line(bytes_.data() + pixels_ + row * stride_, pixels + 4 * y * width_);
    }
    if (gray_) make_gray(pixels, height_ * width_);
    return {.data = pixels, .stride = 4 * width_, .height = height_, .width = width_};
  }

 private:
  // Little-endian.
  uint32_t number(size_t at, size_t size) const {
    if (at + size > bytes_.size())
      throw DataError(
          fmt::format("cut off BMP: got {} bytes, expected {} or more", bytes_.size(), at + size));
    uint32_t value = 0;
    for (size_t i = size; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes_[at + i]);
    return value;
  }

  void require_plain(uint32_t compression) const {
    const bool known = bits_ == 1 || bits_ == 4 || bits_ == 8 || bits_ == 24 || bits_ == 32;
    const bool usual_masks = bits_ == 32 && compression == kBitFields &&
                             number(kMasks, 4) == 0xff0000 && number(kMasks + 4, 4) == 0xff00 &&
                             number(kMasks + 8, 4) == 0xff;
    if (known && (compression == kNotCompressed || usual_masks)) return;
    throw DataError(
        fmt::format("BMP of {} bits a pixel, compression {}: expected 1, 4, 8, 24 or 32 bits, not "
                    "compressed\n  write it again, as PNG",
                    bits_, compression));
  }

  // RGB by index. Blue comes first in the file, and in all but the oldest header a fourth byte.
  void read_palette(size_t at) {
    const size_t said = core_ ? 0 : number(46, 4);
    colours_ = said == 0 ? 1U << bits_ : std::min<size_t>(said, 1U << bits_);
    const size_t each = core_ ? 3 : 4;
    for (size_t i = 0; i < colours_; ++i)
      for (size_t c = 0; c < 3; ++c)
        palette_[i][c] = static_cast<uint8_t>(number(at + each * i + 2 - c, 1));
  }

  void read_line(const char* line, uint8_t* rgbx) const {
    const auto* from = reinterpret_cast<const uint8_t*>(line);
    for (int64_t x = 0; x < width_; ++x, rgbx += 4) {
      if (bits_ <= 8) {
        const int64_t bit = x * bits_;
        const auto index = static_cast<size_t>(from[bit / 8] >> (8 - bits_ - bit % 8)) &
                           ((size_t{1} << bits_) - 1);
        if (index >= colours_)
          throw DataError(
              fmt::format("damaged BMP: colour {} of a palette of {}", index, colours_));
        std::memcpy(rgbx, palette_[index].data(), 3);
      } else {
        const uint8_t* bgr = from + x * (bits_ / 8);
        rgbx[0] = bgr[2], rgbx[1] = bgr[1], rgbx[2] = bgr[0];
      }
      rgbx[3] = 0xff;
    }
  }

  bool gray_;
  std::string_view bytes_;
  bool core_ = false, top_down_ = false;
  int64_t bits_ = 0, stride_ = 0, pixels_ = 0;
  size_t colours_ = 0;
  std::array<std::array<uint8_t, 3>, 256> palette_{};
};

}  // namespace

std::unique_ptr<PhotoDecoder> open_bmp(std::string_view bytes, const CodecOptions& options) {
  return std::make_unique<BmpDecoder>(bytes, options);
}

}  // namespace tutti::data::detail
