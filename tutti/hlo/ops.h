/// Operators on values of a program: each adds an instruction of StableHLO, or a few.
///
/// Elementwise ones take values of one type, or a value and a number, which is broadcast; there is
/// no other implicit broadcast and no implicit conversion. program.h says the rest.
#pragma once

#include <span>
#include <vector>

#include "tutti/hlo/program.h"

namespace tutti::hlo {

/// The same number everywhere; UsageError for one that the integers have not.
Value constant(Program& program, Type type, double number);
/// 0, 1, 2, ... along a dimension.
Value iota(Program& program, Type type, int64_t dimension);

Value operator+(Value a, Value b);
Value operator-(Value a, Value b);
Value operator*(Value a, Value b);
Value operator/(Value a, Value b);
Value operator-(Value a);
Value operator+(Value a, double b);
Value operator-(Value a, double b);
Value operator-(double a, Value b);
Value operator*(Value a, double b);
Value operator/(Value a, double b);
Value maximum(Value a, Value b);
Value minimum(Value a, Value b);
Value maximum(Value a, double b);
Value minimum(Value a, double b);

Value exp(Value a);
Value log(Value a);
Value sqrt(Value a);
Value rsqrt(Value a);  ///< 1 / sqrt(a)
Value tanh(Value a);
Value sigmoid(Value a);
/// The error function, to 3e-7 in float32: Abramowitz and Stegun 1964, 7.1.26.
Value erf(Value a);
Value abs(Value a);
Value power(Value a, double exponent);

/// Of integers; and, or and exclusive or of booleans too.
Value bit_and(Value a, Value b);
Value bit_or(Value a, Value b);
Value bit_xor(Value a, Value b);
Value shift_left(Value a, int bits);
Value shift_right(Value a, int bits);  ///< zeros come in

enum class Comparison { eq, ne, lt, le, gt, ge };
Value compare(Value a, Comparison how, Value b);  ///< booleans
Value compare(Value a, Comparison how, double b);
/// `yes` where the condition (boolean, same shape) holds, else `no`.
Value select(Value condition, Value yes, Value no);
/// True and false become 1 and 0.
Value convert(Value a, DType dtype);
/// The same value, through which no gradient goes.
Value stop_gradient(Value a);

/// Dimension i of `a` becomes dimension dimensions[i] of `shape` (its size there, or 1), in
/// increasing order; the rest is repeated.
Value broadcast(Value a, Shape shape, std::vector<int64_t> dimensions);
Value reshape(Value a, Shape shape);
/// Dimension i of the result is dimension order[i] of `a`.
Value transpose(Value a, std::vector<int64_t> order);
/// Elements from begin[i] to before end[i], every stride[i]-th (empty: every one).
Value slice(Value a, Shape begin, Shape end, Shape stride = {});
/// Zeros (or `with`) before, after and between the elements; before and after may be negative.
Value pad(Value a, Shape before, Shape after, Shape between, double with = 0);
Value concatenate(std::span<const Value> values, int64_t dimension);
/// In reverse order along these dimensions.
Value reverse(Value a, std::vector<int64_t> dimensions);

Value reduce_sum(Value a, std::vector<int64_t> dimensions);
Value reduce_max(Value a, std::vector<int64_t> dimensions);

/// Sums of products over a[contract_a[i]] and b[contract_b[i]], for each of a[batch_a[i]], which is
/// b[batch_b[i]]: first the batch dimensions, then what is left of a, then of b. Sums, and so what
/// it gives, in float32; gradients of bfloat16 operands are bfloat16.
struct DotDimensions {
  std::vector<int64_t> batch_a, batch_b, contract_a, contract_b;
};
Value dot(Value a, Value b, const DotDimensions& dimensions);
/// [n, k] and [k, m] to [n, m].
Value dot(Value a, Value b);

/// Images: [batch, channels, height, width], or [batch, height, width, channels].
enum class ImageOrder : uint8_t { channels_first, channels_last };
/// Their dimensions, beside the batch's, which is 0.
struct ImageAxes {
  int64_t channels, height, width;
};
ImageAxes axes_of(ImageOrder order);

/// Cross-correlation of an image x with w [outputs, channels / groups, kernel height, kernel width]
/// in either order; types as of dot(). The result has the order of x.
struct ConvOptions {
  int64_t stride_height = 1, stride_width = 1;
  int64_t pad_height = 0, pad_width = 0;  ///< zeros on both sides
  int64_t groups = 1;
  ImageOrder order = ImageOrder::channels_first;
};
Value conv2d(Value x, Value w, const ConvOptions& options);

/// Largest value, or sum, of each window of an image; padding counts as minus infinity, or 0.
struct WindowOptions {
  int64_t kernel_height = 1, kernel_width = 1;
  int64_t stride_height = 1, stride_width = 1;
  int64_t pad_height = 0, pad_width = 0;  ///< on both sides
  ImageOrder order = ImageOrder::channels_first;
};
Value window_max(Value x, const WindowOptions& options);
Value window_sum(Value x, const WindowOptions& options);

/// Rows of table [rows, features] by number [...] (int32 or int64): [..., features]. A number
/// beyond the table takes its first or last row, and gives no gradient.
Value take_rows(Value table, Value numbers);

/// The sum over all replicas, in an order of the plugin's own; the value itself where there is one.
Value all_reduce(Value a);
/// The number of this replica, uint32.
Value replica_number(Program& program);

}  // namespace tutti::hlo
