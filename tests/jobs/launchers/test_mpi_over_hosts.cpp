// mpirun's ranks on several hosts: MPI moves their data.
#include <cstdio>
#include <cstdlib>

#include "tutti/base/error.h"
#include "tutti/cluster/join/join.h"
#include "tutti/comm/engine/engine_counts.h"
#include "tutti/comm/mpi/mpi.h"

#include "tests/jobs/hosts/hosts_test.h"
#include "tests/support/command.h"
#include "tests/support/mpirun.h"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// MPI comes up before the host is entered, whose network does not reach mpirun.
RANK_PROGRAM(sum_under_mpirun) {
  const auto place = make_mpi_meeting_place(20s);
  enter_host(variable(place->rank() < 2 ? "TUTTI_TEST_FIRST_HOST" : "TUTTI_TEST_SECOND_HOST"));
  Group world = join_replicas(1, {.limit = 20s, .engine = rank.arguments.at(0)}).front();
  const bool right = sum_is_right(world, 10'001);
  std::string ran;
  for (const EngineCount& one : engine_counts())
    if (one.collective == Collective::all_reduce && one.bytes == 4 * 10'001) ran += one.engine;
  std::printf("rank %d engine %s shape %s sum %s ran %s\n", world.rank(),
              std::string(world.engine().name()).c_str(),
              world.reduction_shape().to_string().c_str(), right ? "right" : "WRONG", ran.c_str());
}

/// What is logged, when four ranks on two hosts ask for `asked` and get `engine`.
std::string sum_by(const std::string& asked, const std::string& engine) {
  const TestHosts hosts(2);
  std::vector<std::string> environment = launcher_settings();
  environment.insert(environment.end(),
                     {"TUTTI_TEST_PROGRAM=sum_under_mpirun", "TUTTI_TEST_ARGUMENTS=" + asked,
                      "TUTTI_LOG=info", "TUTTI_TEST_FIRST_HOST=" + hosts.path(0),
                      "TUTTI_TEST_SECOND_HOST=" + hosts.path(1), "TUTTI_TOKEN=" + token_of_hosts(),
                      fmt::format("TUTTI_RENDEZVOUS={}:{}", hosts.address(0), kRendezvousPort)});
  const CommandResult result = run_command({TUTTI_TEST_MPIRUN, "-n", "4", own_path()}, environment);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (int r = 0; r < 4; ++r)
    EXPECT_THAT(result.out, HasSubstr(fmt::format("rank {0} engine {1} shape 2x2 sum right ran {1}",
                                                  r, engine)));
  return result.err;
}

class MpiOverHosts : public Hosts {
 protected:
  void SetUp() override {
    Hosts::SetUp();
    if (std::string_view(TUTTI_TEST_MPIRUN).empty()) GTEST_SKIP() << "no mpirun on this machine";
    if (!mpi_available()) GTEST_SKIP() << "no MPI library in this build";
  }
};

TEST_F(MpiOverHosts, AutoTakesMpi) {
  EXPECT_THAT(sum_by("auto", "mpi"),
              HasSubstr("engine mpi, since 4 ranks are on 2 hosts (2+2), and mpirun"));
}

TEST_F(MpiOverHosts, MpiIsTakenWhenAskedFor) {
  EXPECT_THAT(sum_by("mpi", "mpi"), HasSubstr("engine mpi, since it was asked for"));
}

TEST_F(MpiOverHosts, AnotherEngineIsTakenWhenAskedFor) {
  EXPECT_THAT(sum_by("hier", "hier"), HasSubstr("engine hier, since it was asked for"));
}

}  // namespace
}  // namespace tutti::test
