// The handshake as bytes in and bytes out: who gets in, who does not, and what each side says.
#include <sys/socket.h>

#include <random>
#include <string>

#include "tutti/net/detail/socket_link.h"
#include "tutti/net/handshake.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

using Role = Handshake::Role;

const Facts kClient{
    .job = "job-a", .purpose = "data", .group = "dp", .to = "me", .rank = 3, .stream = 1};
const Facts kServer{.job = "job-a", .to = "me"};

/// Gives `to` what `from` has to send, and returns it.
std::string move_bytes(Handshake& from, Handshake& to, size_t step = 4096) {
  std::string moved;
  while (!from.to_send().empty() && to.wanted() > 0) {
    const std::string part(from.to_send().substr(0, std::min(step, to.wanted())));
    from.sent(part.size());
    moved += part;
    to.receive(part);
  }
  return moved;
}

std::string take_all(Handshake& from) {
  std::string bytes(from.to_send());
  from.sent(bytes.size());
  return bytes;
}

/// Gives `bytes` as far as they are wanted.
void give(Handshake& to, std::string_view bytes) {
  while (!bytes.empty() && to.wanted() > 0) {
    const size_t part = std::min(bytes.size(), to.wanted());
    to.receive(bytes.substr(0, part));
    bytes.remove_prefix(part);
  }
}

struct Recorded {
  std::string hello, proof, server_hello, verdict;
};

Recorded run(Handshake& client, Handshake& server) {
  Recorded recorded;
  recorded.hello = move_bytes(client, server);
  recorded.server_hello = move_bytes(server, client);
  recorded.proof = move_bytes(client, server);
  recorded.verdict = move_bytes(server, client);
  return recorded;
}

class HandshakeTest : public testing::Test {
 protected:
  Handshake client(const Facts& facts = kClient) const { return {Role::client, token_, facts}; }
  Handshake server(const Facts& facts = kServer) const { return {Role::server, token_, facts}; }

  const Token token_ = Token::random();
  const Token other_token_ = Token::random();
};

TEST_F(HandshakeTest, BothLearnWhoTheOtherIs) {
  Handshake c = client(), s = server();
  run(c, s);
  EXPECT_TRUE(c.done());
  EXPECT_TRUE(s.done());
  EXPECT_EQ(s.peer(), kClient);
  EXPECT_EQ(c.peer(), kServer);
  EXPECT_EQ(c.wanted() + s.wanted(), 0U) << "what follows belongs to others";
}

TEST_F(HandshakeTest, WorksByteByByte) {
  Handshake c = client(), s = server();
  for (int turn = 0; turn < 2; ++turn) {
    move_bytes(c, s, 1);
    move_bytes(s, c, 1);
  }
  EXPECT_TRUE(c.done() && s.done());
}

TEST_F(HandshakeTest, TheServerSaysNothingBeforeAValidHello) {
  Handshake c = client(), s = server();
  const std::string hello = take_all(c);
  give(s, hello.substr(0, hello.size() - 1));
  EXPECT_TRUE(s.to_send().empty());
  EXPECT_FALSE(s.has_hello());
  give(s, hello.substr(hello.size() - 1));
  EXPECT_TRUE(s.has_hello());
  const std::string answer = take_all(s);
  EXPECT_EQ(answer.size(), Handshake::kHelloBytes);
  EXPECT_THAT(answer, Not(HasSubstr("job-a")));
}

TEST_F(HandshakeTest, AWrongTokenIsToldAndLearnsNothing) {
  Handshake c(Role::client, other_token_, kClient), s = server();
  move_bytes(c, s);
  move_bytes(s, c);
  EXPECT_THAT(message_of<Mismatch>([&] { move_bytes(c, s); }),
              HasSubstr("does not hold the token of this job"));
  EXPECT_EQ(s.to_send(), std::string_view("\3\0\0\0\0", 5)) << "no, and nothing else";
  EXPECT_EQ(s.wanted(), 0U);
  EXPECT_FALSE(s.done());
  EXPECT_THAT(message_of<Mismatch>([&] { move_bytes(s, c); }), HasSubstr("holds another token"));
  EXPECT_FALSE(c.done());
}

