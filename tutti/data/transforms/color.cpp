#include "tutti/data/transforms/detail/color.h"

#include <algorithm>
#include <cmath>

#include "tutti/data/transforms/kernels/pixels.h"

namespace tutti::data::detail {
namespace {

struct Planes {
  explicit Planes(const Array& image)
      : channels(image.shape()[0]),
        height(image.shape()[1]),
        width(image.shape()[2]),
        pixels(height * width),
        data(static_cast<uint8_t*>(image.data())) {}

  uint8_t* plane(int64_t c) const { return data + c * pixels; }

  int64_t channels, height, width, pixels;
  uint8_t* data;
};

// Brightness of each pixel, rounded down: [H, W].
Array gray_of(const Array& image) {
  const Planes in(image);
  Array gray = make_array(DType::uint8, {in.height, in.width});
  pixel_kernels().gray(in.plane(0), in.plane(1), in.plane(2), in.pixels,
                       static_cast<uint8_t*>(gray.data()));
  return gray;
}

double mean_of(const uint8_t* values, int64_t n) {
  int64_t sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += values[i];
  return static_cast<double>(sum) / static_cast<double>(n);
}

using Table = std::array<uint8_t, 256>;

void look_up(uint8_t* values, int64_t n, const Table& table) {
  for (int64_t i = 0; i < n; ++i) values[i] = table[values[i]];
}

template <class F>
Array through_table(Array image, F&& function) {
  Array out = owned_copy(std::move(image));
  Table table;
  for (size_t v = 0; v < table.size(); ++v) table[v] = function(static_cast<int>(v));
  look_up(static_cast<uint8_t*>(out.data()), out.num_elements(), table);
  return out;
}

// Pillow's scheme: the share of pixels below a value, of those that are not the brightest.
bool equalizing_table(const uint8_t* values, int64_t n, Table& table) {
  std::array<int64_t, 256> counts{};
  for (int64_t i = 0; i < n; ++i) ++counts[values[i]];
  const auto brightest = std::find_if(counts.rbegin(), counts.rend(), [](int64_t c) { return c; });
  const int64_t step = (n - *brightest) / 255;
  if (step == 0) return false;
  int64_t below = step / 2;
  for (size_t v = 0; v < table.size(); ++v) {
    table[v] = static_cast<uint8_t>(std::min<int64_t>(below / step, 255));
    below += counts[v];
  }
  return true;
}

}  // namespace

Array adjust_brightness(Array image, double factor) {
  Array out = owned_copy(std::move(image));
  auto* values = static_cast<uint8_t*>(out.data());
  pixel_kernels().multiply_add(values, out.num_elements(), static_cast<float>(factor), 0, values);
  return out;
}

Array adjust_contrast(Array image, double factor) {
  Array out = owned_copy(std::move(image));
  const Array gray = out.shape()[0] == 3 ? gray_of(out) : out;
  const double mean = mean_of(static_cast<const uint8_t*>(gray.data()), gray.num_elements());
  auto* values = static_cast<uint8_t*>(out.data());
  pixel_kernels().multiply_add(values, out.num_elements(), static_cast<float>(factor),
                               static_cast<float>(mean * (1 - factor)), values);
  return out;
}

Array adjust_saturation(Array image, double factor) {
  if (image.shape()[0] == 1) return image;
  Array out = owned_copy(std::move(image));
  const Array gray = gray_of(out);
  const Planes planes(out);
  for (int64_t c = 0; c < planes.channels; ++c)
    pixel_kernels().blend(planes.plane(c), static_cast<const uint8_t*>(gray.data()), planes.pixels,
                          static_cast<float>(factor), planes.plane(c));
  return out;
}

Array adjust_hue(Array image, double turn) {
  if (image.shape()[0] == 1) return image;
  Array out = owned_copy(std::move(image));
  const Planes planes(out);
  pixel_kernels().hue(planes.plane(0), planes.plane(1), planes.plane(2), planes.pixels,
                      static_cast<float>(turn));
  return out;
}

// Between the image and its mean over 3 x 3 pixels, of which the middle one counts five times;
// edges stay.
Array adjust_sharpness(const Array& image, double factor) {
  const Planes in(image);
  Array out = make_array(DType::uint8, image.shape());
  std::copy_n(in.data, image.num_elements(), static_cast<uint8_t*>(out.data()));
  const Planes to(out);
  const auto rest = static_cast<float>(1 - factor);
  for (int64_t c = 0; c < in.channels; ++c)
    for (int64_t y = 1; y + 1 < in.height; ++y) {
      const uint8_t* row = in.plane(c) + y * in.width;
      for (int64_t x = 1; x + 1 < in.width; ++x) {
        int sum = 4 * row[x];
        for (int64_t dy = -in.width; dy <= in.width; dy += in.width)
          sum += row[x + dy - 1] + row[x + dy] + row[x + dy + 1];
        const int blurred = (2 * sum + 13) / 26;  // rounded; thirteenths have no halves
        const float value =
            static_cast<float>(row[x]) + static_cast<float>(blurred - row[x]) * rest;
        to.plane(c)[y * in.width + x] = static_cast<uint8_t>(std::clamp(value, 0.0f, 255.0f));
      }
    }
  return out;
}

Array posterize(Array image, int bits) {
  const int mask = bits >= 8 ? 0xff : 0xff & ~(0xff >> bits);
  return through_table(std::move(image), [&](int v) { return static_cast<uint8_t>(v & mask); });
}

Array solarize(Array image, double threshold) {
  return through_table(std::move(image),
                       [&](int v) { return static_cast<uint8_t>(v >= threshold ? 255 - v : v); });
}

Array autocontrast(Array image) {
  Array out = owned_copy(std::move(image));
  const Planes planes(out);
  for (int64_t c = 0; c < planes.channels; ++c) {
    uint8_t* values = planes.plane(c);
    const auto [low, high] = std::minmax_element(values, values + planes.pixels);
    if (*low == *high) continue;
    const auto least = static_cast<float>(*low);
    const float scale = (static_cast<float>(*high) - least) * (1.0f / 255);
    Table table;
    for (size_t v = 0; v < table.size(); ++v)
      table[v] =
          static_cast<uint8_t>(std::clamp((static_cast<float>(v) - least) / scale, 0.0f, 255.0f));
    look_up(values, planes.pixels, table);
  }
  return out;
}

Array equalize(Array image) {
  Array out = owned_copy(std::move(image));
  const Planes planes(out);
  Table table;
  for (int64_t c = 0; c < planes.channels; ++c)
    if (equalizing_table(planes.plane(c), planes.pixels, table))
      look_up(planes.plane(c), planes.pixels, table);
  return out;
}

// In float32 and by way of -1..1, as torchvision's grid: where two pixels are as near, rounding
// decides.
Array affine(const Array& image, const Inverse& inverse) {
  const Planes in(image);
  Array out = make_array(DType::uint8, image.shape());
  const Planes to(out);
  const auto width = static_cast<float>(in.width), height = static_cast<float>(in.height);
  std::array<float, 6> m;
  for (size_t i = 0; i < 6; ++i)
    m[i] = static_cast<float>(inverse[i]) / (0.5f * (i < 3 ? width : height));
  for (int64_t y = 0; y < in.height; ++y)
    for (int64_t x = 0; x < in.width; ++x) {
      const float px = static_cast<float>(x) - (width - 1) * 0.5f;
      const float py = static_cast<float>(y) - (height - 1) * 0.5f;
      const float gx = px * m[0] + py * m[1] + m[2];
      const float gy = px * m[3] + py * m[4] + m[5];
      const auto sx = std::lrint(((gx + 1) * width - 1) / 2);
      const auto sy = std::lrint(((gy + 1) * height - 1) / 2);
      const bool inside = sx >= 0 && sx < in.width && sy >= 0 && sy < in.height;
      for (int64_t c = 0; c < in.channels; ++c)
        to.plane(c)[y * in.width + x] = inside ? in.plane(c)[sy * in.width + sx] : uint8_t{0};
    }
  return out;
}

}  // namespace tutti::data::detail
