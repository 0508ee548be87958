/// Link: one connected byte stream to a named peer, authenticated before anybody holds it.
///
/// Never waits: reads and writes move what goes now. Who waits polls descriptor() for wants().
/// Thread rule: one thread at a time, but shutdown() may come from any thread.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "tutti/base/file_descriptor.h"

namespace tutti {

class Link {
 public:
  virtual ~Link() = default;

  /// Writes from the pieces, in order, as much as goes without waiting; returns the bytes taken, 0
  /// when the stream is full: the next call then begins with the same bytes (a TLS record may hold
  /// them already). Throws PeerLost, naming the peer, when the connection is gone.
  virtual int64_t write_some(std::span<const iovec> pieces) = 0;

  /// Lets go of the bytes of a message that is half written: returns how many of the next call's
  /// the stream holds already (a TLS record that waits). They are sent as they were given, whatever
  /// that call, of at least as many bytes, gives in their place.
  virtual int64_t keep_begun() noexcept { return 0; }

  /// Reads at most `bytes`; returns how many came, 0 when nothing is there now. Throws PeerLost
  /// when the peer closed the connection or it was reset.
  virtual int64_t read_some(void* to, int64_t bytes) = 0;

  /// For poll(2): the descriptor, and what to wait for when the last call of its kind returned 0.
  virtual int descriptor() const noexcept = 0;
  virtual short wants_to_read() const noexcept = 0;   ///< POLLIN; TLS may need POLLOUT
  virtual short wants_to_write() const noexcept = 0;  ///< POLLOUT; TLS may need POLLIN
  /// poll(2) finds it readable once so many bytes are there, or its end; 1: as it begins. What
  /// cannot count them (TLS, Unix sockets) does at once.
  virtual void gather(int64_t /*bytes*/) noexcept {}
  /// Bytes that were received and wait inside (TLS records): poll(2) does not see them.
  virtual bool has_buffered() const noexcept = 0;

  /// Ends both directions; every later call, here and at the peer, throws PeerLost.
  virtual void shutdown() noexcept = 0;

  virtual const std::string& peer() const noexcept = 0;  ///< "rank 3 (10.0.0.7:41023)"
};

/// A link over a connected stream socket (TCP or Unix), plain text. Makes it nonblocking, with
/// TCP_NODELAY where it is TCP.
std::unique_ptr<Link> make_plain_link(FileDescriptor socket, std::string peer);

/// Two connected ends inside this machine.
std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>> make_link_pair(std::string first_peer,
                                                                       std::string second_peer);

}  // namespace tutti