TEST_F(HandshakeTest, AServerWithoutTheTokenIsFoundOut) {
  Handshake c = client(), s(Role::server, other_token_, kServer), honest = server();
  move_bytes(c, s);
  move_bytes(s, c);
  take_all(c);
  // The best it can do is to say that all is well, with a proof of its own token.
  Handshake own_client(Role::client, other_token_, kClient),
      own_server(Role::server, other_token_, kServer);
  const std::string verdict = run(own_client, own_server).verdict;
  EXPECT_THAT(message_of<Mismatch>([&] { give(c, verdict); }), HasSubstr("cannot prove"));
  EXPECT_FALSE(c.done());
}

TEST_F(HandshakeTest, AnotherJobIsToldApart) {
  Facts facts = kClient;
  facts.job = "job-b";
  Handshake c = client(facts), s = server();
  move_bytes(c, s);
  move_bytes(s, c);
  EXPECT_THAT(message_of<Mismatch>([&] { move_bytes(c, s); }),
              AllOf(HasSubstr("job \"job-b\""), HasSubstr("rank 3"), HasSubstr("job \"job-a\"")));
  EXPECT_THAT(message_of<Mismatch>([&] { move_bytes(s, c); }),
              HasSubstr("there listens job \"job-a\", this is job \"job-b\""))
      << "who holds the token is told";

  Handshake stranger(Role::client, other_token_, facts), again = server();
  move_bytes(stranger, again);
  move_bytes(again, stranger);
  EXPECT_THAT(message_of<Mismatch>([&] { move_bytes(stranger, again); }),
              HasSubstr("it is of another job, and holds another token"));
  EXPECT_THAT(message_of<Mismatch>([&] { move_bytes(again, stranger); }),
              HasSubstr("or is of another job"));
}

TEST_F(HandshakeTest, AnotherProcessOnAnOldPortIsToldApart) {
  Handshake c = client(), s = server({.job = "job-a", .to = "somebody else"});
  move_bytes(c, s);
  move_bytes(s, c);
  EXPECT_THROW(move_bytes(c, s), Mismatch);
  EXPECT_THAT(message_of<Mismatch>([&] { move_bytes(s, c); }),
              HasSubstr("another one has its port now"));
  EXPECT_FALSE(c.done());

  Facts anybody = kClient;
  anybody.to.clear();
  Handshake c2 = client(anybody), s2 = server();
  run(c2, s2);
  EXPECT_TRUE(s2.done());
}

TEST_F(HandshakeTest, ARecordingIsWorthNothing) {
  Handshake c = client(), s = server();
  const Recorded recorded = run(c, s);

  Handshake fresh_server = server();
  give(fresh_server, recorded.hello);
  take_all(fresh_server);
  EXPECT_THROW(give(fresh_server, recorded.proof), Mismatch) << "replayed to a server";

  Handshake fresh_client = client();
  take_all(fresh_client);
  give(fresh_client, recorded.server_hello);
  EXPECT_THROW(give(fresh_client, recorded.verdict), Mismatch) << "replayed to a client";
}

TEST_F(HandshakeTest, ReflectedBytesAreFoundOut) {
  Handshake c = client();
  EXPECT_THAT(message_of<Error>([&, hello = take_all(c)] { give(c, hello); }),
              HasSubstr("same part"));

  // With the role changed the nonce gives it away; with another nonce the proof does not fit.
  Handshake c2 = client();
  std::string hello = take_all(c2);
  hello[10] = static_cast<char>(Role::server);
  EXPECT_THAT(message_of<Error>([&] { give(c2, hello); }), HasSubstr("our own bytes"));

  Handshake c3 = client();
  hello = take_all(c3);
  hello[10] = static_cast<char>(Role::server);
  hello[63] = static_cast<char>(hello[63] ^ 1);
  give(c3, hello);
  const std::string own = take_all(c3);
  const std::string reflected = std::string(1, '\0') + own;
  EXPECT_THAT(message_of<Mismatch>([&] { give(c3, reflected); }), HasSubstr("cannot prove"));
}

