// JPEG by libjpeg-turbo. Its errors jump out of it: the functions that call it, those named
// guarded_, have only trivial locals, so that nothing with a destructor is jumped over.
#include <jerror.h>
#include <jpeglib.h>

#include <algorithm>
#include <csetjmp>
#include <cstdio>

#include "tutti/base/error.h"
#include "tutti/data/transforms/detail/codec.h"

namespace tutti::data::detail {
namespace {

// A progressive photo has about ten scans; thousands of empty ones keep a decoder busy for hours.
constexpr int kMostScans = 500;

// What libjpeg knows of a photo, in plain C.
struct JpegState {
  jpeg_decompress_struct info;
  jpeg_error_mgr errors;
  jpeg_progress_mgr progress;
  jmp_buf jump;
  char message[JMSG_LENGTH_MAX];
  // Set by guarded_start: columns [left, left + width) come, rows from `top` on.
  JDIMENSION left, width, top;
};

JpegState* state_of(j_common_ptr info) { return static_cast<JpegState*>(info->client_data); }

[[noreturn]] void fail_jpeg(j_common_ptr info) {
  JpegState* state = state_of(info);
  info->err->format_message(info, state->message);
  std::longjmp(state->jump, 1);
}

// Warnings: libjpeg goes on with grey where the bytes end. That one is an error here; others are
// not, as in Pillow and torchvision: the photo is whole.
void hear_jpeg(j_common_ptr info, int level) {
  if (level < 0 && info->err->msg_code == JWRN_JPEG_EOF) fail_jpeg(info);
}

void say_nothing(j_common_ptr) {}

void count_scans(j_common_ptr info) {
  const auto* decompress = reinterpret_cast<j_decompress_ptr>(info);
  if (decompress->input_scan_number <= kMostScans) return;
  JpegState* state = state_of(info);
  std::snprintf(state->message, sizeof(state->message), "more than %d scans", kMostScans);
  std::longjmp(state->jump, 1);
}

bool guarded_open(JpegState* state, const char* bytes, size_t size) {
  state->info.err = jpeg_std_error(&state->errors);
  state->info.client_data = state;
  state->errors.error_exit = fail_jpeg;
  state->errors.emit_message = hear_jpeg;
  state->errors.output_message = say_nothing;
  if (setjmp(state->jump) != 0) return false;
  jpeg_create_decompress(&state->info);
  state->info.client_data = state;
  state->progress.progress_monitor = count_scans;
  state->info.progress = &state->progress;
  jpeg_save_markers(&state->info, JPEG_APP0 + 1, 0xffff);
  jpeg_mem_src(&state->info, reinterpret_cast<const unsigned char*>(bytes), size);
  jpeg_read_header(&state->info, TRUE);
  return true;
}

bool guarded_size(JpegState* state, int eighths) {
  if (setjmp(state->jump) != 0) return false;
  state->info.scale_num = static_cast<unsigned>(eighths);
  state->info.scale_denom = 8;
  jpeg_calc_output_dimensions(&state->info);
  return true;
}

// Colour of a pixel takes its neighbours' in where JPEG keeps less of it: one more block on every
// side, and the pixels inside are those of the whole photo.
bool guarded_start(JpegState* state, const Region* region) {
  if (setjmp(state->jump) != 0) return false;
  jpeg_start_decompress(&state->info);
  const auto block_width =
      static_cast<int64_t>(state->info.max_h_samp_factor) * state->info.min_DCT_scaled_size;
  const auto block_height =
      static_cast<int64_t>(state->info.max_v_samp_factor) * state->info.min_DCT_scaled_size;
  const int64_t left = std::max<int64_t>(0, region->left - block_width);
  const int64_t right = std::min<int64_t>(state->info.output_width, region->right + block_width);
  state->left = static_cast<JDIMENSION>(left);
  state->width = static_cast<JDIMENSION>(right - left);
  if (state->width < state->info.output_width)
    jpeg_crop_scanline(&state->info, &state->left, &state->width);
  state->top =
      static_cast<JDIMENSION>(std::max<int64_t>(0, region->top / block_height - 1) * block_height);
  if (state->top > 0) jpeg_skip_scanlines(&state->info, state->top);
  return true;
}

// Rows up to `bottom`, those above `top` one over the other.
bool guarded_rows(JpegState* state, JDIMENSION top, JDIMENSION bottom, uint8_t* rows,
                  size_t stride) {
  if (setjmp(state->jump) != 0) return false;
  while (state->info.output_scanline < bottom) {
    const JDIMENSION row = state->info.output_scanline;
    JSAMPROW to = row > top ? rows + (row - top) * stride : rows;
    jpeg_read_scanlines(&state->info, &to, 1);
  }
  return true;
}

// Adobe's inverted CMYK, which is what is written everywhere, to RGB as Pillow converts it.
void cmyk_to_rgb(uint8_t* pixel, int64_t n) {
  for (int64_t i = 0; i < n; ++i, pixel += 4) {
    const unsigned k = pixel[3];
    for (int c = 0; c < 3; ++c) {
      const unsigned product = (255U - pixel[c]) * k + 128;
      pixel[c] = static_cast<uint8_t>(k - std::min(k, ((product >> 8) + product) >> 8));
    }
  }
}

// n bytes to n pixels of 4, from the end on.
void spread(uint8_t* row, int64_t n) {
  for (int64_t i = n - 1; i >= 0; --i) row[4 * i] = row[i];
}

// Given back too where the constructor of a decoder throws.
struct OwnedJpegState : JpegState {
  ~OwnedJpegState() { jpeg_destroy_decompress(&info); }
};

class JpegDecoder final : public PhotoDecoder {
 public:
  JpegDecoder(std::string_view bytes, const CodecOptions& options) : bytes_(bytes) {
    require(guarded_open(&state_, bytes.data(), bytes.size()));
    set_size("JPEG", state_.info.image_height, state_.info.image_width, options);
    require_end();
    const J_COLOR_SPACE coded = state_.info.jpeg_color_space;
    cmyk_ = coded == JCS_CMYK || coded == JCS_YCCK;
    gray_here_ = options.gray && (coded == JCS_YCbCr || coded == JCS_GRAYSCALE);
    gray_later_ = options.gray && !gray_here_;
    state_.info.out_color_space = cmyk_ ? JCS_CMYK : gray_here_ ? JCS_GRAYSCALE : JCS_EXT_RGBX;
  }
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  int orientation() const override {
    constexpr std::string_view kExif("Exif\0\0", 6);
    for (const auto* marker = state_.info.marker_list; marker != nullptr; marker = marker->next) {
      const std::string_view text(reinterpret_cast<const char*>(marker->data), marker->data_length);
      if (text.starts_with(kExif)) return exif_orientation(text.substr(kExif.size()));
    }
    return 1;
  }

