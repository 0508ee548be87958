#include "tutti/comm/group/cross_device.h"

#include <algorithm>

#include "tutti/base/array.h"
#include "tutti/base/error.h"
#include "tutti/base/suggest.h"
#include "tutti/comm/engine/reduce_kernels.h"

namespace tutti {
namespace {

class AllReduce final : public CrossDeviceReduction {
 public:
  std::string_view name() const noexcept override { return "all_reduce"; }
  Work reduce(Group& group, MemorySpan data, ReduceOp op, Millis limit) override {
    return group.all_reduce(data, op, limit);
  }
};

// The broadcast may not touch the data before the sum is there.
class ToOneDevice final : public CrossDeviceReduction {
 public:
  std::string_view name() const noexcept override { return "to_one_device"; }
  Work reduce(Group& group, MemorySpan data, ReduceOp op, Millis limit) override {
    group.reduce(data, op, 0, limit).wait(limit);
    return group.broadcast(data, 0, limit);
  }
};

// The steps of the reduction shape as messages: up, each replica adds what comes from a neighbour
// at distance 1, 2, 4, ... and hands the partial sum on; down, the result goes the same way back.
class HierarchicalCopy final : public CrossDeviceReduction {
 public:
  std::string_view name() const noexcept override { return "hierarchical_copy"; }

  Work reduce(Group& group, MemorySpan data, ReduceOp op, Millis limit) override {
    const Deadline deadline(limit);
    const MemorySpan partial = begin_partial(data, op);
    climb(group, partial, op, deadline);
    if (group.rank() == 0)
      finish_partial(data.dtype, op, partial.data, data.data, data.num_elements, group.size());
    descend(group, data, deadline);
    return {};
  }

 private:
  // Of the library alone: messages of a program's own do not meet those of a reduction.
  static constexpr int kTag = 0x70747574;

  static Millis left(const Deadline& deadline) { return std::max(Millis{1}, deadline.left()); }

  // 16-bit values climb as float32, so that they are rounded once.
  MemorySpan begin_partial(MemorySpan data, ReduceOp op) {
    const DType dtype = accumulator_of(data.dtype);
    const int64_t n = data.num_elements;
    if (received_.num_elements() < n || received_.dtype() != dtype)
      received_ = Array::zeros(dtype, {n});
    if (dtype == data.dtype) return data;
    if (widened_.num_elements() < n || widened_.dtype() != dtype)
      widened_ = Array::zeros(dtype, {n});
    const void* const input = data.data;
    reduce_partial(data.dtype, op, ReductionShape::flat(1), {&input, 1}, widened_.data(), n);
    return {widened_.data(), n, dtype};
  }

  void climb(Group& group, MemorySpan partial, ReduceOp op, const Deadline& deadline) {
    const MemorySpan other{received_.data(), partial.num_elements, partial.dtype};
    const void* const inputs[] = {partial.data, other.data};
    for (const auto& [into, from] : group.reduction_shape().steps()) {
      if (from == group.rank())
        group.send(partial, into, kTag, left(deadline)).wait(left(deadline));
      if (into != group.rank()) continue;
      group.recv(other, from, kTag, left(deadline)).wait(left(deadline));
      reduce_inputs(partial.dtype, partial_op(op), ReductionShape::flat(2), inputs, partial.data,
                    partial.num_elements);
    }
  }

  static void descend(Group& group, MemorySpan data, const Deadline& deadline) {
    const auto& steps = group.reduction_shape().steps();
    for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
      if (step->from == group.rank())
        group.recv(data, step->into, kTag, left(deadline)).wait(left(deadline));
      if (step->into == group.rank())
        group.send(data, step->from, kTag, left(deadline)).wait(left(deadline));
    }
  }

  Array received_, widened_;
};

template <class Kind>
std::unique_ptr<CrossDeviceReduction> make() {
  return std::make_unique<Kind>();
}

}  // namespace

void CrossDeviceReduction::reduce_in_turn(std::span<const MemorySpan> parts, ReduceOp op,
                                          const ReductionShape& shape) {
  std::vector<const void*> inputs;
  std::vector<void*> outs;
  for (const MemorySpan& part : parts) {
    inputs.push_back(part.data);
    outs.push_back(part.data);
  }
  reduce_inputs_to_all(parts[0].dtype, op, shape, inputs, outs, parts[0].num_elements);
}

const std::vector<std::string>& cross_device_names() {
  static const std::vector<std::string> names = {"all_reduce", "to_one_device",
                                                 "hierarchical_copy"};
  return names;
}

CrossDeviceFactory cross_device_by_name(std::string_view name) {
  if (name == "all_reduce") return make<AllReduce>;
  if (name == "to_one_device") return make<ToOneDevice>;
  if (name == "hierarchical_copy") return make<HierarchicalCopy>;
  throw UsageError(unknown_message("reduction", name, cross_device_names()));
}

}  // namespace tutti
