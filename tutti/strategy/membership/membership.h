/// Membership: who trains together now, and how workers tell each other things outside of steps.
///
/// Agreements between workers go by exchange(): each brings something, and has what all have
/// brought. Workers in step meet in their group, those that may be lost at the parameter servers;
/// who is alone has its own. So callers need not ask which of these they are.
///
/// Thread rule: that of Strategy; outside of run(). What is collective over workers is called by
/// all of them, in one order, and ends within the world's time limit.
#pragma once

#include <cstddef>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tutti/sync/world.h"

namespace tutti {

class EngineMeeting;

class Membership {
 public:
  using ByWorker = std::map<int, std::vector<std::byte>>;
  using AtServers = std::function<ByWorker(std::span<const std::byte> own)>;

  /// Of a world that lives as long, and may change between two calls.
  explicit Membership(const World& world) : world_(world) {}

  const mesh::Topology& topology() const noexcept { return world_; }
  int64_t generation() const noexcept { return world_.generation; }
  Millis time_limit() const noexcept { return world_.time_limit; }

  /// There is no other worker: exchange() waits for nobody.
  bool alone() const noexcept { return world_.processes() == 1; }
  /// None may be lost while the others go on, and come again later.
  bool all_stay() const noexcept { return !world_.apart; }
  /// There are others, and all make the same calls.
  bool in_step() const noexcept { return !alone() && all_stay(); }

  /// By worker, what all that are there have brought. Collective over workers. UsageError where
  /// they meet at servers (meet_at) that are not known yet.
  ByWorker exchange(std::span<const std::byte> own) const;
  /// The same of as many bytes each; else a Mismatch, which begins with `operation`, on each worker
  /// that has others than some other.
  ByWorker exchange_alike(std::string_view operation, std::span<const std::byte> own) const;
  /// The same of a text.
  std::map<int, std::string> words_of_all(std::string_view own) const;
  /// The same of one value: numbers, or a struct of them. In the order of workers.
  template <class T>
  std::vector<T> all_of(const T& own) const;
  /// Whether so on one worker at least. Collective over workers.
  bool anybody(bool here) const;

  /// A Mismatch on every worker when what one says, in lines, differs from the first one's; it has
  /// the first line that does, and begins with `operation`. Collective over workers.
  void require_same(std::string_view operation, std::string_view own) const;
  /// Rethrows the own error; FailedElsewhere naming `what` when another worker has one. Collective
  /// over workers; where they do not meet yet, of this one alone.
  void agree_on_failure(const std::exception_ptr& own, const std::string& what) const;

  /// Without workers that are lost: who is left has its replicas numbered anew, and the lowest of
  /// them is chief; a worker that came again too late for it has no part (first_rank is size).
  /// Where the loss of a worker ends the job: topology(). Collective over workers.
  mesh::Topology those_here() const;
  /// Calls `fn` for those that are there; where some may be lost, again for those that are left,
  /// until it says that no part of what they did together is missing. Collective over workers.
  void until_whole(const std::function<bool(std::shared_ptr<const mesh::Topology>)>& fn) const;
  /// Calls `fn` on the lowest worker that is there, and on the next when that one is lost before
  /// all others know that it has come through. Collective over workers.
  void by_chief(const std::function<void()>& fn) const;

  /// Of workers that may be lost: from now on they meet by `servers`, which the Optimizer `whose`
  /// is connected to; once that is gone, by those of the one before.
  void meet_at(AtServers servers, const void* whose) {
    at_servers_.emplace_back(whose, std::move(servers));
  }
  void meet_no_more(const void* whose) {
    std::erase_if(at_servers_, [&](const auto& each) { return each.first == whose; });
  }
  /// Of workers in step: a place for theirs alone, without the other replicas'.
  EngineMeeting meeting() const;

 private:
  bool can_meet() const noexcept { return all_stay() || !at_servers_.empty(); }
  ByWorker exchange_in_step(std::span<const std::byte> own) const;
  ByWorker exchange_at_servers(std::span<const std::byte> own) const;

  const World& world_;
  std::vector<std::pair<const void*, AtServers>> at_servers_;
};

namespace detail {

/// What each rank has brought, in their order. Collective over the group.
std::vector<std::vector<std::byte>> bytes_of_all(Group& group, std::span<const std::byte> own,
                                                 Millis limit);

}  // namespace detail

// ---- implementation of templates ----

template <class T>
std::vector<T> Membership::all_of(const T& own) const {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all;
  T one = own;
  for (const auto& [worker, bytes] : exchange_alike("workers", std::as_bytes(std::span(&own, 1)))) {
    std::memcpy(static_cast<void*>(&one), bytes.data(), sizeof(T));
    all.push_back(one);
  }
  return all;
}

}  // namespace tutti
