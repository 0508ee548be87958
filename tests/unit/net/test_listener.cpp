// A listener with honest processes, and with everybody else: nobody delays the honest ones.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tutti/net/connect.h"
#include "tutti/net/connect_link.h"
#include "tutti/net/detail/admission.h"
#include "tutti/net/listener.h"

#include "tests/support/expect.h"
#include "tests/support/refusals.h"
#include "tests/unit/net/loopback.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;

std::string exchange_a_byte(Link& from, Link& to) {
  char sent = 'x', got = 0;
  const iovec piece{&sent, 1};
  EXPECT_EQ(from.write_some({&piece, 1}), 1);
  pollfd entry{to.descriptor(), to.wants_to_read(), 0};
  EXPECT_EQ(poll(&entry, 1, 10'000), 1);
  EXPECT_EQ(to.read_some(&got, 1), 1);
  return {got};
}

class ListenerTest : public testing::Test {
 protected:
  FileDescriptor stranger() { return connect_to(listener_.address(), "it", soon_); }
  void send_bytes(const FileDescriptor& socket, const std::string& bytes) {
    EXPECT_EQ(send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  std::unique_ptr<Link> join(const Facts& facts) { return join(facts, credentials_); }
  std::unique_ptr<Link> join(const Facts& facts, const Credentials& credentials) {
    return connect_link(listener_.address(), credentials, facts, "rank 0", soon_);
  }
  /// True when the other side closed it without having sent a byte.
  static bool is_closed_without_a_word(const FileDescriptor& socket) {
    pollfd entry{socket.get(), POLLIN, 0};
    char byte = 0;
    return poll(&entry, 1, 10'000) == 1 && recv(socket.get(), &byte, 1, 0) <= 0;
  }
  void expect_that_the_honest_get_in() {
    const auto link =
        join({.purpose = "data", .group = "g", .to = listener_.identity(), .rank = 1});
    const Arrival arrival = listener_.wait("data", "g", soon_);
    EXPECT_EQ(exchange_a_byte(*link, *arrival.link), "x");
  }

  const Deadline soon_{30s};
  Refusals refusals_;
  const Credentials credentials_{Token::random(), "job-a"};
  Listener listener_{kLoopback, credentials_};
};

TEST_F(ListenerTest, HandsOutWhoHasProvedItself) {
  Facts server;
  const auto link =
      connect_link(listener_.address(), credentials_,
                   {.purpose = "data", .group = "dp", .to = listener_.identity(), .rank = 3},
                   "rank 0", soon_, &server);
  const Arrival arrival = listener_.wait("data", "dp", soon_);
  EXPECT_EQ(arrival.facts.rank, 3);
  EXPECT_EQ(arrival.facts.job, "job-a");
  EXPECT_EQ(arrival.link->peer(), "rank 3 (" + arrival.from.text() + ")");
  EXPECT_EQ(link->peer(), "rank 0 (" + listener_.address().text() + ")");
  EXPECT_EQ(server.to, listener_.identity());
  EXPECT_EQ(exchange_a_byte(*link, *arrival.link), "x");
  EXPECT_EQ(exchange_a_byte(*arrival.link, *link), "x");
  EXPECT_EQ(refusals_.count(), 0U);
}

TEST_F(ListenerTest, KeepsPurposesAndGroupsApart) {
  const auto one = join({.purpose = "data", .group = "a", .stream = 1});
  const auto two = join({.purpose = "control", .group = "a", .stream = 2});
  const auto three = join({.purpose = "data", .group = "b", .stream = 3});
  const auto four = join({.purpose = "data", .group = "b", .stream = 4});
  EXPECT_EQ(listener_.wait("data", "b", soon_).facts.stream, 3);
  EXPECT_EQ(listener_.wait("control", "a", soon_).facts.stream, 2);
  EXPECT_EQ(listener_.wait("data", "b", soon_).facts.stream, 4);
  EXPECT_EQ(listener_.wait("data", "a", soon_).facts.stream, 1);
  EXPECT_FALSE(listener_.take("data", "a"));
  EXPECT_THAT(message_of<Timeout>([&] { listener_.wait("data", "a", Deadline(1ms)); }),
              AllOf(HasSubstr("data, group a"), HasSubstr(listener_.address().text())));
}

TEST_F(ListenerTest, ServesAPurposeWithAHandler) {
  std::promise<Arrival> early, late;
  const auto first = join({.purpose = "liveness", .stream = 1});
  std::optional<Arrival> kept;
  std::atomic<int> calls{0};
  const auto handler = [&](Arrival arrival) {
    (calls++ == 0 ? early : late).set_value(std::move(arrival));
  };
  listener_.serve("liveness", handler);
  EXPECT_EQ(early.get_future().get().facts.stream, 1);
  const auto second = join({.purpose = "liveness", .group = "any", .stream = 2});
  EXPECT_EQ(late.get_future().get().facts.stream, 2);
  listener_.serve("liveness", {});
  const auto third = join({.purpose = "liveness", .stream = 3});
  EXPECT_EQ(listener_.wait("liveness", "", soon_).facts.stream, 3);
}

TEST_F(ListenerTest, ClosingWakesWaitersAndEndsWhatWasKept) {
  const auto kept = join({.purpose = "data", .group = "never"});
  std::thread closer([&] { listener_.close(); });
  EXPECT_THAT(message_of<PeerLost>([&] { listener_.wait("data", "g", soon_); }),
              HasSubstr("stopped listening"));
  closer.join();
}

TEST_F(ListenerTest, APortScanIsLoggedWithItsAddress) {
  std::string from;
  for (int i = 0; i < 50; ++i) {
    const FileDescriptor scan = stranger();
    from = local_address_of(scan.get()).text();
  }
  EXPECT_THAT(refusals_.wait_for(from, soon_), HasSubstr("left without a word: a port scan?"));
  expect_that_the_honest_get_in();
}

TEST_F(ListenerTest, RandomBytesAreTurnedAwayWithoutAWord) {
  std::mt19937 random(2);
  for (int round = 0; round < 20; ++round) {
    std::string bytes(1 + random() % 3000, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    const FileDescriptor socket = stranger();
    send_bytes(socket, bytes);
    shutdown(socket.get(), SHUT_WR);
    EXPECT_TRUE(is_closed_without_a_word(socket));
  }
  EXPECT_NE(refusals_.wait_for("does not speak tutti's protocol", soon_), "");
  const FileDescriptor browser = stranger();
  send_bytes(browser, "GET / HTTP/1.1\r\nHost: node7\r\nUser-Agent: a curious colleague\r\n\r\n");
  EXPECT_TRUE(is_closed_without_a_word(browser));
  expect_that_the_honest_get_in();
}

TEST_F(ListenerTest, RandomBytesAfterAValidHelloAreTurnedAway) {
  Handshake client(Handshake::Role::client, credentials_.token, {.job = "job-a"});
  const FileDescriptor socket = stranger();
  send_bytes(socket,
             std::string(client.to_send()) + std::string("\x10\0\0\0", 4) + std::string(48, 'r'));
  EXPECT_NE(refusals_.wait_for("does not hold the token", soon_), "");
  const FileDescriptor oversize = stranger();
  send_bytes(oversize, std::string(client.to_send()) + "\xff\xff\xff\xff");
  EXPECT_NE(refusals_.wait_for("announces 4294967295 bytes", soon_), "");
  expect_that_the_honest_get_in();
}

TEST_F(ListenerTest, AWrongTokenIsToldOnBothSides) {
  const Credentials wrong{Token::random(), "job-a"};
  EXPECT_THAT(message_of<Mismatch>([&] { join({.purpose = "data"}, wrong); }),
              AllOf(HasSubstr("rank 0 (127.0.0.1:"), HasSubstr("holds another token")));
  EXPECT_THAT(refusals_.wait_for("does not hold the token of this job", soon_),
              HasSubstr("127.0.0.1:"));
  EXPECT_EQ(refusals_.count(), 1U) << "one try: no other can end better";
  expect_that_the_honest_get_in();
}

TEST_F(ListenerTest, ASecondJobIsToldApart) {
  EXPECT_THAT(message_of<Mismatch>(
                  [&] { join({.purpose = "data", .rank = 2}, {credentials_.token, "job-b"}); }),
              HasSubstr("there listens job \"job-a\", this is job \"job-b\""));
  EXPECT_NE(refusals_.wait_for("it is of job \"job-b\" (rank 2, data)", soon_), "");
  EXPECT_THROW(join({.purpose = "data"}, {Token::random(), "job-c"}), Mismatch);
  EXPECT_NE(refusals_.wait_for("it is of another job, and holds another token", soon_), "");
  expect_that_the_honest_get_in();
}

TEST_F(ListenerTest, AnotherProcessOnTheSamePortIsNotMistaken) {
  EXPECT_THAT(message_of<Mismatch>([&] {
                join({.purpose = "data", .group = "g", .to = "a listener of before", .rank = 1});
              }),
              HasSubstr("another one has its port now"));
  EXPECT_FALSE(listener_.take("data", "g"));
}

TEST_F(ListenerTest, HalfOpenConnectionsDelayNobody) {
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 1000; ++i) {
    try {
      silent.push_back(stranger());
    } catch (const Error&) {  // this process has no more descriptors: those are enough
      break;
    }
    if (i % 100 == 50) expect_that_the_honest_get_in();
    if (i % 3 == 0) send_bytes(silent.back(), "\x89tutti\r\n");  // a slow client
  }
  silent.resize(silent.size() - std::min<size_t>(silent.size(), 8));
  expect_that_the_honest_get_in();
  EXPECT_NE(refusals_.wait_for("too many connections at once", soon_), "");
}

TEST_F(ListenerTest, ManyHonestOnesAtOnceAllGetIn) {
  std::vector<std::unique_ptr<Link>> links(64);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < 8; ++i) {
        const int rank = t * 8 + static_cast<int>(i);
        links[static_cast<size_t>(rank)] = join({.purpose = "data", .group = "g", .rank = rank});
      }
    });
  }
  std::vector<int> seen(64);
  for (int i = 0; i < 64; ++i) {
    ++seen[static_cast<size_t>(listener_.wait("data", "g", soon_).facts.rank)];
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(seen, std::vector<int>(64, 1));
  EXPECT_EQ(refusals_.count(), 0U);
}

TEST(Listener, ASlowClientIsDroppedAtItsLimit) {
  Refusals refusals;
  const Credentials credentials{Token::random(), "job"};
  Listener listener(kLoopback, credentials, {.handshake_limit = 20ms});
  const FileDescriptor slow = connect_to(listener.address(), "it", Deadline(10s));
  EXPECT_THAT(refusals.wait_for("did not prove itself within 20 ms", Deadline(20s)),
              HasSubstr(local_address_of(slow.get()).text()));
  pollfd entry{slow.get(), POLLIN, 0};
  char byte = 0;
  ASSERT_EQ(poll(&entry, 1, 10'000), 1);
  EXPECT_EQ(recv(slow.get(), &byte, 1, 0), 0);
}

TEST(Listener, KeepsOnlySoManyAndOnlySoLong) {
  Refusals refusals;
  const Credentials credentials{Token::random(), "job"};
  Listener listener(kLoopback, credentials, {.max_kept = 1, .keep_limit = 30ms});
  const Deadline soon(20s);
  const auto join = [&] {
    return connect_link(listener.address(), credentials, {.purpose = "data"}, "rank 0", soon);
  };
  const auto first = join();
  const auto second = join();
  char byte = 0;
  for (const auto* link : {&first, &second}) {  // one at its limit, or both: the first made room
    pollfd entry{(*link)->descriptor(), POLLIN, 0};
    ASSERT_EQ(poll(&entry, 1, 20'000), 1);
    EXPECT_THROW((*link)->read_some(&byte, 1), PeerLost);
  }
  EXPECT_FALSE(listener.take("data", ""));
}

TEST(Listener, WorksOverIPv6) {
  const Credentials credentials{Token::random(), "job"};
  std::unique_ptr<Listener> listener;
  try {
    listener = std::make_unique<Listener>(*Address::from_number("::1", 0), credentials);
  } catch (const Error& error) {
    GTEST_SKIP() << "this machine has no IPv6: " << error.what();
  }
  const auto link = connect_link_with_retry({"::1", listener->address().port()}, credentials,
                                            {.purpose = "data"}, "rank 0", Deadline(20s));
  EXPECT_EQ(exchange_a_byte(*listener->wait("data", "", Deadline(20s)).link, *link), "x");
}

TEST(Listener, SaysWhyItCannotListen) {
  const Credentials credentials{Token::random(), "job"};
  EXPECT_THAT(
      message_of<UsageError>([&] { Listener(*Address::from_number("0.0.0.0", 0), credentials); }),
      HasSubstr("every address"));
  Listener first(kLoopback, credentials);
  EXPECT_THAT(message_of<Error>([&] { Listener(first.address(), credentials); }),
              AllOf(HasSubstr("Address already in use"), HasSubstr("another job")));
  EXPECT_THROW(Listener(*Address::from_number("192.0.2.1", 0), credentials), Error);
}

TEST(Listener, APortCanBeHadAgainAtOnce) {
  const Credentials credentials{Token::random(), "job"};
  Address address = kLoopback;
  for (int round = 0; round < 3; ++round) {
    Listener listener(address, credentials);
    address = listener.address();
    const auto link =
        connect_link(address, credentials, {.purpose = "data"}, "rank 0", Deadline(20s));
    listener.wait("data", "", Deadline(20s));
  }
}

TEST(ConnectLink, WaitsForWhoIsNotThereYet) {
  const Credentials credentials{Token::random(), "job"};
  Address address;
  {
    address = Listener(kLoopback, credentials).address();
  }
  std::unique_ptr<Listener> late;
  std::thread starter([&] {
    std::this_thread::sleep_for(30ms);  // so that a first try fails; the test holds without
    late = std::make_unique<Listener>(address, credentials);
  });
  EXPECT_TRUE(connect_link_with_retry({"127.0.0.1", address.port()}, credentials,
                                      {.purpose = "rendezvous"}, "the rendezvous", Deadline(30s)));
  starter.join();
}

TEST(ConnectLink, GivesUpAtTheDeadlineWithAddressTriesAndTheLastCause) {
  const Credentials credentials{Token::random(), "job"};
  const HostPort nobody{"127.0.0.1", 1};
  EXPECT_THAT(
      message_of<Timeout>([&] {
        connect_link_with_retry(nobody, credentials, {}, "the rendezvous", Deadline(300ms));
      }),
      AllOf(HasSubstr("the rendezvous did not let this process in at 127.0.0.1:1 in 300 ms, "),
            ContainsRegex("[2-9] tries\n  last: connect to .*: Connection refused.*\n"
                          "  nothing listens there now\n  is it started"),
            Not(ContainsRegex("tries.*tries"))));
}

TEST(ConnectLink, NamesAProcessThatSaysNothing) {
  const Credentials credentials{Token::random(), "job"};
  FileDescriptor mute(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(mute.get(), kLoopback.raw(), kLoopback.length()), 0);
  ASSERT_EQ(listen(mute.get(), 8), 0);
  const Address address = local_address_of(mute.get());
  EXPECT_THAT(message_of<Timeout>(
                  [&] { connect_link(address, credentials, {}, "rank 3", Deadline(50ms)); }),
              HasSubstr("rank 3 (" + address.text() + ") did not finish the handshake"));
  EXPECT_THAT(message_of<Timeout>([&] {
                connect_link_with_retry({"127.0.0.1", address.port()}, credentials, {},
                                        "the rendezvous", Deadline(50ms));
              }),
              AllOf(HasSubstr("the rendezvous did not let this process in"),
                    HasSubstr("did not finish the handshake")));
  mute.reset();
  EXPECT_THROW(connect_link(address, credentials, {}, "rank 3", Deadline(10s)), PeerLost);
}

TEST(ConnectLink, NamesAServerOfAnotherKind) {
  FileDescriptor server(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(server.get(), kLoopback.raw(), kLoopback.length()), 0);
  ASSERT_EQ(listen(server.get(), 8), 0);
  std::thread talker([&] {
    const FileDescriptor client(accept(server.get(), nullptr, nullptr));
    const std::string banner =
        "SSH-2.0-OpenSSH_9.2p1 and so on, until there are 64 bytes of it..\r\n";
    send(client.get(), banner.data(), banner.size(), MSG_NOSIGNAL);
    char byte = 0;
    while (recv(client.get(), &byte, 1, 0) > 0) {
    }
  });
  const Credentials credentials{Token::random(), "job"};
  EXPECT_THAT(message_of<Mismatch>([&] {
                connect_link(local_address_of(server.get()), credentials, {}, "rank 3",
                             Deadline(20s));
              }),
              AllOf(HasSubstr("does not speak tutti's protocol"),
                    HasSubstr("something else listens at that port")));
  talker.join();
}

TEST(RefusalLog, AFloodDoesNotFillTheLog) {
  testing::internal::CaptureStderr();
  detail::RefusalLog log("port 1");
  const TimePoint start = Clock::now();
  for (int i = 0; i < 3 * detail::RefusalLog::kLines; ++i) log.refused("10.0.0.9:5", "why", start);
  log.sum_up(start, false);  // too early
  log.refused("10.0.0.9:5", "why", start + detail::RefusalLog::kWindow);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), detail::RefusalLog::kLines + 2);
  EXPECT_THAT(text, HasSubstr("port 1: refused a connection from 10.0.0.9:5: why"));
  EXPECT_THAT(text, HasSubstr("refused 40 more connections, the last from 10.0.0.9:5"));
}

TEST(RefusalLog, SaysAtTheEndHowManyThereWere) {
  testing::internal::CaptureStderr();
  detail::RefusalLog log("port 1");
  const TimePoint start = Clock::now();
  for (int i = 0; i < detail::RefusalLog::kLines + 3; ++i) log.refused("a", "why", start);
  log.sum_up(start, true);
  log.sum_up(start, true);  // all is said
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), detail::RefusalLog::kLines + 1);
  EXPECT_THAT(text, HasSubstr("refused 3 more connections"));
}

}  // namespace
}  // namespace tutti
