/// SocketLink: what plain and TLS links have in common. For net's own sources; others use Link.
#pragma once

#include <atomic>
#include <string>
#include <utility>

#include "tutti/base/file_descriptor.h"
#include "tutti/net/link.h"

namespace tutti::detail {

class SocketLink : public Link {
 public:
  int descriptor() const noexcept final { return socket_.get(); }
  void shutdown() noexcept final;
  const std::string& peer() const noexcept final { return peer_; }

  /// From now on errors name the other side so: before the handshake only its address is known.
  void name_peer(std::string peer) { peer_ = std::move(peer); }

  /// Bytes that only the two ends of this very connection know, once the link is secured; empty for
  /// plain text. They enter the handshake's proofs, so that nobody can stand between two TLS links.
  virtual std::string binding() = 0;

 protected:
  /// Makes the socket nonblocking, with TCP_NODELAY where it is TCP. UsageError when it is no
  /// connected stream socket.
  SocketLink(FileDescriptor socket, std::string peer);

  /// Throws PeerLost after shutdown().
  void check_not_ended() const;
  /// Throws what a failed call on the socket means for whoever holds the link. EPIPE: closed.
  [[noreturn]] void fail(const char* operation, int error_number) const;

 private:
  FileDescriptor socket_;
  std::string peer_;
  std::atomic<bool> ended_{false};
};

/// Renames the other side of a link that came from a Listener or connect_link(); other kinds keep
/// their name.
void name_peer(Link& link, std::string peer);

std::unique_ptr<SocketLink> make_plain_socket_link(FileDescriptor socket, std::string peer);

}  // namespace tutti::detail
