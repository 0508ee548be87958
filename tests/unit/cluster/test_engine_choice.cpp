#include "tutti/cluster/join/engine_choice.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

struct ChoiceCase {
  const char* name;
  EngineQuestion question;
  const char* engine;
  const char* reason;
};

TEST(EngineChoice, FollowsWhereTheRanksAre) {
  const ChoiceCase cases[] = {
      {"alone", {.replicas_per_host = {1}}, "solo", "there is one rank"},
      {"one host", {.replicas_per_host = {4}}, "shm", "all 4 ranks are on one host"},
      {"a host each",
       {.replicas_per_host = {1, 1, 1}},
       "tcp",
       "each of the 3 ranks is on a host of its own"},
      {"equal hosts", {.replicas_per_host = {2, 2}}, "hier", "4 ranks are on 2 hosts (2+2)"},
      {"unequal hosts", {.replicas_per_host = {3, 1}}, "hier", "4 ranks are on 2 hosts (3+1)"},
      {"mpirun",
       {.replicas_per_host = {2, 2}, .mpi_built = true, .mpi_launcher = true},
       "mpi",
       "mpirun, which started them"},
      {"mpirun, one host",
       {.replicas_per_host = {2}, .mpi_built = true, .mpi_launcher = true},
       "shm",
       "one host"},
      {"mpirun, no MPI", {.replicas_per_host = {1, 1}, .mpi_launcher = true}, "tcp", "of its own"},
      {"devices",
       {.replicas_per_host = {2}, .nccl_built = true, .on_device = true},
       "nccl",
       "memory of CUDA devices"},
      {"asked", {.asked = "tcp", .replicas_per_host = {4}}, "tcp", "it was asked for"},
  };
  for (const ChoiceCase& c : cases) {
    const EngineChoice choice = choose_engine(c.question);
    EXPECT_EQ(choice.engine, c.engine) << c.name;
    EXPECT_THAT(choice.reason, HasSubstr(c.reason)) << c.name;
  }
}

TEST(EngineChoice, RefusesWhatCannotServe) {
  const ChoiceCase cases[] = {
      {"hosts share no memory",
       {.asked = "shm", .replicas_per_host = {1, 1}},
       "",
       "engine \"shm\": each of the 2 ranks is on a host of its own; use hier, tcp or auto"},
      {"one host has no levels",
       {.asked = "hier", .replicas_per_host = {2}},
       "",
       "use shm or auto"},
      {"one rank has no levels",
       {.asked = "hier", .replicas_per_host = {1}},
       "",
       "engine \"hier\": there is one rank; use shm or auto"},
      {"more than one rank", {.asked = "solo", .replicas_per_host = {2}}, "", "use auto"},
      {"no MPI", {.asked = "mpi", .replicas_per_host = {2}}, "", "not in this build"},
      {"no mpirun",
       {.asked = "mpi", .replicas_per_host = {2}, .mpi_built = true},
       "",
       "mpirun did not start these ranks"},
      {"no NCCL",
       {.asked = "nccl", .replicas_per_host = {2}, .on_device = true},
       "",
       "not in this build"},
      {"no NCCL for devices",
       {.replicas_per_host = {2}, .on_device = true},
       "",
       "nccl is not in this build; use buffers in host memory"},
      {"host memory", {.asked = "nccl", .replicas_per_host = {2}}, "", "name the CUDA device"},
      {"device memory",
       {.asked = "shm", .replicas_per_host = {2}, .on_device = true},
       "",
       "cannot reach memory of CUDA devices; use nccl or auto"},
      {"a typing error", {.asked = "shn", .replicas_per_host = {2}}, "", "did you mean \"shm\"?"},
  };
  for (const ChoiceCase& c : cases)
    EXPECT_THAT(message_of<UsageError>([&] { choose_engine(c.question); }), HasSubstr(c.reason))
        << c.name;
}

}  // namespace
}  // namespace tutti
