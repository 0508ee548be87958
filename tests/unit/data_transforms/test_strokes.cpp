// Strokes to bitmaps and to sequences, against slow and obvious ways.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "tutti/base/cpu_variant.h"
#include "tutti/base/random.h"
#include "tutti/data/stroke_field.h"
#include "tutti/data/transforms/kernels/strokes.h"
#include "tutti/data/transforms/strokes.h"
#include "tutti/data/transforms/transforms.h"

#include "tests/support/expect.h"

namespace tutti::data {
namespace {

using transforms::strokes_to_bitmap;
using transforms::strokes_to_sequence;

struct Point {
  float x, y, time, stroke;
};

Array strokes_of(const std::vector<Point>& points) {
  Array array = make_array(DType::float32, {std::ssize(points), kStrokeFields});
  float* at = array.as<float>().data();
  for (const Point& point : points)
    for (const float value : {point.x, point.y, point.time, point.stroke}) *at++ = value;
  return array;
}

Sample made_by(const TransformHandle& transform, const std::vector<Point>& points) {
  Draw draw(0);
  return transform->apply({{strokes_of(points), scalar(int64_t{3})}}, draw);
}

std::vector<Point> random_drawing(uint64_t seed) {
  RandomStream random(seed);
  std::vector<Point> points;
  const auto strokes = 1 + random.below(5);
  float time = 0;
  for (uint64_t stroke = 0; stroke < strokes; ++stroke)
    for (uint64_t i = 1 + random.below(8); i > 0; --i)
      points.push_back({static_cast<float>(random.below(256)),
                        static_cast<float>(random.below(256)),
                        time += static_cast<float>(random.below(3)), static_cast<float>(stroke)});
  return points;
}

// ---- the oracle: every pixel asks every line, in double

struct Line {
  double x0, y0, x1, y1;
  std::array<double, 3> values;
};

std::vector<Line> lines_of(const std::vector<Point>& points, int64_t side, double line) {
  const auto by_x = [](const Point& a, const Point& b) { return a.x < b.x; };
  const auto by_y = [](const Point& a, const Point& b) { return a.y < b.y; };
  const auto [left, right] = std::ranges::minmax_element(points, by_x);
  const auto [top, bottom] = std::ranges::minmax_element(points, by_y);
  const double longer = std::max(right->x - left->x, bottom->y - top->y);
  const double room = static_cast<double>(side) - line - 1;
  const double scale = longer > 0 ? room / longer : 0;
  const auto x_of = [&, left = left, right = right](const Point& point) {
    return (point.x - (left->x + right->x) / 2.0) * scale + static_cast<double>(side) / 2;
  };
  const auto y_of = [&, top = top, bottom = bottom](const Point& point) {
    return (point.y - (top->y + bottom->y) / 2.0) * scale + static_cast<double>(side) / 2;
  };
  const double all_time = points.back().time - points.front().time;
  const double strokes = points.back().stroke + 1;
  std::map<float, int> points_of;
  for (const Point& point : points) ++points_of[point.stroke];
  std::vector<Line> lines;
  for (size_t i = 0; i < points.size(); ++i) {
    const bool alone = points_of[points[i].stroke] == 1;
    if (!alone && (i == 0 || points[i].stroke != points[i - 1].stroke)) continue;
    const Point& from = alone ? points[i] : points[i - 1];
    const double share = all_time > 0 ? (points[i].time - points[0].time) / all_time : 0;
    lines.push_back({x_of(from),
                     y_of(from),
                     x_of(points[i]),
                     y_of(points[i]),
                     {1, 1 - points[i].stroke / strokes, 1 - share / 2}});
  }
  return lines;
}

double distance(const Line& line, double x, double y) {
  const double run = line.x1 - line.x0, rise = line.y1 - line.y0;
  const double square = run * run + rise * rise;
  const double along =
      square > 0 ? std::clamp(((x - line.x0) * run + (y - line.y0) * rise) / square, 0.0, 1.0) : 0;
  return std::hypot(x - line.x0 - along * run, y - line.y0 - along * rise);
}

std::vector<double> plain_bitmap(const std::vector<Point>& points, int64_t side, double line) {
  std::vector<double> pixels(static_cast<size_t>(3 * side * side));
  for (const Line& one : lines_of(points, side, line))
    for (int64_t c = 0; c < 3; ++c)
      for (int64_t y = 0; y < side; ++y)
        for (int64_t x = 0; x < side; ++x) {
          const double d =
              distance(one, static_cast<double>(x) + 0.5, static_cast<double>(y) + 0.5);
          double& pixel = pixels[static_cast<size_t>((c * side + y) * side + x)];
          pixel = std::max(pixel, 255 * one.values[static_cast<size_t>(c)] *
                                      std::clamp(line / 2 + 0.5 - d, 0.0, 1.0));
        }
  return pixels;
}

// The share of a pixel that lies within half a line's width of a line: of 16 x 16 places in it.
std::vector<double> covered(const std::vector<Point>& points, int64_t side, double line) {
  constexpr int kPlaces = 16;
  const std::vector<Line> lines = lines_of(points, side, line);
  std::vector<double> pixels;
  for (int64_t y = 0; y < side; ++y)
    for (int64_t x = 0; x < side; ++x) {
      int inside = 0;
      for (int i = 0; i < kPlaces * kPlaces; ++i) {
        const int column = i % kPlaces, line_of = i / kPlaces;
        const double at_x = static_cast<double>(x) + (column + 0.5) / kPlaces;
        const double at_y = static_cast<double>(y) + (line_of + 0.5) / kPlaces;
        inside += std::ranges::any_of(
            lines, [&](const Line& one) { return distance(one, at_x, at_y) <= line / 2; });
      }
      pixels.push_back(inside / double{kPlaces * kPlaces});
    }
  return pixels;
}

TEST(StrokesToBitmap, IsTheDistanceToTheNearestLineInEveryPixel) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const std::vector<Point> drawing = random_drawing(seed);
    const int64_t side = seed % 3 == 0 ? 28 : seed % 3 == 1 ? 64 : 33;
    const double line = seed % 2 == 0 ? 2 : 1.25 + static_cast<double>(seed) / 10;
    const Sample made = made_by(strokes_to_bitmap(side, {.line = line, .time = true}), drawing);
    EXPECT_EQ(made.columns[0].to_string(), make_array(DType::uint8, {3, side, side}).to_string());
    EXPECT_EQ(made.columns[1].as<int64_t>()[0], 3);
    const auto pixels = made.columns[0].as<uint8_t>();
    const std::vector<double> plain = plain_bitmap(drawing, side, line);
    for (size_t i = 0; i < plain.size(); ++i)
      ASSERT_NEAR(pixels[i], plain[i], 0.51) << "pixel " << i << " of drawing " << seed;
    const Sample ink = made_by(strokes_to_bitmap(side, {.line = line}), drawing);
    EXPECT_TRUE(std::ranges::equal(ink.columns[0].as<uint8_t>(),
                                   pixels.first(static_cast<size_t>(side * side))));
  }
}

