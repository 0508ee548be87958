// Waiting, and what ends a wait: lost ranks, passed limits, disagreement, abort. The first failure
// is stored in the segment; every pending and future operation of every member ends with its text.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string_view>
#include <thread>

#include "tutti/base/file_descriptor.h"
#include "tutti/comm/engine/detail/failures.h"
#include "tutti/comm/shm/shm_engine.h"

namespace tutti::detail {
namespace {

// Sleepers look around between slices, so an abort or a death is noticed within one, without a
// wake.
constexpr Millis kSlice{100};
// Most waits end in the first one: asking the kernel about n members is not paid for before.
constexpr Millis kFirstSlice{20};
// Copying takes no longer, most times: asking the kernel is not paid for before.
constexpr Millis kBusySlice{10};
// Where collectives and messages are in flight together.
constexpr Millis kMixedSlice{1};

bool ring_reached(const CallLine& line, uint64_t number) {
  return line.ticket.reached(static_cast<uint32_t>(number + 1));
}

// 'T' when a process is stopped, 0 when its state cannot be read here.
char process_state(int pid) noexcept {
  char path[32], text[512];
  std::snprintf(path, sizeof path, "/proc/%d/stat", pid);
  const FileDescriptor file(open(path, O_RDONLY | O_CLOEXEC));
  const ssize_t got = file ? read(file.get(), text, sizeof text) : 0;
  const std::string_view line(text, got > 0 ? static_cast<size_t>(got) : 0);
  const size_t end = line.rfind(") ");
  return end == line.npos || end + 2 >= line.size() ? '\0' : line[end + 2];
}

}  // namespace

void ShmEngine::wait(const Need& need, const Deadline* outer) {
  if (need.flag->spin_until(need.target, policy_)) return;
  Millis slice = kFirstSlice;
  say_waiting_for(need.rank);
  while (!need.flag->reached(need.target)) {
    look_for_failure(need, outer);
    // What else there is to move rings other flags than the one slept on.
    if (messages_->in_use()) messages_->advance();
    if (idle()) idle()();
    if (messages_->in_use() || idle()) slice = kMixedSlice;
    if (slice == kSlice || (slice == kMixedSlice && Clock::now() >= next_look_)) {
      look_for_lost(need);
      next_look_ = Clock::now() + kSlice;
    }
    const TimePoint own = *entry_of(need.number).deadline;
    const Millis left = std::chrono::ceil<Millis>(own - Clock::now());
    const Millis outer_left = outer == nullptr ? left : outer->left();
    need.flag->sleep_until(need.target, std::max(Millis{1}, std::min({slice, left, outer_left})));
    slice = kSlice;
  }
  say_waiting_for(kAnyRank);
}

void ShmEngine::wait_for_message(Ticket ticket, const Deadline& outer) {
  Millis slice = kFirstSlice;
  message_ticket_ = ticket;
  say_waiting_for(messages_->awaited(ticket));
  while (true) {
    throw_if_poisoned(kMessage);
    const bool moved = messages_->advance();
    advance(submitted_);
    if (messages_->done(ticket)) return say_waiting_for(kAnyRank);
    if (moved || messages_->spin(policy_)) continue;
    const Millis left = messages_->look_at_limits(ticket, &outer);
    // What collectives wait for are other flags than the one slept on.
    const bool mixed = completed_ != submitted_;
    if (slice == kSlice && Clock::now() >= next_look_) {
      messages_->look_for_lost(ticket);
      next_look_ = Clock::now() + kSlice;
    }
    messages_->sleep(std::clamp(left, Millis{1}, mixed ? kMixedSlice : slice));
    slice = kSlice;
  }
}

// What can be seen without asking the kernel: the group's failure, a passed limit.
void ShmEngine::look_for_failure(const Need& need, const Deadline* outer) {
  throw_if_poisoned(need.number);
  Entry& entry = entry_of(need.number);
  const TimePoint now = Clock::now();
  if (!entry.deadline) entry.deadline = time_after(entry.operation->limit);
  const bool own = now >= *entry.deadline;
  if (!own && (outer == nullptr || !outer->passed())) return;
  if (need.flag->reached(need.target)) return;
  const Millis limit = own ? entry.operation->limit : outer->limit();
  fail(FailureKind::timeout,
       fmt::format("not done within its limit of {} ms; silent: {}\n"
                   "  look at what the silent ranks are doing, or give a longer limit",
                   limit.count(), silent_words(need)),
       need.number);
}

// A rank that left or died matters when the operation still needs something of it.
void ShmEngine::look_for_lost(const Need& need) {
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    const std::string loss = loss_of(r);
    if (loss.empty()) continue;
    // Read after the loss was seen: it may have finished its part just before.
    if (blocks_[r]->finished.flag.reached(static_cast<uint32_t>(need.number + 1))) continue;
    fail(FailureKind::peer_lost, loss, need.number);
  }
}

