#include "bench/bare_photos.h"

#include <jpeglib.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

#include "tutti/data/draw.h"
#include "tutti/data/transforms/detail/image.h"
#include "tutti/data/transforms/detail/resample.h"
#include "tutti/data/transforms/kernels/pixels.h"

namespace tutti::bench {
namespace {

using data::detail::Axis;
using data::detail::Box;
using data::detail::kPixelsBeyond;
using data::detail::Pixels;

constexpr int64_t kRows = 64;  // of the memory that a thread writes to, again and again
constexpr int64_t kPlane = kPhotoSide * kPhotoSide;

class BareThread {
 public:
  BareThread() : batch_(static_cast<size_t>(kRows * 3 * kPlane)) {
    info_.err = jpeg_std_error(&errors_);
    jpeg_create_decompress(&info_);
  }
  BareThread(const BareThread&) = delete;
  BareThread& operator=(const BareThread&) = delete;
  ~BareThread() { jpeg_destroy_decompress(&info_); }

  void make(const std::string& jpeg, int64_t number) {
    data::Draw draw(static_cast<uint64_t>(number));
    open(jpeg);
    const Box box = data::detail::draw_crop(info_.image_height, info_.image_width, {}, draw);
    const auto axis = [](int64_t begin, int64_t length) {
      return data::detail::whole_axis(static_cast<double>(begin), static_cast<double>(length),
                                      kPhotoSide);
    };
    const Axis rows = axis(box.top, box.height), columns = axis(box.left, box.width);
    const Array image = data::detail::resample(read(rows, columns), rows, columns, 3);
    write(image, draw.chance(0.5), batch_.data() + number % kRows * 3 * kPlane);
  }

 private:
  void open(const std::string& jpeg) {
    jpeg_mem_src(&info_, reinterpret_cast<const unsigned char*>(jpeg.data()), jpeg.size());
    jpeg_read_header(&info_, TRUE);
    info_.out_color_space = JCS_EXT_RGBX;
    jpeg_start_decompress(&info_);
  }

  // Of the photo only what the crop needs.
  Pixels read(const Axis& rows, const Axis& columns) {
    auto left = static_cast<JDIMENSION>(columns.in_begin());
    auto width = static_cast<JDIMENSION>(columns.in_end() - columns.in_begin());
    jpeg_crop_scanline(&info_, &left, &width);
    jpeg_skip_scanlines(&info_, static_cast<JDIMENSION>(rows.in_begin()));
    const int64_t stride = int64_t{4} * width, height = rows.in_end() - rows.in_begin();
    pixels_.resize(static_cast<size_t>(height * stride + 4 * kPixelsBeyond));
    for (int64_t y = 0; y < height; ++y) {
      JSAMPROW row = pixels_.data() + y * stride;
      jpeg_read_scanlines(&info_, &row, 1);
    }
    jpeg_abort_decompress(&info_);
    return {.data = pixels_.data(),
            .stride = stride,
            .top = rows.in_begin(),
            .left = left,
            .height = height,
            .width = width};
  }

  static void write(const Array& image, bool flip, float* to) {
    const auto& kernels = data::detail::pixel_kernels();
    const auto* from = static_cast<const uint8_t*>(image.data());
    uint8_t reversed[kPlane];
    for (int c = 0; c < 3; ++c, from += kPlane, to += kPlane) {
      for (int64_t at = 0; flip && at < kPlane; at += kPhotoSide)
        kernels.reverse(from + at, kPhotoSide, reversed + at);
      kernels.scale_normalize(flip ? reversed : from, kPlane, static_cast<float>(kPhotoMean[c]),
                              static_cast<float>(kPhotoStd[c]), to);
    }
  }

  jpeg_decompress_struct info_{};
  jpeg_error_mgr errors_{};
  std::vector<uint8_t> pixels_;
  std::vector<float> batch_;
};

}  // namespace

void make_bare_photos(std::span<const std::string> jpegs, int64_t samples, int threads) {
  std::vector<BareThread> states(static_cast<size_t>(threads));
  std::atomic<int64_t> next{0};
  std::vector<std::jthread> running;
  for (BareThread& state : states)
    running.emplace_back([&] {
      for (int64_t i = next++; i < samples; i = next++)
        state.make(jpegs[static_cast<size_t>(i) % jpegs.size()], i);
    });
}

}  // namespace tutti::bench
