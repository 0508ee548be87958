#include "tutti/net/link.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "tutti/base/error.h"
#include "tutti/net/detail/socket_link.h"

namespace tutti {
namespace detail {
namespace {

bool would_wait(int error_number) { return error_number == EAGAIN || error_number == EWOULDBLOCK; }

int socket_option(int socket, int option) {
  int value = 0;
  socklen_t length = sizeof value;
  return getsockopt(socket, SOL_SOCKET, option, &value, &length) == 0 ? value : -1;
}

class PlainLink final : public SocketLink {
 public:
  PlainLink(FileDescriptor socket, std::string peer)
      : SocketLink(std::move(socket), std::move(peer)) {}

  int64_t write_some(std::span<const iovec> pieces) override {
    check_not_ended();
    // An empty piece in front would make a call that moves nothing look like a full stream.
    while (!pieces.empty() && pieces.front().iov_len == 0) pieces = pieces.subspan(1);
    if (pieces.empty()) return 0;
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces.data());  // sendmsg() does not write to it
    message.msg_iovlen = std::min<size_t>(pieces.size(), IOV_MAX);
    while (true) {
      const ssize_t sent = sendmsg(descriptor(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent >= 0) return sent;
      if (would_wait(errno)) return 0;
      if (errno != EINTR) fail("write to", errno);
    }
  }

  int64_t read_some(void* to, int64_t bytes) override {
    check_not_ended();
    if (bytes <= 0) return 0;
    while (true) {
      const ssize_t got = recv(descriptor(), to, static_cast<size_t>(bytes), MSG_DONTWAIT);
      if (got > 0) return got;
      if (got == 0) fail("read from", EPIPE);
      if (would_wait(errno)) return 0;
      if (errno != EINTR) fail("read from", errno);
    }
  }

  short wants_to_read() const noexcept override { return POLLIN; }
  short wants_to_write() const noexcept override { return POLLOUT; }
  bool has_buffered() const noexcept override { return false; }
  void gather(int64_t bytes) noexcept override {
    const auto wanted = static_cast<int>(std::clamp<int64_t>(bytes, 1, INT_MAX));
    if (wanted == gathered_) return;
    // What does not know it is readable at once: no more than a wait that ends early.
    setsockopt(descriptor(), SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof wanted);
    gathered_ = wanted;
  }
  std::string binding() override { return {}; }

 private:
  int gathered_ = 1;
};

}  // namespace

SocketLink::SocketLink(FileDescriptor socket, std::string peer)
    : socket_(std::move(socket)), peer_(std::move(peer)) {
  if (socket_option(descriptor(), SO_TYPE) != SOCK_STREAM) {
    throw UsageError(fmt::format("descriptor {} is no stream socket to {}", descriptor(), peer_));
  }
  const int flags = fcntl(descriptor(), F_GETFL);
  if (flags < 0 || fcntl(descriptor(), F_SETFL, flags | O_NONBLOCK) != 0) {
    throw Error(fmt::format("connection to {}: fcntl: {}", peer_, errno_words(errno)));
  }
  if (socket_option(descriptor(), SO_PROTOCOL) == IPPROTO_TCP) {
    const int on = 1;  // a failure means that the peer has gone: the first read says so
    setsockopt(descriptor(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
}

void SocketLink::shutdown() noexcept {
  ended_.store(true, std::memory_order_relaxed);
  ::shutdown(descriptor(), SHUT_RDWR);
}

void SocketLink::check_not_ended() const {
  if (ended_.load(std::memory_order_relaxed)) [[unlikely]]
    throw PeerLost(fmt::format("this side has ended the connection to {}", peer_));
}

void SocketLink::fail(const char* operation, int error_number) const {
  check_not_ended();  // a shutdown in the middle of a call looks like a close of the peer
  if (error_number == EPIPE) {
    throw PeerLost(fmt::format("{} closed the connection (it ended, or died)", peer_));
  }
  if (error_number == ECONNRESET) {
    throw PeerLost(fmt::format("{} reset the connection (it died, or left in the middle)", peer_));
  }
  if (error_number == ENOBUFS || error_number == ENOMEM) {
    throw Error(fmt::format("{} {}: {}; this machine is short of memory for sockets", operation,
                            peer_, errno_words(error_number)));
  }
  throw PeerLost(fmt::format("the connection to {} broke: {}", peer_, errno_words(error_number)));
}

void name_peer(Link& link, std::string peer) {
  if (auto* named = dynamic_cast<SocketLink*>(&link)) named->name_peer(std::move(peer));
}

std::unique_ptr<SocketLink> make_plain_socket_link(FileDescriptor socket, std::string peer) {
  return std::make_unique<PlainLink>(std::move(socket), std::move(peer));
}

}  // namespace detail

std::unique_ptr<Link> make_plain_link(FileDescriptor socket, std::string peer) {
  return detail::make_plain_socket_link(std::move(socket), std::move(peer));
}

std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>> make_link_pair(std::string first_peer,
                                                                       std::string second_peer) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw Error("socketpair: " + errno_words(errno));
  }
  FileDescriptor first(ends[0]), second(ends[1]);
  return {make_plain_link(std::move(first), std::move(first_peer)),
          make_plain_link(std::move(second), std::move(second_peer))};
}

}  // namespace tutti