std::string ShmEngine::lost_member() const {
  for (int r = 0; r < size_; ++r)
    if (std::string loss = r == rank_ ? "" : loss_of(r); !loss.empty()) return loss;
  return {};
}

// In words, when `rank` left or died.
std::string ShmEngine::loss_of(int rank) const {
  if (has_left(rank))
    return fmt::format("{} left the group; {}", rank_words(rank), last_call_words(rank));
  if (!is_dead(rank)) return "";
  return fmt::format("{} died; {}\n  look first at the last lines of rank {}'s log",
                     rank_words(rank), last_call_words(rank), named(rank));
}

bool ShmEngine::is_dead(int rank) const {
  // Threads of this process cannot die alone. A member's lock is taken before it says kJoined.
  if (all_threads_ || !blocks_[rank]->member.state.reached(kJoined)) return false;
  return !state_.file().byte_is_locked(state_.lock_of(rank));
}

bool ShmEngine::is_stopped(const MemberLine& member) const noexcept {
  return !all_threads_ && process_state(member.pid.load(std::memory_order_relaxed)) == 'T';
}

void ShmEngine::throw_if_poisoned(uint64_t number) {
  if (poison_.state.load(std::memory_order_acquire) != Poison::kNone) [[unlikely]]
    throw_poison(number);
}

void ShmEngine::throw_poison(uint64_t number) {
  // The writer needs microseconds from kWriting to kSet, unless it died between.
  const Deadline deadline(kSlice);
  while (poison_.state.load(std::memory_order_acquire) != Poison::kSet && !deadline.passed())
    std::this_thread::yield();
  wait_for_busy_peers();
  const bool set = poison_.state.load(std::memory_order_acquire) == Poison::kSet;
  const std::string text =
      fmt::format("{}, rank {} of {}: {}", operation_words(number), named(rank_), named_size(),
                  set ? poison_.text : "a rank failed and died");
  if (!set) throw PeerLost(text);
  throw_as(poison_.by == rank_ ? poison_.kind : kind_of_another(poison_.kind), text);
}

void ShmEngine::fail(FailureKind kind, const std::string& text, uint64_t number) {
  state_.poison(kind, rank_, text.c_str());
  throw_poison(number);
}

void ShmEngine::fail_mismatch(int other, uint64_t number) {
  const auto words = [&](int r) {
    const CallLine& line = line_of(r, number);
    return call_words(line.call.load(std::memory_order_relaxed),
                      line.num_elements.load(std::memory_order_relaxed));
  };
  // Ranks are looked at in order, rank 0 first: when `other` is not rank 0, this rank agrees with
  // it.
  const int odd = other == 0 ? rank_ : other;
  if (words(0) == words(odd))
    fail(
        FailureKind::mismatch,
        fmt::format("ranks disagree on operation #{}: rank {} and rank {} gave different counts to "
                    "{}\n  the list of counts must be the same on every rank",
                    number + 1, named(0), named(odd), words(0)),
        number);
  fail(FailureKind::mismatch,
       fmt::format("ranks disagree on operation #{}: rank {} called {}, rank {} called {}\n"
                   "  every rank must make the same calls in the same order",
                   number + 1, named(0), words(0), named(odd), words(odd)),
       number);
}

void ShmEngine::fail_counts(int sender, int64_t sent, int64_t expected, uint64_t number) {
  fail(FailureKind::mismatch,
       fmt::format("ranks disagree on operation #{}: rank {} sends {} elements to rank {}, which "
                   "expects {}\n"
                   "  send_counts there must say what receive_counts say here",
                   number + 1, named(sender), sent, named(rank_), expected),
       number);
}

void ShmEngine::abort(FailureKind kind, const std::string& text) noexcept {
  char words[sizeof poison_.text];
  if (kind == FailureKind::aborted)
    std::snprintf(words, sizeof words, "aborted by rank %d: %s", named(rank_), text.c_str());
  else
    std::snprintf(words, sizeof words, "%s", text.c_str());
  state_.poison(kind, rank_, words);
  wait_for_busy_peers();
}

