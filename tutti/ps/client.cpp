#include "tutti/ps/client.h"

#include <fmt/ranges.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/event.h"
#include "tutti/base/host.h"
#include "tutti/base/log.h"
#include "tutti/ps/sparse_batch.h"
#include "tutti/ps/streams.h"
#include "tutti/ps/view_service.h"

namespace tutti::ps {
namespace {

using Kind = Message::Kind;

constexpr Millis kConnectLimit{5'000};
constexpr Millis kPause{50};      // before the next try to connect
constexpr Millis kAnswer{1'000};  // for the servers to say whom they wait for
// The thread of the client's own takes over when for so long nobody has waited: every hand-over
// between threads costs tens of microseconds.
constexpr Millis kUnattended{1};

Peer server_peer(int number) { return {Peer::Kind::server, number}; }

std::string missing_in(const View& view) {
  std::vector<int> missing;
  for (int server = 0; server < std::ssize(view.servers); ++server)
    if (!view.servers[server].alive) missing.push_back(server);
  return fmt::format("of {}, these have not come: {}", view.servers.size(),
                     fmt::join(missing, ", "));
}

struct Arrived {
  int64_t step = -1;
  int server = -1;
  Bytes values;  // until they were taken
};

using SharedBatch = std::shared_ptr<const SparseBatch>;

struct ArrivingRows {
  SharedBatch batch;
  Array rows;
};

}  // namespace

class Client::Work {
 public:
  Work(const ClientOptions& options, const Credentials& credentials, const Spec& spec,
       Initial initial, Restore restore)
      : options_(options),
        heap_(std::make_shared<SharedHeap>()),
        state_(
            options.worker, spec,
            [this](int server, Message message) { deliver(server, std::move(message)); },
            [this](int piece, int64_t step, const Bytes& values) {
              emit("ps.arrived",
                   {{"piece", int64_t{piece}}, {"step", step}, {"bytes", values.size()}});
              arrived_[piece] = {step, speaking_, values};
            },
            std::move(initial),
            [this](int64_t pull, int partition, const Bytes& rows) {
              take_rows(pull, partition, rows);
            },
            std::move(restore)),
        arrived_(spec.pieces.size()),
        streams_(heap_, credentials,
                 {.message = [this](Peer from, const Message& m) { on_message(from, m); },
                  .connected = [this](Peer peer) { on_connected(peer); },
                  .closed = [this](Peer peer, const std::string& how) { on_closed(peer, how); }},
                 options.share_memory),
        link_(streams_, {.who = {Peer::Kind::worker, options.worker},
                         .name = process_words(),
                         .where = {},
                         .silence = options.silence}) {
    if (options.assigns) state_.assign_always();
    streams_.connect_to_service(options.view_service, options.limit);
    thread_ = std::thread([this] { work(); });
  }

  ~Work() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    unattended_.notify_all();
    streams_.wake();
    thread_.join();
  }

  // Waits with `lock` held until `done`, or says why not.
  template <class Done>
  void wait_for(std::unique_lock<std::mutex>& lock, const Deadline& deadline, Done&& done) {
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

  void require_no_failure() const {
    if (service_lost_) throw PeerLost(failure_);
    if (!failure_.empty()) throw Error(failure_);
  }

  // Sends what goes at once, in the caller's thread; the rest goes when that is possible.
  void send_here() {
    if (send_all()) return;
    streams_.wake();
    if (num_waiting_ > 0) return;
    attended_ = TimePoint{};
    unattended_.notify_all();
  }

  // True when nothing is left.
  bool send_all() {
    bool all = true;
    for (const int server : state_.servers()) {
      const Peer peer = server_peer(server);
      while (streams_.flush(peer) && state_.send_next(server)) {
      }
      all &= streams_.flush(peer);
    }
    return all;
  }

  std::string words() const {
    if (!link_.connected())
      return fmt::format("their view service at {} has not let it in",
                         options_.view_service.text());
    if (state_.view().number == 0) return missing_in(coming_);
    std::string all = state_.words();
    for (const auto& [server, how] : unreached_)
      all += fmt::format("\n  {}: {}", state_.view().servers[server].name, how);
    return all;
  }

  // A step pulls and pushes the rows of the same keys.
  SharedBatch batch_of(int table, std::span<const uint64_t> keys) {
    {
      const std::lock_guard lock(mutex_);
      const SharedBatch& last = batches_[table];
      if (last && last->is_of(keys)) return last;
    }
    const Spec& spec = state_.spec();
    auto made =
        std::make_shared<const SparseBatch>(keys, spec.tables.at(table), spec.num_partitions);
    const std::lock_guard lock(mutex_);
    return batches_[table] = std::move(made);
  }

  const ClientOptions options_;
  const std::shared_ptr<SharedHeap> heap_;
  mutable std::mutex mutex_;  // guards all below but thread_
  std::condition_variable changed_;
  ClientState state_;
  std::vector<Arrived> arrived_;              // by piece
  std::map<int64_t, ArrivingRows> arriving_;  // by sparse_pull
  std::map<int, SharedBatch> batches_;        // by table: the last
  int speaking_ = -1;                         // server whose message is read
  std::string failure_;
  bool service_lost_ = false;          // that is the failure
  std::map<int, std::string> counts_;  // by partition, as servers said
  Streams streams_;

 private:
  // The connections are driven by one thread at a time: by one that waits, else by the client's
  // own.
  void work() {
    std::unique_lock lock(mutex_);
    while (!ends_) {
      if (num_waiting_ > 0 || Clock::now() < attended_ + kUnattended) {
        unattended_.wait_for(lock, kUnattended);
        continue;
      }
      wait_unlocked(lock, kPause * 4);
      if (num_waiting_ == 0)
        turn();
      else
        streams_.wake();  // what woke this thread may have been meant for the other
    }
    link_.say_goodbye();
    streams_.flush(Peer{});
  }

  // Until `ready` or then; whether it is.
  template <class Ready>
  bool drive_until(std::unique_lock<std::mutex>& lock, TimePoint then, Ready&& ready) {
    if (ready()) return true;
    ++num_waiting_;
    while (!ready() && Clock::now() < then) {
      if (driven_) {
        changed_.wait_until(lock, then);
        continue;
      }
      driven_ = true;
      wait_unlocked(lock, std::chrono::ceil<Millis>(then - Clock::now()));
      driven_ = false;
      turn();
    }
    if (--num_waiting_ > 0) changed_.notify_all();  // the next one drives
    attended_ = Clock::now();
    return ready();
  }

  void wait_unlocked(std::unique_lock<std::mutex>& lock, Millis most) {
    const Millis limit = std::min({link_.until_beat(Clock::now()), kPause * 4, most});
    lock.unlock();
    streams_.wait(limit);
    lock.lock();
  }

  void turn() {
    try {
      streams_.process();
      lose_service(link_.beat(Clock::now(), ""));
      if (failure_.empty()) failure_ = state_.failure();
      reach_servers();
      send_all();
      streams_.process();
    } catch (const std::exception& error) {
      failure_ = error.what();
    }
    if (num_waiting_ > 1) changed_.notify_all();
  }

  void lose_service(const std::string& words) {
    if (words.empty() || !failure_.empty()) return;
    failure_ = words;
    service_lost_ = true;
  }

  void reach_servers() {
    for (const int server : state_.servers()) {
      const ProcessView& process = state_.view().servers[server];
      TimePoint& next_try = next_tries_[server];
      if (streams_.has(server_peer(server)) || !process.alive || Clock::now() < next_try) continue;
      next_try = Clock::now() + kPause;
      streams_.connect(server_peer(server), Whereabouts::from(process.address),
                       {.purpose = kWorkerPurpose, .rank = options_.worker}, process.name,
                       kConnectLimit);
    }
  }

  void take_rows(int64_t pull, int partition, const Bytes& rows) {
    const auto arriving = arriving_.find(pull);
    arriving->second.batch->spread(partition, rows,
                                   static_cast<std::byte*>(arriving->second.rows.data()));
    if (!state_.waits_for_rows(pull)) arriving_.erase(arriving);
  }

  void deliver(int server, Message message) {
    // A request for rows must not overtake the push before it.
    const bool urgent = message.kind != Kind::push && message.kind != Kind::sparse_push &&
                        message.kind != Kind::sparse_pull && message.kind != Kind::mark;
    streams_.send(server_peer(server), std::move(message), urgent ? 0 : 1);
  }

  void on_connected(Peer peer) {
    if (peer == Peer{})
      link_.on_connected();
    else
      state_.on_connected(peer.number);
    unreached_.erase(peer.number);
  }

  void on_closed(Peer peer, const std::string& how) {
    if (peer == Peer{}) {
      lose_service("the view service of the parameter servers: " + how);
      return;
    }
    if (lost_at_.try_emplace(peer.number, Clock::now()).second)
      log(LogLevel::info, "server {}: {}", peer.number, how);
    unreached_[peer.number] = how;
    state_.on_closed(peer.number);
    for (size_t piece = 0; piece < arrived_.size(); ++piece) {
      Arrived& place = arrived_[piece];
      if (place.server != peer.number || place.values.span.empty()) continue;
      state_.pull(static_cast<int>(piece), place.step);
      place = {};
    }
  }

  void on_message(Peer from, const Message& message) {
    if (from != Peer{}) {
      speaking_ = from.number;
      heard_at_[from.number] = Clock::now();
      if (message.kind == Kind::counts)
        counts_[message.partition] = message.text;
      else
        state_.on_message(from.number, message);
      if (message.kind == Kind::welcome) say_who_took_over(message.partition, from.number);
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
      give_up_silent_servers();
    }
    if (message.kind == Kind::finished && !message.text.empty()) failure_ = message.text;
  }

  // A server that only fell silent is out of reach since its last word; its connection is there.
  void give_up_silent_servers() {
    const auto& servers = state_.view().servers;
    for (auto heard = heard_at_.begin(); heard != heard_at_.end();) {
      const auto [server, since] = *heard++;
      if (servers.at(server).alive) continue;
      lost_at_.try_emplace(server, since);
      heard_at_.erase(server);
    }
  }

  // How long a partition was out of reach: from the loss of a server to the welcome of the next.
  void say_who_took_over(int partition, int server) {
    for (auto& [lost, since] : lost_at_) {
      if (lost == server || primaries_[partition] != lost) continue;
      const auto outage = std::chrono::duration<double>(Clock::now() - since).count();
      log(LogLevel::warning, "partition {}: server {} took over from server {} after {:.3f} s",
          partition, server, lost, outage);
    }
    primaries_[partition] = server;
    lost_at_.erase(server);  // its connection broke, it was not lost
  }

  ViewLink link_;
  View coming_;                           // before the first of all servers
  std::map<int, std::string> unreached_;  // servers without a connection: why
  std::map<int, TimePoint> next_tries_;   // to connect to a server
  std::map<int, TimePoint> heard_at_;     // servers: their last word
  std::map<int, TimePoint> lost_at_;      // servers
  std::map<int, int> primaries_;          // of partitions
  bool ends_ = false;
  int num_waiting_ = 0;   // threads in drive_until()
  bool driven_ = false;   // by one of these
  TimePoint attended_{};  // when the last of them left; zero: they have left something to do
  std::condition_variable unattended_;
  std::thread thread_;
};

Client::Client(const ClientOptions& options, const Credentials& credentials, const Spec& spec,
               Initial initial, Restore restore)
    : work_(std::make_unique<Work>(options, credentials, spec, std::move(initial),
                                   std::move(restore))) {
  const Deadline deadline(options.limit);
  std::unique_lock lock(work_->mutex_);
  work_->wait_for(lock, deadline, [&] { return work_->state_.view().number > 0; });
}

Client::~Client() = default;

const Spec& Client::spec() const noexcept { return work_->state_.spec(); }

std::shared_ptr<std::byte> Client::allocate(int64_t bytes) { return work_->heap_->allocate(bytes); }

void Client::push(PushOrder order) {
  const std::lock_guard lock(work_->mutex_);
  work_->require_no_failure();
  emit("ps.push",
       {{"piece", int64_t{order.piece}}, {"step", order.step}, {"bytes", order.payload.size()}});
  work_->state_.push(std::move(order));
  work_->send_here();
}

void Client::pull(int piece, int64_t step) {
  const std::lock_guard lock(work_->mutex_);
  work_->require_no_failure();
  work_->arrived_.at(piece) = {};
  work_->state_.pull(piece, step);
  work_->send_here();
}

void Client::fetch(int piece, int64_t step, const Deadline& deadline,
                   const std::function<void(const Bytes& values)>& take) {
  std::unique_lock lock(work_->mutex_);
  Arrived& place = work_->arrived_.at(piece);
  while (true) {
    work_->wait_for(lock, deadline, [&] { return place.step >= step; });
    const Arrived taken = place;
    lock.unlock();
    take(taken.values);
    lock.lock();
    // Values that lie in a server's memory are its own to change once it does not hear of us.
    if (place.step < step) continue;
    place.values = {};
    return;
  }
}

int64_t Client::first_step() const {
  const std::lock_guard lock(work_->mutex_);
  return work_->state_.first_step();
}

int64_t Client::version(int piece) const {
  const std::lock_guard lock(work_->mutex_);
  return work_->state_.version(piece);
}

bool Client::arrived(int piece, int64_t step) const {
  const std::lock_guard lock(work_->mutex_);
  return work_->arrived_.at(piece).step >= step;
}

AskedRows Client::sparse_pull(int table, std::span<const uint64_t> keys, int64_t step) {
  const Spec& spec = this->spec();
  const SparseTableSpec& about = spec.tables.at(table);
  const SharedBatch batch = work_->batch_of(table, keys);
  std::vector<Bytes> payloads;
  for (int i = 0; i < spec.num_partitions; ++i) payloads.push_back(batch->payload_of_keys(i));
  Array rows = Array::zeros(about.dtype, {batch->num_keys(), about.width});
  const std::lock_guard lock(work_->mutex_);
  work_->require_no_failure();
  const int64_t pull = work_->state_.sparse_pull(table, step, std::move(payloads));
  work_->arriving_.emplace(pull, ArrivingRows{batch, rows});
  work_->send_here();
  return {pull, std::move(rows)};
}

Array Client::sparse_fetch(const AskedRows& asked, const Deadline& deadline) {
  std::unique_lock lock(work_->mutex_);
  work_->wait_for(lock, deadline, [&] { return !work_->state_.waits_for_rows(asked.pull); });
  return asked.rows;
}

void Client::sparse_push(int table, std::span<const uint64_t> keys, MemorySpan gradients,
                         int64_t step, double learning_rate) {
  const Spec& spec = this->spec();
  const SparseTableSpec& about = spec.tables.at(table);
  if (gradients.dtype != about.dtype || gradients.num_elements != std::ssize(keys) * about.width)
    throw UsageError(fmt::format(
        "embedding table \"{}\": sparse_push of {} keys: got {} {}; expected {} {}", about.name,
        keys.size(), gradients.num_elements, tutti::name_of(gradients.dtype),
        std::ssize(keys) * about.width, tutti::name_of(about.dtype)));
  const SharedBatch batch = work_->batch_of(table, keys);
  SparseOrder order{table, step, learning_rate, std::vector<Bytes>(spec.num_partitions)};
  for (int i = 0; i < spec.num_partitions; ++i) {
    const int64_t bytes = batch->payload_bytes(i);
    if (bytes == 0) continue;
    const auto memory = allocate(bytes);
    batch->gather(i, static_cast<const std::byte*>(gradients.data), memory.get());
    order.payloads[i] = {{memory.get(), static_cast<size_t>(bytes)}, memory};
  }
  const std::lock_guard lock(work_->mutex_);
  work_->require_no_failure();
  work_->state_.sparse_push(std::move(order));
  work_->send_here();
}

void Client::require_no_failure() const {
  const std::lock_guard lock(work_->mutex_);
  work_->require_no_failure();
}

void Client::wait_until_settled(const Deadline& deadline) {
  std::unique_lock lock(work_->mutex_);
  work_->wait_for(lock, deadline, [&] { return work_->state_.num_unsettled() == 0; });
}

Lease Client::lease(const LeaseRequest& request, const Deadline& deadline) {
  std::unique_lock lock(work_->mutex_);
  work_->require_no_failure();
  work_->state_.ask_lease(request);
  work_->send_here();
  work_->wait_for(lock, deadline, [&] { return work_->state_.lease().has_value(); });
  return *work_->state_.lease();
}

ClientCounts Client::counts() const {
  const std::lock_guard lock(work_->mutex_);
  return work_->state_.counts();
}

ServerCounts Client::server_counts(const Deadline& deadline) {
  std::unique_lock lock(work_->mutex_);
  work_->counts_.clear();
  const int partitions = work_->state_.spec().num_partitions;
  for (int partition = 0; partition < partitions; ++partition) work_->state_.ask_counts(partition);
  work_->send_here();
  work_->wait_for(lock, deadline,
                  [&] { return static_cast<int>(work_->counts_.size()) == partitions; });
  ServerCounts all{.bytes_pushed = work_->streams_.bytes_sent(),
                   .bytes_pulled = work_->streams_.bytes_received()};
  for (const auto& [partition, text] : work_->counts_) {
    const PartitionCounts counts = counts_from(text);
    if (counts.updates >= all.counts.updates) all.counts = counts;
  }
  return all;
}

}  // namespace tutti::ps
