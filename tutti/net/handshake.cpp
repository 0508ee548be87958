#include "tutti/net/handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "tutti/base/detail/check.h"
#include "tutti/net/detail/socket_link.h"

namespace tutti {
namespace {

// A hello: magic (8), version (2), role (1), zeros (5), job tag (16), nonce (32). The magic has
// bytes that no text protocol sends.
constexpr std::string_view kMagic("\x89tutti\r\n", 8);
constexpr char kTlsAlert = 21, kTlsHandshake = 22;  // how records of TLS begin
constexpr uint16_t kVersion = 1;
constexpr size_t kTagOffset = 16, kTagBytes = 16, kNonceOffset = 32, kNonceBytes = 32;
constexpr size_t kProofBytes = 32;
constexpr std::string_view kLabel = "tutti handshake";

// What a server thinks of a client that has proved itself; of one that has not it says kUnproven,
// without facts and proof.
constexpr uint8_t kAccepted = 0, kOtherJob = 1, kNotMe = 2, kUnproven = 3;

constexpr size_t kClientLengthBytes = 4;      // length of the facts
constexpr size_t kServerLengthBytes = 1 + 4;  // verdict, length of the facts

void put_number(std::string& to, uint32_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) to += static_cast<char>(value >> (8 * i) & 0xff);
}

uint32_t number_at(std::string_view bytes, size_t offset, size_t count) {
  uint32_t value = 0;
  for (size_t i = 0; i < count; ++i) {
    value |= uint32_t{static_cast<uint8_t>(bytes[offset + i])} << (8 * i);
  }
  return value;
}

bool is_printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

/// Tells jobs apart before anything is proved, without saying their ids.
std::string tag_of(const std::string& job) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(job.data()), job.size(), digest);
  return {reinterpret_cast<const char*>(digest), kTagBytes};
}

/// A server says no job: who has not proved itself learns nothing.
std::string make_hello(Handshake::Role role, const std::string& job) {
  std::string hello(kMagic);
  put_number(hello, kVersion, 2);
  hello += static_cast<char>(role);
  hello.append(5, '\0');
  hello += role == Handshake::Role::client ? tag_of(job) : std::string(kTagBytes, '\0');
  unsigned char nonce[kNonceBytes];
  if (RAND_bytes(nonce, sizeof nonce) != 1) {
    throw Error("no random bytes for a handshake: the system's random source failed");
  }
  return hello.append(reinterpret_cast<const char*>(nonce), sizeof nonce);
}

/// Takes `bytes` from the front.
std::string_view take(std::string_view& from, size_t bytes) {
  if (from.size() < bytes) throw Error("the facts of a handshake are cut off");
  const std::string_view taken = from.substr(0, bytes);
  from.remove_prefix(bytes);
  return taken;
}

std::string take_text(std::string_view& from) {
  const std::string_view text = take(from, number_at(take(from, 1), 0, 1));
  if (!is_printable(text)) throw Error("the facts of a handshake hold what cannot be printed");
  return std::string(text);
}

}  // namespace

std::string encode_facts(const Facts& facts) {
  std::string bytes;
  for (const std::string* text : {&facts.job, &facts.purpose, &facts.group, &facts.to}) {
    if (text->size() > kMaxFactTextBytes || !is_printable(*text)) {
      throw UsageError(
          fmt::format("a job id, purpose or group key of {} bytes: expected at most {} "
                      "printable ASCII letters",
                      text->size(), kMaxFactTextBytes));
    }
    put_number(bytes, static_cast<uint32_t>(text->size()), 1);
    bytes += *text;
  }
  put_number(bytes, static_cast<uint32_t>(facts.rank), 4);
  put_number(bytes, static_cast<uint32_t>(facts.stream), 4);
  return bytes;
}

Facts parse_facts(std::string_view bytes) {
  Facts facts;
  for (std::string* text : {&facts.job, &facts.purpose, &facts.group, &facts.to}) {
    *text = take_text(bytes);
  }
  facts.rank = static_cast<int>(number_at(take(bytes, 4), 0, 4));
  facts.stream = static_cast<int>(number_at(take(bytes, 4), 0, 4));
  if (!bytes.empty()) throw Error("the facts of a handshake are longer than they should be");
  return facts;
}

std::string words_of(const Facts& facts) {
  std::string words = facts.rank >= 0 ? fmt::format("rank {}, ", facts.rank) : "";
  words += facts.purpose.empty() ? "no purpose" : facts.purpose;
  if (!facts.group.empty()) words += fmt::format(", group {}", facts.group);
  if (facts.stream != 0) words += fmt::format(", stream {}", facts.stream);
  return words;
}

