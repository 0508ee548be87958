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
  static const std::vector<std::string> names = {"all_reduce"};
  return names;
}

CrossDeviceFactory cross_device_by_name(std::string_view name) {
  if (name == "all_reduce") return [] { return std::make_unique<AllReduce>(); };
  throw UsageError(unknown_message("reduction", name, cross_device_names()));
}

}  // namespace tutti
