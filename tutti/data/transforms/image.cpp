#include "tutti/data/transforms/detail/image.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace tutti::data::detail {
namespace {

using transforms::Range;
using transforms::Size;

std::string_view words_of(Pixel pixel) {
  return pixel == Pixel::bytes ? "uint8" : "uint8 or float32";
}

bool is_image(DType dtype, const std::vector<int64_t>& shape, Pixel pixel) {
  return (dtype == DType::uint8 || (pixel == Pixel::any && dtype == DType::float32)) &&
         shape.size() == 3 && (shape[0] == 1 || shape[0] == 3);
}

// A rectangle of random area and shape (`ratio` is of width to height): its size, or none.
Box draw_size(int64_t height, int64_t width, const Range& scale, const Range& ratio, Draw& draw) {
  const double area = static_cast<double>(height * width) * draw.uniform(scale.low, scale.high);
  const double shape = std::exp(draw.uniform(std::log(ratio.low), std::log(ratio.high)));
  return {.height = std::llrint(std::sqrt(area / shape)),
          .width = std::llrint(std::sqrt(area * shape))};
}

}  // namespace

std::vector<Column> ColumnTransform::columns(const std::vector<Column>& in) const {
  if (in.empty()) throw UsageError(fmt::format("{}: there are no columns", name()));
  std::vector<Column> out = in;
  out[0] = column(in[0]);
  return out;
}

void require_image(const Transform& transform, const Column& column, Pixel pixel) {
  std::vector<int64_t> shape = column.shape;
  if (shape.size() == 3 && shape[0] == kAnySize) shape[0] = 3;
  if (is_image(column.dtype, shape, pixel)) return;
  const bool encoded = column.dtype == DType::uint8 && column.shape.size() == 1;
  const bool scaled = column.dtype == DType::float32 && column.shape.size() == 3;
  throw UsageError(fmt::format("{}: got column {}, expected {} [C, H, W] with C = 3 or 1{}",
                               transform.name(), column.to_string(), words_of(pixel),
                               encoded  ? "\n  put decode() before it"
                               : scaled ? "\n  put it before to_tensor() or normalize()"
                                        : ""));
}

void require_image(const Transform& transform, const Array& image, Pixel pixel) {
  if (is_image(image.dtype(), image.shape(), pixel) && image.num_elements() > 0) return;
  throw DataError(
      fmt::format("{}: got {}, expected {} [C, H, W] with C = 3 or 1, of a pixel or more",
                  transform.name(), image.to_string(), words_of(pixel)));
}

void require_option(bool holds, const std::string& transform, const std::string& expected) {
  if (!holds) throw UsageError(fmt::format("{}: expected {}", transform, expected));
}

Array owned_copy(Array image) {
  if (owned(image)) return image;
  Array copy = make_array(image.dtype(), image.shape());
  std::memcpy(copy.data(), image.data(), static_cast<size_t>(image.num_bytes()));
  return copy;
}

Box draw_crop(int64_t height, int64_t width, const transforms::RandomResizedCropOptions& options,
              Draw& draw) {
  constexpr int kTries = 10;
  for (int i = 0; i < kTries; ++i) {
    Box box = draw_size(height, width, options.scale, options.ratio, draw);
    if (box.height < 1 || box.height > height || box.width < 1 || box.width > width) continue;
    box.top = draw.below(height - box.height + 1);
    box.left = draw.below(width - box.width + 1);
    return box;
  }
  const double shape = static_cast<double>(width) / static_cast<double>(height);
  Box box{.height = height, .width = width};
  if (shape < options.ratio.low)
    box.height = std::llrint(static_cast<double>(width) / options.ratio.low);
  else if (shape > options.ratio.high)
    box.width = std::llrint(static_cast<double>(height) * options.ratio.high);
  // A pixel at least, where the photo is a line.
  box.height = std::clamp<int64_t>(box.height, 1, height);
  box.width = std::clamp<int64_t>(box.width, 1, width);
  box.top = (height - box.height) / 2;
  box.left = (width - box.width) / 2;
  return box;
}

