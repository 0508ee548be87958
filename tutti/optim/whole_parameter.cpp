// Muon's and Adafactor's updates of one parameter.
//
// Muon: R rows, C columns, u what is made orthogonal, x of it the matrix that is no taller than
// wide. Adafactor: B matrices of R rows and C columns, one behind the other. Loops are plain ones,
// products the kernels', sums in double in one order: equal bits on every CPU.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <type_traits>

#include "tutti/base/cpu_variant.h"
#include "tutti/base/detail/check.h"
#include "tutti/base/error.h"
#include "tutti/base/typed.h"
#include "tutti/optim/kernels/products.h"
#include "tutti/optim/recipe.h"
#include "tutti/optim/whole_rule.h"

namespace tutti::optim {
namespace {

template <class T>
using Matrix = std::vector<T>;  // row by row

const detail::Products& best_products() {
  static const detail::Products& products = detail::products_for(best_variant());
  return products;
}

template <class T>
void multiply(const Matrix<T>& a, const Matrix<T>& b, Matrix<T>& c, int64_t rows, int64_t inner,
              int64_t columns) {
  if constexpr (std::is_same_v<T, float>)
    best_products().float32(a.data(), b.data(), c.data(), rows, inner, columns);
  else
    best_products().float64(a.data(), b.data(), c.data(), rows, inner, columns);
}

template <class T>
void transpose(const T* from, T* to, int64_t rows, int64_t columns) {
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < columns; ++column)
      to[column * rows + row] = from[row * columns + column];
}

template <class T>
double length_of(const T* values, int64_t n) {
  std::vector<double> blocks(static_cast<size_t>((n + kBlockElements - 1) / kBlockElements));
  square_blocks(dtype_of<T>(), values, n, blocks);
  return std::sqrt(std::accumulate(blocks.begin(), blocks.end(), 0.0));
}

// ---- Muon ----

// Coefficients that raise small singular values fastest (Jordan et al. 2024): after five steps all
// are in about [0.7, 1.2].
template <class T>
constexpr T kA = T(3.4445);
template <class T>
constexpr T kB = T(-4.7750);
template <class T>
constexpr T kC = T(2.0315);

// x [R, C], R <= C, of norm 1 at most: x = A x + (B g + C g g) x with g = x x^T.
template <class T>
void newton_schulz(Matrix<T>& x, int64_t rows, int64_t columns, int64_t steps) {
  const auto square = static_cast<size_t>(rows * rows);
  Matrix<T> turned(x.size()), next(x.size()), gram(square), polynomial(square);
  for (int64_t step = 0; step < steps; ++step) {
    transpose(x.data(), turned.data(), rows, columns);
    multiply(x, turned, gram, rows, columns, rows);
    multiply(gram, gram, polynomial, rows, rows, rows);
    for (size_t i = 0; i < square; ++i) polynomial[i] = kB<T> * gram[i] + kC<T> * polynomial[i];
    multiply(polynomial, x, next, rows, rows, columns);
    for (size_t i = 0; i < x.size(); ++i) x[i] = kA<T> * x[i] + next[i];
  }
}

// u [R, C]: of its singular value decomposition U S V^T about U V^T.
template <class T>
void make_orthogonal(Matrix<T>& u, int64_t rows, int64_t columns, const MuonOptions& options) {
  const auto norm = static_cast<T>(
      std::max(length_of(u.data(), static_cast<int64_t>(u.size())), options.epsilon));
  for (T& value : u) value = value / norm;
  if (rows <= columns) return newton_schulz(u, rows, columns, options.steps);
  Matrix<T> wide(u.size());
  transpose(u.data(), wide.data(), rows, columns);
  newton_schulz(wide, columns, rows, options.steps);
  transpose(wide.data(), u.data(), columns, rows);
}

template <class T>
void update_whole(const MuonOptions& o, const std::vector<int64_t>& shape, T* parameter,
                  const T* gradient, std::span<void* const> states, const StepScalars& scalars) {
  const int64_t n = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  const int64_t rows = shape[0], columns = n / rows;
  T* const velocity = static_cast<T*>(states[0]);
  const auto momentum = static_cast<T>(o.momentum), fresh = static_cast<T>(1 - o.momentum);
  Matrix<T> u(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    velocity[i] = momentum * velocity[i] + fresh * gradient[i];
    u[static_cast<size_t>(i)] =
        o.nesterov ? momentum * velocity[i] + fresh * gradient[i] : velocity[i];
  }
  make_orthogonal(u, rows, columns, o);
  const auto high = static_cast<double>(rows), wide = static_cast<double>(columns);
  const double factor = o.match_rms_adamw ? 0.2 * std::sqrt(std::max(high, wide))
                                          : std::sqrt(std::max(1.0, high / wide));
  const auto rate = static_cast<T>(scalars.learning_rate * factor);
  const auto kept = static_cast<T>(1 - scalars.learning_rate * o.weight_decay);
  for (int64_t i = 0; i < n; ++i)
    parameter[i] = kept * parameter[i] - rate * u[static_cast<size_t>(i)];
}

// ---- Adafactor ----

// t^exponent from additions, products and divisions alone: pow() differs between C libraries. The
// series of the logarithm and of the exponential end where double ends; relative error 1e-14.
double power_of_count(int64_t count, double exponent) {
  constexpr double kLogOf2 = 0.6931471805599453;
  int two = 0;
  double mantissa = std::frexp(static_cast<double>(count), &two);
  if (mantissa < 0.70710678118654752) {
    mantissa *= 2;
    --two;
  }
  const double z = (mantissa - 1) / (mantissa + 1);
  double series = 0;
  for (int k = 25; k >= 1; k -= 2) series = series * (z * z) + 1.0 / k;
  const double x = exponent * (two * kLogOf2 + 2 * z * series);
  const double halves = std::nearbyint(x / kLogOf2);
  const double rest = x - halves * kLogOf2;
  double power = 1;
  for (int k = 18; k > 0; --k) power = 1 + rest * power / k;
  return std::ldexp(power, static_cast<int>(halves));
}

// Of one matrix [R, C]: moves its moments, and puts g / sqrt(their product) into `u`.
template <class T>
void factored(const T* gradient, T* row_var, T* column_var, T* u, int64_t rows, int64_t columns,
              double weight, T least) {
  std::vector<double> of_row(static_cast<size_t>(rows)), of_column(static_cast<size_t>(columns));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      const double square = double{gradient[r * columns + c]} * double{gradient[r * columns + c]};
      of_row[static_cast<size_t>(r)] += square;
      of_column[static_cast<size_t>(c)] += square;
    }
  const auto move = [&](T* moments, const std::vector<double>& sums, int64_t count) {
    for (size_t i = 0; i < sums.size(); ++i)
      moments[i] = static_cast<T>((1 - weight) * double{moments[i]} +
                                  weight * (sums[i] / static_cast<double>(count)));
  };
  move(row_var, of_row, columns);
  move(column_var, of_column, rows);
  double all = 0;
  for (int64_t r = 0; r < rows; ++r) all += double{row_var[r]};
  const T mean = std::max(static_cast<T>(all / static_cast<double>(rows)), least);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      const T variance = std::max(row_var[r] * column_var[c] / mean, least * least);
      u[r * columns + c] = gradient[r * columns + c] / std::sqrt(variance);
    }
}

