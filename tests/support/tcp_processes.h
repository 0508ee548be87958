/// Members of a tcp group in processes of their own: the test makes listening sockets, which all
/// ranks inherit; each rank connects to the lower ones over the loopback device.
#pragma once

#include <poll.h>

#include "tests/support/run_ranks.h"
#include "tests/support/tcp_members.h"

namespace tutti::test {

constexpr Millis kMeetingLimit{20'000};

inline void check_call(int64_t result, const char* what) {
  if (result < 0) throw Error(std::string(what) + ": " + errno_words(errno));
}

/// A listening socket of 127.0.0.1 for each rank, on ports that the system chose.
inline std::vector<FileDescriptor> make_listeners(int size) {
  std::vector<FileDescriptor> all;
  for (int r = 0; r < size; ++r) {
    FileDescriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    check_call(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), "bind");
    check_call(listen(listener.get(), 64), "listen");
    all.push_back(std::move(listener));
  }
  return all;
}

inline std::vector<RankOutcome> run_tcp_ranks(int size, const std::string& program,
                                              RunOptions options = {}) {
  const std::vector<FileDescriptor> listeners = make_listeners(size);
  for (const FileDescriptor& listener : listeners) options.descriptors.push_back(listener.get());
  return run_ranks(size, program, options);
}

/// The links of a rank, and the numbers of its sockets, so that it can misuse them.
struct ProcessLinks {
  TcpLinks links;
  std::vector<int> data, control;  ///< by rank; -1 at the own place
};

/// Connects to all other ranks: one data link and one control link each.
inline ProcessLinks connect_processes(const Rank& rank) {
  struct Hello {
    int from;
    int control;
  };
  ProcessLinks made{.links = {.rank = rank.rank, .size = rank.size, .peers = {}},
                    .data = std::vector<int>(rank.size, -1),
                    .control = std::vector<int>(rank.size, -1)};
  made.links.peers.resize(rank.size);
  const auto add = [&](int peer, bool control, FileDescriptor socket) {
    (control ? made.control : made.data)[peer] = socket.get();
    auto link = make_plain_link(std::move(socket), "rank " + std::to_string(peer));
    if (control)
      made.links.peers[peer].control = std::move(link);
    else
      made.links.peers[peer].data.push_back(std::move(link));
  };
  for (int peer = 0; peer < rank.rank; ++peer)
    for (int control : {0, 1}) {
      sockaddr_in address{};
      socklen_t length = sizeof address;
      check_call(
          getsockname(rank.descriptors[peer], reinterpret_cast<sockaddr*>(&address), &length),
          "getsockname");
      FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      check_call(connect(socket.get(), reinterpret_cast<sockaddr*>(&address), length), "connect");
      const Hello hello{rank.rank, control};
      check_call(send(socket.get(), &hello, sizeof hello, MSG_NOSIGNAL), "send");
      add(peer, control != 0, std::move(socket));
    }
  for (int i = 0; i < 2 * (rank.size - 1 - rank.rank); ++i) {
    const int listener = rank.descriptors[rank.rank];
    pollfd one{listener, POLLIN, 0};
    if (poll(&one, 1, static_cast<int>(kMeetingLimit.count())) <= 0)
      throw Timeout("no rank has come");
    FileDescriptor socket(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    check_call(socket.get(), "accept");
    Hello hello{};
    check_call(recv(socket.get(), &hello, sizeof hello, MSG_WAITALL), "recv");
    add(hello.from, hello.control != 0, std::move(socket));
  }
  return made;
}

}  // namespace tutti::test
