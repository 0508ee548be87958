// Transforms by their names, and on other columns.
#include <algorithm>
#include <charconv>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"
#include "tutti/data/transforms/detail/image.h"
#include "tutti/data/transforms/strokes.h"

namespace tutti::data::transforms {
namespace {

using data::detail::range_from;
using data::detail::size_from;
using data::detail::SpecReader;

class OnColumn final : public Transform {
 public:
  OnColumn(int64_t column, TransformHandle transform)
      : column_(column), transform_(std::move(transform)) {
    if (column < 0) throw UsageError(fmt::format("{}: expected a column >= 0", name()));
  }

  std::string name() const override {
    return fmt::format("on_column({}, {})", column_, transform_->name());
  }

  // The column changes places with the first while the transform works.
  std::vector<Column> columns(const std::vector<Column>& in) const override {
    if (column_ >= static_cast<int64_t>(in.size()))
      throw UsageError(fmt::format("{}: there are {} columns", name(), in.size()));
    std::vector<Column> out = in;
    std::swap(out.at(0), out.at(at()));
    out = transform_->columns(out);
    std::swap(out.at(0), out.at(at()));
    return out;
  }

  Sample apply(Sample in, Draw& draw) const override {
    std::swap(in.columns.at(0), in.columns.at(at()));
    Sample out = transform_->apply(std::move(in), draw);
    std::swap(out.columns.at(0), out.columns.at(at()));
    return out;
  }

  bool draws() const override { return transform_->draws(); }
  bool named() const override { return transform_->named(); }

 private:
  size_t at() const { return static_cast<size_t>(column_); }

