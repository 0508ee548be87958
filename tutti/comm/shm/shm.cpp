#include "tutti/comm/shm/shm.h"

#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "tutti/base/detail/check.h"
#include "tutti/base/host.h"
#include "tutti/comm/engine/detail/members.h"
#include "tutti/comm/shm/shm_engine.h"

namespace tutti {
namespace detail {

ShmEngine::ShmEngine(const ShmSegment& segment, int rank, bool all_threads)
    : segment_(segment),
      state_(*segment.state()),
      rank_(rank),
      size_(segment.size()),
      all_threads_(all_threads),
      shape_(ReductionShape::flat(size_)),
      policy_(choose_wait_policy(size_, state_.options.usable_cores, state_.options.pinned)),
      poison_(state_.header().poison),
      finished_(static_cast<size_t>(size_)),
      inputs_(static_cast<size_t>(size_)),
      outputs_(static_cast<size_t>(size_)) {
  for (int r = 0; r < size_; ++r) blocks_.push_back(&state_.block(r));
  root_ranks_.resize(static_cast<size_t>(size_));
  std::iota(root_ranks_.begin(), root_ranks_.end(), 0);
  messages_ = std::make_unique<ShmMessages>(*this);
  MemberLine& member = blocks_[rank_]->member;
  if (member.claimed.exchange(1) != 0)
    throw UsageError(
        fmt::format("make_shm: rank {} of {} was made before; each is made once", rank_, size_));
  // The lock comes before the word: whoever sees kJoined without a lock sees a dead member.
  if (!all_threads_) state_.locks().lock_byte(state_.lock_of(rank_));
  member.pid.store(getpid(), std::memory_order_relaxed);
  member.state.set(kJoined);
}

ShmEngine::~ShmEngine() {
  if (completed_ != submitted_ || messages_->sending()) {
    const std::string text =
        fmt::format("{} left the group in the middle of {}", rank_words(rank_),
                    completed_ != submitted_ ? operation_words(completed_) : std::string("a send"));
    state_.poison(FailureKind::peer_lost, rank_, text.c_str());
    wait_for_busy_peers();
  }
  blocks_[rank_]->member.state.set(kLeft);
  state_.wake_sleepers(rank_);
  if (!all_threads_) state_.locks().unlock_byte(state_.lock_of(rank_));
  state_.leave(ShmMessages::channel_bytes());
}

// What `loss` knows of, or a member that died after it came.
std::string ShmEngine::loss_while_joining(const std::function<std::string()>& loss) const {
  if (std::string words = loss ? loss() : ""; !words.empty()) return words;
  for (int r = 0; r < size_; ++r) {
    // Who gave up says so before it drops its lock; it has an error of its own.
    if (r != rank_ && is_dead(r) && !blocks_[r]->member.state.reached(kLeft))
      return rank_words(r) + " died";
  }
  return "";
}

void ShmEngine::wait_for_all(Millis limit, const std::function<std::string()>& loss) {
  const Deadline deadline(limit);
  for (int r = 0; r < size_; ++r) {
    Flag& state = blocks_[r]->member.state;
    while (!state.reached(kJoined)) {
      throw_if_poisoned(kJoining);
      const std::string lost = loss_while_joining(loss);
      if (state.reached(kJoined)) break;  // then all may have come, and have left in order since
      if (!lost.empty())
        throw PeerLost(
            fmt::format("joining, rank {} of {}: {} before all had come\n"
                        "  look first at its last lines",
                        rank_, size_, lost));
      if (deadline.passed()) {
        std::vector<int> missing;
        for (int m = 0; m < size_; ++m)
          if (!blocks_[m]->member.state.reached(kJoined)) missing.push_back(m);
        throw Timeout(fmt::format("joining, rank {} of {}: rank{} {} did not come within {} ms",
                                  rank_, size_, missing.size() > 1 ? "s" : "",
                                  fmt::join(missing, ", "), limit.count()));
      }
      state.sleep_until(kJoined, std::min(deadline.left(), Millis{100}));
    }
  }
  if (!all_threads_) return;
  for (int r = 0; r < size_; ++r)
    if (blocks_[r]->member.pid.load() != getpid())
      throw UsageError(
          fmt::format("make_shm: rank {} of {} is in another process (pid {}), and all_threads "
                      "says that none is",
                      r, size_, blocks_[r]->member.pid.load()));
}

namespace {

// One number from every rank.
std::vector<int64_t> gather_numbers(ShmEngine& engine, int64_t mine, Millis limit) {
  std::vector<int64_t> all(static_cast<size_t>(engine.size()));
  engine.run({.collective = Collective::all_gather,
              .input = span_of(std::span(&mine, 1)),
              .output = span_of(std::span(all)),
              .limit = limit});
  return all;
}

[[noreturn]] void fail_allocate(const ShmEngine& engine, int64_t total,
                                std::span<const int64_t> parts, std::span<const int64_t> left) {
  for (int r = 0; r < engine.size(); ++r)
    if (left[r] != 0)
      throw Error(fmt::format(
          "allocate, rank {} of {}: {} wanted for all ranks, rank {} could not get its {}: {} "
          "left\n"
          "  free memory, raise the cgroup limit, or use fewer ranks or a smaller model",
          engine.rank(), engine.size(), size_words(total), r, size_words(parts[r]),
          size_words(std::max<int64_t>(0, left[r] - 1))));
  check_failed(__FILE__, __LINE__, "a rank failed", "none did");
}

}  // namespace

std::shared_ptr<Engine> ShmEngine::split(int color, int key, Millis limit) {
  const Deadline deadline(limit);
  const auto left = [&] { return std::max(Millis{1}, deadline.left()); };
  const std::vector<int> members = members_of_color(*this, color, key, left());
  const auto size = static_cast<int>(members.size());

  // The first member of each group makes its segment; all learn where, and whether that failed.
  const auto root = state_.root == nullptr ? segment_.state() : state_.root;
  std::pair<int64_t, int64_t> made{0, 0};
  if (size > 0 && members[0] == rank_) made = ShmSegment::State::make_child(root, size);
  const std::vector<int64_t> offsets = gather_numbers(*this, made.first, left());
  const std::vector<int64_t> bytes = gather_numbers(*this, made.second, left());
  for (int r = 0; r < size_; ++r) {
    if (offsets[r] >= 0) continue;
    if (made.first > 0) state_.file().give_back(made.first, made.second);
    throw Error(fmt::format("split, rank {} of {}: no memory for the group of rank {}: {} wanted",
                            rank_, size_, r, size_words(bytes[r])));
  }
  if (size == 0) return nullptr;
  const ShmSegment child(
      ShmSegment::State::open_child(root, offsets[members[0]], bytes[members[0]]));
  const auto place = std::find(members.begin(), members.end(), rank_) - members.begin();
  auto engine = std::make_shared<ShmEngine>(child, static_cast<int>(place), all_threads_);
  engine->extents_ = extents_;
  std::ranges::transform(members, engine->root_ranks_.begin(),
                         [this](int member) { return root_ranks_[member]; });
  // Until all are in the new group, this one shows who is lost.
  engine->wait_for_all(left(), [&]() -> std::string {
    if (poison_.state.load(std::memory_order_acquire) == Poison::kSet) return poison_.text;
    for (int r : members)
      if (r != rank_)
        if (std::string words = loss_of(r); !words.empty()) return words;
    return "";
  });
  return engine;
}

SharedParts ShmEngine::allocate(int64_t bytes, Millis limit) {
  // Read before anybody reserves: what others have taken already would count twice.
  const int64_t left_bytes = read_host_facts().memory_left_bytes();
  const std::vector<int64_t> part_bytes = gather_numbers(*this, bytes, limit);
  int64_t total = 0;
  for (int64_t part : part_bytes) total += round_up(part, 64);
  int64_t begin = rank_ == 0 ? state_.take(total) : 0;
  run({.collective = Collective::broadcast,
       .output = span_of(std::span(&begin, 1)),
       .limit = limit});
  std::vector<int64_t> offsets;
  for (int64_t end = begin; int64_t part : part_bytes) {
    offsets.push_back(end);
    end += round_up(part, 64);
  }
  const int64_t end = begin + round_up(total, kPageBytes);

  // Each rank reserves its own part, so that pages come from its own memory node. The tail of the
  // last page belongs to the last rank.
  const int64_t mine = rank_ + 1 == size_ ? end - offsets[rank_] : round_up(bytes, 64);
  const bool reserved = total <= left_bytes && state_.file().reserve(offsets[rank_], mine);
  const auto short_of = gather_numbers(*this, reserved ? 0 : left_bytes + 1, limit);
  if (std::any_of(short_of.begin(), short_of.end(), [](int64_t left) { return left != 0; })) {
    if (reserved) state_.file().give_back(offsets[rank_], mine);
    fail_allocate(*this, total, part_bytes, short_of);
  }

  SharedParts shared;
  if (total > 0) extents_.push_back(state_.extent(begin, end - begin));
  for (int r = 0; r < size_; ++r) {
    void* const data = part_bytes[r] == 0 ? nullptr : extents_.back().at(offsets[r]);
    shared.parts.push_back({data, part_bytes[r], DType::uint8});
  }
  if (total > 0) shared.owner = extents_.back().owner();
  // Nobody uses the memory before all have mapped it.
  run({.collective = Collective::barrier, .limit = limit});
  return shared;
}

}  // namespace detail

std::shared_ptr<Engine> make_shm(const ShmSegment& segment, int rank, bool all_threads,
                                 Millis limit, const std::function<std::string()>& loss) {
  if (rank < 0 || rank >= segment.size())
    throw UsageError(fmt::format("make_shm: rank {}; expected 0 to {}", rank, segment.size() - 1));
  auto engine = std::make_shared<detail::ShmEngine>(segment, rank, all_threads);
  engine->wait_for_all(limit, loss);
  return engine;
}

std::vector<std::shared_ptr<Engine>> make_shm_threads(int size, const ShmOptions& options) {
  const ShmSegment segment = ShmSegment::create(size, options);
  std::vector<std::shared_ptr<Engine>> engines;
  for (int rank = 0; rank < size; ++rank)
    engines.push_back(std::make_shared<detail::ShmEngine>(segment, rank, true));
  return engines;
}

}  // namespace tutti
