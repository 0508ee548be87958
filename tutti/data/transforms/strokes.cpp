// Transforms of strokes: to bitmaps, to sequences.
#include "tutti/data/transforms/strokes.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "tutti/base/cpu_variant.h"
#include "tutti/data/stroke_field.h"
#include "tutti/data/transforms/detail/image.h"
#include "tutti/data/transforms/kernels/strokes.h"

namespace tutti::data::transforms {
namespace {

using data::detail::require_option;
using data::detail::SpecWriter;
using data::detail::StrokeLine;

constexpr int64_t kLeastSide = 4, kMostSide = 4096;
constexpr int64_t kMostPoints = 65536;
// Of what a point has: sums and quotients of such are finite. A box that is smaller is a dot.
constexpr float kMostValue = 1e30F, kLeastBox = 1e-30F;

using Point = std::span<const float, kStrokeFields>;

// The points of one drawing, and what both transforms ask of them.
class Points {
 public:
  Points(const Transform& transform, const Array& strokes) {
    const bool fits = strokes.dtype() == DType::float32 && strokes.shape().size() == 2 &&
                      strokes.shape()[1] == kStrokeFields;
    if (!fits || strokes.shape()[0] == 0)
      throw DataError(fmt::format("{}: got {}, expected float32 [points, {}], a point or more",
                                  transform.name(), strokes.to_string(), +kStrokeFields));
    fields_ = strokes.as<float>();
    for (int64_t i = 0; i < size(); ++i) {
      const Point point = at(i);
      require_finite(transform, i);
      for (size_t axis = 0; axis < 2; ++axis) {
        low_[axis] = i == 0 ? point[axis] : std::min(low_[axis], point[axis]);
        high_[axis] = i == 0 ? point[axis] : std::max(high_[axis], point[axis]);
      }
    }
  }

  int64_t size() const { return std::ssize(fields_) / kStrokeFields; }
  Point at(int64_t i) const {
    return Point(fields_.data() + i * kStrokeFields, static_cast<size_t>(kStrokeFields));
  }
  bool begins_stroke(int64_t i) const {
    return i == 0 || at(i)[kStrokeNumber] != at(i - 1)[kStrokeNumber];
  }
  bool ends_stroke(int64_t i) const { return i + 1 == size() || begins_stroke(i + 1); }

  /// Of the box that they lie in.
  float longer_side() const {
    const float side = std::max(high_[0] - low_[0], high_[1] - low_[1]);
    return side >= kLeastBox ? side : 0;
  }
  float middle(size_t axis) const { return (low_[axis] + high_[axis]) / 2; }

  /// 0 for the first point, 1 for the last; 0 where no time goes by. Of a map that moves points,
  /// so that times run back, what is before the first or behind the last is 0 or 1, too.
  float share_of_time(int64_t i) const {
    const float first = at(0)[kStrokeTime], all = at(size() - 1)[kStrokeTime] - first;
    return all > 0 ? std::clamp((at(i)[kStrokeTime] - first) / all, 0.0F, 1.0F) : 0;
  }
  /// Of the strokes before a point's own.
  float share_of_strokes(int64_t i) const {
    const float all = at(size() - 1)[kStrokeNumber] + 1;
    return all > 0 ? std::clamp(at(i)[kStrokeNumber] / all, 0.0F, 1.0F) : 0;
  }

 private:
  void require_finite(const Transform& transform, int64_t i) const {
    constexpr const char* kNames[] = {"x", "y", "time", "stroke number"};
    for (size_t field = 0; field < kStrokeFields; ++field)
      if (!(std::abs(at(i)[field]) <= kMostValue))
        throw DataError(fmt::format("{}: point {}: got {} {}, expected a number, -{} to {}",
                                    transform.name(), i + 1, kNames[field], at(i)[field],
                                    kMostValue, kMostValue));
  }

