// tutti plan measure, MODEL and choose: from real steps to a choice, and what wrong input gets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/command.h"
#include "tests/support/temp_folder.h"

namespace tutti::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

CommandResult plan(std::vector<std::string> words) {
  words.insert(words.begin(), {TUTTI_PROGRAM, "plan"});
  return run_command(words, {}, Millis{120'000});
}

/// One that a user might write by hand.
const char* const kMachine = R"({"tutti_machine": 1, "name": "one", "model": "mlp",
  "parameters": 1000000, "bytes": 4000000, "largest_parameter": 40000,
  "compute": [{"batch": 8, "forward": 0.001, "backward": 0.002}], "jitter": [0.9, 1, 1.2],
  "update": 0.0005, "update_streams": 7, "input": 0, "cores": 2,
  "core_memory_rate": 1e10, "memory_rate": 2e10,
  "memory": 1000000000, "fixed_memory": 1e8, "sample_memory": 1e6,
  "shm": {"latency": 1e-6, "bytes_per_second": 1e10},
  "tcp": {"latency": 1e-5, "bytes_per_second": 1e9},
  "payload": 0.94, "compute_error": 0.03, "communication_error": 0.06})";

std::string machine_in(const TempFolder& folder) {
  std::ofstream(folder / "one.json") << kMachine;
  return folder / "one.json";
}

TEST(PlanMeasure, WritesWhatPlanReads) {
  const TempFolder folder;
  const std::string file = folder / "here.json";
  const auto measured = plan({"measure", "mlp", "--data", "examples/data/quickdraw", "--out", file,
                              "--batches", "4,32", "--seconds", "0.4", "--most-spread", "100"});
  ASSERT_EQ(measured.exit_code, 0) << measured.err;
  EXPECT_THAT(measured.out, AllOf(HasSubstr("forward ms"), HasSubstr("next: tutti plan mlp")));
  const auto machine = nlohmann::json::parse(std::ifstream(file));
  EXPECT_EQ(machine["compute"].size(), 2U);
  EXPECT_GT(machine["compute"][1]["backward"], 0);
  EXPECT_GT(machine["update"], 0);
  EXPECT_EQ(machine["bytes"], 4 * machine["parameters"].get<int64_t>());
  const auto predicted = plan({"mlp", "--machine", file, "--hosts", "1..4", "--link", "1Gbit,50us",
                               "--batch", "16", "--json", folder / "p.json"});
  ASSERT_EQ(predicted.exit_code, 0) << predicted.err;
  const auto rows = nlohmann::json::parse(std::ifstream(folder / "p.json"));
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[2]["hosts"], 4);
  EXPECT_GT(rows[2]["exchange_seconds"], rows[1]["exchange_seconds"]);
}

TEST(PlanModel, DrawsAndChooses) {
  const TempFolder folder;
  const std::string file = machine_in(folder);
  const auto drawn =
      plan({"mlp", "--machine", file, "--link", "10Gbit,20us", "--svg", folder / "a.svg"});
  ASSERT_EQ(drawn.exit_code, 0) << drawn.err;
  EXPECT_THAT(get_bytes(folder / "a.svg"), AllOf(HasSubstr("<svg"), HasSubstr("efficiency")));
  const auto chosen = plan({"choose", "mlp", "--machine", file, "--link", "100Mbit,20us",
                            "--target-images", "1e6", "--objective", "cost", "--strategy", "all",
                            "--batch", "8..64", "--json", folder / "c.json"});
  ASSERT_EQ(chosen.exit_code, 0) << chosen.err;
  EXPECT_THAT(chosen.out, HasSubstr("the cheapest of 56 jobs"));
  const auto choice = nlohmann::json::parse(std::ifstream(folder / "c.json"));
  EXPECT_EQ(choice["best"]["hosts"], 1);  // nothing is cheaper than to send nothing
  EXPECT_EQ(choice["tried"], 56);
}

/// The same, with a link that somebody has written.
std::string linked_machine_in(const TempFolder& folder, const std::string& link) {
  std::string json = kMachine;
  json.insert(json.rfind('}'), ", \"link\": " + link);
  std::ofstream(folder / "linked.json") << json;
  return folder / "linked.json";
}

