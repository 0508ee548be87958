// Values of the replicas become one, outside of run().
#include "tutti/base/error.h"
#include "tutti/comm/reduce_kernels.h"
#include "tutti/strategy/strategy_state.h"
#include "tutti/sync/tensors.h"

namespace tutti {

// Values of all replicas from those of the local ones, without a collective: each worker adds what
// all have brought, in the one order, unless somebody is lost.
void StrategyState::add(DType dtype, ReduceOp op, std::span<const void* const> own, void* out,
                        int64_t count) {
  if (world.one_process()) return reduce_inputs(dtype, op, world.shape, own, out, count);
  const int64_t bytes = count * size_of(dtype);
  std::vector<std::byte> mine;
  for (const void* const values : own) {
    const auto* const begin = static_cast<const std::byte*>(values);
    mine.insert(mine.end(), begin, begin + bytes);
  }
  const auto all = meet_others(mine);
  std::vector<const void*> inputs;
  for (const auto& [worker, values] : all) {
    if (values.size() != mine.size())
      throw Mismatch(fmt::format("reduce: worker {} has {} bytes, this worker {}", worker,
                                 values.size(), mine.size()));
    for (int local = 0; local < world.local; ++local)
      inputs.push_back(values.data() + local * bytes);
  }
  const auto there = static_cast<int>(inputs.size());
  const auto shape = there == world.size ? world.shape : ReductionShape::flat(there);
  reduce_inputs(dtype, op, shape, inputs, out, count);
}

// Values of all replicas of the world in the one order. One process adds them itself; several let
// each local member take part in the collective.
void Strategy::reduce_doubles(ReduceOp op, std::span<double> values) {
  const World& now = world();
  const int64_t count = static_cast<int64_t>(values.size()) / now.local;
  const auto part = [&](int local) { return values.subspan(local * count, count); };
  if (now.one_process() || now.apart) {
    std::vector<const void*> inputs;
    for (int local = 0; local < now.local; ++local) inputs.push_back(part(local).data());
    return state_->add(DType::float64, op, inputs, values.data(), count);
  }
  run_all([&](ReplicaContext& replica, int local) {
    replica.group().all_reduce_now(span_of(part(local)), op, now.time_limit);
  });
}

double Strategy::reduce(ReduceOp op, const PerReplica<double>& values) {
  std::vector<double> flat = values.values();
  reduce_doubles(op, flat);
  return flat[0];
}

at::Tensor Strategy::reduce(ReduceOp op, const PerReplica<at::Tensor>& values) {
  const World& now = world();
  std::vector<at::Tensor> copies;
  for (const at::Tensor& value : values.values()) {
    if (!value.defined() || value.sizes() != values.local(0).sizes())
      throw UsageError("reduce: all replicas must return tensors of one shape");
    copies.push_back(value.detach().contiguous().clone());
  }
  if (now.one_process() || now.apart) {
    std::vector<const void*> inputs;
    for (const auto& copy : copies) inputs.push_back(copy.data_ptr());
    state_->add(dtype_of(copies[0].scalar_type()), op, inputs, copies[0].data_ptr(),
                copies[0].numel());
    return copies[0];
  }
  run_all([&](ReplicaContext& replica, int local) {
    replica.group().all_reduce(span_of(copies[local]), op, now.time_limit).wait(now.time_limit);
  });
  return copies[0];
}

at::Tensor Strategy::reduce(ReduceOp op, const PerReplica<at::Tensor>& values, int64_t axis) {
  std::vector<at::Tensor> sums;
  std::vector<double> counts;
  for (const at::Tensor& value : values.values()) {
    sums.push_back(value.detach().sum(axis));
    counts.push_back(static_cast<double>(value.size(axis)));
  }
  at::Tensor sum = reduce(ReduceOp::sum, PerReplica<at::Tensor>(sums, values.first_rank()));
  if (op == ReduceOp::sum) return sum;
  if (op != ReduceOp::mean) throw UsageError("reduce over an axis: expected sum or mean");
  reduce_doubles(ReduceOp::sum, counts);
  return counts[0] == 0 ? at::zeros_like(sum) : sum / counts[0];
}

}  // namespace tutti
