#include "tutti/hlo/text_words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "tutti/hlo/checks.h"

namespace tutti::hlo {
namespace {

bool has_sign(DType dtype) { return dtype == DType::int32 || dtype == DType::int64; }

std::string_view layout_words(ConvolutionLayout layout, ImageOrder order) {
  const bool last = order == ImageOrder::channels_last;
  switch (layout) {
    case ConvolutionLayout::plain:
      return last ? "[b, 0, 1, f]x[o, i, 0, 1]->[b, 0, 1, f]"
                  : "[b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]";
    case ConvolutionLayout::all_swapped:
      return last ? "[f, 0, 1, b]x[i, 0, 1, o]->[f, b, 0, 1]"
                  : "[f, b, 0, 1]x[i, o, 0, 1]->[f, b, 0, 1]";
  }
  return {};
}

}  // namespace

std::string_view elementwise_name(Op op) {
  switch (op) {
    case Op::add: return "add";
    case Op::subtract: return "subtract";
    case Op::multiply: return "multiply";
    case Op::divide: return "divide";
    case Op::maximum: return "maximum";
    case Op::minimum: return "minimum";
    case Op::negate: return "negate";
    case Op::exp: return "exponential";
    case Op::log: return "log";
    case Op::sqrt: return "sqrt";
    case Op::rsqrt: return "rsqrt";
    case Op::tanh: return "tanh";
    case Op::sigmoid: return "logistic";
    case Op::abs: return "abs";
    case Op::bit_and: return "and";
    case Op::bit_or: return "or";
    case Op::bit_xor: return "xor";
    // Of a value and a number.
    case Op::power: return "power";
    case Op::shift_left: return "shift_left";
    case Op::shift_right: return "shift_right_logical";
    default: return {};
  }
}

std::string_view comparison_name(Comparison how) {
  constexpr std::string_view kNames[] = {"EQ", "NE", "LT", "LE", "GT", "GE"};
  return kNames[size_t(how)];
}

std::string_view comparison_kind(DType dtype) {
  return is_floating(dtype) ? "FLOAT" : has_sign(dtype) ? "SIGNED" : "UNSIGNED";
}

std::string literal(DType dtype, double number) {
  if (dtype == DType::boolean) return number != 0 ? "true" : "false";
  if (!is_floating(dtype)) return fmt::format("{:.0f}", number);
  if (!std::isfinite(number)) {
    const int bits = std::isnan(number) ? 0x7FC0 : number > 0 ? 0x7F80 : 0xFF80;
    return fmt::format("0x{:04X}{}", bits, dtype == DType::bfloat16 ? "" : "0000");
  }
  std::string text = fmt::format("{}", number);
  if (text.find('.') == text.npos) text.insert(std::min(text.find('e'), text.size()), ".0");
  return text;
}

double lowest(DType dtype) {
  if (is_floating(dtype)) return -std::numeric_limits<double>::infinity();
  return has_sign(dtype) ? -std::ldexp(1.0, int(8 * size_of(dtype)) - 1) : 0;
}

std::string flat(std::string_view words) {
  std::string text(words);
  for (char& c : text)
    if (std::iscntrl(static_cast<unsigned char>(c))) c = ' ';
  return text;
}

std::string identifier(std::string_view words) {
  std::string text;
  for (const char c : words) text += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return text.empty() || std::isdigit(static_cast<unsigned char>(text[0])) ? "_" + text : text;
}

// Windows go over batch and channels too: one by one, and without padding.
std::string window_words(const Window& window) {
  const auto numbers = [&](const Window::Pair& pair, int64_t elsewhere) {
    Shape all(4, elsewhere);
    for (const size_t axis : {0, 1}) all[window.dimension(axis)] = pair[axis];
    return all;
  };
  const Shape before = numbers(window.before, 0), after = numbers(window.after, 0);
  return fmt::format(
      "<{{window_dimensions = array<i64: {}>, window_strides = array<i64: {}>, "
      "padding = dense<[[{}, {}], [{}, {}], [{}, {}], [{}, {}]]> : tensor<4x2xi64>}}>",
      fmt::join(numbers(window.size, 1), ", "), fmt::join(numbers(window.stride, 1), ", "),
      before[0], after[0], before[1], after[1], before[2], after[2], before[3], after[3]);
}

std::string block(std::string_view operation, DType dtype) {
  const std::string type = to_string({dtype, {}});
  return fmt::format(
      "{{\n"
      "      ^bb0(%r.a: {0}, %r.b: {0}):\n"
      "        %r.c = stablehlo.{1} %r.a, %r.b : {0}\n"
      "        stablehlo.return %r.c : {0}\n"
      "    }}",
      type, operation);
}

std::string first_is_largest(DType dtype) {
  const std::string type = to_string({dtype, {}});
  return fmt::format(
      "{{\n"
      "      ^bb0(%r.a: {0}, %r.b: {0}):\n"
      "        %r.c = stablehlo.compare GE, %r.a, %r.b, FLOAT : ({0}, {0}) -> tensor<i1>\n"
      "        stablehlo.return %r.c : tensor<i1>\n"
      "    }}",
      type);
}

std::string constant_words(const Type& type, double number) {
  return fmt::format("stablehlo.constant dense<{}> : {}", literal(type.dtype, number),
                     to_string(type));
}

// Float32 stays float32: left to themselves accelerators make such products in fewer bits.
constexpr std::string_view kPrecision = "HIGHEST";

std::string convolution_words(const Window& window, DType dtype) {
  const std::string precision = dtype != DType::float32
                                    ? ""
                                    : fmt::format(
                                          ", precision_config = [#stablehlo<precision {0}>, "
                                          "#stablehlo<precision {0}>]",
                                          kPrecision);
  return fmt::format(
      "dim_numbers = {}, window = {{stride = {}, pad = [[{}, {}], [{}, {}]], lhs_dilate = {}, "
      "rhs_dilate = {}, reverse = [false, false]}} "
      "{{batch_group_count = {} : i64, feature_group_count = {} : i64{}}}",
      layout_words(window.layout, window.order), words_of(window.stride), window.before[0],
      window.after[0], window.before[1], window.after[1], words_of(window.spread_input),
      words_of(window.spread_kernel), window.batch_groups, window.feature_groups, precision);
}

std::string dot_words(const DotDimensions& d, DType dtype) {
  const std::string batch =
      d.batch_a.empty()
          ? ""
          : fmt::format("batching_dims = {} x {}, ", words_of(d.batch_a), words_of(d.batch_b));
  const std::string precision =
      dtype != DType::float32 ? "" : fmt::format(", precision = [{0}, {0}]", kPrecision);
  return fmt::format("{}contracting_dims = {} x {}{}", batch, words_of(d.contract_a),
                     words_of(d.contract_b), precision);
}

// The dimensions of numbers come first, then that of a row.
std::string taken_rows_words(size_t rank, int64_t features) {
  return fmt::format(
      "<{{dimension_numbers = #stablehlo.gather<offset_dims = [{0}], collapsed_slice_dims = [0], "
      "start_index_map = [0], index_vector_dim = {0}>, slice_sizes = array<i64: 1, {1}>, "
      "indices_are_sorted = false}}>",
      rank, features);
}

std::string added_rows_words(size_t rank) {
  return fmt::format(
      "<{{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [{0}], "
      "inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = {0}>, "
      "indices_are_sorted = false, unique_indices = false}}>",
      rank);
}

std::string replicas_words(int replicas) {
  std::vector<int> all(static_cast<size_t>(replicas));
  std::iota(all.begin(), all.end(), 0);
  return fmt::format("<{{replica_groups = dense<[[{}]]> : tensor<1x{}xi64>}}>",
                     fmt::join(all, ", "), replicas);
}

}  // namespace tutti::hlo
