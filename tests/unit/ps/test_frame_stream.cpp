// Messages over links that take and give any number of bytes at a time, and what is no message.
#include <gmock/gmock.h>
#include <poll.h>

#include <cstring>
#include <limits>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/ps/wire/frame_stream.h"

#include "tests/support/message_of.h"
#include "tests/unit/ps/frame_ends.h"

namespace tutti::ps {
namespace {

using namespace test;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tutti::test::message_of;

/// Bytes in memory, in one direction.
struct Pipe {
  std::string bytes;
  int64_t room = std::numeric_limits<int64_t>::max();  ///< still taken; 0: full
};

/// Takes and gives at most so many bytes a call, takes none at every other one, and then insists on
/// the same bytes, as a TLS record does.
class PickyLink final : public Link {
 public:
  PickyLink(Pipe& out, Pipe& in, int64_t most) : out_(out), in_(in), most_(most) {}

  int64_t write_some(std::span<const iovec> pieces) override {
    std::string shown;
    for (const iovec& piece : pieces)
      shown.append(static_cast<char*>(piece.iov_base), piece.iov_len);
    EXPECT_TRUE(shown.starts_with(promised_)) << "other bytes than before";
    promised_.clear();
    const int64_t taken = std::min({most_, out_.room, static_cast<int64_t>(shown.size())});
    balks_ = !balks_ || taken == 0;
    if (balks_) {
      promised_ = shown.substr(0, 16 << 10);
      return 0;
    }
    out_.bytes.append(shown, 0, static_cast<size_t>(taken));
    out_.room -= taken;
    return taken;
  }

  int64_t read_some(void* to, int64_t bytes) override {
    const auto got =
        static_cast<size_t>(std::min({most_, bytes, static_cast<int64_t>(in_.bytes.size())}));
    std::memcpy(to, in_.bytes.data(), got);
    in_.bytes.erase(0, got);
    return static_cast<int64_t>(got);
  }

  int descriptor() const noexcept override { return -1; }
  short wants_to_read() const noexcept override { return POLLIN; }
  short wants_to_write() const noexcept override { return POLLOUT; }
  bool has_buffered() const noexcept override { return false; }
  void shutdown() noexcept override {}
  const std::string& peer() const noexcept override { return name_; }

