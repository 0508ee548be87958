#include "tutti/ps/server/training_server.h"

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/event.h"
#include "tutti/base/host.h"
#include "tutti/base/log.h"
#include "tutti/net/connect.h"

namespace tutti::ps {
namespace {

using Kind = Message::Kind;

constexpr int kMostThreads = 4;
constexpr int64_t kLeastShared = 16;  // chunks of a piece: less work than waking a thread
constexpr int64_t kCopyAhead = int64_t{4} << 20;  // of a copy, waiting to leave
constexpr Millis kConnectLimit{5'000};
constexpr Millis kPause{100};        // before the next try to connect
constexpr Millis kUnflushed{1'000};  // of the order of updates, at most
// What takes longest, putting the rows of a table in order, takes a minute for about 200 million.
constexpr Millis kLongestTurn{60'000};

// What workers push and are answered, for who listens to events.
void tell(std::string_view name, int server, int worker, const Message& message) {
  emit(name, {{"server", int64_t{server}},
              {"worker", int64_t{worker}},
              {"piece", int64_t{message.piece}},
              {"step", message.step},
              {"sequence", message.sequence},
              {"version", message.version},
              {"bytes", message.payload.size()}});
}

std::shared_ptr<const UpdateOrder> replayed_by(const ServerOptions& options) {
  if (options.replay_order.empty()) return nullptr;
  return std::make_shared<const UpdateOrder>(read_order(options.replay_order));
}

}  // namespace

TrainingServer::TrainingServer(const ServerOptions& options, const Credentials& credentials,
                               const Place& place, std::shared_ptr<SharedHeap> heap, Also also)
    : options_(options),
      replay_(replayed_by(options)),
      training_(place.training),
      job_(credentials.job),
      also_(std::move(also)),
      heap_(std::move(heap)),
      listener_(place.address, credentials),
      parallel_(options.threads > 0 ? options.threads
                                    : std::clamp(host_facts().usable_cores, 1, kMostThreads)),
      streams_(heap_, credentials,
               {.message = [this](Peer from, Message m) { on_message(from, std::move(m)); },
                .connected = [this](Peer peer) { on_connected(peer); },
                .closed = [this](Peer peer, const std::string& how) { on_closed(peer, how); }},
               options.share_memory),
      link_(streams_, {.who = {Peer::Kind::server, place.number},
                       .training = place.training,
                       .name = process_words(),
                       .where = {listener_.address().text(), streams_.memory_name()},
                       .order = order_words(),
                       .silence = options.silence}) {
  streams_.connect_to_service(options.view_service, options.limit);
  pulse_.emplace(mutex_, kLongestTurn, [this] {
    link_.beat(Clock::now(), last_words_);
    return link_.until_beat(Clock::now());
  });
}

void TrainingServer::stop() {
  {
    const std::lock_guard lock(mutex_);
    finished_ = true;
  }
  streams_.wake();
}

void TrainingServer::fail(std::exception_ptr why) {
  {
    const std::lock_guard lock(mutex_);
    failure_ = std::move(why);
  }
  streams_.wake();
}

void TrainingServer::run() {
  std::unique_lock lock(mutex_);
  while (!finished_) {
    const Millis limit = link_.until_beat(Clock::now());
    pulse_->end_turn();
    lock.unlock();
    streams_.wait(limit, options_.poll);
    lock.lock();
    const TimePoint now = Clock::now();
    pulse_->begin_turn(now);
    turn(now);
  }
  pulse_->end_turn();
  link_.say_goodbye();
  streams_.flush(Peer{});
  forget();
}

void TrainingServer::turn(TimePoint looks) {
  continue_copies();
  streams_.process();
  for (Message& written : writer_.take_written()) say_written(std::move(written));
  if (failure_) std::rethrow_exception(failure_);
  if (!pulse_->failure().empty()) throw Error(pulse_->failure());
  // What the service said while this took its time is heard in the next turn.
  if (const std::string silent = link_.silent(looks); !silent.empty()) throw PeerLost(silent);
  if (state_ && !state_->over().empty()) throw Error(state_->over());
  reach_followers();
  last_words_ = last_words();
  flush_parts(looks, false);
  if (may_copy()) streams_.wake();
}

// What may take long goes without the lock, so that the pulse beats.
template <class Action>
void TrainingServer::without_lock(Action action) {
  struct Unlocked {
    explicit Unlocked(std::mutex& held) : mutex(held) { mutex.unlock(); }
    ~Unlocked() { mutex.lock(); }
    std::mutex& mutex;
  };
  const Unlocked unlocked(mutex_);
  action();
}

// What decides needs the lock only to speak.
template <class Decision>
void TrainingServer::decide(Decision decision) {
  if (state_) without_lock([&] { decision(*state_); });
}

void TrainingServer::forget() {
  without_lock([this] {
    end_parts();
    parts_.clear();
  });
  without_lock([gone = std::move(state_)]() mutable { gone.reset(); });
}

void TrainingServer::on_message(Peer from, Message message) {
  if (from != Peer{}) {
    if (message.kind == Kind::push && from.kind == Peer::Kind::worker)
      tell("ps.push_came", number_, from.number, message);
    return decide([&](ServerState& state) { state.on_message(from, std::move(message)); });
  }
  link_.hear();
  switch (message.kind) {
    case Kind::joined:
      link_.on_joined(message);
      pulse_->wake();  // it may have to beat more often than it thought
      begin(static_cast<int>(message.sequence));
      break;
    case Kind::refused: throw UsageError(message.text);
    case Kind::view:
      decide([&](ServerState& state) { state.on_view(view_from(message.text)); });
      flush_parts(Clock::now(), true);
      break;
    case Kind::cut:
      decide([&](ServerState& state) { state.cut_all(message.sequence, message.text); });
      break;
    case Kind::also:
      if (also_)
        without_lock(
            [&] { also_(static_cast<int>(message.index), static_cast<int>(message.sequence)); });
      break;
    case Kind::over: forget(); break;
    case Kind::finished:
      if (!message.text.empty()) throw Error(message.text);
      finished_ = true;
      break;
    default: break;
  }
}

void TrainingServer::begin(int number) {
  number_ = number;
  state_ = std::make_unique<ServerState>(
      number,
      Compute{.allocate = [heap = heap_](int64_t bytes) { return heap->allocate(bytes); },
              .charge = [heap = heap_](int64_t bytes) { heap->charge(bytes); },
              .for_each = [this](int64_t count, const auto& fn) { for_each(count, fn); }},
      [this](Peer to, Message message) { deliver(to, std::move(message)); },
      [this](int partition, std::shared_ptr<PartitionCut> cut) {
        writer_.add(partition, std::move(cut));
      },
      ordering());
  streams_.take_from(listener_, kServerPurpose, Peer::Kind::primary);
  streams_.take_from(listener_, kWorkerPurpose, Peer::Kind::worker);
}

ServerState::Ordering TrainingServer::ordering() {
  ServerState::Ordering ordering;
  ordering.replay = replay_;
  if (!options_.record_order.empty())
    ordering.take_record = [this](int partition, const PartitionState& state,
                                  const OrderRecord& record_of, const Message& order) {
      record(partition, state, record_of, order);
    };
  return ordering;
}

std::string TrainingServer::order_words() const {
  if (replay_) return words_of_replay(*replay_);
  return options_.record_order.empty() ? "" : kRecordsOrder;
}

// One that joined later has not seen the records before.
OrderPart& TrainingServer::part_at(int partition, const PartitionState& state, int64_t number) {
  Part& part = parts_[partition];
  if (!part.file || part.next != number)
    part.file = std::make_unique<OrderPart>(options_.record_order, partition, number_, number,
                                            to_text(state.spec()), job_);
  part.next = number;
  return *part.file;
}

void TrainingServer::record(int partition, const PartitionState& state, const OrderRecord& record,
                            const Message& order) {
  part_at(partition, state, state.num_records() - 1).add(record);
  ++parts_[partition].next;
  if (record.kind != OrderRecord::Kind::lease || knows_asked_) return;
  const std::string asked = lease_request_from(order.text).agreed;
  knows_asked_ = !asked.empty();
  if (knows_asked_) write_asked(options_.record_order, asked);
}

// Behind a view, and before a copy, another one's records may begin where only these are known
// before.
void TrainingServer::flush_parts(TimePoint now, bool at_once) {
  if (parts_.empty() || (!at_once && now < next_flush_)) return;
  next_flush_ = now + kUnflushed;
  for (auto& [partition, part] : parts_) part.file->flush();
}

// The job is over in order: of what this server leads it has all. Whoever finds no such end knows
// that something is missing.
void TrainingServer::end_parts() {
  if (!state_ || options_.record_order.empty() || !state_->over().empty()) return;
  for (const int partition : state_->partitions()) {
    const PartitionState& state = state_->partition(partition);
    if (state_->view().partitions.at(partition).primary == number_ && state.registered())
      part_at(partition, state, state.num_records()).end();
  }
}

// As much as the connections take, before process() finds out what to wait for: a large table is
// not read ahead of them.
void TrainingServer::continue_copies() {
  if (!state_) return;
  const auto copied_to = state_->copies_to();
  if (!copied_to.empty()) flush_parts(Clock::now(), true);
  for (const int follower : copied_to)
    if (has_room(follower)) decide([&](ServerState& state) { state.continue_copies(follower); });
}

bool TrainingServer::may_copy() const {
  return state_ && std::ranges::any_of(state_->copies_to(),
                                       [this](int follower) { return has_room(follower); });
}

bool TrainingServer::has_room(int follower) const {
  return streams_.bytes_waiting(server_peer(follower)) < kCopyAhead;
}

void TrainingServer::say_written(Message written) {
  streams_.send(Peer{}, std::move(written));
  streams_.flush(Peer{});
}

void TrainingServer::for_each(int64_t count, const std::function<void(int64_t)>& fn) {
  if (count >= kLeastShared) return parallel_(count, fn);
  for (int64_t i = 0; i < count; ++i) fn(i);
}

// What the next forward needs first goes first, behind short words.
void TrainingServer::deliver(Peer to, Message message) {
  const int priority = message.kind == Kind::parameters ? 1 + message.piece
                       : message.kind == Kind::rows     ? 1
                                                        : 0;
  // The answer to a push is two messages, of which this is the first.
  const bool more_follows = message.kind == Kind::settled;
  if (more_follows || message.kind == Kind::parameters)
    tell(more_follows ? "ps.settled" : "ps.parameters", number_, to.number, message);
  const std::lock_guard lock(mutex_);
  streams_.send(to, std::move(message), priority);
  if (!more_follows) streams_.flush(to);
}

void TrainingServer::on_connected(Peer peer) {
  if (peer == Peer{})
    link_.on_connected();
  else
    decide([&](ServerState& state) { state.on_connected(peer); });
}

void TrainingServer::on_closed(Peer peer, const std::string& how) {
  if (peer == Peer{} && finished_) return;
  if (peer == Peer{}) throw PeerLost("the view service: " + how);
  decide([&](ServerState& state) { state.on_closed(peer, how); });
}

void TrainingServer::reach_followers() {
  if (!state_) return;
  for (const int follower : state_->followers()) {
    const Peer peer{Peer::Kind::server, follower};
    const ProcessView& process = state_->view().servers[follower];
    TimePoint& next_try = next_tries_[follower];
    if (streams_.has(peer) || Clock::now() < next_try) continue;
    next_try = Clock::now() + kPause;
    streams_.connect(peer, Whereabouts::from(process.address),
                     {.purpose = kServerPurpose, .rank = number_}, process.name, kConnectLimit);
  }
}

std::string TrainingServer::last_words() const {
  if (!state_) return "";
  int64_t pushes = 0;
  for (const int partition : state_->partitions())
    pushes += state_->partition(partition).counts().pushes;
  return fmt::format("{} pushes", pushes);
}

}  // namespace tutti::ps
