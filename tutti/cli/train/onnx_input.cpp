#include "tutti/cli/train/onnx_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/data/transforms/detail/spec.h"

namespace tutti::cli {
namespace {

using data::DataKind;
using data::detail::SpecReader;
using onnx::Program;
using onnx::Value;
using Numbers = std::vector<int64_t>;

constexpr int64_t kOnnxDouble = 11, kOnnxFloat = 1, kOnnxUint8 = 2, kOnnxInt64 = 7;

[[noreturn]] void refuse(const std::string& what, const std::string& why) {
  throw UsageError(fmt::format(
      "{}: ONNX cannot say it: {}\n  --as-is leaves all of it out: the input is then what the "
      "network takes",
      what, why));
}

Value cast(Program& to, const Value& x, int64_t type) {
  return to.node("Cast", {x}, {{"to", type}});
}

Value doubles(Program& to, const std::vector<double>& numbers, std::vector<int64_t> shape) {
  const Array array = Array::zeros(DType::float64, std::move(shape));
  std::ranges::copy(numbers, array.as<double>().begin());
  return to.constant(array);
}

Value floats(Program& to, const std::vector<double>& numbers, std::vector<int64_t> shape) {
  const Array array = Array::zeros(DType::float32, std::move(shape));
  std::ranges::transform(numbers, array.as<float>().begin(),
                         [](double number) { return static_cast<float>(number); });
  return to.constant(array);
}

/// Images as they go through transforms, [batch, channels, height, width].
class Images {
 public:
  Images(Program& to, Value value) : to_(to), value_(std::move(value)) {}

  void add(const std::string& text) {
    SpecReader spec(text);
    if (spec.name() == "decode_center_crop") {
      resize_shorter(spec.whole(0));
      crop(spec.whole(1), spec.numbers() > 2 ? spec.whole(2) : spec.whole(1));
    } else if (spec.name() == "resize") {
      if (spec.numbers() > 1)
        resize_to(to_.constant(Numbers{spec.whole(0), spec.whole(1)}),
                  std::min(spec.whole(0), spec.whole(1)));
      else
        resize_shorter(spec.whole(0));
    } else if (spec.name() == "center_crop") {
      const int64_t width = spec.numbers() > 1 ? spec.whole(1) : spec.whole(0);
      if (least_ < std::max(spec.whole(0), width))
        refuse(text, "photos may be smaller than the crop, and zeros would surround them");
      crop(spec.whole(0), width);
    } else if (spec.name() == "to_tensor") {
      to_floats();
    } else if (spec.name() == "normalize") {
      normalise(spec.option("mean", std::vector<double>{}),
                spec.option("std", std::vector<double>{}));
    } else if (spec.name() != "decode") {
      refuse(text, "it is no resizing, cropping or scaling");
    }
  }

  const Value& value() const { return value_; }

 private:
  // int64 [2]: height and width.
  Value sides() {
    return to_.node("Shape", {value_}, {{"start", int64_t{2}}, {"end", int64_t{4}}});
  }

  // Bilinear, with antialiasing, of bytes: runtimes round as torchvision does, within 1 of 255.
  void resize_to(const Value& size, int64_t shorter) {
    least_ = shorter;
    const Value all = to_.node(
        "Concat", {to_.node("Shape", {value_}, {{"start", int64_t{0}}, {"end", int64_t{2}}}), size},
        {{"axis", int64_t{0}}});
    value_ = to_.node("Resize", {value_, {""}, {""}, all},
                      {{"mode", "linear"},
                       {"coordinate_transformation_mode", "half_pixel"},
                       {"antialias", int64_t{1}}});
  }

  // The shorter edge becomes so long, the longer one in proportion, by double precision, rounded
  // down: as data::transforms::resize().
  void resize_shorter(int64_t edge) {
    const Value size = sides();
    const Value shorter = to_.node("ReduceMin", {size}, {{"keepdims", int64_t{1}}});
    const Value times = to_.node("Mul", {size, to_.constant(Numbers{edge})});
    const Value exact =
        to_.node("Div", {cast(to_, times, kOnnxDouble), cast(to_, shorter, kOnnxDouble)});
    resize_to(cast(to_, exact, kOnnxInt64), edge);
  }

