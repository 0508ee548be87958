// A process ends while strangers connect to its port: its exit code is its own.
#include <gmock/gmock.h>

#include <atomic>
#include <memory>
#include <thread>

#include "tutti/base/log.h"
#include "tutti/net/connect.h"
#include "tutti/net/listener.h"

#include "tests/support/run_ranks.h"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;

/// Lives until the end of the process, as what join() makes does.
std::unique_ptr<Listener> listener;

RANK_PROGRAM(end_under_scan) {
  set_log_level(LogLevel::off);
  const Address any = resolve({"127.0.0.1", 0}, Deadline(5s)).front();
  listener = std::make_unique<Listener>(any, Credentials{Token::random(), "job"});
  static std::atomic<int> connections{0};
  for (int t = 0; t < 4; ++t) {
    std::thread([at = listener->address()] {
      while (true) {
        try {
          connect_to(at, "a port", Deadline(5s));
          ++connections;
        } catch (const std::exception&) {
          return;  // the port has gone
        }
      }
    }).detach();
  }
  while (connections < 100) std::this_thread::yield();
}

TEST(Listener, EndsWithItsProcessWhileStrangersConnect) {
  for (const RankOutcome& outcome : run_ranks(40, "end_under_scan"))
    EXPECT_EQ(outcome.exit_code, 0) << "signal " << outcome.signal << "\n" << outcome.log;
}

}  // namespace
}  // namespace tutti::test