Handshake::Handshake(Role role, const Token& token, Facts mine)
    : role_(role), token_(token), mine_(std::move(mine)) {
  std::string hello = make_hello(role, mine_.job);
  std::string facts = encode_facts(mine_);
  if (is_client()) {
    output_ = client_hello_ = std::move(hello);
    client_facts_ = std::move(facts);
  } else {
    server_hello_ = std::move(hello);
    server_facts_ = std::move(facts);
  }
}

void Handshake::receive(std::string_view bytes) {
  TUTTI_CHECK(bytes.size() <= wanted(), "{} bytes, {} wanted", bytes.size(), wanted());
  input_ += bytes;
  if (bytes.empty()) return;
  failed_ = true;  // until the message has turned out well
  if (step_ == Step::hello) check_magic();
  if (input_.size() < wanted_) {
    failed_ = false;
    return;
  }
  switch (step_) {
    case Step::hello: take_hello(); break;
    case Step::length: take_length(); break;
    case Step::proof: is_client() ? take_server_proof() : take_client_proof(); break;
    case Step::done: break;
  }
  failed_ = false;
}

void Handshake::expect(Step step, size_t bytes) {
  step_ = step;
  wanted_ = bytes;
  input_.clear();
}

/// As soon as the first bytes are wrong: a banner may be shorter than a hello.
void Handshake::check_magic() const {
  const std::string_view begin = std::string_view(input_).substr(0, kMagic.size());
  if (kMagic.starts_with(begin)) return;
  if (begin[0] == kTlsAlert || begin[0] == kTlsHandshake) {
    throw Error(
        "the other side speaks TLS, this side plain text\n  set TUTTI_TLS for all processes "
        "of a job, or for none");
  }
  throw Error("the other side does not speak tutti's protocol");
}

void Handshake::take_hello() {
  const std::string_view hello = input_;
  const Role other = is_client() ? Role::server : Role::client;
  const uint32_t version = number_at(hello, 8, 2);
  if (!is_client()) output_ += server_hello_;  // an honest peer of another version is told ours
  if (version != kVersion) {
    throw Mismatch(
        fmt::format("the other side speaks version {} of the handshake, this side {}\n"
                    "  all processes of a job need the same build of tutti",
                    version, kVersion));
  }
  if (number_at(hello, 10, 1) != static_cast<uint32_t>(other)) {
    throw Error("the other side takes the same part in the handshake (its bytes may be our own)");
  }
  std::string& own = is_client() ? client_hello_ : server_hello_;
  if (hello.substr(kNonceOffset) == std::string_view(own).substr(kNonceOffset)) {
    throw Error("the other side sends our own bytes back");
  }
  (is_client() ? server_hello_ : client_hello_) = input_;
  if (is_client()) {
    put_number(output_, static_cast<uint32_t>(client_facts_.size()), 4);
    output_ += client_facts_;
    const Proof proof = proof_of(Role::client);
    output_.append(reinterpret_cast<const char*>(proof.data()), proof.size());
  }
  expect(Step::length, is_client() ? kServerLengthBytes : kClientLengthBytes);
}

void Handshake::take_length() {
  const uint32_t bytes = number_at(input_, is_client() ? 1 : 0, 4);
  if (bytes > kMaxFactsBytes) {
    throw Error(fmt::format("the other side announces {} bytes of facts, at most {} are allowed",
                            bytes, kMaxFactsBytes));
  }
  verdict_ = is_client() ? static_cast<uint8_t>(input_[0]) : kAccepted;
  if (verdict_ == kUnproven) {
    throw Mismatch(
        "it turned this process away at the proof of the token\n  it holds another token, most "
        "likely, or is of another job: look at its log");
  }
  expect(Step::proof, bytes + kProofBytes);
}

void Handshake::take_client_proof() {
  client_facts_ = input_.substr(0, input_.size() - kProofBytes);
  if (!proves(Role::client, std::string_view(input_).substr(client_facts_.size()))) {
    output_ += static_cast<char>(kUnproven);
    put_number(output_, 0, 4);
    const bool same_job = client_hello_.substr(kTagOffset, kTagBytes) == tag_of(mine_.job);
    throw Mismatch(same_job ? "it does not hold the token of this job"
                            : "it is of another job, and holds another token");
  }
  peer_ = parse_facts(client_facts_);
  if (peer_.job != mine_.job) {
    answer(kOtherJob);
    throw Mismatch(fmt::format("it is of job \"{}\" ({}); here is job \"{}\", with the same token",
                               peer_.job, words_of(peer_), mine_.job));
  }
  if (!peer_.to.empty() && peer_.to != mine_.to) {
    answer(kNotMe);
    throw Mismatch(
        fmt::format("it ({}) meant another process that had this port before", words_of(peer_)));
  }
  answer(kAccepted);
  expect(Step::done, 0);
}

