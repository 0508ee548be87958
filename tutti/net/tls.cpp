#include "tutti/net/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <vector>

#include "tutti/base/detail/check.h"
#include "tutti/base/file.h"
#include "tutti/net/detail/secret_file.h"
#include "tutti/net/detail/socket_link.h"

namespace tutti {
namespace {

constexpr size_t kRecordBytes = 16 << 10;  // the longest plain text of a TLS record
constexpr size_t kBindingBytes = 32;
constexpr std::string_view kBindingLabel = "EXPORTER-tutti-handshake";

template <auto Free>
struct Freer {
  template <class T>
  void operator()(T* pointer) const {
    Free(pointer);
  }
};
using ContextOwner = std::unique_ptr<SSL_CTX, Freer<SSL_CTX_free>>;
using SslOwner = std::unique_ptr<SSL, Freer<SSL_free>>;
using MethodOwner = std::unique_ptr<BIO_METHOD, Freer<BIO_meth_free>>;

/// The first cause in OpenSSL's queue of this thread, in its words; empties the queue.
std::string openssl_words() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  if (ERR_SYSTEM_ERROR(code)) return errno_words(ERR_GET_REASON(code));
  const char* words = code == 0 ? nullptr : ERR_reason_error_string(code);
  return words == nullptr ? "no reason given" : words;
}

// OpenSSL's own socket BIO calls write(2), which raises SIGPIPE; ours does not.
int bio_descriptor(BIO* bio) {
  return static_cast<const detail::SocketLink*>(BIO_get_data(bio))->descriptor();
}

int bio_result(BIO* bio, ssize_t moved, int retry) {
  BIO_clear_retry_flags(bio);
  const bool again = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  if (moved < 0 && again) BIO_set_flags(bio, retry | BIO_FLAGS_SHOULD_RETRY);
  return static_cast<int>(moved);
}

int bio_write(BIO* bio, const char* bytes, int length) {
  const auto count = static_cast<size_t>(length);
  return bio_result(bio, send(bio_descriptor(bio), bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT),
                    BIO_FLAGS_WRITE);
}

int bio_read(BIO* bio, char* bytes, int length) {
  const auto count = static_cast<size_t>(length);
  return bio_result(bio, recv(bio_descriptor(bio), bytes, count, MSG_DONTWAIT), BIO_FLAGS_READ);
}

long bio_control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

int bio_create(BIO* bio) {
  BIO_set_init(bio, 1);
  return 1;
}

BIO_METHOD* socket_method() {
  // Never freed: threads may use links while the process ends.
  static BIO_METHOD* const method = [] {
    MethodOwner made(BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "tutti socket"));
    TUTTI_CHECK(made != nullptr, "BIO_meth_new");
    BIO_meth_set_write(made.get(), bio_write);
    BIO_meth_set_read(made.get(), bio_read);
    BIO_meth_set_ctrl(made.get(), bio_control);
    BIO_meth_set_create(made.get(), bio_create);
    return made.release();
  }();
  return method;
}

class TlsLink final : public detail::SocketLink {
 public:
  TlsLink(SSL_CTX* context, FileDescriptor socket, std::string peer, TlsContext::Side side)
      : SocketLink(std::move(socket), std::move(peer)), ssl_(SSL_new(context)) {
    BIO* bio = ssl_ == nullptr ? nullptr : BIO_new(socket_method());
    if (bio == nullptr) throw Error("TLS: no memory for a connection");
    BIO_set_data(bio, static_cast<detail::SocketLink*>(this));
    SSL_set_bio(ssl_.get(), bio, bio);
    side == TlsContext::Side::server ? SSL_set_accept_state(ssl_.get())
                                     : SSL_set_connect_state(ssl_.get());
  }

  int64_t write_some(std::span<const iovec> pieces) override {
    check_not_ended();
    int64_t taken = 0;
    while (next_record(pieces, taken)) {
      ERR_clear_error();
      size_t written = 0;
      errno = 0;
      const int result = SSL_write_ex(ssl_.get(), record_.data(), record_.size(), &written);
      record_waits_ = result != 1;
      if (record_waits_) {
        wants_to_write_ = wanted_event(result, "write to");
        break;
      }
      record_kept_ = false;
      taken += static_cast<int64_t>(written);
    }
    return taken;
  }

