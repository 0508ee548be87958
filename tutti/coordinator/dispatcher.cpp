#include "tutti/coordinator/dispatcher.h"

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/host.h"
#include "tutti/base/log.h"
#include "tutti/base/threads.h"
#include "tutti/net/connect.h"

namespace tutti::coordinator {
namespace {

using Kind = ps::Message::Kind;
using ps::Peer;

constexpr Millis kFarewell{2'000};
constexpr int64_t kLeastShared = 4 << 10;  // shorter ones go as bytes anyway

Address own_address(const DispatcherOptions& options) {
  if (!options.interface.empty())
    return choose_local_address(options.interface, "the coordinator's interface",
                                local_interfaces());
  return local_address_towards(resolve(options.view_service, Deadline(options.limit)).at(0));
}

}  // namespace

Dispatcher::Dispatcher(const DispatcherOptions& options, const Credentials& credentials)
    : options_(options),
      listener_(own_address(options), credentials),
      heap_(std::make_shared<ps::SharedHeap>()),
      state_(
          options.most_waiting, [this](int worker, const Task& task) { give(worker, task); },
          [this](int64_t task, const Outcome& outcome) {
            const auto ticket = tickets_.extract(task).mapped();
            ticket->outcome = outcome;
            ticket->ended = true;
          }),
      silence_(options.limit),
      found_until_(time_after(options.limit)) {
  streams_ = std::make_unique<ps::Streams>(
      heap_, credentials,
      ps::Streams::Events{
          .message = [this](Peer from, const ps::Message& m) { on_message(from, m); },
          .connected = [this](Peer peer) { on_connected(peer); },
          .closed = [this](Peer peer, const std::string& how) { on_closed(peer, how); }});
  // Of this kind connections are numbered as they come: who has which number is decided here.
  streams_->take_from(listener_, kStepsPurpose, Peer::Kind::view_service);
  streams_->connect_to_service(options.view_service, options.limit);
  thread_ = start_thread("the dispatcher of steps", [this] { work(); });
}

Dispatcher::~Dispatcher() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  streams_->wake();
  thread_.join();
}

// ---- what programs ask for ----

// The limits of steps, of silence and of time without workers see to it that it comes.
template <class Ready>
void Dispatcher::wait_until(std::unique_lock<std::mutex>& lock, Ready&& ready) {
  changed_.wait(lock, [&] { return ready() || !broken_.empty(); });
  if (!ready()) throw Error(broken_);
}

std::shared_ptr<const Ticket> Dispatcher::schedule(const std::string& step,
                                                   const std::string& arguments) {
  const int64_t bytes = std::ssize(arguments);
  if (bytes > kMostFrameBytes)
    throw UsageError(fmt::format("schedule: the arguments of step \"{}\" take {} bytes; at most {}",
                                 step, bytes, kMostFrameBytes));
  const std::span<const std::byte> given = std::as_bytes(std::span(arguments));
  ps::Bytes payload;
  if (bytes < kLeastShared) {
    payload = ps::Bytes::copy_of(given);
  } else {  // where workers of this host read it
    const auto memory = heap_->allocate(bytes);
    std::ranges::copy(given, memory.get());
    payload = {{memory.get(), given.size()}, memory};
  }
  std::unique_lock lock(mutex_);
  wait_until(lock, [&] { return !state_.full() || state_.failed(); });
  raise_if_failed(lock);
  auto ticket = std::make_shared<Ticket>();
  tickets_.emplace(state_.schedule(step, std::move(payload)), ticket);
  return ticket;
}

void Dispatcher::join() {
  std::unique_lock lock(mutex_);
  wait_until(lock, [&] { return state_.idle() || state_.failed(); });
  raise_if_failed(lock);
}

bool Dispatcher::done() {
  std::unique_lock lock(mutex_);
  raise_if_failed(lock);
  return state_.idle();
}

void Dispatcher::raise_if_failed(std::unique_lock<std::mutex>& lock) {
  if (!state_.failed()) return;
  wait_until(lock, [&] { return !state_.runs(); });
  throw Error(state_.take_error());
}

ps::Bytes Dispatcher::fetch(const Ticket& ticket) {
  std::unique_lock lock(mutex_);
  wait_until(lock, [&] { return ticket.ended; });
  const Outcome& outcome = ticket.outcome;
  if (outcome.kind == Outcome::Kind::cancelled)
    throw Error(fmt::format("this step was cancelled, after: {}", outcome.words));
  if (outcome.kind == Outcome::Kind::failed) throw Error(outcome.words);
  return outcome.result;
}

DispatchCounts Dispatcher::counts() const {
  const std::lock_guard lock(mutex_);
  return state_.counts();
}

// ---- the links ----

void Dispatcher::work() {
  try {
    for (bool ends = false; !ends;) {
      streams_->wait(kTurn);
      const std::lock_guard lock(mutex_);
      turn(Clock::now());
      ends = ends_;
    }
    say_goodbye();
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex_);
    broken_ = fmt::format("the coordinator's links: {}", error.what());
    changed_.notify_all();
  }
}