  int64_t column_;
  TransformHandle transform_;
};

TransformHandle make_decode(SpecReader& spec) {
  return decode({.gray = spec.flag("gray"),
                 .exif = spec.flag("exif"),
                 .max_pixels = spec.whole("max_pixels", kMaxPixels)});
}

TransformHandle make_decode_crop(SpecReader& spec) {
  const DecodeCropOptions defaults;
  return decode_crop(size_from(spec), {.scale = range_from(spec, "scale", defaults.scale),
                                       .ratio = range_from(spec, "ratio", defaults.ratio),
                                       .gray = spec.flag("gray"),
                                       .shrink = spec.flag("shrink"),
                                       .max_pixels = spec.whole("max_pixels", kMaxPixels)});
}

TransformHandle make_decode_center_crop(SpecReader& spec) {
  return decode_center_crop(
      spec.whole(0), size_from(spec, 1),
      {.gray = spec.flag("gray"), .max_pixels = spec.whole("max_pixels", kMaxPixels)});
}

TransformHandle make_resize(SpecReader& spec) {
  return spec.numbers() == 2 ? resize(size_from(spec)) : resize(spec.whole(0));
}

TransformHandle make_random_resized_crop(SpecReader& spec) {
  const RandomResizedCropOptions defaults;
  return random_resized_crop(size_from(spec), {.scale = range_from(spec, "scale", defaults.scale),
                                               .ratio = range_from(spec, "ratio", defaults.ratio)});
}

double probability_from(SpecReader& spec) { return spec.numbers() > 0 ? spec.number(0) : 0.5; }

TransformHandle make_color_jitter(SpecReader& spec) {
  return color_jitter({.brightness = spec.option("brightness", 0.0),
                       .contrast = spec.option("contrast", 0.0),
                       .saturation = spec.option("saturation", 0.0),
                       .hue = spec.option("hue", 0.0)});
}

TransformHandle make_rand_augment(SpecReader& spec) {
  return rand_augment(spec.numbers() > 0 ? spec.whole(0) : 2,
                      spec.numbers() > 1 ? spec.whole(1) : 9);
}

TransformHandle make_random_erasing(SpecReader& spec) {
  const RandomErasingOptions defaults;
  return random_erasing({.probability = spec.option("probability", defaults.probability),
                         .scale = range_from(spec, "scale", defaults.scale),
                         .ratio = range_from(spec, "ratio", defaults.ratio),
                         .value = spec.option("value", defaults.value),
                         .noise = spec.flag("noise")});
}

TransformHandle make_strokes_to_bitmap(SpecReader& spec) {
  return strokes_to_bitmap(
      spec.whole(0),
      {.line = spec.option("line", StrokesToBitmapOptions{}.line), .time = spec.flag("time")});
}

TransformHandle make_strokes_to_sequence(SpecReader& spec) {
  return strokes_to_sequence(spec.whole(0),
                             {.time = spec.flag("time"), .length = spec.flag("length")});
}

const std::vector<double> kNone;

struct Entry {
  std::string_view name;
  TransformHandle (*make)(SpecReader& spec);
  int64_t least, most;  // numbers in front
};
constexpr Entry kEntries[] = {
    {"decode", make_decode, 0, 0},
    {"decode_crop", make_decode_crop, 1, 2},
    {"decode_center_crop", make_decode_center_crop, 2, 3},
    {"resize", make_resize, 1, 2},
    {"random_resized_crop", make_random_resized_crop, 1, 2},
    {"center_crop", [](SpecReader& spec) { return center_crop(size_from(spec)); }, 1, 2},
    {"random_horizontal_flip",
     [](SpecReader& spec) { return random_horizontal_flip(probability_from(spec)); }, 0, 1},
    {"random_vertical_flip",
     [](SpecReader& spec) { return random_vertical_flip(probability_from(spec)); }, 0, 1},
    {"color_jitter", make_color_jitter, 0, 0},
    {"rand_augment", make_rand_augment, 0, 2},
    {"random_erasing", make_random_erasing, 0, 0},
    {"random_strokes",
     [](SpecReader& spec) {
       return random_strokes(spec.numbers() > 0 ? spec.number(0) : 0.2, spec.option("mirror", 0.0));
     },
     0, 1},
    {"strokes_to_bitmap", make_strokes_to_bitmap, 1, 1},
    {"strokes_to_sequence", make_strokes_to_sequence, 1, 1},
    {"to_tensor", [](SpecReader&) { return to_tensor(); }, 0, 0},
    {"normalize",
     [](SpecReader& spec) {
       return normalize(spec.option("mean", kNone), spec.option("std", kNone));
     },
     0, 0},
};

// "on_column(2, resize(64))": a number, and a name that has commas of its own.
TransformHandle on_column_by_name(std::string_view name) {
  constexpr std::string_view kBegin = "on_column(";
  const std::string_view inside = name.substr(kBegin.size());
  int64_t column = 0;
  const auto [end, error] = std::from_chars(inside.data(), inside.data() + inside.size(), column);
  const size_t comma = static_cast<size_t>(end - inside.data());
  if (error != std::errc() || comma == inside.size() || *end != ',' || !inside.ends_with(')'))
    throw UsageError(fmt::format(
        "transform \"{}\": expected a column and a transform: on_column(2, resize(64))", name));
  return on_column(column, by_name(inside.substr(comma + 1, inside.size() - comma - 2)));
}

}  // namespace

TransformHandle on_column(int64_t column, TransformHandle transform) {
  return std::make_shared<OnColumn>(column, std::move(transform));
}

TransformHandle by_name(std::string_view name) {
  while (name.starts_with(' ')) name.remove_prefix(1);
  if (name.starts_with("on_column(")) return on_column_by_name(name);
  SpecReader spec(name);
  const auto entry = std::ranges::find(kEntries, spec.name(), &Entry::name);
  if (entry == std::end(kEntries)) {
    std::vector<std::string> known;
    for (const Entry& one : kEntries) known.emplace_back(one.name);
    throw UsageError(unknown_message("transform", spec.name(), known));
  }
  TransformHandle transform = entry->make(spec);
  spec.finish(entry->least, entry->most);
  return transform;
}

}  // namespace tutti::data::transforms
