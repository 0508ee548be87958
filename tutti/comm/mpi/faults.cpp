// Waiting, and what ends a wait: a failure that another member tells of, lost ranks, passed limits,
// disagreement, abort. The first failure is stored here and told to all; every pending and future
// operation ends with its text.
#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/comm/mpi/mpi_engine.h"

namespace tutti::detail::mpi {
namespace {

// How often the kernel is asked who is alive.
constexpr Millis kLookEvery{20};
// How long a failed group lets transfers from and to its buffers end by themselves.
constexpr Millis kDrain{50};

}  // namespace

void MpiEngine::look(const Deadline* outer) {
  process_.poll();
  look_for_limits(outer);
  const TimePoint now = Clock::now();
  if (now < next_look_) return;
  next_look_ = now + kLookEvery;
  look_for_lost();
}

void MpiEngine::look_for_limits(const Deadline* outer) {
  const TimePoint now = Clock::now();
  const auto pass = [&](Millis limit, const std::vector<int>& silent, const std::string& what) {
    if (advance()) return;  // it may have come just now
    throw_if_failed(what);
    fail(FailureKind::timeout,
         fmt::format("not done within its limit of {} ms; silent: {}\n"
                     "  look at what the silent ranks are doing, or give a longer limit",
                     limit.count(), silent_words(silent)),
         what);
  };
  for (const Entry& entry : entries_)
    if (now >= entry.deadline) return pass(entry.operation.limit, awaited(), entry_words(entry));
  for (const Message& message : messages_)
    if (now >= message.deadline)
      return pass(message.operation.limit, awaited_by(message), message_words(message));
  if (outer != nullptr && outer->passed()) {
    const bool collective = !entries_.empty();
    pass(outer->limit(), collective ? awaited() : awaited_by(messages_.front()), oldest_words());
  }
}

// Ranks that the oldest collective waits for.
std::vector<int> MpiEngine::awaited() const {
  if (entries_.empty()) return {};
  std::vector<int> peers = stage_ == Stage::announced ? headers_.pending_peers()
                           : stage_ == Stage::stepping
                               ? moving_.pending_peers()
                               : entries_.front().announcing.pending_peers();
  if (peers.empty() || peers.front() >= 0) return peers;
  // MPI_Iallreduce does not say for whom it waits.
  peers.clear();
  for (int r = 0; r < size_; ++r)
    if (r != rank_) peers.push_back(r);
  return peers;
}

std::vector<int> MpiEngine::awaited_by(const Message& message) const {
  if (message.operation.root != kAnyRank) return {message.operation.root};
  if (message.source != kAnyRank) return {message.source};
  std::vector<int> peers;
  for (int r = 0; r < size_; ++r)
    if (r != rank_) peers.push_back(r);
  return peers;
}

bool MpiEngine::is_lost(int rank) const {
  return control_->leaving(rank) != nullptr || process_.is_dead(world_ranks_[rank]);
}

// Whether an operation still needs something of a rank that is lost. Asked after a last look at
// what it may have sent before.
bool MpiEngine::keeps_waiting(int rank) const {
  const ControlMessage* const left = control_->leaving(rank);
  const std::vector<int> now = awaited();
  if (std::find(now.begin(), now.end(), rank) != now.end() &&
      (left == nullptr || left->collectives < completed_ + 1))
    return true;
  return std::any_of(messages_.begin(), messages_.end(), [&](const Message& message) {
    if (rank == rank_) return false;
    const std::vector<int> from = awaited_by(message);
    if (std::find(from.begin(), from.end(), rank) == from.end()) return false;
    if (message.operation.collective == Collective::send) return true;
    if (message.stage == Message::waiting && message.operation.root == kAnyRank)
      return std::all_of(from.begin(), from.end(), [&](int r) { return is_lost(r); });
    return left == nullptr || left->messages <= taken_[rank];
  });
}

void MpiEngine::look_for_lost() {
  for (int r = 0; r < size_; ++r) {
    if (r == rank_ || !is_lost(r) || !keeps_waiting(r)) continue;
    if (advance()) return;  // what it sent before it went may have come just now
    throw_if_failed(oldest_words());
    if (!keeps_waiting(r)) continue;
    fail(FailureKind::peer_lost,
         control_->leaving(r) != nullptr
             ? fmt::format("{} left the group; {}", rank_words(r), last_call_words(r))
             : fmt::format("{} died; {}\n  look first at the last lines of rank {}'s log",
                           rank_words(r), last_call_words(r), r),
         oldest_words());
  }
}

void MpiEngine::look_while_exchanging(const std::string& what, const std::vector<int>& missing) {
  control_->poll();
  if (const auto& failure = control_->failure())
    store_failure(failure->kind, failure->by, failure->text);
  throw_if_failed(what);
  for (int r : missing)
    if (is_lost(r))
      fail(FailureKind::peer_lost,
           fmt::format("{} {}", rank_words(r),
                       control_->leaving(r) != nullptr ? "left the group" : "died"),
           what);
}

void MpiEngine::abort(FailureKind kind, const std::string& text) noexcept {
  try {
    store_failure(
        kind, rank_,
        kind == FailureKind::aborted ? fmt::format("aborted by rank {}: {}", rank_, text) : text);
  } catch (const std::exception& error) {
    log(LogLevel::error, "abort of a group: {}", error.what());
  }
}

void MpiEngine::store_failure(FailureKind kind, int by, const std::string& text) noexcept {
  if (!failure_.keep(by == rank_ ? kind : kind_of_another(kind), text)) return;
  process_.note_failure();
  if (by != rank_) return;
  try {
    control_->tell_failure(kind, text);
  } catch (const std::exception& error) {
    log(LogLevel::warning, "rank {} of {} could not tell the others that it failed: {}", rank_,
        size_, error.what());
  }
}

void MpiEngine::throw_if_failed(const std::string& what) {
  failure_.rethrow([&] {
    give_up_buffers();
    return fmt::format("{}, rank {} of {}: ", what, rank_, size_);
  });
}

void MpiEngine::fail(FailureKind kind, const std::string& text, const std::string& what) {
  store_failure(kind, rank_, text);
  throw_if_failed(what);
  check_failed(__FILE__, __LINE__, "failure_", text);
}

// The program takes its buffers back, so MPI must not touch them any more. What neither ends nor
// can be cancelled (a peer that stopped in the middle of a long message) ends the use of MPI here.
void MpiEngine::give_up_buffers() noexcept {
  try {
    const Deadline deadline(kDrain);
    Requests all = std::move(headers_);
    all.add(std::move(moving_));
    for (Message& message : messages_) all.add(std::move(message.moving));
    if (!all.stop(deadline))
      quarantine_mpi("transfers of a failed group could not be stopped, and its buffers are gone");
  } catch (const std::exception& error) {
    quarantine_mpi(error.what());
  }
}

std::string MpiEngine::entry_words(const Entry& entry) const {
  return fmt::format("{} #{}", name_of(entry.operation.collective), entry.call.number);
}

std::string MpiEngine::message_words(const Message& message) const {
  const Operation& operation = message.operation;
  if (operation.collective == Collective::send)
    return fmt::format("send to rank {} (tag {})", operation.root, operation.tag);
  if (operation.root == kAnyRank) return fmt::format("recv from any rank (tag {})", operation.tag);
  return fmt::format("recv from rank {} (tag {})", operation.root, operation.tag);
}

std::string MpiEngine::oldest_words() const {
  if (!entries_.empty()) return entry_words(entries_.front());
  if (!messages_.empty()) return message_words(messages_.front());
  return fmt::format("after operation #{}", submitted_);
}

std::string MpiEngine::rank_words(int rank) const {
  return fmt::format("rank {} ({})", rank, process_.words(world_ranks_[rank]));
}

std::string MpiEngine::last_call_words(int rank) const {
  const MpiCall& call = last_calls_[rank];
  if (call.number == 0) return "no call of it has come";
  return fmt::format("its last call was {} (#{})", call.words(), call.number);
}

std::string MpiEngine::silent_words(const std::vector<int>& ranks) const {
  std::vector<std::string> words;
  for (int r : ranks)
    words.push_back(fmt::format("{}{}: {}", rank_words(r),
                                process_.is_stopped(world_ranks_[r]) ? ", which is stopped" : "",
                                last_call_words(r)));
  return words.empty() ? "nobody that is known" : fmt::format("{}", fmt::join(words, "; "));
}

MpiEngine::~MpiEngine() { leave(); }

// The communicators are freed once every member has left: messages that nobody takes any more would
// otherwise reach a later communicator.
void MpiEngine::leave() noexcept {
  try {
    int ended = 0;
    MPI_Finalized(&ended);
    if (ended != 0) return;
    if (!entries_.empty() || !messages_.empty())
      store_failure(
          FailureKind::peer_lost, rank_,
          fmt::format("{} left the group in the middle of {}", rank_words(rank_), oldest_words()));
    const bool failed = failure_.happened();
    if (failed) give_up_buffers();
    if (!failed) control_->tell_leaving(submitted_, sent_);
    std::shared_ptr<Control> control = std::move(control_);
    // Memory of a failed group is kept for what MPI may still read or write.
    auto memory =
        std::make_shared<std::pair<Array, std::deque<Entry>>>(inbox_, std::move(entries_));
    process_.keep([control, memory, failed, scratch = scratch_, comms = comms_]() {
      if (failed) return false;
      control->poll();
      if (!control->all_have_left()) return false;
      for (MPI_Comm comm : {comms.collectives, comms.messages, comms.control}) {
        const auto lock = enter_mpi();
        MPI_Comm_free(&comm);
      }
      return true;
    });
  } catch (const std::exception& error) {
    log(LogLevel::warning, "leaving a group, rank {} of {}: {}", rank_, size_, error.what());
  }
}

}  // namespace tutti::detail::mpi