void Dispatcher::turn(TimePoint now) {
  streams_->process();
  look_after(now);
  mind_lack_of_workers(now);
  beat(now);
  changed_.notify_all();
}

// Until the workers have heard it, and have closed their ends; the view service tells those who
// come later.
void Dispatcher::say_goodbye() {
  const Deadline deadline(kFarewell);
  std::unique_lock lock(mutex_);
  for (const Peer peer : connected_) {
    streams_->send(peer, {.kind = Kind::finished});
    streams_->flush(peer);
  }
  if (met_) streams_->connect_to_service(options_.view_service, kFarewell);
  streams_->process();
  while (!(connected_.empty() && service_knows_end_) && !deadline.passed()) {
    lock.unlock();
    streams_->wait(std::min(kTurn, deadline.left()));
    lock.lock();
    streams_->process();
  }
}

void Dispatcher::on_connected(Peer peer) {
  if (peer == Peer{}) {
    if (ends_) return streams_->send(peer, {.kind = Kind::finished});
    const ps::Whereabouts here{listener_.address().text(), streams_->memory_name()};
    streams_->send(peer, {.kind = Kind::meet, .text = here.text()});
    return;
  }
  connected_.insert(peer);
  if (ends_) streams_->send(peer, {.kind = Kind::finished});
}

void Dispatcher::on_closed(Peer peer, const std::string& how) {
  if (peer != Peer{}) {
    connected_.erase(peer);
    if (const int worker = worker_at(peer); worker > 0) lose(worker, how);
    return;
  }
  if (ends_) service_knows_end_ = true;  // or it has ended itself
  if (met_ || ends_) return;
  if (Clock::now() < found_until_)
    streams_->connect_to_service(options_.view_service, options_.limit);
  else
    state_.give_up("the view service of the parameter servers " + how);
}

void Dispatcher::on_message(Peer from, const ps::Message& message) {
  if (from == Peer{}) {
    if (message.kind == Kind::finished) service_knows_end_ = true;
    if (message.kind != Kind::meet) return;
    met_ = true;
    silence_ = Millis(message.step);
    next_beat_ = {};
    streams_->drop(Peer{});
    return;
  }
  if (message.kind == Kind::enlist) return enlist(from, message);
  const int worker = worker_at(from);
  if (worker == 0) throw Mismatch(fmt::format("a {} of no worker", ps::name_of(message.kind)));
  members_.at(worker).heard = Clock::now();
  switch (message.kind) {
    case Kind::progress: return;
    case Kind::outcome:
      if ((message.flags & ps::Message::failed) != 0)
        state_.fail(worker, message.sequence, message.text);
      else  // what lies in a worker's memory is the worker's own to change
        state_.done(worker, message.sequence, ps::Bytes::copy_of(message.payload.span));
      return;
    default: throw Mismatch(fmt::format("a {} to the coordinator", ps::name_of(message.kind)));
  }
}

void Dispatcher::drop(Peer peer) {
  streams_->drop(peer);
  connected_.erase(peer);
}

// The worker at that end of a connection; 0: none.
int Dispatcher::worker_at(Peer peer) const {
  for (const auto& [worker, member] : members_)
    if (member.peer == peer) return worker;
  return 0;
}