void Handshake::answer(uint8_t verdict) {
  verdict_ = verdict;
  output_ += static_cast<char>(verdict);
  put_number(output_, static_cast<uint32_t>(server_facts_.size()), 4);
  output_ += server_facts_;
  const Proof proof = proof_of(Role::server);
  output_.append(reinterpret_cast<const char*>(proof.data()), proof.size());
}

void Handshake::take_server_proof() {
  server_facts_ = input_.substr(0, input_.size() - kProofBytes);
  if (!proves(Role::server, std::string_view(input_).substr(server_facts_.size()))) {
    throw Mismatch(
        "it cannot prove that it holds the token of this job: something else listens "
        "there, or stands between");
  }
  peer_ = parse_facts(server_facts_);
  if (verdict_ == kOtherJob) {
    throw Mismatch(
        fmt::format("there listens job \"{}\", this is job \"{}\"\n  two jobs of one "
                    "token: is an earlier one still running?",
                    peer_.job, mine_.job));
  }
  if (verdict_ != kAccepted) {
    throw Mismatch("the process that listened there has gone; another one has its port now");
  }
  expect(Step::done, 0);
}

std::string Handshake::signed_bytes(Role signer) const {
  std::string bytes(kLabel);
  bytes += static_cast<char>(signer);
  bytes += client_hello_;
  bytes += server_hello_;
  put_number(bytes, static_cast<uint32_t>(binding_.size()), 4);
  bytes += binding_;
  put_number(bytes, static_cast<uint32_t>(client_facts_.size()), 4);
  bytes += client_facts_;
  if (signer == Role::client) return bytes;
  bytes += static_cast<char>(verdict_);
  put_number(bytes, static_cast<uint32_t>(server_facts_.size()), 4);
  return bytes += server_facts_;
}

Handshake::Proof Handshake::proof_of(Role signer) const {
  const std::string bytes = signed_bytes(signer);
  Proof proof;
  unsigned int length = 0;
  const auto key = token_.secret();
  const unsigned char* made = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                                   reinterpret_cast<const unsigned char*>(bytes.data()),
                                   bytes.size(), proof.data(), &length);
  TUTTI_CHECK(made != nullptr && length == proof.size(), "HMAC-SHA256 of {} bytes", length);
  return proof;
}

bool Handshake::proves(Role signer, std::string_view proof) const {
  return CRYPTO_memcmp(proof_of(signer).data(), proof.data(), kProofBytes) == 0;
}

namespace detail {

bool send_what_waits(Handshake& handshake, SocketLink& link) {
  while (true) {
    const std::string_view output = handshake.to_send();
    if (output.empty()) return true;
    const iovec piece{const_cast<char*>(output.data()), output.size()};  // it is only read
    const int64_t sent = link.write_some({&piece, 1});
    if (sent == 0) return false;
    handshake.sent(static_cast<size_t>(sent));
  }
}

bool advance(Handshake& handshake, SocketLink& link) {
  while (true) {
    if (!send_what_waits(handshake, link)) return false;
    if (handshake.done()) return true;
    char bytes[512];
    const size_t most = std::min(handshake.wanted(), sizeof bytes);
    const int64_t got = link.read_some(bytes, static_cast<int64_t>(most));
    if (got == 0) return false;
    if (!handshake.has_hello()) handshake.bind_to(link.binding());  // secured: bytes came through
    handshake.receive({bytes, static_cast<size_t>(got)});
  }
}

namespace {

void move_until_done(Handshake& handshake, SocketLink& link, const Deadline& deadline) {
  while (!advance(handshake, link)) {
    const bool sends = !handshake.to_send().empty();
    pollfd entry{link.descriptor(), sends ? link.wants_to_write() : link.wants_to_read(), 0};
    const auto left = std::min<int64_t>(deadline.left().count(), 1'000'000);
    const int ready = poll(&entry, 1, static_cast<int>(left));
    if (ready < 0 && errno != EINTR) throw Error("poll: " + errno_words(errno));
    if (ready <= 0 && deadline.passed()) {
      throw Timeout(fmt::format("{} did not finish the handshake in {} ms", link.peer(),
                                deadline.limit().count()));
    }
  }
}

}  // namespace

void finish(Handshake& handshake, SocketLink& link, const Deadline& deadline) {
  try {
    move_until_done(handshake, link, deadline);
  } catch (const PeerLost& lost) {
    if (!handshake.has_hello()) throw;
    throw CutOff(
        fmt::format("handshake with {}: broken off in the middle: {}\n  one of the two was too "
                    "slow for it, or that process has just ended: look at its log",
                    link.peer(), lost.what()));
  }
}

}  // namespace detail
}  // namespace tutti
