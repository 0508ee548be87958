// Transforms that move pixels: sizes, crops, mirrors.
#include <algorithm>
#include <cstring>

#include "tutti/data/transforms/detail/image.h"
#include "tutti/data/transforms/detail/resample.h"

namespace tutti::data::transforms {
namespace {

using data::detail::Box;
using data::detail::ImageTransform;
using data::detail::Pixel;
using data::detail::require_option;
using data::detail::SpecWriter;
using data::detail::whole_axis;

Array resized(const Array& image, const Box& box, const Size& size) {
  return data::detail::resample(
      image, whole_axis(static_cast<double>(box.top), static_cast<double>(box.height), size.height),
      whole_axis(static_cast<double>(box.left), static_cast<double>(box.width), size.width));
}

Column with_size(Column column, const Size& size) {
  column.shape = {column.shape[0], size.height, size.width};
  return column;
}

class Resize final : public ImageTransform {
 public:
  // shorter_edge 0: to `size`
  Resize(int64_t shorter_edge, Size size)
      : ImageTransform(Pixel::bytes), shorter_edge_(shorter_edge), size_(size) {
    require_option(size.height >= 1 && size.width >= 1, name(), "sides of 1 pixel or more");
  }

  std::string name() const override {
    SpecWriter spec("resize");
    spec.number(static_cast<double>(size_.height));
    if (shorter_edge_ == 0) spec.number(static_cast<double>(size_.width));
    return spec.text();
  }

 private:
  Column column_of(const Column& in) const override {
    const bool known = in.shape[1] != kAnySize && in.shape[2] != kAnySize;
    return with_size(
        in, shorter_edge_ == 0 || known ? size_for(in.shape[1], in.shape[2]) : Size(kAnySize));
  }

  Array image_of(Array in, Draw&) const override {
    const int64_t height = in.shape()[1], width = in.shape()[2];
    return resized(in, {.height = height, .width = width}, size_for(height, width));
  }

  Size size_for(int64_t height, int64_t width) const {
    return shorter_edge_ == 0 ? size_
                              : data::detail::size_after_resize(height, width, shorter_edge_);
  }

  int64_t shorter_edge_;
  Size size_;
};

class RandomResizedCrop final : public ImageTransform {
 public:
  RandomResizedCrop(Size size, RandomResizedCropOptions options)
      : ImageTransform(Pixel::bytes), size_(size), options_(options) {
    data::detail::require_crop_options(name(), size, options);
  }

  std::string name() const override {
    const RandomResizedCropOptions defaults;
    return data::detail::spec_of_size("random_resized_crop", size_)
        .option("scale", data::detail::pair_of(options_.scale),
                data::detail::pair_of(defaults.scale))
        .option("ratio", data::detail::pair_of(options_.ratio),
                data::detail::pair_of(defaults.ratio))
        .text();
  }
  bool draws() const override { return true; }

 private:
  Column column_of(const Column& in) const override { return with_size(in, size_); }

  Array image_of(Array in, Draw& draw) const override {
    return resized(in, data::detail::draw_crop(in.shape()[1], in.shape()[2], options_, draw),
                   size_);
  }

  Size size_;
  RandomResizedCropOptions options_;
};

class CenterCrop final : public ImageTransform {
 public:
  explicit CenterCrop(Size size) : size_(size) {
    require_option(size.height >= 1 && size.width >= 1, name(), "sides of 1 pixel or more");
  }

  std::string name() const override {
    return data::detail::spec_of_size("center_crop", size_).text();
  }

 private:
  Column column_of(const Column& in) const override { return with_size(in, size_); }

  Array image_of(Array in, Draw&) const override {
    return data::detail::crop_center(in, size_.height, size_.width);
  }

  Size size_;
};

// `lines` rows of `width` pixels of T, each mirrored.
template <class T>
void mirror(T* pixels, int64_t lines, int64_t width) {
  for (int64_t y = 0; y < lines; ++y, pixels += width) std::reverse(pixels, pixels + width);
}

class RandomFlip final : public ImageTransform {
 public:
  RandomFlip(bool horizontal, double probability)
      : horizontal_(horizontal), probability_(probability) {
    require_option(probability >= 0 && probability <= 1, name(), "a probability of 0 to 1");
  }

  std::string name() const override {
    SpecWriter spec(horizontal_ ? "random_horizontal_flip" : "random_vertical_flip");
    if (probability_ != 0.5) spec.number(probability_);
    return spec.text();
  }
  bool draws() const override { return true; }

 private:
  Array image_of(Array in, Draw& draw) const override {
    if (!draw.chance(probability_)) return in;
    return horizontal_ ? mirrored(std::move(in)) : upended(in);
  }

  static Array mirrored(Array in) {
    const int64_t lines = in.shape()[0] * in.shape()[1], width = in.shape()[2];
    if (in.dtype() == DType::float32) {
      Array out = data::detail::owned_copy(std::move(in));
      mirror(static_cast<float*>(out.data()), lines, width);
      return out;
    }
    Array out = make_array(DType::uint8, in.shape());
    const auto* from = static_cast<const uint8_t*>(in.data());
    auto* to = static_cast<uint8_t*>(out.data());
    for (int64_t y = 0; y < lines; ++y, from += width, to += width)
      data::detail::pixel_kernels().reverse(from, width, to);
    return out;
  }

  static Array upended(const Array& in) {
    Array out = make_array(in.dtype(), in.shape());
    const int64_t height = in.shape()[1];
    const int64_t line = in.shape()[2] * size_of(in.dtype());
    const auto* from = static_cast<const char*>(in.data());
    auto* to = static_cast<char*>(out.data());
    for (int64_t c = 0; c < in.shape()[0]; ++c)
      for (int64_t y = 0; y < height; ++y)
        std::memcpy(to + (c * height + y) * line, from + (c * height + height - 1 - y) * line,
                    static_cast<size_t>(line));
    return out;
  }

  bool horizontal_;
  double probability_;
};

}  // namespace

TransformHandle resize(int64_t shorter_edge) {
  return std::make_shared<Resize>(shorter_edge, Size(shorter_edge));
}
TransformHandle resize(Size size) { return std::make_shared<Resize>(0, size); }

TransformHandle random_resized_crop(Size size, RandomResizedCropOptions options) {
  return std::make_shared<RandomResizedCrop>(size, options);
}

TransformHandle center_crop(Size size) { return std::make_shared<CenterCrop>(size); }

TransformHandle random_horizontal_flip(double probability) {
  return std::make_shared<RandomFlip>(true, probability);
}
TransformHandle random_vertical_flip(double probability) {
  return std::make_shared<RandomFlip>(false, probability);
}

}  // namespace tutti::data::transforms
