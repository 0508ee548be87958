// Passing a descriptor to those of the job on this host, and to nobody else.
#include <fcntl.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <thread>

#include "tutti/net/arena.h"
#include "tutti/net/descriptor_giver.h"
#include "tutti/net/handshake.h"

#include "tests/support/expect.h"
#include "tests/support/meeting.h"
#include "tests/support/refusals.h"
#include "tests/unit/net/loopback.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;

DescriptorRequest request_of(const std::string& name) {
  return {.name = name, .key = "key", .who = "rank 3"};
}

/// A socket of that name, which is no giver.
FileDescriptor listen_as(const std::string& name) {
  FileDescriptor made(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  EXPECT_EQ(bind(made.get(), reinterpret_cast<const sockaddr*>(&address), length), 0);
  EXPECT_EQ(listen(made.get(), 1), 0);
  return made;
}

TEST(DescriptorGiver, EverybodyWhoAsksGetsTheSameMemory) {
  const Token token = Token::random();
  const SharedFile file = SharedFile::create("test");
  ASSERT_TRUE(file.reserve(0, kPageBytes));
  const Mapping own(file, 0, kPageBytes);
  const DescriptorGiver giver(token, "key", file.descriptor());
  run_threads(4, [&](int rank) {
    const auto taken = take_descriptor(request_of(giver.name()), token, Deadline(30s));
    ASSERT_TRUE(taken.has_value());
    EXPECT_NE(fcntl(taken->get(), F_GETFD) & FD_CLOEXEC, 0);
    const Mapping same(SharedFile::duplicate(taken->get()), 0, kPageBytes);
    same.data()[rank] = std::byte{7};
  });
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(own.data()[rank], std::byte{7});
}

TEST(DescriptorGiver, NamesDifferAndFitIntoOneText) {
  const Token token = Token::random();
  const DescriptorGiver one(token, "key", 0), two(token, "key", 0);
  EXPECT_NE(one.name(), two.name());
  EXPECT_EQ(one.name().find_first_of(" \n"), std::string::npos);
}

TEST(DescriptorGiver, NobodyThereIsNone) {
  const Token token = Token::random();
  std::string name;
  {
    const DescriptorGiver giver(token, "key", 0);
    name = giver.name();
  }
  EXPECT_FALSE(take_descriptor(request_of(name), token, Deadline(30s)).has_value());
}

TEST(DescriptorGiver, AnotherNetworkNamespaceIsAnotherHost) {
  const Token token = Token::random();
  const DescriptorGiver giver(token, "key", 0);
  bool refused = false, found = true;
  std::thread elsewhere([&] {
    refused = unshare(CLONE_NEWNET) != 0;
    if (!refused)
      found = take_descriptor(request_of(giver.name()), token, Deadline(30s)).has_value();
  });
  elsewhere.join();
  if (refused) GTEST_SKIP() << "network namespaces need root";
  EXPECT_FALSE(found);
}

TEST(DescriptorGiver, WhoHoldsAnotherTokenIsRefusedByName) {
  Refusals refusals;
  const DescriptorGiver giver(Token::random(), "key", 0);
  EXPECT_THAT(message_of<Mismatch>([&] {
                take_descriptor(request_of(giver.name()), Token::random(), Deadline(30s));
              }),
              HasSubstr("rank 3: it turned this process away at the proof of the token"));
  EXPECT_THAT(refusals.wait_for("does not hold the token", Deadline(10s)),
              HasSubstr("process " + std::to_string(getpid())));
}

TEST(DescriptorGiver, AnotherKeyIsAMismatch) {
  Refusals refusals;
  const Token token = Token::random();
  const DescriptorGiver giver(token, "another", 0);
  EXPECT_THROW(take_descriptor(request_of(giver.name()), token, Deadline(30s)), Mismatch);
}

TEST(DescriptorGiver, WhatIsNoNameIsAMismatch) {
  for (const std::string& name : {std::string(), std::string(108, 'x')}) {
    EXPECT_THAT(message_of<Mismatch>(
                    [&] { take_descriptor(request_of(name), Token::random(), Deadline(30s)); }),
                HasSubstr("rank 3 told"));
  }
}

TEST(DescriptorGiver, SilenceIsATimeoutAndAnEndALoss) {
  const std::string name = "tutti-test-" + std::to_string(getpid());
  const FileDescriptor other = listen_as(name);
  EXPECT_THROW(take_descriptor(request_of(name), Token::random(), Deadline(20ms)), Timeout);
  std::thread closes([&] {
    while (FileDescriptor(accept(other.get(), nullptr, nullptr))) {
    }
  });
  EXPECT_THROW(take_descriptor(request_of(name), Token::random(), Deadline(30s)), PeerLost);
  shutdown(other.get(), SHUT_RDWR);
  closes.join();
}

/// The giver's part of a handshake at a socket of the name `name`, up to its hello.
FileDescriptor answer_a_hello(const FileDescriptor& listening, Handshake& giver) {
  FileDescriptor client(accept(listening.get(), nullptr, nullptr));
  std::string hello(Handshake::kHelloBytes, '\0');
  EXPECT_EQ(recv(client.get(), hello.data(), hello.size(), MSG_WAITALL),
            static_cast<ssize_t>(hello.size()));
  giver.receive(hello);
  const std::string_view answer = giver.to_send();
  EXPECT_EQ(send(client.get(), answer.data(), answer.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(answer.size()));
  giver.sent(answer.size());
  return client;
}

TEST(DescriptorGiver, WhatEndsWithoutAWordOrInTheMiddleIsTriedAgain) {
  const Token token = Token::random();
  const std::string name = "tutti-test-cut-" + std::to_string(getpid());
  FileDescriptor listening = listen_as(name);
  std::thread other([&] {
    FileDescriptor(accept(listening.get(), nullptr, nullptr)).reset();
    for (int i = 0; i < 2; ++i) {  // the second one with the end of the process
      Handshake giver(Handshake::Role::server, token, {.job = "key", .to = name});
      const FileDescriptor client = answer_a_hello(listening, giver);
      if (i == 1) listening.reset();
    }
  });
  EXPECT_THAT(
      message_of<PeerLost>([&] { take_descriptor(request_of(name), token, Deadline(30s)); }),
      HasSubstr("handshake with rank 3: broken off in the middle"))
      << "neither another token nor another host";
  other.join();
}

TEST(DescriptorGiver, LeavesNoDescriptorOpen) {
  const Token token = Token::random();
  const auto before = open_descriptors();
  {
    const DescriptorGiver giver(token, "key", 0);
    const auto taken = take_descriptor(request_of(giver.name()), token, Deadline(30s));
    EXPECT_TRUE(taken.has_value());
  }
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace tutti
