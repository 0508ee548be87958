#include "tutti/ps/client/detail/client_work.h"

#include <fmt/ranges.h>

#include <exception>

#include "tutti/base/error.h"
#include "tutti/base/event.h"
#include "tutti/base/host.h"
#include "tutti/base/log.h"
#include "tutti/base/stop.h"
#include "tutti/base/threads.h"

namespace tutti::ps {
namespace {

using Kind = Message::Kind;

constexpr Millis kConnectLimit{5'000};
constexpr Millis kPause{50};      // before the next try to connect
constexpr Millis kAnswer{1'000};  // for the servers to say whom they wait for
// The client's own thread takes over when for so long nobody has waited.
constexpr Millis kUnattended{1};
constexpr int64_t kRestoredAhead = int64_t{4} << 20;  // of a snapshot, waiting to leave

std::string missing_in(const View& view, const HostPort& service) {
  if (view.servers.empty())
    return fmt::format("their view service at {} has let it in and not said who they are",
                       service.text());
  std::vector<int> missing;
  for (int server = 0; server < std::ssize(view.servers); ++server)
    if (!view.servers[server].alive) missing.push_back(server);
  return fmt::format("of {}, these have not come: {}", view.servers.size(),
                     fmt::join(missing, ", "));
}

}  // namespace

Client::Work::Work(const ClientOptions& options, const Credentials& credentials, const Spec& spec,
                   Initial initial, Restore restore)
    : options_(options),
      heap_(std::make_shared<SharedHeap>()),
      state_(
          options.worker, spec,
          [this](int server, Message message) { deliver(server, std::move(message)); },
          [this](int piece, int64_t step, const Bytes& values) {
            emit("ps.arrived", {{"piece", int64_t{piece}},
                                {"step", step},
                                {"bytes", values.size()},
                                {"worker", int64_t{options_.worker}}});
            arrived_[piece] = {step, speaking_, values};
          },
          std::move(initial),
          [this](int64_t pull, int partition, const Bytes& rows) {
            take_rows(pull, partition, rows);
          },
          restore ? [this](int partition,
                           const Restoring::Assign& assign) { restoring_.begin(partition, assign); }
                  : Restore{}),
      arrived_(spec.pieces.size()),
      streams_(heap_, credentials,
               {.message = [this](Peer from, const Message& m) { on_message(from, m); },
                .connected = [this](Peer peer) { on_connected(peer); },
                .closed = [this](Peer peer, const std::string& how) { on_closed(peer, how); }},
               options.share_memory),
      link_(streams_, {.who = {Peer::Kind::worker, options.worker},
                       .training = options.training,
                       .name = process_words(),
                       .where = {},
                       .order = options.replay ? words_of_replay(*options.replay) : "",
                       .silence = options.silence}),
      restoring_(std::move(restore), [this] { streams_.wake(); }) {
  if (options.assigns) state_.assign_always();
  if (options.replay) state_.follow_order(*options.replay);
  if (options.whose_gradient) state_.ask_whose_gradient(options.whose_gradient);
  streams_.connect_to_service(options.view_service, options.limit);
  thread_ = start_thread("a worker's end of the servers", [this] { work(); });
}

Client::Work::~Work() {
  // Who ends by an error, and is waited for, is lost; not who was asked to end.
  const bool lost = state_.spec().on_lost_worker == OnLostWorker::wait &&
                    std::uncaught_exceptions() > 0 && stop_requested() == 0;
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    finishes_ = !lost;
  }
  unattended_.notify_all();
  streams_.wake();
  thread_.join();
}

void Client::Work::wait_for(std::unique_lock<std::mutex>& lock, const Deadline& deadline,
                            const Condition& done) {
  const auto ready = [&] { return done() || !failure_.empty(); };
  if (!drive_until(lock, deadline.at(), ready)) {
    state_.ask_who();
    send_here();
    if (!drive_until(lock, Clock::now() + kAnswer, ready))
      throw Timeout(fmt::format("worker {} waited for {} ms for the parameter servers: {}",
                                options_.worker, deadline.limit().count(), words()));
  }
  if (!done()) require_no_failure();
}

void Client::Work::require_no_failure() const {
  if (peer_lost_) throw PeerLost(failure_);
  if (!failure_.empty()) throw Error(failure_);
}

void Client::Work::send_here() {
  if (send_all()) return;
  streams_.wake();
  if (num_waiting_ > 0) return;
  attended_ = TimePoint{};
  unattended_.notify_all();
}

bool Client::Work::send_all() {
  bool all = true;
  for (const int server : state_.servers()) {
    const Peer peer = server_peer(server);
    while (streams_.flush(peer) && state_.send_next(server)) {
    }
    all &= streams_.flush(peer);
  }
  return all;
}

std::string Client::Work::words() const {
  if (!link_.connected())
    return fmt::format("their view service at {} has not let it in", options_.view_service.text());
  if (state_.view().number == 0) return missing_in(coming_, options_.view_service);
  return state_.words() + outages_.words(state_.view());
}

Client::Work::SharedBatch Client::Work::batch_of(int table, std::span<const uint64_t> keys) {
  {
    const std::lock_guard lock(mutex_);
    const SharedBatch& last = batches_[table];
    if (last && last->is_of(keys)) return last;
  }
  const Spec& spec = state_.spec();
  auto made = std::make_shared<const SparseBatch>(keys, spec.tables.at(table), spec.num_partitions);
  const std::lock_guard lock(mutex_);
  return batches_[table] = std::move(made);
}

void Client::Work::work() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    if (num_waiting_ > 0 || Clock::now() < attended_ + kUnattended) {
      unattended_.wait_for(lock, kUnattended);
      continue;
    }
    wait_unlocked(lock, kPause * 4, {});
    if (num_waiting_ == 0)
      turn();
    else
      streams_.wake();  // what woke this thread may have been meant for the other
  }
  if (finishes_) link_.say_goodbye();
  streams_.flush(Peer{});
}

