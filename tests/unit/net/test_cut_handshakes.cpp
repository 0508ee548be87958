// A handshake that ends in the middle says nothing of tokens: it is tried again until the deadline.
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <limits>
#include <memory>
#include <string>
#include <thread>

#include "tutti/base/event.h"
#include "tutti/net/connect.h"
#include "tutti/net/connect_link.h"
#include "tutti/net/detail/socket_link.h"
#include "tutti/net/listener.h"

#include "tests/support/expect.h"
#include "tests/support/refusals.h"
#include "tests/unit/net/loopback.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;

enum class Cut { behind_its_hello, at_the_proof };

FileDescriptor listening_socket() {
  FileDescriptor made(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(bind(made.get(), kLoopback.raw(), kLoopback.length()), 0);
  EXPECT_EQ(listen(made.get(), 16), 0);
  return made;
}

/// A process of the job that ends its first `cuts` connections in the middle of the handshake.
class CutsOff {
 public:
  CutsOff(const Credentials& credentials, Cut when, int cuts)
      : credentials_(credentials), when_(when), listening_(listening_socket()) {
    thread_ = std::thread([this, cuts] {
      while (true) {
        FileDescriptor client(accept(listening_.get(), nullptr, nullptr));
        if (!client) return;
        if (++connections_ <= cuts) {
          cut(client);
        } else {
          let_in(std::move(client));
        }
      }
    });
  }
  ~CutsOff() {
    shutdown(listening_.get(), SHUT_RDWR);
    thread_.join();
  }

  Address address() const { return local_address_of(listening_.get()); }
  int connections() const { return connections_; }

 private:
  Handshake handshake() const {
    return {Handshake::Role::server,
            credentials_.token,
            {.job = credentials_.job, .to = "the one that cuts off"}};
  }

  void cut(const FileDescriptor& client) const {
    std::string bytes(Handshake::kHelloBytes, '\0');
    ASSERT_EQ(recv(client.get(), bytes.data(), bytes.size(), MSG_WAITALL),
              static_cast<ssize_t>(bytes.size()));
    Handshake server = handshake();
    server.receive(bytes);
    const std::string_view hello = server.to_send();
    ASSERT_EQ(send(client.get(), hello.data(), hello.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(hello.size()));
    if (when_ == Cut::at_the_proof) recv(client.get(), bytes.data(), 1, MSG_WAITALL);
  }

  void let_in(FileDescriptor client) {
    link_ = detail::make_plain_socket_link(std::move(client), "the client");
    Handshake server = handshake();
    detail::finish(server, *link_, Deadline(30s));
  }

  const Credentials credentials_;
  const Cut when_;
  const FileDescriptor listening_;
  std::unique_ptr<detail::SocketLink> link_;
  std::atomic<int> connections_{0};
  std::thread thread_;
};

class CutHandshake : public testing::TestWithParam<Cut> {
 protected:
  const Credentials credentials_{Token::random(), "job"};
};

TEST_P(CutHandshake, IsTriedAgain) {
  CutsOff other(credentials_, GetParam(), 2);
  EXPECT_TRUE(connect_link(other.address(), credentials_, {}, "rank 0", Deadline(30s)));
  EXPECT_EQ(other.connections(), 3);
}

TEST_P(CutHandshake, IsTriedAgainByWhoWaitsForAProcess) {
  CutsOff other(credentials_, GetParam(), 2);
  EXPECT_TRUE(connect_link_with_retry({"127.0.0.1", other.address().port()}, credentials_, {},
                                      "the rendezvous", Deadline(30s)));
  EXPECT_EQ(other.connections(), 3);
}

TEST_P(CutHandshake, IsGivenUpAtTheDeadlineWithTheTriesAndTheCause) {
  CutsOff other(credentials_, GetParam(), std::numeric_limits<int>::max());
  EXPECT_THAT(message_of<Timeout>([&] {
                connect_link(other.address(), credentials_, {}, "rank 0", Deadline(300ms));
              }),
              AllOf(HasSubstr("rank 0 did not let this process in at 127.0.0.1:"),
                    HasSubstr(" in 300 ms, "), HasSubstr("broken off in the middle"),
                    Not(HasSubstr("another token"))));
  EXPECT_GT(other.connections(), 1);
}

INSTANTIATE_TEST_SUITE_P(Places, CutHandshake,
                         testing::Values(Cut::behind_its_hello, Cut::at_the_proof));

/// Passes bytes on; the proof of the first client, only once it was told to.
class HoldsBackAProof {
 public:
  explicit HoldsBackAProof(const Address& target) : listening_(listening_socket()) {
    thread_ = std::thread([this, target] {
      while (true) {
        FileDescriptor client(accept(listening_.get(), nullptr, nullptr));
        if (!client) return;
        const FileDescriptor server = connect_to(target, "the target", Deadline(30s));
        pass_on(client, server, Handshake::kHelloBytes);
        if (++connections_ == 1) released_.wait(false);
        pass_on(client, server, std::numeric_limits<size_t>::max());
      }
    });
  }
  ~HoldsBackAProof() {
    ended_ = true;
    release();
    shutdown(listening_.get(), SHUT_RDWR);
    thread_.join();
  }

  void release() {
    released_ = true;
    released_.notify_one();
  }
  bool holds() const { return to_server_ == Handshake::kHelloBytes; }
  /// Whether the proof has been passed on by then.
  bool has_passed(const Deadline& deadline) const {
    while (to_server_ <= Handshake::kHelloBytes && !deadline.passed())
      std::this_thread::sleep_for(1ms);
    return to_server_ > Handshake::kHelloBytes;
  }
  Address address() const { return local_address_of(listening_.get()); }
  int connections() const { return connections_; }

 private:
  /// Until one of them closes, or the client has said `most` bytes and was answered.
  void pass_on(const FileDescriptor& client, const FileDescriptor& server, size_t most) {
    bool answered = false;
    while (!ended_ && !(most == 0 && answered)) {
      pollfd both[] = {{most == 0 ? -1 : client.get(), POLLIN, 0}, {server.get(), POLLIN, 0}};
      poll(both, 2, 20);
      char bytes[512];
      if (both[0].revents != 0) {
        const ssize_t got = recv(client.get(), bytes, std::min(most, sizeof bytes), 0);
        if (got <= 0) return;
        send(server.get(), bytes, static_cast<size_t>(got), MSG_NOSIGNAL);
        to_server_ += static_cast<size_t>(got);
        most -= static_cast<size_t>(got);
      }
      if (both[1].revents != 0) {
        const ssize_t got = recv(server.get(), bytes, sizeof bytes, 0);
        if (got <= 0) return;
        send(client.get(), bytes, static_cast<size_t>(got), MSG_NOSIGNAL);
        answered = true;
      }
    }
  }

  const FileDescriptor listening_;
  std::atomic<int> connections_{0};
  std::atomic<size_t> to_server_{0};
  std::atomic<bool> released_{false};
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

TEST(PausedHandshake, GetsInAtTheNextTry) {
  Refusals refusals;
  const Credentials credentials{Token::random(), "job"};
  Listener listener(kLoopback, credentials, {.handshake_limit = 200ms});
  HoldsBackAProof way(listener.address());
  const std::jthread releases([&] {
    EXPECT_NE(refusals.wait_for("did not prove itself within 200 ms", Deadline(30s)), "");
    way.release();
  });
  const auto link =
      connect_link(way.address(), credentials, {.purpose = "data"}, "rank 0", Deadline(30s));
  EXPECT_GT(way.connections(), 1);
  EXPECT_TRUE(listener.wait("data", "", Deadline(30s)).link);
}

/// Lets the proof come in the moment in which the listener says that there is none.
class ReleasesAtTheRefusal final : public Sink {
 public:
  explicit ReleasesAtTheRefusal(HoldsBackAProof& way) : way_(way) {}
  void on_event(const Event& event) noexcept override {
    if (event.name != "net.refused" || released_.exchange(true)) return;
    const bool holds = way_.holds();
    way_.release();
    EXPECT_TRUE(!holds || way_.has_passed(Deadline(30s)));
  }

 private:
  HoldsBackAProof& way_;
  std::atomic<bool> released_{false};
};

// It was answered all the same, and the connection closed under who believed to be in.
TEST(PausedHandshake, AProofBehindTheRefusalLetsNobodyIn) {
  const Refusals quiet;
  const Credentials credentials{Token::random(), "job"};
  Listener listener(kLoopback, credentials, {.handshake_limit = 200ms});
  HoldsBackAProof way(listener.address());
  const auto releases = std::make_shared<ReleasesAtTheRefusal>(way);
  add_sink(releases);
  const auto link =
      connect_link(way.address(), credentials, {.purpose = "data"}, "rank 0", Deadline(30s));
  remove_sink(releases);
  EXPECT_GT(way.connections(), 1);
  EXPECT_TRUE(listener.wait("data", "", Deadline(30s)).link);
}

}  // namespace
}  // namespace tutti
