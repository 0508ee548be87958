// Control links while a frame is half written: its bytes go away, and everybody is told, over TLS
// as over plain text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <set>
#include <thread>

#include "tutti/base/deadline.h"
#include "tutti/comm/tcp/control.h"

#include "tests/support/tls_links.h"

namespace tutti::detail::tcp {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using namespace std::chrono_literals;

struct Handler final : ControlHandler {
  std::byte* room_for(int, const FrameHeader&) override { return nullptr; }
  void on_frame(int, const FrameHeader&, std::span<const std::byte>) override {}
  void on_written(int, uint64_t message) override { written.insert(message); }
  std::set<uint64_t> written;
};

struct Frame {
  FrameHeader header;
  std::string payload;
};

std::string read_all(Link& link, int64_t bytes, const Deadline& deadline) {
  std::string text(static_cast<size_t>(bytes), '\0');
  for (int64_t done = 0; done < bytes;) {
    const int64_t got = link.read_some(text.data() + done, bytes - done);
    done += got;
    if (got > 0 || link.has_buffered()) continue;
    pollfd entry{link.descriptor(), link.wants_to_read(), 0};
    if (poll(&entry, 1, static_cast<int>(deadline.left().count())) == 0)
      throw Timeout("nothing came");
  }
  return text;
}

Frame read_frame(Link& link, const Deadline& deadline = Deadline(20s)) {
  const std::string bytes = read_all(link, kHeaderBytes, deadline);
  Frame frame;
  const std::string why =
      decode_header(std::span<const std::byte, kHeaderBytes>(
                        reinterpret_cast<const std::byte*>(bytes.data()), kHeaderBytes),
                    frame.header);
  if (!why.empty()) throw Error(why);
  frame.payload = read_all(link, static_cast<int64_t>(frame.header.length), deadline);
  return frame;
}

/// Rank 0 of three; the test is ranks 1 and 2. Nobody reads at rank 1.
class HalfWritten : public testing::TestWithParam<bool> {
 protected:
  HalfWritten() {
    std::vector<std::unique_ptr<Link>> near(3);
    for (int rank : {1, 2}) {
      test::TlsLinks::Pair pair = GetParam()
                                      ? tls_.make(0, rank)
                                      : plain(test::link_between(0, rank, test::Wire::unix_pair));
      near[static_cast<size_t>(rank)] = std::move(pair.near);
      (rank == 1 ? first_ : second_) = std::move(pair.far);
    }
    links_ = std::make_unique<ControlLinks>(std::move(near), handler_);
  }

  static test::TlsLinks::Pair plain(test::LinkPair ends) {
    return {std::move(ends.first), std::move(ends.second), FileDescriptor()};
  }

  /// Tells of a failure while the frame to rank 1 is as it is, and looks at what comes.
  void expect_that_all_are_told() {
    links_->tell_all({.kind = FrameKind::failure, .aux = 3}, "the disk is full");
    const Frame told = read_frame(*second_);
    EXPECT_EQ(told.header.kind, FrameKind::failure);
    EXPECT_EQ(told.payload, "the disk is full");
    std::jthread flushes([&] { links_->flush(Millis{20'000}); });
    Frame last;
    do last = read_frame(*first_);
    while (last.header.kind != FrameKind::failure);
    EXPECT_EQ(last.header.aux, 3U);
    EXPECT_EQ(last.payload, "the disk is full");
  }

  const test::TlsLinks tls_;
  Handler handler_;
  std::unique_ptr<Link> first_, second_;
  std::unique_ptr<ControlLinks> links_;
};

TEST_P(HalfWritten, APartOfALongMessageIsFilledUp) {
  auto bytes = std::make_unique<std::string>(kMessagePartBytes, 'm');
  const FrameHeader header{
      .kind = FrameKind::part, .number = 7, .length = static_cast<uint64_t>(bytes->size())};
  links_->push(1, header, reinterpret_cast<const std::byte*>(bytes->data()), 7);
  ASSERT_TRUE(handler_.written.empty()) << "the wire takes it all at once";
  bytes->assign(bytes->size(), '\xff');
  bytes.reset();
  expect_that_all_are_told();
}

// Each is a TLS record of its own: the last has begun to go, though none of it counts as written.
TEST_P(HalfWritten, AShortMessageIsFilledUp) {
  auto bytes = std::make_unique<std::string>(1000, 'm');
  const FrameHeader header{.kind = FrameKind::message, .length = bytes->size()};
  for (uint64_t id = 1; handler_.written.size() + 1 == id; ++id)
    links_->push(1, header, reinterpret_cast<const std::byte*>(bytes->data()), id);
  bytes->assign(bytes->size(), '\xff');
  bytes.reset();
  expect_that_all_are_told();
}

INSTANTIATE_TEST_SUITE_P(Wires, HalfWritten, testing::Bool(),
                         [](const auto& tls) { return tls.param ? "tls" : "plain"; });

TEST(TlsControlLinks, ChangedBytesLoseTheirSenderAlone) {
  const test::TlsLinks tls;
  test::TlsLinks::Pair one = tls.make(0, 1), two = tls.make(0, 2);
  std::vector<std::unique_ptr<Link>> near(3);
  near[1] = std::move(one.near);
  near[2] = std::move(two.near);
  Handler handler;
  ControlLinks links(std::move(near), handler);
  const std::string garbage(100, '\x17');
  ASSERT_EQ(send(one.wire.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL), 100);
  links.service();
  EXPECT_EQ(links.lost_rank(), 1);
  EXPECT_THAT(links.why_lost(), AllOf(HasSubstr("rank 1"), HasSubstr("changed on the way")));
  EXPECT_EQ(links.state(2), ControlLinks::State::open);
  links.tell_all({.kind = FrameKind::failure}, "rank 1 is lost");
  EXPECT_EQ(read_frame(*two.far).payload, "rank 1 is lost");
}

}  // namespace
}  // namespace tutti::detail::tcp
