// Links over TLS: the bytes, the certificates, and who stands between.
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tutti/net/connect.h"
#include "tutti/net/connect_link.h"
#include "tutti/net/detail/socket_link.h"
#include "tutti/net/mesh.h"
#include "tutti/net/tls.h"

#include "tests/support/certificates.h"
#include "tests/support/expect.h"
#include "tests/support/meeting.h"
#include "tests/support/refusals.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/net/loopback.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using Side = TlsContext::Side;

std::pair<FileDescriptor, FileDescriptor> socket_pair() {
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

bool wait_for(int descriptor, short events, int millis = 20'000) {
  pollfd entry{descriptor, events, 0};
  return poll(&entry, 1, millis) > 0;
}

void write_all(Link& link, const std::string& bytes, size_t piece_bytes) {
  for (size_t done = 0; done < bytes.size();) {
    std::vector<iovec> pieces;
    for (size_t at = done; at < bytes.size() && pieces.size() < 40; at += piece_bytes) {
      pieces.push_back(
          {const_cast<char*>(bytes.data() + at), std::min(piece_bytes, bytes.size() - at)});
    }
    const int64_t taken = link.write_some(pieces);
    done += static_cast<size_t>(taken);
    if (taken == 0 && !wait_for(link.descriptor(), link.wants_to_write())) {
      FAIL() << "no room came";
    }
  }
}

std::string read_all(Link& link, size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t done = 0; done < bytes;) {
    const int64_t got = link.read_some(text.data() + done, static_cast<int64_t>(bytes - done));
    done += static_cast<size_t>(got);
    if (got == 0 && !link.has_buffered() && !wait_for(link.descriptor(), link.wants_to_read())) {
      ADD_FAILURE() << "nothing came";
      return {};
    }
  }
  return text;
}

class TlsTest : public testing::Test {
 protected:
  std::shared_ptr<const TlsContext> context(const Authority& authority, const std::string& name) {
    return std::make_shared<TlsContext>(authority.issue(folder_.path() / name, name));
  }

  TempFolder folder_;
  const Authority authority_{"the job's authority"};
  const std::shared_ptr<const TlsContext> tls_ = context(authority_, "worker");
};

