#include "tutti/strategy/run/detail/replica_threads.h"

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <fmt/format.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <thread>

#include "tutti/base/host.h"
#include "tutti/base/log.h"
#include "tutti/base/threads.h"
#include "tutti/net/flag.h"

namespace tutti::detail {
namespace {

constexpr Millis kSlice{100};

void set_cores(const cpu_set_t& cores) {
  pthread_setaffinity_np(pthread_self(), sizeof cores, &cores);
}

cpu_set_t set_of(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int core : cores) CPU_SET(core, &set);
  return set;
}

}  // namespace

std::vector<ReplicaPlace> choose_places(int local, int first_rank, int threads, bool pinned,
                                        const std::vector<int>& cores) {
  std::vector<ReplicaPlace> places;
  for (int rank = first_rank; rank < first_rank + local; ++rank) {
    ReplicaPlace place{.rank = rank, .num_threads = threads, .cores = {}};
    if (pinned) {
      const auto first = cores.begin() + int64_t{rank} * threads;
      place.cores.assign(first, first + threads);
    }
    places.push_back(std::move(place));
  }
  return places;
}

// 32 MiB is the most that glibc takes as the size from which each block is mapped by itself.
void keep_freed_memory() {
  constexpr int kOwnMappingBytes = 32 << 20;
  constexpr int kKeptBytes = 1 << 30;
  const bool done = mallopt(M_MMAP_THRESHOLD, kOwnMappingBytes) == 1 &&
                    mallopt(M_TRIM_THRESHOLD, kKeptBytes) == 1;
  if (!done)
    log_once("mallopt", LogLevel::warning,
             "malloc does not keep freed memory: steps may be slower");
}

void end_stuck(int stuck, std::string_view where, Millis patience, int other) {
  fmt::print(stderr,
             "tutti: replica {} has not returned from {} {} ms after replica {}\n"
             "  it is stuck in the function that was given there; the process ends\n",
             stuck, where, patience.count(), other);
  std::fflush(stderr);
  std::_Exit(1);
}

struct PlaceGuard::Before {
  int num_threads = 0;
  std::optional<cpu_set_t> cores;
};

// at::set_num_threads is half global: a thread first takes over the global number, so it is asked
// for once before it is set.
PlaceGuard::PlaceGuard(const ReplicaPlace& place) : before_(std::make_unique<Before>()) {
  before_->num_threads = at::get_num_threads();
  if (!place.cores.empty()) {
    cpu_set_t cores;
    if (pthread_getaffinity_np(pthread_self(), sizeof cores, &cores) == 0) before_->cores = cores;
    set_cores(set_of(place.cores));
  }
  if (place.num_threads != before_->num_threads) at::set_num_threads(place.num_threads);
}

PlaceGuard::~PlaceGuard() {
  if (at::get_num_threads() != before_->num_threads) at::set_num_threads(before_->num_threads);
  if (before_->cores) set_cores(*before_->cores);
}

struct ReplicaThreads::State {
  std::vector<ReplicaPlace> places;
  Millis patience{0};  // what a replica computes alone, and then a wait of its own to the limit
  WaitPolicy policy;
  FlagLine start;              // counts runs; written by the caller
  std::vector<FlagLine> done;  // by local replica, counts runs
  const std::function<void(int)>* body = nullptr;
  const at::ThreadLocalState* caller = nullptr;
  bool ending = false;
  uint32_t runs = 0;
  std::vector<std::thread> threads;

  void serve(int local);
  void await(int local);
  void end();
  [[noreturn]] void give_up_on(int stuck, int other) const;
};

void ReplicaThreads::State::serve(int local) {
  set_log_rank(places[local].rank);
  const PlaceGuard place(places[local]);
  std::optional<Deadline> deadline;  // of replica 0, which nobody else watches
  for (uint32_t run = 1;; ++run) {
    Flag& flag = start.flag;
    while (!flag.spin_until(run, policy) && !flag.reached(run)) {
      if (deadline && deadline->passed() && !done[0].flag.reached(run - 1)) give_up_on(0, local);
      flag.sleep_until(run, kSlice);
    }
    if (ending) return;
    {
      const at::ThreadLocalStateGuard guard(*caller);
      (*body)(local);
    }
    deadline.emplace(patience);
    done[local].flag.set(run);
  }
}

void ReplicaThreads::State::await(int local) {
  Flag& flag = done[local].flag;
  if (flag.spin_until(runs, policy)) return;
  const Deadline deadline(patience);
  while (!flag.reached(runs)) {
    if (deadline.passed()) give_up_on(local, 0);
    flag.sleep_until(runs, std::min(kSlice, deadline.left()));
  }
}

void ReplicaThreads::State::give_up_on(int stuck, int other) const {
  end_stuck(places[stuck].rank, "run()", patience, places[other].rank);
}

void ReplicaThreads::State::end() {
  ending = true;
  start.flag.set(++runs);
  for (auto& thread : threads) thread.join();
}

ReplicaThreads::ReplicaThreads(std::vector<ReplicaPlace> places, Millis time_limit)
    : state_(std::make_unique<State>()) {
  State& state = *state_;
  state.places = std::move(places);
  state.patience = 2 * time_limit;
  const int local = static_cast<int>(state.places.size());
  state.policy =
      choose_wait_policy(local, host_facts().usable_cores, !state.places[0].cores.empty());
  state.done = std::vector<FlagLine>(local);
  // This thread takes over the global number now, before replicas change it.
  static_cast<void>(at::get_num_threads());
  state.threads.reserve(static_cast<size_t>(local));
  try {
    for (int replica = 1; replica < local; ++replica)
      state.threads.push_back(start_thread(fmt::format("replica {}", state.places[replica].rank),
                                           [&state, replica] { state.serve(replica); }));
  } catch (...) {
    state.end();
    throw;
  }
}

ReplicaThreads::~ReplicaThreads() { state_->end(); }

void ReplicaThreads::run(const std::function<void(int)>& body) {
  State& state = *state_;
  const PlaceGuard place(state.places[0]);
  if (state.threads.empty()) {
    body(0);
    return;
  }
  const at::ThreadLocalState caller;
  state.body = &body;
  state.caller = &caller;
  state.start.flag.set(++state.runs);
  body(0);
  state.done[0].flag.set(state.runs);
  for (int local = 1; local < static_cast<int>(state.places.size()); ++local) state.await(local);
}

const std::vector<ReplicaPlace>& ReplicaThreads::places() const noexcept { return state_->places; }

}  // namespace tutti::detail
