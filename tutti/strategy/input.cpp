#include <torch/types.h>

#include "tutti/strategy/detail/input.h"

namespace tutti::detail {
namespace {

// Copies out of it to a device need not wait for the host.
std::shared_ptr<std::byte> page_locked(int64_t bytes) {
  const auto memory = std::make_shared<at::Tensor>(
      at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true)));
  return {memory, static_cast<std::byte*>(memory->data_ptr())};
}

}  // namespace

data::BatchPart part_of(const data::Epoch& epoch, const World& world,
                        const InputPipelines& pipelines, int64_t step, int local) {
  const int rank = world.first_rank + local;
  if (rank >= world.size) return {.batch = step};
  if (!pipelines)
    return {.batch = step,
            .share = data::share(epoch.batch_size(step), world.size, rank, world.shares)};
  const int64_t number = step * world.local + local;
  if (number >= epoch.num_batches()) return {.batch = 0};
  return {.batch = number, .share = {0, epoch.batch_size(number)}};
}

std::shared_ptr<data::Loader> make_loader(const data::LoaderOptions& options, const World& world,
                                          int threads_per_replica) {
  data::LoaderPlace place{.busy_cores = world.here * (world.on_devices() ? 1 : threads_per_replica)};
  if (world.in_turn()) place.busy_cores = threads_per_replica;
  if (world.on_devices()) place.allocate = page_locked;
  return std::make_shared<data::Loader>(options, std::move(place));
}

void begin_epoch(data::Loader& loader, const data::Epoch& epoch,
                 std::shared_ptr<const World> world, InputPipelines pipelines, int64_t first,
                 int64_t end) {
  const int replicas = world->local;
  loader.begin(epoch, {.replicas = replicas,
                       .first_step = first,
                       .end_step = end,
                       .part = [epoch, world = std::move(world), pipelines = std::move(pipelines)](
                                   int64_t step, int local) {
                         return part_of(epoch, *world, pipelines, step, local);
                       }});
}

}  // namespace tutti::detail
