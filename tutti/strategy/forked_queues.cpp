#include "tutti/strategy/strategy_state.h"

namespace tutti::detail {

ForkedQueues::ForkedQueues(const World& world) : world_(&world), ended_(world.queues.size()) {
  for (const DeviceQueue& queue : world.queues) {
    if (!queue.on_device()) continue;
    const auto [caller, fresh] = callers_.try_emplace(queue.device().index());
    if (!fresh) continue;
    caller->second.queue = DeviceQueue::current(queue.device(), "the caller of run()");
    caller->second.queue.mark(caller->second.begun);
  }
}

void ForkedQueues::begin(int local) const {
  if (callers_.empty()) return;
  const DeviceQueue& queue = world_->queues[static_cast<size_t>(local)];
  if (queue.on_device())
    queue.after(callers_.at(queue.device().index()).begun, "what the caller of run() has queued");
}

void ForkedQueues::end(int local) {
  if (callers_.empty()) return;
  const auto number = static_cast<size_t>(local);
  world_->queues[number].mark(ended_[number]);
}

void ForkedQueues::join() const {
  if (callers_.empty()) return;
  for (size_t local = 0; local < ended_.size(); ++local)
    if (const DeviceQueue& queue = world_->queues[local]; queue.on_device())
      callers_.at(queue.device().index()).queue.after(ended_[local], "the end of run()");
}

}  // namespace tutti::detail
