/// DescriptorGiver: passes one descriptor to every process of the job on this host that asks.
///
/// Names and numbers of hosts lie (containers, copied images); a descriptor that arrived does not.
/// It is asked for at a Unix socket without a name in the file system, which belongs to a network
/// namespace: processes of different namespaces count as of different hosts.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "tutti/base/deadline.h"
#include "tutti/base/file_descriptor.h"
#include "tutti/net/token.h"

namespace tutti {

/// Gives while it lives, in a thread of its own, after the handshake of the token.
/// Thread rule: const functions may be called from any thread.
class DescriptorGiver {
 public:
  /// `key` is what both sides agreed on (at most 200 printable letters) and shows in the log, where
  /// those are named that were turned away. `descriptor` stays the caller's and open meanwhile; who
  /// asks gets a duplicate. Throws Error when the system refuses a socket.
  DescriptorGiver(const Token& token, const std::string& key, int descriptor);
  ~DescriptorGiver();
  DescriptorGiver(const DescriptorGiver&) = delete;
  DescriptorGiver& operator=(const DescriptorGiver&) = delete;

  /// Of its socket, for take_descriptor(): 128 random bits as printable letters without a blank.
  /// Nobody needs to keep it secret.
  const std::string& name() const noexcept;

 private:
  class Work;
  std::unique_ptr<Work> work_;
};

/// Who asks, in words and numbers.
struct DescriptorRequest {
  std::string name;  ///< DescriptorGiver::name()
  std::string key;   ///< the giver's
  std::string who;   ///< the giver, in errors: "rank 3 (on this host)"
  int rank = -1;     ///< of who asks, in the giver's log; -1: none
};

/// A descriptor from the giver of that name, close-on-exec. None when there is no such giver in
/// this network namespace, or a sandbox keeps the two apart. Throws Mismatch when it holds another
/// token or key or the name is none, PeerLost when it ends meanwhile, and Timeout.
std::optional<FileDescriptor> take_descriptor(const DescriptorRequest& request, const Token& token,
                                              const Deadline& deadline);

}  // namespace tutti