// Of one line nearly so in every pixel; where lines meet in one the brighter counts alone.
TEST(StrokesToBitmap, IsAboutTheShareOfAPixelThatIsCovered) {
  for (uint64_t seed = 100; seed < 108; ++seed) {
    std::vector<Point> drawing = random_drawing(seed);
    const bool one_line = seed % 2 == 0;
    if (one_line) drawing = {{0, 0, 0, 0}, {drawing[0].x + 1, drawing[0].y, 1, 0}};
    const Sample made = made_by(strokes_to_bitmap(40), drawing);
    const std::vector<double> share = covered(drawing, 40, 2);
    double sum = 0;
    for (size_t i = 0; i < share.size(); ++i) {
      const double off = std::abs(made.columns[0].as<uint8_t>()[i] / 255.0 - share[i]);
      EXPECT_LT(off, one_line ? 0.12 : 0.5) << "pixel " << i;
      sum += off;
    }
    EXPECT_LT(sum / static_cast<double>(share.size()), 0.02) << seed;
  }
}

const detail::StrokeKernels& stroke_kernels_for(CpuVariant variant) {
  if constexpr (kHasX86Variants) {
    if (variant == CpuVariant::avx512) return avx512::stroke_kernels;
    if (variant == CpuVariant::avx2) return avx2::stroke_kernels;
  }
  return baseline::stroke_kernels;
}