bool Client::Work::drive_until(std::unique_lock<std::mutex>& lock, TimePoint then,
                               const Condition& ready) {
  if (ready()) return true;
  ++num_waiting_;
  while (!ready() && Clock::now() < then) {
    if (driven_) {
      changed_.wait_until(lock, then);
      continue;
    }
    driven_ = true;
    wait_unlocked(lock, std::chrono::ceil<Millis>(then - Clock::now()), options_.poll);
    driven_ = false;
    turn();
  }
  if (--num_waiting_ > 0) changed_.notify_all();  // the next one drives
  attended_ = Clock::now();
  return ready();
}

void Client::Work::wait_unlocked(std::unique_lock<std::mutex>& lock, Millis most,
                                 std::chrono::microseconds poll) {
  const Millis limit = std::min({link_.until_beat(Clock::now()), kPause * 4, most});
  lock.unlock();
  streams_.wait(limit, poll);
  lock.lock();
}

void Client::Work::turn() {
  try {
    const TimePoint looks = Clock::now();
    streams_.process();
    lose_peer(link_.silent(looks));
    link_.beat(Clock::now(), "");
    if (failure_.empty()) failure_ = state_.failure();
    reach_servers();
    const auto room = [this](int partition) { return has_room(partition); };
    restoring_.hand_on(room);
    send_all();
    streams_.process();
    if (restoring_.may_hand_on(room)) streams_.wake();
  } catch (const std::exception& error) {
    failure_ = error.what();
  }
  if (num_waiting_ > 1) changed_.notify_all();
}

bool Client::Work::has_room(int partition) const {
  const int server = state_.view().partitions.at(partition).primary;
  return streams_.bytes_waiting(server_peer(server)) < kRestoredAhead;
}

void Client::Work::lose_peer(const std::string& words) {
  if (words.empty() || !failure_.empty()) return;
  failure_ = words;
  peer_lost_ = true;
}

void Client::Work::reach_servers() {
  for (const int server : state_.servers()) {
    if (!state_.expects(server)) outages_.on_word(server, Clock::now());
    const ProcessView& process = state_.view().servers[server];
    TimePoint& next_try = next_tries_[server];
    if (streams_.has(server_peer(server)) || !process.alive || Clock::now() < next_try) continue;
    next_try = Clock::now() + kPause;
    streams_.connect(server_peer(server), Whereabouts::from(process.address),
                     {.purpose = kWorkerPurpose, .rank = options_.worker}, process.name,
                     kConnectLimit);
  }
}

void Client::Work::take_rows(int64_t pull, int partition, const Bytes& rows) {
  const auto arriving = arriving_.find(pull);
  arriving->second.batch->spread(partition, rows,
                                 static_cast<std::byte*>(arriving->second.rows.data()));
  if (!state_.waits_for_rows(pull)) arriving_.erase(arriving);
}

void Client::Work::deliver(int server, Message message) {
  // A request for rows must not overtake the push before it.
  const bool urgent = message.kind != Kind::push && message.kind != Kind::sparse_push &&
                      message.kind != Kind::sparse_pull && message.kind != Kind::mark;
  streams_.send(server_peer(server), std::move(message), urgent ? 0 : 1);
}

void Client::Work::on_connected(Peer peer) {
  if (peer == Peer{}) return link_.on_connected();
  outages_.on_connected(peer.number);
  state_.on_connected(peer.number);
}

void Client::Work::on_closed(Peer peer, const std::string& how) {
  if (peer == Peer{}) {
    lose_peer("the view service of the parameter servers: " + how);
    return;
  }
  if (outages_.on_closed(peer.number, how, Clock::now()))
    log(LogLevel::info, "server {}: {}", peer.number, how);
  state_.on_closed(peer.number);
  for (size_t piece = 0; piece < arrived_.size(); ++piece) {
    Arrived& place = arrived_[piece];
    if (place.server != peer.number || place.values.span.empty()) continue;
    state_.pull(static_cast<int>(piece), place.step, /*again=*/true);
    place = {};
  }
}

void Client::Work::on_message(Peer from, const Message& message) {
  if (from != Peer{}) {
    speaking_ = from.number;
    outages_.on_word(from.number, Clock::now());
    if (message.kind == Kind::counts)
      counts_[message.partition] = message.text;
    else
      state_.on_message(from.number, message);
    if (message.kind == Kind::welcome) on_welcome(message.partition, from.number);
    return;
  }
  link_.hear();
  if (message.kind == Kind::joined) link_.on_joined(message);
  if (message.kind == Kind::refused) failure_ = message.text;
  if (message.kind == Kind::cut) state_.on_cut(message);
  if (message.kind == Kind::view) {
    const View view = view_from(message.text);
    if (view.number == 0) coming_ = view;
    state_.on_view(view);
    lose_peer(state_.missed_worker());
    outages_.on_view(state_.view());
  }
  if (message.kind == Kind::finished && !message.text.empty()) failure_ = message.text;
}

void Client::Work::on_welcome(int partition, int server) {
  const std::string took_over = outages_.on_welcome(partition, server, Clock::now());
  if (!took_over.empty()) log(LogLevel::warning, "{}", took_over);
}

}  // namespace tutti::ps
