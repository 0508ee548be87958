#include "tutti/ps/server/view_service.h"

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/log.h"
#include "tutti/base/threads.h"
#include "tutti/ps/spec/update_order.h"
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

// Who it is, where it listens, what it does with the order of updates.
std::vector<std::string> lines_of_join(const std::string& text) {
  std::vector<std::string> lines;
  size_t begin = 0;
  while (lines.size() < 2 && begin <= text.size()) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  lines.push_back(begin <= text.size() ? text.substr(begin) : "");
  lines.resize(3);
  return lines;
}

Peer peer_of(const Message& join) {
  return join.worker >= 0 ? Peer{Peer::Kind::worker, join.worker}
                          : Peer{Peer::Kind::server, static_cast<int>(join.sequence)};
}

bool any_worker_came(const View& view) {
  return std::ranges::any_of(view.workers,
                             [](const ProcessView& worker) { return worker.comings > 0; });
}

bool all_workers_gone(const View& view) {
  return view.number > 0 && std::ranges::none_of(view.workers, [](const ProcessView& worker) {
           return worker.alive || worker.ending.empty();
         });
}

}  // namespace

ViewService::ViewService(const ViewServiceOptions& options, const Address& at,
                         const Credentials& credentials)
    : options_(options), listener_(at, credentials), order_(options.order) {
  trainings_.push_back(
      {.state = {options.num_servers, options.num_workers, options.backups, options.reserved}});
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
  return trainings_.front().state.view();
}

int ViewService::num_trainings() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(trainings_.size());
}

bool ViewService::wait_until(const std::function<bool(const View&)>& done,
                             const Deadline& deadline) const {
  std::unique_lock lock(mutex_);
  const ViewState& first = trainings_.front().state;
  const auto settled = [&] { return done(first.view()) || !first.view().failure.empty(); };
  changed_.wait_until(lock, deadline.at(), settled);
  return done(first.view());
}

void ViewService::lose_worker(int worker, const std::string& ending) {
  const std::lock_guard lock(mutex_);
  if (over_) return;
  const std::string how = is_text(ending) ? ending : "ended";
  lost_.emplace(worker, how);
  for (Training& training : trainings_) {
    if (training.state.view().workers.at(worker).alive) continue;
    training.state.lose_worker(worker, how);
    publish(training);
  }
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
    end_job("");
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex_);
    fail(fmt::format("the view service of the parameter servers failed: {}", error.what()));
  }
}

void ViewService::turn() {
  streams_->process();
  if (snapshots_) tell_cuts();
  look_after(Clock::now());
  for (Training& training : trainings_)
    if (closing_ || all_workers_gone(training.told)) end_when_saved(training);
  if (closing_ && std::ranges::all_of(trainings_, &Training::over)) end_job("");
}