template <class T>
void update_whole(const AdafactorOptions& o, const std::vector<int64_t>& shape, T* parameter,
                  const T* gradient, std::span<void* const> states, const StepScalars& scalars) {
  const int64_t n = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  const double weight = power_of_count(scalars.count, o.beta2_decay);
  const T least = o.epsilon1 > 0 ? static_cast<T>(o.epsilon1) : std::numeric_limits<T>::epsilon();
  std::vector<T> u(static_cast<size_t>(n));
  if (shape.size() > 1) {
    const int64_t rows = shape[shape.size() - 2], columns = shape.back();
    auto *row_var = static_cast<T*>(states[0]), *column_var = static_cast<T*>(states[1]);
    for (int64_t begin = 0; begin < n; begin += rows * columns) {
      factored(gradient + begin, row_var, column_var, u.data() + begin, rows, columns, weight,
               least);
      row_var += rows;
      column_var += columns;
    }
  } else {
    auto* const variance = static_cast<T*>(states[0]);
    for (int64_t i = 0; i < n; ++i) {
      variance[i] = static_cast<T>((1 - weight) * double{variance[i]} +
                                   weight * (double{gradient[i]} * double{gradient[i]}));
      u[static_cast<size_t>(i)] = gradient[i] / std::sqrt(std::max(variance[i], least * least));
    }
  }
  const double root = std::sqrt(static_cast<double>(n));
  const double relative =
      std::min(scalars.learning_rate, 1 / std::sqrt(static_cast<double>(scalars.count)));
  const double step = std::max(o.epsilon2, length_of(parameter, n) / root) * relative;
  const double shorter = std::max(1.0, length_of(u.data(), n) / (root * o.clip));
  const auto rate = static_cast<T>(step / shorter);
  const auto kept = static_cast<T>(1 - scalars.learning_rate * o.weight_decay);
  for (int64_t i = 0; i < n; ++i)
    parameter[i] = kept * parameter[i] - rate * u[static_cast<size_t>(i)];
}