TEST(PlanModel, TakesTheLinkOfTheMachineUnlessItIsGivenOne) {
  const TempFolder folder;
  const std::string file =
      linked_machine_in(folder, R"({"bytes_per_second": 1.25e7, "latency": 6e-5, "hosts": 3})");
  const auto figures = [&](std::vector<std::string> words) {
    words.insert(words.end(), {"--machine", file, "--hosts", "2", "--json", folder / "p.json"});
    const auto result = plan(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return std::pair{result.out, nlohmann::json::parse(std::ifstream(folder / "p.json"))};
  };
  const std::string said = "link: 100 Mbit/s, 60 us, measured between 3 hosts\n";
  const auto [out, rows] = figures({"mlp"});
  EXPECT_THAT(out, HasSubstr(said));
  // Half of 4 MB goes each way, twice, of which 94 % are data.
  EXPECT_NEAR(rows[0]["exchange_seconds"].get<double>(), 4e6 / 1.25e7 / 0.94, 5e-3);
  const auto [same_out, same_rows] = figures({"mlp", "--link", "100Mbit,60us"});
  EXPECT_THAT(same_out, Not(HasSubstr("measured between")));
  EXPECT_EQ(same_rows, rows);
  const auto [other_out, other_rows] = figures({"mlp", "--link", "200Mbit,60us"});
  EXPECT_LT(other_rows[0]["exchange_seconds"], rows[0]["exchange_seconds"]);
  const auto [chosen_out, choice] = figures({"choose", "mlp", "--target-images", "1e6"});
  EXPECT_THAT(chosen_out, HasSubstr(said));
  EXPECT_EQ(choice["best"], rows[0]);
}

TEST(PlanModel, SearchesEnginesAndBuckets) {
  const TempFolder folder;
  const std::vector<std::string> words = {
      "mlp",     "--machine", machine_in(folder),    "--link", "1Gbit,50us",
      "--hosts", "1,2",       "--replicas-per-host", "1,2",    "--batch",
      "8",       "--json",    folder / "p.json"};
  const auto asked = [&](std::vector<std::string> all, const std::vector<std::string>& more) {
    all.insert(all.end(), words.begin(), words.end());
    all.insert(all.end(), more.begin(), more.end());
    const auto result = plan(all);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return std::pair(result.out, nlohmann::json::parse(std::ifstream(folder / "p.json")));
  };
  const auto engines = [&](const std::vector<std::string>& more) {
    std::string all;
    for (const auto& row : asked({}, more).second) all += row["engine"].get<std::string>() + " ";
    return all;
  };
  EXPECT_EQ(engines({}), "shm tcp shm hier ");
  EXPECT_EQ(engines({"--engine", "all"}), "shm tcp shm hier tcp ");
  EXPECT_EQ(engines({"--engine", "tcp,hier"}), "shm tcp shm tcp hier ");
  const auto [chosen, choice] = asked({"choose"}, {"--engine", "all", "--target-images", "1e6"});
  EXPECT_EQ(choice["tried"], 5);
  EXPECT_EQ(choice["best"]["engine"], "shm");
  const auto [said, buckets] = asked({"choose"}, {"--overlap", "--target-images", "1e6"});
  EXPECT_EQ(buckets["tried"], 4 * 4);  // 1, 5, 25 and 100 MiB
  const auto [table, rows] = asked({}, {"--overlap", "--bucket-mib", "0.5,2"});
  EXPECT_THAT(table, AllOf(HasSubstr("nccl, 0.5 MiB"), HasSubstr("nccl, 2 MiB")));
  EXPECT_EQ(rows[0]["bucket_bytes"], 1 << 19);
}

TEST(PlanModel, CountsWhereNothingWasMeasured) {
  const TempFolder folder;
  const auto counted = plan({"resnet50", "--gflops", "50000", "--hosts", "2", "--link",
                             "100Gbit,10us", "--batch", "128", "--json", folder / "p.json"});
  ASSERT_EQ(counted.exit_code, 0) << counted.err;
  const auto rows = nlohmann::json::parse(std::ifstream(folder / "p.json"));
  // 128 x 6 x 4.09 GFLOP at 50 TFLOP/s.
  EXPECT_NEAR(rows[0]["compute_seconds"].get<double>(), 0.0628, 1e-3);
}

TEST(PlanModel, WrongInputIsAnsweredBeforeWork) {
  const TempFolder folder;
  const std::string file = machine_in(folder);
  std::ofstream(folder / "old.json") << R"({"tutti_machine": 0})";
  const std::string linked =
      linked_machine_in(folder, R"({"bytes_per_second": 1.25e7, "latency": -1, "hosts": 3})");
  struct Case {
    std::vector<std::string> words;
    const char* message;
  };
  const std::string machine = "--machine", link = "--link";
  const Case cases[] = {
      {{}, "say which model"},
      {{"mlp"}, "--machine is missing"},
      {{"nlp", "--gflops", "1"}, "did you mean \"mlp\"?"},
      {{"mlp", "--gflops", "1", machine, file}, "excludes"},
      {{"cnn", machine, file}, "measured with model mlp, asked about cnn; measure cnn"},
      {{"mlp", machine, folder / "old.json"}, "tutti_machine is 0; expected 1: measure again"},
      {{"mlp", machine, folder / "none.json"}, "none.json"},
      {{"mlp", machine, file}, "--link is missing: what lies between hosts, as 25Gbit,20us"},
      {{"mlp", machine, file}, "or measure it: `tutti plan measure` under `tutti run --nodes`"},
      {{"mlp", machine, linked}, "linked.json: link.latency is -1; expected a number from 0"},
      {{"mlp", machine, file, link, "25,20us"}, "the rate has no unit"},
      {{"mlp", machine, file, link, "1Gbit,1us", "--json", folder / "no/p.json"},
       "no/p.json: cannot be written"},
      {{"mlp", machine, file, link, "1Gbit,1us", "--hosts", "0"}, "--hosts \"0\": expected whole"},
      {{"mlp", machine, file, link, "1Gbit,1us", "--hosts", "1..x"}, "--hosts \"1..x\""},
      {{"mlp", machine, file, link, "1Gbit,1us", "--batch", "1000"},
       "1000 samples a replica, 1 replicas a host: 1.0 GiB of 0.9 GiB; the largest that fits is "
       "900"},
      {{"mlp", machine, file, link, "1Gbit,1us", "--engine", "heir"}, "did you mean \"hier\"?"},
      {{"mlp", machine, file, link, "1Gbit,1us", "--engine", "shm", "--hosts", "4"},
       "engine shm: it is for the ranks of one host, not of 4"},
      {{"mlp", machine, file, link, "1Gbit,1us", "--engine", "hier", "--overlap"},
       "--engine hier: --overlap is NCCL's; leave it out"},
      {{"mlp", machine, file, link, "1Gbit,1us", "--strategy", "parameter_server", "--engine",
        "tcp"},
       "--engine tcp: servers have none to choose"},
      {{"mlp", machine, file, link, "1Gbit,1us", "--overlap", "--bucket-mib", "25,0"},
       "--bucket-mib"},
      {{"mlp", machine, file, link, "1Gbit,1us", "--svg", "a.svg", "--overlap", "--bucket-mib",
        "1,25"},
       "--svg draws one curve"},
      {{"mlp", machine, file, link, "1Gbit,1us", "--hosts", "4", "--svg", "a.svg"},
       "--svg draws over hosts: give several"},
      {{"choose", "mlp", machine, file, link, "1Gbit,1us", "--target-images", "1e9", "--within",
        "1e-6"},
       "no job ends within"},
      {{"measure", "mlp", "--data", "nowhere", "--out", folder / "m.json"}, "nowhere"},
      {{"measure", "nlp", "--data", "examples/data/quickdraw", "--out", folder / "m.json"}, "mlp"},
      {{"measure", "mlp", "--data", "examples/data/quickdraw", "--out", folder / "m.json",
        "--batches", "10000000"},
       "--batches"},
      {{"measure", "mlp", "--data", "examples/data/quickdraw", "--out", folder / "m.json",
        "--link-seconds", "0"},
       "--link-seconds"},
  };
  for (const Case& one : cases) {
    const auto result = plan(one.words);
    EXPECT_EQ(result.exit_code, 2) << one.message;
    EXPECT_THAT(result.err, HasSubstr(one.message));
  }
}

}  // namespace
}  // namespace tutti::test
