#include "tutti/strategy/replica_context.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include "tutti/base/error.h"
#include "tutti/strategy/on_group.h"
#include "tutti/strategy/strategy_state.h"

namespace tutti {
namespace {

thread_local ReplicaContext* replica_of_this_thread = nullptr;

}  // namespace

int ReplicaContext::rank() const noexcept { return state_->rank; }
int ReplicaContext::local_rank() const noexcept { return state_->local_rank; }
int ReplicaContext::num_replicas_in_sync() const noexcept {
  return state_->size / state_->mesh.model_ranks();
}
Millis ReplicaContext::time_limit() const noexcept { return state_->time_limit; }
ReplicaContext* ReplicaContext::current() noexcept { return replica_of_this_thread; }
at::Generator& ReplicaContext::generator() { return state_->generator; }

at::Generator& ReplicaContext::generator(at::Device device) {
  if (device.is_cpu()) return state_->generator;
  if (device != state_->queue.device())
    throw UsageError(fmt::format("generator: replica {} computes on {}, and has none for {}",
                                 state_->rank, state_->queue.device().str(), device.str()));
  at::Generator& own = state_->device_generator;
  if (!own.defined()) {
    own = at::globalContext()
              .getAcceleratorHooksInterface(device.type())
              .getNewGenerator(device.index());
    own.set_current_seed(state_->key);
  }
  return own;
}
at::Device ReplicaContext::device() const noexcept { return state_->queue.device(); }
bool ReplicaContext::shares_device() const noexcept { return state_->shares_device; }
const DeviceQueue& ReplicaContext::queue() const noexcept { return state_->queue; }
int ReplicaContext::replica() const noexcept { return state_->rank / state_->mesh.model_ranks(); }
const mesh::Mesh& ReplicaContext::mesh() const noexcept { return state_->mesh; }
mesh::Place ReplicaContext::place() const noexcept { return state_->mesh.place_of(state_->rank); }
int ReplicaContext::tensor_blocks() const noexcept { return state_->tensor_blocks; }

Group ReplicaContext::group_of(mesh::Axis axis) const {
  switch (axis) {
    case mesh::Axis::data:
    case mesh::Axis::shard: return state_->groups.data;
    case mesh::Axis::stage: return state_->groups.stage;
    case mesh::Axis::tensor: return state_->groups.tensor;
  }
  return {};
}

std::vector<at::Tensor> ReplicaContext::on_device(at::TensorList host) const {
  if (!state_->uploads) state_->uploads.emplace(state_->queue);
  return state_->uploads->copy(host, Deadline(patience_with_device(state_->time_limit)));
}

void ReplicaContext::meets_in_backward() noexcept { state_->meets_in_backward = true; }
bool ReplicaContext::has_met_in_backward() const noexcept { return state_->meets_in_backward; }

Group& ReplicaContext::group() {
  if (!state_->in_turn.empty())
    throw UsageError(fmt::format("replica {} of {} has no group: {}", state_->rank, state_->size,
                                 state_->in_turn));
  return state_->group;
}

Group& ReplicaContext::group_of_all(std::string_view operation) {
  if (!state_->alone.empty())
    throw UsageError(fmt::format("{} on replica {} of {}: {}", operation, state_->rank,
                                 state_->size, state_->alone));
  return state_->group;
}

namespace detail {

CurrentReplica::CurrentReplica(ReplicaContext* replica) noexcept : before_(replica_of_this_thread) {
  replica_of_this_thread = replica;
}

CurrentReplica::~CurrentReplica() { replica_of_this_thread = before_; }

}  // namespace detail
bool ReplicaContext::is_measured() const noexcept { return state_->watch.on(); }

void ReplicaContext::computes(int64_t rows, int64_t batch) const {
  state_->watch.begin(rows, batch);
}

void ReplicaContext::has_computed() const { state_->watch.end(); }

ReplicaContext StrategyState::replica_of(Group group) {
  auto state = std::make_shared<ReplicaContext::State>();
  state->rank = group.rank();
  state->size = group.size();
  state->time_limit = group.time_limit();
  state->group = std::move(group);
  state->generator = at::detail::getDefaultCPUGenerator();
  ReplicaContext replica;
  replica.state_ = std::move(state);
  return replica;
}

static Group own_group_of(Group group) {
  if (replica_of_this_thread != nullptr)
    throw UsageError(
        "OnGroup: this thread is a replica already, in Strategy::run or of another OnGroup; its "
        "collectives take that one");
  return *group.split(0, group.rank());
}

OnGroup::OnGroup(Group group)
    : replica_(StrategyState::replica_of(own_group_of(std::move(group)))),
      current_(std::make_unique<detail::CurrentReplica>(&replica_)) {}

OnGroup::~OnGroup() = default;

}  // namespace tutti
