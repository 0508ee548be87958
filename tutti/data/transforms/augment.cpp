// color_jitter() and rand_augment(): what is drawn, and how it is applied.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "tutti/data/transforms/detail/color.h"
#include "tutti/data/transforms/detail/image.h"

namespace tutti::data::detail {
namespace {

constexpr int64_t kMostMagnitude = 30;  // 31 steps, 0 to 30

// Of a shear or a turn around the middle of the image.
Inverse turned(double degrees) {
  const double angle = degrees * std::numbers::pi / 180;
  const double c = std::cos(angle), s = std::sin(angle);
  return {c, -s, 0, s, c, 0};
}

// Whether the operation may as well go the other way.
bool is_signed(Operation operation) {
  return operation >= Operation::shear_x && operation <= Operation::sharpness;
}

double strength_of(Operation operation, int64_t height, int64_t width, int64_t step) {
  const double share = static_cast<double>(step) / kMostMagnitude;
  switch (operation) {
    case Operation::shear_x:
    case Operation::shear_y: return 0.3 * share;
    case Operation::translate_x: return 150.0 / 331 * static_cast<double>(width) * share;
    case Operation::translate_y: return 150.0 / 331 * static_cast<double>(height) * share;
    case Operation::rotate: return 30 * share;
    case Operation::brightness:
    case Operation::color:
    case Operation::contrast:
    case Operation::sharpness: return 0.9 * share;
    case Operation::posterize: return 8 - std::nearbyint(static_cast<double>(step) / 7.5);
    case Operation::solarize: return 1 - share;
    default: return 0;
  }
}

}  // namespace

Jitter draw_jitter(const transforms::ColorJitterOptions& options, Draw& draw) {
  Jitter jitter;
  for (int64_t i = 3; i > 0; --i)
    std::swap(jitter.order[static_cast<size_t>(i)],
              jitter.order[static_cast<size_t>(draw.below(i + 1))]);
  const double spreads[] = {options.brightness, options.contrast, options.saturation};
  for (size_t i = 0; i < 3; ++i)
    if (spreads[i] > 0)
      jitter.amounts[i] = draw.uniform(std::max(0.0, 1 - spreads[i]), 1 + spreads[i]);
  if (options.hue > 0) jitter.amounts[3] = draw.uniform(-options.hue, options.hue);
  return jitter;
}

Array apply_jitter(Array image, const Jitter& jitter) {
  using Adjust = Array (*)(Array, double);
  constexpr Adjust kAdjusts[] = {adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue};
  for (int which : jitter.order) {
    const auto i = static_cast<size_t>(which);
    if (jitter.amounts[i]) image = kAdjusts[i](std::move(image), *jitter.amounts[i]);
  }
  return image;
}

Augmentation draw_augmentation(int64_t height, int64_t width, int64_t step, Draw& draw) {
  const auto operation = static_cast<Operation>(draw.below(kOperations));
  double magnitude = strength_of(operation, height, width, step);
  if (is_signed(operation) && draw.chance(0.5)) magnitude = -magnitude;
  return {operation, magnitude};
}

Array apply_augmentation(Array image, const Augmentation& augmentation) {
  const double m = augmentation.magnitude;
  const double middle_y = static_cast<double>(image.shape()[1]) / 2;
  const double middle_x = static_cast<double>(image.shape()[2]) / 2;
  switch (augmentation.operation) {
    case Operation::identity: return image;
    // Around the top left corner.
    case Operation::shear_x: return affine(image, {1, m, m * middle_y, 0, 1, 0});
    case Operation::shear_y: return affine(image, {1, 0, 0, m, 1, m * middle_x});
    case Operation::translate_x: return affine(image, {1, 0, -std::trunc(m), 0, 1, 0});
    case Operation::translate_y: return affine(image, {1, 0, 0, 0, 1, -std::trunc(m)});
    case Operation::rotate: return m == 0 ? image : affine(image, turned(m));
    case Operation::brightness: return adjust_brightness(std::move(image), 1 + m);
    case Operation::color: return adjust_saturation(std::move(image), 1 + m);
    case Operation::contrast: return adjust_contrast(std::move(image), 1 + m);
    case Operation::sharpness: return adjust_sharpness(image, 1 + m);
    case Operation::posterize: return posterize(std::move(image), static_cast<int>(m));
    case Operation::solarize: return solarize(std::move(image), 255 * m);
    case Operation::autocontrast: return autocontrast(std::move(image));
    case Operation::equalize: return equalize(std::move(image));
  }
  return image;
}

}  // namespace tutti::data::detail

namespace tutti::data::transforms {
namespace {

using data::detail::ImageTransform;
using data::detail::Pixel;
using data::detail::require_option;
using data::detail::SpecWriter;

class ColorJitter final : public ImageTransform {
 public:
  explicit ColorJitter(ColorJitterOptions options)
      : ImageTransform(Pixel::bytes), options_(options) {
    for (double spread : {options.brightness, options.contrast, options.saturation, options.hue})
      require_option(spread >= 0 && std::isfinite(spread), name(), "numbers of 0 or more");
    require_option(options.hue <= 0.5, name(), "hue of at most 0.5, half a circle");
  }

  std::string name() const override {
    return SpecWriter("color_jitter")
        .option("brightness", {options_.brightness}, {0})
        .option("contrast", {options_.contrast}, {0})
        .option("saturation", {options_.saturation}, {0})
        .option("hue", {options_.hue}, {0})
        .text();
  }
  bool draws() const override { return true; }

 private:
  Array image_of(Array in, Draw& draw) const override {
    return apply_jitter(std::move(in), data::detail::draw_jitter(options_, draw));
  }

  ColorJitterOptions options_;
};

class RandAugment final : public ImageTransform {
 public:
  RandAugment(int64_t num_ops, int64_t magnitude)
      : ImageTransform(Pixel::bytes), num_ops_(num_ops), magnitude_(magnitude) {
    require_option(num_ops >= 0, name(), "0 operations or more");
    require_option(magnitude >= 0 && magnitude <= data::detail::kMostMagnitude, name(),
                   fmt::format("a magnitude of 0 to {}", data::detail::kMostMagnitude));
  }

  std::string name() const override {
    return SpecWriter("rand_augment")
        .number(static_cast<double>(num_ops_))
        .number(static_cast<double>(magnitude_))
        .text();
  }
  bool draws() const override { return true; }

 private:
  Array image_of(Array in, Draw& draw) const override {
    for (int64_t i = 0; i < num_ops_; ++i) {
      const auto next =
          data::detail::draw_augmentation(in.shape()[1], in.shape()[2], magnitude_, draw);
      in = apply_augmentation(std::move(in), next);
    }
    return in;
  }

  int64_t num_ops_, magnitude_;
};

}  // namespace

TransformHandle color_jitter(ColorJitterOptions options) {
  return std::make_shared<ColorJitter>(options);
}

TransformHandle rand_augment(int64_t num_ops, int64_t magnitude) {
  return std::make_shared<RandAugment>(num_ops, magnitude);
}

}  // namespace tutti::data::transforms
