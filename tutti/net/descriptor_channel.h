/// DescriptorChannel: short messages with open descriptors between processes of one host.
///
/// One end of a connected Unix socket (SOCK_SEQPACKET, so message borders are kept). What has no
/// name, such as the memfd of a segment, reaches another process this way, and a worker and its
/// launcher talk over one. Messages arrive whole, once, and in order.
/// Thread rule: one thread sends and one receives at a time; the two may be different threads.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/base/file_descriptor.h"

namespace tutti {

class DescriptorChannel {
 public:
  static constexpr size_t kMaxTextBytes = 16 << 10;  ///< of one message
  static constexpr size_t kMaxDescriptors = 16;      ///< in one message

  struct Message {
    std::string text;
    std::vector<FileDescriptor> descriptors;  ///< duplicates of the sender's, close-on-exec
  };

  /// No channel; every call throws.
  DescriptorChannel() = default;

  /// Takes over a connected socket. `peer` names the other side in errors: "worker 3". Throws
  /// UsageError when the descriptor is not such a socket (it is then not closed).
  DescriptorChannel(int descriptor, std::string peer);

  /// Two connected ends, close-on-exec.
  static std::pair<DescriptorChannel, DescriptorChannel> make_pair(std::string first_peer,
                                                                   std::string second_peer);

  /// Sends one message; the descriptors stay the caller's. Waits while the socket is full.
  /// Throws PeerLost (closed by the other side), Timeout, UsageError (too long, too many).
  void send(std::string_view text, std::span<const int> descriptors, const Deadline& deadline);

  /// The next message. Throws PeerLost once the other side has closed and all that it sent before
  /// is read; Timeout; Error when what arrives is not a message of a channel (then give it up).
  Message receive(const Deadline& deadline);

  int descriptor() const noexcept { return socket_.get(); }  ///< for poll; -1 when closed
  const std::string& peer() const noexcept { return peer_; }
  void close() noexcept { socket_.reset(); }

 private:
  void wait_for(short events, const char* operation, const Deadline& deadline) const;

  FileDescriptor socket_;
  std::string peer_ = "nobody";
};

}  // namespace tutti