Box draw_erased(int64_t height, int64_t width, const transforms::RandomErasingOptions& options,
                Draw& draw) {
  constexpr int kTries = 10;
  for (int i = 0; i < kTries; ++i) {
    // The ratio is of height to width here: sides change places.
    Box box = draw_size(width, height, options.scale, options.ratio, draw);
    std::swap(box.height, box.width);
    if (box.height >= height || box.width >= width) continue;
    box.top = draw.below(height - box.height + 1);
    box.left = draw.below(width - box.width + 1);
    return box;
  }
  return {};
}

Size size_after_resize(int64_t height, int64_t width, int64_t shorter_edge) {
  // As torchvision computes it, in floating point: 3 * 200 / 300 may be 1.99...
  const auto longer = [&](int64_t of_longer, int64_t of_shorter) {
    return static_cast<int64_t>(static_cast<double>(shorter_edge * of_longer) /
                                static_cast<double>(of_shorter));
  };
  return width <= height ? Size(longer(height, width), shorter_edge)
                         : Size(shorter_edge, longer(width, height));
}

Box center_box(int64_t height, int64_t width, const Size& size) {
  const auto middle = [](int64_t outer, int64_t inner) {
    return std::llrint(static_cast<double>(outer - inner) / 2);
  };
  return {middle(height, size.height), middle(width, size.width), size.height, size.width};
}

Array crop_center(const Array& image, int64_t height, int64_t width) {
  const int64_t channels = image.shape()[0], in_height = image.shape()[1],
                in_width = image.shape()[2];
  // Where the image begins in the crop, or the crop in the image: one of the two is 0.
  const Box inner = center_box(std::max(in_height, height), std::max(in_width, width),
                               {std::min(in_height, height), std::min(in_width, width)});
  const int64_t to_top = height > in_height ? (height - in_height) / 2 : 0;
  const int64_t to_left = width > in_width ? (width - in_width) / 2 : 0;
  const int64_t from_top = height < in_height ? inner.top : 0;
  const int64_t from_left = width < in_width ? inner.left : 0;
  Array out = make_array(image.dtype(), {channels, height, width});
  const int64_t pixel_bytes = size_of(image.dtype());
  const auto* from = static_cast<const char*>(image.data());
  auto* to = static_cast<char*>(out.data());
  if (height > in_height || width > in_width)
    std::memset(to, 0, static_cast<size_t>(out.num_bytes()));
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t y = 0; y < inner.height; ++y)
      std::memcpy(to + ((c * height + to_top + y) * width + to_left) * pixel_bytes,
                  from + ((c * in_height + from_top + y) * in_width + from_left) * pixel_bytes,
                  static_cast<size_t>(inner.width * pixel_bytes));
  return out;
}

void require_crop_options(const std::string& transform, const Size& size,
                          const transforms::RandomResizedCropOptions& options) {
  require_option(size.height >= 1 && size.width >= 1, transform, "sides of 1 pixel or more");
  require_option(
      options.scale.low > 0 && options.scale.low <= options.scale.high && options.scale.high <= 1,
      transform, "scale: 0 < low <= high <= 1, got " + to_string(options.scale));
  require_option(options.ratio.low > 0 && options.ratio.low <= options.ratio.high &&
                     std::isfinite(options.ratio.high),
                 transform, "ratio: 0 < low <= high, got " + to_string(options.ratio));
}

SpecWriter spec_of_size(std::string_view name, const Size& size) {
  SpecWriter spec(name);
  spec.number(static_cast<double>(size.height));
  if (size.width != size.height) spec.number(static_cast<double>(size.width));
  return spec;
}

Size size_from(SpecReader& spec, int64_t i) {
  const int64_t height = spec.whole(i);
  return {height, spec.numbers() > i + 1 ? spec.whole(i + 1) : height};
}

Range range_from(SpecReader& spec, std::string_view key, Range by_default) {
  const std::vector<double> ends = spec.option(key, pair_of(by_default));
  require_option(ends.size() == 2, spec.name(), fmt::format("{}: two numbers, low and high", key));
  return {ends[0], ends[1]};
}

}  // namespace tutti::data::detail
