/// TLS 1.3 for links: nobody on the way can read or change what they carry.
///
/// Each side shows a certificate and checks that the other's is signed by the same authority. Names
/// in certificates are not compared with addresses: the handshake that follows proves the token,
/// over keys that only the two ends of this TLS connection know. Thread rule: const functions may
/// be called from any thread.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "tutti/base/file_descriptor.h"
#include "tutti/net/link.h"

namespace tutti {

/// Names a folder with the files ca.pem, cert.pem and key.pem.
inline constexpr const char* kTlsVariable = "TUTTI_TLS";

/// PEM files.
struct TlsFiles {
  std::filesystem::path authority;    ///< certificates of who signs the job's certificates
  std::filesystem::path certificate;  ///< this process's, with the chain up to the authority
  std::filesystem::path key;          ///< its private key, without a pass phrase
};

namespace detail {
class SocketLink;
}

class TlsContext {
 public:
  /// Loads the files. Throws UsageError that names the file and what is wrong with it.
  explicit TlsContext(const TlsFiles& files);

  enum class Side { client, server };
  /// A link over a connected socket. The TLS handshake happens within its first reads and writes,
  /// which throw Mismatch when a certificate is not accepted or the other side speaks no TLS.
  std::unique_ptr<Link> make_link(FileDescriptor socket, std::string peer, Side side) const;

  struct Implementation;
  const Implementation& implementation() const noexcept { return *implementation_; }

 private:
  std::shared_ptr<const Implementation> implementation_;
};

/// The context of the files in the folder that TUTTI_TLS names; null when it is not set.
std::shared_ptr<const TlsContext> tls_from_environment();

namespace detail {
/// TLS when there is a context, else plain text.
std::unique_ptr<SocketLink> make_socket_link(const TlsContext* tls, FileDescriptor socket,
                                             std::string peer, TlsContext::Side side);
}  // namespace detail

}  // namespace tutti
