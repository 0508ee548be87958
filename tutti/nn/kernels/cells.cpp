// The kernels of recurrent cells, compiled once per instruction set (cmake/TuttiKernels.cmake).
// Plain loops that the compiler vectorises: each element goes through the same IEEE operations in
// body and tail.
#include "tutti/nn/kernels/cells.h"

namespace tutti::nn {
namespace {

using detail::GruStep;
using detail::GruStepGradient;
using detail::LstmStep;
using detail::LstmStepGradient;

/// e^x - 1 = scale * part + (scale - 1), with scale = 2^n and part = e^(x - n ln 2) - 1.
struct Exponential {
  float scale, part;
};
// For -87 <= x <= 0, or NaN. Cody and Waite's reduction; the Taylor series' terms up to the eighth
// are below half a unit in the last place on |r| <= ln(2) / 2.
inline Exponential exponential(float x) {
  constexpr float kLog2E = 1.44269504F, kRounds = 12582912.0F;  // 1.5 * 2^23
  constexpr float kLn2High = 0.693359375F, kLn2Low = -2.12194440e-4F;
  const float shifted = x * kLog2E + kRounds;
  const float n = shifted - kRounds;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float more = 1.0F / 40320;
  more = more * r + 1.0F / 5040;
  more = more * r + 1.0F / 720;
  more = more * r + 1.0F / 120;
  more = more * r + 1.0F / 24;
  more = more * r + 1.0F / 6;
  more = more * r + 0.5F;
  constexpr uint32_t kBias = 127, kMantissa = 23;
  const uint32_t scale = (__builtin_bit_cast(uint32_t, shifted) + kBias) << kMantissa;
  return {__builtin_bit_cast(float, scale), r + (r * r) * more};
}

inline float magnitude(float x) { return __builtin_fabsf(x); }

inline float sigmoid(float x) {
  constexpr float kLeast = -87.0F;
  const float given = -magnitude(x);
  const Exponential e = exponential(given < kLeast ? kLeast : given);
  const float exact = e.scale + e.scale * e.part;
  const float power = given < kLeast ? 0.0F : exact;
  return (x < 0 ? power : 1.0F) / (1.0F + power);
}

// (1 - e) / (1 + e) with e = e^(-2 |x|); where that is above a half, 1 - 2 e / (1 + e).
inline float tanh(float x) {
  constexpr float kLeast = -20.0F, kHalf = -1.1F;  // tanh(10) rounds to 1
  const float given = -2.0F * magnitude(x);
  const Exponential e = exponential(given < kLeast ? kLeast : given);
  const float less_one = e.scale * e.part + (e.scale - 1.0F);
  const float power = e.scale * e.part + e.scale;
  const float part = (given < kHalf ? 2.0F * power : -less_one) / (power + 1.0F);
  return __builtin_copysignf(given < kHalf ? 1.0F - part : part, x);
}

// As LibTorch has them: of a function's value y.
inline float through_sigmoid(float gradient, float y) { return gradient * (1.0F - y) * y; }
inline float through_tanh(float gradient, float y) { return gradient * (1.0F - y * y); }

void copy(const float* from, float* to, int64_t count) {
  if (from == nullptr)
    for (int64_t i = 0; i < count; ++i) to[i] = 0;
  else
    for (int64_t i = 0; i < count; ++i) to[i] = from[i];
}

void sigmoids(float* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[i] = sigmoid(x[i]);
}
void tanhs(const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = tanh(x[i]);
}

void lstm_row(float* gates, const float* __restrict cell_before, float* __restrict cell,
              float* __restrict tanh_of_cell, float* __restrict state, int64_t units) {
  float *const forget = gates + units, *const fresh = forget + units, *const output = fresh + units;
  sigmoids(gates, 2 * units);
  tanhs(fresh, fresh, units);
  sigmoids(output, units);
  if (cell_before == nullptr)
    for (int64_t u = 0; u < units; ++u) cell[u] = gates[u] * fresh[u];
  else
    for (int64_t u = 0; u < units; ++u) cell[u] = gates[u] * fresh[u] + forget[u] * cell_before[u];
  tanhs(cell, tanh_of_cell, units);
  for (int64_t u = 0; u < units; ++u) state[u] = output[u] * tanh_of_cell[u];
}

void lstm(const LstmStep& s) {
  const int64_t units = s.units;
  const auto at = [&](auto* x, int64_t row) { return x == nullptr ? x : x + row * units; };
  for (int64_t row = 0; row < s.rows; ++row) {
    const float* const cell_before = at(s.cell_before, row);
    float* const cell = at(s.cell, row);
    float* const state = at(s.state, row);
    lstm_row(s.gates + 4 * row * units, cell_before, cell, at(s.tanh, row), state, units);
    if (s.there == nullptr || s.there[row]) continue;
    copy(cell_before, cell, units);
    copy(at(s.state_before, row), state, units);
  }
}

void lstm_row_gradient(const float* __restrict gates, const float* __restrict cell_before,
                       const float* __restrict tanh_of_cell, float* __restrict of_state,
                       float* __restrict of_cell, float* __restrict of_gates, int64_t units) {
  const float *const forget = gates + units, *const fresh = forget + units,
                     *const output = fresh + units;
  float *const of_forget = of_gates + units, *const of_fresh = of_forget + units,
               *const of_output = of_fresh + units;
  for (int64_t u = 0; u < units; ++u) {
    const float dh = of_state[u], t = tanh_of_cell[u];
    of_output[u] = through_sigmoid(dh * t, output[u]);
    of_cell[u] += through_tanh(dh * output[u], t);
    of_state[u] = 0;
  }
  for (int64_t u = 0; u < units; ++u) {
    of_gates[u] = through_sigmoid(of_cell[u] * fresh[u], gates[u]);
    of_fresh[u] = through_tanh(of_cell[u] * gates[u], fresh[u]);
  }
  if (cell_before == nullptr)
    copy(nullptr, of_forget, units);
  else
    for (int64_t u = 0; u < units; ++u)
      of_forget[u] = through_sigmoid(of_cell[u] * cell_before[u], forget[u]);
  for (int64_t u = 0; u < units; ++u) of_cell[u] *= forget[u];
}

void add(const float* from, float* __restrict to, int64_t count) {
  if (from == nullptr) return;
  for (int64_t i = 0; i < count; ++i) to[i] += from[i];
}

void lstm_gradient(const LstmStepGradient& s) {
  const int64_t units = s.units;
  const auto at = [&](auto* x, int64_t row) { return x == nullptr ? x : x + row * units; };
  for (int64_t row = 0; row < s.rows; ++row) {
    float* const of_gates = s.of_gates + 4 * row * units;
    add(at(s.of_output, row), at(s.of_state, row), units);
    if (s.there != nullptr && !s.there[row])
      copy(nullptr, of_gates, 4 * units);
    else
      lstm_row_gradient(s.gates + 4 * row * units, at(s.cell_before, row), at(s.tanh, row),
                        at(s.of_state, row), at(s.of_cell, row), of_gates, units);
  }
}

void gru_row(float* gates, const float* __restrict of_state, const float* __restrict before,
             float* __restrict kept, float* __restrict state, int64_t units) {
  float *const update = gates + units, *const fresh = update + units;
  add(of_state, gates, 2 * units);
  sigmoids(gates, 2 * units);
  copy(of_state + 2 * units, kept, units);
  for (int64_t u = 0; u < units; ++u) fresh[u] += gates[u] * kept[u];
  tanhs(fresh, fresh, units);
  if (before == nullptr)
    for (int64_t u = 0; u < units; ++u) state[u] = (0.0F - fresh[u]) * update[u] + fresh[u];
  else
    for (int64_t u = 0; u < units; ++u) state[u] = (before[u] - fresh[u]) * update[u] + fresh[u];
}

void gru(const GruStep& s) {
  const int64_t units = s.units;
  const auto at = [&](auto* x, int64_t row) { return x == nullptr ? x : x + row * units; };
  for (int64_t row = 0; row < s.rows; ++row) {
    const float* const before = at(s.before, row);
    float* const state = at(s.state, row);
    gru_row(s.gates + 3 * row * units, s.of_state + 3 * row * units, before, at(s.kept, row), state,
            units);
    if (s.there != nullptr && !s.there[row]) copy(before, state, units);
  }
}

void gru_row_gradient(const float* __restrict gates, const float* __restrict before,
                      const float* __restrict kept, float* __restrict of_state,
                      float* __restrict of_input, float* __restrict of_hidden, int64_t units) {
  const float *const update = gates + units, *const fresh = update + units;
  float *const of_update = of_input + units, *const of_fresh = of_update + units;
  for (int64_t u = 0; u < units; ++u) {
    const float dn = through_tanh(of_state[u] * (1.0F - update[u]), fresh[u]);
    of_input[u] = through_sigmoid(dn * kept[u], gates[u]);
    of_fresh[u] = dn;
  }
  if (before == nullptr)
    for (int64_t u = 0; u < units; ++u)
      of_update[u] = through_sigmoid(of_state[u] * (0.0F - fresh[u]), update[u]);
  else
    for (int64_t u = 0; u < units; ++u)
      of_update[u] = through_sigmoid(of_state[u] * (before[u] - fresh[u]), update[u]);
  copy(of_input, of_hidden, 2 * units);
  for (int64_t u = 0; u < units; ++u) of_hidden[2 * units + u] = of_fresh[u] * gates[u];
  for (int64_t u = 0; u < units; ++u) of_state[u] *= update[u];
}

void gru_gradient(const GruStepGradient& s) {
  const int64_t units = s.units;
  const auto at = [&](auto* x, int64_t row) { return x == nullptr ? x : x + row * units; };
  for (int64_t row = 0; row < s.rows; ++row) {
    float* const of_input = s.of_input + 3 * row * units;
    float* const of_hidden = s.of_hidden + 3 * row * units;
    add(at(s.of_output, row), at(s.of_state, row), units);
    if (s.there != nullptr && !s.there[row]) {
      copy(nullptr, of_input, 3 * units);
      copy(nullptr, of_hidden, 3 * units);
    } else {
      gru_row_gradient(s.gates + 3 * row * units, at(s.before, row), at(s.kept, row),
                       at(s.of_state, row), of_input, of_hidden, units);
    }
  }
}

}  // namespace

namespace TUTTI_KERNEL_VARIANT {
constinit const detail::CellKernels cell_kernels{
    .lstm = lstm, .lstm_gradient = lstm_gradient, .gru = gru, .gru_gradient = gru_gradient};
}  // namespace TUTTI_KERNEL_VARIANT

}  // namespace tutti::nn
