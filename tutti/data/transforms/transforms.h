/// Transforms of photos; names and meaning are those of torchvision.transforms.v2.
///
///   data.map(transforms::decode_crop(224))
///       .map(transforms::random_horizontal_flip())
///       .map(transforms::normalize({0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}))
///
/// They act on column 0 and let the others pass; on_column() names another. A photo is encoded,
/// uint8 [?], or an image: [C, H, W] with C = 3 (RGB) or 1 (gray), uint8 in 0..255 or, where said,
/// float32. columns() throws UsageError for anything else; options out of range throw UsageError
/// where a transform is made. What draws takes its numbers from its Draw alone: equal keys, equal
/// bytes, on every machine.
/// Thread rule: immutable, as all transforms.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tutti/data/transform.h"

namespace tutti::data::transforms {

/// Height and width in pixels; of one number, a square.
struct Size {
  Size(int64_t side) : height(side), width(side) {}  // NOLINT: 224 is a size
  Size(int64_t rows, int64_t columns) : height(rows), width(columns) {}

  int64_t height, width;
};

/// From `low` to `high`, both included.
struct Range {
  double low = 0, high = 0;
  bool operator==(const Range&) const = default;
};

// ---- Encoded photos

/// 89,478,485 pixels are a quarter of a GiB of RGB, where Pillow warns of a bomb.
inline constexpr int64_t kMaxPixels = 89'478'485;

struct DecodeOptions {
  bool gray = false;  ///< [1, H, W]: JPEG's own brightness, else 0.299 R + 0.587 G + 0.114 B
  bool exif = false;  ///< turned and mirrored upright, as EXIF says
  int64_t max_pixels = kMaxPixels;  ///< a photo that has more is damaged
};

/// uint8 [?] -> uint8 [3, H, W]: JPEG, PNG, WebP or BMP, whatever the file is called. Gray becomes
/// RGB, CMYK as Pillow converts it; of 16 bits the upper 8 stay, transparency is dropped. apply()
/// throws DataError for other bytes, a photo that is cut off or damaged, an animation, too many
/// pixels.
TransformHandle decode(DecodeOptions options = {});

struct RandomResizedCropOptions {
  Range scale{0.08, 1};           ///< share of the photo's area
  Range ratio{3.0 / 4, 4.0 / 3};  ///< width over height
};

struct DecodeCropOptions {
  Range scale{0.08, 1};
  Range ratio{3.0 / 4, 4.0 / 3};
  bool gray = false;
  /// Lets JPEG shrink by eighths where the crop is at least twice the output: faster, and other
  /// pixels (a mean difference of about 1 of 255).
  bool shrink = false;
  int64_t max_pixels = kMaxPixels;
};

/// decode() and random_resized_crop() in one: the same bytes for the same Draw, but of a JPEG only
/// the crop is transformed, and what lies below it not even read (a mark of the end must be there).
TransformHandle decode_crop(Size size, DecodeCropOptions options = {});

struct DecodeCenterCropOptions {
  bool gray = false;
  int64_t max_pixels = kMaxPixels;
};

/// decode(), resize(shorter_edge) and center_crop(size) in one, likewise: what validation uses.
/// shorter_edge >= both sides of size.
TransformHandle decode_center_crop(int64_t shorter_edge, Size size,
                                   DecodeCenterCropOptions options = {});

// ---- Where pixels lie

/// uint8: the shorter edge becomes so long, the longer one in proportion (rounded down). Bilinear
/// with antialiasing, in fixed point, as torchvision's of uint8 on a CPU.
TransformHandle resize(int64_t shorter_edge);
TransformHandle resize(Size size);  ///< to that size, whatever the proportions

/// uint8: a crop of random area, shape and place, resized. Ten tries, then the largest centered one
/// within `ratio`. Inception's, Szegedy et al. 2015, doi:10.1109/CVPR.2015.7298594
TransformHandle random_resized_crop(Size size, RandomResizedCropOptions options = {});

/// uint8 or float32. Where the image is smaller, zeros surround it.
TransformHandle center_crop(Size size);

/// uint8 or float32; mirrored left to right, or top to bottom, with that probability.
TransformHandle random_horizontal_flip(double probability = 0.5);
TransformHandle random_vertical_flip(double probability = 0.5);

// ---- Colours

/// 0: leave it. Else a factor within 1 - x (not below 0) and 1 + x; of hue, a turn of -x to x.
struct ColorJitterOptions {
  double brightness = 0, contrast = 0, saturation = 0;
  double hue = 0;  ///< at most 0.5, half a circle
};

/// uint8; the four in random order, each within 1 of torchvision's result for its factor.
TransformHandle color_jitter(ColorJitterOptions options);

/// uint8: `num_ops` operations drawn out of fourteen, as strong as `magnitude`, 0 to 30, says.
/// Cubuk et al. 2020, doi:10.1109/CVPRW50498.2020.00359
TransformHandle rand_augment(int64_t num_ops = 2, int64_t magnitude = 9);

struct RandomErasingOptions {
  double probability = 0.5;
  Range scale{0.02, 0.33};       ///< share of the area
  Range ratio{0.3, 3.3};         ///< height over width
  std::vector<double> value{0};  ///< one, or one a channel
  bool noise = false;            ///< float32 alone: normal noise in place of `value`
};

/// uint8 or float32: a rectangle gets a value. Zhong et al. 2020, doi:10.1609/aaai.v34i07.7000
TransformHandle random_erasing(RandomErasingOptions options = {});

// ---- Numbers

/// uint8 in 0..255 -> float32 in 0..1, the same shape. Of any shape.
TransformHandle to_tensor();

/// (x - mean) / std for each channel: as many numbers as the image has channels. Of uint8, after
/// to_tensor() in the same pass.
TransformHandle normalize(std::vector<double> mean, std::vector<double> std);

// ---- All of them

/// `transform` on another column than the first. 0 <= column.
TransformHandle on_column(int64_t column, TransformHandle transform);

/// The transform of that name(): by_name("resize(64)"). Throws UsageError for a name or an option
/// that there is not, with the nearest, and for one that cannot be read.
TransformHandle by_name(std::string_view name);

}  // namespace tutti::data::transforms