TEST(StrokesToBitmap, EveryInstructionSetGivesTheSameBits) {
  constexpr int32_t kSide = 37, kStride = kSide + detail::kStrokeBlock;
  const auto drawn = [&](const detail::StrokeKernels& kernels, uint64_t seed) {
    RandomStream numbers(seed);
    std::vector<float> planes(3 * kSide * kStride);
    for (int i = 0; i < 20; ++i) {
      const auto place = [&] { return numbers.uniform() * 50 - 5; };  // beyond the border, too
      kernels.draw(
          {place(), place(), place(), place(), 0.6F + 3 * numbers.uniform(), {255, 17, 99}}, kSide,
          kStride, 3, planes.data());
    }
    std::vector<uint8_t> bytes(3 * kSide * kSide);
    kernels.to_bytes(planes.data(), 3 * kSide, kSide, kStride, bytes.data());
    return bytes;
  };
  const auto variants = runnable_variants();
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const auto baseline = drawn(baseline::stroke_kernels, seed);
    for (const CpuVariant variant : variants)
      EXPECT_EQ(drawn(stroke_kernels_for(variant), seed), baseline) << name_of(variant);
  }
}

TEST(StrokesToBitmap, WhereAndHowLargeSomethingWasDrawnDoesNotCount) {
  const std::vector<Point> small{{10, 20, 0, 0}, {30, 20, 1, 0}, {30, 24, 2, 1}, {14, 22, 3, 1}};
  std::vector<Point> large = small;
  for (Point& point : large)
    point = {point.x * 8 - 100, point.y * 8 + 3, point.time * 9, point.stroke};
  const auto transform = strokes_to_bitmap(32, {.time = true});
  EXPECT_TRUE(std::ranges::equal(made_by(transform, small).columns[0].as<uint8_t>(),
                                 made_by(transform, large).columns[0].as<uint8_t>()));
}

TEST(StrokesToBitmap, ADotIsInTheMiddle) {
  const Sample made = made_by(strokes_to_bitmap(5, {.line = 1}), {{7, 7, 0, 0}});
  const auto pixels = made.columns[0].as<uint8_t>();
  for (size_t i = 0; i < 25; ++i) EXPECT_EQ(pixels[i], i == 12 ? 255 : 0) << i;
}

TEST(StrokesToSequence, HasSteps) {
  const std::vector<Point> drawing{
      {10, 20, 100, 0}, {30, 20, 110, 0}, {30, 60, 130, 1}, {20, 60, 140, 1}};
  const Sample made = made_by(strokes_to_sequence(6, {.time = true, .length = true}), drawing);
  EXPECT_THAT(made.columns[0].shape(), ElementsAre(6, 5));
  EXPECT_THAT(made.columns[0].as<float>(), ElementsAre(0, 0, 0, 0, 1,                   //
                                                       0.5F, 0, 1, 0.25F, 1,            //
                                                       0, 1, 0, 0.5F, 1,                //
                                                       -0.25F, 0, 1, 0.25F, 1,          //
                                                       0, 0, 0, 0, 0, 0, 0, 0, 0, 0));  // padding
  EXPECT_EQ(made.columns[1].as<int64_t>()[0], 4);
  EXPECT_EQ(made.columns[2].as<int64_t>()[0], 3);
  const Sample cut = made_by(strokes_to_sequence(2), drawing);
  EXPECT_THAT(cut.columns[0].as<float>(), ElementsAre(0, 0, 0, 1, 0.5F, 0, 1, 1));
  EXPECT_EQ(cut.columns[1].as<int64_t>()[0], 3);
}

// Its steps summed are the points again.
TEST(StrokesToSequence, LosesNothing) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<Point> drawing = random_drawing(seed);
    const Sample made = made_by(strokes_to_sequence(64, {.time = true}), drawing);
    const auto by_x = std::ranges::minmax_element(drawing, {}, &Point::x);
    const auto by_y = std::ranges::minmax_element(drawing, {}, &Point::y);
    const float longer = std::max({by_x.max->x - by_x.min->x, by_y.max->y - by_y.min->y});
    const float scale = longer > 0 ? longer : 1;
    double x = drawing[0].x, y = drawing[0].y, time = 0;
    for (size_t i = 0; i < drawing.size(); ++i) {
      const float* step = made.columns[0].as<float>().data() + 5 * i;
      x += step[0] * scale, y += step[1] * scale, time += step[3];
      EXPECT_NEAR(x, drawing[i].x, 1e-3);
      EXPECT_NEAR(y, drawing[i].y, 1e-3);
      EXPECT_EQ(step[2], i > 0 && drawing[i].stroke == drawing[i - 1].stroke ? 1 : 0);
      EXPECT_EQ(step[4], 1);
    }
    EXPECT_NEAR(time, drawing.back().time > drawing.front().time ? 1 : 0, 1e-5);
  }
}

