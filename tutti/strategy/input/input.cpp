#include "tutti/strategy/input/detail/input.h"

#include <fmt/ranges.h>

#include "tutti/base/error.h"
#include "tutti/comm/engine/engine_meeting.h"
#include "tutti/data/detail/cache.h"
#include "tutti/net/host_meeting.h"
#include "tutti/strategy/membership/detail/worlds.h"

namespace tutti::detail {
namespace {

// One that follows another's would map memory that is not there.
void require_same_caches(EngineMeeting& meeting,
                         const std::vector<data::detail::SharedCache*>& caches,
                         const World& world) {
  std::vector<int64_t> sizes;
  for (const data::detail::SharedCache* cache : caches) sizes.push_back(cache->num_samples());
  const auto words = meeting.exchange("caches", fmt::format("{}", fmt::join(sizes, ", ")),
                                      Deadline(world.time_limit));
  for (size_t worker = 1; worker < words.size(); ++worker)
    if (words[worker] != words[0])
      throw Mismatch(fmt::format(
          "cache(): worker 0 keeps [{}] samples, worker {} keeps [{}]; expected the same datasets "
          "on all workers",
          words[0], worker, words[worker]));
}

}  // namespace

data::Share share_of(int64_t global_size, const World& world, int rank) {
  if (world.microbatches == 1)
    return data::share(global_size, world.num_replicas(), world.replica_of(rank), world.shares);
  const int first = world.replica_of(rank) * world.microbatches;
  return {microbatch_of(global_size, world, first).begin,
          microbatch_of(global_size, world, first + world.microbatches - 1).end};
}

data::Share microbatch_of(int64_t global_size, const World& world, int number) {
  std::vector<double> weights;
  for (const double share : world.shares)
    weights.insert(weights.end(), static_cast<size_t>(world.microbatches), share);
  return data::share(global_size, world.num_replicas() * world.microbatches, number, weights);
}

data::BatchPart part_of(const data::Epoch& epoch, const World& world,
                        const InputPipelines& pipelines, int64_t step, int local) {
  const int rank = world.first_rank + local;
  if (rank >= world.size) return {.batch = step};
  if (!pipelines) return {.batch = step, .share = share_of(epoch.batch_size(step), world, rank)};
  const int64_t number = step * world.local + local;
  if (number >= epoch.num_batches()) return {.batch = 0};
  return {.batch = number, .share = {0, epoch.batch_size(number)}};
}

std::shared_ptr<data::Loader> make_loader(const data::LoaderOptions& options, const World& world,
                                          int threads_per_replica) {
  int busy_cores = world.here * (world.on_devices() ? 1 : threads_per_replica);
  if (world.in_turn()) busy_cores = threads_per_replica;
  return std::make_shared<data::Loader>(options, data::LoaderPlace{.busy_cores = busy_cores});
}

void share_caches(const World& world, const data::Dataset& dataset) {
  const bool meets = !world.apart && !world.in_turn() && !world.one_process() &&
                     world.groups[0].size() == world.size;
  if (!meets) return;
  const auto engine = std::make_shared<Group>(world.groups[0]);
  EngineMeeting meeting({engine, &engine->engine()}, workers_of(world).ranks);
  const auto caches = data::detail::caches_of(dataset);
  require_same_caches(meeting, caches, world);
  int number = 0;
  for (data::detail::SharedCache* const cache : caches) {
    if (cache->is_shared()) continue;
    const Deadline deadline(world.time_limit);
    const std::string key = fmt::format("cache{}", number++);
    const bool first = world.process() == 0;
    const auto tokens =
        meeting.exchange(key, first ? Token::random().secret_hex() : std::string(), deadline);
    HostMeeting here =
        meet_on_host(meeting, key + "/host", Token::parse(tokens.at(0), key), deadline);
    if (here.leads) cache->lead(std::move(here.shared));
    meeting.exchange(key + "/led", "", deadline);
    if (!here.leads) cache->follow(std::move(here.shared));
  }
}

void begin_epoch(data::Loader& loader, const data::Epoch& epoch, std::shared_ptr<const World> world,
                 InputPipelines pipelines, int64_t first, int64_t end) {
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
