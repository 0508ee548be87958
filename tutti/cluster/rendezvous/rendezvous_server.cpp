#include "tutti/cluster/rendezvous/detail/rendezvous_server.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/base/threads.h"

namespace tutti::detail {
namespace {

constexpr const char* kClosed = "closed its connection (it ended, or died)";

}  // namespace

RendezvousServer::RendezvousServer(const RendezvousState::Options& options)
    : state_(options), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_) throw Error("rendezvous: eventfd: " + errno_words(errno));
  thread_ = start_thread("the rendezvous", [this] { serve(); });
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
    if (failed_) return;  // its peer sees it closed
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
  // Nothing leaves this thread: the launcher would end with it, and nobody would say why.
  try {
    serve_until_end();
    say_bye();
  } catch (const std::exception& error) {
    fail(fmt::format("the rendezvous failed: {}", error.what()));
  }
}

void RendezvousServer::serve_until_end() {
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
}

// All clients are told, as far as that goes, and see the end of their connections.
void RendezvousServer::fail(const std::string& why) noexcept {
  try {
    log(LogLevel::error, "{}", why);
    const std::string text =
        encode({.kind = RendezvousMessage::Kind::lost, .worker = -1, .text = why});
    for (auto& [number, stream] : clients_) try {
        stream.send(text);
      } catch (const std::exception& error) {
        log(LogLevel::debug, "rendezvous, failing: {}", error.what());
      }
  } catch (const std::exception&) {  // nothing is left to say it with
  }
  clients_.clear();
  const std::scoped_lock lock(mutex_);
  failed_ = true;
  new_links_.clear();
}

void RendezvousServer::say_bye() {
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
        flush(client);
        return;
      }
      tell(state_.on_message(client, decode_rendezvous(*text), Clock::now()));
    } catch (const PeerLost&) {
      drop(client, kClosed);
    } catch (const std::exception& error) {
      log(LogLevel::warning, "rendezvous: {}", error.what());
      drop(client, "sent what is no message of the rendezvous");
    }
  }
}

// No memory for sockets, say: one client's end, not everybody's.
void RendezvousServer::flush(int client) {
  try {
    clients_.at(client).flush();
  } catch (const PeerLost&) {
    throw;
  } catch (const Error& error) {
    log(LogLevel::warning, "rendezvous: {}", error.what());
    drop(client, fmt::format("could not be told anything: {}", error.what()));
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
    } catch (const Error& error) {
      log(LogLevel::debug, "rendezvous: {}", error.what());
      gone.push_back(to);
    }
  }
  for (const int client : gone) {
    read(client);
    if (clients_.contains(client)) drop(client, kClosed);
  }
}

}  // namespace tutti::detail
