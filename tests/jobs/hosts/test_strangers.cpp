// Jobs over several hosts: a host that is not of the job bothers the ports of one that trains. The
// job is untouched, and every attempt is in its log with the address it came from.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "tutti/cluster/join/join.h"
#include "tutti/cluster/launch/launcher.h"
#include "tutti/net/address.h"
#include "tutti/net/connect.h"

#include "tests/jobs/hosts/hosts_test.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;

constexpr size_t kPortsOfANode = 3;  // of the launcher and two workers
constexpr size_t kRounds = 100;      // of a port scan
constexpr int kStranger = 2;         // number of the host that is not of the job

/// Sums until the file arguments[0] is there, and checks every sum.
RANK_PROGRAM(sum_until_told) {
  const std::filesystem::path& told = rank.arguments.at(0);
  Group world = join(20s);
  const int64_t ranks = world.size();
  for (int64_t step = 0;; ++step) {
    if (step == 100) rank.mark("middle");
    std::vector<int64_t> data(5'000, step + world.rank());
    data[0] = world.rank() == 0 && std::filesystem::exists(told) ? 1 : 0;
    world.all_reduce_now(span_of(std::span(data)), ReduceOp::sum);
    const int64_t expected = ranks * step + ranks * (ranks - 1) / 2;
    for (size_t i = 1; i < data.size(); ++i)
      if (data[i] != expected) throw Error(fmt::format("step {}: {}", step, data[i]));
    if (data[0] > 0) return rank.mark("all sums right");
  }
}

/// A launcher that belongs to no job of host 0, and tries its port. arguments: address of the port,
/// id of its job, its token.
RANK_PROGRAM(launch_stranger) {
  setenv("TUTTI_TOKEN", rank.arguments.at(2).c_str(), 1);
  launch({.nodes = {.node = 1,
                    .num_nodes = 2,
                    .rendezvous = rank.arguments.at(0),
                    .job = rank.arguments.at(1)},
          .command = {"/proc/self/exe"}});
}

/// Every port of a host that is listened at, as the kernel lists them in the calling thread's
/// network namespace.
std::vector<uint16_t> listening_ports() {
  constexpr const char* kListening = "0A";
  std::ifstream table("/proc/thread-self/net/tcp");
  std::vector<uint16_t> ports;
  std::string line;
  std::getline(table, line);  // titles
  while (std::getline(table, line)) {
    std::istringstream words(line);
    std::string number, local, remote, state;
    words >> number >> local >> remote >> state;
    if (state == kListening)
      ports.push_back(
          static_cast<uint16_t>(std::stoi(local.substr(local.find(':') + 1), nullptr, 16)));
  }
  return ports;
}

/// The two hosts of a job with two ranks each, and a third from which `disturb` is done once they
/// train. `disturb` is given the addresses of all ports of the job.
class Strangers : public Hosts {
 protected:
  using Targets = std::vector<Address>;

  std::vector<RankOutcome> train_while(const std::function<void(const Targets&)>& disturb) {
    const TempFolder folder;
    const std::string told = (folder.path() / "end").string();
    const auto act = [&] {
      const Targets targets = targets_of(hosts_);
      EXPECT_EQ(targets.size(), 2 * kPortsOfANode);
      hosts_.on(kStranger, [&] { disturb(targets); });
      std::ofstream(told) << "end";
    };
    auto nodes =
        run_nodes(hosts_, 2, "sum_until_told", {told},
                  {.kill = {.rank = 0, .after = "middle", .signal = 0, .then = act}, .nodes = 2});
    for (const RankOutcome& node : nodes) {
      EXPECT_EQ(node.exit_code, 0) << node.log;
      EXPECT_THAT(lines_after(node.log, "all sums right"), SizeIs(2)) << node.log;
    }
    return nodes;
  }

  static Targets targets_of(const TestHosts& hosts) {
    Targets all;
    for (int h = 0; h < 2; ++h) {
      hosts.on(h, [&] {
        for (const uint16_t port : listening_ports())
          all.push_back(resolve({hosts.address(h), port}, Deadline(5s)).front());
      });
    }
    return all;
  }

  std::string rendezvous() const {
    return fmt::format("{}:{}", hosts_.address(0), kRendezvousPort);
  }

  /// The error with which a second job's launcher ends that tries the rendezvous of the first.
  RankOutcome second_job(const std::string& job, const std::string& token) const {
    RankOutcome outcome;
    const auto start = [&] {
      outcome = run_ranks(1, "launch_stranger", {.arguments = {rendezvous(), job, token}})[0];
    };
    hosts_.on(kStranger, start);
    return outcome;
  }

  const TestHosts hosts_{3};
};

FileDescriptor connected(const Address& to) { return connect_to(to, "a port", Deadline(10s)); }

/// Lines of a log about refused connections; each must say where it came from.
std::vector<std::string> refusals(const RankOutcome& node) {
  return lines_after(node.log, ": refused a connection from ");
}

/// Sends what the other side takes, and waits until it has closed the connection.
void send_until_closed(const FileDescriptor& socket, const std::string& bytes,
                       const Deadline& deadline) {
  send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  pollfd end{socket.get(), POLLIN, 0};
  char got[4096];
  while (poll(&end, 1, static_cast<int>(deadline.left().count())) > 0 &&
         recv(socket.get(), got, sizeof got, 0) > 0) {
  }
  EXPECT_FALSE(deadline.passed()) << "not closed";
}

TEST_F(Strangers, PortScanIsLoggedAndLeavesTheJobAlone) {
  const auto nodes = train_while([](const Targets& targets) {
    for (int round = 1; round < static_cast<int>(kRounds); ++round)
      for (const Address& target : targets) connected(target);
    // Connections are taken in turn: when the last one has been looked at, all have.
    for (const Address& target : targets) {
      const FileDescriptor last = connected(target);
      shutdown(last.get(), SHUT_WR);
      send_until_closed(last, "", Deadline(30s));
    }
  });
  for (const RankOutcome& node : nodes) {
    EXPECT_THAT(refusals(node), Each(HasSubstr(hosts_.address(kStranger)))) << node.log;
    EXPECT_THAT(refusals(node), Each(HasSubstr("a port scan?"))) << node.log;
    EXPECT_FALSE(refusals(node).empty());
    // The log names the first 20 of a port in 10 s and counts the rest.
    size_t all = refusals(node).size();
    for (const std::string& more : lines_after(node.log, ": refused "))
      if (more.find("more connections, the last from 10.77.0.3:") != more.npos)
        all += std::stoul(more);
    EXPECT_EQ(all, kPortsOfANode * kRounds) << node.log;
  }
}

TEST_F(Strangers, RandomBytesAreLoggedAndLeaveTheJobAlone) {
  const auto nodes = train_while([](const Targets& targets) {
    std::mt19937 random(9);
    for (const Address& target : targets) {
      for (const size_t length : {1U, 64U, 65U, 5'000U, 100'000U}) {
        std::string bytes(length, '\0');
        for (char& byte : bytes) byte = static_cast<char>(random());
        send_until_closed(connected(target), bytes, Deadline(30s));
      }
    }
  });
  for (const RankOutcome& node : nodes) {
    EXPECT_THAT(refusals(node), Each(HasSubstr(hosts_.address(kStranger)))) << node.log;
    EXPECT_EQ(refusals(node).size(), 5 * kPortsOfANode) << node.log;
  }
}

TEST_F(Strangers, SlowClientIsLoggedAndLeavesTheJobAlone) {
  const auto nodes = train_while([](const Targets& targets) {
    std::vector<FileDescriptor> sockets;
    std::vector<pollfd> ends;
    for (const Address& target : targets) {
      sockets.push_back(connected(target));
      ends.push_back({sockets.back().get(), POLLIN, 0});
    }
    std::string hello("\x89tutti\r\n\x01", 9);  // as a true one begins
    hello.resize(64);
    size_t sent = 0;
    const Deadline deadline(60s);
    const auto open = [&] {
      return std::count_if(ends.begin(), ends.end(), [](const pollfd& end) { return end.fd >= 0; });
    };
    while (open() > 0 && !deadline.passed()) {
      for (pollfd& end : ends) {
        if (end.revents != 0) end.fd = -1;
        if (end.fd >= 0) send(end.fd, &hello[sent], 1, MSG_NOSIGNAL);
      }
      sent = std::min(sent + 1, hello.size() - 1);
      poll(ends.data(), ends.size(), 500);
    }
    EXPECT_EQ(open(), 0) << "not closed";
  });
  for (const RankOutcome& node : nodes) {
    EXPECT_THAT(refusals(node), Each(HasSubstr(hosts_.address(kStranger)))) << node.log;
    EXPECT_THAT(refusals(node), Each(HasSubstr("did not prove itself within")));
    EXPECT_EQ(refusals(node).size(), kPortsOfANode) << node.log;
  }
}

TEST_F(Strangers, WrongTokenIsTurnedAwayAndLeavesTheJobAlone) {
  RankOutcome stranger;
  const auto nodes =
      train_while([&](const Targets&) { stranger = second_job("test", wrong_token_of_hosts()); });
  EXPECT_EQ(stranger.error_class, "Mismatch") << stranger.log;
  EXPECT_THAT(stranger.error, HasSubstr("token"));
  EXPECT_THAT(refusals(nodes[0]), SizeIs(1)) << nodes[0].log;
  EXPECT_THAT(refusals(nodes[0]), Each(HasSubstr(hosts_.address(kStranger))));
  EXPECT_THAT(refusals(nodes[0]), Each(HasSubstr("does not hold the token of this job")));
}

TEST_F(Strangers, SecondJobWithTheSameTokenIsTurnedAway) {
  RankOutcome stranger;
  const auto nodes =
      train_while([&](const Targets&) { stranger = second_job("other", token_of_hosts()); });
  EXPECT_EQ(stranger.error_class, "Mismatch") << stranger.log;
  EXPECT_THAT(stranger.error, AllOf(HasSubstr("job \"test\""), HasSubstr("job \"other\"")));
  EXPECT_THAT(refusals(nodes[0]), SizeIs(1)) << nodes[0].log;
  EXPECT_THAT(refusals(nodes[0]), Each(HasSubstr(hosts_.address(kStranger))));
  EXPECT_THAT(refusals(nodes[0]), Each(HasSubstr("it is of job \"other\"")));
}

TEST_F(Strangers, SecondJobWithAnotherTokenIsTurnedAway) {
  RankOutcome stranger;
  const auto nodes =
      train_while([&](const Targets&) { stranger = second_job("other", wrong_token_of_hosts()); });
  EXPECT_EQ(stranger.error_class, "Mismatch") << stranger.log;
  EXPECT_THAT(refusals(nodes[0]), SizeIs(1)) << nodes[0].log;
  EXPECT_THAT(refusals(nodes[0]), Each(HasSubstr(hosts_.address(kStranger))));
  EXPECT_THAT(refusals(nodes[0]), Each(HasSubstr("of another job, and holds another token")));
}

/// The same before the job has come together: a node with another token, and the one that waits.
TEST_F(Hosts, NodeWithAnotherTokenIsTurnedAway) {
  const TestHosts hosts(2);
  const auto nodes = run_nodes(hosts, 1, "sum_until_told", {"/"}, {.wrong_token_on = "1"});
  EXPECT_EQ(nodes[1].error_class, "Mismatch") << nodes[1].log;
  EXPECT_THAT(nodes[1].error, HasSubstr("token")) << nodes[1].log;
  EXPECT_THAT(refusals(nodes[0]), Each(HasSubstr(hosts.address(1)))) << nodes[0].log;
  EXPECT_THAT(refusals(nodes[0]), SizeIs(1)) << nodes[0].log;
  EXPECT_EQ(nodes[0].error_class, "Timeout") << nodes[0].log;
}

}  // namespace
}  // namespace tutti::test
