#include "tutti/ps/wire/streams.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>

#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/base/threads.h"
#include "tutti/net/connect_link.h"

namespace tutti::ps {
namespace {

constexpr Millis kHeapLimit{2'000};

}  // namespace

Whereabouts Whereabouts::from(const std::string& text) {
  const size_t blank = text.find(' ');
  if (blank == std::string::npos) return {text, ""};
  return {text.substr(0, blank), text.substr(blank + 1)};
}

Streams::Streams(std::shared_ptr<SharedHeap> heap, const Credentials& credentials, Events events,
                 bool share_memory)
    : credentials_(credentials),
      heap_(std::move(heap)),
      memory_(share_memory ? std::make_unique<HostMemory>(credentials.token, heap_) : nullptr),
      events_(std::move(events)),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!wake_) throw Error("eventfd: " + errno_words(errno));
}

Streams::~Streams() {
  for (const auto& [listener, purpose] : served_) listener->serve(purpose, {});
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  join_makers(true);
}

void Streams::wake() noexcept {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
}

// ---- connections come ----

// In a thread: it waits for the other side, while the others go on.
void Streams::make(Peer peer, std::function<Made()> how) {
  join_makers(false);
  auto done = std::make_shared<std::atomic<bool>>(false);
  const auto work = [this, peer, how = std::move(how), done] {
    Made made{.peer = peer};
    try {
      made = how();
    } catch (const std::exception& error) {
      made.failure = error.what();
    }
    {
      const std::lock_guard lock(mutex_);
      if (!ends_) made_.push_back(std::move(made));
    }
    wake();
    *done = true;
  };
  const std::lock_guard lock(mutex_);
  try {
    makers_.push_back({start_thread("a connection", work), done});
  } catch (const Error& error) {
    made_.push_back({.peer = peer, .failure = error.what()});
    wake();
  }
}

void Streams::join_makers(bool all) {
  std::list<Maker> ended;
  {
    const std::lock_guard lock(mutex_);
    for (auto maker = makers_.begin(); maker != makers_.end();) {
      const auto here = maker++;
      if (all || *here->done) ended.splice(ended.end(), makers_, here);
    }
  }
  for (Maker& maker : ended) maker.thread.join();
}

std::shared_ptr<PeerHeap> Streams::open_heap(const std::string& name,
                                             const std::string& who) const {
  if (!memory_) return nullptr;
  try {
    return memory_->open(name, who, Deadline(kHeapLimit));
  } catch (const Error& error) {
    log(LogLevel::info, "no shared memory with {}: {}", who, error.what());
    return nullptr;
  }
}

void Streams::take_from(Listener& listener, const std::string& purpose, Peer::Kind kind) {
  served_.emplace_back(&listener, purpose);
  listener.serve(purpose, [this, kind](Arrival arrival) {
    Peer peer{kind, arrival.facts.rank};
    if (kind == Peer::Kind::view_service) {
      const std::lock_guard lock(mutex_);
      peer.number = ++arrivals_;
    }
    auto shared = std::make_shared<Arrival>(std::move(arrival));
    make(peer, [this, peer, shared] {
      Made made{.peer = peer};
      made.heap = open_heap(shared->facts.group, shared->link->peer());
      made.link = std::move(shared->link);
      return made;
    });
  });
}

void Streams::connect(Peer to, const Whereabouts& where, Facts facts, const std::string& who,
                      Millis limit) {
  connecting_.insert(to);
  facts.group = memory_name();
  make(to, [this, to, where, facts, who, limit] {
    const Deadline deadline(limit);
    const HostPort target = parse_host_port(where.address, "a server's address");
    const auto address = Address::from_number(target.host, target.port);
    if (!address) throw Error(fmt::format("{}: \"{}\" is no address", who, where.address));
    Made made{.peer = to};
    made.link = connect_link(*address, credentials_, facts, who, deadline);
    made.heap = open_heap(where.memory, who);
    return made;
  });
}

void Streams::connect_to_service(const HostPort& service, Millis limit) {
  connecting_.insert(Peer{});
  make(Peer{}, [this, service, limit] {
    Made made;
    made.link =
        connect_link_with_retry(service, credentials_, {.purpose = kViewPurpose},
                                "the view service of the parameter servers", Deadline(limit));
    return made;
  });
}

void Streams::take_made() {
  std::vector<Made> made;
  {
    const std::lock_guard lock(mutex_);
    made.swap(made_);
  }
  for (Made& one : made) add(std::move(one));
}

