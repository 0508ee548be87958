// Names, columns and options of the transforms; flips, jitter, erasing and mixing.
#include <algorithm>
#include <set>

#include "tutti/base/cpu_variant.h"
#include "tutti/data/transforms/detail/color.h"
#include "tutti/data/transforms/detail/mix.h"
#include "tutti/data/transforms/mix.h"
#include "tutti/data/transforms/transforms.h"

#include "photos.h"
#include "tests/support/expect.h"

namespace tutti::data {
namespace {

using namespace transforms;

struct Named {
  TransformHandle transform;
  const char* name;
  bool draws;
};

std::vector<Named> all_of_them() {
  return {
      {decode(), "decode()", false},
      {decode({.gray = true, .exif = true, .max_pixels = 1000}),
       "decode(gray, max_pixels 1000, exif)", false},
      {decode_crop(224), "decode_crop(224)", true},
      {decode_crop({64, 48}, {.scale = {0.5, 1}, .ratio = {1, 1}, .shrink = true}),
       "decode_crop(64, 48, scale 0.5 1, ratio 1 1, shrink)", true},
      {decode_center_crop(256, 224), "decode_center_crop(256, 224)", false},
      {decode_center_crop(256, {224, 192}, {.gray = true}),
       "decode_center_crop(256, 224, 192, gray)", false},
      {resize(64), "resize(64)", false},
      {resize({64, 48}), "resize(64, 48)", false},
      {random_resized_crop(24, {.ratio = {0.1, 1.5}}), "random_resized_crop(24, ratio 0.1 1.5)",
       true},
      {center_crop({3, 4}), "center_crop(3, 4)", false},
      {random_horizontal_flip(), "random_horizontal_flip()", true},
      {random_vertical_flip(0.25), "random_vertical_flip(0.25)", true},
      {color_jitter({.brightness = 0.4, .hue = 0.1}), "color_jitter(brightness 0.4, hue 0.1)",
       true},
      {rand_augment(), "rand_augment(2, 9)", true},
      {random_erasing(), "random_erasing()", true},
      {random_erasing({.probability = 1, .value = {1, 2, 3}}),
       "random_erasing(probability 1, value 1 2 3)", true},
      {to_tensor(), "to_tensor()", false},
      {normalize({0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}),
       "normalize(mean 0.485 0.456 0.406, std 0.229 0.224 0.225)", false},
      {on_column(2, on_column(1, resize({6, 7}))), "on_column(2, on_column(1, resize(6, 7)))",
       false},
  };
}

TEST(TransformNames, SayWhatIsDoneAndCanBeReadAgain) {
  for (const Named& one : all_of_them()) {
    EXPECT_EQ(one.transform->name(), one.name);
    EXPECT_EQ(one.transform->draws(), one.draws) << one.name;
    EXPECT_EQ(by_name(one.name)->name(), one.name);
  }
  EXPECT_EQ(by_name(" random_resized_crop( 24 , scale 0.5 to 1 ) ")->name(),
            "random_resized_crop(24, scale 0.5 1)");
  EXPECT_EQ(by_name("to_tensor")->name(), "to_tensor()");
}

TEST(TransformNames, WhatCannotBeReadIsSaid) {
  const auto message = [](const char* name) {
    return message_of<UsageError>([&] { by_name(name); });
  };
  EXPECT_THAT(message("resise(64)"), HasSubstr("did you mean \"resize\"?"));
  EXPECT_THAT(message("decode_crop(64, scael 0 1)"), HasSubstr("did you mean \"scale\"?"));
  EXPECT_THAT(message("resize(64"), HasSubstr("not closed"));
  EXPECT_THAT(message("resize()"), HasSubstr("a number is missing"));
  EXPECT_THAT(message("resize(1, 2, 3)"), HasSubstr("got 3 numbers"));
  EXPECT_THAT(message("resize(6x)"), HasSubstr("got \"6x\""));
  EXPECT_THAT(message("resize(6.5)"), HasSubstr("whole number"));
  EXPECT_THAT(message("resize(1,,2)"), HasSubstr("between two commas"));
  EXPECT_THAT(message("decode(gray 1)"), HasSubstr("gray: expected no number"));
  EXPECT_THAT(message("on_column(x, resize(3))"), HasSubstr("expected a column"));
  EXPECT_THAT(message_of<UsageError>([] { batch_by_name("mixap(3)"); }), HasSubstr("\"mixup\""));
  EXPECT_EQ(batch_by_name("cutmix(10, alpha 0.2)")->name(), "cutmix(10, alpha 0.2)");
  EXPECT_EQ(batch_by_name("mixup(10)")->name(), "mixup(10)");
}

TEST(TransformOptions, OutOfRangeAreRefusedAtOnce) {
  EXPECT_THROW(decode({.max_pixels = 0}), UsageError);
  EXPECT_THROW(decode_crop(0), UsageError);
  EXPECT_THROW(decode_crop(8, {.scale = {0.5, 1.5}}), UsageError);
  EXPECT_THROW(decode_crop(8, {.ratio = {2, 1}}), UsageError);
  EXPECT_THROW(decode_center_crop(10, 11), UsageError);
  EXPECT_THROW(resize(0), UsageError);
  EXPECT_THROW(center_crop(-1), UsageError);
  EXPECT_THROW(random_horizontal_flip(1.5), UsageError);
  EXPECT_THROW(color_jitter({.hue = 0.6}), UsageError);
  EXPECT_THROW(color_jitter({.contrast = -1}), UsageError);
  EXPECT_THROW(rand_augment(2, 31), UsageError);
  EXPECT_THROW(random_erasing({.value = {1, 2}}), UsageError);
  EXPECT_THROW(normalize({0.5, 0.5, 0.5}, {1, 0, 1}), UsageError);
  EXPECT_THROW(normalize({0.5}, {1, 1, 1}), UsageError);
  EXPECT_THROW(on_column(-1, to_tensor()), UsageError);
  EXPECT_THROW(mixup(0), UsageError);
  EXPECT_THROW(cutmix(3, 0), UsageError);
}

const Column kBytes{.name = "photo", .dtype = DType::uint8, .shape = {kAnySize}};
const Column kLabel{.name = "y", .dtype = DType::int64, .shape = {}};

TEST(TransformColumns, AreKnownBeforeAnythingIsRead) {
  std::vector<Column> columns{kBytes, kLabel};
  columns = decode()->columns(columns);
  EXPECT_EQ(columns[0].to_string(), "photo uint8 [3, ?, ?]");
  EXPECT_EQ(resize(64)->columns(columns)[0].to_string(), "photo uint8 [3, ?, ?]");
  columns = random_resized_crop({32, 24})->columns(columns);
  EXPECT_EQ(columns[0].to_string(), "photo uint8 [3, 32, 24]");
  EXPECT_EQ(resize(48)->columns(columns)[0].to_string(), "photo uint8 [3, 64, 48]");
  columns = normalize({0, 0, 0}, {1, 1, 1})->columns(columns);
  EXPECT_EQ(columns[0].to_string(), "photo float32 [3, 32, 24]");
  columns = mixup(10)->columns(columns);
  EXPECT_EQ(columns[1].to_string(), "y float32 [10]");
  EXPECT_EQ(decode_crop(7, {.gray = true})->columns({kBytes})[0].to_string(),
            "photo uint8 [1, 7, 7]");
}

TEST(TransformColumns, ThatDoNotFitAreRefusedWithAdvice) {
  const auto message = [](const TransformHandle& transform, const Column& column) {
    return message_of<UsageError>([&] { transform->columns({column, kLabel}); });
  };
  const Column scaled{.name = "x", .dtype = DType::float32, .shape = {3, 8, 8}};
  const Column bytes{.name = "x", .dtype = DType::uint8, .shape = {3, 8, 8}};
  EXPECT_THAT(message(resize(4), kBytes),
              AllOf(HasSubstr("resize(4)"), HasSubstr("photo uint8 [?]"), HasSubstr("decode()")));
  EXPECT_THAT(message(rand_augment(), scaled), HasSubstr("before to_tensor()"));
  EXPECT_THAT(message(decode(), scaled), HasSubstr("an encoded photo"));
  EXPECT_THAT(message(to_tensor(), scaled), HasSubstr("expected uint8"));
  EXPECT_THAT(message(normalize({0}, {1}), bytes), HasSubstr("expected 1 channels"));
  EXPECT_THAT(message(random_erasing({.noise = true}), bytes), HasSubstr("float32 for noise"));
  EXPECT_THAT(message(on_column(2, to_tensor()), bytes), HasSubstr("there are 2 columns"));
  EXPECT_THAT(message_of<UsageError>([&] { mixup(2)->columns({bytes, kLabel}); }),
              HasSubstr("to_tensor()"));
  EXPECT_THAT(message_of<UsageError>([&] { cutmix(2)->columns({scaled}); }), HasSubstr("labels"));
}

TEST(OnColumn, LeavesTheOthersAlone) {
  const Array label = scalar(int64_t{3}), image = image_of(3, 4, 5);
  Draw draw(1);
  const Sample out = on_column(1, center_crop(2))->apply(Sample{{label, image}}, draw);
  EXPECT_EQ(out.columns[0].as<int64_t>()[0], 3);
  EXPECT_EQ(out.columns[1].shape(), (std::vector<int64_t>{3, 2, 2}));
}

// An oracle of one line each.
TEST(Flip, MirrorsBytesAndFloats) {
  for (int64_t width : {1, 2, 15, 16, 17, 33, 224}) {
    const Array image = image_of(3, 5, width);
    const Array scaled = applied(to_tensor(), image);
    const Array across = applied(random_horizontal_flip(1), image);
    const Array down = applied(random_vertical_flip(1), image);
    for (int64_t i = 0; i < image.num_elements(); ++i) {
      const int64_t x = i % width, y = i / width % 5, c = i / width / 5;
      const auto at = [&](int64_t sy, int64_t sx) {
        return image.as<uint8_t>()[static_cast<size_t>((c * 5 + sy) * width + sx)];
      };
      ASSERT_EQ(across.as<uint8_t>()[static_cast<size_t>(i)], at(y, width - 1 - x));
      ASSERT_EQ(down.as<uint8_t>()[static_cast<size_t>(i)], at(4 - y, x));
    }
    EXPECT_EQ(bytes_in(applied(random_horizontal_flip(1), scaled)),
              bytes_in(applied(to_tensor(), across)));
  }
  const Array image = image_of(1, 3, 3);
  EXPECT_EQ(bytes_in(applied(random_horizontal_flip(0), image)), bytes_in(image));
}

TEST(Transforms, DrawTheSameForEqualKeysAndSpareWhatOthersHave) {
  const Array image = image_of(3, 20, 30);
  const std::string before = bytes_in(image);
  for (const auto& transform :
       {random_resized_crop(9), random_horizontal_flip(), random_vertical_flip(),
        rand_augment(3, 20), random_erasing(),
        color_jitter({.brightness = 0.5, .contrast = 0.5, .saturation = 0.5, .hue = 0.2})}) {
    std::set<std::string> seen;
    for (uint64_t key = 0; key < 40; ++key) {
      const std::string once = bytes_in(applied(transform, image, key));
      EXPECT_TRUE(once == bytes_in(applied(transform, image, key))) << transform->name();
      seen.insert(once);
    }
    EXPECT_GE(seen.size(), 2U) << transform->name();
    EXPECT_TRUE(bytes_in(image) == before) << transform->name();
  }
}

TEST(ColorJitter, DrawsEveryOrderAndTheWholeRange) {
  const ColorJitterOptions options{.brightness = 0.4, .saturation = 2, .hue = 0.1};
  std::set<std::array<int, 4>> orders;
  double least = 1, most = 1, grayest = 1;
  for (uint64_t key = 0; key < 2000; ++key) {
    Draw draw(key);
    const detail::Jitter jitter = detail::draw_jitter(options, draw);
    orders.insert(jitter.order);
    ASSERT_FALSE(jitter.amounts[1]) << "contrast is left alone";
    ASSERT_LE(std::abs(*jitter.amounts[3]), 0.1);
    least = std::min(least, *jitter.amounts[0]);
    most = std::max(most, *jitter.amounts[0]);
    grayest = std::min(grayest, *jitter.amounts[2]);
  }
  EXPECT_EQ(orders.size(), 24U);
  EXPECT_GE(least, 0.6);
  EXPECT_LT(least, 0.61);
  EXPECT_GT(most, 1.39);
  EXPECT_LE(most, 1.4);
  EXPECT_GE(grayest, 0) << "no factor below 0";
}

TEST(RandAugment, DrawsEveryOperationBothWays) {
  std::set<std::pair<int, bool>> seen;
  for (uint64_t key = 0; key < 2000; ++key) {
    Draw draw(key);
    const auto drawn = detail::draw_augmentation(331, 331, 15, draw);
    seen.insert({static_cast<int>(drawn.operation), drawn.magnitude < 0});
    if (drawn.operation == detail::Operation::translate_x) {
      EXPECT_DOUBLE_EQ(std::abs(drawn.magnitude), 75);
    } else if (drawn.operation == detail::Operation::posterize) {
      EXPECT_EQ(drawn.magnitude, 6);
    }
  }
  EXPECT_EQ(seen.size(), 14U + 9U) << "nine of them have two ways";
}

TEST(RandomErasing, FillsOneRectangle) {
  const Array image = image_of(3, 20, 30);
  Draw draw(3), again(3);
  again.chance(1);
  const auto box = detail::draw_erased(20, 30, {}, again);
  const Array out = random_erasing({.probability = 1, .value = {1, 2, 3}})
                        ->apply(Sample{{image}}, draw)
                        .columns[0];
  for (int64_t i = 0; i < image.num_elements(); ++i) {
    const int64_t x = i % 30, y = i / 30 % 20, c = i / 600;
    const bool inside =
        y >= box.top && y < box.top + box.height && x >= box.left && x < box.left + box.width;
    ASSERT_EQ(out.as<uint8_t>()[static_cast<size_t>(i)],
              inside ? c + 1 : image.as<uint8_t>()[static_cast<size_t>(i)]);
  }
}

Sample labelled(const Array& x, int64_t label) { return Sample{{x, scalar(label)}}; }

TEST(Mix, BothRowsOfAPairAreMixedAlike) {
  const Sample a = labelled(applied(to_tensor(), image_of(3, 8, 8, 1)), 0);
  const Sample b = labelled(applied(to_tensor(), image_of(3, 8, 8, 2)), 2);
  for (const auto& mix : {mixup(3, 0.4), cutmix(3)}) {
    Draw one(5), two(5), three(5);
    const Sample ab = mix->apply(a, b, false, one), ba = mix->apply(b, a, false, two);
    const auto ya = ab.columns[1].as<float>(), yb = ba.columns[1].as<float>();
    EXPECT_FLOAT_EQ(ya[0] + ya[2], 1);
    EXPECT_FLOAT_EQ(ya[0], yb[2]);
    EXPECT_FLOAT_EQ(ya[2], yb[0]);
    EXPECT_EQ(ya[1], 0);
    for (size_t i = 0; i < 192; ++i)
      ASSERT_NEAR(ab.columns[0].as<float>()[i] + ba.columns[0].as<float>()[i],
                  a.columns[0].as<float>()[i] + b.columns[0].as<float>()[i], 1e-6);
    const Sample alone = mix->apply(a, a, true, three);
    EXPECT_EQ(bytes_in(alone.columns[0]), bytes_in(a.columns[0]));
    EXPECT_EQ(alone.columns[1].as<float>()[0], 1);
    EXPECT_THAT(message_of<DataError>([&] {
                  Draw draw(1);
                  mix->apply(labelled(a.columns[0], 3), b, false, draw);
                }),
                HasSubstr("got label 3, expected one of 0 to 2"));
  }
}

TEST(Cutmix, TheBoxIsTheShareOfTheLabel) {
  EXPECT_EQ(detail::cut_box(10, 20, 0.75, 5, 10), (detail::Box{3, 5, 4, 10}));
  EXPECT_EQ(detail::cut_box(10, 20, 0.75, 0, 19), (detail::Box{0, 14, 2, 6})) << "over the edge";
  EXPECT_EQ(detail::cut_box(10, 20, 1, 5, 10).height, 0);
  const Array a = image_of(1, 10, 20, 1), b = image_of(1, 10, 20, 2);
  const Array out = detail::cut(a, b, {3, 5, 4, 10});
  int64_t theirs = 0;
  for (size_t i = 0; i < 200; ++i) {
    const bool inside = i / 20 >= 3 && i / 20 < 7 && i % 20 >= 5 && i % 20 < 15;
    theirs += inside;
    ASSERT_EQ(out.as<uint8_t>()[i], (inside ? b : a).as<uint8_t>()[i]);
  }
  EXPECT_EQ(theirs, 40);
}

// Every table that this CPU can run, on lengths around the width of vectors.
TEST(PixelKernels, GiveTheSameBitsOnEveryInstructionSet) {
  if constexpr (kHasX86Variants) {
    const detail::PixelKernels* tables[] = {&baseline::pixel_kernels, &avx2::pixel_kernels,
                                            &avx512::pixel_kernels};
    for (int64_t n : {1, 3, 15, 16, 17, 63, 64, 65, 333}) {
      std::vector<std::string> results;
      for (const CpuVariant variant : runnable_variants()) {
        const detail::PixelKernels& k = *tables[static_cast<size_t>(variant)];
        const Array image = image_of(3, 3, n), turned = image_of(3, 1, n);
        const auto* in = static_cast<const uint8_t*>(image.data());
        auto* hues = static_cast<uint8_t*>(turned.data());
        std::vector<float> floats(static_cast<size_t>(n));
        std::vector<uint8_t> bytes(static_cast<size_t>(4 * n));
        std::string all;
        const auto keep = [&](const auto& values) {
          all.append(reinterpret_cast<const char*>(values.data()),
                     values.size() * sizeof(values[0]));
        };
        const int16_t weights[] = {5000, 7000, 4384};
        k.resample_column(in, n, weights, 3, 14, bytes.data(), n), keep(bytes);
        k.join(in, in + n, in + 2 * n, n, bytes.data()), keep(bytes);
        k.reverse(in, n, bytes.data()), keep(bytes);
        k.gray(in, in + n, in + 2 * n, n, bytes.data()), keep(bytes);
        k.blend(in, in + n, n, 1.7F, bytes.data()), keep(bytes);
        k.multiply_add(in, n, 1.3F, -40, bytes.data()), keep(bytes);
        k.scale_normalize(in, n, 0.4F, 0.2F, floats.data()), keep(floats);
        k.hue(hues, hues + n, hues + 2 * n, n, 0.3F), all += bytes_in(turned);
        results.push_back(all);
      }
      for (const std::string& result : results)
        EXPECT_TRUE(result == results[0]) << n << " elements";
    }
  }
}

}  // namespace
}  // namespace tutti::data
