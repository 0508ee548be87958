#include "tutti/ps/client.h"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/host.h"
#include "tutti/base/log.h"
#include "tutti/ps/streams.h"
#include "tutti/ps/view_service.h"

namespace tutti::ps {
namespace {

using Kind = Message::Kind;

constexpr Millis kConnectLimit{5'000};
constexpr Millis kPause{50};      // before the next try to connect
constexpr Millis kAnswer{1'000};  // for the servers to say whom they wait for

Peer server_peer(int number) { return {Peer::Kind::server, number}; }

struct Arrived {
  int64_t step = -1;
  int server = -1;
  Bytes values;  // until they were taken
};

}  // namespace

class Client::Work {
 public:
  Work(const ClientOptions& options, const Credentials& credentials, const Spec& spec,
       Initial initial)
      : options_(options),
        heap_(std::make_shared<SharedHeap>()),
        state_(
            options.worker, spec,
            [this](int server, Message message) { deliver(server, std::move(message)); },
            [this](int piece, int64_t step, const Bytes& values) {
              arrived_[piece] = {step, speaking_, values};
            },
            std::move(initial)),
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
    streams_.connect_to_service(options.view_service, options.limit);
    thread_ = std::thread([this] { work(); });
  }

  ~Work() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    streams_.wake();
    thread_.join();
  }

  // Waits with `lock` held until `done`, or says why not.
  template <class Done>
  void wait_for(std::unique_lock<std::mutex>& lock, const Deadline& deadline, Done&& done) {
    const auto ready = [&] { return done() || !failure_.empty(); };
    if (!changed_.wait_until(lock, deadline.at(), ready)) {
      state_.ask_who();
      send_all();
      if (!changed_.wait_for(lock, kAnswer, ready) || !done())
        throw Timeout(fmt::format("worker {} waited for {} ms for the parameter servers: {}",
                                  options_.worker, deadline.limit().count(), words()));
    }
    if (!done()) throw Error(failure_);
  }

  // Sends what goes at once, in the caller's thread; the rest goes in the other.
  void send_all() {
    bool all = true;
    for (const int server : state_.servers()) {
      const Peer peer = server_peer(server);
      while (streams_.flush(peer) && state_.send_next(server)) {
      }
      all &= streams_.flush(peer);
    }
    if (!all) streams_.wake();
  }

  std::string words() const {
    if (state_.view().number == 0) return "they have not all come";
    return state_.words();
  }

  const ClientOptions options_;
  const std::shared_ptr<SharedHeap> heap_;
  mutable std::mutex mutex_;  // guards all below but thread_
  std::condition_variable changed_;
  ClientState state_;
  std::vector<Arrived> arrived_;  // by piece
  int speaking_ = -1;             // server whose message is read
  std::string failure_;
  std::map<int, std::string> counts_;  // by partition, as servers said
  Streams streams_;

 private:
  void work() {
    while (true) {
      streams_.wait(std::min(link_.until_beat(Clock::now()), kPause * 4));
      const std::lock_guard lock(mutex_);
      if (ends_) break;
      try {
        turn();
      } catch (const std::exception& error) {
        failure_ = error.what();
      }
      changed_.notify_all();
      if (!failure_.empty() && ends_) break;
    }
    const std::lock_guard lock(mutex_);
    link_.say_goodbye();
    streams_.flush(Peer{});
  }

  void turn() {
    streams_.process();
    if (failure_.empty()) failure_ = link_.beat(Clock::now(), "");
    if (failure_.empty()) failure_ = state_.failure();
    reach_servers();
    send_all();
    streams_.process();
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

  void deliver(int server, Message message) {
    const bool urgent = message.kind != Kind::push;
    streams_.send(server_peer(server), std::move(message), urgent ? 0 : 1);
  }

  void on_connected(Peer peer) {
    if (peer == Peer{})
      link_.on_connected();
    else
      state_.on_connected(peer.number);
  }

  void on_closed(Peer peer, const std::string& how) {
    if (peer == Peer{}) {
      failure_ = "the view service of the parameter servers: " + how;
      return;
    }
    if (lost_at_.try_emplace(peer.number, Clock::now()).second)
      log(LogLevel::info, "server {}: {}", peer.number, how);
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
      if (message.kind == Kind::counts)
        counts_[message.partition] = message.text;
      else
        state_.on_message(from.number, message);
      if (message.kind == Kind::welcome) say_who_took_over(message.partition, from.number);
      return;
    }
    link_.hear();
    if (message.kind == Kind::refused) failure_ = message.text;
    if (message.kind == Kind::view) state_.on_view(view_from(message.text));
    if (message.kind == Kind::finished && !message.text.empty()) failure_ = message.text;
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
  }

  ViewLink link_;
  std::map<int, TimePoint> next_tries_;  // to connect to a server
  std::map<int, TimePoint> lost_at_;     // servers
  std::map<int, int> primaries_;         // of partitions
  bool ends_ = false;
  std::thread thread_;
};

Client::Client(const ClientOptions& options, const Credentials& credentials, const Spec& spec,
               Initial initial)
    : work_(std::make_unique<Work>(options, credentials, spec, std::move(initial))) {
  const Deadline deadline(options.limit);
  std::unique_lock lock(work_->mutex_);
  work_->wait_for(lock, deadline, [&] { return work_->state_.view().number > 0; });
}

Client::~Client() = default;

const Spec& Client::spec() const noexcept { return work_->state_.spec(); }

std::shared_ptr<std::byte> Client::allocate(int64_t bytes) { return work_->heap_->allocate(bytes); }

void Client::push(PushOrder order) {
  const std::lock_guard lock(work_->mutex_);
  if (!work_->failure_.empty()) throw Error(work_->failure_);
  work_->state_.push(std::move(order));
  work_->send_all();
}

void Client::pull(int piece, int64_t step) {
  const std::lock_guard lock(work_->mutex_);
  if (!work_->failure_.empty()) throw Error(work_->failure_);
  work_->arrived_.at(piece) = {};
  work_->state_.pull(piece, step);
  work_->send_all();
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

int64_t Client::version(int piece) const {
  const std::lock_guard lock(work_->mutex_);
  return work_->state_.version(piece);
}

bool Client::arrived(int piece, int64_t step) const {
  const std::lock_guard lock(work_->mutex_);
  return work_->arrived_.at(piece).step >= step;
}

void Client::wait_until_settled(const Deadline& deadline) {
  std::unique_lock lock(work_->mutex_);
  work_->wait_for(lock, deadline, [&] { return work_->state_.num_unsettled() == 0; });
}

Lease Client::lease(const LeaseRequest& request, const Deadline& deadline) {
  std::unique_lock lock(work_->mutex_);
  if (!work_->failure_.empty()) throw Error(work_->failure_);
  work_->state_.ask_lease(request);
  work_->send_all();
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
  work_->send_all();
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