  int64_t keep_begun() noexcept override {
    record_kept_ = record_waits_;
    return record_waits_ ? static_cast<int64_t>(record_.size()) : 0;
  }

  int64_t read_some(void* to, int64_t bytes) override {
    check_not_ended();
    if (bytes <= 0) return 0;
    ERR_clear_error();
    size_t got = 0;
    errno = 0;
    const int result = SSL_read_ex(ssl_.get(), to, static_cast<size_t>(bytes), &got);
    if (result == 1) {
      secured_ = true;
      return static_cast<int64_t>(got);
    }
    wants_to_read_ = wanted_event(result, "read from");
    return 0;
  }

  short wants_to_read() const noexcept override { return wants_to_read_; }
  short wants_to_write() const noexcept override { return wants_to_write_; }
  // Whole records never wait inside: OpenSSL takes one at a time from the socket.
  bool has_buffered() const noexcept override { return SSL_pending(ssl_.get()) > 0; }

  std::string binding() override {
    std::string bytes(kBindingBytes, '\0');
    const int made = SSL_export_keying_material(
        ssl_.get(), reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(),
        kBindingLabel.data(), kBindingLabel.size(), nullptr, 0, 0);
    TUTTI_CHECK(made == 1, "TLS exporter of {}: {}", peer(), openssl_words());
    return bytes;
  }

 private:
  /// Puts the next bytes behind `taken` into record_; false when there are none. A record that
  /// waits stays as it is: OpenSSL has begun to send it.
  bool next_record(std::span<const iovec> pieces, int64_t taken) {
    std::vector<char>& record = record_waits_ ? compared_ : record_;
    const size_t most = record_waits_ ? record_.size() : kRecordBytes;
    record.clear();
    auto skip = static_cast<size_t>(taken);
    for (const iovec& piece : pieces) {
      const size_t skipped = std::min(skip, piece.iov_len);
      skip -= skipped;
      const size_t part = std::min(piece.iov_len - skipped, most - record.size());
      const char* bytes = static_cast<const char*>(piece.iov_base) + skipped;
      if (part > 0) record.insert(record.end(), bytes, bytes + part);
      if (record.size() == most) break;
    }
    if (record_waits_ && record.empty()) return false;
    const bool same = record_kept_ ? compared_.size() == record_.size() : compared_ == record_;
    TUTTI_CHECK(!record_waits_ || same,
                "write to {}: other bytes than before, after a call that took none", peer());
    return !record.empty();
  }

  /// POLLIN or POLLOUT, or throws what the failure means.
  short wanted_event(int result, const char* operation) {
    const int error_number = errno;
    const int kind = SSL_get_error(ssl_.get(), result);
    if (kind == SSL_ERROR_WANT_READ) return POLLIN;
    if (kind == SSL_ERROR_WANT_WRITE) return POLLOUT;
    const unsigned long code = ERR_peek_error();
    const bool ended = kind == SSL_ERROR_ZERO_RETURN ||
                       ERR_GET_REASON(code) == SSL_R_UNEXPECTED_EOF_WHILE_READING ||
                       (kind == SSL_ERROR_SYSCALL && error_number == 0);
    if (kind == SSL_ERROR_SYSCALL || ended) {
      ERR_clear_error();
      fail(operation, ended ? EPIPE : error_number);
    }
    throw Mismatch(words_of_failure(code));
  }

  std::string words_of_failure(unsigned long code) {
    check_not_ended();
    const int reason = ERR_GET_REASON(code);
    const std::string words = openssl_words();
    const long verified = SSL_get_verify_result(ssl_.get());
    if (reason == SSL_R_CERTIFICATE_VERIFY_FAILED) {
      return fmt::format(
          "TLS: the certificate of {} is not accepted: {}\n  all processes of a job "
          "need certificates of one authority (ca.pem)",
          peer(), X509_verify_cert_error_string(verified));
    }
    if (reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE) {
      return fmt::format("TLS: {} shows no certificate", peer());
    }
    if (reason >= SSL_AD_REASON_OFFSET) {
      return fmt::format(
          "TLS: {} ended it: {}\n  it does not accept the certificate of this side, "
          "most likely; its log says why",
          peer(), words);
    }
    if (!secured_) {
      return fmt::format(
          "TLS: {} does not speak TLS 1.3 ({})\n  set {} for all processes of a job, "
          "or for none",
          peer(), words, kTlsVariable);
    }
    return fmt::format("TLS: what came from {} was changed on the way, or is cut off: {}", peer(),
                       words);
  }