void Streams::add(Made made) {
  const Peer peer = made.peer;
  connecting_.erase(peer);
  if (!made.link) {
    if (!streams_.contains(peer)) events_.closed(peer, "could not be connected: " + made.failure);
    return;
  }
  if (streams_.contains(peer)) close(peer, "connected anew");
  try {
    auto stream = std::make_unique<FrameStream>(
        std::move(made.link),
        FrameStreamOptions{.own = heap_, .peer = made.heap, .wake = [this] { wake(); }});
    if (made.heap) stream->send({.kind = Message::Kind::mapped});
    streams_.emplace(peer, std::move(stream));
  } catch (const Error& error) {
    return events_.closed(peer, fmt::format("could not be taken: {}", error.what()));
  }
  events_.connected(peer);
}

// ---- and go ----

void Streams::drop(Peer peer) {
  const auto found = streams_.find(peer);
  if (found == streams_.end()) return;
  closed_sent_ += found->second->bytes_sent() + found->second->shared_bytes_sent();
  closed_received_ += found->second->bytes_received() + found->second->shared_bytes_received();
  streams_.erase(found);
}

void Streams::close(Peer peer, const std::string& how) {
  drop(peer);
  events_.closed(peer, how);
}

// ---- messages ----

void Streams::send(Peer to, Message message, int priority) {
  const auto found = streams_.find(to);
  if (found != streams_.end()) found->second->send(std::move(message), priority);
}

bool Streams::flush(Peer to) {
  const auto found = streams_.find(to);
  if (found == streams_.end()) return false;
  try {
    return found->second->flush();
  } catch (const PeerLost&) {
    return false;  // process() sees it, once what came before has been read
  } catch (const Error& error) {
    broken_[to] = error.what();
    wake();
    return false;
  }
}

int64_t Streams::bytes_waiting(Peer to) const {
  const auto found = streams_.find(to);
  return found == streams_.end() ? 0 : found->second->bytes_waiting();
}

// The next message; none when all are read, or the connection ended and was closed.
std::optional<Message> Streams::receive(Peer peer) {
  const auto found = streams_.find(peer);
  if (found == streams_.end()) return std::nullopt;
  try {
    return found->second->receive();
  } catch (const PeerLost& error) {
    close(peer, error.what());
  } catch (const Error& error) {
    log(LogLevel::warning, "{}", error.what());
    close(peer, fmt::format("sent what cannot be taken: {}", error.what()));
  }
  return std::nullopt;
}

void Streams::receive_all(Peer peer) {
  while (auto message = receive(peer)) {
    if (message->kind == Message::Kind::mapped) {
      streams_.at(peer)->lend_own();
      continue;
    }
    try {
      events_.message(peer, std::move(*message));
    } catch (const Mismatch& error) {
      log(LogLevel::warning, "{}", error.what());
      close(peer, fmt::format("broke the rules: {}", error.what()));
    }
  }
}

void Streams::process() {
  take_made();
  for (const auto& [peer, why] : std::exchange(broken_, {})) {
    log(LogLevel::warning, "{}", why);
    if (streams_.contains(peer)) close(peer, why);
  }
  std::vector<Peer> peers;
  for (const auto& [peer, stream] : streams_) peers.push_back(peer);
  for (const Peer peer : peers) receive_all(peer);
  // What came made more to send.
  for (const Peer peer : peers) flush(peer);
  std::vector<std::pair<int, short>> polled{{wake_.get(), POLLIN}};
  bool more = false;
  for (const auto& [peer, stream] : streams_) {
    polled.emplace_back(stream->link().descriptor(), stream->wants());
    more |= stream->link().has_buffered();
  }
  if (more) wake();
  const std::lock_guard lock(mutex_);
  polled_ = std::move(polled);
}

void Streams::wait(Millis limit, std::chrono::microseconds poll) {
  std::vector<pollfd> entries;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [descriptor, events] : polled_) entries.push_back({descriptor, events, 0});
  }
  if (entries.empty()) entries.push_back({wake_.get(), POLLIN, 0});
  const auto ready = [&](Millis most) {
    return ::poll(entries.data(), entries.size(), static_cast<int>(most.count())) != 0;
  };
  limit = std::max(Millis{0}, limit);
  poll = std::min<std::chrono::microseconds>(poll, limit);
  const TimePoint awake_until = Clock::now() + poll;
  while (Clock::now() < awake_until && !ready(Millis{0})) sched_yield();
  if (Clock::now() >= awake_until) ready(std::chrono::ceil<Millis>(limit - poll));
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof count);
}

int64_t Streams::bytes_sent() const {
  int64_t bytes = closed_sent_;
  for (const auto& [peer, stream] : streams_)
    bytes += stream->bytes_sent() + stream->shared_bytes_sent();
  return bytes;
}

int64_t Streams::bytes_received() const {
  int64_t bytes = closed_received_;
  for (const auto& [peer, stream] : streams_)
    bytes += stream->bytes_received() + stream->shared_bytes_received();
  return bytes;
}

}  // namespace tutti::ps