  std::span<const float> fields_;
  float low_[2]{}, high_[2]{};
};

// Throws unless column 0 has strokes.
void require_strokes(const Transform& transform, const std::vector<Column>& in) {
  const std::vector<int64_t> expected{kAnySize, kStrokeFields};
  if (in.empty() || in[0].dtype != DType::float32 || in[0].shape != expected)
    throw UsageError(fmt::format("{}: got column {}, expected float32 {}, as strokes() has it",
                                 transform.name(), in.empty() ? "none" : in[0].to_string(),
                                 shape_words(expected)));
}

class RandomStrokes final : public Transform {
 public:
  RandomStrokes(double amount, double mirror) : amount_(amount), mirror_(mirror) {
    require_option(amount >= 0 && amount <= 0.5, name(), "an amount of 0 to 0.5");
    require_option(mirror >= 0 && mirror <= 1, name(), "mirror: a probability of 0 to 1");
  }

  std::string name() const override {
    return SpecWriter("random_strokes").number(amount_).option("mirror", {mirror_}, {0}).text();
  }

  std::vector<Column> columns(const std::vector<Column>& in) const override {
    require_strokes(*this, in);
    return in;
  }

  Sample apply(Sample in, Draw& draw) const override {
    const Points points(*this, in.columns.at(0));
    const auto drawn = [&] { return draw.uniform(-amount_, amount_); };
    double x_of_x = 1 + drawn();
    double x_of_y = drawn();
    const double y_of_x = drawn(), y_of_y = 1 + drawn();
    if (draw.chance(mirror_)) x_of_x = -x_of_x, x_of_y = -x_of_y;
    Array out = data::detail::owned_copy(in.columns[0]);
    float* at = out.as<float>().data();
    for (int64_t i = 0; i < points.size(); ++i, at += kStrokeFields) {
      const double x = at[kStrokeX], y = at[kStrokeY];
      at[kStrokeX] = static_cast<float>(x_of_x * x + x_of_y * y);
      at[kStrokeY] = static_cast<float>(y_of_x * x + y_of_y * y);
    }
    in.columns[0] = std::move(out);
    return in;
  }

  bool draws() const override { return true; }

 private:
  double amount_, mirror_;
};

class StrokesToBitmap final : public Transform {
 public:
  StrokesToBitmap(int64_t side, StrokesToBitmapOptions options) : side_(side), options_(options) {
    require_option(side >= kLeastSide && side <= kMostSide, name(),
                   fmt::format("a side of {} to {} pixels", kLeastSide, kMostSide));
    require_option(options.line >= 1 && options.line <= static_cast<double>(side) / 2, name(),
                   "line: 1 pixel to half of the side");
  }

  std::string name() const override {
    return SpecWriter("strokes_to_bitmap")
        .number(static_cast<double>(side_))
        .option("line", {options_.line}, {StrokesToBitmapOptions{}.line})
        .flag("time", options_.time)
        .text();
  }

  std::vector<Column> columns(const std::vector<Column>& in) const override {
    require_strokes(*this, in);
    std::vector<Column> out = in;
    out[0] = {.name = "x", .dtype = DType::uint8, .shape = {channels(), side_, side_}};
    return out;
  }

  Sample apply(Sample in, Draw&) const override {
    const Points points(*this, in.columns.at(0));
    const auto& kernels = data::detail::stroke_kernels();
    thread_local std::vector<float> planes;
    const auto side = static_cast<int32_t>(side_);
    const int32_t stride = side + data::detail::kStrokeBlock;
    planes.assign(static_cast<size_t>(channels() * side * stride), 0);
    StrokeLine line{.reach = static_cast<float>(options_.line / 2 + 0.5)};
    for (int64_t i = 0; i < points.size(); ++i) {
      const bool dot = points.begins_stroke(i) && points.ends_stroke(i);
      if (points.begins_stroke(i) && !dot) continue;
      place(points, dot ? i : i - 1, i, line);
      kernels.draw(line, side, stride, static_cast<int32_t>(channels()), planes.data());
    }
    in.columns[0] = make_array(DType::uint8, {channels(), side_, side_});
    kernels.to_bytes(planes.data(), channels() * side, side, stride,
                     in.columns[0].as<uint8_t>().data());
    return in;
  }

  bool draws() const override { return false; }

 private:
  int64_t channels() const { return options_.time ? data::detail::kStrokeChannels : 1; }

