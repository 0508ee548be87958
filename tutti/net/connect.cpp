#include "tutti/net/connect.h"

#include <netdb.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/base/threads.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;

// Of several addresses one may swallow packets: the next gets its turn after this long.
constexpr Millis kOneOfSeveral = 2s;

/// What a lookup leaves behind. Shared with its thread, which may outlive the wait: a lookup cannot
/// be broken off.
struct Lookup {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  int error = 0;
  int error_number = 0;
  std::vector<Address> found;
};

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

int addresses_of(const std::string& host, int flags, AddressList& found) {
  addrinfo hints{};
  hints.ai_flags = flags;
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &list);
  found.reset(error == 0 ? list : nullptr);
  return error;
}

void look_up(const HostPort& target, Lookup& lookup) {
  AddressList list(nullptr, freeaddrinfo);
  // First what this host has an interface for, which leaves its loopback out: where nothing else is
  // of IPv4, a localhost that is 127.0.0.1 alone would have no address.
  int error = addresses_of(target.host, AI_ADDRCONFIG, list);
  if (error != 0) error = addresses_of(target.host, 0, list);
  const int error_number = errno;
  std::lock_guard lock(lookup.mutex);
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_family != AF_INET && entry->ai_family != AF_INET6) continue;
    lookup.found.push_back(Address(entry->ai_addr, entry->ai_addrlen).with_port(target.port));
  }
  lookup.error = error;
  lookup.error_number = error_number;
  lookup.done = true;
  lookup.changed.notify_all();
}

/// 0 when connected, else the errno that connect() came to; nothing at the deadline.
std::optional<int> finish_connect(int socket, const Deadline& deadline) {
  pollfd entry{socket, POLLOUT, 0};
  while (true) {
    const auto left = std::min<int64_t>(deadline.left().count(), 1'000'000);
    const int ready = poll(&entry, 1, static_cast<int>(left));
    if (ready < 0 && errno != EINTR) throw Error("poll: " + errno_words(errno));
    if (ready > 0) break;
    if (deadline.passed()) return {};
  }
  int error = 0;
  socklen_t length = sizeof error;
  if (getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  return error;
}

/// A socket that tries a free port of this machine may meet itself there.
bool is_connected_to_itself(int socket) {
  return local_address_of(socket) == peer_address_of(socket);
}

using NameOfSocket = int (*)(int, sockaddr*, socklen_t*);

Address name_of_socket(NameOfSocket get, int socket) {
  sockaddr_storage raw{};
  socklen_t length = sizeof raw;
  if (get(socket, reinterpret_cast<sockaddr*>(&raw), &length) != 0) return {};
  if (raw.ss_family != AF_INET && raw.ss_family != AF_INET6) return {};
  return Address(reinterpret_cast<const sockaddr*>(&raw), length);
}

}  // namespace

std::vector<Address> resolve(const HostPort& target, const Deadline& deadline) {
  if (const auto number = Address::from_number(target.host, target.port)) return {*number};
  auto lookup = std::make_shared<Lookup>();
  start_thread("the look-up of " + target.host, [target, lookup] {
    look_up(target, *lookup);
  }).detach();
  std::unique_lock lock(lookup->mutex);
  if (!lookup->changed.wait_until(lock, deadline.at(), [&] { return lookup->done; })) {
    throw Timeout(
        fmt::format("the name {} was not resolved in {} ms\n  the name service does not "
                    "answer; an address in numbers needs none",
                    target.host, deadline.limit().count()));
  }
  if (!lookup->found.empty()) return lookup->found;
  const std::string words = lookup->error == EAI_SYSTEM ? errno_words(lookup->error_number)
                            : lookup->error != 0        ? gai_strerror(lookup->error)
                                                        : "it has no IPv4 or IPv6 address";
  throw Error(fmt::format("the name {} cannot be resolved: {}\n  see `getent hosts {}`",
                          target.host, words, target.host));
}

FileDescriptor connect_to(const Address& target, std::string_view who, const Deadline& deadline) {
  FileDescriptor connected(
      socket(target.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!connected) throw Error("socket: " + errno_words(errno));
  std::optional<int> error = 0;
  if (connect(connected.get(), target.raw(), target.length()) != 0) {
    // An interrupted connect() goes on by itself, as one that would wait does.
    error = errno == EINPROGRESS || errno == EINTR ? finish_connect(connected.get(), deadline)
                                                   : std::optional(errno);
  }
  if (!error) {
    throw Timeout(
        fmt::format("connect to {} ({}): no answer in {} ms\n  it is down, or a firewall "
                    "drops what is sent there",
                    who, target.text(), deadline.limit().count()));
  }
  if (*error == 0 && is_connected_to_itself(connected.get())) error = ECONNREFUSED;
  if (*error == 0) return connected;
  throw PeerLost(fmt::format("connect to {} ({}): {}{}", who, target.text(), errno_words(*error),
                             *error == ECONNREFUSED ? "\n  nothing listens there now" : ""));
}

FileDescriptor connect_to_any(const HostPort& target, std::string_view who,
                              const Deadline& deadline) {
  const std::vector<Address> addresses = resolve(target, deadline);
  for (size_t i = 0; i + 1 < addresses.size(); ++i) {
    try {
      return connect_to(addresses[i], who, Deadline(std::min(kOneOfSeveral, deadline.left())));
    } catch (const Error& error) {
      log(LogLevel::debug, "{}", error.what());
    }
  }
  return connect_to(addresses.back(), who, deadline);
}

Address local_address_of(int socket) { return name_of_socket(getsockname, socket); }

Address peer_address_of(int socket) { return name_of_socket(getpeername, socket); }

}  // namespace tutti
