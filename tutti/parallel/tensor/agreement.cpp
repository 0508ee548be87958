#include "tutti/parallel/tensor/detail/agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "tutti/base/error.h"

namespace tutti::parallel::detail {
namespace {

constexpr std::string_view kFunctionNames[] = {
    "copy_to", "sum_of", "part_of", "whole_of", "sequence_all_gather", "sequence_reduce_scatter"};

constexpr int64_t kNoAxis = -1;
constexpr size_t kFields = 5, kMaxDims = 16;

/// What one rank calls. The shape is that of one tensor, with 0 along an axis that parts are cut
/// along; `sizes` are theirs.
struct Call {
  Function function;
  int64_t axis = kNoAxis;
  at::ScalarType dtype = at::kFloat;
  bool gradient = false;
  std::vector<int64_t> shape;
  std::vector<int64_t> sizes;

  bool operator==(const Call&) const = default;
};

std::string words_of(const Call& call) {
  std::vector<std::string> shape;
  for (const int64_t size : call.shape) shape.push_back(std::to_string(size));
  if (!call.sizes.empty())
    shape[static_cast<size_t>(call.axis)] = fmt::format("{}", fmt::join(call.sizes, "|"));
  return fmt::format("{} of {} [{}]{}", name_of(call.function), c10::toString(call.dtype),
                     fmt::join(shape, ", "),
                     call.axis == kNoAxis ? "" : fmt::format(" along axis {}", call.axis));
}

[[noreturn]] void refuse(Function function, const std::string& why) {
  throw UsageError(fmt::format("{}: {}", name_of(function), why));
}

int64_t checked_axis(Function function, const at::Tensor& x, std::optional<int64_t> axis) {
  if (!axis) return kNoAxis;
  if (*axis < -x.dim() || *axis >= x.dim())
    refuse(function, fmt::format("axis is {}, the tensor has {} dimensions", *axis, x.dim()));
  return *axis < 0 ? *axis + x.dim() : *axis;
}

std::vector<int64_t> shape_beside(const at::Tensor& x, int64_t axis) {
  auto shape = x.sizes().vec();
  if (axis != kNoAxis) shape[static_cast<size_t>(axis)] = 0;
  return shape;
}

Call own_call(const TensorGroup& group, Function function, Given given, const Blocks& tensors,
              std::optional<int64_t> axis) {
  if (given != Given::whole && static_cast<int>(tensors.size()) != group.local_blocks())
    refuse(function, fmt::format("got {} blocks, rank {} of {} has {} of {}", tensors.size(),
                                 group.rank(), group.size(), group.local_blocks(), group.blocks()));
  for (const at::Tensor& x : tensors)
    if (!x.defined()) refuse(function, "a tensor is undefined");
  const at::Tensor& first = tensors[0];
  if (first.dim() > static_cast<int64_t>(kMaxDims))
    refuse(function, fmt::format("got {} dimensions, expected at most {}", first.dim(), kMaxDims));
  Call call{.function = function,
            .axis = checked_axis(function, first, axis),
            .dtype = first.scalar_type()};
  const int64_t cut = given == Given::parts ? call.axis : kNoAxis;
  call.shape = shape_beside(first, cut);
  for (const at::Tensor& x : tensors) {
    if (x.dim() != first.dim() || shape_beside(x, cut) != call.shape ||
        x.scalar_type() != call.dtype)
      refuse(function,
             fmt::format("a block is {} [{}], the first is {} [{}]; expected one dtype and shape{}",
                         c10::toString(x.scalar_type()), fmt::join(x.sizes(), ", "),
                         c10::toString(call.dtype), fmt::join(first.sizes(), ", "),
                         cut == kNoAxis ? "" : fmt::format(" but for axis {}", cut)));
    call.gradient |= at::GradMode::is_enabled() && x.requires_grad();
    if (cut != kNoAxis) call.sizes.push_back(x.size(cut));
  }
  return call;
}

/// The most blocks of a rank: the first ones have them.
size_t most_blocks(const TensorGroup& group) {
  return static_cast<size_t>((group.blocks() + group.size() - 1) / group.size());
}

std::vector<int64_t> encoded(const Call& call, size_t blocks) {
  std::vector<int64_t> code{static_cast<int64_t>(call.function), call.axis,
                            static_cast<int64_t>(call.dtype), static_cast<int64_t>(call.gradient),
                            static_cast<int64_t>(call.shape.size())};
  code.insert(code.end(), call.shape.begin(), call.shape.end());
  code.resize(kFields + kMaxDims);
  code.push_back(static_cast<int64_t>(call.sizes.size()));
  code.insert(code.end(), call.sizes.begin(), call.sizes.end());
  code.resize(kFields + kMaxDims + 1 + blocks);
  return code;
}

Call decoded(std::span<const int64_t> code) {
  const auto shape = code.subspan(kFields, static_cast<size_t>(code[4]));
  const auto sizes =
      code.subspan(kFields + kMaxDims + 1, static_cast<size_t>(code[kFields + kMaxDims]));
  return {.function = static_cast<Function>(code[0]),
          .axis = code[1],
          .dtype = static_cast<at::ScalarType>(code[2]),
          .gradient = code[3] != 0,
          .shape = {shape.begin(), shape.end()},
          .sizes = {sizes.begin(), sizes.end()}};
}

std::vector<Call> all_calls(const TensorGroup& group, const Call& own) {
  if (group.size() == 1) return {own};
  std::vector<int64_t> mine = encoded(own, most_blocks(group));
  std::vector<int64_t> all(mine.size() * static_cast<size_t>(group.size()));
  group.group()
      .all_gather(span_of(std::span(mine)), span_of(std::span(all)), group.time_limit())
      .wait(group.time_limit());
  std::vector<Call> calls;
  for (size_t begin = 0; begin < all.size(); begin += mine.size())
    calls.push_back(decoded(std::span(all).subspan(begin, mine.size())));
  return calls;
}

/// The same error on every rank.
void require_agreement(const std::vector<Call>& calls) {
  for (size_t r = 1; r < calls.size(); ++r) {
    if (calls[r].gradient != calls[0].gradient)
      throw Mismatch(fmt::format("{}: rank {} of {} {}; expected the same on all ranks",
                                 name_of(calls[0].function), r, calls.size(),
                                 calls[r].gradient ? "needs a gradient, rank 0 does not"
                                                   : "needs no gradient, rank 0 does"));
    Call alike = calls[r];
    alike.sizes = calls[0].sizes;
    if (alike == calls[0]) continue;
    throw Mismatch(fmt::format(
        "{}: rank {} of {} calls {}, rank 0 calls {}; expected one function, dtype and shape on "
        "all "
        "ranks{}",
        name_of(calls[0].function), r, calls.size(), words_of(calls[r]), words_of(calls[0]),
        calls[0].sizes.empty() ? "" : ", but for the sizes along the axis"));
  }
}

/// Blocks have the parts that are theirs; gives what these are together.
int64_t length_of_parts(const TensorGroup& group, const std::vector<Call>& calls) {
  int64_t length = 0;
  for (const Call& call : calls)
    length += std::accumulate(call.sizes.begin(), call.sizes.end(), int64_t{0});
  for (int r = 0; r < group.size(); ++r) {
    const Call& call = calls[static_cast<size_t>(r)];
    const auto expected = group.sizes_of(r, length);
    if (call.sizes != expected)
      throw Mismatch(fmt::format(
          "{}: rank {} of {} has parts of [{}] along axis {}, expected [{}] of {} on {} blocks",
          name_of(call.function), r, group.size(), fmt::join(call.sizes, ", "), call.axis,
          fmt::join(expected, ", "), length, group.blocks()));
  }
  return length;
}

}  // namespace

std::string_view name_of(Function function) noexcept {
  return kFunctionNames[static_cast<size_t>(function)];
}

Agreed agree(const TensorGroup& group, Function function, Given given, const Blocks& tensors,
             std::optional<int64_t> axis) {
  const Call own = own_call(group, function, given, tensors, axis);
  const std::vector<Call> calls = all_calls(group, own);
  require_agreement(calls);
  if (!axis) return {};
  const int64_t length = given == Given::parts ? length_of_parts(group, calls)
                                               : own.shape[static_cast<size_t>(own.axis)];
  if (length < group.blocks())
    refuse(function, fmt::format("{} elements along axis {}, expected one a block or more: {}",
                                 length, own.axis, group.blocks()));
  return {own.axis, length};
}

}  // namespace tutti::parallel::detail