TEST_F(HandshakeTest, TwoServersAsOraclesHelpNobody) {
  // An attacker lets an honest client prove itself for connection 1 and uses the proof on 2.
  Handshake honest = client(), first = server(), second = server();
  const std::string hello = take_all(honest);
  give(first, hello);
  give(second, hello);
  give(honest, take_all(first));
  EXPECT_THROW(give(second, take_all(honest)), Mismatch);
}

TEST_F(HandshakeTest, EveryChangedBitIsFoundOut) {
  Handshake probe_client = client(), probe_server = server();
  const Recorded lengths = run(probe_client, probe_server);
  const size_t sizes[] = {lengths.hello.size(), lengths.server_hello.size(), lengths.proof.size(),
                          lengths.verdict.size()};
  for (size_t message = 0; message < 4; ++message) {
    for (size_t bit = 0; bit < 8 * sizes[message]; bit += 3) {
      Handshake c = client(), s = server();
      const auto flip = [&](std::string bytes) {
        bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
        return bytes;
      };
      try {
        for (size_t i = 0; i < 4; ++i) {
          Handshake& from = i % 2 == 0 ? c : s;
          const std::string bytes = take_all(from);
          give(i % 2 == 0 ? s : c, i == message ? flip(bytes) : bytes);
        }
      } catch (const Error&) {
      }
      ASSERT_FALSE(c.done() && s.done()) << "message " << message << ", bit " << bit;
      ASSERT_FALSE(message < 3 && s.done()) << "message " << message << ", bit " << bit;
    }
  }
}

TEST_F(HandshakeTest, AnotherVersionIsToldBothSides) {
  Handshake c = client(), s = server();
  std::string hello = take_all(c);
  hello[8] = 7;
  EXPECT_THAT(message_of<Mismatch>([&] { give(s, hello); }),
              AllOf(HasSubstr("version 7"), HasSubstr("this side 1")));
  std::string answer = take_all(s);
  ASSERT_EQ(answer.size(), Handshake::kHelloBytes);
  answer[8] = 7;
  EXPECT_THAT(message_of<Mismatch>([&] { give(c, answer); }), HasSubstr("version 7"));
}

TEST_F(HandshakeTest, RandomBytesAreRefused) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes(200, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    Handshake s = server();
    EXPECT_THAT(message_of<Error>([&] { give(s, bytes); }),
                AnyOf(HasSubstr("does not speak tutti"), HasSubstr("speaks TLS")));
    EXPECT_TRUE(s.to_send().empty());

    Handshake c = client(), s2 = server();
    move_bytes(c, s2);
    move_bytes(s2, c);
    bytes[2] = bytes[3] = 0;  // a length that may be allowed
    bytes.resize(4096);
    EXPECT_THROW(give(s2, bytes), Error) << "after a valid hello";
    EXPECT_FALSE(s2.done());
    bytes[3] = bytes[4] = 0;
    EXPECT_THROW(give(c, bytes), Error);
    EXPECT_FALSE(c.done());
  }
}

TEST_F(HandshakeTest, AShortBannerIsRefusedAtOnce) {
  for (const char* banner : {"SSH-2.0-x\r\n", "220 ready\r\n", "\x15\x03\x01", "\x89tuttu"}) {
    Handshake c = client();
    EXPECT_THROW(give(c, banner), Error) << banner;
    EXPECT_EQ(c.wanted(), 0U);
  }
}