// What a map of one's own may make of them.
TEST(TransformsOfStrokes, RefuseValuesThatAreNotFinite) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const TransformHandle all[] = {strokes_to_bitmap(16, {.time = true}),
                                 strokes_to_sequence(8, {.time = true}),
                                 transforms::random_strokes()};
  for (const auto& transform : all)
    for (const float value : {kNan, kInfinity, -kInfinity, 2e30F}) {
      const std::pair<Point, const char*> points[] = {
          {{value, 0, 1, 0}, "point 2: got x "},
          {{9, value, 1, 0}, "point 2: got y "},
          {{9, 0, value, 0}, "point 2: got time "},
          {{9, 0, 1, value}, "point 2: got stroke number "}};
      for (const auto& [point, words] : points)
        EXPECT_THAT(message_of<DataError>(
                        [&, at = point] { made_by(transform, {{0, 0, 0, 0}, at, {9, 9, 2, 0}}); }),
                    HasSubstr(words));
    }
}

TEST(TransformsOfStrokes, KeepSharesOfTimeAndStrokesBetween0And1) {
  // The second is before the first point's time, the third behind the last's.
  const std::vector<Point> back{{0, 0, 10, 0}, {9, 0, 0, 0}, {9, 9, 50, 0}, {0, 9, 20, 0}};
  const Sample steps = made_by(strokes_to_sequence(4, {.time = true}), back);
  std::vector<float> shares;
  for (size_t i = 0; i < 4; ++i) shares.push_back(steps.columns[0].as<float>()[5 * i + 3]);
  EXPECT_THAT(shares, ElementsAre(0, 0, 1, 0));
  const Sample drawn = made_by(strokes_to_bitmap(16, {.time = true}), back);
  const auto pixels = drawn.columns[0].as<uint8_t>();
  EXPECT_EQ(std::ranges::max(pixels), 255);
  for (size_t i = 512; i < 768; ++i) ASSERT_LE(pixels[i], pixels[i - 512]) << "brighter than ink";
  for (const float number : {-1.0F, -9.0F, 9.0F}) {
    const std::vector<Point> odd{
        {0, 0, 0, number}, {9, 0, 1, number}, {9, 9, 2, -1}, {0, 9, 3, -1}};
    const Sample made = made_by(strokes_to_bitmap(16, {.time = true}), odd);
    const auto bytes = made.columns[0].as<uint8_t>();
    for (size_t i = 256; i < 512; ++i) ASSERT_LE(bytes[i], bytes[i - 256]) << number;
  }
}

// Boxes beyond what a scale can be made of: a dot, or the whole bitmap.
TEST(TransformsOfStrokes, TakeBoxesOfAnySize) {
  for (const float side : {1e-42F, 1e-35F, 1e-20F, 1e20F, 1e30F}) {
    const Sample made = made_by(strokes_to_bitmap(9), {{0, 0, 0, 0}, {side, side, 1, 0}});
    const auto pixels = made.columns[0].as<uint8_t>();
    EXPECT_EQ(pixels[40], 255) << side;
    EXPECT_EQ(pixels[10] > 0, side > 1e-30F) << side;
    const Sample steps = made_by(strokes_to_sequence(2), {{0, 0, 0, 0}, {side, side, 1, 0}});
    EXPECT_TRUE(std::isfinite(steps.columns[0].as<float>()[4])) << side;
  }
}

TEST(RandomStrokes, AreAffineAndDrawnByTheKey) {
  const std::vector<Point> drawing = random_drawing(3);
  const auto made = [&](const TransformHandle& transform, uint64_t key) {
    Draw draw(key);
    const Array strokes = transform->apply({{strokes_of(drawing)}}, draw).columns[0];
    return std::vector<float>(strokes.as<float>().begin(), strokes.as<float>().end());
  };
  const Array as_it_was = strokes_of(drawing);
  const auto plain = as_it_was.as<float>();
  EXPECT_TRUE(std::ranges::equal(made(transforms::random_strokes(0), 1), plain));
  EXPECT_EQ(made(transforms::random_strokes(), 1), made(transforms::random_strokes(), 1));
  EXPECT_NE(made(transforms::random_strokes(), 1), made(transforms::random_strokes(), 2));
  const auto mirrored = made(transforms::random_strokes(0, 1), 1);
  int64_t mirrors = 0;
  for (uint64_t key = 0; key < 200; ++key) {
    Draw draw(key);
    const auto number = [&] { return draw.uniform(-0.3, 0.3); };
    const double a = number(), b = number(), c = number(), d = number();
    const double sign = draw.chance(0.5) ? -1 : 1;
    mirrors += sign < 0 ? 1 : 0;
    const auto out = made(transforms::random_strokes(0.3, 0.5), key);
    for (size_t i = 0; i < out.size(); i += kStrokeFields) {
      const double x = plain[i], y = plain[i + 1];
      ASSERT_NEAR(out[i], sign * ((1 + a) * x + b * y), 1e-3);
      ASSERT_NEAR(out[i + 1], c * x + (1 + d) * y, 1e-3);
      ASSERT_EQ(out[i + 2], plain[i + 2]);
      ASSERT_EQ(out[i + 3], plain[i + 3]);
      ASSERT_EQ(mirrored[i], -plain[i]);
    }
  }
  EXPECT_GT(mirrors, 60);
  EXPECT_LT(mirrors, 140);
}