// The job ends with these words, as far as they can still be told.
void ViewService::fail(const std::string& why) noexcept {
  try {
    log(LogLevel::error, "{}", why);
    for (Training& training : trainings_) training.state.fail(why);
    changed_.notify_all();
    end_job(why);
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
  switch (message.kind) {
    case Kind::join: return on_join(from, member, message);
    case Kind::progress: member.last = message.text; return;
    case Kind::meet: return on_meet(from, message.text);
    case Kind::finished: return on_finished(from, member);
    case Kind::synced:
    case Kind::suspect:
    case Kind::written: break;
    default: throw Mismatch(fmt::format("a {} to the view service", name_of(message.kind)));
  }
  if (!member.training || member.who.kind != Peer::Kind::server)
    throw Mismatch(fmt::format("a {} of no server", name_of(message.kind)));
  if (member.training->over) return;  // servers leave it, one before the other
  take_of_server(*member.training, member.who.number, message);
  publish(*member.training);
}

void ViewService::take_of_server(Training& training, int number, const Message& message) {
  const int other = static_cast<int>(message.sequence);
  if (message.kind == Kind::synced) {
    training.state.synced(message.partition, number, other);
  } else if (message.kind == Kind::suspect) {
    log(LogLevel::warning, "server {} does not reach server {}: {}", number, other, message.text);
    training.state.suspect(message.partition, number, other);
  } else if (snapshots_) {
    snapshots_->on_written(message, Clock::now());
  }
}

void ViewService::on_join(Peer from, Member& member, const Message& message) {
  if (member.training) throw Mismatch("it joined twice");
  const std::vector<std::string> lines = lines_of_join(message.text);
  if (message.text.size() > kMostOfAJoin || !is_text(message.text))
    throw Mismatch("it does not say in text who it is");
  member.who = peer_of(message);
  try {
    require_same_order(member.who, lines[2]);
    Training& training = training_for(message.index, member.who);
    join(training, member, lines[0], lines[1]);
  } catch (const UsageError& error) {
    member.refused = true;
    streams_->send(from, {.kind = Kind::refused, .text = error.what()});
    streams_->flush(from);
    return;
  }
  Training& training = *member.training;
  streams_->send(
      from,
      {.kind = Kind::joined, .sequence = member.who.number, .step = options_.silence.count()});
  streams_->send(from, {.kind = Kind::view, .text = to_text(training.state.view())});
  if (member.who.kind == Peer::Kind::worker && snapshots_ && snapshots_->told() && !last_cut_)
    streams_->send(from, *snapshots_->told());
  if (member.who.kind == Peer::Kind::server) tell_server_that_came(from, member);
  publish(training);
}

// One of them that does not follow the order has the bits of nobody's, and nothing says so. Workers
// have nothing to do with one that is recorded.
void ViewService::require_same_order(Peer who, const std::string& order) {
  const bool server = who.kind == Peer::Kind::server;
  if (!order_ && !server) return;
  if (!order_) order_ = order;
  const std::string expected = !server && *order_ == kRecordsOrder ? "" : *order_;
  if (order == expected) return;
  const auto words = [](const std::string& text) { return text.empty() ? "neither flag" : text; };
  throw UsageError(
      fmt::format("{} has {}, and its job has {}\n  start it with the job's --record-order or "
                  "--replay-order; of the latter the file is the same for all",
                  server ? "this server" : fmt::format("worker {}", who.number), words(order),
                  words(expected)));
}

void ViewService::join(Training& training, Member& member, const std::string& process,
                       const std::string& where) {
  int& number = member.who.number;
  if (member.who.kind == Peer::Kind::worker) {
    training.state.add_worker(number, process);
    lost_.erase(number);
  } else {
    number = training.state.add_server(process, where, number);
    std::erase_if(training.expected, [&](const auto& entry) { return entry.second == number; });
  }
  member.training = &training;
}

// The first worker that asks for one begins it: it has joined those before.
ViewService::Training& ViewService::training_for(int64_t number, Peer who) {
  const bool worker = who.kind == Peer::Kind::worker;
  const auto begun = static_cast<int64_t>(trainings_.size());
  if (number < 0 || (number >= begun && !worker))
    throw Mismatch(fmt::format("it joins training {} of {}", number, begun));
  if (number >= begun) return begin_training(number, who.number);
  Training& training = trainings_[number];
  if (training.over && worker)
    throw UsageError(fmt::format(
        "worker {} comes to training {} of this job, which is over{}", who.number, number,
        begun == 1 ? ", since no worker of it was left"
                   : ": a worker that is started again begins its program anew, and can go on in "
                     "the first training alone; train those after it by jobs of their own, or "
                     "without --restarts"));
  return training;
}

ViewService::Training& ViewService::begin_training(int64_t number, int worker) {
  const auto begun = static_cast<int64_t>(trainings_.size());
  if (number > begun || worker >= options_.num_workers || !trainings_.front().state.begun())
    throw UsageError(fmt::format(
        "worker {} comes to training {}; there are {} workers, and {} trainings have begun: all "
        "workers are to make the same optimizers, in one order",
        worker, number, options_.num_workers, begun));
  if (!options_.snapshots.folder.empty() || !options_.snapshots.goes_on_from.empty())
    throw UsageError(
        "a second optimizer on these servers (load() behind compile() makes one), and --snapshots "
        "or --restore: snapshots are of jobs with one training; load() before compile(), or leave "
        "them out");
  if (!options_.one_training.empty())
    throw UsageError(fmt::format(
        "a second optimizer on these servers (load() behind compile() makes one), and {}: an order "
        "of updates is of one training; load() before compile(), or leave it out",
        options_.one_training));
  const View& first = trainings_.front().state.view();
  Training& training =
      trainings_.emplace_back(Training{.number = static_cast<int>(trainings_.size()),
                                       .state = {options_.num_servers, options_.num_workers,
                                                 options_.backups, options_.num_servers, true}});
  const std::vector<int> hosts = servers_for_later(first, options_.num_servers);
  for (int number = 0; number < options_.num_servers; ++number) {
    if (hosts[number] >= 0)
      training.expected.emplace(hosts[number], number);
    else
      training.state.miss_server(number, first.servers[number].name, first.servers[number].ending);
  }
  for (const auto& [worker, how] : lost_) training.state.lose_worker(worker, how);
  for (const auto& [peer, member] : members_)
    if (member.training == &trainings_.front() && member.who.kind == Peer::Kind::server)
      tell_of(training, peer, member.who.number);
  return training;
}

// A thread of its process is to be a server of that training.
void ViewService::tell_of(const Training& training, Peer to, int server) {
  const auto expected = training.expected.find(server);
  streams_->send(to, {.kind = Kind::also,
                      .index = training.number,
                      .sequence = expected == training.expected.end() ? -1 : expected->second});
  streams_->flush(to);
}

void ViewService::tell_server_that_came(Peer from, const Member& member) {
  if (member.training->over) {
    log(LogLevel::info, "{} has come",
        member.training->state.view().servers[member.who.number].name);
    tell_over(*member.training, from);
  }
  if (member.training->number > 0) return;
  for (const Training& training : trainings_)
    if (training.number > 0 && !training.over) tell_of(training, from, member.who.number);
}

// Its process stays for other trainings.
void ViewService::tell_over(const Training& training, Peer to) {
  streams_->send(to, {.kind = training.number == 0 ? Kind::over : Kind::finished});
  streams_->flush(to);
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
  if (member.training || member.refused) return;
  meeting_over_ = true;
  streams_->send(from, {.kind = Kind::finished});
}

void ViewService::on_closed(Peer from, const std::string& how) {
  const auto found = members_.find(from);
  if (found == members_.end()) return;
  const Member member = found->second;
  members_.erase(found);
  if (!member.training || over_) return;
  if (!member.left)
    lose(member, how);
  else if (member.who.kind == Peer::Kind::worker)
    member.training->state.finish_worker(member.who.number);
  publish(*member.training);
}

void ViewService::lose(const Member& member, const std::string& how) {
  const std::string words =
      member.last.empty() ? how : fmt::format("{} after {}", how, member.last);
  const int number = member.who.number;
  Training& training = *member.training;
  if (member.who.kind == Peer::Kind::worker) {
    training.state.lose_worker(number, words);
    if (!training.over) lost_[number] = words;
    return;
  }
  training.state.lose_server(number, words);
  if (training.over)
    log(LogLevel::warning, "{} {}", training.state.view().servers[number].name, words);
  if (training.number == 0) lose_before_it_came(number, words);
}

// A server's process has gone, which was to come to later trainings, too.
void ViewService::lose_before_it_came(int server, const std::string& words) {
  for (Training& training : trainings_) {
    const auto expected = training.expected.find(server);
    if (expected == training.expected.end()) continue;
    const std::string& name = trainings_.front().state.view().servers[server].name;
    training.state.miss_server(expected->second, name, words);
    training.expected.erase(expected);
    publish(training);
  }
}

void ViewService::publish(Training& training) {
  const View& view = training.state.view();
  if (training.over || view == training.told) return;
  for (const std::string& line : changes(training.told, view))
    log(line.ends_with("has finished") || line.ends_with("has come") ? LogLevel::info
                                                                     : LogLevel::warning,
        "{}{}", training.number == 0 ? "" : fmt::format("training {}: ", training.number), line);
  training.told = view;
  changed_.notify_all();
  for (const auto& [peer, member] : members_)
    if (member.training == &training)
      streams_->send(peer, {.kind = Kind::view, .text = to_text(view)});
  if (snapshots_) snapshots_->on_view(view, Clock::now());
  // Else those that end with the failure would be reported as lost, too.
  if (!view.failure.empty())
    end_job(view.failure);
  else if (all_workers_gone(training.told))
    end_when_saved(training);
  for (const auto& [peer, member] : members_) streams_->flush(peer);
}

// What the servers have at the end of the only training is the last snapshot.
void ViewService::end_when_saved(Training& training) {
  const View& view = training.state.view();
  if (over_ || training.over || std::ranges::any_of(view.workers, &ProcessView::alive)) return;
  const bool trained = training.state.begun() && any_worker_came(view);
  if (snapshots_ && view.failure.empty() && trained) {
    if (!std::exchange(last_cut_, true)) {
      snapshots_->give_up("no worker is left, the last snapshot begins", Clock::now(),
                          LogLevel::info);
      snapshots_->begin(view, Clock::now());
    }
    if (snapshots_->busy()) return;
  }
  training.over = true;
  for (const auto& [peer, member] : members_)
    if (member.training == &training && member.who.kind == Peer::Kind::server)
      tell_over(training, peer);
}

void ViewService::tell_cuts() {
  const auto cut = snapshots_->process();
  if (!cut || over_) return;
  const auto of_whom = last_cut_ ? Peer::Kind::server : Peer::Kind::worker;
  for (const auto& [peer, member] : members_) {
    if (!member.training || member.who.kind != of_whom) continue;
    streams_->send(peer, *cut);
    streams_->flush(peer);
  }
}

void ViewService::end_job(const std::string& why) {
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
  const ViewState& first = trainings_.front().state;
  if (snapshots_ && first.begun() && any_worker_came(first.view()) && !over_) {
    snapshots_->look_after(now);
    if (snapshots_->due(now) && !last_cut_) snapshots_->begin(first.view(), now);
  }
  if (now < next_beat_) return;
  next_beat_ = now + options_.silence / kBeatsPerLimit;
  for (const auto& [peer, member] : members_) {
    streams_->send(peer, {.kind = Kind::progress});
    streams_->flush(peer);
  }
}

}  // namespace tutti::ps
