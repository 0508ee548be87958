#include "tests/support/hosts.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <sstream>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/file_descriptor.h"
#include "tutti/cluster/launch/launcher.h"

#include "tests/support/command.h"

namespace tutti::test {
namespace {

void ip(const std::string& arguments) {
  const CommandResult result = run_command({"sh", "-c", "ip " + arguments});
  if (result.exit_code != 0)
    throw Error("ip " + arguments + ": " + result.err + std::to_string(result.exit_code));
}

/// arguments: path of each node's namespace, address of node 0, workers a node, limit of silence in
/// ms, program, and the program's own.
RANK_PROGRAM(launch_node) {
  const auto nodes = static_cast<size_t>(rank.size);
  enter_host(rank.arguments.at(static_cast<size_t>(rank.rank)));
  std::string own;
  for (size_t i = nodes + 4; i < rank.arguments.size(); ++i) own += rank.arguments[i] + "\n";
  const char* other = std::getenv("TUTTI_TEST_WRONG_TOKEN_ON");
  const bool wrong = other != nullptr && std::to_string(rank.rank) == other;
  setenv("TUTTI_TOKEN", (wrong ? wrong_token_of_hosts() : token_of_hosts()).c_str(), 1);
  const LaunchResult result = launch(
      {.num_workers = std::stoi(rank.arguments.at(nodes + 1)),
       .nodes = {.node = rank.rank,
                 .num_nodes = rank.size,
                 .rendezvous = fmt::format("{}:{}", rank.arguments.at(nodes), kRendezvousPort),
                 .job = "test",
                 .limit = std::chrono::seconds(10),
                 .silence = Millis(std::stoi(rank.arguments.at(nodes + 2)))},
       .command = {"/proc/self/exe"},
       .environment = {"TUTTI_TEST_PROGRAM=" + rank.arguments.at(nodes + 3),
                       "TUTTI_TEST_ARGUMENTS=" + own}});
  std::fprintf(stderr, "%s\n", failure_report(result).c_str());
  std::fflush(nullptr);
  std::_Exit(result.exit_code);
}

}  // namespace

std::string TestHosts::why_not() {
  if (geteuid() != 0) return "network namespaces need root";
  if (run_command({"sh", "-c", "command -v ip"}).exit_code != 0)
    return "the program ip is missing (Debian: apt install iproute2)";
  const std::string name = "tutti" + std::to_string(getpid()) + "probe";
  if (run_command({"ip", "netns", "add", name}).exit_code != 0)
    return "this machine allows no network namespaces";
  const CommandResult entered = run_command({"ip", "-n", name, "link", "set", "lo", "up"});
  run_command({"ip", "netns", "del", name});
  return entered.exit_code == 0 ? "" : "no network namespace can be entered: " + entered.err;
}

TestHosts::TestHosts(int count) : count_(count) {
  const std::string hub = name(-1);
  ip("netns add " + hub);
  ip("-n " + hub + " link add bridge type bridge");
  ip("-n " + hub + " link set bridge up");
  for (int h = 0; h < count; ++h) {
    const std::string wire = "wire" + std::to_string(h);
    ip("netns add " + name(h));
    ip("-n " + hub + " link add " + wire + " type veth peer name eth0 netns " + name(h));
    ip("-n " + hub + " link set " + wire + " master bridge up");
    ip("-n " + name(h) + " addr add " + address(h) + "/24 dev eth0");
    ip("-n " + name(h) + " link set eth0 up");
    ip("-n " + name(h) + " link set lo up");
  }
}

TestHosts::~TestHosts() {
  for (int h = -1; h < count_; ++h) run_command({"ip", "netns", "del", name(h)});
}

std::string TestHosts::name(int host) const {
  const std::string end = host < 0 ? "hub" : "host" + std::to_string(host);
  return "tutti" + std::to_string(getpid()) + end;
}

std::string TestHosts::address(int host) const { return "10.77.0." + std::to_string(host + 1); }
std::string TestHosts::path(int host) const { return "/run/netns/" + name(host); }

bool TestHosts::slow_down(int mbit_per_s) const {
  for (int h = 0; h < count_; ++h) {
    const std::string rate = fmt::format(
        "tc -n {} qdisc add dev eth0 root tbf rate {}mbit burst "
        "64kb latency 1s",
        name(h), mbit_per_s);
    if (run_command({"sh", "-c", rate}).exit_code != 0) return false;
  }
  return true;
}

void TestHosts::cut(int host) const {
  ip("-n " + name(-1) + " link set wire" + std::to_string(host) + " nomaster");
}

void TestHosts::on(int host, const std::function<void()>& work) const {
  std::exception_ptr failure;
  std::thread([&] {
    try {
      enter_host(path(host));
      work();
    } catch (...) {
      failure = std::current_exception();
    }
  }).join();
  if (failure) std::rethrow_exception(failure);
}

std::vector<std::string> TestHosts::left_running(Millis limit) const {
  const Deadline deadline(limit);
  std::vector<std::string> left;
  for (int h = 0; h < count_; ++h) {
    std::istringstream pids(run_command({"ip", "netns", "pids", name(h)}).out);
    for (int pid = 0; pids >> pid;) {
      const FileDescriptor process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
      pollfd end{process.get(), POLLIN, 0};
      if (!process || poll(&end, 1, static_cast<int>(deadline.left().count())) > 0) continue;
      const std::string words =
          run_command({"ps", "-o", "pid=,stat=,args=", "-p", std::to_string(pid)}).out;
      left.push_back(fmt::format("host {}: {}", h, words));
    }
  }
  return left;
}

const std::string& token_of_hosts() {
  static const std::string token(64, '7');
  return token;
}

const std::string& wrong_token_of_hosts() {
  static const std::string token(64, '8');
  return token;
}

void enter_host(const std::string& path) {
  const FileDescriptor host(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!host || setns(host.get(), CLONE_NEWNET) != 0)
    throw Error("entering " + path + ": " + errno_words(errno));
}

std::vector<RankOutcome> run_nodes(const TestHosts& hosts, int workers, const std::string& program,
                                   const std::vector<std::string>& arguments,
                                   const NodesOptions& options) {
  std::vector<std::string> all;
  const int nodes = options.nodes > 0 ? options.nodes : hosts.count();
  for (int h = 0; h < nodes; ++h) all.push_back(hosts.path(h));
  all.insert(all.end(), {hosts.address(0), std::to_string(workers),
                         std::to_string(options.silence.count()), program});
  all.insert(all.end(), arguments.begin(), arguments.end());
  std::vector<std::string> environment = options.environment;
  if (!options.wrong_token_on.empty())
    environment.push_back("TUTTI_TEST_WRONG_TOKEN_ON=" + options.wrong_token_on);
  return run_ranks(
      nodes, "launch_node",
      {.kill = options.kill, .limit = options.limit, .arguments = all, .environment = environment});
}

}  // namespace tutti::test
