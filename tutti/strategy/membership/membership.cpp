#include "tutti/strategy/membership/membership.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "tutti/base/detail/failed_elsewhere.h"
#include "tutti/base/error.h"
#include "tutti/comm/engine/engine_meeting.h"
#include "tutti/strategy/membership/detail/agreement.h"

namespace tutti {

EngineMeeting Membership::meeting() const {
  const auto group = std::make_shared<Group>(world_.groups.at(0));
  std::vector<int> first_ranks;
  for (int rank = 0; rank < world_.size; rank += world_.local) first_ranks.push_back(rank);
  return {{group, &group->engine()}, first_ranks};
}

Membership::ByWorker Membership::exchange_at_servers(std::span<const std::byte> own) const {
  if (!can_meet())
    throw UsageError(
        "workers that may be lost meet at the servers, to which the optimizer connects: make it "
        "(or compile()) first");
  return at_servers_.back().second(own);
}

// By a collective of all replicas, of which the first of each worker has something to say: it names
// who is missing, and flight records have it.
Membership::ByWorker Membership::exchange_in_step(std::span<const std::byte> own) const {
  ByWorker all;
  detail::for_each_local(world_, [&](int local) {
    Group group = world_.groups.at(static_cast<size_t>(local));
    const auto said = local == 0 ? own : std::span<const std::byte>();
    auto each = detail::bytes_of_all(group, said, world_.time_limit);
    for (int worker = 0; local == 0 && worker < world_.processes(); ++worker)
      all.emplace(worker, std::move(each[static_cast<size_t>(worker * world_.local)]));
  });
  return all;
}

Membership::ByWorker Membership::exchange(std::span<const std::byte> own) const {
  if (alone()) return {{0, {own.begin(), own.end()}}};
  return all_stay() ? exchange_in_step(own) : exchange_at_servers(own);
}

std::vector<std::vector<std::byte>> detail::bytes_of_all(Group& group,
                                                         std::span<const std::byte> own,
                                                         Millis limit) {
  std::vector<int64_t> lengths(static_cast<size_t>(group.size()));
  auto length = static_cast<int64_t>(own.size());
  group.all_gather(span_of(std::span(&length, 1)), span_of(std::span(lengths)), limit).wait(limit);
  std::vector<std::byte> all(
      static_cast<size_t>(std::accumulate(lengths.begin(), lengths.end(), int64_t{0})));
  group
      .all_gather({const_cast<std::byte*>(own.data()), length, DType::uint8},
                  {all.data(), static_cast<int64_t>(all.size()), DType::uint8}, lengths, limit)
      .wait(limit);
  std::vector<std::vector<std::byte>> parts;
  auto begin = all.begin();
  for (const int64_t size : lengths) {
    parts.emplace_back(begin, begin + size);
    begin += size;
  }
  return parts;
}

Membership::ByWorker Membership::exchange_alike(std::string_view operation,
                                                std::span<const std::byte> own) const {
  ByWorker all = exchange(own);
  for (const auto& [worker, bytes] : all)
    if (bytes.size() != own.size())
      throw Mismatch(fmt::format("{}: worker {} has {} bytes, this worker {}", operation, worker,
                                 bytes.size(), own.size()));
  return all;
}

std::map<int, std::string> Membership::words_of_all(std::string_view own) const {
  std::map<int, std::string> all;
  for (const auto& [worker, bytes] : exchange(std::as_bytes(std::span(own))))
    all.emplace(worker, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  return all;
}

bool Membership::anybody(bool here) const { return std::ranges::max(all_of(here ? 1 : 0)) != 0; }

void Membership::require_same(std::string_view operation, std::string_view own) const {
  detail::require_same_lines(operation, words_of_all(own));
}

void Membership::agree_on_failure(const std::exception_ptr& own, const std::string& what) const {
  const bool failed = can_meet() && anybody(own != nullptr);
  if (own) std::rethrow_exception(own);
  if (failed)
    throw detail::FailedElsewhere(
        fmt::format("{}: failed on another worker; its own message says why", what));
}

mesh::Topology Membership::those_here() const {
  mesh::Topology here = topology();
  if (all_stay() || !can_meet()) return here;
  const ByWorker workers = exchange({});
  const auto own = workers.find(here.process());
  const auto before = static_cast<int>(std::distance(workers.begin(), own));
  here.size = static_cast<int>(workers.size()) * here.local;
  here.first_rank = before * here.local;
  here.chief = before == 0;
  if (here.size == world_.size) return here;
  here.shape = ReductionShape::flat(here.size);
  if (here.shares.empty()) return here;
  here.shares.clear();
  for (const auto& [number, value] : workers)
    for (int local = 0; local < here.local; ++local)
      here.shares.push_back(world_.shares[number * here.local + local]);
  return here;
}

void Membership::until_whole(
    const std::function<bool(std::shared_ptr<const mesh::Topology>)>& fn) const {
  while (!fn(std::make_shared<const mesh::Topology>(those_here())) && !all_stay()) continue;
}

void Membership::by_chief(const std::function<void()>& fn) const {
  if (all_stay() || !can_meet()) {
    if (world_.chief) fn();
    return;
  }
  for (bool done = false; !done;) {
    const int chief = exchange({}).begin()->first;
    if (chief == world_.process()) fn();
    done = exchange({}).contains(chief);
  }
}

}  // namespace tutti
