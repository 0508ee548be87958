#include "tutti/net/listener.h"

#include <openssl/rand.h>
#include <sys/socket.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/base/threads.h"
#include "tutti/net/connect.h"
#include "tutti/net/detail/admission.h"

namespace tutti {
namespace {

FileDescriptor listening_socket(const Address& at) {
  if (at.is_any()) {
    throw UsageError(
        fmt::format("listen at {}: that is every address of this machine\n  name the "
                    "one that the other hosts of the job use",
                    at.text()));
  }
  FileDescriptor listening(
      socket(at.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!listening) throw Error("socket: " + errno_words(errno));
  const int on = 1;  // a port whose last job has just ended can be had again
  setsockopt(listening.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(listening.get(), at.raw(), at.length()) != 0 ||
      listen(listening.get(), SOMAXCONN) != 0) {
    throw Error(fmt::format("listen at {}: {}{}", at.text(), errno_words(errno),
                            errno == EADDRINUSE ? "\n  another process, perhaps another job, has "
                                                  "that port; see `ss -ltnp`"
                                                : ""));
  }
  return listening;
}

std::string random_identity() {
  unsigned char bytes[16];
  if (RAND_bytes(bytes, sizeof bytes) != 1) throw Error("no random bytes for a listener");
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace

struct Listener::Implementation {
  using Key = std::pair<std::string, std::string>;  // purpose, group
  struct Kept {
    Arrival arrival;
    TimePoint since = Clock::now();
  };

  Implementation(const Address& at, Credentials shown, const ListenerOptions& chosen)
      : credentials(std::move(shown)),
        options(chosen),
        identity(random_identity()),
        socket(listening_socket(at)),
        address(local_address_of(socket.get())),
        admission(std::move(socket), fmt::format("port {}", address.port()), credentials, identity,
                  {.max_pending = static_cast<size_t>(chosen.max_pending),
                   .handshake = chosen.handshake_limit},
                  [this](std::unique_ptr<detail::SocketLink> link, const Facts& facts,
                         const Address& from) { admit({std::move(link), facts, from}); }),
        thread(start_thread(fmt::format("the listener at port {}", address.port()),
                            [this] { work(); })) {}

  void work() noexcept {
    try {
      admission.run([this] { drop_forgotten(); });
    } catch (const std::exception& error) {  // poll() itself failed: say so to whoever waits
      std::lock_guard lock(mutex);
      failure = error.what();
      log(LogLevel::error, "listening at {} ended: {}", address.text(), failure);
    }
    std::lock_guard lock(mutex);
    closed = true;
    changed.notify_all();
  }

  void admit(Arrival arrival) {
    std::lock_guard serving(handler_mutex);
    if (const auto handler = handlers.find(arrival.facts.purpose); handler != handlers.end()) {
      handler->second(std::move(arrival));
      return;
    }
    std::lock_guard lock(mutex);
    if (num_kept >= options.max_kept) {
      throw Error(fmt::format("{} connections wait to be asked for already ({})", num_kept,
                              words_of(arrival.facts)));
    }
    ++num_kept;
    Key key(arrival.facts.purpose, arrival.facts.group);
    kept[std::move(key)].push_back({std::move(arrival)});
    changed.notify_all();
  }

  void drop_forgotten() {
    std::lock_guard lock(mutex);
    for (auto entry = kept.begin(); entry != kept.end();) {
      auto& queue = entry->second;
      while (!queue.empty() && Clock::now() - queue.front().since >= options.keep_limit) {
        log(LogLevel::warning, "dropped a connection from {} ({}): nobody asked for it in {} ms",
            queue.front().arrival.from.text(), words_of(queue.front().arrival.facts),
            options.keep_limit.count());
        queue.pop_front();
        --num_kept;
      }
      entry = queue.empty() ? kept.erase(entry) : std::next(entry);
    }
  }

  /// With the lock held.
  std::optional<Arrival> take(const Key& key) {
    const auto entry = kept.find(key);
    if (entry == kept.end()) return {};
    Arrival arrival = std::move(entry->second.front().arrival);
    entry->second.pop_front();
    --num_kept;
    if (entry->second.empty()) kept.erase(entry);
    return arrival;
  }

  const Credentials credentials;
  const ListenerOptions options;
  const std::string identity;
  FileDescriptor socket;
  const Address address;

  std::mutex handler_mutex;  // held while a handler runs; taken before mutex
  std::map<std::string, std::function<void(Arrival)>> handlers;

  std::mutex mutex;
  std::condition_variable changed;
  std::map<Key, std::deque<Kept>> kept;  // no empty queues
  int num_kept = 0;
  bool closed = false;
  std::string failure;

  detail::Admission admission;
  std::thread thread;  // last: it uses the rest
};

Listener::Listener(const Address& at, Credentials credentials, const ListenerOptions& options)
    : implementation_(std::make_unique<Implementation>(at, std::move(credentials), options)) {}

Listener::~Listener() {
  close();
  implementation_->thread.join();
}

const Address& Listener::address() const noexcept { return implementation_->address; }

const std::string& Listener::identity() const noexcept { return implementation_->identity; }

const Credentials& Listener::credentials() const noexcept { return implementation_->credentials; }

Arrival Listener::wait(const std::string& purpose, const std::string& group,
                       const Deadline& deadline) {
  auto& self = *implementation_;
  std::unique_lock lock(self.mutex);
  std::optional<Arrival> arrival;
  const bool came = self.changed.wait_until(lock, deadline.at(), [&] {
    arrival = self.take({purpose, group});
    return arrival || self.closed;
  });
  if (arrival) return std::move(*arrival);
  const std::string wanted = words_of({.purpose = purpose, .group = group});
  if (came) {
    throw PeerLost(fmt::format(
        "nobody can connect for {} any more: this process stopped listening "
        "at {}{}",
        wanted, self.address.text(), self.failure.empty() ? "" : " (" + self.failure + ")"));
  }
  throw Timeout(fmt::format("nobody connected to {} for {} in {} ms", self.address.text(), wanted,
                            deadline.limit().count()));
}

std::optional<Arrival> Listener::take(const std::string& purpose, const std::string& group) {
  std::lock_guard lock(implementation_->mutex);
  return implementation_->take({purpose, group});
}

void Listener::serve(const std::string& purpose, std::function<void(Arrival)> handler) {
  auto& self = *implementation_;
  std::lock_guard serving(self.handler_mutex);
  self.handlers.erase(purpose);
  if (!handler) return;
  std::deque<Arrival> earlier;
  {
    std::lock_guard lock(self.mutex);
    for (auto entry = self.kept.begin(); entry != self.kept.end();) {
      if (entry->first.first != purpose) {
        ++entry;
        continue;
      }
      for (auto& waiting : entry->second) earlier.push_back(std::move(waiting.arrival));
      self.num_kept -= static_cast<int>(entry->second.size());
      entry = self.kept.erase(entry);
    }
  }
  for (Arrival& arrival : earlier) handler(std::move(arrival));
  self.handlers.emplace(purpose, std::move(handler));
}

void Listener::close() noexcept { implementation_->admission.stop(); }

}  // namespace tutti