  // From (side - size) / 2, halves to even: as data::transforms::center_crop() of larger images.
  void crop(int64_t height, int64_t width) {
    const Value left = to_.node("Sub", {sides(), to_.constant(Numbers{height, width})});
    const Value half = to_.node(
        "Round", {to_.node("Mul", {cast(to_, left, kOnnxDouble), doubles(to_, {0.5}, {1})})});
    const Value begin = cast(to_, half, kOnnxInt64);
    const Value end = to_.node("Add", {begin, to_.constant(Numbers{height, width})});
    value_ = to_.node("Slice", {value_, begin, end, to_.constant(Numbers{2, 3})});
  }

  void to_floats() {
    if (std::exchange(are_floats_, true)) return;
    value_ = to_.node("Div", {cast(to_, value_, kOnnxFloat), to_.constant(255.0F)});
  }

  void normalise(const std::vector<double>& mean, const std::vector<double>& deviation) {
    to_floats();
    const int64_t channels = std::ssize(mean);
    const Value apart = to_.node("Sub", {value_, floats(to_, mean, {channels, 1, 1})});
    value_ = to_.node("Div", {apart, floats(to_, deviation, {channels, 1, 1})});
  }

  Program& to_;
  Value value_;
  int64_t least_ = 0;  // of the shorter edge
  bool are_floats_ = false;
};

bool is_gray(const DataSpec& spec) {
  return !spec.transforms.empty() && spec.transforms[0].find("gray") != std::string::npos;
}

OnnxInput photos(Program& program, const std::string& name, const DataSpec& spec) {
  const bool gray = is_gray(spec);
  const onnx::Type type{
      DType::uint8,
      {onnx::kBatch, gray ? 1 : 3, onnx::Dimension("height"), onnx::Dimension("width")}};
  Images images(program, program.input(name, type));
  program.scope("prepare");
  for (const std::string& transform : spec.transforms) images.add(transform);
  return {images.value(), type,
          fmt::format("decoded photos, {}, of one size a batch, which they are resized and cropped "
                      "from",
                      gray ? "gray" : "RGB")};
}

OnnxInput bytes(Program& program, const std::string& name, const DataSpec& spec) {
  onnx::Type type{DType::uint8, {onnx::kBatch}};
  for (const int64_t side : spec.shape) type.shape.emplace_back(side);
  const Value input = program.input(name, type);
  program.scope("prepare");
  const Value scaled =
      program.node("Mul", {cast(program, input, kOnnxFloat), program.constant(1.0F / 255.0F)});
  return {scaled, type, "bytes of an image, which are divided by 255"};
}

OnnxInput table(Program& program, const std::string& name, const DataSpec& spec) {
  std::vector<double> means, deviations;
  std::string columns;
  for (const data::TableColumn& column : spec.table->features) {
    if (column.kind != data::ColumnKind::number)
      refuse(fmt::format("column \"{}\"", column.name), "its values are words");
    means.push_back(column.mean);
    deviations.push_back(column.deviation);
    columns += (columns.empty() ? "" : ", ") + column.name;
  }
  const int64_t count = std::ssize(means);
  const onnx::Type type{DType::float64, {onnx::kBatch, count}};
  const Value input = program.input(name, type);
  program.scope("prepare");
  const Value apart = program.node("Sub", {input, doubles(program, means, {count})});
  const Value scaled = program.node("Div", {apart, doubles(program, deviations, {count})});
  return {cast(program, scaled, kOnnxFloat), type, "columns " + columns};
}

OnnxInput tokens(Program& program, const std::string& name, const DataSpec& spec) {
  const onnx::Type type{DType::int64, {onnx::kBatch, spec.shape.at(0)}};
  return {program.input(name, type), type, "numbers of characters, by \"classes\" of the metadata"};
}

}  // namespace

OnnxInput add_prepared_input(Program& program, const std::string& name, const DataSpec& spec) {
  if (spec.of_photos()) return photos(program, name, spec);
  switch (spec.kind) {
    case DataKind::quickdraw:
    case DataKind::idx: return bytes(program, name, spec);
    case DataKind::csv: return table(program, name, spec);
    case DataKind::text: return tokens(program, name, spec);
    default: refuse(std::string(data::name_of(spec.kind)), "there is no such input of a program");
  }
}

Value in_own_unit(Program& program, const Value& output, const DataSpec& spec) {
  if (!spec.predicts_number()) return output;
  program.scope("own_unit");
  const Value scaled = program.node("Mul", {cast(program, output, kOnnxDouble),
                                            doubles(program, {spec.target().deviation}, {1})});
  const Value value = program.node("Add", {scaled, doubles(program, {spec.target().mean}, {1})});
  return cast(program, value, kOnnxFloat);
}

}  // namespace tutti::cli
