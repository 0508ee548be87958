// Against torchvision: tests/tables/make_transforms.py wrote what it makes of the same pictures.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include <nlohmann/json.hpp>

#include "tutti/data/transforms/detail/codec.h"
#include "tutti/data/transforms/detail/color.h"
#include "tutti/data/transforms/detail/mix.h"
#include "tutti/data/transforms/detail/resample.h"
#include "tutti/data/transforms/transforms.h"

#include "photos.h"

namespace tutti::data {
namespace {

const nlohmann::json& table() {
  static const nlohmann::json kTable = [] {
    std::ifstream file("tests/tables/transforms.json");
    return nlohmann::json::parse(file);
  }();
  return kTable;
}

std::string unhex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

Array image_in(const nlohmann::json& described) {
  Array image = make_array(DType::uint8, described.at("shape"));
  const std::string bytes = unhex(described.at("bytes"));
  std::memcpy(image.data(), bytes.data(), bytes.size());
  return image;
}

// Of the bytes, `differing` of them may be anything, the others `tolerance` away.
void expect_near(const Array& got, const Array& expected, int tolerance, double differing) {
  ASSERT_EQ(got.shape(), expected.shape());
  int64_t far = 0;
  for (int64_t i = 0; i < got.num_elements(); ++i) {
    const auto at = static_cast<size_t>(i);
    far += std::abs(got.as<uint8_t>()[at] - expected.as<uint8_t>()[at]) > tolerance;
  }
  EXPECT_LE(static_cast<double>(far), differing * static_cast<double>(got.num_elements()));
}

void expect_values(const Array& got, const std::vector<double>& expected, size_t from = 0) {
  ASSERT_LE(from + got.as<float>().size(), expected.size());
  for (size_t i = 0; i < got.as<float>().size(); ++i)
    ASSERT_NEAR(got.as<float>()[i], expected[from + i], 1e-6) << "element " << i;
}

Array crop_resized(const Array& image, const std::vector<double>& args) {
  return detail::resample(image,
                          detail::whole_axis(args[0], args[2], static_cast<int64_t>(args[4])),
                          detail::whole_axis(args[1], args[3], static_cast<int64_t>(args[5])));
}

Array result_of(const std::string& op, const std::vector<double>& args, const Array& image) {
  const auto whole = [&](size_t i) { return static_cast<int64_t>(args[i]); };
  if (op == "resize")
    return applied(
        args.size() == 1 ? transforms::resize(whole(0)) : transforms::resize({whole(0), whole(1)}),
        image);
  if (op == "resized_crop") return crop_resized(image, args);
  if (op == "center_crop") return applied(transforms::center_crop({whole(0), whole(1)}), image);
  if (op == "hue") return detail::adjust_hue(image, args[0]);
  if (op == "augment")
    return detail::apply_augmentation(image, {static_cast<detail::Operation>(whole(0)), args[1]});
  if (op == "to_tensor") return applied(transforms::to_tensor(), image);
  ADD_FAILURE() << "unknown operation " << op;
  return image;
}

Array inverted(const Array& image) {
  Array out = make_array(image.dtype(), image.shape());
  for (size_t i = 0; i < image.as<uint8_t>().size(); ++i)
    out.as<uint8_t>()[i] = static_cast<uint8_t>(255 - image.as<uint8_t>()[i]);
  return out;
}

TEST(TransformTable, PhotosAreDecodedAsTorchvisionDoes) {
  for (const auto& photo : table().at("photos")) {
    SCOPED_TRACE(photo.at("name"));
    const Array got = applied(transforms::decode(), bytes_of(unhex(photo.at("photo"))));
    expect_near(got, image_in(photo.at("rgb")), 0, 0);
  }
}

TEST(TransformTable, OperationsAreThoseOfTorchvision) {
  for (const auto& one : table().at("cases")) {
    if (one.at("op") == "mixup" || one.at("op") == "normalize") continue;
    SCOPED_TRACE(one.at("op").get<std::string>() + " " + one.at("args").dump() + " of " +
                 one.at("in").get<std::string>());
    const Array image = image_in(table().at("pictures").at(one.at("in")));
    const std::string before = bytes_in(image);
    const Array got = result_of(one.at("op"), one.at("args"), image);
    EXPECT_EQ(bytes_in(image), before) << "a picture that others have was changed";
    if (one.contains("values"))
      expect_values(got, one.at("values"));
    else
      expect_near(got, image_in(one.at("out")), one.value("tolerance", 0),
                  one.value("differing", 0.0));
  }
}

TEST(TransformTable, NormalizedBytesAndFloatsAreTheSame) {
  const auto& cases = table().at("cases");
  const auto one = std::ranges::find(cases, "normalize", [](const auto& c) { return c.at("op"); });
  const std::vector<double> args = one->at("args");
  const auto normalize =
      transforms::normalize({args.begin(), args.begin() + 3}, {args.begin() + 3, args.end()});
  const Array image = image_in(table().at("pictures").at("tiny"));
  const Array in_one = applied(normalize, image);
  expect_values(in_one, one->at("values"));
  EXPECT_EQ(bytes_in(applied(normalize, applied(transforms::to_tensor(), image))),
            bytes_in(in_one));
}

TEST(TransformTable, MixupIsTorchvisionsOfAPair) {
  const auto& cases = table().at("cases");
  const auto one = std::ranges::find(cases, "mixup", [](const auto& c) { return c.at("op"); });
  const double lambda = one->at("args").at(0);
  const Array image = image_in(table().at("pictures").at("tiny"));
  const Array a = applied(transforms::to_tensor(), image);
  const Array b = applied(transforms::to_tensor(), inverted(image));
  const std::vector<double> expected = one->at("values");
  expect_values(detail::mixed(a, b, lambda), expected);
  expect_values(detail::mixed(b, a, lambda), expected, expected.size() / 2);
}

}  // namespace
}  // namespace tutti::data
