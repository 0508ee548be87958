#include "tutti/comm/hier/hier_engine.h"

#include <algorithm>
#include <thread>

#include "tutti/base/detail/check.h"
#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/comm/engine/detail/call.h"
#include "tutti/comm/engine/detail/members.h"

namespace tutti {
namespace detail {
namespace {

// Tickets of messages are told from those of collectives by this bit.
constexpr Ticket kMessage = Ticket{1} << 63;
// Between two looks at several engines at once, none of which may be waited for alone.
constexpr std::chrono::microseconds kShortestNap{20};
constexpr std::chrono::microseconds kLongestNap{1'000};
// How long a rank is asked how far it is before it counts as silent. A part of it may itself be
// asking, for half as long.
constexpr Millis kAskingLimit{500};

}  // namespace

HierEngine::HierEngine(HierParts parts)
    : parts_(std::move(parts)),
      shape_(ReductionShape::hosts(parts_.replicas_per_host)),
      slices_(static_cast<int>(parts_.rails.size())) {
  const auto& per_host = parts_.replicas_per_host;
  TUTTI_CHECK(per_host.size() >= 2, "{} hosts", per_host.size());
  TUTTI_CHECK(slices_ == *std::max_element(per_host.begin(), per_host.end()), "{} rails", slices_);
  int first = 0;
  for (size_t h = 0; h < per_host.size(); ++h) {
    first_of_host_.push_back(first);
    if (parts_.rank >= first && parts_.rank < first + per_host[h]) {
      host_ = static_cast<int>(h);
      local_ = parts_.rank - first;
    }
    first += per_host[h];
  }
  const int here = per_host[static_cast<size_t>(host_)];
  TUTTI_CHECK(parts_.inside->size() == here && parts_.inside->rank() == local_,
              "inside is rank {} of {}", parts_.inside->rank(), parts_.inside->size());
  // A member that waits for its host or its rails still takes the messages that come.
  const auto idle = [across = parts_.across.get()] { across->nudge(); };
  parts_.across->answer_with([this] { return standing(); });
  parts_.inside->set_idle(idle);
  for (const auto& rail : parts_.rails)
    if (rail != nullptr) rail->set_idle(idle);
  std::tie(first_slice_, end_slice_) = slices_of(local_, here, slices_);
  for (int s = 0; s < slices_; ++s) {
    const bool mine = s >= first_slice_ && s < end_slice_;
    TUTTI_CHECK((parts_.rails[static_cast<size_t>(s)] != nullptr) == mine, "rail {}", s);
  }
}

Ticket HierEngine::submit(std::span<const Operation> batch) {
  require_rails();  // before a part of it is done inside the host
  throw_if_failed();
  if (!batch.empty() && is_message(batch.front().collective)) {
    const Ticket ticket = kMessage | ++messages_submitted_;
    try {
      messages_[ticket] = parts_.across->submit(batch);
    } catch (const Error& error) {
      fail(error);
    }
    return ticket;
  }
  for (const Operation& operation : batch) {
    counter_.count(operation);
    entries_.push_back({operation, Deadline(operation.limit), std::nullopt});
    ++submitted_;
  }
  advance(submitted_);
  return submitted_;
}

void HierEngine::run(const Operation& operation) {
  const Ticket ticket = submit({&operation, 1});
  progress(ticket, Deadline(operation.limit));
}

bool HierEngine::poll(Ticket ticket) {
  if ((ticket & kMessage) == 0) return advance(ticket);
  advance(submitted_);
  return message_done(ticket);
}

// What one rank learns reaches all of them over the flat group.
void HierEngine::nudge() {
  throw_if_failed();
  try {
    parts_.across->nudge();
  } catch (const Error& error) {
    fail(error);
  }
  advance(submitted_);
}

bool HierEngine::message_done(Ticket ticket) {
  throw_if_failed();
  const auto found = messages_.find(ticket);
  if (found == messages_.end()) return true;
  try {
    if (!parts_.across->poll(found->second)) return false;
  } catch (const Error& error) {
    fail(error);
  }
  messages_.erase(found);
  return true;
}

bool HierEngine::messages_in_flight() {
  for (auto it = messages_.begin(); it != messages_.end();) {
    const Ticket ticket = (it++)->first;
    message_done(ticket);
  }
  return !messages_.empty();
}

void HierEngine::require_rails() const {
  for (const auto& rail : parts_.rails)
    if (rail != nullptr) rail->require_own();
}

bool HierEngine::advance(Ticket ticket) {
  if (completed_ < ticket) require_rails();
  try {
    while (completed_ < ticket) {
      throw_if_failed();
      Entry& entry = entries_.front();
      if (!entry.program) entry.program.emplace(program_of(entry));
      if (!entry.program->advance()) return false;
      last_ = std::move(entry.operation);
      entries_.pop_front();
      ++completed_;
    }
  } catch (const Error& error) {
    fail(error);
  }
  return true;
}

void HierEngine::progress(Ticket ticket, const Deadline& deadline) {
  auto nap = kShortestNap;
  while (!poll(ticket)) {
    const bool collective = !entries_.empty();
    const auto message = messages_.find(ticket);
    const Deadline& own = collective ? entries_.front().deadline : deadline;
    const Deadline& first = own.at() < deadline.at() ? own : deadline;
    const auto pending = collective ? entries_.front().program->pending() : Program::Pending{};
    try {
      if (collective && !messages_in_flight()) {
        pending.engine->progress(pending.ticket, first);
      } else if (!collective) {
        parts_.across->progress(message->second, deadline);
      } else if (first.passed()) {
        // Who is late is known to the engine that waits: it says so.
        pending.engine->progress(pending.ticket, Deadline(Millis{0}));
      } else {
        // Several engines may move next, and none may be waited for alone.
        std::this_thread::sleep_for(nap);
        nap = std::min(2 * nap, kLongestNap);
      }
    } catch (const Error& error) {
      fail(error);
    }
  }
}

std::string HierEngine::words() const {
  if (entries_.empty()) return "";  // of a message all is said
  return fmt::format("{} #{}, rank {} of {}: ", name_of(entries_.front().operation.collective),
                     completed_ + 1, parts_.rank, size());
}

Standing HierEngine::standing() const {
  if (!entries_.empty()) return {&entries_.front().operation, completed_, true};
  return completed_ == 0 ? Standing{} : Standing{&last_, completed_ - 1, false};
}

/// A part whose limit passed names whom it waits for, which may be one that waits itself. All ranks
/// are asked how far they are, and who is behind is named; or who came to that before has told.
std::pair<FailureKind, std::string> HierEngine::cause_of(const std::exception& error) {
  const FailureKind kind = kind_of(error);
  if (kind != FailureKind::timeout || entries_.empty()) return {kind, error.what()};
  try {
    const std::string behind = parts_.across->members_behind(kAskingLimit);
    if (behind.empty()) return {kind, error.what()};
    return {kind, fmt::format("not done within its limit of {} ms; silent: {}\n"
                              "  look at what the silent ranks are doing, or give a longer limit",
                              entries_.front().operation.limit.count(), behind)};
  } catch (const Error& told) {
    return {kind_of(told), told.what()};
  }
}

/// The first failure of any part ends all parts, here and, through them, everywhere.
void HierEngine::fail(const std::exception& error) {
  throw_if_failed();
  const auto [kind, text] = cause_of(error);
  abort(kind, text);
  throw_if_failed();
  check_failed(__FILE__, __LINE__, "failure_", error.what());
}

void HierEngine::throw_if_failed() const {
  failure_.rethrow([this] { return words(); });
}

void HierEngine::abort(FailureKind kind, const std::string& text) noexcept {
  try {
    if (!failure_.keep(kind, text)) return;
    parts_.across->abort(kind, text);
    for (const auto& rail : parts_.rails)
      if (rail != nullptr) rail->abort(kind, text);
    parts_.inside->abort(kind, text);
  } catch (const std::exception& error) {
    log(LogLevel::error, "rank {} of {}, abort: {}", parts_.rank, size(), error.what());
  }
}

std::shared_ptr<Engine> HierEngine::split(int color, int key, Millis limit) {
  const Deadline deadline(limit);
  const std::vector<int> members = members_of_color(*this, color, key, limit);
  ++splits_;
  if (color < 0) return nullptr;
  return parts_.regroup(fmt::format("split{}-{}", splits_, members.front()), members,
                        deadline.left());
}

SharedParts HierEngine::allocate(int64_t /*bytes*/, Millis /*limit*/) {
  throw UsageError(fmt::format(
      "allocate, rank {} of {}: the ranks are on {} hosts, which share no memory; ask the group of "
      "one host",
      parts_.rank, size(), parts_.replicas_per_host.size()));
}

}  // namespace detail

std::pair<int, int> slices_of(int local, int ranks, int slices) {
  return {slices * local / ranks, slices * (local + 1) / ranks};
}

const HierParts* parts_of(const Engine& engine) noexcept {
  const auto* hier = dynamic_cast<const detail::HierEngine*>(&engine);
  return hier == nullptr ? nullptr : &hier->parts();
}

std::shared_ptr<Engine> make_hier(HierParts parts) {
  return std::make_shared<detail::HierEngine>(std::move(parts));
}

}  // namespace tutti
