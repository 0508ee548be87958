// The same bits in every run, of devices: what is set for it, for the whole process and in time.
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/strategy/strategy.h"

#include "tests/support/fake_cuda/fake_cuda_test.h"
#include "tests/support/message_of.h"
#include "tests/support/run_ranks.h"

namespace tutti::test {
namespace {

using DeterministicDevices = FakeCudaTest;

void ensure(bool condition, const std::string& what) {
  if (!condition) throw Error("not so: " + what);
}

RANK_PROGRAM(deterministic) {
  const Strategy strategy({.kind = "mirrored", .device = "cuda:0,1", .deterministic = true});
  const at::Context& context = at::globalContext();
  ensure(context.deterministicCuDNN() && !context.benchmarkCuDNN(), "cuDNN");
  ensure(context.deterministicAlgorithms() && !context.deterministicAlgorithmsWarnOnly(),
         "operators");
  ensure(std::getenv("CUBLAS_WORKSPACE_CONFIG") == std::string(":4096:8"), "cuBLAS");
  const Strategy another({.kind = "mirrored", .device = "cuda:0"});
  ensure(context.deterministicAlgorithms(), "it stays on");
}

RANK_PROGRAM(deterministic_too_late) {
  const Strategy strategy({.kind = "mirrored", .device = "cuda:0,1"});
  ensure(!at::globalContext().deterministicAlgorithms(), "it is off unless asked for");
  const std::string late = message_of<UsageError>(
      [] { Strategy({.kind = "mirrored", .device = "cuda:0", .deterministic = true}); });
  ensure(late.find("strategy mirrored: deterministic, but devices are in use") == 0, late);
}

RANK_PROGRAM(deterministic_with_another_workspace) {
  const std::string error = message_of<UsageError>(
      [] { Strategy({.kind = "mirrored", .device = "cuda:0", .deterministic = true}); });
  ensure(error.find("CUBLAS_WORKSPACE_CONFIG is \":0:0\"") != std::string::npos, error);
}

TEST_F(DeterministicDevices, AreOfAProcess) {
  const auto run = [](const char* program, std::vector<std::string> environment) {
    environment.push_back("FAKE_CUDA_DEVICES=3");
    const auto outcome = run_ranks(1, program, {.environment = environment});
    EXPECT_EQ(outcome[0].exit_code, 0) << program << ": " << outcome[0].error << outcome[0].log;
  };
  run("deterministic", {});
  run("deterministic_too_late", {});
  run("deterministic_with_another_workspace", {"CUBLAS_WORKSPACE_CONFIG=:0:0"});
}

}  // namespace
}  // namespace tutti::test
