/// Hosts of a test: network namespaces of this machine, joined by a bridge in one of their own.
/// What is sent between them crosses a (virtual) wire that can be cut.
///
///   TestHosts hosts(2);
///   auto out = run_nodes(hosts, 2, "reduce", {});     // a launcher on each, with 2 workers
///
/// Needs root and the program `ip` (Debian: iproute2): why_not() says what is missing.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/support/run_ranks.h"

namespace tutti::test {

class TestHosts {
 public:
  /// Empty when hosts can be made here.
  static std::string why_not();

  explicit TestHosts(int count);
  TestHosts(const TestHosts&) = delete;
  ~TestHosts();

  int count() const noexcept { return count_; }
  std::string address(int host) const;  ///< "10.77.0.1"
  std::string path(int host) const;     ///< of its namespace, for enter_host()

  /// Lets a wire of every host carry so much each way. False where this machine cannot (tbf).
  bool slow_down(int mbit_per_s) const;

  /// Takes the wire of a host away: packets vanish, nobody is told.
  void cut(int host) const;

  /// Runs `work` in a thread that is on a host, and waits for it.
  void on(int host, const std::function<void()>& work) const;

  /// Processes of every host that are still there when `limit` has passed: "host 1: 4711 name".
  std::vector<std::string> left_running(Millis limit) const;

 private:
  std::string name(int host) const;
  const int count_;
};

/// Moves the calling thread, and what it starts, to a host.
void enter_host(const std::string& path);

struct NodesOptions {
  KillPlan kill{};                       ///< `rank`: the node whose launcher is meant
  std::vector<std::string> environment;  ///< extra NAME=value
  std::string wrong_token_on;            ///< number of a node that holds another token
  int nodes = 0;                         ///< the first so many hosts; 0: all of them
  Millis silence{20'000};                ///< after which who says nothing is lost
  Millis limit{60'000};
};

inline constexpr int kRendezvousPort = 29500;  ///< on host 0, of run_nodes()
const std::string& token_of_hosts();           ///< of run_nodes()
const std::string& wrong_token_of_hosts();     ///< of wrong_token_on

/// Runs a launcher on every host, each with `workers` workers of the rank program. The log of an
/// outcome is as run_workers() says.
std::vector<RankOutcome> run_nodes(const TestHosts& hosts, int workers, const std::string& program,
                                   const std::vector<std::string>& arguments,
                                   const NodesOptions& options = {});

}  // namespace tutti::test
