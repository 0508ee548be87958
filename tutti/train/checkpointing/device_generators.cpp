#include "tutti/train/checkpointing/detail/device_generators.h"

#include <ATen/Context.h>

#include <mutex>

namespace tutti::detail {
namespace {

// One replica alone draws from the device's default generator, which torch::manual_seed sets.
at::Generator generator_of(ReplicaContext& replica) {
  return replica.num_replicas_in_sync() > 1
             ? replica.generator(replica.device())
             : at::globalContext().defaultGenerator(replica.device());
}

}  // namespace

at::Tensor device_generator_state(ReplicaContext& replica) {
  if (replica.device().is_cpu()) return {};
  at::Generator generator = generator_of(replica);
  at::Generator fresh = at::globalContext()
                            .getAcceleratorHooksInterface(replica.device().type())
                            .getNewGenerator(replica.device().index());
  const std::scoped_lock lock(generator.mutex());
  fresh.set_current_seed(generator.current_seed());
  at::Tensor state = generator.get_state();
  return at::equal(state, fresh.get_state()) ? at::Tensor() : state;
}

void restore_device_generator(ReplicaContext& replica, const at::Tensor& state) {
  if (replica.device().is_cpu()) return;
  at::Generator generator = generator_of(replica);
  const std::scoped_lock lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace tutti::detail
