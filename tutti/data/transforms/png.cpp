// PNG by libpng, whose errors jump out of it: as in jpeg.cpp, guarded_ functions hold trivial
// locals.
#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/data/transforms/detail/codec.h"

namespace tutti::data::detail {
namespace {

struct PngState {
  png_structp png;
  png_infop info;
  const char* bytes;
  size_t size, at;
  char message[256];
};

[[noreturn]] void fail_png(png_structp png, png_const_charp text) {
  auto* state = static_cast<PngState*>(png_get_error_ptr(png));
  std::snprintf(state->message, sizeof(state->message), "%s", text);
  png_longjmp(png, 1);
}

void ignore_warning(png_structp, png_const_charp) {}

void feed_png(png_structp png, png_bytep to, size_t wanted) {
  auto* state = static_cast<PngState*>(png_get_io_ptr(png));
  if (wanted > state->size - state->at) png_error(png, "it is cut off");
  std::memcpy(to, state->bytes + state->at, wanted);
  state->at += wanted;
}

// Everything to RGBX: palettes looked up, few bits widened, of 16 the upper 8 kept (as Pillow
// does), alpha left in X.
bool guarded_png_open(PngState* state) {
  if (setjmp(png_jmpbuf(state->png)) != 0) return false;
  png_set_read_fn(state->png, state, feed_png);
  png_set_user_limits(state->png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);  // max_pixels holds instead
  png_read_info(state->png, state->info);
  png_set_strip_16(state->png);
  png_set_packing(state->png);
  if (png_get_color_type(state->png, state->info) == PNG_COLOR_TYPE_PALETTE)
    png_set_palette_to_rgb(state->png);
  png_set_expand_gray_1_2_4_to_8(state->png);
  png_set_gray_to_rgb(state->png);
  png_set_add_alpha(state->png, 0xff, PNG_FILLER_AFTER);
  png_set_interlace_handling(state->png);
  png_read_update_info(state->png, state->info);
  return true;
}

bool guarded_png_rows(PngState* state, png_bytepp rows) {
  if (setjmp(png_jmpbuf(state->png)) != 0) return false;
  png_read_image(state->png, rows);
  return true;
}

class PngDecoder final : public PhotoDecoder {
 public:
  PngDecoder(std::string_view bytes, const CodecOptions& options)
      : gray_(options.gray), state_{.bytes = bytes.data(), .size = bytes.size()} {
    state_.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &state_, fail_png, ignore_warning);
    if (state_.png != nullptr) state_.info = png_create_info_struct(state_.png);
    if (state_.info == nullptr) {
      png_destroy_read_struct(&state_.png, &state_.info, nullptr);
      throw Error("libpng: no memory, or another version than this was compiled for");
    }
    try {
      require(guarded_png_open(&state_));
      set_size("PNG", png_get_image_height(state_.png, state_.info),
               png_get_image_width(state_.png, state_.info), options);
    } catch (...) {
      png_destroy_read_struct(&state_.png, &state_.info, nullptr);
      throw;
    }
  }
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;
  ~PngDecoder() override { png_destroy_read_struct(&state_.png, &state_.info, nullptr); }

  int orientation() const override {
    png_uint_32 size = 0;
    png_bytep exif = nullptr;
    if (png_get_eXIf_1(state_.png, state_.info, &size, &exif) == 0) return 1;
    return exif_orientation({reinterpret_cast<const char*>(exif), size});
  }

  bool scale_to(int) override { return false; }

  Pixels read(const Region&) override {
    const int64_t stride = 4 * width_;
    uint8_t* pixels = decoded_scratch().at_least(height_ * stride + 4 * kPixelsBeyond);
    std::vector<png_bytep> rows;
    for (int64_t y = 0; y < height_; ++y) rows.push_back(pixels + y * stride);
    require(guarded_png_rows(&state_, rows.data()));
    if (gray_) make_gray(pixels, height_ * width_);
    return {.data = pixels, .stride = stride, .height = height_, .width = width_};
  }

 private:
  void require(bool done) {
    if (!done)
      throw DataError(fmt::format("damaged PNG of {} bytes, at byte {}: {}", state_.size, state_.at,
                                  state_.message));
  }

  bool gray_;
  PngState state_{};
};

}  // namespace

std::unique_ptr<PhotoDecoder> open_png(std::string_view bytes, const CodecOptions& options) {
  return std::make_unique<PngDecoder>(bytes, options);
}

}  // namespace tutti::data::detail