TEST_F(TlsTest, MovesBytesBothWaysAtOnce) {
  auto [a, b] = socket_pair();
  const auto client = tls_->make_link(std::move(a), "rank 0", Side::client);
  const auto server = tls_->make_link(std::move(b), "rank 1", Side::server);
  std::string forth(3'000'001, '\0'), back(1'000'003, '\0');
  for (size_t i = 0; i < forth.size(); ++i) forth[i] = static_cast<char>(i * 2'654'435'761U >> 11);
  for (size_t i = 0; i < back.size(); ++i) back[i] = static_cast<char>(i * 40'503U >> 7);
  std::jthread far([&] {
    EXPECT_TRUE(read_all(*server, forth.size()) == forth);
    write_all(*server, back, 77);
  });
  write_all(*client, forth, 50'000);
  EXPECT_TRUE(read_all(*client, back.size()) == back);
  far.join();
}

TEST_F(TlsTest, AFullStreamKeepsTheBytesThatItHasBegun) {
  auto [a, b] = socket_pair();
  const auto client = tls_->make_link(std::move(a), "rank 0", Side::client);
  const auto server = tls_->make_link(std::move(b), "rank 1", Side::server);
  std::string text(1 << 20, 'a');
  std::jthread far([&] { read_all(*server, 1); });  // drives the handshake
  write_all(*client, text.substr(0, 1), 1);
  far.join();
  const iovec piece{text.data(), text.size()};
  int64_t sent = 0;
  while (const int64_t taken = client->write_some({&piece, 1})) sent += taken;
  EXPECT_EQ(client->wants_to_write(), POLLOUT);
  std::string other(100'000, 'b');
  const iovec wrong{other.data(), other.size()};
  EXPECT_THAT(message_of<Error>([&] { client->write_some({&wrong, 1}); }),
              HasSubstr("other bytes than before"));
  EXPECT_EQ(read_all(*server, static_cast<size_t>(sent)), std::string(sent, 'a'));
}

TEST_F(TlsTest, AClosedPeerIsPeerLost) {
  auto [a, b] = socket_pair();
  auto client = tls_->make_link(std::move(a), "rank 0", Side::client);
  auto server = tls_->make_link(std::move(b), "rank 1", Side::server);
  std::jthread far([&] {
    EXPECT_EQ(read_all(*server, 5), "hello");
    write_all(*server, "x", 1);
  });
  write_all(*client, "hello", 5);
  read_all(*client, 1);
  far.join();
  server.reset();
  char byte = 0;
  EXPECT_THAT(message_of<PeerLost>([&] { client->read_some(&byte, 1); }),
              HasSubstr("rank 0 closed the connection"));
  const iovec piece{&byte, 1};
  EXPECT_THROW(client->write_some({&piece, 1}), Error);
  client->shutdown();
  EXPECT_THAT(message_of<PeerLost>([&] { client->read_some(&byte, 1); }),
              HasSubstr("this side has ended"));
}

TEST_F(TlsTest, ListenersAndMeshesWorkOverIt) {
  Refusals refusals;
  const Credentials credentials{Token::random(), "job", tls_};
  InProcessMeeting meeting(3);
  run_threads(3, [&](int rank) {
    Listener listener(kLoopback, credentials);
    const auto place = meeting.place(rank);
    Mesh mesh = connect_mesh(*place, listener, "g", 2, Deadline(60s));
    for (int other = 0; other < 3; ++other) {
      if (other != rank) write_all(*mesh.peers[static_cast<size_t>(other)].data[1], "hello", 5);
    }
    for (int other = 0; other < 3; ++other) {
      if (other == rank) continue;
      EXPECT_EQ(read_all(*mesh.peers[static_cast<size_t>(other)].data[1], 5), "hello");
    }
    place->exchange("end", "", Deadline(60s));
  });
  EXPECT_EQ(refusals.count(), 0U);
}

TEST_F(TlsTest, ACertificateOfAnotherAuthorityIsRefusedOnBothSides) {
  Refusals refusals;
  const Authority other("another authority");
  const Token token = Token::random();
  Listener listener(kLoopback, {token, "job", tls_});
  EXPECT_THAT(message_of<Mismatch>([&] {
                connect_link(listener.address(), {token, "job", context(other, "stranger")}, {},
                             "rank 0", Deadline(30s));
              }),
              AllOf(HasSubstr("the certificate of rank 0 (127.0.0.1:"), HasSubstr("not accepted"),
                    HasSubstr("ca.pem")));
  EXPECT_NE(refusals.wait_for("TLS: ", Deadline(30s)), "");

  // Trusts the right authority, and shows a certificate of the wrong one.
  const TlsFiles mine = authority_.issue(folder_.path() / "mine", "mine");
  const TlsFiles wrong = other.issue(folder_.path() / "wrong", "wrong");
  const auto mixed =
      std::make_shared<TlsContext>(TlsFiles{mine.authority, wrong.certificate, wrong.key});
  EXPECT_THAT(message_of<Mismatch>([&] {
                connect_link(listener.address(), {token, "job", mixed}, {}, "rank 0",
                             Deadline(30s));
              }),
              HasSubstr("does not accept the certificate of this side"));
  EXPECT_NE(refusals.wait_for("is not accepted", Deadline(30s)), "");
}

TEST_F(TlsTest, PlainTextAndTlsDoNotMeet) {
  Refusals refusals;
  const Token token = Token::random();
  Listener secured(kLoopback, {token, "job", tls_});
  // OpenSSL 3.0 closes the connection; 3.5 sends an alert before, by which TLS is known.
  EXPECT_THAT(message_of<Error>([&] {
                connect_link(secured.address(), {token, "job"}, {}, "rank 0", Deadline(30s));
              }),
              AnyOf(HasSubstr("wants TLS (TUTTI_TLS is not set here)"),
                    HasSubstr("the other side speaks TLS, this side plain text")));
  EXPECT_THAT(refusals.wait_for("does not speak TLS 1.3", Deadline(30s)), HasSubstr("TUTTI_TLS"));
  Listener plain(kLoopback, {token, "job"});
  EXPECT_THROW(connect_link(plain.address(), {token, "job", tls_}, {}, "rank 0", Deadline(30s)),
               Error);
  EXPECT_NE(refusals.wait_for("speaks TLS, this side plain text", Deadline(30s)), "");
}

TEST_F(TlsTest, AWrongTokenIsRefusedInsideTls) {
  Refusals refusals;
  Listener listener(kLoopback, {Token::random(), "job", tls_});
  EXPECT_THAT(message_of<Mismatch>([&] {
                connect_link(listener.address(), {Token::random(), "job", tls_}, {}, "rank 0",
                             Deadline(30s));
              }),
              HasSubstr("holds another token"));
}

/// Accepts one connection, connects on to `target`, and moves bytes between the two until either
/// ends. `wrap` makes links of the two sockets; `change` sees every piece.
class Between {
 public:
  using Wrap = std::function<std::unique_ptr<Link>(FileDescriptor, Side)>;
  using Change = std::function<void(std::string&)>;

  Between(const Address& target, Wrap wrap, Change change)
      : listening_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    EXPECT_EQ(bind(listening_.get(), kLoopback.raw(), kLoopback.length()), 0);
    EXPECT_EQ(listen(listening_.get(), 4), 0);
    thread_ = std::thread([this, target, wrap, change] {
      const auto near =
          wrap(FileDescriptor(accept(listening_.get(), nullptr, nullptr)), Side::server);
      const auto far = wrap(connect_to(target, "the target", Deadline(30s)), Side::client);
      try {
        while (!ended_) {
          if (!move(*near, *far, change) && !move(*far, *near, change)) {
            pollfd both[] = {{near->descriptor(), POLLIN, 0}, {far->descriptor(), POLLIN, 0}};
            poll(both, 2, 20);
          }
        }
      } catch (const Error&) {  // one of them has ended
      }
    });
  }
  ~Between() {
    ended_ = true;
    thread_.join();
  }
  Address address() const { return local_address_of(listening_.get()); }

 private:
  static bool move(Link& from, Link& to, const Change& change) {
    char bytes[4096];
    const int64_t got = from.read_some(bytes, sizeof bytes);
    if (got == 0) return false;
    std::string text(bytes, static_cast<size_t>(got));
    change(text);
    write_all(to, text, text.size());
    return true;
  }

  FileDescriptor listening_;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

TEST_F(TlsTest, WhoStandsBetweenWithACertificateOfTheJobIsFoundOut) {
  Refusals refusals;
  const Credentials credentials{Token::random(), "job", tls_};
  Listener listener(kLoopback, credentials);
  // It holds a certificate of the authority but no token: it passes every byte on, unchanged.
  const auto its = context(authority_, "insider");
  Between between(
      listener.address(),
      [&](FileDescriptor socket, Side side) {
        return its->make_link(std::move(socket), "the victim", side);
      },
      [](std::string&) {});
  EXPECT_THAT(message_of<Mismatch>([&] {
                connect_link(between.address(), credentials, {}, "rank 0", Deadline(30s));
              }),
              HasSubstr("at the proof of the token"));
  EXPECT_NE(refusals.wait_for("does not hold the token", Deadline(30s)), "");
}

TEST_F(TlsTest, BytesThatAreChangedOnTheWayAreFoundOut) {
  const Credentials credentials{Token::random(), "job", tls_};
  Listener listener(kLoopback, credentials);
  std::atomic<bool> changes{false};
  Between between(
      listener.address(),
      [](FileDescriptor socket, Side) { return make_plain_link(std::move(socket), "the victim"); },
      [&](std::string& text) {
        if (changes) text[text.size() / 2] = static_cast<char>(text[text.size() / 2] ^ 4);
      });
  const auto link =
      connect_link(between.address(), credentials, {.purpose = "p"}, "rank 0", Deadline(30s));
  const Arrival arrival = listener.wait("p", "", Deadline(30s));
  write_all(*link, "good", 4);
  EXPECT_EQ(read_all(*arrival.link, 4), "good");
  changes = true;
  write_all(*link, "evil", 4);
  ASSERT_TRUE(wait_for(arrival.link->descriptor(), POLLIN));
  EXPECT_THAT(message_of<Mismatch>([&] { read_all(*arrival.link, 4); }),
              HasSubstr("changed on the way"));
}

TEST_F(TlsTest, OlderVersionsAreRefused) {
  Refusals refusals;
  Listener listener(kLoopback, {Token::random(), "job", tls_});
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> old(SSL_CTX_new(TLS_client_method()),
                                                              SSL_CTX_free);
  SSL_CTX_set_max_proto_version(old.get(), TLS1_2_VERSION);
  const FileDescriptor socket = connect_to(listener.address(), "it", Deadline(30s));
  const std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(old.get()), SSL_free);
  SSL_set_fd(ssl.get(), socket.get());
  int result = SSL_connect(ssl.get());
  while (result <= 0 && SSL_get_error(ssl.get(), result) == SSL_ERROR_WANT_READ &&
         wait_for(socket.get(), POLLIN)) {
    result = SSL_connect(ssl.get());
  }
  EXPECT_LE(result, 0);
  EXPECT_NE(refusals.wait_for("does not speak TLS 1.3", Deadline(30s)), "");
}

TEST_F(TlsTest, FilesThatAreWrongAreNamed) {
  const TlsFiles good = authority_.issue(folder_.path() / "good", "good");
  const TlsFiles other = authority_.issue(folder_.path() / "other", "other");
  TlsFiles bad = good;
  bad.authority = folder_.path() / "missing.pem";
  EXPECT_THAT(message_of<UsageError>([&] { TlsContext{bad}; }), HasSubstr("missing.pem"));
  for (std::filesystem::path TlsFiles::* file :
       {&TlsFiles::authority, &TlsFiles::certificate, &TlsFiles::key}) {
    bad = good;
    bad.*file = folder_.path() / "pipe";
    ::mkfifo((bad.*file).c_str(), 0600);
    EXPECT_THAT(message_of<UsageError>([&] { TlsContext{bad}; }),
                HasSubstr("got a pipe, expected a regular file"));
  }
  bad = good;
  bad.key = other.key;
  EXPECT_THAT(message_of<UsageError>([&] { TlsContext{bad}; }), HasSubstr("other/key.pem"));
  bad = good;
  bad.certificate = folder_.path() / "no.pem";
  std::ofstream(bad.certificate) << "not a certificate\n";
  EXPECT_THAT(message_of<UsageError>([&] { TlsContext{bad}; }),
              AllOf(HasSubstr("certificate"), HasSubstr("no.pem")));
}

TEST_F(TlsTest, AKeyThatEverybodyMayReadIsRefused) {
  const TlsFiles files = authority_.issue(folder_.path() / "open", "open");
  std::filesystem::permissions(files.key, std::filesystem::perms(0644));
  EXPECT_THAT(message_of<UsageError>([&] { TlsContext{files}; }),
              AllOf(HasSubstr("private key"), HasSubstr("open/key.pem"), HasSubstr("mode 644"),
                    HasSubstr("chmod 600")));
}

TEST_F(TlsTest, TheVariableNamesAFolder) {
  unsetenv(kTlsVariable);
  EXPECT_EQ(tls_from_environment(), nullptr);
  authority_.issue(folder_.path() / "pem", "worker");
  setenv(kTlsVariable, (folder_.path() / "pem").c_str(), 1);
  EXPECT_NE(tls_from_environment(), nullptr);
  setenv(kTlsVariable, folder_.path().c_str(), 1);
  EXPECT_THAT(message_of<UsageError>([] { tls_from_environment(); }), HasSubstr("ca.pem"));
  unsetenv(kTlsVariable);
}

}  // namespace
}  // namespace tutti
