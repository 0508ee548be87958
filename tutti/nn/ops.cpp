#include "tutti/nn/ops.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>

#include "tutti/base/error.h"
#include "tutti/nn/detail/operator_facts.h"
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

}  // namespace detail

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::string_view kind_of(const Op& op) noexcept { return detail::facts_of(op).kind; }

Resolved resolve(const Op& op, const std::vector<Shape>& inputs, std::string_view name) {
  return detail::facts_of(op).infer(op, {op, inputs, name});
}

}  // namespace tutti::nn
