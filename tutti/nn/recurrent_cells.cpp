#include "tutti/nn/detail/recurrent_cells.h"

namespace tutti::nn::detail {
namespace {

bool takes_kernels(const CellRun& run) {
  return run.gates.is_cpu() && run.gates.scalar_type() == at::kFloat;
}

/// `dh` plus what comes from above at step i.
void add_from_above(at::Tensor& dh, const CellWalk& walk, const StateGradients& of, int64_t i) {
  if (of.all.defined())
    dh.add_(of.all[walk.place(i)]);
  else if (of.last.defined() && i == walk.length - 1)
    dh.add_(of.last);
}

at::Tensor part(const at::Tensor& gates, int64_t number) {
  const int64_t units = gates.size(1) / 4;
  return gates.narrow(1, number * units, units);
}
at::Tensor third(const at::Tensor& gates, int64_t number) {
  const int64_t units = gates.size(1) / 3;
  return gates.narrow(1, number * units, units);
}

/// `now` where the step is there, else `before`, which is undefined at the first step: zeros.
void keep_where_left_out(at::Tensor& now, const at::Tensor& before, const at::Tensor& there) {
  if (before.defined())
    at::where_out(now, there, now, before);
  else
    now.masked_fill_(there.logical_not(), 0);
}

/// Of a gradient of what comes after a step: the part that goes through it stays, the part that
/// goes past it is returned; undefined where there is no mask.
at::Tensor past(at::Tensor& gradient, const at::Tensor& left_out) {
  if (!left_out.defined()) return {};
  at::Tensor by = gradient.masked_fill(left_out.logical_not(), 0);
  gradient.masked_fill_(left_out, 0);
  return by;
}

at::Tensor left_out_at(const CellRun& run, int64_t t) {
  return run.steps.defined() ? run.steps[t].logical_not() : at::Tensor();
}

}  // namespace

// Gates: input, forget, cell, output.
void lstm_forward(CellRun& run, const at::Tensor& hidden) {
  if (takes_kernels(run)) return fused::lstm_forward(run, hidden);
  const CellWalk walk(run);
  const at::Tensor across = hidden.t();
  auto sizes = run.gates.sizes().vec();
  sizes[2] /= 4;
  run.states = at::empty(sizes, run.gates.options());
  run.kept = at::empty(sizes, run.gates.options());
  run.cells = at::empty(sizes, run.gates.options());
  at::Tensor h, c;
  for (int64_t i = 0; i < walk.length; ++i) {
    const int64_t t = walk.place(i);
    at::Tensor gates = run.gates[t], state = run.states[t], cell = run.cells[t], tanh = run.kept[t];
    if (h.defined()) gates.addmm_(h, across);
    gates.narrow(1, 0, gates.size(1) / 2).sigmoid_();
    part(gates, 2).tanh_();
    part(gates, 3).sigmoid_();
    at::mul_out(cell, part(gates, 0), part(gates, 2));
    if (c.defined()) cell.addcmul_(part(gates, 1), c);
    at::tanh_out(tanh, cell);
    at::mul_out(state, part(gates, 3), tanh);
    if (run.steps.defined()) {
      keep_where_left_out(cell, c, run.steps[t]);
      keep_where_left_out(state, h, run.steps[t]);
    }
    h = state;
    c = cell;
  }
}

CellGradients lstm_backward(const CellRun& run, const at::Tensor& hidden,
                            const StateGradients& of) {
  if (takes_kernels(run)) return fused::lstm_backward(run, hidden, of);
  const CellWalk walk(run);
  at::Tensor of_gates = at::empty_like(run.gates);
  at::Tensor dh = at::zeros_like(run.states[0]), dc = at::zeros_like(dh);
  at::Tensor product = at::empty_like(dh), more = at::empty_like(dh);
  for (int64_t i = walk.length; i-- > 0;) {
    const int64_t t = walk.place(i);
    const at::Tensor gates = run.gates[t], tanh = run.kept[t];
    at::Tensor di = part(of_gates[t], 0), df = part(of_gates[t], 1), dg = part(of_gates[t], 2),
               do_ = part(of_gates[t], 3);
    add_from_above(dh, walk, of, i);
    const at::Tensor left_out = left_out_at(run, t);
    const at::Tensor dh_past = past(dh, left_out), dc_past = past(dc, left_out);
    at::mul_out(product, dh, tanh);
    at::sigmoid_backward_out(do_, product, part(gates, 3));
    at::mul_out(product, dh, part(gates, 3));
    at::tanh_backward_out(more, product, tanh);
    dc.add_(more);
    at::mul_out(product, dc, part(gates, 2));
    at::sigmoid_backward_out(di, product, part(gates, 0));
    at::mul_out(product, dc, part(gates, 0));
    at::tanh_backward_out(dg, product, part(gates, 2));
    if (i == 0) {
      df.zero_();
      break;
    }
    at::mul_out(product, dc, run.cells[walk.place(i - 1)]);
    at::sigmoid_backward_out(df, product, part(gates, 1));
    dc.mul_(part(gates, 1));
    at::mm_out(dh, of_gates[t], hidden);
    if (run.steps.defined()) {
      dh.add_(dh_past);
      dc.add_(dc_past);
    }
  }
  return {of_gates, of_gates};
}

// Gates: reset, update, new.
void gru_forward(CellRun& run, const at::Tensor& hidden, const at::Tensor& hidden_bias) {
  if (takes_kernels(run)) return fused::gru_forward(run, hidden, hidden_bias);
  const CellWalk walk(run);
  const at::Tensor across = hidden.t();
  auto sizes = run.gates.sizes().vec();
  sizes[2] /= 3;
  run.states = at::empty(sizes, run.gates.options());
  run.kept = at::empty(sizes, run.gates.options());
  at::Tensor h = at::zeros({sizes[1], sizes[2]}, run.gates.options());
  at::Tensor of_state = at::empty_like(run.gates[0]);
  for (int64_t i = 0; i < walk.length; ++i) {
    const int64_t t = walk.place(i);
    at::Tensor gates = run.gates[t], state = run.states[t], kept = run.kept[t];
    at::addmm_out(of_state, hidden_bias, h, across);
    kept.copy_(third(of_state, 2));
    const int64_t two = gates.size(1) / 3 * 2;
    gates.narrow(1, 0, two).add_(of_state.narrow(1, 0, two)).sigmoid_();
    third(gates, 2).addcmul_(third(gates, 0), kept).tanh_();
    at::sub_out(state, h, third(gates, 2));
    state.mul_(third(gates, 1)).add_(third(gates, 2));
    if (run.steps.defined()) keep_where_left_out(state, h, run.steps[t]);
    h = state;
  }
}

CellGradients gru_backward(const CellRun& run, const at::Tensor& hidden, const StateGradients& of) {
  if (takes_kernels(run)) return fused::gru_backward(run, hidden, of);
  const CellWalk walk(run);
  at::Tensor of_input = at::empty_like(run.gates), of_hidden = at::empty_like(run.gates);
  const at::Tensor begin = at::zeros_like(run.states[0]);
  at::Tensor dh = at::zeros_like(begin), product = at::empty_like(begin);
  for (int64_t i = walk.length; i-- > 0;) {
    const int64_t t = walk.place(i);
    const at::Tensor gates = run.gates[t];
    const at::Tensor reset = third(gates, 0), update = third(gates, 1), fresh = third(gates, 2);
    at::Tensor dr = third(of_input[t], 0), dz = third(of_input[t], 1), dn = third(of_input[t], 2);
    add_from_above(dh, walk, of, i);
    const at::Tensor dh_past = past(dh, left_out_at(run, t));
    const at::Tensor before = i > 0 ? run.states[walk.place(i - 1)] : begin;
    at::mul_out(product, dh, before - fresh);
    at::sigmoid_backward_out(dz, product, update);
    at::mul_out(product, dh, 1 - update);
    at::tanh_backward_out(dn, product, fresh);
    at::mul_out(product, dn, run.kept[t]);
    at::sigmoid_backward_out(dr, product, reset);
    at::Tensor of_state = of_hidden[t];
    const int64_t two = gates.size(1) / 3 * 2;
    of_state.narrow(1, 0, two).copy_(of_input[t].narrow(1, 0, two));
    at::Tensor of_fresh = third(of_state, 2);
    at::mul_out(of_fresh, dn, reset);
    if (i == 0) break;
    dh.mul_(update).addmm_(of_state, hidden);
    if (run.steps.defined()) dh.add_(dh_past);
  }
  return {of_input, of_hidden};
}

}  // namespace tutti::nn::detail
