#include "tutti/data/transforms/detail/resample.h"

#include <algorithm>
#include <cmath>

#include "tutti/base/cpu_variant.h"
#include "tutti/data/sample.h"

namespace tutti::data::detail {
namespace {

// A photo of 4096 x 4096; what is larger is rare, and a thread need not hold it for ever.
constexpr int64_t kKeptScratchBytes = 64 << 20;

struct ResampleScratch {
  Scratch joined, along, row;
};

ResampleScratch& resample_scratch() {
  thread_local ResampleScratch scratch;
  return scratch;
}

const PixelKernels& kernels_of(CpuVariant variant) {
  if constexpr (kHasX86Variants) {
    if (variant == CpuVariant::avx512) return avx512::pixel_kernels;
    if (variant == CpuVariant::avx2) return avx2::pixel_kernels;
  }
  return baseline::pixel_kernels;
}

// As Pillow rounds: what is below -0.5 goes up, towards 0.
int64_t half_up(double number) {
  const double above = number + 0.5;
  return static_cast<int64_t>(above);
}

// Bits after the point: as many as keep the largest weight below 2^15.
int32_t precision_for(double largest) {
  int32_t precision = 0;
  while (precision < 22 && std::floor(0.5 + largest * (1 << (precision + 1))) < (1 << 15))
    ++precision;
  return precision;
}

}  // namespace

const PixelKernels& pixel_kernels() {
  static const PixelKernels& kernels = kernels_of(best_variant());
  return kernels;
}

uint8_t* Scratch::at_least(int64_t bytes) {
  if (bytes > bytes_) {
    memory_.reset();  // first, so that there are never two
    memory_ = std::make_unique_for_overwrite<uint8_t[]>(static_cast<size_t>(bytes));
    bytes_ = bytes;
  }
  return memory_.get();
}

void Scratch::let_go_if_large() {
  if (bytes_ <= kKeptScratchBytes) return;
  memory_.reset();
  bytes_ = 0;
}

// Positions count from `origin`, so that a crop has the very weights of a photo of its size.
Axis::Axis(const Request& request) {
  const double origin = std::floor(request.begin);
  const double offset = request.begin - origin;
  const auto limit = static_cast<int64_t>(std::ceil(offset + request.length));
  const double scale = request.length / static_cast<double>(request.out_size);
  const double support = std::max(scale, 1.0);
  const double sharpness = 1 / support;
  const int64_t most = 2 * static_cast<int64_t>(std::ceil(support)) + 1;  // inputs of an output

  // Weights of all outputs, whichever are asked for: the largest decides how they are rounded.
  std::vector<double> exact(static_cast<size_t>(request.out_size * most));
  double largest = 0;
  in_begin_ = limit;
  for (int64_t i = 0; i < request.out_size; ++i) {
    const double center = offset + scale * (static_cast<double>(i) + 0.5);
    const auto first = std::max<int64_t>(half_up(center - support), 0);
    const auto end = std::min<int64_t>(half_up(center + support), limit);
    double* weights = &exact[static_cast<size_t>(i * most)];
    double total = 0;
    for (int64_t k = 0; k < end - first; ++k) {
      const double distance = (static_cast<double>(k + first) - center + 0.5) * sharpness;
      weights[k] = std::max(0.0, 1 - std::abs(distance));
      total += weights[k];
    }
    for (int64_t k = 0; k < end - first; ++k)
      largest = std::max(largest, total != 0 ? weights[k] /= total : weights[k]);
    if (i < request.out_begin || i >= request.out_begin + request.outputs) continue;
    first_.push_back(static_cast<int32_t>(first));
    count_.push_back(static_cast<int32_t>(end - first));
    in_begin_ = std::min(in_begin_, first);
    in_end_ = std::max(in_end_, end);
  }

  precision_ = precision_for(largest);
  const double one = 1 << precision_;
  taps_ = (*std::ranges::max_element(count_) + 1) / 2 * 2;
  weights_.resize(static_cast<size_t>(request.outputs * taps_));
  for (int64_t i = 0; i < request.outputs; ++i)
    for (int64_t k = 0; k < count_[static_cast<size_t>(i)]; ++k)
      weights_[static_cast<size_t>(i * taps_ + k)] = static_cast<int16_t>(
          half_up(exact[static_cast<size_t>((request.out_begin + i) * most + k)] * one));
  for (int32_t& first : first_) first -= static_cast<int32_t>(in_begin_);
  in_begin_ += static_cast<int64_t>(origin);
  in_end_ += static_cast<int64_t>(origin);
}

AxisWeights Axis::weights() const {
  return {first_.data(), count_.data(), weights_.data(), taps_, precision_, outputs()};
}

Array resample(const Pixels& photo, const Axis& rows, const Axis& columns, int64_t channels) {
  const PixelKernels& kernels = pixel_kernels();
  const int64_t height = rows.outputs(), width = columns.outputs();
  const int64_t stride = 4 * width;
  uint8_t* along = resample_scratch().along.at_least((rows.in_end() - rows.in_begin()) * stride);
  const AxisWeights across = columns.weights();
  for (int64_t y = rows.in_begin(); y < rows.in_end(); ++y)
    kernels.resample_row(photo.at(y, columns.in_begin()), across,
                         along + (y - rows.in_begin()) * stride);

  Array out = make_array(DType::uint8, {channels, height, width});
  auto* to = static_cast<uint8_t*>(out.data());
  const int64_t plane = height * width;
  uint8_t* row = resample_scratch().row.at_least(3 * stride);
  uint8_t* unused = row + stride;  // of a gray photo, green and blue
  const AxisWeights down = rows.weights();
  for (int64_t y = 0; y < height; ++y, to += width) {
    kernels.resample_column(along + down.first[y] * stride, stride, down.weights + y * down.taps,
                            down.count[y], down.precision, row, stride);
    kernels.split(row, width, to, channels == 3 ? to + plane : unused,
                  channels == 3 ? to + 2 * plane : unused + stride);
  }
  resample_scratch().along.let_go_if_large();
  return out;
}

Array resample(const Array& image, const Axis& rows, const Axis& columns) {
  const int64_t channels = image.shape()[0], height = image.shape()[1], width = image.shape()[2];
  const int64_t plane = height * width;
  const int64_t used = columns.in_end() - columns.in_begin();
  Pixels photo{.stride = 4 * used,
               .top = rows.in_begin(),
               .left = columns.in_begin(),
               .height = rows.in_end() - rows.in_begin(),
               .width = used};
  uint8_t* joined = resample_scratch().joined.at_least((photo.height * used + kPixelsBeyond) * 4);
  photo.data = joined;
  const auto* from = static_cast<const uint8_t*>(image.data());
  for (int64_t y = 0; y < photo.height; ++y) {
    const uint8_t* r = from + (photo.top + y) * width + photo.left;
    const uint8_t* g = channels == 3 ? r + plane : r;
    const uint8_t* b = channels == 3 ? g + plane : r;
    pixel_kernels().join(r, g, b, used, joined + y * photo.stride);
  }
  Array out = resample(photo, rows, columns, channels);
  resample_scratch().joined.let_go_if_large();
  return out;
}

Array planes_of(const Pixels& photo, int64_t channels) {
  Array out = make_array(DType::uint8, {channels, photo.height, photo.width});
  auto* to = static_cast<uint8_t*>(out.data());
  const int64_t plane = photo.height * photo.width;
  uint8_t* unused = resample_scratch().row.at_least(2 * photo.width);
  for (int64_t y = 0; y < photo.height; ++y, to += photo.width)
    pixel_kernels().split(photo.data + y * photo.stride, photo.width, to,
                          channels == 3 ? to + plane : unused,
                          channels == 3 ? to + 2 * plane : unused + photo.width);
  return out;
}

}  // namespace tutti::data::detail
