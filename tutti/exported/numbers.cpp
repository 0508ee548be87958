#include "tutti/exported/detail/numbers.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tutti/base/error.h"

namespace tutti::exported::detail {
namespace {

using c10::IValue;
using Numbers = std::span<const IValue>;

bool is_whole(const IValue& number) { return number.isInt() || number.isBool(); }
int64_t whole(const IValue& number) { return number.toScalar().toLong(); }
double real(const IValue& number) { return number.toScalar().toDouble(); }
bool both_whole(Numbers n) { return is_whole(n[0]) && is_whole(n[1]); }

[[noreturn]] void fail(std::string_view what) {
  throw UsageError(fmt::format("a size that the graph computes: {}", what));
}

using Overflows = bool (*)(int64_t, int64_t, int64_t*);
bool add_overflows(int64_t a, int64_t b, int64_t* sum) { return __builtin_add_overflow(a, b, sum); }
bool sub_overflows(int64_t a, int64_t b, int64_t* sum) { return __builtin_sub_overflow(a, b, sum); }
bool mul_overflows(int64_t a, int64_t b, int64_t* sum) { return __builtin_mul_overflow(a, b, sum); }

template <Overflows overflows, class Reals>
IValue arithmetic(Numbers n, Reals reals) {
  if (!both_whole(n)) return reals(real(n[0]), real(n[1]));
  int64_t result = 0;
  if (overflows(whole(n[0]), whole(n[1]), &result)) fail("it does not fit into 64 bits");
  return result;
}

template <class Compare>
IValue compared(Numbers n, Compare compare) {
  return both_whole(n) ? compare(whole(n[0]), whole(n[1])) : compare(real(n[0]), real(n[1]));
}

template <class Choose>
IValue chosen(Numbers n, Choose first_wins) {
  const bool first =
      both_whole(n) ? first_wins(whole(n[0]), whole(n[1])) : first_wins(real(n[0]), real(n[1]));
  return first ? n[0] : n[1];
}

int64_t to_whole(double number) {
  constexpr double kLimit = 9.2e18;
  if (!(std::abs(number) < kLimit)) fail(fmt::format("{} is no whole number of 64 bits", number));
  return static_cast<int64_t>(number);
}

IValue divided_down(Numbers n) {
  if (!both_whole(n)) return std::floor(real(n[0]) / real(n[1]));
  const int64_t a = whole(n[0]), b = whole(n[1]);
  if (b == 0 || (b == -1 && a == std::numeric_limits<int64_t>::min()))
    fail(fmt::format("{} divided by {}", a, b));
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

IValue rest(Numbers n) {
  if (!both_whole(n)) {
    const double a = real(n[0]), b = real(n[1]);
    return a - b * std::floor(a / b);
  }
  return whole(n[0]) - divided_down(n).toInt() * whole(n[1]);
}

IValue power(Numbers n) {
  if (!both_whole(n) || whole(n[1]) < 0) return std::pow(real(n[0]), real(n[1]));
  int64_t result = 1;
  for (int64_t i = 0; i < whole(n[1]); ++i) {
    if (i > 64 && (result == 0 || result == 1)) return result;
    if (mul_overflows(result, whole(n[0]), &result)) fail("it does not fit into 64 bits");
  }
  return result;
}

IValue negated(Numbers n) {
  if (!is_whole(n[0])) return -real(n[0]);
  int64_t result = 0;
  if (sub_overflows(0, whole(n[0]), &result)) fail("it does not fit into 64 bits");
  return result;
}

IValue rounded(Numbers n, double (*round)(double)) {
  return is_whole(n[0]) ? whole(n[0]) : to_whole(round(real(n[0])));
}

constexpr auto kTruncated = [](Numbers n) -> IValue { return rounded(n, std::trunc); };

constexpr NumberOperator kOperators[] = {
    {"_operator.add", 2,
     [](Numbers n) {
       return arithmetic<add_overflows>(n, [](double a, double b) { return a + b; });
     }},
    {"_operator.sub", 2,
     [](Numbers n) {
       return arithmetic<sub_overflows>(n, [](double a, double b) { return a - b; });
     }},
    {"_operator.mul", 2,
     [](Numbers n) {
       return arithmetic<mul_overflows>(n, [](double a, double b) { return a * b; });
     }},
    {"_operator.truediv", 2, [](Numbers n) -> IValue { return real(n[0]) / real(n[1]); }},
    {"torch._sym_int_truediv", 2, [](Numbers n) -> IValue { return real(n[0]) / real(n[1]); }},
    {"_operator.floordiv", 2, divided_down},
    {"_operator.mod", 2, rest},
    {"_operator.pow", 2, power},
    {"_operator.neg", 1, negated},
    {"_operator.eq", 2,
     [](Numbers n) { return compared(n, [](auto a, auto b) { return a == b; }); }},
    {"_operator.ne", 2,
     [](Numbers n) { return compared(n, [](auto a, auto b) { return a != b; }); }},
    {"_operator.lt", 2,
     [](Numbers n) { return compared(n, [](auto a, auto b) { return a < b; }); }},
    {"_operator.le", 2,
     [](Numbers n) { return compared(n, [](auto a, auto b) { return a <= b; }); }},
    {"_operator.gt", 2,
     [](Numbers n) { return compared(n, [](auto a, auto b) { return a > b; }); }},
    {"_operator.ge", 2,
     [](Numbers n) { return compared(n, [](auto a, auto b) { return a >= b; }); }},
    {"_operator.and_", 2, [](Numbers n) -> IValue { return whole(n[0]) != 0 && whole(n[1]) != 0; }},
    {"_operator.or_", 2, [](Numbers n) -> IValue { return whole(n[0]) != 0 || whole(n[1]) != 0; }},
    {"torch.sym_not", 1, [](Numbers n) -> IValue { return whole(n[0]) == 0; }},
    {"torch.sym_max", 2,
     [](Numbers n) { return chosen(n, [](auto a, auto b) { return a >= b; }); }},
    {"torch.sym_min", 2,
     [](Numbers n) { return chosen(n, [](auto a, auto b) { return a <= b; }); }},
    {"torch.sym_ite", 3, [](Numbers n) { return whole(n[0]) != 0 ? n[1] : n[2]; }},
    {"torch.sym_float", 1, [](Numbers n) -> IValue { return real(n[0]); }},
    {"torch.sym_int", 1, kTruncated},
    {"math.trunc", 1, kTruncated},
    {"math.floor", 1, [](Numbers n) { return rounded(n, std::floor); }},
    {"math.ceil", 1, [](Numbers n) { return rounded(n, std::ceil); }},
    {"torch._sym_sqrt", 1, [](Numbers n) -> IValue { return std::sqrt(real(n[0])); }},
};

}  // namespace

const NumberOperator* number_operator(std::string_view target) {
  const auto* found = std::ranges::find(kOperators, target, &NumberOperator::target);
  return found == std::end(kOperators) ? nullptr : found;
}

}  // namespace tutti::exported::detail
