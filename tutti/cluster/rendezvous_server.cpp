#include "tutti/cluster/rendezvous_server.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/log.h"

namespace tutti::detail {
namespace {

constexpr const char* kClosed = "closed its connection (it ended, or died)";

}  // namespace

RendezvousServer::RendezvousServer(const RendezvousState::Options& options)
    : state_(options), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_) throw Error("rendezvous: eventfd: " + errno_words(errno));
  thread_ = std::thread([this] { serve(); });
}

RendezvousServer::~RendezvousServer() {
  {
    const std::scoped_lock lock(mutex_);
    ends_ = true;
  }
  eventfd_write(wake_.get(), 1);
  thread_.join();
}

void RendezvousServer::add(std::unique_ptr<Link> link) {
  {
    const std::scoped_lock lock(mutex_);
    new_links_.push_back(std::move(link));
  }
  eventfd_write(wake_.get(), 1);
}

void RendezvousServer::take_new_clients() {
  const std::scoped_lock lock(mutex_);
  for (auto& link : new_links_)
    clients_.emplace(next_client_++, TextStream(std::move(link), kMaxRendezvousBytes));
  new_links_.clear();
}

void RendezvousServer::serve() {
  sigset_t all;
  sigfillset(&all);  // signals are for the program's own threads
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  while (true) {
    take_new_clients();
    {
      const std::scoped_lock lock(mutex_);
      if (ends_) break;
    }
    std::vector<pollfd> watched = {{wake_.get(), POLLIN, 0}};
    std::vector<int> numbers;
    for (auto& [number, stream] : clients_) {
      watched.push_back({stream.link().descriptor(), stream.wants(), 0});
      numbers.push_back(number);
    }
    const auto until_beat = std::chrono::ceil<Millis>(state_.next_beat() - Clock::now()).count();
    poll(watched.data(), watched.size(),
         static_cast<int>(std::clamp<int64_t>(until_beat, 0, 1000)));
    eventfd_t ignored = 0;
    eventfd_read(wake_.get(), &ignored);
    for (size_t i = 0; i < numbers.size(); ++i)
      if (watched[i + 1].revents != 0) read(numbers[i]);
    tell(state_.on_time(Clock::now()));
  }
  for (auto& [number, stream] : clients_) {
    try {
      stream.send(encode({.kind = RendezvousMessage::Kind::bye}));
    } catch (const Error& error) {
      log(LogLevel::debug, "rendezvous, ending: {}", error.what());
    }
  }
}

void RendezvousServer::read(int client) {
  // A message may have dropped this very client.
  for (auto found = clients_.find(client); found != clients_.end(); found = clients_.find(client)) {
    try {
      // First what it said: its bye may stand before the end of the connection.
      const auto text = found->second.receive();
      if (!text) {
        found->second.flush();
        return;
      }
      tell(state_.on_message(client, decode_rendezvous(*text), Clock::now()));
    } catch (const PeerLost&) {
      drop(client, kClosed);
    } catch (const Error& error) {
      log(LogLevel::warning, "rendezvous: {}", error.what());
      drop(client, "sent what is no message of the rendezvous");
    }
  }
}

void RendezvousServer::drop(int client, const std::string& how) {
  clients_.erase(client);
  tell(state_.on_closed(client, how));
}

void RendezvousServer::tell(const RendezvousState::Outbox& outbox) {
  std::vector<int> gone;
  for (const auto& [to, message] : outbox) {
    const auto found = clients_.find(to);
    if (found == clients_.end()) continue;
    if (message.kind == RendezvousMessage::Kind::lost)
      log(LogLevel::debug, "rendezvous: {}", message.text);
    try {
      found->second.send(encode(message));
    } catch (const PeerLost&) {
      gone.push_back(to);
    }
  }
  for (int client : gone) {
    read(client);
    if (clients_.contains(client)) drop(client, kClosed);
  }
}

}  // namespace tutti::detail
