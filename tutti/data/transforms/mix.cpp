#include "tutti/data/transforms/mix.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tutti/base/suggest.h"
#include "tutti/data/transforms/detail/mix.h"

namespace tutti::data::detail {

Box cut_box(int64_t height, int64_t width, double lambda, int64_t y, int64_t x) {
  const double half = 0.5 * std::sqrt(1 - lambda);
  const auto half_height = static_cast<int64_t>(half * static_cast<double>(height));
  const auto half_width = static_cast<int64_t>(half * static_cast<double>(width));
  Box box{.top = std::max<int64_t>(y - half_height, 0),
          .left = std::max<int64_t>(x - half_width, 0)};
  box.height = std::min(y + half_height, height) - box.top;
  box.width = std::min(x + half_width, width) - box.left;
  return box;
}

Array mixed(const Array& own, const Array& partner, double share) {
  Array out = make_array(DType::float32, own.shape());
  const auto *a = own.as<float>().data(), *b = partner.as<float>().data();
  auto* to = static_cast<float*>(out.data());
  const auto mine = static_cast<float>(share), theirs = static_cast<float>(1 - share);
  for (int64_t i = 0; i < out.num_elements(); ++i) to[i] = b[i] * theirs + a[i] * mine;
  return out;
}

Array cut(const Array& own, const Array& partner, const Box& box) {
  Array out = make_array(own.dtype(), own.shape());
  std::memcpy(out.data(), own.data(), static_cast<size_t>(own.num_bytes()));
  const int64_t height = own.shape()[1], width = own.shape()[2];
  const int64_t pixel_bytes = size_of(own.dtype());
  for (int64_t c = 0; c < own.shape()[0]; ++c)
    for (int64_t y = 0; y < box.height; ++y) {
      const int64_t at = ((c * height + box.top + y) * width + box.left) * pixel_bytes;
      std::memcpy(static_cast<char*>(out.data()) + at,
                  static_cast<const char*>(partner.data()) + at,
                  static_cast<size_t>(box.width * pixel_bytes));
    }
  return out;
}

}  // namespace tutti::data::detail

namespace tutti::data::transforms {
namespace {

using data::detail::Box;
using data::detail::require_option;
using data::detail::SpecReader;
using data::detail::SpecWriter;

class Mix : public BatchTransform {
 public:
  Mix(std::string_view kind, int64_t num_classes, double alpha)
      : kind_(kind), num_classes_(num_classes), alpha_(alpha) {
    require_option(num_classes >= 1, name(), "1 class or more");
    require_option(alpha > 0 && std::isfinite(alpha), name(), "alpha > 0");
  }

  std::string name() const final {
    return SpecWriter(kind_)
        .number(static_cast<double>(num_classes_))
        .option("alpha", {alpha_}, {1})
        .text();
  }

  std::vector<Column> columns(const std::vector<Column>& in) const final {
    const Column label{.dtype = DType::int64};
    if (in.size() < 2 || in.back().dtype != label.dtype || in.back().shape != label.shape)
      throw UsageError(fmt::format("{}: expected labels, int64 [], as the last of two columns{}",
                                   name(), in.empty() ? "" : ", got " + in.back().to_string()));
    require_mixable(in[0]);
    std::vector<Column> out = in;
    out.back().dtype = DType::float32;
    out.back().shape = {num_classes_};
    return out;
  }

  Sample apply(const Sample& own, const Sample& partner, bool alone, Draw& draw) const final {
    Sample out = own;
    double share = 1;
    if (!alone) out.columns.at(0) = mix(own.columns.at(0), partner.columns.at(0), draw, share);
    const int64_t mine = label_of(own), theirs = label_of(partner);
    Array shares = make_array(DType::float32, {num_classes_});
    auto* to = static_cast<float*>(shares.data());
    std::fill_n(to, num_classes_, 0.0f);
    to[theirs] += static_cast<float>(1 - share);
    to[mine] += static_cast<float>(share);
    out.columns.back() = std::move(shares);
    return out;
  }

 protected:
  virtual void require_mixable(const Column& column) const = 0;
  /// Sets `share` to what of `own` is left.
  virtual Array mix(const Array& own, const Array& partner, Draw& draw, double& share) const = 0;

  double alpha() const { return alpha_; }

 private:
  int64_t label_of(const Sample& sample) const {
    const int64_t label = sample.columns.back().as<int64_t>()[0];
    if (label < 0 || label >= num_classes_)
      throw DataError(fmt::format("{}: got label {}, expected one of 0 to {}", name(), label,
                                  num_classes_ - 1));
    return label;
  }

  std::string_view kind_;
  int64_t num_classes_;
  double alpha_;
};

class Mixup final : public Mix {
 public:
  Mixup(int64_t num_classes, double alpha) : Mix("mixup", num_classes, alpha) {}

 private:
  void require_mixable(const Column& column) const override {
    if (column.dtype != DType::float32 || !column.fixed())
      throw UsageError(fmt::format(
          "{}: got column {}, expected float32 of one shape\n  put to_tensor() or normalize() "
          "before it",
          name(), column.to_string()));
  }

  Array mix(const Array& own, const Array& partner, Draw& draw, double& share) const override {
    share = draw.beta(alpha());
    return data::detail::mixed(own, partner, share);
  }
};

class Cutmix final : public Mix {
 public:
  Cutmix(int64_t num_classes, double alpha) : Mix("cutmix", num_classes, alpha) {}

 private:
  void require_mixable(const Column& column) const override {
    if ((column.dtype != DType::float32 && column.dtype != DType::uint8) || !column.fixed() ||
        column.shape.size() != 3)
      throw UsageError(fmt::format(
          "{}: got column {}, expected uint8 or float32 [C, H, W] of one shape\n  put a crop or "
          "resize() to one size before it",
          name(), column.to_string()));
  }

  Array mix(const Array& own, const Array& partner, Draw& draw, double& share) const override {
    const int64_t height = own.shape()[1], width = own.shape()[2];
    const double lambda = draw.beta(alpha());
    const int64_t x = draw.below(width), y = draw.below(height);
    const Box box = data::detail::cut_box(height, width, lambda, y, x);
    share = 1 - static_cast<double>(box.height * box.width) / static_cast<double>(height * width);
    return data::detail::cut(own, partner, box);
  }
};

}  // namespace

BatchTransformHandle mixup(int64_t num_classes, double alpha) {
  return std::make_shared<Mixup>(num_classes, alpha);
}

BatchTransformHandle cutmix(int64_t num_classes, double alpha) {
  return std::make_shared<Cutmix>(num_classes, alpha);
}

BatchTransformHandle batch_by_name(std::string_view name) {
  SpecReader spec(name);
  const std::vector<std::string> known{"mixup", "cutmix"};
  if (std::ranges::find(known, spec.name()) == known.end())
    throw UsageError(unknown_message("transform of batches", spec.name(), known));
  const int64_t classes = spec.whole(0);
  const double alpha = spec.option("alpha", 1.0);
  spec.finish(1, 1);
  return spec.name() == "mixup" ? mixup(classes, alpha) : cutmix(classes, alpha);
}

}  // namespace tutti::data::transforms