// Died or was stopped; no when the kernel does not tell.
bool ShmEngine::cannot_go_on(int rank) const noexcept {
  try {
    return is_dead(rank) || is_stopped(rank);
  } catch (const Error&) {
    return false;
  }
}

// Ranks read and write each other's buffers. Whoever fails gives its own up, so it first waits
// until all who did not see the poison in time are out; nobody goes in after it. Who died or was
// stopped inside is not waited for: it tells no success of what it finds when it goes on.
void ShmEngine::wait_for_busy_peers() noexcept {
  const Deadline deadline(kDefaultTimeLimit);
  TimePoint next_look = Clock::now() + kBusySlice;
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    while (blocks_[r]->member.busy.load(std::memory_order_seq_cst) != 0 && !deadline.passed()) {
      std::this_thread::yield();
      if (Clock::now() < next_look) continue;
      next_look = Clock::now() + kBusySlice;
      if (cannot_go_on(r)) break;
    }
  }
}

std::string ShmEngine::operation_words(uint64_t number) const {
  if (number == kJoining) return "joining";
  if (number == kMessage) return messages_->words(message_ticket_);
  return fmt::format("{} #{}", name_of(entry_of(number).operation->collective), number + 1);
}

std::string ShmEngine::rank_words(int rank) const {
  if (all_threads_) return fmt::format("rank {}", named(rank));
  return fmt::format("rank {} (pid {})", named(rank),
                     blocks_[rank]->member.pid.load(std::memory_order_relaxed));
}

// "its last call was broadcast of 10 float32 from rank 0 (#411)".
std::string ShmEngine::last_call_words(int rank) const {
  const CallLine* newest = nullptr;
  for (const CallLine& line : blocks_[rank]->ring)
    if (line.ticket.value() != 0 &&
        (newest == nullptr || line.ticket.reached(newest->ticket.value())))
      newest = &line;
  if (newest == nullptr) return "it has called nothing yet";
  const auto call = newest->call.load(std::memory_order_relaxed);
  const auto num_elements = newest->num_elements.load(std::memory_order_relaxed);
  return fmt::format("its last call was {} (#{})", call_words(call, num_elements),
                     newest->ticket.value());
}

// Whether rank `r`, which has called operation `number`, keeps this rank waiting. Whoever waits as
// this rank does is level with it: of a staged operation it has moved as many chunks.
bool ShmEngine::is_behind(int r, uint64_t number) const {
  const Entry& entry = entry_of(number);
  if (entry.path != Path::staged) return entry.path == Path::direct;
  const auto moved = [&](int rank) {
    return blocks_[rank]->staged.flag.value() + blocks_[rank]->drained.flag.value();
  };
  return static_cast<int32_t>(moved(r) - moved(rank_)) < 0;
}

// The ranks that operation `need.number` waits for.
std::vector<ShmEngine::Silent> ShmEngine::silent_ranks(const Need& need) const {
  const uint64_t number = need.number;
  const std::string idle = "called it, has not done its part";
  std::vector<Silent> silent;
  for (int r = 0; r < size_; ++r) {
    const RankBlock& block = *blocks_[r];
    if (r == rank_ || block.finished.flag.reached(static_cast<uint32_t>(number + 1))) continue;
    const bool called = ring_reached(line_of(r, number), number);
    const bool stopped = is_stopped(r);
    if (called && !stopped && !is_behind(r, number)) continue;
    silent.push_back({r, stopped, called ? idle : last_call_words(r)});
  }
  // Who gives data and does not is level with those that have taken all it gave.
  if (silent.empty()) silent.push_back({need.rank, false, idle});
  return silent;
}

// They with the last they did; of those that wait for one another, who keeps the rest waiting.
std::string ShmEngine::silent_words(const Need& need) const {
  const std::vector<Silent> silent = silent_ranks(need);
  const auto is_cause = [&](const Silent& each) {
    const int end = end_of_waits(each.rank);
    return std::ranges::none_of(silent, [&](const Silent& other) {
      return other.rank != each.rank && root_ranks_[other.rank] == end;
    });
  };
  const bool any = std::ranges::any_of(silent, is_cause);
  std::string words;
  for (const Silent& each : silent)
    if (!any || is_cause(each))
      words +=
          fmt::format("{}{}{}: {}{}", words.empty() ? "" : "; ", rank_words(each.rank),
                      each.stopped ? ", which is stopped" : "", each.did, awaited_words(each.rank));
  return words;
}

}  // namespace tutti::detail