  // The line from point `from` to point `to`, in pixels, and what it leaves there.
  void place(const Points& points, int64_t from, int64_t to, StrokeLine& line) const {
    const float span = points.longer_side();
    const auto room = static_cast<float>(side_) - 2 * line.reach;
    const float scale = span > 0 ? room / span : 0;
    const float half = static_cast<float>(side_) / 2;
    const auto in_pixels = [&](int64_t i, size_t axis) {
      return (points.at(i)[axis] - points.middle(axis)) * scale + half;
    };
    line.x0 = in_pixels(from, kStrokeX), line.y0 = in_pixels(from, kStrokeY);
    line.x1 = in_pixels(to, kStrokeX), line.y1 = in_pixels(to, kStrokeY);
    line.values[0] = 255;
    line.values[1] = 255 * (1 - points.share_of_strokes(to));
    line.values[2] = 255 * (1 - points.share_of_time(to) / 2);
  }

  int64_t side_;
  StrokesToBitmapOptions options_;
};

class StrokesToSequence final : public Transform {
 public:
  StrokesToSequence(int64_t length, StrokesToSequenceOptions options)
      : length_(length), options_(options) {
    require_option(length >= 1 && length <= kMostPoints, name(),
                   fmt::format("a length of 1 to {} points", kMostPoints));
  }

  std::string name() const override {
    return SpecWriter("strokes_to_sequence")
        .number(static_cast<double>(length_))
        .flag("time", options_.time)
        .flag("length", options_.length)
        .text();
  }

  std::vector<Column> columns(const std::vector<Column>& in) const override {
    require_strokes(*this, in);
    std::vector<Column> out = in;
    out[0] = {.name = "x", .dtype = DType::float32, .shape = {length_, width()}};
    if (options_.length)
      out.insert(out.begin() + 1, {.name = "length", .dtype = DType::int64, .shape = {}});
    return out;
  }

  Sample apply(Sample in, Draw&) const override {
    const Points points(*this, in.columns.at(0));
    const float span = points.longer_side() > 0 ? points.longer_side() : 1;
    const int64_t there = std::min(length_, points.size());
    Array out = make_array(DType::float32, {length_, width()});
    float* at = out.as<float>().data();
    std::fill_n(at, length_ * width(), 0.0F);
    for (int64_t i = 0; i < there; ++i) {
      const int64_t before = std::max<int64_t>(i - 1, 0);
      for (size_t axis = 0; axis < 2; ++axis)
        *at++ = (points.at(i)[axis] - points.at(before)[axis]) / span;
      *at++ = points.begins_stroke(i) ? 0 : 1;
      if (options_.time) *at++ = points.share_of_time(i) - points.share_of_time(before);
      *at++ = 1;
    }
    in.columns[0] = std::move(out);
    if (options_.length) in.columns.insert(in.columns.begin() + 1, scalar(there));
    return in;
  }

  bool draws() const override { return false; }

 private:
  int64_t width() const { return options_.time ? 5 : 4; }

  int64_t length_;
  StrokesToSequenceOptions options_;
};

}  // namespace

TransformHandle random_strokes(double amount, double mirror) {
  return std::make_shared<RandomStrokes>(amount, mirror);
}

TransformHandle strokes_to_bitmap(int64_t side, StrokesToBitmapOptions options) {
  return std::make_shared<StrokesToBitmap>(side, options);
}

TransformHandle strokes_to_sequence(int64_t length, StrokesToSequenceOptions options) {
  return std::make_shared<StrokesToSequence>(length, options);
}

}  // namespace tutti::data::transforms

namespace tutti::data::detail {
namespace {

const StrokeKernels& stroke_kernels_of(CpuVariant variant) {
  if constexpr (kHasX86Variants) {
    if (variant == CpuVariant::avx512) return avx512::stroke_kernels;
    if (variant == CpuVariant::avx2) return avx2::stroke_kernels;
  }
  return baseline::stroke_kernels;
}

}  // namespace

const StrokeKernels& stroke_kernels() {
  static const StrokeKernels& kernels = stroke_kernels_of(best_variant());
  return kernels;
}

}  // namespace tutti::data::detail
