// Ranks that find out which of them share a host. Threads in network namespaces of their own stand
// for hosts: a Unix socket without a name does not cross namespaces.
#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/file_descriptor.h"
#include "tutti/net/host_meeting.h"

#include "tests/support/expect.h"
#include "tests/support/meeting.h"
#include "tests/support/refusals.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;

ino_t memory_of(const SharedFile& file) {
  struct stat facts{};
  EXPECT_EQ(fstat(file.descriptor(), &facts), 0);
  return facts.st_ino;
}

TEST(HostMeeting, RanksOfOneHostShareMemory) {
  const Token token = Token::random();
  for (const int size : {1, 2, 5}) {
    InProcessMeeting meeting(size);
    std::vector<HostMeeting> met(static_cast<size_t>(size));
    run_threads(size, [&](int rank) {
      const auto place = meeting.place(rank);
      met[static_cast<size_t>(rank)] = meet_on_host(*place, "world", token, Deadline(30s));
    });
    ASSERT_TRUE(met[0].leads);
    EXPECT_EQ(met[0].shared.size_bytes(), 0);
    ASSERT_TRUE(met[0].shared.reserve(0, kPageBytes));
    for (int rank = 0; rank < size; ++rank) {
      const HostMeeting& mine = met[static_cast<size_t>(rank)];
      EXPECT_EQ(mine.host_of_rank, std::vector<int>(static_cast<size_t>(size), 0));
      EXPECT_EQ(mine.ranks_here.size(), static_cast<size_t>(size));
      EXPECT_EQ(mine.leads, rank == 0);
      EXPECT_EQ(mine.shared.size_bytes(), kPageBytes) << "what the leader sized, all see";
      EXPECT_EQ(memory_of(mine.shared), memory_of(met[0].shared));
      EXPECT_NE(fcntl(mine.shared.descriptor(), F_GETFD) & FD_CLOEXEC, 0);
    }
  }
}

TEST(HostMeeting, TwoMeetingsHaveMemoryOfTheirOwn) {
  const Token token = Token::random();
  InProcessMeeting meeting(2);
  run_threads(2, [&](int rank) {
    const auto place = meeting.place(rank);
    const HostMeeting one = meet_on_host(*place, "one", token, Deadline(30s));
    const HostMeeting two = meet_on_host(*place, "two", token, Deadline(30s));
    EXPECT_NE(memory_of(one.shared), memory_of(two.shared));
  });
}

TEST(HostMeeting, AnotherTokenIsNamedAndGetsNothing) {
  Refusals refusals;
  InProcessMeeting meeting(2);
  run_threads(2, [&](int rank) {
    const auto place = meeting.place(rank);
    const Token token = Token::random();  // each its own
    if (rank == 0) {
      EXPECT_THROW(meet_on_host(*place, "world", token, Deadline(500ms)), Timeout);
    } else {
      EXPECT_THAT(
          message_of<Mismatch>([&] { meet_on_host(*place, "world", token, Deadline(30s)); }),
          HasSubstr(
              "rank 0 (on this host): it turned this process away at the proof of the token"));
    }
  });
  EXPECT_THAT(refusals.wait_for("does not hold the token", Deadline(10s)),
              HasSubstr("process " + std::to_string(getpid())));
}

TEST(HostMeeting, ATextThatIsNoSocketIsAMismatch) {
  InProcessMeeting meeting(2);
  run_threads(2, [&](int rank) {
    const auto place = meeting.place(rank);
    if (rank == 0) {
      place->exchange("host/world/socket", std::string(5000, 'x'), Deadline(30s));
      return;
    }
    EXPECT_THAT(message_of<Mismatch>(
                    [&] { meet_on_host(*place, "world", Token::random(), Deadline(30s)); }),
                HasSubstr("rank 0"));
  });
}

TEST(HostMeeting, NamespacesAreHosts) {
  // Ranks 0, 2 and 3 stay; 1 and 4 share a namespace; 5 has one of its own.
  const Token token = Token::random();
  InProcessMeeting meeting(6);
  std::vector<HostMeeting> met(6);
  std::atomic<int> refused{0};
  FileDescriptor shared_namespace;
  run_threads(6, [&](int rank) {
    const auto place = meeting.place(rank);
    if (rank == 1 || rank == 5) refused += unshare(CLONE_NEWNET) == 0 ? 0 : 1;
    if (rank == 1) shared_namespace.reset(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
    place->exchange("namespaces", "", Deadline(30s));
    if (refused > 0) return;
    if (rank == 4) refused += setns(shared_namespace.get(), CLONE_NEWNET) == 0 ? 0 : 1;
    met[static_cast<size_t>(rank)] = meet_on_host(*place, "world", token, Deadline(30s));
  });
  if (refused > 0) GTEST_SKIP() << "network namespaces need root";
  for (const HostMeeting& mine : met) EXPECT_THAT(mine.host_of_rank, ElementsAre(0, 1, 0, 0, 1, 2));
  EXPECT_THAT(met[3].ranks_here, ElementsAre(0, 2, 3));
  EXPECT_THAT(met[4].ranks_here, ElementsAre(1, 4));
  EXPECT_THAT(met[5].ranks_here, ElementsAre(5));
  EXPECT_EQ(memory_of(met[0].shared), memory_of(met[3].shared));
  EXPECT_EQ(memory_of(met[1].shared), memory_of(met[4].shared));
  EXPECT_NE(memory_of(met[1].shared), memory_of(met[0].shared));
  for (const int leader : {0, 1, 5}) EXPECT_TRUE(met[static_cast<size_t>(leader)].leads);
  for (const int other : {2, 3, 4}) EXPECT_FALSE(met[static_cast<size_t>(other)].leads);
}

}  // namespace
}  // namespace tutti