// ---- what is kept ----

bool goes_by_adamw(const WholeRule::Options& options, std::string_view name,
                   const std::vector<int64_t>& shape) {
  const auto* const muon = std::get_if<MuonOptions>(&options);
  if (muon == nullptr) return false;
  return shape.size() < 2 ||
         std::ranges::any_of(
             muon->others, [&](const std::string& pattern) { return fits(pattern, name); });
}

std::vector<WholeState> whole_states(const WholeRule::Options& options, bool by_adamw,
                                     const std::vector<int64_t>& shape, const Rule& adamw) {
  std::vector<WholeState> states;
  if (by_adamw) {
    for (int k = 0; k < adamw.num_states(); ++k)
      states.push_back({std::string(adamw.state_name(k)), shape});
  } else if (std::holds_alternative<MuonOptions>(options)) {
    states = {{"momentum_buffer", shape}};
  } else if (shape.size() > 1) {
    std::vector<int64_t> rows = shape, columns = shape;
    rows.back() = 1;
    columns[columns.size() - 2] = 1;
    states = {{"row_var", rows}, {"col_var", columns}};
  } else {
    states = {{"variance", shape}};
  }
  return states;
}

Rule adamw_of(const WholeRule::Options& options) {
  const auto* const muon = std::get_if<MuonOptions>(&options);
  return adamw(muon != nullptr ? muon->adamw : AdamWOptions());
}

}  // namespace

WholeParameter::WholeParameter(const WholeRule& rule, std::string_view name,
                               std::vector<int64_t> shape)
    : options_(rule.options()),
      shape_(std::move(shape)),
      by_adamw_(goes_by_adamw(options_, name, shape_)),
      adamw_(adamw_of(options_)),
      states_(whole_states(options_, by_adamw_, shape_, adamw_)) {}

StepScalars WholeParameter::next(const StepScalars& previous, double learning_rate) const {
  if (by_adamw_)
    return adamw_.next(previous, learning_rate * (adamw_.learning_rate() /
                                                  std::get<MuonOptions>(options_).learning_rate));
  require_learning_rate(learning_rate);
  StepScalars next = previous;
  next.learning_rate = learning_rate;
  ++next.count;
  return next;
}

void WholeParameter::update(DType dtype, void* parameter, const void* gradient,
                            std::span<void* const> states, const StepScalars& scalars) const {
  if (dtype != DType::float32 && dtype != DType::float64)
    throw UsageError(fmt::format(
        "optimizer {}: parameters are {}; expected float32 or float64",
        std::holds_alternative<MuonOptions>(options_) ? "muon" : "adafactor", name_of(dtype)));
  TUTTI_CHECK(states.size() == states_.size() && scalars.count >= 1, "{} states of {}, update {}",
              states.size(), states_.size(), scalars.count);
  const int64_t n = std::accumulate(shape_.begin(), shape_.end(), int64_t{1}, std::multiplies<>());
  if (n == 0) return;
  if (by_adamw_) return adamw_.update(dtype, parameter, gradient, states, n, scalars);
  const auto as = [&]<class T>(T) {
    std::visit(
        [&](const auto& chosen) {
          update_whole(chosen, shape_, static_cast<T*>(parameter), static_cast<const T*>(gradient),
                       states, scalars);
        },
        options_);
  };
  dtype == DType::float32 ? as(float{}) : as(double{});
}

}  // namespace tutti::optim
