// Waiting, and what ends a wait: lost ranks, passed limits, disagreement, abort. The first failure
// is told to all on the control links; every pending and future operation ends with its text.
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/comm/engine/detail/call.h"
#include "tutti/comm/tcp/tcp_engine.h"

namespace tutti::detail::tcp {
namespace {

// A sleeper looks around at least so often.
constexpr Millis kSlice{100};
// The same where the waiting thread has something else to keep moving.
constexpr Millis kIdleSlice{1};
// How long a rank is asked what it does before it counts as silent: long enough for a busy machine,
// since blaming the wrong rank costs more. How long the news of why a stream ended may take behind
// its end.
constexpr Millis kAskingLimit{250};
constexpr Millis kNewsLimit{100};
// How long peers may take nothing of what they are told, until they are left to themselves.
constexpr Millis kTellingLimit{500};
// A link that never stops moving must not hide the control links.
constexpr uint32_t kMovesPerLook = 256;
// Spinning over the control links of more peers costs more than the sleep it saves.
constexpr int kMostSpunPeers = 8;
constexpr int kPollsPerLook = 16;
// Who works beside a thread that computes takes its core for more than a packet.
constexpr int64_t kGathered = 128 << 10;

}  // namespace

bool TcpEngine::done(Ticket ticket) const noexcept {
  return (ticket & 1) != 0 ? messages_.done(ticket >> 1) : completed_ >= ticket >> 1;
}

void TcpEngine::progress(Ticket ticket, const Deadline& deadline) {
  if (!done(ticket)) wait_until_done(ticket, &deadline);
}

void TcpEngine::nudge() {
  throw_if_failed();
  advance();
  service_control();
}

bool TcpEngine::progress_until_woken(Ticket ticket) {
  return done(ticket) || wait_until_done(ticket, nullptr, true);
}

void TcpEngine::wake() noexcept {
  woken_ = true;
  const uint64_t one = 1;
  (void)!::write(waker_.get(), &one, sizeof one);
}

bool TcpEngine::poll(Ticket ticket) {
  if (done(ticket)) return true;
  waited_for_ = ticket;
  throw_if_failed();
  const bool moved = advance();
  if (!messages_.idle() || ++polled_ % kPollsPerLook == 0) {
    service_control();
    if (!moved && !done(ticket)) look_around(ticket, nullptr);
  }
  return done(ticket);
}

bool TcpEngine::wait_until_done(Ticket ticket, const Deadline* outer, bool until_woken) {
  waited_for_ = ticket;
  int attempts = 0;
  uint32_t moves = 0;
  while (true) {
    throw_if_failed();
    const bool moved = advance();
    if (done(ticket)) return true;
    if (until_woken && woken_.exchange(false)) return false;
    if (moved) {
      attempts = 0;
      if (++moves % kMovesPerLook == 0) service_control();
      continue;
    }
    if (!messages_.idle() && size_ <= kMostSpunPeers) service_control();
    if (done(ticket)) return true;
    if (++attempts < (is_lent() ? 0 : spins_)) {
      if (attempts % spins_a_yield_ == 0) std::this_thread::yield();
      continue;
    }
    look_around(ticket, outer);
    if (!sleep(outer)) look_for_unclaimed();
    attempts = 0;
  }
}

// False when nothing happened for a slice.
bool TcpEngine::sleep(const Deadline* outer) {
  polls_.clear();
  polls_.push_back({waker_.get(), POLLIN, 0});
  control_.add_polls(polls_);
  const size_t num_control = polls_.size() - 1;
  const bool frames_buffered = control_.has_buffered();
  bool buffered = frames_buffered;
  for (LinkLane& lane : lanes_)
    for (PeerStreams& streams : lane.streams) {
      streams.gather(is_lent() ? kGathered : 1);
      streams.add_polls(polls_);
      buffered = buffered || streams.has_buffered();
    }
  if (idle()) idle()();
  const Millis slice = idle() ? kIdleSlice : kSlice;
  TimePoint until = Clock::now() + (buffered ? Millis{0} : slice);
  if (completed_ < submitted_) until = std::min(until, *entry_of(completed_).deadline);
  until = std::min(until, messages_.next_deadline());
  if (outer != nullptr) until = std::min(until, outer->at());
  const Millis left = std::max(Millis{0}, std::chrono::ceil<Millis>(until - Clock::now()));
  const int ready = ::poll(polls_.data(), polls_.size(), static_cast<int>(left.count()));
  if (frames_buffered) service_control();
  if (ready <= 0) return buffered;
  if (polls_[0].revents != 0) {
    uint64_t count;
    (void)!::read(waker_.get(), &count, sizeof count);
  }
  try {
    control_.service_ready(std::span(polls_).subspan(1, num_control));
  } catch (const WrongLength& wrong) {
    fail(FailureKind::mismatch, wrong.text);
  }
  return true;
}

void TcpEngine::service_control() {
  try {
    control_.service();
  } catch (const WrongLength& wrong) {
    fail(FailureKind::mismatch, wrong.text);
  }
}

// What ends a wait that nothing has moved.
void TcpEngine::look_around(Ticket ticket, const Deadline* outer) {
  throw_if_failed();
  if (control_.lost_rank() >= 0) fail_lost(control_.lost_rank(), control_.why_lost());
  if (const auto cut = messages_.cut_off()) fail_lost(cut->peer, control_.name(cut->peer));
  const TimePoint now = Clock::now();
  for (uint64_t n = completed_; n < submitted_; ++n) {
    Entry& entry = entry_of(n);
    if (!entry.deadline) entry.deadline = time_after(entry.operation.limit);
    if (now >= *entry.deadline) fail_late((n + 1) << 1, entry.operation.limit);
  }
  if (const auto late = messages_.late(now)) fail_late(1, late->limit);
  if (outer != nullptr && outer->passed()) fail_late(ticket, outer->limit());
  if (const Deadline* lent = lent_until(); lent != nullptr && lent->passed())
    fail_late(ticket, lent->limit());
}

// A rank that called something else may have sent to this one what nothing here waits for.
void TcpEngine::look_for_unclaimed() {
  for (uint64_t n = completed_; n < submitted_ && n < completed_ + lanes_.size(); ++n)
    for (int r = 0; r < size_; ++r)
      if (r != rank_ && !control_.closed(r)) look_for_unclaimed(n, r);
}

void TcpEngine::look_for_unclaimed(uint64_t number, int r) {
  const Entry& entry = entry_of(number);
  try {
    const auto got = lane_of(number).streams[static_cast<size_t>(r)].unclaimed();
    if (!got || got->number > number) return;
    if (got->number < number || got->call != entry.call || got->elements != entry.elements ||
        got->aux != fingerprint_)
      fail_unexpected(r, *got, number, static_cast<int64_t>(got->length));
  } catch (const BadFrame& bad) {
    fail_lost(
        r, fmt::format("{} sent what is no frame of this engine: {}", control_.name(r), bad.why));
  } catch (const Error&) {
    if (failure_.happened()) throw;
    // Its control link tells why, or it has left and is not needed.
  }
}

void TcpEngine::throw_if_failed() const {
  failure_.rethrow([this] {
    return fmt::format("{}, rank {} of {}: ", operation_words(waited_for_), rank_, size_);
  });
}

// Stores and tells a failure of this rank, unless there was one before.
void TcpEngine::tell(FailureKind kind, const std::string& text) {
  if (!failure_.keep(kind, text)) return;
  control_.tell_all({.kind = FrameKind::failure, .aux = static_cast<uint32_t>(kind)}, text);
  control_.flush(kTellingLimit);  // behind a long message, to peers that read
}

void TcpEngine::fail(FailureKind kind, const std::string& text) {
  // What goes wrong here may follow from what another has told already.
  try {
    control_.service();
  } catch (const WrongLength& wrong) {
    log(LogLevel::debug, "tcp engine: also: {}", wrong.text);
  }
  tell(kind, text);
  throw_if_failed();
  check_failed(__FILE__, __LINE__, "failure_", text);
}

void TcpEngine::abort(FailureKind kind, const std::string& text) noexcept {
  try {
    const std::string words =
        kind == FailureKind::aborted ? fmt::format("aborted by rank {}: {}", rank_, text) : text;
    tell(kind, words);
  } catch (const std::exception& error) {  // short of memory: the flag alone ends this member
    log(LogLevel::warning, "tcp engine: abort without words: {}", error.what());
    failure_.keep(FailureKind::aborted, {});
  }
  const uint64_t one = 1;
  (void)!::write(waker_.get(), &one, sizeof one);
}

// Until `rank` has said why, or somebody else has, or its control link has ended.
void TcpEngine::wait_for_news(int rank, Millis limit) {
  const Deadline deadline(limit);
  while (!deadline.passed()) {
    service_control();
    throw_if_failed();
    if (control_.closed(rank) || control_.state(rank) == ControlLinks::State::left) return;
    wait_for_control(deadline);
  }
}

void TcpEngine::fail_lost(int rank, const std::string& why) {
  wait_for_news(rank, kNewsLimit);
  const bool left = control_.state(rank) == ControlLinks::State::left;
  fail(FailureKind::peer_lost,
       left ? fmt::format("{} left the group; {}", control_.name(rank), last_call_words(rank))
            : fmt::format("{}; {}\n  look first at the last lines of its log", why,
                          last_call_words(rank)));
}

void TcpEngine::fail_unexpected(int from, const FrameHeader& got, uint64_t at,
                                int64_t expected_length) {
  // A rank that is behind called something else at that place; what this one called is still known.
  const bool behind = got.number < at && got.number + entries_.size() >= submitted_;
  const uint64_t number = behind ? got.number : at;
  const Entry& entry = entry_of(number);
  const std::string mine = call_words(entry.call, entry.elements);
  const std::string theirs = call_words(got.call, got.elements);
  if (got.number != number)
    fail(FailureKind::mismatch,
         fmt::format("ranks disagree: rank {} is at operation #{} ({}), rank {} at operation #{} "
                     "({})\n  every rank must make the same calls in the same order",
                     rank_, at + 1, mine, from, got.number + 1, theirs));
  if (got.call != entry.call || got.elements != entry.elements) {
    const bool first = rank_ < from;
    fail(FailureKind::mismatch,
         fmt::format("ranks disagree on operation #{}: rank {} called {}, rank {} called {}\n"
                     "  every rank must make the same calls in the same order",
                     number + 1, first ? rank_ : from, first ? mine : theirs, first ? from : rank_,
                     first ? theirs : mine));
  }
  if (got.aux != fingerprint_)
    fail(FailureKind::mismatch,
         fmt::format("rank {} and rank {} were given different options; here: reduction shape {}, "
                     "order {}\n  give every rank the same shape, order, table and sizes",
                     rank_, from, shape_.to_string(), name_of(options_.order)));
  fail(FailureKind::mismatch, fmt::format("rank {} sent {} bytes, rank {} expected {}, in {}\n"
                                          "  the counts must be the same on every rank",
                                          from, got.length, rank_, expected_length, mine));
}

// What every rank is doing, as far as it answers within `limit`.
void TcpEngine::ask_all(Millis limit) {
  for (int r = 0; r < size_; ++r) {
    known_[static_cast<size_t>(r)].answered = false;
    if (r != rank_) control_.push(r, {.kind = FrameKind::ask});
  }
  const Deadline deadline(limit);
  const auto all_answered = [&] {
    for (int r = 0; r < size_; ++r)
      if (r != rank_ && !control_.closed(r) && !known_[static_cast<size_t>(r)].answered)
        return false;
    return true;
  };
  while (!all_answered() && !deadline.passed()) {
    wait_for_control(deadline);
    service_control();
    throw_if_failed();
  }
}

// Meanwhile this rank still answers what it is asked.
void TcpEngine::wait_for_control(const Deadline& deadline) {
  if (idle()) idle()();
  polls_.clear();
  control_.add_polls(polls_);
  const Millis slice = idle() ? std::min(kIdleSlice, deadline.left()) : deadline.left();
  ::poll(polls_.data(), polls_.size(), static_cast<int>(slice.count()));
}

void TcpEngine::fail_late(Ticket ticket, Millis limit) {
  // Whoever has something to tell does so now.
  service_control();
  throw_if_failed();
  ask_all(kAskingLimit);
  // All that wait for the same rank pass their limits together: the lowest speaks for them.
  for (int r = 0; r < rank_; ++r)
    if (const Known& known = known_[static_cast<size_t>(r)];
        known.answered && known.in_call && known.number < completed_ + lanes_.size() &&
        completed_ < known.number + lanes_.size()) {
      wait_for_news(r, kAskingLimit);
      break;
    }
  fail(FailureKind::timeout,
       fmt::format("not done within its limit of {} ms; silent: {}\n"
                   "  look at what the silent ranks are doing, or give a longer limit",
                   limit.count(), silent_words(ticket)));
}

std::string TcpEngine::last_call_words(int rank) const {
  const Known& known = known_[static_cast<size_t>(rank)];
  if (!known.called) return "it has called nothing yet";
  return fmt::format("its last call was {} (#{})", call_words(known.call, known.elements),
                     known.number + 1);
}

// Every rank that keeps the operation waiting, with the last it did.
std::string TcpEngine::silent_words(Ticket ticket) const {
  std::string words;
  const auto add = [&](int r, const std::string& what) {
    words += fmt::format("{}{}: {}", words.empty() ? "" : "; ", control_.name(r), what);
  };
  if ((ticket & 1) != 0) {
    const auto late = messages_.late(Clock::now());
    const auto which = late ? late : messages_.pending(ticket >> 1);
    if (which && which->peer == kAnyRank) return "every rank";
    if (which) add(which->peer, last_call_words(which->peer));
    return words;
  }
  words = behind_words(completed_);
  if (!words.empty()) return words;
  // All are in it: those whose data is missing here.
  std::set<int> peers;
  for (const LinkLane& lane : lanes_)
    for (size_t i = 0; lane.begun && i < lane.steps.size(); ++i)
      if (lane.states[i] != StepState::done) peers.insert(lane.steps[i].peer);
  for (const int peer : peers) add(peer, "called it, has not done its part");
  return words.empty() ? "nobody" : words;
}

// Who keeps collective `number` waiting, as far as answers tell: ranks that say nothing, else those
// that have not called it, else those that wait in an earlier one.
std::string TcpEngine::behind_words(uint64_t number) const {
  std::string mute, late, waiting;
  for (int r = 0; r < size_; ++r) {
    const Known& known = known_[static_cast<size_t>(r)];
    if (r == rank_) continue;
    const bool level = known.in_call ? known.number >= number : known.number + 1 > number;
    if (known.answered && known.called && level) continue;
    std::string& words = !known.answered ? mute : known.in_call ? waiting : late;
    // Frames of this group tell nothing of one that is built on it.
    const std::string last = standing_ && !known.answered ? "" : last_call_words(r);
    words += fmt::format("{}{}: {}{}{}", words.empty() ? "" : "; ", control_.name(r), last,
                         last.empty() || known.answered ? "" : ", and ",
                         known.answered ? "" : "it does not answer");
  }
  return !mute.empty() ? mute : !late.empty() ? late : waiting;
}

std::string TcpEngine::members_behind(Millis limit) {
  throw_if_failed();
  ask_all(limit);
  return behind_words(standing().number);
}

Standing TcpEngine::standing() const {
  if (standing_) return standing_();
  if (submitted_ == 0) return {};
  const bool in_it = completed_ < submitted_;
  const uint64_t number = in_it ? completed_ : completed_ - 1;
  return {&entry_of(number).operation, number, in_it};
}

std::string TcpEngine::operation_words(Ticket ticket) const {
  if ((ticket & 1) != 0) {
    const auto late = messages_.pending(ticket >> 1);
    return late ? fmt::format("{} #{}", name_of(late->collective), late->number + 1) : "message";
  }
  if (ticket == 0 || entries_.empty()) return "group";
  const uint64_t number = (ticket >> 1) - 1;
  if (number + entries_.size() < submitted_ || number >= submitted_) return "group";
  return fmt::format("{} #{}", name_of(entry_of(number).operation.collective), number + 1);
}

std::byte* TcpEngine::room_for(int from, const FrameHeader& header) {
  return messages_.room_for(from, header);
}

void TcpEngine::on_written(int to, uint64_t message) { messages_.on_written(to, message); }

// Where this rank stands: the operation that it is in, or its last.
FrameHeader TcpEngine::state_header(FrameKind kind) const {
  const Standing now = standing();
  FrameHeader header{.kind = kind};
  if (now.operation == nullptr) return header;
  header.number = now.number;
  header.call = pack_call(*now.operation);
  header.elements = call_elements(*now.operation, size_);
  header.aux = now.in_it ? 3 : 1;  // bit 0: has called something; bit 1: is in it
  return header;
}

void TcpEngine::on_frame(int from, const FrameHeader& header, std::span<const std::byte> payload) {
  switch (header.kind) {
    case FrameKind::failure: {
      const auto kind = std::min(header.aux, static_cast<uint32_t>(FailureKind::mismatch));
      failure_.keep(kind_of_another(static_cast<FailureKind>(kind)),
                    {reinterpret_cast<const char*>(payload.data()), payload.size()});
      return;
    }
    case FrameKind::ask: return control_.push(from, state_header(FrameKind::answer));
    case FrameKind::leave:
    case FrameKind::answer: {
      Known& known = known_[static_cast<size_t>(from)];
      known = {.called = (header.aux & 1) != 0,
               .number = header.number,
               .call = header.call,
               .elements = header.elements,
               .answered = header.kind == FrameKind::answer,
               .in_call = (header.aux & 2) != 0};
      return;
    }
    default: return messages_.on_frame(from, header, payload);
  }
}

}  // namespace tutti::detail::tcp
