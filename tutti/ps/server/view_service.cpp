#include "tutti/ps/server/view_service.h"

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/log.h"
#include "tutti/base/threads.h"
#include "tutti/ps/view/view_link.h"

namespace tutti::ps {
namespace {

using Kind = Message::Kind;

constexpr Millis kTurn{200};
constexpr Millis kLastSnapshot{600'000};

constexpr size_t kMostOfAJoin = 4096;  // name and whereabouts: some words

// Views tell it to all, as JSON.
bool is_text(const std::string& bytes) {
  try {
    return !dump_json(Json(bytes)).empty();
  } catch (const JsonError&) {
    return false;
  }
}

Peer peer_of(const Message& join) {
  return join.worker >= 0 ? Peer{Peer::Kind::worker, join.worker}
                          : Peer{Peer::Kind::server, static_cast<int>(join.sequence)};
}

}  // namespace

ViewService::ViewService(const ViewServiceOptions& options, const Address& at,
                         const Credentials& credentials)
    : options_(options),
      listener_(at, credentials),
      state_(options.num_servers, options.num_workers, options.backups, options.reserved) {
  if (!options.snapshots.folder.empty())
    snapshots_.emplace(options.snapshots, [this] { streams_->wake(); });
  streams_ = std::make_unique<Streams>(
      std::make_shared<SharedHeap>(), credentials,
      Streams::Events{
          .message = [this](Peer from, const Message& message) { on_message(from, message); },
          .connected = [this](Peer from) { members_[from].heard = Clock::now(); },
          .closed = [this](Peer from, const std::string& how) { on_closed(from, how); }});
  streams_->take_from(listener_, kViewPurpose, Peer::Kind::view_service);
  thread_ = start_thread("the view service", [this] { work(); });
}

ViewService::~ViewService() {
  {
    std::unique_lock lock(mutex_);
    closing_ = true;
    streams_->wake();
    if (snapshots_ && !ended_.wait_until(lock, time_after(kLastSnapshot), [this] { return over_; }))
      log(LogLevel::warning, "the last snapshot is not waited for any longer");
  }
  ends_ = true;
  streams_->wake();
  thread_.join();
  snapshots_.reset();  // it wakes the streams
}

View ViewService::view() const {
  const std::lock_guard lock(mutex_);
  return state_.view();
}

bool ViewService::wait_until(const std::function<bool(const View&)>& done,
                             const Deadline& deadline) const {
  std::unique_lock lock(mutex_);
  const auto settled = [&] { return done(state_.view()) || !state_.view().failure.empty(); };
  changed_.wait_until(lock, deadline.at(), settled);
  return done(state_.view());
}

void ViewService::lose_worker(int worker, const std::string& ending) {
  const std::lock_guard lock(mutex_);
  if (over_ || state_.view().workers.at(worker).alive) return;
  state_.lose_worker(worker, is_text(ending) ? ending : "ended");
  publish();
  streams_->wake();
}

// Nothing leaves this thread: the launcher would end with it, and nobody would say why.
void ViewService::work() {
  try {
    while (!ends_) {
      streams_->wait(kTurn);
      const std::lock_guard lock(mutex_);
      turn();
    }
    const std::lock_guard lock(mutex_);
    end_servers("");
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex_);
    fail(fmt::format("the view service of the parameter servers failed: {}", error.what()));
  }
}

void ViewService::turn() {
  streams_->process();
  if (snapshots_) tell_cuts();
  look_after(Clock::now());
  if (closing_ || all_workers_gone()) end_when_saved();
}

// The job ends with these words, as far as they can still be told.
void ViewService::fail(const std::string& why) noexcept {
  try {
    log(LogLevel::error, "{}", why);
    state_.fail(why);
    changed_.notify_all();
    end_servers(why);
  } catch (const std::exception&) {
    over_ = true;
    ended_.notify_all();
  }
}

// What a member makes impossible ends its connection, and not the service.
void ViewService::on_message(Peer from, const Message& message) {
  try {
    take(from, message);
  } catch (const Mismatch&) {
    throw;
  } catch (const std::exception& error) {
    throw Mismatch(fmt::format("a {} that cannot be: {}", name_of(message.kind), error.what()));
  }
}

void ViewService::take(Peer from, const Message& message) {
  if (over_) return;
  Member& member = members_[from];
  member.heard = Clock::now();
  const bool says_of_servers = message.kind == Kind::synced || message.kind == Kind::suspect ||
                               message.kind == Kind::written;
  if (says_of_servers && !(member.joined && member.who.kind == Peer::Kind::server))
    throw Mismatch(fmt::format("a {} of no server", name_of(message.kind)));
  const int number = member.who.number;
  const int server = static_cast<int>(message.sequence);
  switch (message.kind) {
    case Kind::join: on_join(from, member, message); break;
    case Kind::progress: member.last = message.text; break;
    case Kind::meet: on_meet(from, message.text); break;
    case Kind::synced: state_.synced(message.partition, number, server); break;
    case Kind::suspect:
      log(LogLevel::warning, "server {} does not reach server {}: {}", number, server,
          message.text);
      state_.suspect(message.partition, number, server);
      break;
    case Kind::finished: on_finished(from, member); break;
    case Kind::written:
      if (snapshots_) snapshots_->on_written(message, Clock::now());
      break;
    default: throw Mismatch(fmt::format("a {} to the view service", name_of(message.kind)));
  }
  publish();
}

void ViewService::on_join(Peer from, Member& member, const Message& message) {
  if (member.joined) throw Mismatch("it joined twice");
  const size_t name = message.text.find('\n');
  const std::string where = name == std::string::npos ? "" : message.text.substr(name + 1);
  const std::string process = message.text.substr(0, name);
  if (message.text.size() > kMostOfAJoin || !is_text(message.text))
    throw Mismatch("it does not say in text who it is");
  try {
    member.who = peer_of(message);
    if (member.who.kind == Peer::Kind::worker)
      state_.add_worker(member.who.number, process);
    else
      member.who.number = state_.add_server(process, where, member.who.number);
  } catch (const UsageError& error) {
    streams_->send(from, {.kind = Kind::refused, .text = error.what()});
    return;
  }
  member.joined = true;
  streams_->send(
      from,
      {.kind = Kind::joined, .sequence = member.who.number, .step = options_.silence.count()});
  streams_->send(from, {.kind = Kind::view, .text = to_text(state_.view())});
  if (member.who.kind == Peer::Kind::worker && snapshots_ && snapshots_->told() && !last_cut_)
    streams_->send(from, *snapshots_->told());
}

void ViewService::on_meet(Peer from, const std::string& place) {
  if (!place.empty()) meeting_place_ = place;
  if (meeting_over_) return streams_->send(from, {.kind = Kind::finished});
  ask_where_.push_back(from);
  if (meeting_place_.empty()) return;
  for (const Peer peer : std::exchange(ask_where_, {}))
    streams_->send(peer,
                   {.kind = Kind::meet, .step = options_.silence.count(), .text = meeting_place_});
}

// Of a process that has not joined it is the coordinator's word that all is over, for workers that
// come too late.
void ViewService::on_finished(Peer from, Member& member) {
  member.left = true;
  if (member.joined) return;
  meeting_over_ = true;
  streams_->send(from, {.kind = Kind::finished});
}

void ViewService::on_closed(Peer from, const std::string& how) {
  const auto found = members_.find(from);
  if (found == members_.end()) return;
  const Member member = found->second;
  members_.erase(found);
  if (!member.joined || over_) return;
  if (member.left) {
    if (member.who.kind == Peer::Kind::worker) state_.finish_worker(member.who.number);
  } else {
    lose(member, how);
  }
  publish();
}

void ViewService::lose(const Member& member, const std::string& how) {
  const std::string words =
      member.last.empty() ? how : fmt::format("{} after {}", how, member.last);
  if (member.who.kind == Peer::Kind::worker)
    state_.lose_worker(member.who.number, words);
  else
    state_.lose_server(member.who.number, words);
}

void ViewService::publish() {
  if (state_.view() == told_) return;
  for (const std::string& line : changes(told_, state_.view()))
    log(line.ends_with("has finished") || line.ends_with("has come") ? LogLevel::info
                                                                     : LogLevel::warning,
        "{}", line);
  told_ = state_.view();
  changed_.notify_all();
  for (const auto& [peer, member] : members_)
    if (member.joined) streams_->send(peer, {.kind = Kind::view, .text = to_text(told_)});
  if (snapshots_) snapshots_->on_view(told_, Clock::now());
  // Else those that end with the failure would be reported as lost, too.
  if (!told_.failure.empty())
    end_servers(told_.failure);
  else if (all_workers_gone())
    end_when_saved();
  for (const auto& [peer, member] : members_) streams_->flush(peer);
}

bool ViewService::any_worker_came() const {
  return std::ranges::any_of(state_.view().workers,
                             [](const ProcessView& worker) { return worker.comings > 0; });
}

bool ViewService::all_workers_gone() const {
  return told_.number > 0 && std::ranges::none_of(told_.workers, [](const ProcessView& worker) {
           return worker.alive || worker.ending.empty();
         });
}

// The job is over: what the servers have at its end is the last snapshot.
void ViewService::end_when_saved() {
  const bool workers =
      std::ranges::any_of(told_.workers, [](const ProcessView& worker) { return worker.alive; });
  if (over_ || workers) return;
  const bool trained = state_.begun() && any_worker_came();
  if (snapshots_ && told_.failure.empty() && trained) {
    if (!std::exchange(last_cut_, true)) {
      snapshots_->give_up("no worker is left, the last snapshot begins", Clock::now(),
                          LogLevel::info);
      snapshots_->begin(state_.view(), Clock::now());
    }
    if (snapshots_->busy()) return;
  }
  end_servers(told_.failure);
}

void ViewService::tell_cuts() {
  const auto cut = snapshots_->process();
  if (!cut || over_) return;
  const auto of_whom = last_cut_ ? Peer::Kind::server : Peer::Kind::worker;
  for (const auto& [peer, member] : members_) {
    if (!member.joined || member.who.kind != of_whom) continue;
    streams_->send(peer, *cut);
    streams_->flush(peer);
  }
}

void ViewService::end_servers(const std::string& why) {
  if (std::exchange(over_, true)) return;
  ended_.notify_all();
  for (const auto& [peer, member] : members_) {
    streams_->send(peer, {.kind = Kind::finished, .text = why});
    streams_->flush(peer);
  }
}

void ViewService::look_after(TimePoint now) {
  std::vector<Peer> silent;
  for (const auto& [peer, member] : members_)
    if (now - member.heard >= options_.silence) silent.push_back(peer);
  for (const Peer peer : silent) {
    streams_->drop(peer);
    on_closed(peer, fmt::format("was silent for {} ms", options_.silence.count()));
  }
  // Before that there is nothing to keep, however long the workers take to start.
  if (snapshots_ && state_.begun() && any_worker_came() && !over_) {
    snapshots_->look_after(now);
    if (snapshots_->due(now) && !last_cut_) snapshots_->begin(state_.view(), now);
  }
  if (now < next_beat_) return;
  next_beat_ = now + options_.silence / kBeatsPerLimit;
  for (const auto& [peer, member] : members_) {
    streams_->send(peer, {.kind = Kind::progress});
    streams_->flush(peer);
  }
}

}  // namespace tutti::ps