 private:
  Pipe& out_;
  Pipe& in_;
  const int64_t most_;
  bool balks_ = false;
  std::string promised_;
  const std::string name_ = "picky";
};

TEST(FrameStream, MessagesArriveWholeAndInOrder) {
  Ends ends;
  const int64_t sizes[] = {0, 1, 4096, 1 << 20, 0, 17 << 10, 63};
  int64_t sum = 0;
  for (const int64_t bytes : sizes) {
    Message message = with_payload(bytes, Bytes::copy_of(pattern(bytes, bytes)));
    message.text = std::string(static_cast<size_t>(bytes % 5000), 't');
    message.parts = {{.rank = 4, .used = {1, 0}}};
    ends.worker->send(std::move(message));
    sum += bytes;
  }
  for (const int64_t bytes : sizes) {
    const Message got = next_of(*ends.worker, *ends.server);
    EXPECT_EQ(got.kind, Message::Kind::push);
    EXPECT_EQ(got.sequence, bytes);
    EXPECT_EQ(got.text.size(), static_cast<size_t>(bytes % 5000));
    EXPECT_THAT(got.parts, ElementsAre(Part{.rank = 4, .used = {1, 0}}));
    EXPECT_TRUE(holds(got.payload, pattern(bytes, bytes))) << bytes;
    if (bytes > 0) {
      EXPECT_TRUE(ends.server_heap->place_of(got.payload.span.data()).has_value());
    }
  }
  EXPECT_FALSE(ends.server->receive().has_value());
  EXPECT_TRUE(ends.worker->flush());
  EXPECT_EQ(ends.worker->bytes_sent(), sum);
  EXPECT_EQ(ends.server->bytes_received(), sum);
  EXPECT_EQ(ends.worker->shared_bytes_sent() + ends.server->shared_bytes_received(), 0);
  EXPECT_EQ(ends.server_heap->used_bytes(), 0);
}

TEST(FrameStream, EveryPartialWriteAndReadIsGoneOnWith) {
  const auto heap = std::make_shared<SharedHeap>();
  for (const int64_t most : {1, 2, 3, 5, 7, 31, 95, 96, 97, 191, 192, 193, 255, 4096, 100'000}) {
    Pipe there, back;
    FrameStream sender(std::make_unique<PickyLink>(there, back, most), {.own = heap});
    FrameStream receiver(std::make_unique<PickyLink>(back, there, most), {.own = heap});
    for (int64_t i = 0; i < 12; ++i) {
      Message message = with_payload(i, Bytes::copy_of(pattern(97 * (i % 4), i)));
      message.text = std::string(static_cast<size_t>(11 * (i % 3)), 'x');
      sender.send(std::move(message), static_cast<int>(i % 2));
    }
    for (const int64_t i : {0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11}) {
      const Message got = next_of(sender, receiver);
      ASSERT_EQ(got.sequence, i) << most;
      EXPECT_EQ(got.text, std::string(static_cast<size_t>(11 * (i % 3)), 'x'));
      EXPECT_TRUE(holds(got.payload, pattern(97 * (i % 4), i)));
    }
    EXPECT_TRUE(sender.flush());
  }
}

TEST(FrameStream, EveryCutOfAFrameWaitsForTheRest) {
  Message message = with_payload(3, {});
  message.text = "words";
  const auto payload = pattern(50, 1);
  const std::string text = encode_text(message);
  const std::string frame =
      raw_head(message, {text.size(), payload.size(), FrameHead::inline_payload}) + text +
      std::string(reinterpret_cast<const char*>(payload.data()), payload.size());
  const auto heap = std::make_shared<SharedHeap>();
  for (size_t cut = 0; cut <= frame.size(); ++cut) {
    Pipe there, back;
    FrameStream receiver(std::make_unique<PickyLink>(back, there, 1000), {.own = heap});
    there.bytes = frame.substr(0, cut);
    std::optional<Message> got = receiver.receive();
    EXPECT_EQ(got.has_value(), cut == frame.size());
    there.bytes = frame.substr(cut) + frame;
    if (!got) got = receiver.receive();
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(got.has_value());
      EXPECT_EQ(got->text, "words");
      EXPECT_TRUE(holds(got->payload, payload));
      got = receiver.receive();
    }
    EXPECT_FALSE(got.has_value());
  }
}

TEST(FrameStream, LowestPriorityValueGoesFirstButAFrameThatHasBegunIsFinished) {
  const auto heap = std::make_shared<SharedHeap>();
  Pipe there, back;
  FrameStream sender(std::make_unique<PickyLink>(there, back, 1 << 30), {.own = heap});
  FrameStream receiver(std::make_unique<PickyLink>(back, there, 1 << 30), {.own = heap});
  sender.send(with_payload(0, Bytes::copy_of(pattern(40'000, 1))), 9);
  there.room = 10;
  EXPECT_FALSE(sender.flush());
  EXPECT_NE(sender.wants() & POLLOUT, 0);
  for (const int priority : {5, -1, 5, 0, 9, -1}) {
    static int64_t sequence = 0;
    sender.send(numbered(++sequence), priority);
  }
  there.room = 1 << 30;
  std::vector<int64_t> order;
  while (order.size() < 7) order.push_back(next_of(sender, receiver).sequence);
  EXPECT_THAT(order, ElementsAre(0, 2, 6, 4, 1, 3, 5));
  EXPECT_TRUE(sender.flush());
  EXPECT_EQ(sender.wants() & POLLOUT, 0);
}

TEST(FrameStream, AnEndInAFrameIsALossAndLeavesNoMemory) {
  auto [raw, end] = make_link_pair("server 1", "worker 0");
  const auto heap = std::make_shared<SharedHeap>();
  auto stream = std::make_unique<FrameStream>(std::move(end), FrameStreamOptions{.own = heap});
  write_raw(*raw, raw_head(numbered(1), {0, kLong, FrameHead::inline_payload}) + "some of it");
  EXPECT_FALSE(stream->receive().has_value());
  EXPECT_GT(heap->used_bytes(), 0);
  raw.reset();
  EXPECT_THAT(message_of<PeerLost>([&] { stream->receive(); }), HasSubstr("worker 0"));
  stream.reset();
  EXPECT_EQ(heap->used_bytes(), 0);
}

TEST(FrameStream, WrongFramesAreRefusedBeforeMemoryIsTaken) {
  constexpr uint64_t kInline = FrameHead::inline_payload;
  Message released;
  released.kind = Message::Kind::released;
  std::string unknown = raw_head(numbered(1), {0, 0, kInline});
  unknown[4] = '\x7f';
  struct Case {
    std::string name, bytes, why;
  };
  const Case cases[] = {
      {"another program", std::string(96, 'G'), "no frames of a parameter server"},
      {"unknown kind", unknown, "unknown kind 127"},
      {"long payload", raw_head(numbered(1), {0, 1001, kInline}), "1001 bytes; at most 1000"},
      {"longest payload", raw_head(numbered(1), {0, ~uint64_t{0}, kInline}), "at most 1000"},
      {"long text", raw_head(numbered(1), {~uint64_t{0}, 0, kInline}), "bytes of text"},
      {"bad text", raw_head(numbered(1), {3, 0, kInline}) + "abc", "ends too early"},
      {"place of nothing", raw_head(numbered(1), {0, 0, 64}), "nothing lies at the place"},
      {"beyond the file", raw_head(numbered(1), {0, 8, 1 << 30}), "worker 0 names 8 bytes"},
      {"negative place", raw_head(numbered(1), {0, 8, ~uint64_t{1}}), "worker 0 names 8 bytes"},
      {"released with text", raw_head(released, {1, 0, kInline}), "it says too much"},
      {"released with payload", raw_head(released, {0, 8, 0}), "it says too much"},
      {"never lent", raw_head(released, {0, 0, kInline}), "gives back memory at 0"},
  };
  SharedHeap peer_heap;
  const auto block = peer_heap.allocate(1000);
  for (const Case& wrong : cases) {
    auto [raw, end] = make_link_pair("server 1", "worker 0");
    const auto heap = std::make_shared<SharedHeap>();
    FrameStream stream(std::move(end),
                       {.max_payload_bytes = 1000,
                        .own = heap,
                        .peer = std::make_shared<PeerHeap>(peer_heap.descriptor(), "worker 0")});
    write_raw(*raw, wrong.bytes);
    EXPECT_THAT(message_of<Error>([&] { stream.receive(); }),
                AllOf(HasSubstr("receive from worker 0"), HasSubstr(wrong.why)))
        << wrong.name;
    EXPECT_EQ(heap->held_bytes(), 0) << wrong.name;
  }
}

TEST(FrameStream, OwnMemoryThatIsFullIsNamed) {
  Ends ends(1 << 20);
  ends.worker->send(with_payload(1, Bytes::copy_of(pattern(2 << 20, 1))));
  EXPECT_THAT(message_of<Error>([&] { next_of(*ends.worker, *ends.server); }),
              AllOf(HasSubstr("receive from worker 0"), HasSubstr("--memory-limit")));
}

TEST(FrameStream, WhatCannotBeSentIsRefusedAtOnce) {
  auto [first, second] = make_link_pair("server 1", "worker 0");
  const auto heap = std::make_shared<SharedHeap>();
  FrameStream stream(std::move(first), {.max_payload_bytes = 1000, .own = heap});
  EXPECT_THAT(
      message_of<UsageError>([&] { stream.send(with_payload(1, block_of(*heap, 1001, 0))); }),
      HasSubstr("send to server 1: a push frame with 1001 bytes; at most 1000"));
  Message released;
  released.kind = Message::Kind::released;
  EXPECT_THROW(stream.send(released), UsageError);
  Message wordy;
  wordy.text = std::string(kMaxTextBytes, 'x');
  EXPECT_THROW(stream.send(std::move(wordy)), UsageError);
  EXPECT_TRUE(stream.flush());
  EXPECT_THROW(FrameStream(std::move(second), {}), UsageError) << "no heap";
}

}  // namespace
}  // namespace tutti::ps
