// Transforms of encoded photos.

#include "tutti/data/transforms/detail/codec.h"
#include "tutti/data/transforms/detail/image.h"
#include "tutti/data/transforms/detail/resample.h"

namespace tutti::data::transforms {
namespace {

using data::detail::Axis;
using data::detail::Box;
using data::detail::PhotoDecoder;
using data::detail::Pixels;
using data::detail::SpecWriter;

// What the three have in common: bytes come in, an image goes out.
class PhotoTransform : public data::detail::ColumnTransform {
 public:
  PhotoTransform(bool gray, int64_t max_pixels)
      : codec_{.gray = gray, .max_pixels = max_pixels}, channels_(gray ? 1 : 3) {}

 protected:
  virtual Array image(PhotoDecoder& photo, Draw& draw) const = 0;

  Column column_of(const Column& in, int64_t height, int64_t width) const {
    if (in.dtype != DType::uint8 || in.shape.size() != 1)
      throw UsageError(fmt::format("{}: got column {}, expected an encoded photo, uint8 [?]",
                                   name(), in.to_string()));
    return {.name = in.name, .dtype = DType::uint8, .shape = {channels_, height, width}};
  }

  Array value(Array in, Draw& draw) const final {
    try {
      Array out = image(*data::detail::open_photo(text_of(in), codec_), draw);
      data::detail::decoded_scratch().let_go_if_large();
      return out;
    } catch (const DataError& error) {
      throw DataError(fmt::format("{}: {}", name(), error.what()));
    }
  }

  SpecWriter& common_options(SpecWriter& spec) const {
    return spec.flag("gray", codec_.gray)
        .option("max_pixels", {static_cast<double>(codec_.max_pixels)},
                {static_cast<double>(kMaxPixels)});
  }

  data::detail::CodecOptions codec_;
  int64_t channels_;
};

class Decode final : public PhotoTransform {
 public:
  explicit Decode(DecodeOptions options)
      : PhotoTransform(options.gray, options.max_pixels), exif_(options.exif) {}

  std::string name() const override {
    SpecWriter spec("decode");
    return common_options(spec).flag("exif", exif_).text();
  }

 private:
  Column column(const Column& in) const override { return column_of(in, kAnySize, kAnySize); }

  Array image(PhotoDecoder& photo, Draw&) const override {
    const Pixels pixels = photo.read({0, 0, photo.height(), photo.width()});
    Array out = planes_of(pixels, channels_);
    return exif_ ? data::detail::upright(out, photo.orientation()) : out;
  }

  bool exif_;
};

// The pixels that two axes read, resampled.
Array read_and_resample(PhotoDecoder& photo, const Axis& rows, const Axis& columns,
                        int64_t channels) {
  const Pixels pixels =
      photo.read({rows.in_begin(), columns.in_begin(), rows.in_end(), columns.in_end()});
  return resample(pixels, rows, columns, channels);
}

class DecodeCrop final : public PhotoTransform {
 public:
  DecodeCrop(Size size, DecodeCropOptions options)
      : PhotoTransform(options.gray, options.max_pixels),
        size_(size),
        crop_{.scale = options.scale, .ratio = options.ratio},
        shrink_(options.shrink) {
    data::detail::require_crop_options(name(), size, crop_);
  }

  std::string name() const override {
    const RandomResizedCropOptions defaults;
    SpecWriter spec = data::detail::spec_of_size("decode_crop", size_);
    spec.option("scale", data::detail::pair_of(crop_.scale), data::detail::pair_of(defaults.scale))
        .option("ratio", data::detail::pair_of(crop_.ratio), data::detail::pair_of(defaults.ratio))
        .flag("shrink", shrink_);
    return common_options(spec).text();
  }
  bool draws() const override { return true; }

 private:
  Column column(const Column& in) const override {
    return column_of(in, size_.height, size_.width);
  }

  Array image(PhotoDecoder& photo, Draw& draw) const override {
    const Box box = data::detail::draw_crop(photo.height(), photo.width(), crop_, draw);
    const int eighths = shrink_ ? eighths_for(box) : 8;
    const double factor = eighths < 8 && photo.scale_to(eighths) ? eighths / 8.0 : 1.0;
    const auto axis = [factor](int64_t begin, int64_t length, int64_t size) {
      return data::detail::whole_axis(static_cast<double>(begin) * factor,
                                      static_cast<double>(length) * factor, size);
    };
    return read_and_resample(photo, axis(box.top, box.height, size_.height),
                             axis(box.left, box.width, size_.width), channels_);
  }

  // The fewest that leave the crop as large as the output.
  int eighths_for(const Box& box) const {
    for (int eighths : {1, 2, 4})
      if (box.height * eighths >= 8 * size_.height && box.width * eighths >= 8 * size_.width)
        return eighths;
    return 8;
  }

  Size size_;
  RandomResizedCropOptions crop_;
  bool shrink_;
};

class DecodeCenterCrop final : public PhotoTransform {
 public:
  DecodeCenterCrop(int64_t shorter_edge, Size size, DecodeCenterCropOptions options)
      : PhotoTransform(options.gray, options.max_pixels), shorter_edge_(shorter_edge), size_(size) {
    data::detail::require_option(size.height >= 1 && size.width >= 1 &&
                                     shorter_edge >= size.height && shorter_edge >= size.width,
                                 name(), "a shorter edge of the crop's sides or more, all >= 1");
  }

  std::string name() const override {
    SpecWriter spec("decode_center_crop");
    spec.number(static_cast<double>(shorter_edge_)).number(static_cast<double>(size_.height));
    if (size_.width != size_.height) spec.number(static_cast<double>(size_.width));
    return common_options(spec).text();
  }

 private:
  Column column(const Column& in) const override {
    return column_of(in, size_.height, size_.width);
  }

  Array image(PhotoDecoder& photo, Draw&) const override {
    const Size whole =
        data::detail::size_after_resize(photo.height(), photo.width(), shorter_edge_);
    const Box box = data::detail::center_box(whole.height, whole.width, size_);
    const Axis rows({.length = static_cast<double>(photo.height()),
                     .out_size = whole.height,
                     .out_begin = box.top,
                     .outputs = box.height});
    const Axis columns({.length = static_cast<double>(photo.width()),
                        .out_size = whole.width,
                        .out_begin = box.left,
                        .outputs = box.width});
    return read_and_resample(photo, rows, columns, channels_);
  }

  int64_t shorter_edge_;
  Size size_;
};

void require_limit(std::string_view transform, int64_t max_pixels) {
  data::detail::require_option(max_pixels >= 1, std::string(transform), "max_pixels of 1 or more");
}

}  // namespace

TransformHandle decode(DecodeOptions options) {
  require_limit("decode", options.max_pixels);
  return std::make_shared<Decode>(options);
}

TransformHandle decode_crop(Size size, DecodeCropOptions options) {
  require_limit("decode_crop", options.max_pixels);
  return std::make_shared<DecodeCrop>(size, options);
}

TransformHandle decode_center_crop(int64_t shorter_edge, Size size,
                                   DecodeCenterCropOptions options) {
  require_limit("decode_center_crop", options.max_pixels);
  return std::make_shared<DecodeCenterCrop>(shorter_edge, size, options);
}

}  // namespace tutti::data::transforms
