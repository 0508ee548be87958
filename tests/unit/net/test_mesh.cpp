// Every rank connected to every other, and what is said when one does not come.
#include <poll.h>

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/net/connect_link.h"
#include "tutti/net/mesh.h"

#include "tests/support/expect.h"
#include "tests/support/meeting.h"
#include "tests/support/refusals.h"
#include "tests/unit/net/loopback.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;

const Credentials kCredentials{Token::random(), "job"};

void send_word(Link& link, uint32_t word) {
  const iovec piece{&word, sizeof word};
  ASSERT_EQ(link.write_some({&piece, 1}), static_cast<int64_t>(sizeof word));
}

uint32_t receive_word(Link& link) {
  pollfd entry{link.descriptor(), link.wants_to_read(), 0};
  EXPECT_EQ(poll(&entry, 1, 20'000), 1);
  uint32_t word = 0;
  EXPECT_EQ(link.read_some(&word, sizeof word), static_cast<int64_t>(sizeof word));
  return word;
}

/// A word that says who sent it to whom over which link; stream 0 is the control stream.
uint32_t word_of(int from, int to, int stream) {
  return static_cast<uint32_t>(from * 10'000 + to * 100 + stream);
}

void check_links(Mesh& mesh, int size, int streams) {
  ASSERT_EQ(mesh.peers.size(), static_cast<size_t>(size));
  const auto link = [&](int rank, int stream) -> Link& {
    MeshPeer& peer = mesh.peers[static_cast<size_t>(rank)];
    return stream == 0 ? *peer.control : *peer.data[static_cast<size_t>(stream - 1)];
  };
  for (int rank = 0; rank < size; ++rank) {
    if (rank == mesh.rank) continue;
    for (int s = 0; s <= streams; ++s) send_word(link(rank, s), word_of(mesh.rank, rank, s));
  }
  for (int rank = 0; rank < size; ++rank) {
    if (rank == mesh.rank) continue;
    const MeshPeer& peer = mesh.peers[static_cast<size_t>(rank)];
    EXPECT_THAT(peer.name, AllOf(HasSubstr(fmt::format("rank {} (host ", rank)), HasSubstr("pid "),
                                 HasSubstr("127.0.0.1:")));
    for (int s = 0; s <= streams; ++s) {
      EXPECT_EQ(receive_word(link(rank, s)), word_of(rank, mesh.rank, s));
      EXPECT_EQ(link(rank, s).peer(), peer.name);
    }
  }
}

TEST(Mesh, ConnectsEveryPair) {
  for (const int size : {1, 2, 3, 6}) {
    InProcessMeeting meeting(size);
    run_threads(size, [&](int rank) {
      Listener listener(kLoopback, kCredentials);
      const auto place = meeting.place(rank);
      const Deadline deadline(30s);
      for (const int streams : {1, 3}) {  // two groups over one listener
        const std::string key = "group " + std::to_string(streams);
        const int lanes = streams == 1 ? 1 : 2;
        Mesh mesh = connect_mesh(*place, listener, key, streams, deadline, -1, lanes);
        EXPECT_EQ(mesh.rank, rank);
        EXPECT_TRUE(mesh.peers[static_cast<size_t>(rank)].data.empty());
        check_links(mesh, size, streams * lanes);
      }
    });
  }
}

TEST(Mesh, CrossedGroupsUseOneListenerAtOnce) {
  // Ranks {0, 1, 2} and {2, 1, 0}: two groups with opposite numbers, built by two threads a
  // process.
  InProcessMeeting forward(3), backward(3);
  std::vector<std::unique_ptr<Listener>> listeners;
  for (int i = 0; i < 3; ++i)
    listeners.push_back(std::make_unique<Listener>(kLoopback, kCredentials));
  run_threads(6, [&](int thread) {
    const int process = thread % 3;
    const bool reversed = thread >= 3;
    const int rank = reversed ? 2 - process : process;
    const auto place = (reversed ? backward : forward).place(rank);
    Mesh mesh = connect_mesh(*place, *listeners[static_cast<size_t>(process)],
                             reversed ? "backward" : "forward", 2, Deadline(30s));
    check_links(mesh, 3, 2);
  });
}

TEST(Mesh, NamesTheRankThatDoesNotCome) {
  InProcessMeeting meeting(3);
  std::string message;
  run_threads(3, [&](int rank) {
    Listener listener(kLoopback, kCredentials);
    const auto place = meeting.place(rank);
    if (rank == 2) {  // tells its address and connects to nobody
      place->exchange(
          "mesh/g",
          R"({"number":"10.9.8.7","port":41023,"identity":"x","process":"host n7, pid 5",)"
          R"("streams":2})",
          Deadline(30s));
      place->exchange("end", "", Deadline(30s));
      return;
    }
    const std::string said = message_of<Timeout>(
        [&] { connect_mesh(*place, listener, "g", 2, Deadline(rank == 0 ? 500ms : 700ms)); });
    EXPECT_THAT(said, AllOf(HasSubstr("group \"g\""), HasSubstr(" of 3"),
                            HasSubstr("rank 2 (host n7, pid 5, 10.9.8.7:41023)"),
                            Not(HasSubstr("rank 1 (host"))));
    place->exchange("end", "", Deadline(30s));
  });
}

TEST(Mesh, NamesTheRankWhoseAddressRefuses) {
  InProcessMeeting meeting(2);
  run_threads(2, [&](int rank) {
    const auto place = meeting.place(rank);
    auto listener = std::make_unique<Listener>(kLoopback, kCredentials);
    if (rank == 0) {
      const auto port = listener->address().port();
      listener.reset();
      place->exchange("mesh/g",
                      fmt::format(R"({{"number":"127.0.0.1","port":{},"identity":"x",)"
                                  R"("process":"host n7, pid 5","streams":1}})",
                                  port),
                      Deadline(30s));
      return;
    }
    EXPECT_THAT(
        message_of<PeerLost>([&] { connect_mesh(*place, *listener, "g", 1, Deadline(30s)); }),
        AllOf(HasSubstr("connect, group \"g\", rank 1 of 2"), HasSubstr("rank 0 (127.0.0.1:"),
              HasSubstr("Connection refused")));
  });
}

TEST(Mesh, ARestartedProcessOnAnOldPortIsNotMistaken) {
  Refusals refusals;
  InProcessMeeting meeting(2);
  run_threads(2, [&](int rank) {
    const auto place = meeting.place(rank);
    Listener listener(kLoopback, kCredentials);
    if (rank == 0) {  // tells the card of a process whose port is now this listener's
      place->exchange("mesh/g",
                      fmt::format(R"({{"number":"127.0.0.1","port":{},"identity":"before",)"
                                  R"("process":"host n7, pid 5","streams":1}})",
                                  listener.address().port()),
                      Deadline(30s));
      place->exchange("end", "", Deadline(30s));
      return;
    }
    EXPECT_THAT(
        message_of<Mismatch>([&] { connect_mesh(*place, listener, "g", 1, Deadline(30s)); }),
        HasSubstr("another one has its port now"));
    place->exchange("end", "", Deadline(30s));
  });
}

TEST(Mesh, AConnectionThatEndedBeforeItsRankKnewOfItIsMadeAnew) {
  InProcessMeeting meeting(2);
  run_threads(2, [&](int rank) {
    const auto place = meeting.place(rank);
    Listener listener(kLoopback, kCredentials);
    if (rank == 0) {
      const Mesh mesh = connect_mesh(*place, listener, "g", 1, Deadline(30s));
      EXPECT_EQ(receive_word(*mesh.peers[1].control), 7U);
      place->exchange("end", "", Deadline(30s));
      return;
    }
    const auto told = place->exchange(
        "mesh/g",
        R"({"number":"127.0.0.1","port":1,"identity":"x","process":"host n7, pid 5","streams":1})",
        Deadline(30s));
    const auto card = nlohmann::json::parse(told[0]);
    const Address address = kLoopback.with_port(card.at("port").get<uint16_t>());
    const auto connect = [&](int stream) {
      const Facts facts{.purpose = "mesh", .group = "g", .rank = 1, .stream = stream};
      return connect_link(address, kCredentials, facts, "rank 0", Deadline(30s));
    };
    connect(0).reset();
    const auto control = connect(0);
    const auto data = connect(1);
    send_word(*control, 7);
    place->exchange("end", "", Deadline(30s));
  });
}

TEST(Mesh, UnequalStreamsAreAMismatchOnEveryRank) {
  InProcessMeeting meeting(3);
  run_threads(3, [&](int rank) {
    Listener listener(kLoopback, kCredentials);
    const auto place = meeting.place(rank);
    EXPECT_THAT(message_of<Mismatch>(
                    [&] { connect_mesh(*place, listener, "g", rank == 1 ? 4 : 2, Deadline(30s)); }),
                AllOf(HasSubstr("2"), HasSubstr("4"), HasSubstr("streams a pair")));
  });
}

TEST(Mesh, RefusesUselessNumbersOfStreams) {
  InProcessMeeting meeting(1);
  Listener listener(kLoopback, kCredentials);
  const auto place = meeting.place(0);
  EXPECT_THROW(connect_mesh(*place, listener, "g", 0, Deadline(1s)), UsageError);
  EXPECT_THROW(connect_mesh(*place, listener, "g", kMaxStreams + 1, Deadline(1s)), UsageError);
}

TEST(Mesh, ACardThatIsNoneIsAMismatch) {
  for (const char* card : {"", "{", "[]", R"({"number":"node7","port":1})", R"({"port":99999})"}) {
    InProcessMeeting meeting(2);
    run_threads(2, [&](int rank) {
      Listener listener(kLoopback, kCredentials);
      const auto place = meeting.place(rank);
      if (rank == 0) {
        place->exchange("mesh/g", card, Deadline(30s));
        return;
      }
      EXPECT_THAT(
          message_of<Mismatch>([&] { connect_mesh(*place, listener, "g", 1, Deadline(30s)); }),
          HasSubstr("what rank 0 told"));
    });
  }
}

TEST(InProcessMeeting, ServesAndFailsAsARealOne) {
  InProcessMeeting meeting(2);
  run_threads(2, [&](int rank) {
    const auto place = meeting.place(rank);
    EXPECT_EQ(place->exchange("k", std::to_string(rank), Deadline(20s)),
              (std::vector<std::string>{"0", "1"}));
  });
  EXPECT_THAT(message_of<Timeout>([&] { meeting.place(0)->exchange("late", "", Deadline(1ms)); }),
              HasSubstr("rank 1"));
  meeting.lose(1);
  EXPECT_THAT(message_of<PeerLost>([&] { meeting.place(0)->exchange("lost", "", Deadline(20s)); }),
              HasSubstr("rank 1 is lost"));
}

}  // namespace
}  // namespace tutti
