// Workers that come to servers which are not there, wholly or in part: an error with who, where and
// how long it was tried.
#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/ps/client/client.h"
#include "tutti/ps/server/view_service.h"
#include "tutti/ps/view/view_link.h"

#include "tests/support/message_of.h"

namespace tutti::ps {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using tutti::test::message_of;

const Address kLoopback = *Address::from_number("127.0.0.1", 0);

Spec spec_for(int servers) {
  Spec spec{.rule = optim::sgd({})};
  spec.variables = {{"v", {1024}, DType::float32}};
  spec.pieces = pieces_of(spec.variables, place(spec.variables, {.num_servers = servers}));
  spec.num_partitions = servers;
  return spec;
}

Bytes zeros(int) { return Bytes::copy_of(std::vector<std::byte>(4096)); }

/// Says to the view service that it is a server, at an address of the test's choice.
class FalseServer {
 public:
  FalseServer(const Address& service, const std::string& address, const Credentials& credentials)
      : streams_(std::make_shared<SharedHeap>(), credentials,
                 {.message = [](Peer, const Message&) {},
                  .connected = [this](Peer) { link_.on_connected(); },
                  .closed = [](Peer, const std::string&) {}}),
        link_(streams_,
              {.who = {Peer::Kind::server, -1}, .name = "host b", .where = {address, ""}}) {
    streams_.connect_to_service({service.number(), service.port()}, Millis{10'000});
    thread_ = std::thread([this] {
      while (!ends_) {
        streams_.wait(Millis{100});
        streams_.process();
      }
    });
  }
  ~FalseServer() {
    ends_ = true;
    streams_.wake();
    thread_.join();
  }

 private:
  Streams streams_;
  ViewLink link_;
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

TEST(ClientStart, NamesTheViewServiceThatIsNotThere) {
  const Credentials credentials{Token::random(), "test", nullptr};
  EXPECT_THAT(message_of<Error>([&] {
                Client(ClientOptions{.view_service = {"127.0.0.1", 1}, .limit = Millis{300}},
                       credentials, spec_for(1), zeros);
              }),
              AllOf(HasSubstr("127.0.0.1:1"), HasSubstr("300 ms"), HasSubstr("view service")));
}

TEST(ClientStart, NamesTheServersThatHaveNotCome) {
  const Credentials credentials{Token::random(), "test", nullptr};
  const ViewService service({.num_servers = 3}, kLoopback, credentials);
  const FalseServer one(service.address(), "127.0.0.1:1", credentials);
  ASSERT_TRUE(service.wait_until([](const View& view) { return view.servers[0].alive; },
                                 Deadline(Millis{10'000})));
  EXPECT_THAT(message_of<Timeout>([&] {
                Client(ClientOptions{.view_service = {"127.0.0.1", service.address().port()},
                                     .limit = Millis{500}},
                       credentials, spec_for(3), zeros);
              }),
              AllOf(HasSubstr("500 ms"), HasSubstr("of 3, these have not come: 1, 2")));
}

/// Lets whoever comes in, and says nothing more: a view service that was stopped there.
class CurtService {
 public:
  explicit CurtService(const Credentials& credentials)
      : listener_(kLoopback, credentials),
        streams_(std::make_shared<SharedHeap>(), credentials,
                 {.message =
                      [this](Peer from, const Message& message) {
                        if (message.kind == Message::Kind::join)
                          streams_.send(from, {.kind = Message::Kind::joined, .step = 30'000});
                      },
                  .connected = [](Peer) {},
                  .closed = [](Peer, const std::string&) {}}) {
    streams_.take_from(listener_, kViewPurpose, Peer::Kind::view_service);
    thread_ = std::thread([this] {
      while (!ends_) {
        streams_.wait(Millis{100});
        streams_.process();
      }
    });
  }
  ~CurtService() {
    ends_ = true;
    streams_.wake();
    thread_.join();
  }
  HostPort address() const { return {"127.0.0.1", listener_.address().port()}; }

 private:
  Listener listener_;
  Streams streams_;
  std::thread thread_;
  std::atomic<bool> ends_{false};
};

TEST(ClientStart, NamesTheViewServiceThatHasNotSaidWhoTheServersAre) {
  const Credentials credentials{Token::random(), "test", nullptr};
  const CurtService service(credentials);
  EXPECT_THAT(message_of<Timeout>([&] {
                Client(ClientOptions{.view_service = service.address(), .limit = Millis{2'000}},
                       credentials, spec_for(1), zeros);
              }),
              AllOf(HasSubstr("2000 ms"), HasSubstr(service.address().text()),
                    HasSubstr("has let it in and not said who they are")));
}

TEST(ClientStart, NamesTheServerThatIsOutOfReach) {
  const Credentials credentials{Token::random(), "test", nullptr};
  const ViewService service({.num_servers = 1}, kLoopback, credentials);
  const FalseServer dead(service.address(), "127.0.0.1:1", credentials);
  Client client(ClientOptions{.view_service = {"127.0.0.1", service.address().port()}}, credentials,
                spec_for(1), zeros);
  client.pull(0, 0);
  EXPECT_THAT(
      message_of<Timeout>([&] { client.fetch(0, 0, Deadline(Millis{500}), [](const Bytes&) {}); }),
      AllOf(HasSubstr("worker 0 waited for 500 ms"),
            ContainsRegex("server 0 \\(host b\\).*127\\.0\\.0\\.1:1.*refused")));
}

}  // namespace
}  // namespace tutti::ps
