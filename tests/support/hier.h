/// Hosts of several ranks inside one process: shm groups stand for the hosts and for the rails
/// between them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <vector>

#include "tutti/comm/hier/hier.h"

#include "tests/support/comm.h"

namespace tutti::test {

/// Groups that are split off: whoever of the members comes first makes all of it.
class Regroups {
 public:
  std::shared_ptr<Engine> take(const std::string& key, const std::vector<int>& members, int rank) {
    const std::scoped_lock lock(mutex_);
    auto& engines = made_[key];
    if (engines.empty())
      engines = members.size() == 1 ? std::vector{make_solo()}
                                    : make_shm_threads(static_cast<int>(members.size()));
    const auto place = std::find(members.begin(), members.end(), rank) - members.begin();
    return std::move(engines[static_cast<size_t>(place)]);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<std::shared_ptr<Engine>>> made_;
};

/// Makes the members of a group of so many ranks.
using MakeMembers = std::function<std::vector<std::shared_ptr<Engine>>(int ranks)>;

/// The members of one hier group over hosts of so many ranks, in rank order, with groups between
/// the hosts that `between` makes.
inline std::vector<std::shared_ptr<Engine>> make_hier_threads(const std::vector<int>& per_host,
                                                              int64_t chunk_bytes,
                                                              const MakeMembers& between,
                                                              const ShmOptions& options = {}) {
  const int ranks = std::accumulate(per_host.begin(), per_host.end(), 0);
  const int slices = *std::max_element(per_host.begin(), per_host.end());
  const int hosts = static_cast<int>(per_host.size());
  const auto across = between(ranks);
  const auto regroups = std::make_shared<Regroups>();
  std::vector<std::vector<std::shared_ptr<Engine>>> rails;
  for (int s = 0; s < slices; ++s) rails.push_back(between(hosts));
  std::vector<std::shared_ptr<Engine>> engines;
  for (int h = 0; h < hosts; ++h) {
    const int here = per_host[static_cast<size_t>(h)];
    const auto inside = here == 1 ? std::vector{make_solo()} : make_shm_threads(here, options);
    for (int l = 0; l < here; ++l) {
      const int rank = static_cast<int>(engines.size());
      HierParts parts{.rank = rank,
                      .replicas_per_host = per_host,
                      .inside = inside[static_cast<size_t>(l)],
                      .across = across[static_cast<size_t>(rank)],
                      .chunk_bytes = chunk_bytes};
      parts.regroup = [regroups, rank](const std::string& key, std::span<const int> members,
                                       Millis) {
        return regroups->take(key, {members.begin(), members.end()}, rank);
      };
      parts.rails.resize(static_cast<size_t>(slices));
      const auto [first, end] = slices_of(l, here, slices);
      for (int s = first; s < end; ++s)
        parts.rails[static_cast<size_t>(s)] = rails[static_cast<size_t>(s)][static_cast<size_t>(h)];
      engines.push_back(make_hier(std::move(parts)));
    }
  }
  return engines;
}

inline std::vector<std::shared_ptr<Engine>> make_hier_threads(const std::vector<int>& per_host,
                                                              int64_t chunk_bytes,
                                                              const ShmOptions& options = {}) {
  return make_hier_threads(
      per_host, chunk_bytes, [&](int ranks) { return make_shm_threads(ranks, options); }, options);
}

}  // namespace tutti::test