  SslOwner ssl_;
  std::vector<char> record_, compared_;
  bool record_waits_ = false;
  bool record_kept_ = false;  // its bytes are not the caller's any more
  bool secured_ = false;      // bytes have come through
  short wants_to_read_ = POLLIN;
  short wants_to_write_ = POLLOUT;
};

UsageError bad_file(const char* what, const std::filesystem::path& path, std::string_view why) {
  return UsageError(fmt::format("TLS: the {} in {}: {}", what, path.string(), why));
}

/// Loads a file by `load`, which answers 1. OpenSSL would wait for the other end of a pipe.
template <class Load>
void load_file(const char* what, const std::filesystem::path& path, Load&& load) {
  try {
    open_to_read(path);
  } catch (const Error& error) {
    throw bad_file(what, path, error.what());
  }
  if (load(path.c_str()) != 1) throw bad_file(what, path, openssl_words());
}

}  // namespace

struct TlsContext::Implementation {
  ContextOwner context;
};

TlsContext::TlsContext(const TlsFiles& files) {
  ERR_clear_error();
  ContextOwner owner(SSL_CTX_new(TLS_method()));
  SSL_CTX* context = owner.get();
  if (context == nullptr || SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1) {
    throw Error("TLS: " + openssl_words());
  }
  load_file("authority's certificate", files.authority, [&](const char* path) {
    return SSL_CTX_load_verify_locations(context, path, nullptr);
  });
  load_file("certificate", files.certificate,
            [&](const char* path) { return SSL_CTX_use_certificate_chain_file(context, path); });
  if (struct stat facts{}; stat(files.key.c_str(), &facts) == 0)
    detail::require_private(facts, geteuid(), files.key, "TLS: private key");
  // Without this a key with a pass phrase would ask for it on the terminal.
  SSL_CTX_set_default_passwd_cb(context, [](char*, int, int, void*) { return 0; });
  load_file("private key", files.key, [&](const char* path) {
    return SSL_CTX_use_PrivateKey_file(context, path, SSL_FILETYPE_PEM);
  });
  if (SSL_CTX_check_private_key(context) != 1) {
    ERR_clear_error();
    throw UsageError(fmt::format("TLS: the key in {} does not belong to the certificate in {}",
                                 files.key.string(), files.certificate.string()));
  }
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_mode(context, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  // Every connection is checked anew: no tickets, no resumption.
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context, 0);
  implementation_ = std::make_shared<Implementation>(Implementation{std::move(owner)});
}

std::unique_ptr<Link> TlsContext::make_link(FileDescriptor socket, std::string peer,
                                            Side side) const {
  return detail::make_socket_link(this, std::move(socket), std::move(peer), side);
}

std::unique_ptr<detail::SocketLink> detail::make_socket_link(const TlsContext* tls,
                                                             FileDescriptor socket,
                                                             std::string peer,
                                                             TlsContext::Side side) {
  if (tls == nullptr) return make_plain_socket_link(std::move(socket), std::move(peer));
  return std::make_unique<TlsLink>(tls->implementation().context.get(), std::move(socket),
                                   std::move(peer), side);
}

std::shared_ptr<const TlsContext> tls_from_environment() {
  const char* folder = std::getenv(kTlsVariable);
  if (folder == nullptr || *folder == '\0') return nullptr;
  const std::filesystem::path path(folder);
  try {
    return std::make_shared<TlsContext>(
        TlsFiles{path / "ca.pem", path / "cert.pem", path / "key.pem"});
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: {}", kTlsVariable, error.what()));
  }
}

}  // namespace tutti
