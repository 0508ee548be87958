// Kernels of recurrent cells and products with panels, by every instruction set.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tutti/nn/detail/panels.h"
#include "tutti/nn/detail/recurrent_cells.h"

namespace tutti::cell_kernels {
namespace {

using nn::detail::CellKernels;
using nn::detail::Panels;

/// How far `got` is from `exact`, in float32 units of its last place.
double units_apart(float got, double exact) {
  const auto rounded = static_cast<float>(std::abs(exact));
  const double unit = std::nextafter(rounded, std::numeric_limits<float>::infinity()) - rounded;
  return std::abs(got - exact) / unit;
}

float* data(at::Tensor& x) { return x.mutable_data_ptr<float>(); }

class CellKernelsOf : public ::testing::TestWithParam<CpuVariant> {
 protected:
  const CellKernels& kernels() const { return nn::detail::cell_kernels(GetParam()); }
  const CellKernels& baseline() const { return nn::detail::cell_kernels(CpuVariant::baseline); }
};

/// An LSTM's step of one row, without a step before it.
struct Gates {
  at::Tensor gates, cell, tanh, state;
};
Gates step_of(const CellKernels& kernels, const at::Tensor& sums) {
  const int64_t units = sums.size(0) / 4;
  Gates of{sums.clone(), at::empty({units}), at::empty({units}), at::empty({units})};
  kernels.lstm({.rows = 1,
                .units = units,
                .there = nullptr,
                .gates = data(of.gates),
                .cell_before = nullptr,
                .state_before = nullptr,
                .cell = data(of.cell),
                .tanh = data(of.tanh),
                .state = data(of.state)});
  return of;
}

TEST_P(CellKernelsOf, FunctionsAreWithinTwoUnitsAndAHalf) {
  constexpr int64_t kUnits = 100'003;
  const at::Tensor whole = at::linspace(-86.9, 90, kUnits), near = at::linspace(-6, 6, kUnits);
  const at::Tensor tiny =
      at::pow(2.0, at::linspace(-40, 3.5, kUnits)) * at::linspace(-1, 1, kUnits).sign();
  for (const auto& [sigmoids, tanhs] : {std::pair(whole, near), std::pair(near, tiny)}) {
    const at::Tensor sums = at::cat({sigmoids, sigmoids, tanhs, sigmoids});
    const Gates of = step_of(kernels(), sums);
    const float *const x = sums.const_data_ptr<float>(), *const y =
                                                             of.gates.const_data_ptr<float>();
    double worst = 0;
    for (int64_t i = 0; i < 4 * kUnits; ++i) {
      const double exact =
          i / kUnits == 2 ? std::tanh(double{x[i]}) : 1 / (1 + std::exp(-double{x[i]}));
      ASSERT_TRUE(std::isfinite(y[i])) << y[i] << " of " << x[i];  // max() would not see NaN
      worst = std::max(worst, units_apart(y[i], exact));
    }
    EXPECT_LE(worst, 2.5);
    EXPECT_GT(worst, 0.1);
  }
}

TEST_P(CellKernelsOf, WhatIsNoNumberIsSeenAndTheEndsAreExact) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const at::Tensor sums = at::tensor({-200.0F, kInf, 0.0F, NAN, -kInf, 100.0F, -0.0F, 1.0F,  // i, f
                                      -kInf, kInf, NAN, -0.0F, 50.0F, -50.0F, NAN, 0.0F});
  const at::Tensor got = step_of(kernels(), sums).gates;
  const float expected[] = {0,  1, 0.5F, NAN,   0, 1, 0.5F, 0.7310586F,
                            -1, 1, NAN,  -0.0F, 1, 0, NAN,  0.5F};
  for (int64_t i = 0; i < 16; ++i) {
    const auto y = got[i].item<float>();
    if (std::isnan(expected[i]))
      EXPECT_TRUE(std::isnan(y)) << i;
    else
      EXPECT_NEAR(y, expected[i], 2e-7) << i;
  }
}

/// All that a pass gives, with and without steps that are not there.
std::vector<at::Tensor> pass_of(const CellKernels& kernels, bool lstm, int64_t rows, int64_t units,
                                bool masked) {
  torch::manual_seed(rows * units);
  const int64_t gates = lstm ? 4 : 3;
  const auto drawn = [&](int64_t parts) { return torch::randn({rows, parts * units}); };
  at::Tensor sums = drawn(gates), of_hidden = drawn(gates), before = drawn(1),
             cell_before = drawn(1);
  at::Tensor cell = drawn(1), kept = drawn(1), state = drawn(1);
  at::Tensor above = drawn(1), of_state = drawn(1), of_cell = drawn(1);
  at::Tensor of_sums = drawn(gates), of_hidden_sums = drawn(gates);
  const at::Tensor there = torch::rand({rows}) < 0.5;
  const bool* const mask = masked ? there.const_data_ptr<bool>() : nullptr;
  if (lstm) {
    kernels.lstm({rows, units, mask, data(sums), data(cell_before), data(before), data(cell),
                  data(kept), data(state)});
    kernels.lstm_gradient({rows, units, mask, data(sums), data(cell_before), data(kept),
                           data(above), data(of_state), data(of_cell), data(of_sums)});
  } else {
    kernels.gru(
        {rows, units, mask, data(sums), data(of_hidden), data(before), data(kept), data(state)});
    kernels.gru_gradient({rows, units, mask, data(sums), data(before), data(kept), data(above),
                          data(of_state), data(of_sums), data(of_hidden_sums)});
  }
  return {sums, cell, kept, state, of_state, of_cell, of_sums, of_hidden_sums};
}

TEST_P(CellKernelsOf, HaveTheBitsOfTheBaseline) {
  for (const bool lstm : {true, false})
    for (const bool masked : {true, false})
      for (const auto& [rows, units] : {std::pair(1, 1), {3, 7}, {5, 16}, {2, 33}, {9, 128}}) {
        const auto got = pass_of(kernels(), lstm, rows, units, masked);
        const auto expected = pass_of(baseline(), lstm, rows, units, masked);
        for (size_t i = 0; i < got.size(); ++i)
          EXPECT_TRUE(torch::equal(got[i], expected[i])) << lstm << masked << units << " " << i;
      }
}

TEST_P(CellKernelsOf, ProductsWithPanelsAreTheSums) {
  for (const auto& [rows, inner, columns] :
       {std::tuple(1, 1, 1), {7, 5, 33}, {13, 64, 64}, {6, 100, 130}, {64, 128, 512}}) {
    torch::manual_seed(columns);
    const auto a = torch::randn({rows, inner}), b = torch::randn({columns, inner}).t();
    const auto start = torch::randn({columns});
    const Panels panels(b, nn::detail::panel_kernels(GetParam()));
    auto c = torch::full({rows, columns}, NAN), more = torch::randn({rows, columns});
    const auto before = more.clone();
    panels.product(a.const_data_ptr<float>(), rows, start.const_data_ptr<float>(), data(c));
    panels.add_product(a.const_data_ptr<float>(), rows, data(more));
    const auto exact = a.to(at::kDouble).mm(b.to(at::kDouble));
    const double bound = 1e-6 * std::sqrt(inner) * 4;
    EXPECT_LE((c.to(at::kDouble) - exact - start).abs().max().item<double>(), bound);
    EXPECT_LE((more.to(at::kDouble) - exact - before).abs().max().item<double>(), bound);
    // A row does not depend on how many there are.
    auto last = torch::empty({1, columns});
    panels.product(a[rows - 1].const_data_ptr<float>(), 1, start.const_data_ptr<float>(),
                   data(last));
    EXPECT_TRUE(torch::equal(last[0], c[rows - 1]));
  }
}

TEST(PanelProducts, OfBothVectorInstructionSetsAreTheSame) {
  const auto variants = runnable_variants();
  if (variants.size() < 3) GTEST_SKIP() << "this processor has one of AVX2 and AVX-512 at most";
  const auto a = torch::randn({17, 70}), b = torch::randn({70, 90}), start = torch::randn({90});
  std::vector<at::Tensor> of;
  for (const CpuVariant variant : {CpuVariant::avx2, CpuVariant::avx512}) {
    of.push_back(torch::empty({17, 90}));
    Panels(b, nn::detail::panel_kernels(variant))
        .product(a.const_data_ptr<float>(), 17, start.const_data_ptr<float>(), data(of.back()));
  }
  EXPECT_TRUE(torch::equal(of[0], of[1]));
}

INSTANTIATE_TEST_SUITE_P(Each, CellKernelsOf, ::testing::ValuesIn(runnable_variants()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace tutti::cell_kernels