TEST_F(HandshakeTest, AnOversizeLengthIsRefusedBeforeAnythingIsKept) {
  Handshake c = client(), s = server();
  move_bytes(c, s);
  move_bytes(s, c);
  EXPECT_THAT(message_of<Error>([&] { give(s, "\xff\xff\xff\x7f"); }),
              HasSubstr("announces 2147483647 bytes"));
  EXPECT_EQ(s.wanted(), 0U);
  EXPECT_THAT(message_of<Error>([&] { give(c, std::string("\0\xff\xff\xff\xff", 5)); }),
              HasSubstr("at most"));
}

TEST_F(HandshakeTest, TheBindingOfASecuredConnectionEntersTheProofs) {
  Handshake c = client(), s = server();
  c.bind_to("one");
  s.bind_to("one");
  run(c, s);
  EXPECT_TRUE(c.done() && s.done());

  Handshake c2 = client(), s2 = server();
  c2.bind_to("this side of the one between");
  s2.bind_to("that side of the one between");
  move_bytes(c2, s2);
  move_bytes(s2, c2);
  EXPECT_THROW(move_bytes(c2, s2), Mismatch);
}

TEST(Facts, SurviveTheirEncoding) {
  Facts longest{.job = std::string(255, 'j'),
                .purpose = std::string(255, 'p'),
                .group = std::string(255, 'g'),
                .to = std::string(255, 't'),
                .rank = 1 << 30,
                .stream = -1};
  EXPECT_EQ(encode_facts(longest).size(), kMaxFactsBytes);
  for (const Facts& facts : {Facts(), kClient, longest}) {
    EXPECT_EQ(parse_facts(encode_facts(facts)), facts);
  }
  longest.job += "x";
  EXPECT_THROW(encode_facts(longest), UsageError);
  EXPECT_THROW(encode_facts({.job = "line\nbreak"}), UsageError);
}

TEST(Facts, EveryCutAndEveryLeftoverIsRefused) {
  const std::string bytes = encode_facts(kClient);
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THROW(parse_facts(bytes.substr(0, length)), Error) << length;
  }
  EXPECT_THROW(parse_facts(bytes + "x"), Error);
  std::string escape = bytes;
  escape[1] = '\x1b';
  EXPECT_THAT(message_of<Error>([&] { parse_facts(escape); }), HasSubstr("cannot be printed"));
}

TEST(Handshake, HasADeadline) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const FileDescriptor silent(ends[1]);
  const auto link = detail::make_plain_socket_link(FileDescriptor(ends[0]), "rank 3");
  Handshake c(Role::client, Token::random(), kClient);
  EXPECT_THAT(message_of<Timeout>([&] { detail::finish(c, *link, Deadline(Millis(1))); }),
              HasSubstr("rank 3 did not finish the handshake in 1 ms"));
}

TEST(Handshake, RunsOverLinksAndLeavesWhatFollows) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const auto one = detail::make_plain_socket_link(FileDescriptor(ends[0]), "the server");
  const auto two = detail::make_plain_socket_link(FileDescriptor(ends[1]), "the client");
  const Token token = Token::random();
  Handshake c(Role::client, token, kClient), s(Role::server, token, kServer);
  EXPECT_FALSE(detail::advance(c, *one));
  EXPECT_FALSE(detail::advance(s, *two));
  EXPECT_FALSE(detail::advance(c, *one));
  EXPECT_TRUE(detail::advance(s, *two));
  char after[] = "first bytes of the engine";
  const iovec piece{after, sizeof after};
  ASSERT_EQ(two->write_some({&piece, 1}), static_cast<int64_t>(sizeof after));
  EXPECT_TRUE(detail::advance(c, *one));
  char got[sizeof after] = {};
  EXPECT_EQ(one->read_some(got, sizeof got), static_cast<int64_t>(sizeof after));
  EXPECT_STREQ(got, after);
}

}  // namespace
}  // namespace tutti
