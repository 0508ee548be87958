/// Resampling of photos: bilinear with antialiasing, in fixed point, as torchvision's resize of
/// uint8 and Pillow do it: a triangle as wide as the reduction, sums of int16 weights, 8 bits
/// between the pass along rows and the pass down columns.
/// Thread rule: pure functions; each thread has scratch memory of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tutti/base/array.h"
#include "tutti/data/transforms/kernels/pixels.h"

namespace tutti::data::detail {

/// Some rows and columns of a photo as RGBX, rows `stride` bytes apart. Pixel (0, 0) of `data` is
/// pixel (top, left) of the photo. There is memory for kPixelsBeyond
/// pixels after the last.
struct Pixels {
  const uint8_t* data = nullptr;
  int64_t stride = 0;
  int64_t top = 0, left = 0;
  int64_t height = 0, width = 0;

  const uint8_t* at(int64_t y, int64_t x) const {
    return data + (y - top) * stride + 4 * (x - left);
  }
};

/// Memory of a thread, kept for its next photo unless it is large; not initialised.
class Scratch {
 public:
  uint8_t* at_least(int64_t bytes);
  void let_go_if_large();  ///< above 64 MiB

 private:
  std::unique_ptr<uint8_t[]> memory_;
  int64_t bytes_ = 0;
};

/// How one direction is resampled: outputs [out_begin, out_begin + outputs) of the `out_size` that
/// [begin, begin + length) becomes. Nothing outside of [begin, begin + length), widened to whole
/// pixels, is read.
class Axis {
 public:
  struct Request {
    double begin = 0;
    double length = 0;
    int64_t out_size = 0;
    int64_t out_begin = 0;
    int64_t outputs = 0;
  };
  explicit Axis(const Request& request);

  int64_t in_begin() const { return in_begin_; }  ///< first input that is read
  int64_t in_end() const { return in_end_; }      ///< beyond the last
  int64_t outputs() const { return static_cast<int64_t>(first_.size()); }
  AxisWeights weights() const;  ///< `first` counts from in_begin()

 private:
  std::vector<int32_t> first_, count_;
  std::vector<int16_t> weights_;
  int32_t taps_ = 0;
  int32_t precision_ = 0;
  int64_t in_begin_ = 0, in_end_ = 0;
};

/// The whole of [begin, begin + length) in `size` outputs.
inline Axis whole_axis(double begin, double length, int64_t size) {
  return Axis({.begin = begin, .length = length, .out_size = size, .outputs = size});
}

/// uint8 [channels, rows.outputs(), columns.outputs()]; channels is 1 (the first of RGBX) or 3.
/// `photo` holds what both axes read.
Array resample(const Pixels& photo, const Axis& rows, const Axis& columns, int64_t channels);

/// The same of uint8 [1 or 3, H, W].
Array resample(const Array& image, const Axis& rows, const Axis& columns);

/// All of `photo` as uint8 [channels, height, width].
Array planes_of(const Pixels& photo, int64_t channels);

}  // namespace tutti::data::detail
