/// Handshake: how two processes prove to each other, before any other byte is parsed, that both
/// hold the job's token, and who they are.
///
///   client                                server
///   hello: magic, version, job, nonce ->              64 bytes
///                                     <-  hello       64 bytes, only for a client's valid hello
///   facts, proof                      ->
///                                     <-  verdict, facts, proof; or that the proof is none
///
/// A proof is HMAC-SHA256 with the token over the role, both hellos and what was said: a recorded
/// one does not fit another connection (nonces), nor does one sent back (role). Who cannot prove
/// hears nothing but a hello with a random nonce and "no". docs/design/security.md has the reasons.
///
/// This is the protocol alone, without sockets: bytes in, bytes out.
/// Thread rule: one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/net/token.h"

namespace tutti {

/// What one side says of itself and of the connection. Texts: at most 255 printable ASCII letters.
struct Facts {
  std::string job;      ///< the job's id
  std::string purpose;  ///< what the connection is for: "data", "control", "liveness"
  std::string group;    ///< key of the group that it belongs to, or ""
  std::string to;       ///< identity of the listener that is meant; "": whoever listens there
  int rank = -1;        ///< of the sender in that group; -1: none
  int stream = 0;       ///< which of several

  friend bool operator==(const Facts&, const Facts&) = default;
};

inline constexpr size_t kMaxFactTextBytes = 255;
inline constexpr size_t kMaxFactsBytes = 4 * (1 + kMaxFactTextBytes) + 8;

/// The bytes of facts, and back. Both throw Error when a limit does not hold; parsing also on bytes
/// that are missing or left over.
std::string encode_facts(const Facts& facts);
Facts parse_facts(std::string_view bytes);

/// "rank 3, data, group dp, stream 1": for messages.
std::string words_of(const Facts& facts);

class Handshake {
 public:
  enum class Role : uint8_t { client = 1, server = 2 };
  static constexpr size_t kHelloBytes = 64;

  /// `mine` of a server: its job and, in `to`, its own identity.
  Handshake(Role role, const Token& token, Facts mine);

  /// How many bytes the peer owes for its current message; 0 once all have come. Read no more: what
  /// follows belongs to whoever uses the connection next.
  size_t wanted() const noexcept { return failed_ ? 0 : wanted_ - input_.size(); }

  /// Takes at most wanted() bytes. Throws Mismatch (token, job or version differ; another listener
  /// was meant) or Error (these are no bytes of a handshake) in the words of this side. What is to
  /// be sent may then still tell an honest peer why; the connection is of no other use.
  void receive(std::string_view bytes);

  /// Bytes that wait to be sent; sent() takes them off.
  std::string_view to_send() const noexcept { return std::string_view(output_).substr(sent_); }
  void sent(size_t bytes) noexcept { sent_ += bytes; }

  /// What ties the proofs to a secured connection, the same bytes on both sides. Given before the
  /// peer's hello has come in whole.
  void bind_to(std::string binding) { binding_ = std::move(binding); }

  /// True when the peer has proved itself and everything is sent.
  bool done() const noexcept { return step_ == Step::done && to_send().empty(); }
  bool has_hello() const noexcept { return step_ > Step::hello; }  ///< a valid one of the peer
  const Facts& peer() const noexcept { return peer_; }             ///< when done

 private:
  enum class Step { hello, length, proof, done };
  using Proof = std::array<uint8_t, 32>;

  void check_magic() const;
  void take_hello();
  void take_length();
  void take_client_proof();
  void take_server_proof();
  std::string signed_bytes(Role signer) const;
  Proof proof_of(Role signer) const;
  bool proves(Role signer, std::string_view proof) const;
  void expect(Step step, size_t bytes);
  void answer(uint8_t verdict);
  bool is_client() const noexcept { return role_ == Role::client; }

  const Role role_;
  const Token token_;
  const Facts mine_;
  std::string binding_;
  Step step_ = Step::hello;
  bool failed_ = false;
  size_t wanted_ = kHelloBytes;
  std::string input_, output_;
  size_t sent_ = 0;

  // The transcript: what proofs are made over.
  std::string client_hello_, server_hello_, client_facts_, server_facts_;
  uint8_t verdict_ = 0;
  Facts peer_;
};

namespace detail {
class SocketLink;

/// The other side answered with its hello and closed the connection before the end: it ended just
/// then, or one of the two was too slow for it. Says nothing of tokens; another try may succeed.
class CutOff : public PeerLost {
 public:
  using PeerLost::PeerLost;
};

/// Sends what goes now, and takes nothing; true when nothing waits any more.
bool send_what_waits(Handshake& handshake, SocketLink& link);
/// Moves what goes now; true when done. Throws as Handshake and Link do.
bool advance(Handshake& handshake, SocketLink& link);
/// The same until done. Throws Timeout at the deadline, and CutOff.
void finish(Handshake& handshake, SocketLink& link, const Deadline& deadline);
}  // namespace detail

}  // namespace tutti
