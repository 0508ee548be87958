// The bytes of a frame: back to what they were, and nothing else is believed.
#include <gmock/gmock.h>

#include <cstring>
#include <set>

#include "tutti/base/error.h"
#include "tutti/ps/wire/message.h"

#include "tests/support/message_of.h"

namespace tutti::ps {
namespace {

using ::testing::HasSubstr;
using tutti::test::message_of;

constexpr uint64_t kMost = 1000;
constexpr auto kLast = Message::Kind::released;

Message message_of_kind(Message::Kind kind) {
  Message message;
  message.kind = kind;
  message.flags = Message::last_of_step | Message::not_finite;
  message.partition = 3;
  message.worker = -1;
  message.piece = 1 << 30;
  message.view = 5;
  message.index = -6;
  message.sequence = int64_t{1} << 62;
  message.step = 8;
  message.version = 9;
  message.learning_rate = 0.1;
  message.text = "some text";
  message.parts = {{.rank = 2, .used = {1, 0, 1}}, {.rank = 0, .used = {}}};
  return message;
}

Message round_trip(const Message& message, const FrameHead& frame) {
  Message back;
  const FrameHead head = decode_head(encode_head(message, frame), kMost, back);
  EXPECT_EQ(head.text_bytes, frame.text_bytes);
  EXPECT_EQ(head.payload_bytes, frame.payload_bytes);
  EXPECT_EQ(head.place, frame.place);
  decode_text(encode_text(message), back);
  return back;
}

TEST(Message, EveryFieldComesBack) {
  for (int kind = 0; kind <= static_cast<int>(kLast); ++kind) {
    const Message sent = message_of_kind(static_cast<Message::Kind>(kind));
    const Message back = round_trip(
        sent, {.text_bytes = 17, .payload_bytes = kMost, .place = FrameHead::inline_payload});
    EXPECT_EQ(back.kind, sent.kind);
    EXPECT_EQ(back.flags, sent.flags);
    EXPECT_EQ(back.partition, sent.partition);
    EXPECT_EQ(back.worker, sent.worker);
    EXPECT_EQ(back.piece, sent.piece);
    EXPECT_EQ(back.view, sent.view);
    EXPECT_EQ(back.index, sent.index);
    EXPECT_EQ(back.sequence, sent.sequence);
    EXPECT_EQ(back.step, sent.step);
    EXPECT_EQ(back.version, sent.version);
    EXPECT_EQ(back.learning_rate, sent.learning_rate);
    EXPECT_EQ(back.text, sent.text);
    EXPECT_EQ(back.parts, sent.parts);
  }
}

TEST(Message, KindsHaveNamesOfTheirOwn) {
  std::set<std::string_view> names;
  for (int kind = 0; kind <= static_cast<int>(kLast); ++kind) {
    names.insert(name_of(static_cast<Message::Kind>(kind)));
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(kLast) + 1);
}

TEST(Message, TextAndPartsComeBackAlone) {
  for (const bool with_text : {false, true}) {
    for (const bool with_parts : {false, true}) {
      Message sent = message_of_kind(Message::Kind::push), back = sent;
      if (!with_text) sent.text.clear();
      if (!with_parts) sent.parts.clear();
      const std::string bytes = encode_text(sent);
      EXPECT_EQ(bytes.empty(), !with_text && !with_parts);
      decode_text(bytes, back);
      EXPECT_EQ(back.text, sent.text);
      EXPECT_EQ(back.parts, sent.parts);
    }
  }
}

TEST(Message, ADamagedHeadIsRefusedOrStaysWithinTheLimits) {
  const auto good = encode_head(message_of_kind(Message::Kind::push),
                                {.text_bytes = 17, .payload_bytes = 0, .place = 64});
  int refused = 0;
  for (size_t at = 0; at < 8 * good.size(); ++at) {
    auto damaged = good;
    damaged[at / 8] ^= std::byte{1} << (at % 8);
    Message message;
    try {
      const FrameHead head = decode_head(damaged, kMost, message);
      EXPECT_LE(head.text_bytes, kMaxTextBytes);
      EXPECT_LE(head.payload_bytes, kMost);
      EXPECT_LE(message.kind, kLast);
    } catch (const Error&) {
      ++refused;
    }
  }
  int no_kinds = 0;
  for (int bit = 0; bit < 32; ++bit) {
    const auto kind = static_cast<uint32_t>(Message::Kind::push) ^ (1U << bit);
    no_kinds += kind > static_cast<uint32_t>(kLast) ? 1 : 0;
  }
  // Each bit of the magic, those that make another kind, and those of 64 MiB and of 1024 and more.
  EXPECT_EQ(refused, 32 + no_kinds + (64 - 26) + (64 - 10));
}

TEST(Message, HeadsSayWhatIsWrongWithThem) {
  const Message message = message_of_kind(Message::Kind::chunk);
  const auto words = [&](size_t at, uint8_t value, const FrameHead& frame) {
    auto bytes = encode_head(message, frame);
    if (value != 0) bytes[at] = std::byte{value};
    Message back;
    return message_of<Error>([&] { decode_head(bytes, kMost, back); });
  };
  EXPECT_THAT(words(0, 'G', {}), HasSubstr("no frames of a parameter server"));
  EXPECT_THAT(words(4, 200, {}), HasSubstr("unknown kind 200"));
  EXPECT_THAT(words(0, 0, {.payload_bytes = kMost + 1}),
              HasSubstr("a chunk frame announces 1001 bytes; at most 1000"));
  EXPECT_THAT(words(0, 0, {.text_bytes = kMaxTextBytes + 1}), HasSubstr("bytes of text; at most"));
}

TEST(Message, TextThatEndsInItsPartsIsRefused) {
  const Message sent = message_of_kind(Message::Kind::push);
  const std::string bytes = encode_text(sent);
  const size_t end_of_parts = bytes.size() - sent.text.size();
  for (size_t length = 1; length < end_of_parts; ++length) {
    Message back;
    EXPECT_THROW(decode_text(bytes.substr(0, length), back), Error) << length;
  }
  Message back;
  decode_text(bytes.substr(0, end_of_parts), back);
  EXPECT_EQ(back.parts, sent.parts);
}

TEST(Message, CountsAreNotBelieved) {
  std::string parts(64, '\xff');
  Message back;
  EXPECT_THAT(message_of<Error>([&] { decode_text(parts, back); }), HasSubstr("announces"));
  const uint32_t one = 1;
  std::memcpy(parts.data(), &one, sizeof one);
  EXPECT_THAT(message_of<Error>([&] { decode_text(parts, back); }), HasSubstr("ends too early"));
}

TEST(Bytes, CopiesShareOneCopyOfTheBytes) {
  std::vector<std::byte> source(100, std::byte{5});
  const Bytes bytes = Bytes::copy_of(source);
  source.assign(100, std::byte{6});
  const Bytes same = bytes;
  EXPECT_EQ(same.size(), 100);
  EXPECT_EQ(same.span.data(), bytes.span.data());
  EXPECT_EQ(same.span[99], std::byte{5});
  EXPECT_EQ(Bytes{}.size(), 0);
}

}  // namespace
}  // namespace tutti::ps
