// Bytes through a plain Link, partial writes, and what each kind of end gives.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/net/link.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;

/// Two ends of a TCP connection over the loopback device.
std::pair<FileDescriptor, FileDescriptor> tcp_pair() {
  FileDescriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* raw = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(listener.get(), raw, length), 0);
  EXPECT_EQ(listen(listener.get(), 1), 0);
  EXPECT_EQ(getsockname(listener.get(), raw, &length), 0);
  FileDescriptor client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(client.get(), raw, length), 0);
  return {std::move(client), FileDescriptor(accept(listener.get(), nullptr, nullptr))};
}

iovec piece_of(std::string& text) { return {text.data(), text.size()}; }

int64_t write_text(Link& link, std::string text) {
  const iovec piece = piece_of(text);
  return link.write_some({&piece, 1});
}

void wait_until_readable(const Link& link) {
  pollfd entry{link.descriptor(), link.wants_to_read(), 0};
  ASSERT_EQ(poll(&entry, 1, 10'000), 1);
}

std::string read_bytes(Link& link, size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t done = 0; done < bytes;) {
    wait_until_readable(link);
    done +=
        static_cast<size_t>(link.read_some(text.data() + done, static_cast<int64_t>(bytes - done)));
  }
  return text;
}

/// One test for both kinds of socket.
class PlainLinkTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::strcmp(GetParam(), "tcp") == 0) {
      auto [first, second] = tcp_pair();
      first_ = make_plain_link(std::move(first), "rank 3 (10.0.0.7:41023)");
      second_ = make_plain_link(std::move(second), "rank 0");
    } else {
      std::tie(first_, second_) = make_link_pair("rank 3 (10.0.0.7:41023)", "rank 0");
    }
  }

  std::unique_ptr<Link> first_, second_;
};

TEST_P(PlainLinkTest, MovesPiecesInOrder) {
  std::string one = "one ", two = "two ", three = "three", none;
  const std::vector<iovec> pieces = {piece_of(none), piece_of(one), piece_of(none), piece_of(two),
                                     piece_of(three)};
  EXPECT_EQ(first_->write_some(pieces), 13);
  EXPECT_EQ(read_bytes(*second_, 13), "one two three");
  EXPECT_EQ(first_->peer(), "rank 3 (10.0.0.7:41023)");
  EXPECT_FALSE(first_->has_buffered());
}

TEST_P(PlainLinkTest, ManyEmptyPiecesHideNothing) {
  std::string text = "x", none;
  std::vector<iovec> pieces(3000, piece_of(none));
  pieces.push_back(piece_of(text));
  EXPECT_EQ(first_->write_some(pieces), 1);
  EXPECT_EQ(first_->write_some({}), 0);
}

TEST_P(PlainLinkTest, NothingThereIsZeroAndDoesNotWait) {
  char byte = 0;
  EXPECT_EQ(first_->read_some(&byte, 1), 0);
  EXPECT_EQ(first_->read_some(&byte, 0), 0);
  EXPECT_NE(fcntl(first_->descriptor(), F_GETFL) & O_NONBLOCK, 0);
}

TEST_P(PlainLinkTest, AFullStreamTakesAPartAndThenNothing) {
  std::string much(64 << 20, '\0');
  for (size_t i = 0; i < much.size(); ++i) much[i] = static_cast<char>(i * 2'654'435'761U >> 13);
  size_t sent = 0;
  for (int idle = 0; idle < 3 && sent < much.size();) {
    const iovec piece{much.data() + sent, much.size() - sent};
    const int64_t now = first_->write_some({&piece, 1});
    sent += static_cast<size_t>(now);
    idle = now == 0 ? idle + 1 : 0;
  }
  ASSERT_LT(sent, much.size()) << "64 MiB fit into the socket";
  std::string received = read_bytes(*second_, sent);
  EXPECT_TRUE(received == much.substr(0, sent));
  pollfd entry{first_->descriptor(), first_->wants_to_write(), 0};
  EXPECT_EQ(poll(&entry, 1, 10'000), 1) << "there is room again";
}

TEST_P(PlainLinkTest, AClosedPeerIsNamedAfterItsLastBytes) {
  write_text(*second_, "last words");
  second_.reset();
  EXPECT_EQ(read_bytes(*first_, 10), "last words");
  wait_until_readable(*first_);
  char byte = 0;
  EXPECT_THAT(message_of<PeerLost>([&] { first_->read_some(&byte, 1); }),
              HasSubstr("rank 3 (10.0.0.7:41023) closed the connection"));
}

TEST_P(PlainLinkTest, WritingToAClosedPeerIsPeerLostAndNoSignal) {
  second_.reset();
  const auto write_until_seen = [&] {
    for (const Deadline deadline(10s); !deadline.passed();) write_text(*first_, "x");
  };
  EXPECT_THAT(message_of<PeerLost>(write_until_seen), HasSubstr("rank 3 (10.0.0.7:41023)"));
}

TEST_P(PlainLinkTest, ShutdownEndsBothSides) {
  first_->shutdown();
  char byte = 0;
  EXPECT_THAT(message_of<PeerLost>([&] { first_->read_some(&byte, 1); }),
              HasSubstr("this side has ended the connection to rank 3"));
  EXPECT_THROW(write_text(*first_, "x"), PeerLost);
  wait_until_readable(*second_);
  EXPECT_THROW(second_->read_some(&byte, 1), PeerLost);
}

TEST_P(PlainLinkTest, ShutdownOfAnotherThreadWakesAPoll) {
  std::thread other([&] { first_->shutdown(); });
  wait_until_readable(*first_);
  char byte = 0;
  EXPECT_THROW(first_->read_some(&byte, 1), PeerLost);
  other.join();
}

INSTANTIATE_TEST_SUITE_P(Sockets, PlainLinkTest, testing::Values("unix", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

TEST(PlainLink, AResetIsPeerLost) {
  auto [first, second] = tcp_pair();
  auto link = make_plain_link(std::move(first), "rank 5");
  const linger at_once{1, 0};  // close() then resets the connection
  ASSERT_EQ(setsockopt(second.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
  second.reset();
  wait_until_readable(*link);
  char byte = 0;
  EXPECT_THAT(message_of<PeerLost>([&] { link->read_some(&byte, 1); }),
              HasSubstr("rank 5 reset the connection"));
}

TEST(PlainLink, SendsSmallMessagesAtOnce) {
  auto [first, second] = tcp_pair();
  auto link = make_plain_link(std::move(first), "rank 1");
  int on = 0;
  socklen_t length = sizeof on;
  ASSERT_EQ(getsockopt(link->descriptor(), IPPROTO_TCP, TCP_NODELAY, &on, &length), 0);
  EXPECT_NE(on, 0);
}

TEST(PlainLink, TakesOnlyStreamSockets) {
  EXPECT_THROW(make_plain_link(FileDescriptor(), "nobody"), UsageError);
  EXPECT_THROW(make_plain_link(FileDescriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)), "a file"),
               UsageError);
  EXPECT_THROW(make_plain_link(FileDescriptor(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)), "a"),
               UsageError);
}

}  // namespace
}  // namespace tutti