// "1f3a... host b, pid 77"
void Dispatcher::enlist(Peer from, const ps::Message& message) {
  const int worker = message.worker;
  const size_t blank = message.text.find(' ');
  const std::string build = message.text.substr(0, blank);
  const std::string process = blank == std::string::npos ? "" : message.text.substr(blank + 1);
  const std::string name = fmt::format("worker {} ({})", worker, process);
  const std::string why = objection(worker, name, build);
  if (!why.empty()) {
    log(LogLevel::warning, "{}", why);
    if (!members_.contains(worker)) refused_[worker] = why;
    streams_->send(from, {.kind = Kind::refused, .text = why});
    return;
  }
  // The same process may have noticed sooner than this one that their connection broke.
  if (const auto before = members_.find(worker); before != members_.end()) {
    drop(before->second.peer);
    lose(worker, "connected anew");
  }
  refused_.erase(worker);
  members_[worker] = {.name = name, .peer = from, .heard = Clock::now()};
  streams_->send(from, {.kind = Kind::enlisted, .step = silence_.count()});
  log(LogLevel::info, "{} has come", name);
  state_.come(worker, name);
}

std::string Dispatcher::objection(int worker, const std::string& name,
                                  const std::string& build) const {
  if (worker < 1 || worker > options_.num_workers)
    return fmt::format("{}: there are {}, from 1 on", name, options_.num_workers);
  if (build != options_.build)
    return fmt::format(
        "{} runs build {}, the coordinator ({}) build {}; all processes of a job run one program",
        name, build, process_words(), options_.build);
  const auto there = members_.find(worker);
  if (there != members_.end() && there->second.name != name)
    return fmt::format("{}: {} is there already", name, there->second.name);
  return "";
}

void Dispatcher::give(int worker, const Task& task) {
  Member& member = members_.at(worker);
  member.given = Clock::now();
  streams_->send(
      member.peer,
      {.kind = Kind::task, .sequence = task.number, .text = task.step, .payload = task.arguments});
  if (!streams_->flush(member.peer)) streams_->wake();
}

// ---- time passes ----

void Dispatcher::lose(int worker, const std::string& how) {
  const auto member = members_.find(worker);
  if (member == members_.end()) return;
  const Task* const held = state_.running(worker);
  log(ends_ ? LogLevel::info : LogLevel::warning, "{} {}{}", member->second.name, how,
      held == nullptr ? "" : fmt::format("; step \"{}\" is given to another worker", held->step));
  members_.erase(member);
  if (members_.empty()) alone_since_ = Clock::now();
  state_.lose(worker, how);
}

void Dispatcher::look_after(TimePoint now) {
  std::vector<int> silent, late;
  for (const auto& [worker, member] : members_) {
    if (now - member.heard >= silence_) silent.push_back(worker);
    if (state_.running(worker) != nullptr && now - member.given >= options_.step_limit)
      late.push_back(worker);
  }
  for (const int worker : silent) {
    drop(members_.at(worker).peer);
    lose(worker, fmt::format("was silent for {} ms", silence_.count()));
  }
  for (const int worker : late) {
    const Task* const task = state_.running(worker);
    if (task == nullptr) continue;
    const std::string words =
        fmt::format("it did not end within {} ms", options_.step_limit.count());
    state_.fail(worker, task->number, words);
    drop(members_.at(worker).peer);
    lose(worker, "was too long in a step");
  }
}

void Dispatcher::mind_lack_of_workers(TimePoint now) {
  if (!members_.empty() || state_.num_waiting() == 0) return;
  const bool all_refused = std::ssize(refused_) == options_.num_workers;
  if (!all_refused && now - alone_since_ < options_.without_workers) return;
  state_.give_up(words_of_lack());
}

std::string Dispatcher::words_of_lack() const {
  std::string words = fmt::format("no worker is there, and {} steps wait", state_.num_waiting());
  if (!state_.last_lost().empty()) words += "; the last one: " + state_.last_lost();
  for (const auto& [worker, why] : refused_) words += "\n  " + why;
  return words;
}

void Dispatcher::beat(TimePoint now) {
  if (now < next_beat_) return;
  next_beat_ = now + silence_ / kBeatsPerLimit;
  for (const auto& [worker, member] : members_) {
    streams_->send(member.peer, {.kind = Kind::progress});
    streams_->flush(member.peer);
  }
}

}  // namespace tutti::coordinator
