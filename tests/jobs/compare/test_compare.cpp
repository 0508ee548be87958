// tutti_bench beside other libraries: a part of `make bench`, which has installed them.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>

#include "tutti/base/host.h"

#include "tests/jobs/compare/bench_program.h"
#include "tests/support/expect.h"

namespace tutti::test {
namespace {

using nlohmann::json;

// A checkout of its own, for the copy of the program that is in it.
TEST(Compare, WithoutPyTorchTheAnswerSaysHowToGetIt) {
  const TempFolder checkout;
  std::filesystem::create_directories(checkout / "bench/peer");
  put_bytes(checkout / "bench/peer/step.py", "");
  std::filesystem::copy_file(TUTTI_BENCH_PROGRAM, checkout / "tutti_bench");
  EXPECT_THAT(
      run_command({checkout / "tutti_bench", "compare", "--quick", "--data", kDoodles}),
      Exits(2, Err(AllOf(HasSubstr("no PyTorch in .venv"), HasSubstr("tools/setup --bench")))));
}

class BesidePeers : public testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("TUTTI_TEST_PEERS") == nullptr) GTEST_SKIP() << "make bench runs it";
    if (run_command({".venv/bin/python", "-c", "import torch, numpy"}).exit_code != 0)
      GTEST_SKIP() << "no PyTorch in .venv";
  }
};

// Every row but those of JAX and DeepSpeed where these are not, by name.
TEST_F(BesidePeers, Compare) {
  const TempFolder folder;
  const auto result =
      tutti_bench({"compare", "--quick", "--models", "mlp", "--json", folder / "f.json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto lines = lines_of(folder / "f.json");
  const bool no_jax = result.out.find("JAX is left out: ") != std::string::npos;
  const bool no_deepspeed = result.out.find("DeepSpeed is left out: ") != std::string::npos;
  EXPECT_EQ(lines.size(), 11u - 3 * no_jax - no_deepspeed) << result.out;
  for (const json& line : lines) {
    EXPECT_GT(line.at("ratio").get<double>(), 0);
    for (const char* name : {"commit", "machine", "compiler", "torch", "bound", "aim"})
      EXPECT_TRUE(line.contains(name)) << name;
  }
}

// The best of the peers that are here is as fast as the fastest row; DeepSpeed and oneCCL have one
// each or are named.
TEST_F(BesidePeers, AllReduce) {
  const TempFolder folder;
  const auto result = tutti_bench({"all-reduce", "--ranks", "2", "--bytes", "64K", "--rounds", "1",
                                   "--json", folder / "f.json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::map<std::string, double> theirs_us;
  std::set<std::string> memories;
  for (const json& line : lines_of(folder / "f.json")) {
    memories.insert(line.at("memory").get<std::string>());
    theirs_us[line.at("theirs")] = line.at("theirs_p50_us").get<double>();
  }
  EXPECT_THAT(memories, ElementsAre("engine", "own"));
  const double best = theirs_us.at("best peer");
  double fastest = theirs_us.at("Gloo");
  for (const std::string peer : {"Open MPI", "DeepSpeed", "oneCCL"}) {
    if (result.out.find(peer + " is left out: ") != std::string::npos) continue;
    if (peer != "Open MPI" && host_facts().usable_cores < 2) continue;  // they wait in loops
    fastest = std::min(fastest, theirs_us.at(peer));
  }
  EXPECT_EQ(best, fastest) << result.out;
}

}  // namespace
}  // namespace tutti::test
