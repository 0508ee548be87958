// Transforms of values: to floats, normalised, erased.
#include <algorithm>

#include "tutti/data/transforms/detail/image.h"
#include "tutti/data/transforms/kernels/pixels.h"

namespace tutti::data::transforms {
namespace {

using data::detail::Box;
using data::detail::ColumnTransform;
using data::detail::ImageTransform;
using data::detail::require_option;
using data::detail::SpecWriter;

class ToTensor final : public ColumnTransform {
 public:
  std::string name() const override { return "to_tensor()"; }

 private:
  Column column(const Column& in) const override {
    if (in.dtype != DType::uint8)
      throw UsageError(fmt::format("{}: got column {}, expected uint8", name(), in.to_string()));
    Column out = in;
    out.dtype = DType::float32;
    return out;
  }

  Array value(Array in, Draw&) const override {
    Array out = make_array(DType::float32, in.shape());
    data::detail::pixel_kernels().scale(in.as<uint8_t>().data(), in.num_elements(),
                                        static_cast<float*>(out.data()));
    return out;
  }
};

class Normalize final : public ImageTransform {
 public:
  Normalize(std::vector<double> mean, std::vector<double> std)
      : mean_(std::move(mean)), std_(std::move(std)) {
    require_option((mean_.size() == 1 || mean_.size() == 3) && mean_.size() == std_.size(), name(),
                   "as many means as deviations, one a channel (3, or 1 of gray)");
    require_option(std::ranges::find(std_, 0.0) == std_.end(), name(), "deviations other than 0");
  }

  std::string name() const override {
    return SpecWriter("normalize").option("mean", mean_, {}).option("std", std_, {}).text();
  }

 private:
  Column column_of(const Column& in) const override {
    const auto channels = static_cast<int64_t>(mean_.size());
    if (in.shape[0] != kAnySize && in.shape[0] != channels)
      throw UsageError(fmt::format("{}: got column {}, expected {} channels, a mean each", name(),
                                   in.to_string(), channels));
    Column out = in;
    out.dtype = DType::float32;
    out.shape[0] = channels;
    return out;
  }

  Array image_of(Array in, Draw&) const override {
    if (in.shape()[0] != static_cast<int64_t>(mean_.size()))
      throw DataError(
          fmt::format("{}: got {}, expected {} channels", name(), in.to_string(), mean_.size()));
    const auto& kernels = data::detail::pixel_kernels();
    const bool bytes = in.dtype() == DType::uint8;
    Array out = !bytes && owned(in) ? in : make_array(DType::float32, in.shape());
    const int64_t plane = in.shape()[1] * in.shape()[2];
    auto* to = static_cast<float*>(out.data());
    for (size_t c = 0; c < mean_.size(); ++c, to += plane) {
      const auto mean = static_cast<float>(mean_[c]), std = static_cast<float>(std_[c]);
      const int64_t at = static_cast<int64_t>(c) * plane;
      if (bytes)
        kernels.scale_normalize(static_cast<const uint8_t*>(in.data()) + at, plane, mean, std, to);
      else
        kernels.normalize(static_cast<const float*>(in.data()) + at, plane, mean, std, to);
    }
    return out;
  }

  std::vector<double> mean_, std_;
};

template <class T>
void fill(Array& image, const Box& box, const RandomErasingOptions& options, Draw& draw) {
  const int64_t height = image.shape()[1], width = image.shape()[2];
  auto* pixels = static_cast<T*>(image.data());
  for (int64_t c = 0; c < image.shape()[0]; ++c) {
    const double value = options.value[options.value.size() == 1 ? 0 : static_cast<size_t>(c)];
    for (int64_t y = 0; y < box.height; ++y) {
      T* row = pixels + (c * height + box.top + y) * width + box.left;
      for (int64_t x = 0; x < box.width; ++x)
        row[x] = static_cast<T>(options.noise ? draw.normal() : value);
    }
  }
}

class RandomErasing final : public ImageTransform {
 public:
  explicit RandomErasing(RandomErasingOptions options) : options_(std::move(options)) {
    const Range& scale = options_.scale;
    const Range& ratio = options_.ratio;
    require_option(options_.probability >= 0 && options_.probability <= 1, name(),
                   "a probability of 0 to 1");
    require_option(scale.low >= 0 && scale.low <= scale.high && scale.high <= 1, name(),
                   "scale: 0 <= low <= high <= 1");
    require_option(ratio.low > 0 && ratio.low <= ratio.high, name(), "ratio: 0 < low <= high");
    require_option(options_.value.size() == 1 || options_.value.size() == 3, name(),
                   "one value, or one a channel");
  }

  std::string name() const override {
    const RandomErasingOptions defaults;
    return SpecWriter("random_erasing")
        .option("probability", {options_.probability}, {defaults.probability})
        .option("scale", data::detail::pair_of(options_.scale),
                data::detail::pair_of(defaults.scale))
        .option("ratio", data::detail::pair_of(options_.ratio),
                data::detail::pair_of(defaults.ratio))
        .option("value", options_.value, defaults.value)
        .flag("noise", options_.noise)
        .text();
  }
  bool draws() const override { return true; }

 private:
  Column column_of(const Column& in) const override {
    if (options_.noise && in.dtype != DType::float32)
      throw UsageError(
          fmt::format("{}: got column {}, expected float32 for noise", name(), in.to_string()));
    if (in.dtype == DType::uint8)
      for (double value : options_.value)
        require_option(value >= 0 && value <= 255, name(), "values of 0 to 255 for uint8");
    return in;
  }

  Array image_of(Array in, Draw& draw) const override {
    if (!draw.chance(options_.probability)) return in;
    const Box box = data::detail::draw_erased(in.shape()[1], in.shape()[2], options_, draw);
    if (box.height == 0 || box.width == 0) return in;
    Array out = data::detail::owned_copy(std::move(in));
    if (out.dtype() == DType::uint8)
      fill<uint8_t>(out, box, options_, draw);
    else
      fill<float>(out, box, options_, draw);
    return out;
  }

  RandomErasingOptions options_;
};

}  // namespace

TransformHandle to_tensor() { return std::make_shared<ToTensor>(); }

TransformHandle normalize(std::vector<double> mean, std::vector<double> std) {
  return std::make_shared<Normalize>(std::move(mean), std::move(std));
}

TransformHandle random_erasing(RandomErasingOptions options) {
  return std::make_shared<RandomErasing>(std::move(options));
}

}  // namespace tutti::data::transforms
