// Messages and descriptors through a DescriptorChannel, and what each fault gives.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <filesystem>
#include <string>
#include <thread>

#include "tutti/net/descriptor_channel.h"

#include "tests/support/expect.h"
#include "tests/unit/net/loopback.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;

class DescriptorChannelTest : public testing::Test {
 protected:
  std::pair<DescriptorChannel, DescriptorChannel> ends_ =
      DescriptorChannel::make_pair("worker 1", "the launcher");
  DescriptorChannel& first_ = ends_.first;
  DescriptorChannel& second_ = ends_.second;
  Deadline soon_{10s};
};

TEST_F(DescriptorChannelTest, KeepsBordersAndOrderOfMessages) {
  const std::string longest(DescriptorChannel::kMaxTextBytes, 'x');
  for (const std::string& text : {std::string("one"), std::string(), longest}) {
    first_.send(text, {}, soon_);
  }
  EXPECT_EQ(second_.receive(soon_).text, "one");
  EXPECT_EQ(second_.receive(soon_).text, "");
  EXPECT_EQ(second_.receive(soon_).text, longest);
}

TEST_F(DescriptorChannelTest, AReceivedDescriptorIsTheSameFile) {
  FileDescriptor memory(memfd_create("test", MFD_CLOEXEC));
  ASSERT_TRUE(memory);
  first_.send("take", std::vector<int>{memory.get(), memory.get()}, soon_);
  ASSERT_EQ(pwrite(memory.get(), "hello", 5, 0), 5);
  memory.reset();

  auto message = second_.receive(soon_);
  ASSERT_EQ(message.descriptors.size(), 2U);
  char bytes[6] = {};
  EXPECT_EQ(pread(message.descriptors[1].get(), bytes, 5, 0), 5);
  EXPECT_STREQ(bytes, "hello");
  EXPECT_EQ(fcntl(message.descriptors[0].get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST_F(DescriptorChannelTest, AMessageIsReadAfterItsSenderHasClosed) {
  first_.send("last words", {}, soon_);
  first_.close();
  EXPECT_EQ(second_.receive(soon_).text, "last words");
  EXPECT_THAT([&] { second_.receive(soon_); }, ThrowsMessage<PeerLost>(HasSubstr("the launcher")));
  EXPECT_THROW(second_.send("x", {}, soon_), PeerLost);
}

TEST_F(DescriptorChannelTest, SoItIsWhereThatHasNotReadAllOfOurs) {
  second_.send("not read", {}, soon_);
  first_.send("last words", {}, soon_);
  first_.close();
  EXPECT_EQ(second_.receive(soon_).text, "last words");
  EXPECT_THROW(second_.receive(soon_), PeerLost);
}

TEST_F(DescriptorChannelTest, AWaitingReceiverSeesTheClose) {
  std::thread closer([&] { first_.close(); });
  EXPECT_THROW(second_.receive(soon_), PeerLost);
  closer.join();
}

TEST_F(DescriptorChannelTest, EveryWaitHasADeadline) {
  EXPECT_THAT([&] { first_.receive(Deadline(1ms)); },
              ThrowsMessage<Timeout>(HasSubstr("worker 1")));
  const std::string text(DescriptorChannel::kMaxTextBytes, 'x');
  const auto fill = [&] {
    for (int i = 0; i < 10'000; ++i) first_.send(text, {}, Deadline(1ms));
  };
  EXPECT_THROW(fill(), Timeout);
}

TEST_F(DescriptorChannelTest, RefusesWhatDoesNotFit) {
  EXPECT_THROW(first_.send(std::string(DescriptorChannel::kMaxTextBytes + 1, 'x'), {}, soon_),
               UsageError);
  const std::vector<int> many(DescriptorChannel::kMaxDescriptors + 1, 0);
  EXPECT_THROW(first_.send("", many, soon_), UsageError);
}

TEST_F(DescriptorChannelTest, GarbageIsAnErrorAndLeaksNothing) {
  const auto before = open_descriptors();
  // A message of ours has 12 bytes in front: mark, length, number of descriptors.
  struct {
    uint32_t magic, text_bytes, num_descriptors;
  } lies{0x74757474, 7, 1};
  for (const auto& [bytes, length] : {std::pair<const void*, size_t>{"rubbish", 7},
                                      {"rubbish that is longer than a header", 36},
                                      {&lies, sizeof lies}}) {
    ASSERT_EQ(send(first_.descriptor(), bytes, length, 0), static_cast<ssize_t>(length));
    EXPECT_THAT([&] { second_.receive(soon_); }, ThrowsMessage<Error>(HasSubstr("not a message")));
  }
  const std::string too_long(2 * DescriptorChannel::kMaxTextBytes, 'y');
  ASSERT_GT(send(first_.descriptor(), too_long.data(), too_long.size(), 0), 0);
  EXPECT_THROW(second_.receive(soon_), Error);
  EXPECT_EQ(open_descriptors(), before);
}

TEST(DescriptorChannel, TakesOnlySocketsOfItsKind) {
  EXPECT_THROW(DescriptorChannel(-1, "nobody"), UsageError);
  FileDescriptor file(open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_THROW(DescriptorChannel(file.get(), "a file"), UsageError);
  EXPECT_GE(fcntl(file.get(), F_GETFD), 0) << "a refused descriptor stays open";
  DescriptorChannel none;
  EXPECT_THROW(none.receive(Deadline(1ms)), UsageError);
  EXPECT_THROW(none.send("x", {}, Deadline(1ms)), UsageError);
}

}  // namespace
}  // namespace tutti
