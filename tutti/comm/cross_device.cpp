#include "tutti/comm/cross_device.h"

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"
#include "tutti/comm/reduce_kernels.h"

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
  static const std::vector<std::string> names = {"all_reduce", "to_one_device"};
  return names;
}

CrossDeviceFactory cross_device_by_name(std::string_view name) {
  if (name == "all_reduce") return make<AllReduce>;
  if (name == "to_one_device") return make<ToOneDevice>;
  throw UsageError(unknown_message("reduction", name, cross_device_names()));
}

}  // namespace tutti
