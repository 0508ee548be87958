// Texts of addresses, choosing a local one, and connecting under a deadline.
#include <sched.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tutti/net/address.h"
#include "tutti/net/connect.h"

#include "tests/support/command.h"
#include "tests/support/expect.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;

Address number(const std::string& text, uint16_t port = 0) {
  const auto address = Address::from_number(text, port);
  EXPECT_TRUE(address) << text;
  return address.value_or(Address());
}

TEST(Address, SaysItselfAsPeopleWriteIt) {
  EXPECT_EQ(number("10.0.0.7", 41023).text(), "10.0.0.7:41023");
  EXPECT_EQ(number("::1", 80).text(), "[::1]:80");
  EXPECT_EQ(number("FD00:0:0::7", 1).text(), "[fd00::7]:1");
  EXPECT_EQ(number("fe80::1%lo", 5).number(), "fe80::1%lo");
  EXPECT_EQ(Address().text(), "nowhere");
  EXPECT_EQ(number("10.0.0.7").with_port(9).port(), 9);
}

TEST(Address, ReadsNumbersOnly) {
  for (const char* text : {"", "localhost", "10.1", "0x7f000001", "10.0.0.256", "10.0.0.7 ", ":",
                           "1::2::3", "10.0.0.7:80", "[::1]", "::1\n", "fe80::1%nosuchlink"}) {
    EXPECT_FALSE(Address::from_number(text, 1)) << text;
  }
  EXPECT_FALSE(Address::from_number(std::string_view("10.0.0.7\0", 9), 1));
}

TEST(Address, KnowsItsKind) {
  EXPECT_TRUE(number("127.0.3.1").is_loopback());
  EXPECT_TRUE(number("::1").is_loopback());
  EXPECT_FALSE(number("10.0.0.1").is_loopback());
  EXPECT_TRUE(number("0.0.0.0").is_any());
  EXPECT_TRUE(number("::").is_any());
  EXPECT_FALSE(number("::1").is_any());
  EXPECT_TRUE(number("169.254.0.1").is_link_local());
  EXPECT_TRUE(number("fe80::1").is_link_local());
  EXPECT_FALSE(number("fd00::1").is_link_local());
}

TEST(Address, EqualityCountsFamilyNumberAndPort) {
  EXPECT_EQ(number("::1", 5), number("0:0::1", 5));
  EXPECT_FALSE(number("::1", 5) == number("::1", 6));
  EXPECT_FALSE(number("10.0.0.1", 5) == number("10.0.0.2", 5));
  EXPECT_FALSE(number("0.0.0.0", 5) == number("::", 5));
}

TEST(Address, TakesOnlyInternetFamilies) {
  sockaddr unix_address{};
  unix_address.sa_family = AF_UNIX;
  EXPECT_THROW(Address(&unix_address, sizeof unix_address), UsageError);
  const Address v6 = number("::1");
  EXPECT_THROW(Address(v6.raw(), sizeof(sockaddr_in)), UsageError) << "cut off";
}

TEST(HostPort, ReadsWhatPeopleWrite) {
  struct Case {
    const char* text;
    const char* host;
    int port;
  };
  for (const auto& [text, host, port] : {Case{"node7:29500", "node7", 29500},
                                         {"10.0.0.7:1", "10.0.0.7", 1},
                                         {"[::1]:65535", "::1", 65535},
                                         {"node7", "node7", 400},
                                         {"[fd00::7]", "fd00::7", 400}}) {
    const HostPort read = parse_host_port(text, "--rendezvous", 400);
    EXPECT_EQ(read.host, host);
    EXPECT_EQ(read.port, port);
    const HostPort again = parse_host_port(read.text(), "--rendezvous");
    EXPECT_EQ(again.host, host);
    EXPECT_EQ(again.port, port);
  }
}

