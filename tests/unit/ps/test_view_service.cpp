// The view service over real connections: what its members do ends them, and never the launcher.
#include <gmock/gmock.h>

#include <future>
#include <optional>

#include "tutti/ps/server/view_service.h"
#include "tutti/ps/wire/streams.h"

#include "tests/support/failing_open.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/ps/begun_cut.h"

namespace tutti::ps {
namespace {

using testing::kPatience;

// One connection to the service, driven by the test.
struct Member {
  Member(const ViewService& service, const Credentials& credentials)
      : streams(std::make_shared<SharedHeap>(), credentials,
                {.message = [this](Peer, const Message&) { answered = true; },
                 .connected = [this](Peer) { connected = true; },
                 .closed = [this](Peer, const std::string& how) { closed = how; }}) {
    streams.connect_to_service({"127.0.0.1", service.address().port()}, kPatience);
  }
  bool drive_until(const std::function<bool()>& done) {
    for (const Deadline deadline(kPatience); !done() && !deadline.passed();) {
      streams.wait(Millis{20});
      streams.process();
    }
    return done();
  }

  // As a worker; -1: as a server. Whether it was answered.
  bool join(int worker) {
    if (!drive_until([&] { return connected; })) return false;
    streams.send(
        Peer{},
        {.kind = Message::Kind::join, .worker = worker, .sequence = worker, .text = "it\n"});
    streams.flush(Peer{});
    return drive_until([&] { return answered; });
  }

  bool connected = false;
  bool answered = false;
  std::string closed;
  Streams streams;
};

// Its name would stand in the view, which is JSON.
TEST(ViewService, AMemberWhoseNameIsNoTextEndsAlone) {
  const Credentials credentials{Token::random(), "test", nullptr};
  const ViewService service({.num_servers = 1, .num_workers = 1},
                            *Address::from_number("127.0.0.1", 0), credentials);
  Member member(service, credentials);
  ASSERT_TRUE(member.drive_until([&] { return member.connected; }));
  member.streams.send(Peer{}, {.kind = Message::Kind::join, .worker = 0, .text = "\xff\xfe\n"});
  EXPECT_TRUE(member.drive_until([&] { return !member.closed.empty(); }));
  EXPECT_EQ(service.view().failure, "");
  Member next(service, credentials);
  EXPECT_TRUE(next.drive_until([&] { return next.connected; }));
}

// It would be cut by servers, of which none has come: the launcher ends all the same.
TEST(ViewService, WithoutItsServersAJobEndsWithoutALastSnapshot) {
  const tutti::test::TempFolder folder;
  const Credentials credentials{Token::random(), "test", nullptr};
  auto service = std::make_unique<ViewService>(
      ViewServiceOptions{
          .num_servers = 1, .num_workers = 1, .snapshots = {.folder = folder / "snapshots"}},
      *Address::from_number("127.0.0.1", 0), credentials);
  const auto becomes = [&](const std::function<bool(const ProcessView&)>& so) {
    return service->wait_until([&](const View& view) { return so(view.workers[0]); },
                               Deadline(kPatience));
  };
  std::optional<Member> worker(std::in_place, *service, credentials);
  ASSERT_TRUE(worker->join(0));
  ASSERT_TRUE(becomes([](const ProcessView& its) { return its.alive; }));
  worker.reset();
  ASSERT_TRUE(becomes([](const ProcessView& its) { return !its.ending.empty(); }));
  const auto ended = std::async(std::launch::async, [&] { service.reset(); });
  EXPECT_EQ(ended.wait_for(kPatience), std::future_status::ready);
}

TEST(ViewService, AnswersWhileADiskHangs) {
  const tutti::test::TempFolder folder;
  const Credentials credentials{Token::random(), "test", nullptr};
  ViewService service({.num_servers = 1,
                       .num_workers = 1,
                       .snapshots = {.folder = folder / "s", .every = Millis{1}}},
                      *Address::from_number("127.0.0.1", 0), credentials);
  std::filesystem::remove_all(folder / "s");  // so that the lock is opened again
  tutti::test::HangingOpen hangs("snapshots.lock");
  Member server(service, credentials), worker(service, credentials);
  ASSERT_TRUE(server.join(-1));
  ASSERT_TRUE(worker.join(0));
  ASSERT_TRUE(hangs.wait(Deadline(kPatience)));
  Member late(service, credentials);
  EXPECT_TRUE(late.join(-1));
}

}  // namespace
}  // namespace tutti::ps
