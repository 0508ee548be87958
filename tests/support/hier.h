/// Hosts of several ranks inside one process: shm groups stand for the hosts and for the rails
/// between them.
#pragma once

#include <numeric>
#include <span>
#include <vector>

#include "tests/support/comm.h"
#include "tutti/comm/hier/hier.h"

namespace tutti::test {

/// The members of one hier group over hosts of so many ranks, in rank order.
inline std::vector<std::shared_ptr<Engine>> make_hier_threads(const std::vector<int>& per_host,
                                                              int64_t chunk_bytes,
                                                              const ShmOptions& options = {}) {
  const int ranks = std::accumulate(per_host.begin(), per_host.end(), 0);
  const int slices = *std::max_element(per_host.begin(), per_host.end());
  const int hosts = static_cast<int>(per_host.size());
  const auto across = make_shm_threads(ranks, options);
  std::vector<std::vector<std::shared_ptr<Engine>>> rails;
  for (int s = 0; s < slices; ++s) rails.push_back(make_shm_threads(hosts, options));
  std::vector<std::shared_ptr<Engine>> engines;
  for (int h = 0; h < hosts; ++h) {
    const int here = per_host[static_cast<size_t>(h)];
    const auto inside =
        here == 1 ? std::vector{make_solo()} : make_shm_threads(here, options);
    for (int l = 0; l < here; ++l) {
      const int rank = static_cast<int>(engines.size());
      HierParts parts{.rank = rank,
                      .replicas_per_host = per_host,
                      .inside = inside[static_cast<size_t>(l)],
                      .across = across[static_cast<size_t>(rank)],
                      .chunk_bytes = chunk_bytes};
      parts.rails.resize(static_cast<size_t>(slices));
      const auto [first, end] = slices_of(l, here, slices);
      for (int s = first; s < end; ++s)
        parts.rails[static_cast<size_t>(s)] =
            rails[static_cast<size_t>(s)][static_cast<size_t>(h)];
      engines.push_back(make_hier(std::move(parts)));
    }
  }
  return engines;
}

}  // namespace tutti::test