  bool scale_to(int eighths) override {
    require(guarded_size(&state_, eighths));
    height_ = state_.info.output_height;
    width_ = state_.info.output_width;
    return true;
  }

  Pixels read(const Region& region) override {
    require(guarded_start(&state_, &region));
    const auto top = static_cast<JDIMENSION>(region.top);
    const int64_t height = region.bottom - region.top;
    const int64_t stride = int64_t{4} * state_.width;
    uint8_t* rows = decoded_scratch().at_least(height * stride + 4 * kPixelsBeyond);
    require(guarded_rows(&state_, top, static_cast<JDIMENSION>(region.bottom), rows,
                         static_cast<size_t>(stride)));
    for (int64_t y = 0; y < height && gray_here_; ++y) spread(rows + y * stride, state_.width);
    if (cmyk_) cmyk_to_rgb(rows, height * state_.width);
    if (gray_later_) make_gray(rows, height * state_.width);
    return {.data = rows,
            .stride = stride,
            .top = region.top,
            .left = state_.left,
            .height = height,
            .width = state_.width};
  }

 private:
  void require(bool done) {
    if (!done)
      throw DataError(fmt::format("damaged JPEG of {} bytes: {}", bytes_.size(), state_.message));
  }

  // A photo that is cut off is damaged whether or not the missing part is wanted, so that it is so
  // in every epoch. The mark of the end occurs in no coded data.
  void require_end() {
    const auto* from = reinterpret_cast<const char*>(state_.info.src->next_input_byte);
    const std::string_view rest(from, state_.info.src->bytes_in_buffer);
    if (rest.rfind("\xff\xd9") == std::string_view::npos)
      throw DataError(fmt::format(
          "truncated JPEG: got {} bytes of a photo of {} x {} pixels, expected more, up to the "
          "mark of the end (ff d9)\n  fetch the file again",
          bytes_.size(), width_, height_));
  }

  std::string_view bytes_;
  OwnedJpegState state_{};
  bool cmyk_ = false, gray_here_ = false, gray_later_ = false;
};

}  // namespace

std::unique_ptr<PhotoDecoder> open_jpeg(std::string_view bytes, const CodecOptions& options) {
  return std::make_unique<JpegDecoder>(bytes, options);
}

}  // namespace tutti::data::detail