TEST(HostPort, SaysWhatIsWrong) {
  struct Case {
    const char* text;
    const char* why;
  };
  for (const auto& [text, why] : {Case{"", "there is no host"},
                                  {":29500", "there is no host"},
                                  {"a b:29500", "there is no host"},
                                  {"node7", "the port is missing"},
                                  {"[::1]", "the port is missing"},
                                  {"node7:", "not a number from 1 to 65535"},
                                  {"node7:0", "not a number from 1 to 65535"},
                                  {"node7:-1", "not a number from 1 to 65535"},
                                  {"node7:65536", "not a number from 1 to 65535"},
                                  {"node7:99999999999", "not a number from 1 to 65535"},
                                  {"node7:12x", "not a number from 1 to 65535"},
                                  {"::1:29500", "needs [ ] around it"},
                                  {"[::1:29500", "the [ is not closed"},
                                  {"[::1]29500", "no : after the ]"},
                                  {"[node7]:29500", "no IPv6 address in [ ]"},
                                  {"[]:29500", "no IPv6 address in [ ]"}}) {
    EXPECT_THAT(message_of<UsageError>([&] { parse_host_port(text, "--rendezvous"); }),
                AllOf(HasSubstr("--rendezvous"), HasSubstr(why), HasSubstr("node7:29500")))
        << text;
  }
}

TEST(HostPort, AMessageIsBoundedAndWithoutControlCharacters) {
  const std::string nasty = std::string("\x1b[31m") + std::string(5000, 'x');
  const std::string message = message_of<UsageError>([&] { parse_host_port(nasty, "X"); });
  EXPECT_LT(message.size(), 400U);
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
}

TEST(Subnet, ContainsItsAddresses) {
  const Subnet ten = parse_subnet("10.0.0.0/8", "--interface");
  EXPECT_TRUE(ten.contains(number("10.255.3.4")));
  EXPECT_FALSE(ten.contains(number("11.0.0.0")));
  EXPECT_FALSE(ten.contains(number("::1")));
  const Subnet odd = parse_subnet("192.168.16.0/20", "--interface");
  EXPECT_TRUE(odd.contains(number("192.168.31.255")));
  EXPECT_FALSE(odd.contains(number("192.168.32.0")));
  EXPECT_TRUE(parse_subnet("0.0.0.0/0", "").contains(number("1.2.3.4")));
  EXPECT_TRUE(parse_subnet("fd00::/9", "").contains(number("fd7f::1")));
  EXPECT_FALSE(parse_subnet("fd00::/9", "").contains(number("fd80::1")));
  for (const char* text : {"", "/", "10.0.0.0", "10.0.0.0/", "10.0.0.0/33", "::/129", "x/8",
                           "10.0.0.0/-1", "10.0.0.0/8/8"}) {
    EXPECT_THAT(message_of<UsageError>([&] { parse_subnet(text, "--interface"); }),
                HasSubstr("10.0.0.0/8"))
        << text;
  }
}

TEST(ChooseLocalAddress, ByNameSubnetOrNumber) {
  const std::vector<Interface> have = {
      {"lo", number("127.0.0.1")},      {"eth0", number("fe80::2")},    {"eth0", number("fd00::2")},
      {"eth0", number("10.1.0.2")},     {"ib0", number("169.254.3.4")}, {"ib0", number("fd11::2")},
      {"bond0", number("192.168.1.2")},
  };
  const auto chosen = [&](const char* wanted) {
    return choose_local_address(wanted, "--interface", have).number();
  };
  EXPECT_EQ(chosen("eth0"), "10.1.0.2");
  EXPECT_EQ(chosen("ib0"), "fd11::2") << "link-local comes last";
  EXPECT_EQ(chosen("192.168.0.0/16"), "192.168.1.2");
  EXPECT_EQ(chosen("fd00::/8"), "fd00::2") << "the first listed of equals";
  EXPECT_EQ(chosen("fd11::2"), "fd11::2");
  for (const char* wanted : {"eth1", "172.16.0.0/12", "10.1.0.3", ""}) {
    EXPECT_THAT(message_of<UsageError>([&] { chosen(wanted); }),
                AllOf(HasSubstr("--interface"), HasSubstr("bond0 192.168.1.2")))
        << wanted;
  }
}

