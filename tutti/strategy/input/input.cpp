#include "tutti/strategy/input/detail/input.h"

#include <fmt/ranges.h>

#include "tutti/base/error.h"
#include "tutti/comm/engine/engine_meeting.h"
#include "tutti/data/detail/cache.h"
#include "tutti/net/host_meeting.h"

namespace tutti::detail {
namespace {

// One that follows another's would map memory that is not there.
void require_same_caches(const Membership& members,
                         const std::vector<data::detail::SharedCache*>& caches) {
  std::vector<int64_t> sizes;
  for (const data::detail::SharedCache* cache : caches) sizes.push_back(cache->num_samples());
  const auto words = members.words_of_all(fmt::format("{}", fmt::join(sizes, ", ")));
  for (const auto& [worker, other] : words)
    if (other != words.at(0))
      throw Mismatch(fmt::format(
          "cache(): worker 0 keeps [{}] samples, worker {} keeps [{}]; expected the same datasets "
          "on all workers",
          words.at(0), worker, other));
}

}  // namespace

data::Share share_of(int64_t global_size, const mesh::Topology& topology, int rank) {
  if (topology.microbatches == 1)
    return data::share(global_size, topology.num_replicas(), topology.replica_of(rank),
                       topology.shares);
  const int first = topology.replica_of(rank) * topology.microbatches;
  return {microbatch_of(global_size, topology, first).begin,
          microbatch_of(global_size, topology, first + topology.microbatches - 1).end};
}

data::Share microbatch_of(int64_t global_size, const mesh::Topology& topology, int number) {
  std::vector<double> weights;
  for (const double share : topology.shares)
    weights.insert(weights.end(), static_cast<size_t>(topology.microbatches), share);
  return data::share(global_size, topology.num_replicas() * topology.microbatches, number, weights);
}

data::BatchPart part_of(const data::Epoch& epoch, const mesh::Topology& topology,
                        const InputPipelines& pipelines, int64_t step, int local) {
  const int rank = topology.first_rank + local;
  if (rank >= topology.size) return {.batch = step};
  if (!pipelines) return {.batch = step, .share = share_of(epoch.batch_size(step), topology, rank)};
  const int64_t number = step * topology.local + local;
  if (number >= epoch.num_batches()) return {.batch = 0};
  return {.batch = number, .share = {0, epoch.batch_size(number)}};
}

std::shared_ptr<data::Loader> make_loader(const data::LoaderOptions& options, const World& world,
                                          int threads_per_replica) {
  const int busy_cores = world.threads_here() * (world.on_devices() ? 1 : threads_per_replica);
  return std::make_shared<data::Loader>(options, data::LoaderPlace{.busy_cores = busy_cores});
}

void share_caches(const Membership& members, const data::Dataset& dataset) {
  if (!members.in_step()) return;
  const auto caches = data::detail::caches_of(dataset);
  require_same_caches(members, caches);
  EngineMeeting meeting = members.meeting();
  int number = 0;
  for (data::detail::SharedCache* const cache : caches) {
    if (cache->is_shared()) continue;
    const Deadline deadline(members.time_limit());
    const std::string key = fmt::format("cache{}", number++);
    const bool first = meeting.rank() == 0;
    const auto tokens =
        meeting.exchange(key, first ? Token::random().secret_hex() : std::string(), deadline);
    HostMeeting here =
        meet_on_host(meeting, key + "/host", Token::parse(tokens.at(0), key), deadline);
    if (here.leads) cache->lead(std::move(here.shared));
    meeting.exchange(key + "/led", "", deadline);
    if (!here.leads) cache->follow(std::move(here.shared));
  }
}

void begin_epoch(data::Loader& loader, const data::Epoch& epoch,
                 std::shared_ptr<const mesh::Topology> topology, InputPipelines pipelines,
                 int64_t first, int64_t end) {
  const int replicas = topology->local;
  loader.begin(epoch, {.replicas = replicas,
                       .first_step = first,
                       .end_step = end,
                       .part = [epoch, topology = std::move(topology),
                                pipelines = std::move(pipelines)](int64_t step, int local) {
                         return part_of(epoch, *topology, pipelines, step, local);
                       }});
}

}  // namespace tutti::detail
