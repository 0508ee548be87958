/// Operations on the colours and the place of pixels, with everything drawn already: what
/// color_jitter() and rand_augment() are made of. Images are uint8 [1 or 3, H, W]; where nobody
/// else has their memory they are changed in place.
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "tutti/data/transforms/detail/image.h"

namespace tutti::data::detail {

/// Factors >= 0; 1 changes nothing.
Array adjust_brightness(Array image, double factor);
Array adjust_contrast(Array image, double factor);
Array adjust_saturation(Array image, double factor);  ///< of gray: nothing
Array adjust_hue(Array image, double turn);           ///< -0.5 to 0.5; of gray: nothing
Array adjust_sharpness(const Array& image, double factor);

Array posterize(Array image, int bits);         ///< the upper `bits` of 8 stay
Array solarize(Array image, double threshold);  ///< inverts what is as bright or brighter
Array autocontrast(Array image);
Array equalize(Array image);

/// Pixel (x, y), counted from the middle of the image, comes from (a x + b y + c, d x + e y + f),
/// the nearest pixel; from outside: 0.
using Inverse = std::array<double, 6>;
Array affine(const Array& image, const Inverse& inverse);

/// What color_jitter() does to one image.
struct Jitter {
  std::array<int, 4> order{0, 1, 2, 3};          ///< of brightness, contrast, saturation, hue
  std::array<std::optional<double>, 4> amounts;  ///< factors, and the turn; none: left out
};
Jitter draw_jitter(const transforms::ColorJitterOptions& options, Draw& draw);
Array apply_jitter(Array image, const Jitter& jitter);

/// What rand_augment() draws from.
enum class Operation {
  identity,
  shear_x,
  shear_y,
  translate_x,
  translate_y,
  rotate,
  brightness,
  color,
  contrast,
  sharpness,
  posterize,
  solarize,
  autocontrast,
  equalize,
};
inline constexpr int kOperations = 14;

/// An operation and how strong it is: an angle in degrees, pixels, bits, ... as torchvision has it.
struct Augmentation {
  Operation operation = Operation::identity;
  double magnitude = 0;
};
/// Of an image of that size, `step` of 0 to 30.
Augmentation draw_augmentation(int64_t height, int64_t width, int64_t step, Draw& draw);
Array apply_augmentation(Array image, const Augmentation& augmentation);

}  // namespace tutti::data::detail
