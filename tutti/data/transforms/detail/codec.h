/// Encoded photos: recognised by their first bytes, decoded as RGBX where and as large as needed.
///
/// Thread rule: a PhotoDecoder belongs to one thread; what it gives lies in that thread's scratch
/// memory until the next photo is read there.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "tutti/data/transforms/detail/resample.h"

namespace tutti::data::detail {

struct CodecOptions {
  bool gray = false;  ///< brightness in the first channel: JPEG's own, else Pillow's of "L"
  int64_t max_pixels = 0;
};

/// Rows [top, bottom) and columns [left, right).
struct Region {
  int64_t top = 0, left = 0, bottom = 0, right = 0;
};

/// One photo, of which the header has been read. All methods throw DataError for damage.
class PhotoDecoder {
 public:
  virtual ~PhotoDecoder() = default;

  int64_t height() const { return height_; }
  int64_t width() const { return width_; }
  /// 1 to 8 as EXIF has it; 1: as it lies there.
  virtual int orientation() const = 0;
  /// Makes height and width eighths/8 of what they are (rounded up) where the format can; before
  /// read(). Whether it can.
  virtual bool scale_to(int eighths) = 0;
  /// At least those pixels; once.
  virtual Pixels read(const Region& region) = 0;

 protected:
  /// Throws DataError for a photo without pixels or with more than the limit.
  void set_size(std::string_view kind, int64_t height, int64_t width, const CodecOptions& options);

  int64_t height_ = 0, width_ = 0;
};

/// Reads the header. `bytes` must stay. Throws DataError for what is no JPEG, PNG, WebP or BMP.
std::unique_ptr<PhotoDecoder> open_photo(std::string_view bytes, const CodecOptions& options);

std::unique_ptr<PhotoDecoder> open_jpeg(std::string_view bytes, const CodecOptions& options);
std::unique_ptr<PhotoDecoder> open_png(std::string_view bytes, const CodecOptions& options);
std::unique_ptr<PhotoDecoder> open_webp(std::string_view bytes, const CodecOptions& options);
std::unique_ptr<PhotoDecoder> open_bmp(std::string_view bytes, const CodecOptions& options);

/// The orientation in a block of EXIF (from "II*" or "MM" on); 1 when it has none or is damaged.
int exif_orientation(std::string_view tiff);

/// Turns and mirrors uint8 [C, H, W] upright.
Array upright(const Array& image, int orientation);

/// Memory for decoded pixels of this thread.
Scratch& decoded_scratch();

/// RGBX to brightness in the first channel, in place: (19595 R + 38470 G + 7471 B) / 2^16, rounded.
void make_gray(uint8_t* rgbx, int64_t pixels);

}  // namespace tutti::data::detail
