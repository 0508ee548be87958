#include "tutti/nn/ops.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>

#include "tutti/base/error.h"
#include "tutti/nn/detail/operator_facts.h"
#include "tutti/nn/detail/operator_json.h"
#include "tutti/nn/detail/site.h"

namespace tutti::nn {
namespace detail {

void Site::fail(const std::string& what) const {
  const std::string who =
      name.empty() ? std::string(kind_of(op)) : fmt::format("{} \"{}\"", kind_of(op), name);
  throw UsageError(fmt::format("nn layer {}: {}", who, what));
}

void Site::at_least(std::string_view what, int64_t value, int64_t least) const {
  if (value < least) fail(fmt::format("{} is {}, must be {} or more", what, value, least));
}

void Site::not_negative(std::string_view what, double value) const {
  if (!(value >= 0 && value <= std::numeric_limits<float>::max()))
    fail(fmt::format("{} is {}, must be finite and 0 or more", what, value));
}

void Site::at_most_half(std::string_view what, int64_t value, int64_t kernel) const {
  if (value > kernel / 2)
    fail(fmt::format("{} is {}, must be at most half the kernel of {}", what, value, kernel));
}

void Site::heads_of(int64_t features, int64_t heads) const {
  at_least("heads", heads, 1);
  if (features % heads != 0)
    fail(fmt::format("heads is {}, must divide {} features", heads, features));
}

const Shape& Site::only_input() const {
  if (inputs.size() != 1) fail(fmt::format("got {} inputs, expected one", inputs.size()));
  return inputs[0];
}

const Shape& Site::image() const {
  const Shape& in = only_input();
  if (in.size() != 3) {
    fail(
        fmt::format("got an input of shape {}, expected [channels, height, width]", to_string(in)));
  }
  return in;
}

const Shape& Site::sequence() const {
  const Shape& in = only_input();
  if (in.size() != 2) {
    fail(fmt::format("got an input of shape {}, expected [length, features]", to_string(in)));
  }
  return in;
}

int64_t Site::windows(int64_t side, int64_t kernel, int64_t stride, int64_t padding) const {
  at_least("kernel", kernel, 1);
  at_least("stride", stride, 1);
  at_least("padding", padding, 0);
  if (side + 2 * padding < kernel) {
    fail(fmt::format("a kernel of {} does not fit an input of shape {} with padding {}", kernel,
                     to_string(inputs[0]), padding));
  }
  return (side + 2 * padding - kernel) / stride + 1;
}

int64_t Site::unwound(int64_t side, int64_t kernel, int64_t stride, int64_t padding,
                      int64_t more) const {
  at_least("kernel", kernel, 1);
  at_least("stride", stride, 1);
  at_least("padding", padding, 0);
  at_least("output_padding", more, 0);
  if (padding >= kernel)
    fail(fmt::format("padding is {}, must be below the kernel of {}", padding, kernel));
  if (more >= stride)
    fail(fmt::format("output_padding is {}, must be below the stride of {}", more, stride));
  const int64_t length = (side - 1) * stride - 2 * padding + kernel + more;
  if (length < 1)
    fail(fmt::format("padding of {} leaves nothing of an input of shape {}", padding,
                     to_string(inputs[0])));
  return length;
}

namespace {

/// Products of two of these fit into 64 bits, so that what is inferred does.
void require_fitting_sizes(const Op& op, const Site& site) {
  if (std::holds_alternative<op::Input>(op) || std::holds_alternative<op::Lambda>(op)) return;
  const auto check = [&](std::string_view field, const OrderedJson& value) {
    if (value.is_number_integer() && value.get<int64_t>() > kMostOfGraph)
      site.fail(
          fmt::format("{} is {}, must be at most {}", field, value.get<int64_t>(), kMostOfGraph));
  };
  const OrderedJson told = facts_of(op).to_json(op);
  for (const auto& [field, value] : told.items()) {
    check(field, value);
    if (value.is_array())
      for (const OrderedJson& side : value) check(field, side);
  }
}

bool has_at_most(const Shape& shape, int64_t most) {
  int64_t elements = 1;
  for (const int64_t side : shape) {
    if (side > 0 && elements > most / side) return false;
    elements *= side;
  }
  return true;
}

void require_fitting_shapes(const Resolved& resolved, const Site& site) {
  constexpr int64_t kMostOfParameter = int64_t{1} << 48;
  if (!has_at_most(resolved.shape, kMostOfGraph))
    site.fail(fmt::format("gives samples of shape {}, expected at most {} elements",
                          to_string(resolved.shape), kMostOfGraph));
  for (const Parameter& parameter : resolved.parameters)
    if (!has_at_most(parameter.shape, kMostOfParameter))
      site.fail(fmt::format("\"{}\" of shape {} makes more than {} elements of parameters",
                            parameter.name, to_string(parameter.shape), kMostOfParameter));
}

}  // namespace
}  // namespace detail

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::string_view kind_of(const Op& op) noexcept { return detail::facts_of(op).kind; }

Resolved resolve(const Op& op, const std::vector<Shape>& inputs, std::string_view name) {
  const detail::Site site{op, inputs, name};
  detail::require_fitting_sizes(op, site);
  Resolved resolved = detail::facts_of(op).infer(op, site);
  detail::require_fitting_shapes(resolved, site);
  return resolved;
}

}  // namespace tutti::nn
