/// Members of a tcp group on threads: their links made in this process, over socket pairs or over
/// TCP of the loopback device, also for the groups that are split off.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/comm/tcp/tcp.h"
#include "tutti/net/link.h"

namespace tutti::test {

enum class Wire { unix_pair, loopback };

/// Two connected TCP sockets of 127.0.0.1, on a port that the system chose.
inline std::pair<FileDescriptor, FileDescriptor> tcp_pair() {
  const auto check = [](int result, const char* what) {
    if (result < 0) throw Error(std::string(what) + ": " + errno_words(errno));
    return result;
  };
  const FileDescriptor listener(check(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket"));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  check(bind(listener.get(), generic, length), "bind");
  check(listen(listener.get(), 1), "listen");
  check(getsockname(listener.get(), generic, &length), "getsockname");
  FileDescriptor first(check(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket"));
  check(connect(first.get(), generic, length), "connect");
  FileDescriptor second(check(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC), "accept"));
  return {std::move(first), std::move(second)};
}

using LinkPair = std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>>;

/// A link between ranks `a` and `b`, the first end at `a`.
inline LinkPair link_between(int a, int b, Wire wire) {
  const auto name = [](int rank) { return "rank " + std::to_string(rank); };
  if (wire == Wire::unix_pair) return make_link_pair(name(b), name(a));
  auto [first, second] = tcp_pair();
  return {make_plain_link(std::move(first), name(b)), make_plain_link(std::move(second), name(a))};
}

/// Links of every rank to every other, `streams` data links for each lane, as `make(a, b)` makes
/// them.
inline std::vector<TcpLinks> tcp_links(int size, int streams,
                                       const std::function<LinkPair(int, int)>& make,
                                       int lanes = 1) {
  std::vector<TcpLinks> all(static_cast<size_t>(size));
  for (int r = 0; r < size; ++r) {
    all[r].rank = r;
    all[r].size = size;
    all[r].lanes = lanes;
    all[r].peers.resize(static_cast<size_t>(size));
  }
  for (int a = 0; a < size; ++a)
    for (int b = a + 1; b < size; ++b) {
      for (int s = 0; s < streams * lanes; ++s) {
        LinkPair ends = make(a, b);
        all[a].peers[b].data.push_back(std::move(ends.first));
        all[b].peers[a].data.push_back(std::move(ends.second));
      }
      LinkPair ends = make(a, b);
      all[a].peers[b].control = std::move(ends.first);
      all[b].peers[a].control = std::move(ends.second);
    }
  return all;
}

inline std::vector<TcpLinks> tcp_links(int size, int streams = 1, Wire wire = Wire::unix_pair,
                                       int lanes = 1) {
  return tcp_links(size, streams, [wire](int a, int b) { return link_between(a, b, wire); }, lanes);
}

/// Connects the groups that members split off: the first of a group to come makes all its links.
class LocalConnector {
 public:
  LocalConnector(int streams, Wire wire, int lanes)
      : streams_(streams), wire_(wire), lanes_(lanes) {}

  TcpLinks connect(const std::string& key, const std::vector<int>& members, int rank) {
    const std::scoped_lock lock(mutex_);
    auto& links = groups_[key];
    if (links.empty()) links = tcp_links(static_cast<int>(members.size()), streams_, wire_, lanes_);
    return std::move(links[rank]);
  }

 private:
  int streams_;
  Wire wire_;
  int lanes_;
  std::mutex mutex_;
  std::map<std::string, std::vector<TcpLinks>> groups_;
};

/// Engines of one group, in rank order.
inline std::vector<std::shared_ptr<Engine>> make_tcp_members(int size, TcpOptions options = {},
                                                             int streams = 1,
                                                             Wire wire = Wire::unix_pair,
                                                             int lanes = 1) {
  const auto connector = std::make_shared<LocalConnector>(streams, wire, lanes);
  options.connect = [connector](const std::string& key, const std::vector<int>& members, int rank,
                                const Deadline&) { return connector->connect(key, members, rank); };
  std::vector<std::shared_ptr<Engine>> engines;
  for (TcpLinks& links : tcp_links(size, streams, wire, lanes))
    engines.push_back(make_tcp(std::move(links), options));
  return engines;
}

}  // namespace tutti::test
