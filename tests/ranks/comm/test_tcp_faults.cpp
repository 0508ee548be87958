// What ends an operation of the tcp engine alone other than success, with members on threads (the
// rest is in test_faults.cpp): disagreement, silence, bytes that are no frame, half-open
// connections.
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <thread>

#include "tutti/comm/tcp/frame.h"

#include "tests/ranks/comm/calls.h"
#include "tests/support/comm.h"
#include "tests/support/expect.h"
#include "tests/support/tls_links.h"

namespace tutti {
namespace {

// One frame, many small ones, and more than the sockets hold.
constexpr int64_t kLengths[] = {3, 20'000, 4'000'000};

TEST(TcpMismatch, NamesTwoCallsOnEveryRankThatWaits) {
  struct Disagreement {
    std::string name;
    GroupCall common, odd;
    std::string first, second;
  };
  const Disagreement table[] = {
      {"length", all_reduce(10), all_reduce(11), "all_reduce (sum) of 10 float32",
       "all_reduce (sum) of 11 float32"},
      {"dtype", all_reduce(10), all_reduce(10, DType::int32), "of 10 float32", "of 10 int32"},
      {"operation", all_reduce(10), all_reduce(10, DType::float32, ReduceOp::max),
       "all_reduce (sum)", "all_reduce (max)"},
      {"collective", all_reduce(10), broadcast(10, 1), "all_reduce (sum) of 10 float32",
       "broadcast of 10 float32 from rank 1"},
      {"algorithm", all_reduce(3), all_reduce(1'000'000), "of 3 float32", "of 1000000 float32"},
      {"barrier", kBarrier, all_reduce(10), "called barrier", "all_reduce (sum) of 10 float32"},
      {"nothing", kBarrier, all_reduce(0), "called barrier", "all_reduce (sum) of 0 float32"},
  };
  for (const auto& row : table) {
    const auto errors = errors_of(make_engines("tcp", 3), [&](Group group) {
      group.barrier();
      group.rank() == 1 ? row.odd(group) : row.common(group);
      group.barrier();  // who only had to send learns of it here
    });
    for (const std::string& error : errors)
      EXPECT_THAT(error, AllOf(StartsWith("Mismatch: "), HasSubstr("ranks disagree"),
                               HasSubstr("every rank must make the same calls")))
          << row.name;
    EXPECT_THAT(errors[0], AllOf(HasSubstr(row.first), HasSubstr(row.second))) << row.name;
  }
}

TEST(TcpMismatch, OfCountsAndOfOptions) {
  const auto counts = errors_of(make_engines("tcp", 2), [](Group group) {
    std::vector<float> mine(6), all(10);
    const std::vector<int64_t> counts =
        group.rank() == 0 ? std::vector<int64_t>{4, 6} : std::vector<int64_t>{5, 5};
    const MemorySpan input{mine.data(), counts[group.rank()], DType::float32};
    group.all_gather(input, span_of(std::span(all)), counts).wait();
  });
  EXPECT_THAT(counts, Each(AllOf(StartsWith("Mismatch: all_gather #1"),
                                 HasSubstr("counts must be the same"))));

  auto links = tcp_links(2);
  const auto first = make_tcp(std::move(links[0]), {.chunk_bytes = 4096});
  const auto second = make_tcp(std::move(links[1]), {.chunk_bytes = 8192});
  EXPECT_THAT(errors_of({first, second}, [](Group group) { group.barrier(); }),
              Each(AllOf(StartsWith("Mismatch: barrier #1"), HasSubstr("different options"))));
}

TEST(TcpSilence, OfAMessageNamesItsSender) {
  std::atomic<bool> over{false};
  const auto errors = errors_of(make_engines("tcp", 3), [&](Group group) {
    std::vector<float> data(10);
    if (group.rank() != 0) {
      while (!over) std::this_thread::yield();
      return;
    }
    const auto end = std::shared_ptr<void>(nullptr, [&](void*) { over = true; });
    group.recv(span_of(std::span(data)), 2, 5, Millis{40}).wait();
  });
  EXPECT_THAT(errors[0], AllOf(StartsWith("Timeout: recv #1, rank 0 of 3"),
                               HasSubstr("silent: rank 2: it has called nothing yet")));
}

// Rank 1 enters and waits for a message that never comes: it answers, so rank 0 does not blame it
// for being silent, but says where it is.
TEST(TcpSilence, TellsWhoWaitsElsewhere) {
  const auto errors = errors_of(make_engines("tcp", 2), [&](Group group) {
    std::vector<float> data(10);
    if (group.rank() == 0)
      group.all_reduce(span_of(std::span(data)), ReduceOp::sum, Millis{100}).wait();
    else
      group.recv(span_of(std::span(data)), 0).wait();
  });
  EXPECT_THAT(errors,
              Each(AllOf(StartsWith("Timeout: "), HasSubstr("rank 1: it has called nothing"),
                         Not(HasSubstr("does not answer")))));
}

// In the middle of long messages: their frames are half written when the group fails, and the
// buffers are freed at once. Address and thread sanitizer watch this one.
void abort_in_the_middle(const std::function<std::vector<std::shared_ptr<Engine>>()>& make) {
  for (uint32_t round = 0; round < 12; ++round) {
    const auto members = make();
    std::atomic<int> entered{0};
    std::thread outside([&] {
      while (entered < 3) std::this_thread::yield();
      for (uint32_t i = 0; i < round * 25; ++i) std::this_thread::yield();
      members[round % 3]->abort(FailureKind::aborted, "enough");
    });
    const auto errors = errors_of(members, [&](Group group) {
      const int next = (group.rank() + 1) % 3, previous = (group.rank() + 2) % 3;
      while (true) {
        std::vector<float> out(500'000, 1.f), in(500'000), sum(200'000, 1.f);
        Work send = group.send(span_of(std::span(out)), next);
        Work reduce = group.all_reduce(span_of(std::span(sum)), ReduceOp::sum);
        Work recv = group.recv(span_of(std::span(in)), previous);
        ++entered;
        send.wait();
        recv.wait();
        reduce.wait();
      }
    });
    outside.join();
    EXPECT_THAT(errors, Each(HasSubstr("enough")));
  }
}

TEST(TcpAbort, InTheMiddleOfMessagesAndCollectives) {
  abort_in_the_middle([] { return make_engines("tcp", 3); });
}

TEST(TcpAbort, InTheMiddleOverTls) {
  const TlsLinks tls;
  abort_in_the_middle([&] {
    std::vector<std::shared_ptr<Engine>> engines;
    for (TcpLinks& links : tcp_links(3, 1, [&](int a, int b) { return tls.link_between(a, b); }))
      engines.push_back(make_tcp(std::move(links)));
    return engines;
  });
}

// A message that was sent before its sender left is still received.
TEST(TcpLeaving, LeavesItsMessages) {
  auto members = make_engines("tcp loopback", 2);
  std::vector<int> data = {1, 2, 3}, room(3);
  Group(members[0]).send(span_of(std::span(data)), 1).wait();
  members[0].reset();
  Group group(members[1]);
  group.recv(span_of(std::span(room)), 0).wait();
  EXPECT_EQ(room, data);
  EXPECT_THAT(test::words_of(run_members(
                  {members[1]}, [&](Group g) { g.recv(span_of(std::span(room)), 0).wait(); })[0]),
              AllOf(StartsWith("PeerLost: recv #2"), HasSubstr("rank 0 left the group")));
}

/// A group of two of which this test is rank 1, with nothing but sockets: data and control.
struct ByHand {
  std::shared_ptr<Engine> engine;  ///< rank 0
  FileDescriptor data, control;    ///< rank 1's ends
};

ByHand by_hand() {
  ByHand hand;
  auto data = test::tcp_pair();
  auto control = test::tcp_pair();
  TcpLinks links{.rank = 0, .size = 2, .peers = {}};
  links.peers.resize(2);
  links.peers[1].data.push_back(make_plain_link(std::move(data.first), "rank 1 (a test)"));
  links.peers[1].control = make_plain_link(std::move(control.first), "rank 1 (a test)");
  hand.engine = make_tcp(std::move(links));
  hand.data = std::move(data.second);
  hand.control = std::move(control.second);
  return hand;
}

TEST(TcpGarbage, OnEitherLinkNamesTheRankAndWhatWasGot) {
  for (bool on_control : {false, true})
    for (const std::string& bytes :
         {std::string(4096, '\0'), std::string(4096, '\xff'),
          std::string("GET / HTTP/1.1\r\nHost: tutti\r\n\r\n          ")}) {
      ByHand hand = by_hand();
      const int socket = on_control ? hand.control.get() : hand.data.get();
      ASSERT_EQ(::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(bytes.size()));
      const auto errors = errors_of({hand.engine}, all_reduce(100));
      EXPECT_THAT(errors[0], AllOf(StartsWith("PeerLost: all_reduce #1, rank 0 of 2"),
                                   HasSubstr("rank 1 (a test) sent what is no frame"),
                                   HasSubstr("a frame begins with 0x")));
    }
}

TEST(TcpGarbage, LengthsAreBoundedBeforeAnythingIsAllocated) {
  ByHand hand = by_hand();
  std::byte header[detail::tcp::kHeaderBytes];
  detail::tcp::encode_header({.kind = detail::tcp::FrameKind::message, .length = uint64_t{1} << 60},
                             header);
  ASSERT_EQ(::send(hand.control.get(), header, sizeof header, MSG_NOSIGNAL),
            static_cast<ssize_t>(sizeof header));
  EXPECT_THAT(errors_of({hand.engine}, all_reduce(100))[0],
              HasSubstr("has 1152921504606846976 bytes; expected at most 65536"));
}

TEST(TcpGarbage, APartOfAMessageThatWasNotAskedFor) {
  ByHand hand = by_hand();
  std::byte header[detail::tcp::kHeaderBytes];
  detail::tcp::encode_header({.kind = detail::tcp::FrameKind::part, .number = 9, .length = 100},
                             header);
  ASSERT_EQ(::send(hand.control.get(), header, sizeof header, MSG_NOSIGNAL),
            static_cast<ssize_t>(sizeof header));
  EXPECT_THAT(errors_of({hand.engine}, all_reduce(100))[0],
              HasSubstr("100 bytes of a message that was not asked for"));
}

TEST(TcpGarbage, InATlsStreamEndsTheGroup) {
  const TlsLinks tls;
  TlsLinks::Pair data = tls.make(0, 1), control = tls.make(0, 1);
  TcpLinks links{.rank = 0, .size = 2, .peers = {}};
  links.peers.resize(2);
  links.peers[1].data.push_back(std::move(data.near));
  links.peers[1].control = std::move(control.near);
  const auto engine = make_tcp(std::move(links));
  const std::string garbage(100, '\x17');
  ASSERT_EQ(::send(data.wire.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL), 100);
  for (int call = 0; call < 2; ++call)  // the group has failed, not the call alone
    EXPECT_THAT(errors_of({engine}, all_reduce(100))[0],
                AllOf(StartsWith("PeerLost: all_reduce #"), HasSubstr("rank 0 of 2"),
                      HasSubstr("what came from rank 1 was changed on the way")));
}

// The data stream closes and the control link stays open, as when one connection is cut.
TEST(TcpClosed, OneStreamOfSeveralEndsTheGroup) {
  for (int64_t n : kLengths) {
    ByHand hand = by_hand();
    hand.data.reset();
    EXPECT_THAT(errors_of({hand.engine}, all_reduce(n))[0],
                AllOf(StartsWith("PeerLost: all_reduce #1"), HasSubstr("rank 1 (a test)"),
                      HasSubstr("look first at the last lines of its log")));
  }
}

TEST(TcpClosed, ControlLinkEndsTheGroup) {
  ByHand hand = by_hand();
  hand.control.reset();
  EXPECT_THAT(errors_of({hand.engine}, all_reduce(100))[0],
              AllOf(StartsWith("PeerLost: all_reduce #1"), HasSubstr("rank 1 (a test)")));
}

// Nobody reads and nothing closes: a half-open connection. Only the limit ends it.
TEST(TcpClosed, HalfOpenEndsAtTheLimit) {
  for (int64_t n : kLengths) {
    ByHand hand = by_hand();
    const auto errors = errors_of({hand.engine}, [&](Group group) {
      std::vector<float> data(n);
      group.all_reduce(span_of(std::span(data)), ReduceOp::sum, Millis{50}).wait();
    });
    EXPECT_THAT(errors[0], AllOf(StartsWith("Timeout: all_reduce #1, rank 0 of 2"),
                                 HasSubstr("silent: rank 1 (a test): it has called nothing yet, "
                                           "and it does not answer")));
  }
}

TEST(TcpLinksCheck, RefusesWhatDoesNotFit) {
  const auto error_of = [](TcpLinks links, TcpOptions options) {
    return message_of<UsageError>([&] { (void)make_tcp(std::move(links), std::move(options)); });
  };
  EXPECT_THAT(error_of(std::move(tcp_links(3)[1]), {.shape = ReductionShape::flat(4)}),
              HasSubstr("reduction shape 4 has 4 ranks"));
  TcpLinks links = std::move(tcp_links(3, 2)[1]);
  links.peers[2].data.pop_back();
  EXPECT_THAT(error_of(std::move(links), {}), HasSubstr("1 data links to rank 2"));
  links = std::move(tcp_links(3, 2)[1]);
  links.lanes = 3;
  EXPECT_THAT(error_of(std::move(links), {}), HasSubstr("expected a multiple of 3 lanes"));
  links = std::move(tcp_links(3)[1]);
  links.peers[0].control.reset();
  EXPECT_THAT(error_of(std::move(links), {}), HasSubstr("no control link to rank 0"));
  EXPECT_THAT(error_of({.rank = 3, .size = 3, .peers = {}}, {}), HasSubstr("expected a rank"));
  EXPECT_THAT(error_of(std::move(tcp_links(2)[0]), {.chunk_bytes = 10}),
              HasSubstr("expected 4096 or more"));
}

TEST(TcpLanes, AreFewerWhereThereAreManyLinksAndOneOfManyRanks) {
  const std::array<std::array<int, 3>, 7> table{{// ranks, streams, lanes
                                                 {2, 1, 4},
                                                 {4, 4, 4},
                                                 {4, 6, 2},
                                                 {5, 1, 1},
                                                 {2, 16, 2},
                                                 {2, 64, 1},
                                                 {1'000, 8, 1}}};
  for (const auto& [ranks, streams, lanes] : table)
    EXPECT_EQ(tcp_lanes(ranks, streams), lanes) << ranks << " ranks, " << streams << " streams";
}

TEST(TcpAllocate, MembersShareNoMemory) {
  const auto errors =
      errors_of(make_engines("tcp", 2), [](Group group) { (void)group.allocate(100); });
  EXPECT_THAT(errors, Each(AllOf(StartsWith("UsageError: allocate, rank "),
                                 HasSubstr("members of a group of engine \"tcp\" share no"))));
}

}  // namespace
}  // namespace tutti
