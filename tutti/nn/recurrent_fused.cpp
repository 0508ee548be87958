// Recurrent cells by kernels: no operator is called between the first step and the last.
#include "tutti/nn/detail/panels.h"
#include "tutti/nn/detail/recurrent_cells.h"
#include "tutti/sync/before_use.h"

namespace tutti::nn::detail {

const CellKernels& cell_kernels([[maybe_unused]] CpuVariant variant) noexcept {
  if constexpr (kHasX86Variants) {
    if (variant == CpuVariant::avx512) return avx512::cell_kernels;
    if (variant == CpuVariant::avx2) return avx2::cell_kernels;
  }
  return baseline::cell_kernels;
}

const CellKernels& cell_kernels() {
  static const CellKernels& best = cell_kernels(best_variant());
  return best;
}

namespace fused {
namespace {

/// Memory of [T, B, ...], a step of it at a time; null where there is none.
template <class T>
struct Steps {
  T* first = nullptr;
  int64_t stride = 0;

  T* operator[](int64_t t) const { return first == nullptr ? nullptr : first + t * stride; }
};
template <class T>
Steps<T> written(at::Tensor& x) {
  return {x.mutable_data_ptr<T>(), x.numel() / x.size(0)};
}
template <class T>
Steps<const T> read(const at::Tensor& x) {
  if (!x.defined()) return {};
  return {x.const_data_ptr<T>(), x.numel() / x.size(0)};
}

at::Tensor states_of(const CellRun& run, int64_t gates) {
  return at::empty({run.gates.size(0), run.gates.size(1), run.gates.size(2) / gates},
                   run.gates.options());
}

/// What comes from above at step i of a walk.
struct FromAbove {
  explicit FromAbove(const CellRun& run, const StateGradients& of)
      : walk(run),
        all(read<float>(of.all)),
        last(of.last.defined() ? of.last.const_data_ptr<float>() : nullptr) {}
  const float* at(int64_t i) const {
    return all.first == nullptr && i == walk.length - 1 ? last : all[walk.place(i)];
  }
  CellWalk walk;
  Steps<const float> all;
  const float* last;
};

}  // namespace

void lstm_forward(CellRun& run, const at::Tensor& hidden) {
  const CellWalk walk(run);
  const CellKernels& kernels = cell_kernels();
  const Panels across(hidden.t());
  run.states = states_of(run, 4);
  run.kept = states_of(run, 4);
  run.cells = states_of(run, 4);
  const int64_t rows = run.gates.size(1);
  const auto gates = written<float>(run.gates), states = written<float>(run.states),
             kept = written<float>(run.kept), cells = written<float>(run.cells);
  const auto there = read<bool>(run.steps);
  for (int64_t i = 0; i < walk.length; ++i) {
    const int64_t t = walk.place(i), before = walk.place(i - 1);
    if (i > 0) across.add_product(states[before], rows, gates[t]);
    kernels.lstm({.rows = rows,
                  .units = hidden.size(1),
                  .there = there[t],
                  .gates = gates[t],
                  .cell_before = i > 0 ? cells[before] : nullptr,
                  .state_before = i > 0 ? states[before] : nullptr,
                  .cell = cells[t],
                  .tanh = kept[t],
                  .state = states[t]});
  }
}

CellGradients lstm_backward(const CellRun& run, const at::Tensor& hidden,
                            const StateGradients& of) {
  const FromAbove above(run, of);
  const CellWalk& walk = above.walk;
  const CellKernels& kernels = cell_kernels();
  const Panels back(hidden);
  at::Tensor of_gates = at::empty_like(run.gates);
  at::Tensor of_state = at::zeros_like(run.states[0]), of_cell = at::zeros_like(of_state);
  const int64_t rows = run.gates.size(1);
  const auto gates = read<float>(run.gates), kept = read<float>(run.kept),
             cells = read<float>(run.cells);
  const auto there = read<bool>(run.steps);
  const auto gradients = written<float>(of_gates);
  for (int64_t i = walk.length; i-- > 0;) {
    const int64_t t = walk.place(i);
    kernels.lstm_gradient({.rows = rows,
                           .units = hidden.size(1),
                           .there = there[t],
                           .gates = gates[t],
                           .cell_before = i > 0 ? cells[walk.place(i - 1)] : nullptr,
                           .tanh = kept[t],
                           .of_output = above.at(i),
                           .of_state = of_state.mutable_data_ptr<float>(),
                           .of_cell = of_cell.mutable_data_ptr<float>(),
                           .of_gates = gradients[t]});
    if (i > 0) back.add_product(gradients[t], rows, of_state.mutable_data_ptr<float>());
  }
  return {of_gates, of_gates};
}

void gru_forward(CellRun& run, const at::Tensor& hidden, const at::Tensor& hidden_bias) {
  const CellWalk walk(run);
  const CellKernels& kernels = cell_kernels();
  const Panels across(hidden.t());
  run.states = states_of(run, 3);
  run.kept = states_of(run, 3);
  at::Tensor of_state = at::empty_like(run.gates[0]);
  require_ready(hidden_bias);
  const at::Tensor bias = hidden_bias.contiguous();
  const int64_t rows = run.gates.size(1);
  const auto gates = written<float>(run.gates), states = written<float>(run.states),
             kept = written<float>(run.kept);
  const auto there = read<bool>(run.steps);
  for (int64_t i = 0; i < walk.length; ++i) {
    const int64_t t = walk.place(i);
    const float* const before = i > 0 ? states[walk.place(i - 1)] : nullptr;
    // The state before the first step is zeros: of the product the bias remains.
    if (i > 0)
      across.product(before, rows, bias.const_data_ptr<float>(),
                     of_state.mutable_data_ptr<float>());
    else
      of_state.copy_(bias.expand_as(of_state));
    kernels.gru({.rows = rows,
                 .units = hidden.size(1),
                 .there = there[t],
                 .gates = gates[t],
                 .of_state = of_state.const_data_ptr<float>(),
                 .before = before,
                 .kept = kept[t],
                 .state = states[t]});
  }
}

CellGradients gru_backward(const CellRun& run, const at::Tensor& hidden, const StateGradients& of) {
  const FromAbove above(run, of);
  const CellWalk& walk = above.walk;
  const CellKernels& kernels = cell_kernels();
  const Panels back(hidden);
  at::Tensor of_input = at::empty_like(run.gates), of_hidden = at::empty_like(run.gates);
  at::Tensor of_state = at::zeros_like(run.states[0]);
  const int64_t rows = run.gates.size(1);
  const auto gates = read<float>(run.gates), kept = read<float>(run.kept),
             states = read<float>(run.states);
  const auto there = read<bool>(run.steps);
  const auto inputs = written<float>(of_input), hiddens = written<float>(of_hidden);
  for (int64_t i = walk.length; i-- > 0;) {
    const int64_t t = walk.place(i);
    kernels.gru_gradient({.rows = rows,
                          .units = hidden.size(1),
                          .there = there[t],
                          .gates = gates[t],
                          .before = i > 0 ? states[walk.place(i - 1)] : nullptr,
                          .kept = kept[t],
                          .of_output = above.at(i),
                          .of_state = of_state.mutable_data_ptr<float>(),
                          .of_input = inputs[t],
                          .of_hidden = hiddens[t]});
    if (i > 0) back.add_product(hiddens[t], rows, of_state.mutable_data_ptr<float>());
  }
  return {of_input, of_hidden};
}

}  // namespace fused
}  // namespace tutti::nn::detail