TEST(LocalInterfaces, HaveTheLoopbackDevice) {
  EXPECT_EQ(choose_local_address("127.0.0.1", "test", local_interfaces()).number(), "127.0.0.1");
  EXPECT_EQ(local_address_towards(number("127.0.0.9", 80)), number("127.0.0.1"));
  EXPECT_EQ(local_address_towards(number("127.0.0.1")), number("127.0.0.1")) << "any port";
}

/// A socket that listens on a free port of the loopback device.
struct TestListener {
  TestListener() : socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const Address any_port = number("127.0.0.1");
    EXPECT_EQ(bind(socket.get(), any_port.raw(), any_port.length()), 0);
    address = local_address_of(socket.get());
  }
  void start() const { EXPECT_EQ(listen(socket.get(), 8), 0); }

  FileDescriptor socket;
  Address address;
};

TEST(Connect, ConnectsAndNamesWhoRefused) {
  TestListener listener;  // bound: nobody else can take the port
  EXPECT_THAT(message_of<PeerLost>([&] { connect_to(listener.address, "rank 3", Deadline(10s)); }),
              AllOf(HasSubstr("rank 3 (" + listener.address.text() + ")"),
                    HasSubstr("Connection refused"), HasSubstr("nothing listens there")));
  listener.start();
  const FileDescriptor connected = connect_to(listener.address, "rank 3", Deadline(10s));
  EXPECT_EQ(peer_address_of(connected.get()), listener.address);
  EXPECT_EQ(peer_address_of(listener.socket.get()), Address());
}

TEST(Connect, ToAnyAddressOfAName) {
  TestListener listener;
  const HostPort target{"localhost", listener.address.port()};  // ::1 too, where nobody listens
  EXPECT_THAT(
      message_of<PeerLost>([&] { connect_to_any(target, "the rendezvous", Deadline(20s)); }),
      AllOf(HasSubstr("the rendezvous ("), HasSubstr("nothing listens there now")));
  listener.start();
  EXPECT_TRUE(connect_to_any(target, "the rendezvous", Deadline(20s)));
}

TEST(Connect, ASocketThatMeetsItselfIsRefused) {
  // A connecting socket bound to the very port that it connects to is its own peer.
  const FileDescriptor self(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const Address any_port = number("127.0.0.1");
  ASSERT_EQ(bind(self.get(), any_port.raw(), any_port.length()), 0);
  const Address own = local_address_of(self.get());
  ASSERT_EQ(connect(self.get(), own.raw(), own.length()), 0);
  EXPECT_EQ(local_address_of(self.get()), peer_address_of(self.get()))
      << "connect_to() tells it by this";
}

TEST(Resolve, NumbersNamesAndErrors) {
  EXPECT_EQ(resolve({"10.0.0.7", 5}, Deadline(0ms)).front().text(), "10.0.0.7:5");
  const auto local = resolve({"localhost", 5}, Deadline(20s));
  ASSERT_FALSE(local.empty());
  EXPECT_TRUE(local.front().is_loopback());
  EXPECT_EQ(local.front().port(), 5);
  // No name service takes a label of more than 63 letters, so nothing is asked over the network.
  const std::string bad = std::string(70, 'a') + ".invalid";
  EXPECT_THAT(message_of<Error>([&] { resolve({bad, 5}, Deadline(20s)); }),
              AllOf(HasSubstr("cannot be resolved"), HasSubstr("getent hosts")));
}

// Where nothing but the loopback is of IPv4, getaddrinfo() leaves 127.0.0.1 out if it is asked for
// what the host has interfaces for.
TEST(Resolve, LocalhostOfAHostOfIPv6Alone) {
  bool made = false;
  std::thread([&made] {  // a network of its own
    made =
        unshare(CLONE_NEWNET) == 0 &&
        run_command({"sh", "-c", "ip link set lo up; ip addr add fd00::5/128 dev lo"}).exit_code ==
            0;
    if (!made) return;
    std::vector<Address> found;
    EXPECT_NO_THROW(found = resolve({"localhost", 5}, Deadline(20s)));
    ASSERT_FALSE(found.empty());
    for (const Address& address : found) EXPECT_TRUE(address.is_loopback()) << address.text();
  })
      .join();
  if (!made) GTEST_SKIP() << "needs root and the program ip";
}

}  // namespace
}  // namespace tutti
