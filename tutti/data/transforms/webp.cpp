#include <webp/decode.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/data/transforms/detail/codec.h"

namespace tutti::data::detail {
namespace {

const uint8_t* octets_of(std::string_view bytes) {
  return reinterpret_cast<const uint8_t*>(bytes.data());
}

std::string_view words_of(VP8StatusCode status) {
  switch (status) {
    case VP8_STATUS_NOT_ENOUGH_DATA:
    case VP8_STATUS_SUSPENDED: return "it is cut off";
    case VP8_STATUS_BITSTREAM_ERROR: return "its data makes no sense";
    case VP8_STATUS_UNSUPPORTED_FEATURE: return "it has a feature that libwebp does not know";
    case VP8_STATUS_OUT_OF_MEMORY: return "no memory";
    default: return "it cannot be decoded";
  }
}

class WebpDecoder final : public PhotoDecoder {
 public:
  WebpDecoder(std::string_view bytes, const CodecOptions& options)
      : bytes_(bytes), gray_(options.gray) {
    WebPBitstreamFeatures features;
    require(WebPGetFeatures(octets_of(bytes), bytes.size(), &features));
    if (features.has_animation != 0)
      throw DataError(
          fmt::format("WebP animation of {} bytes, expected a photo\n  save one picture of it "
                      "alone",
                      bytes.size()));
    set_size("WebP", features.height, features.width, options);
  }

  // From the chunks of the container: a name of 4 bytes, a size, content padded to an even size.
  int orientation() const override {
    constexpr size_t kHeaderBytes = 8;
    std::string_view rest = bytes_.substr(12);
    while (rest.size() >= kHeaderBytes) {
      const uint8_t* size = octets_of(rest) + 4;
      const size_t length = size[0] | size[1] << 8 | size[2] << 16 | size_t{size[3]} << 24;
      if (rest.starts_with("EXIF")) {
        std::string_view exif = rest.substr(kHeaderBytes, length);
        if (exif.starts_with("Exif")) exif.remove_prefix(std::min<size_t>(6, exif.size()));
        return exif_orientation(exif);
      }
      rest.remove_prefix(std::min(rest.size(), kHeaderBytes + length + length % 2));
    }
    return 1;
  }

  bool scale_to(int) override { return false; }

  Pixels read(const Region&) override {
    const int64_t stride = 4 * width_;
    uint8_t* pixels = decoded_scratch().at_least(height_ * stride + 4 * kPixelsBeyond);
    WebPDecoderConfig config;
    if (WebPInitDecoderConfig(&config) == 0)
      throw Error("libwebp is of another version than this was compiled for");
    config.output.colorspace = MODE_RGBA;
    config.output.is_external_memory = 1;
    config.output.u.RGBA = {.rgba = pixels,
                            .stride = static_cast<int>(stride),
                            .size = static_cast<size_t>(height_ * stride)};
    require(WebPDecode(octets_of(bytes_), bytes_.size(), &config));
    if (gray_) make_gray(pixels, height_ * width_);
    return {.data = pixels, .stride = stride, .height = height_, .width = width_};
  }

 private:
  void require(VP8StatusCode status) const {
    if (status != VP8_STATUS_OK)
      throw DataError(fmt::format("damaged WebP of {} bytes: {}", bytes_.size(), words_of(status)));
  }

  std::string_view bytes_;
  bool gray_;
};

}  // namespace

std::unique_ptr<PhotoDecoder> open_webp(std::string_view bytes, const CodecOptions& options) {
  return std::make_unique<WebpDecoder>(bytes, options);
}

}  // namespace tutti::data::detail