TEST(TransformsOfStrokes, HaveNamesThatCanBeReadAgain) {
  EXPECT_EQ(transforms::random_strokes()->name(), "random_strokes(0.2)");
  EXPECT_EQ(transforms::by_name("random_strokes")->name(), "random_strokes(0.2)");
  EXPECT_EQ(transforms::by_name("random_strokes(0.1, mirror 0.5)")->name(),
            "random_strokes(0.1, mirror 0.5)");
  EXPECT_TRUE(transforms::random_strokes()->draws());
  const std::pair<TransformHandle, const char*> all[] = {
      {strokes_to_bitmap(64), "strokes_to_bitmap(64)"},
      {strokes_to_bitmap(28, {.line = 1.5, .time = true}), "strokes_to_bitmap(28, line 1.5, time)"},
      {strokes_to_sequence(100), "strokes_to_sequence(100)"},
      {strokes_to_sequence(9, {.time = true, .length = true}),
       "strokes_to_sequence(9, time, length)"}};
  for (const auto& [transform, name] : all) {
    EXPECT_EQ(transform->name(), name);
    EXPECT_EQ(transforms::by_name(name)->name(), name);
    EXPECT_FALSE(transform->draws());
  }
  const std::vector<Column> in{{"strokes", DType::float32, {kAnySize, 4}}, {"y", DType::int64, {}}};
  EXPECT_EQ(all[1].first->columns(in)[0].to_string(), "x uint8 [3, 28, 28]");
  EXPECT_EQ(all[2].first->columns(in)[0].to_string(), "x float32 [100, 4]");
  EXPECT_EQ(all[3].first->columns(in)[1].to_string(), "length int64 []");
  EXPECT_EQ(all[3].first->columns(in)[2].to_string(), "y int64 []");
}

TEST(TransformsOfStrokes, RefuseWhatTheyCannotTake) {
  for (const auto& transform : {strokes_to_bitmap(64), strokes_to_sequence(8)}) {
    EXPECT_THAT(
        message_of<UsageError>([&] { transform->columns({{"x", DType::uint8, {3, 8, 8}}}); }),
        HasSubstr("got column x uint8 [3, 8, 8], expected float32 [?, 4]"));
    EXPECT_THAT(message_of<DataError>([&] { made_by(transform, {}); }),
                HasSubstr("a point or more"));
  }
  EXPECT_THAT(message_of<UsageError>([] { transforms::random_strokes(0.6); }),
              HasSubstr("an amount of 0 to 0.5"));
  EXPECT_THAT(message_of<UsageError>([] { transforms::random_strokes(0.1, 2); }),
              HasSubstr("mirror"));
  EXPECT_THAT(message_of<UsageError>([] { strokes_to_bitmap(3); }), HasSubstr("4 to 4096 pixels"));
  EXPECT_THAT(message_of<UsageError>([] { strokes_to_bitmap(5000); }), HasSubstr("4 to 4096"));
  EXPECT_THAT(message_of<UsageError>([] { strokes_to_bitmap(8, {.line = 5}); }),
              HasSubstr("line: 1 pixel to half"));
  EXPECT_THAT(message_of<UsageError>([] { strokes_to_sequence(0); }), HasSubstr("1 to 65536"));
  EXPECT_THAT(message_of<UsageError>([] { transforms::by_name("strokes_to_bitmap(8, lines 3)"); }),
              HasSubstr("line"));
}

}  // namespace
}  // namespace tutti::data
