/// What the transforms of photos share: one column in, one column out.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/data/transforms/detail/spec.h"
#include "tutti/data/transforms/transforms.h"

namespace tutti::data::detail {

/// A transform of column 0.
class ColumnTransform : public Transform {
 public:
  std::vector<Column> columns(const std::vector<Column>& in) const final;
  Sample apply(Sample in, Draw& draw) const final {
    in.columns.at(0) = value(std::move(in.columns.at(0)), draw);
    return in;
  }
  bool draws() const override { return false; }

 protected:
  virtual Column column(const Column& in) const = 0;
  virtual Array value(Array in, Draw& draw) const = 0;
};

/// "uint8", "uint8 or float32"
enum class Pixel { bytes, any };

/// Throws UsageError, in the name of `transform`, unless the column may hold images: [C, H, W], C 1
/// or 3.
void require_image(const Transform& transform, const Column& column, Pixel pixel);
/// The same of one image; DataError.
void require_image(const Transform& transform, const Array& image, Pixel pixel);

/// A transform of images in column 0; what holds none is refused.
class ImageTransform : public ColumnTransform {
 public:
  explicit ImageTransform(Pixel pixel = Pixel::any) : pixel_(pixel) {}

 protected:
  virtual Column column_of(const Column& in) const { return in; }
  virtual Array image_of(Array in, Draw& draw) const = 0;

 private:
  Column column(const Column& in) const final {
    require_image(*this, in, pixel_);
    return column_of(in);
  }
  Array value(Array in, Draw& draw) const final {
    require_image(*this, in, pixel_);
    return image_of(std::move(in), draw);
  }

  Pixel pixel_;
};

/// Throws UsageError.
void require_option(bool holds, const std::string& transform, const std::string& expected);

inline std::vector<double> pair_of(const transforms::Range& range) {
  return {range.low, range.high};
}
inline std::string to_string(const transforms::Range& range) {
  return fmt::format("{} to {}", range.low, range.high);
}

/// `image` itself where nobody else has it, else a copy.
Array owned_copy(Array image);

/// Top left corner and size of a rectangle.
struct Box {
  int64_t top = 0, left = 0, height = 0, width = 0;
  bool operator==(const Box&) const = default;
};

/// The crop of random_resized_crop() in an image of that size. Draws two numbers a try, and two for
/// the place.
Box draw_crop(int64_t height, int64_t width, const transforms::RandomResizedCropOptions& options,
              Draw& draw);
/// What random_erasing() erases; of height 0 where ten tries found none.
Box draw_erased(int64_t height, int64_t width, const transforms::RandomErasingOptions& options,
                Draw& draw);

/// Rows and columns of uint8 or float32 [C, H, W] around the middle, zeros outside.
Array crop_center(const Array& image, int64_t height, int64_t width);

/// Height and width of an image of that size once its shorter edge is so long.
transforms::Size size_after_resize(int64_t height, int64_t width, int64_t shorter_edge);
/// What rounds as Python does: half to even.
Box center_box(int64_t height, int64_t width, const transforms::Size& size);

/// Throws UsageError unless scale and ratio are as random_resized_crop() needs them.
void require_crop_options(const std::string& transform, const transforms::Size& size,
                          const transforms::RandomResizedCropOptions& options);
SpecWriter spec_of_size(std::string_view name, const transforms::Size& size);
/// Numbers i and, where it is there, i + 1.
transforms::Size size_from(SpecReader& spec, int64_t i = 0);
transforms::Range range_from(SpecReader& spec, std::string_view key, transforms::Range by_default);

}  // namespace tutti::data::detail
