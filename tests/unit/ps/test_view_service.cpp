// The view service over real connections: what its members do ends them, and never the launcher.
#include <gmock/gmock.h>

#include <future>
#include <map>
#include <optional>

#include "tutti/ps/server/view_service.h"
#include "tutti/ps/wire/streams.h"

#include "tests/support/failing_open.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/ps/begun_cut.h"

namespace tutti::ps {
namespace {

using ::testing::HasSubstr;
using testing::kPatience;
using Kind = Message::Kind;

// One connection to the service, driven by the test.
struct Member {
  Member(const ViewService& service, const Credentials& credentials)
      : streams(std::make_shared<SharedHeap>(), credentials,
                {.message =
                     [this](Peer, const Message& message) {
                       answered = true;
                       heard[message.kind] = message;
                     },
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
  bool join(int worker, int training = 0) {
    say({.kind = Kind::join,
         .worker = worker,
         .index = training,
         .sequence = worker,
         .text = "it\n"});
    return drive_until([&] { return answered; });
  }
  bool join_as_server(int number, int training = 0) {
    say({.kind = Kind::join, .worker = -1, .index = training, .sequence = number, .text = "s\n"});
    return hears(Kind::joined);
  }
  void say(const Message& message) {
    if (!drive_until([&] { return connected; })) return;
    streams.send(Peer{}, message);
    streams.flush(Peer{});
  }
  bool hears(Kind kind) {
    return drive_until([&] { return heard.contains(kind); });
  }
  bool sees(const std::function<bool(const View&)>& so) {
    return drive_until([&] {
      const auto told = heard.find(Kind::view);
      return told != heard.end() && so(view_from(told->second.text));
    });
  }

  std::map<Kind, Message> heard;  // the last of each
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

class Trainings : public ::testing::Test {
 protected:
  // Servers 0 and 1 and worker 0 of one are there.
  void SetUp() override {
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(servers.emplace_back(member())->join_as_server(i));
    ASSERT_TRUE(worker->join(0));
    ASSERT_TRUE(worker->sees([](const View& view) { return view.number > 0; }));
  }
  std::unique_ptr<Member> member() { return std::make_unique<Member>(service, credentials); }
  void finish_first() {
    worker->say({.kind = Kind::finished});
    worker.reset();
    ASSERT_TRUE(servers[0]->hears(Kind::over));
  }

  const Credentials credentials{Token::random(), "test", nullptr};
  ViewService service{
      {.num_servers = 2, .num_workers = 1}, *Address::from_number("127.0.0.1", 0), credentials};
  std::vector<std::unique_ptr<Member>> servers;
  std::unique_ptr<Member> worker = member();
};

TEST_F(Trainings, BeginWithTheFirstWorkerThatComes) {
  const auto later = member();
  ASSERT_TRUE(later->join(0, 1));
  ASSERT_TRUE(later->hears(Kind::joined));
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(servers[i]->hears(Kind::also));
    EXPECT_EQ(servers[i]->heard[Kind::also].index, 1);
    EXPECT_EQ(servers[i]->heard[Kind::also].sequence, i);
  }
  const auto first = member(), second = member();
  ASSERT_TRUE(first->join_as_server(0, 1));
  ASSERT_TRUE(second->join_as_server(1, 1));
  EXPECT_TRUE(later->sees([](const View& view) { return view.number > 0; }));
}

TEST_F(Trainings, EndEachForItself) {
  const auto later = member();
  ASSERT_TRUE(later->join(0, 1));
  const auto first = member();
  ASSERT_TRUE(first->join_as_server(0, 1));
  finish_first();
  const auto second = member();
  ASSERT_TRUE(second->join_as_server(1, 1));
  later->say({.kind = Kind::finished});
  later->streams.drop(Peer{});
  EXPECT_TRUE(first->hears(Kind::finished));
  EXPECT_EQ(first->heard[Kind::finished].text, "");
  EXPECT_EQ(servers[0]->heard.count(Kind::finished), 0u);
}

TEST_F(Trainings, TakeNoWorkerOnceTheyAreOver) {
  finish_first();
  const auto late = member();
  ASSERT_TRUE(late->join(0));
  ASSERT_TRUE(late->hears(Kind::refused));
  EXPECT_THAT(late->heard[Kind::refused].text,
              HasSubstr("worker 0 comes to training 0 of this job, which is over"));
}

TEST_F(Trainings, AServerThatComesLateHearsOfThoseThatGoOn) {
  const auto later = member();
  ASSERT_TRUE(later->join(0, 1));
  finish_first();
  const auto spare = member();
  ASSERT_TRUE(spare->join_as_server(-1));
  EXPECT_TRUE(spare->hears(Kind::over));
  ASSERT_TRUE(spare->hears(Kind::also));
  EXPECT_EQ(spare->heard[Kind::also].sequence, -1);
}

TEST_F(Trainings, GoOnWithoutAServerThatIsLostBeforeItCame) {
  const auto later = member();
  ASSERT_TRUE(later->join(0, 1));
  const auto first = member();
  ASSERT_TRUE(first->join_as_server(0, 1));
  servers[1].reset();  // its process, with all its connections
  EXPECT_TRUE(later->sees([](const View& view) {
    return view.number > 0 && view.partitions[1].primary == 0 && !view.servers[1].alive;
  }));
}

TEST_F(Trainings, BeginWithoutAServerThatWasLostInAnother) {
  servers[1].reset();
  ASSERT_TRUE(worker->sees([](const View& view) { return view.partitions[1].primary == 0; }));
  const auto later = member();
  ASSERT_TRUE(later->join(0, 1));
  const auto first = member();
  ASSERT_TRUE(first->join_as_server(0, 1));
  EXPECT_TRUE(later->sees([](const View& view) { return view.number > 0; }));
}

TEST_F(Trainings, CannotBeSkipped) {
  const auto hasty = member();
  hasty->say({.kind = Kind::join, .worker = 0, .index = 7, .text = "it\n"});
  ASSERT_TRUE(hasty->hears(Kind::refused));
  EXPECT_THAT(hasty->heard[Kind::refused].text,
              HasSubstr("worker 0 comes to training 7; there are 1 workers, and 1 trainings"));
  const auto stranger = member();
  ASSERT_TRUE(stranger->join(5, 1));
  EXPECT_TRUE(stranger->hears(Kind::refused));
  const auto server = member();
  server->say({.kind = Kind::join, .worker = -1, .index = 1, .text = "s\n"});
  EXPECT_TRUE(server->drive_until([&] { return !server->closed.empty(); }));
  EXPECT_EQ(service.num_trainings(), 1);
}

// Its launcher says so: nobody else knows of it.
TEST_F(Trainings, BeginWithoutAWorkerThatEndedBetweenThem) {
  finish_first();
  service.lose_worker(0, "was killed by SIGKILL");
  const auto other = member();
  ASSERT_TRUE(other->join(0, 1));  // as if it were another's
  ASSERT_TRUE(other->hears(Kind::view));
  EXPECT_TRUE(other->sees([](const View& view) { return view.workers[0].alive; }));
}

// It would be the coordinator's word that all is over.
TEST_F(Trainings, TheGoodbyeOfARefusedWorkerIsItsOwn) {
  const auto twin = member();
  ASSERT_TRUE(twin->join(0));
  ASSERT_TRUE(twin->hears(Kind::refused));
  twin->say({.kind = Kind::finished});
  const auto looks = member();
  looks->say({.kind = Kind::meet, .text = "127.0.0.1:1"});
  ASSERT_TRUE(looks->drive_until([&] { return looks->answered; }));
  EXPECT_EQ(looks->heard.count(Kind::finished), 0u);
}

TEST(ViewService, SnapshotsAreOfOneTraining) {
  const tutti::test::TempFolder folder;
  const Credentials credentials{Token::random(), "test", nullptr};
  ViewService service(
      {.num_servers = 1, .num_workers = 1, .snapshots = {.folder = folder / "snapshots"}},
      *Address::from_number("127.0.0.1", 0), credentials);
  Member server(service, credentials), worker(service, credentials), later(service, credentials);
  ASSERT_TRUE(server.join_as_server(0));
  ASSERT_TRUE(worker.join(0));
  ASSERT_TRUE(later.join(0, 1));
  ASSERT_TRUE(later.hears(Kind::refused));
  EXPECT_THAT(later.heard[Kind::refused].text,
              HasSubstr("snapshots are of jobs with one training"));
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

// One that recorded nothing, or followed another order, would be told by nothing.
TEST(ViewService, LetsInWhoDoesTheSameWithTheOrderOfUpdates) {
  const Credentials credentials{Token::random(), "test", nullptr};
  std::vector<std::unique_ptr<Member>> stay;
  const auto refusal = [&](const ViewService& service, int worker, const std::string& order) {
    Member& member = *stay.emplace_back(std::make_unique<Member>(service, credentials));
    member.say({.kind = Kind::join,
                .worker = worker,
                .sequence = worker < 0 ? 0 : worker,
                .text = "it\nhere \n" + order});
    // A view may come first.
    EXPECT_TRUE(member.drive_until([&] {
      return member.heard.contains(Kind::refused) || member.heard.contains(Kind::joined);
    }));
    return member.heard.contains(Kind::refused) ? member.heard.at(Kind::refused).text
                                                : std::string();
  };
  const std::string replays = "--replay-order with sha256 ab";
  const auto service_with = [&](std::optional<std::string> order) {
    return std::make_unique<ViewService>(
        ViewServiceOptions{.num_servers = 1, .num_workers = 1, .order = std::move(order)},
        *Address::from_number("127.0.0.1", 0), credentials);
  };
  const auto replaying = service_with(replays);
  EXPECT_THAT(refusal(*replaying, -1, ""),
              HasSubstr("has neither flag, and its job has --replay-order with sha256 ab"));
  EXPECT_THAT(refusal(*replaying, -1, "--record-order"), HasSubstr("has --record-order, and"));
  EXPECT_THAT(refusal(*replaying, 0, "--replay-order with sha256 cd"), HasSubstr("worker 0 has"));
  EXPECT_EQ(refusal(*replaying, -1, replays), "");
  const auto recording = service_with("--record-order");
  EXPECT_THAT(refusal(*recording, -1, ""), HasSubstr("has neither flag"));
  EXPECT_EQ(refusal(*recording, -1, "--record-order"), "");
  EXPECT_EQ(refusal(*recording, 0, ""), "");
  const auto plain = service_with("");
  EXPECT_THAT(refusal(*plain, -1, "--record-order"), HasSubstr("and its job has neither flag"));
  const auto first_says = service_with(std::nullopt);
  EXPECT_EQ(refusal(*first_says, 0, replays), "");
  EXPECT_EQ(refusal(*first_says, -1, replays), "");
  EXPECT_THAT(refusal(*first_says, 0, ""), HasSubstr("worker 0 has neither flag"));
}

}  // namespace
}  // namespace tutti::ps
