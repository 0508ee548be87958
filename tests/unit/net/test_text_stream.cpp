#include <array>
#include <cstring>

#include "tutti/net/text_stream.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

constexpr size_t kMost = size_t{4} << 20;

std::pair<TextStream, TextStream> make_streams() {
  auto [first, second] = make_link_pair("rank 1", "rank 0");
  return {TextStream(std::move(first), kMost), TextStream(std::move(second), kMost)};
}

TEST(TextStream, TextsArriveWholeAndInOrder) {
  auto [here, there] = make_streams();
  const std::string sent[] = {"one", "", std::string(3 << 20, 'x'), "four"};
  for (const auto& text : sent) here.send(text);
  std::vector<std::string> got;
  while (got.size() < std::size(sent)) {
    here.flush();
    while (const auto text = there.receive()) got.push_back(*text);
  }
  EXPECT_TRUE(std::equal(got.begin(), got.end(), std::begin(sent)));
  EXPECT_EQ(there.receive(), std::nullopt);
}

TEST(TextStream, TextInPiecesIsPutTogether) {
  auto [raw, end] = make_link_pair("rank 1", "rank 0");
  TextStream there(std::move(end), kMost);
  const std::string frame("\3\0\0\0abc", 7);
  for (const char& byte : frame) {
    EXPECT_EQ(there.receive(), std::nullopt);
    const iovec piece{const_cast<char*>(&byte), 1};
    ASSERT_EQ(raw->write_some({&piece, 1}), 1);
  }
  EXPECT_EQ(there.receive(), "abc");
}

TEST(TextStream, LengthBeyondTheLimitIsRefusedBeforeMemoryIsTaken) {
  auto [raw, end] = make_link_pair("rank 1", "rank 0");
  TextStream there(std::move(end), kMost);
  std::array<char, 4> length{'\xff', '\xff', '\xff', '\xff'};
  const iovec piece{length.data(), length.size()};
  ASSERT_EQ(raw->write_some({&piece, 1}), 4);
  EXPECT_THAT(message_of<Error>([&] { there.receive(); }),
              HasSubstr("a text of 4294967295 bytes is announced; at most 4194304"));
}

TEST(TextStream, TooLongATextIsNotSent) {
  auto [here, there] = make_streams();
  EXPECT_THROW(here.send(std::string(kMost + 1, 'x')), UsageError);
}

TEST(TextStream, ClosedPeerIsLostAfterItsLastText) {
  auto streams = make_streams();
  streams.first.send("last words");
  streams.first = TextStream(nullptr, 0);
  EXPECT_EQ(streams.second.receive(), "last words");
  EXPECT_THROW(streams.second.receive(), PeerLost);
}

}  // namespace
}  // namespace tutti
