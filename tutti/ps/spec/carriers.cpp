#include "tutti/ps/spec/carriers.h"

#include <algorithm>

namespace tutti::ps {
namespace {

std::vector<HostWorkers> hosts_of(const Spec& spec) {
  const int local = spec.shape.replicas() / spec.num_workers;
  std::vector<HostWorkers> hosts;
  int first = 0;
  for (const int replicas : spec.shape.replicas_per_host()) {
    hosts.push_back({first, replicas / local});
    first += hosts.back().count;
  }
  return hosts;
}

// In the order of use each piece goes to who has fewest bytes.
std::vector<int> spread(const std::vector<Piece>& pieces, int workers) {
  std::vector<int64_t> bytes(workers);
  std::vector<int> numbers;
  for (const Piece& piece : pieces) {
    const auto least = std::ranges::min_element(bytes);
    *least += piece.num_bytes;
    numbers.push_back(static_cast<int>(least - bytes.begin()));
  }
  return numbers;
}

}  // namespace

Carriers::Carriers(const Spec& spec) {
  if (spec.host_sums)
    hosts_ = hosts_of(spec);
  else
    for (int worker = 0; worker < spec.num_workers; ++worker) hosts_.push_back({worker, 1});
  for (int host = 0; host < std::ssize(hosts_); ++host)
    host_of_.insert(host_of_.end(), hosts_[host].count, host);
  for (const HostWorkers& host : hosts_)
    numbers_.push_back(host.count == 1 ? std::vector<int>() : spread(spec.pieces, host.count));
}

int Carriers::carrier(int host, int piece) const {
  const std::vector<int>& numbers = numbers_.at(host);
  return hosts_[host].first + (numbers.empty() ? 0 : numbers.at(piece));
}

}  // namespace tutti::ps
