// tutti plan measure, MODEL and choose: from real steps to a choice, and what wrong input gets.
#include <utility>

#include "tests/jobs/command_line/planned_machine.h"
#include "tests/jobs/program.h"

namespace tutti::test {
namespace {

CommandResult plan(const Words& words) { return tutti(Words{"plan"} + words); }

TEST(PlanMeasure, WritesWhatPlanReads) {
  const TempFolder folder;
  const std::string file = folder / "here.json";
  ASSERT_THAT(plan({"measure", "mlp", "--data", kDoodles, "--out", file, "--batches", "4,32",
                    "--seconds", "0.4", "--most-spread", "100"}),
              Exits(0, Out(AllOf(HasSubstr("forward ms"), HasSubstr("next: tutti plan mlp")))));
  const auto machine = json_in(file);
  EXPECT_EQ(machine["compute"].size(), 2U);
  EXPECT_GT(machine["compute"][1]["backward"], 0);
  EXPECT_GT(machine["update"], 0);
  EXPECT_EQ(machine["bytes"], 4 * machine["parameters"].get<int64_t>());
  const auto predicted = plan({"mlp", "--machine", file, "--hosts", "1..4", "--link", "1Gbit,50us",
                               "--batch", "16", "--json", folder / "p.json"});
  ASSERT_EQ(predicted.exit_code, 0) << predicted.err;
  const auto rows = json_in(folder / "p.json");
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
  ASSERT_THAT(plan({"choose", "mlp", "--machine", file, "--link", "100Mbit,20us", "--target-images",
                    "1e6", "--objective", "cost", "--strategy", "all", "--batch", "8..64", "--json",
                    folder / "c.json"}),
              Exits(0, Out(HasSubstr("the cheapest of 204 jobs"))));
  const auto choice = json_in(folder / "c.json");
  EXPECT_EQ(choice["best"]["hosts"], 1);  // nothing is cheaper than to send nothing
  EXPECT_EQ(choice["tried"], 204);
}

TEST(PlanModel, TakesTheLinkOfTheMachineUnlessItIsGivenOne) {
  const TempFolder folder;
  const std::string file =
      linked_machine_in(folder, R"({"bytes_per_second": 1.25e7, "latency": 6e-5, "hosts": 3})");
  const auto figures = [&](const Words& words) {
    const auto result =
        plan(words + Words{"--machine", file, "--hosts", "2", "--json", folder / "p.json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return std::pair{result.out, json_in(folder / "p.json")};
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
  EXPECT_NEAR(choice["best"]["exchange_seconds"].get<double>(),  // other pieces save microseconds
              rows[0]["exchange_seconds"].get<double>(), 1e-3);
}

TEST(PlanModel, SearchesEnginesAndBuckets) {
  const TempFolder folder;
  const Words words =
      words_of("mlp --link 1Gbit,50us --hosts 1,2 --replicas-per-host 1,2 --batch 8") +
      Words{"--machine", machine_in(folder), "--json", folder / "p.json"};
  const auto asked = [&](const Words& first, const Words& more) {
    const auto result = plan(first + words + more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return std::pair(result.out, json_in(folder / "p.json"));
  };
  const auto engines = [&](const Words& more) {
    std::string all;
    for (const auto& row : asked({}, more).second) all += row["engine"].get<std::string>() + " ";
    return all;
  };
  EXPECT_EQ(engines({}), "shm tcp shm hier ");
  EXPECT_EQ(engines({"--engine", "all"}), "shm tcp shm hier tcp ");
  EXPECT_EQ(engines({"--engine", "tcp,hier"}), "shm tcp shm tcp hier ");
  const auto [chosen, choice] = asked({"choose"}, {"--engine", "all", "--target-images", "1e6"});
  EXPECT_EQ(choice["tried"], 13);
  EXPECT_EQ(choice["best"]["engine"], "shm");
  const auto [said, buckets] = asked({"choose"}, {"--overlap", "--target-images", "1e6"});
  EXPECT_EQ(buckets["tried"], 4 * 4);  // 1, 5, 25 and 100 MiB
  const auto [table, rows] = asked({}, {"--overlap", "--bucket-mib", "0.5,2"});
  EXPECT_THAT(table, AllOf(HasSubstr("nccl, 0.5 MiB"), HasSubstr("nccl, 2 MiB")));
  EXPECT_EQ(rows[0]["bucket_bytes"], 1 << 19);
  const auto [sizes, pieces] =
      asked({}, {"--piece-mib", "0.5,0", "--reduction", "fused,all_reduce"});
  EXPECT_THAT(sizes,
              AllOf(HasSubstr("all_reduce, tcp, 0.5 MiB"), HasSubstr("reduction all_reduce")));
  EXPECT_EQ(pieces.size(), 2 * 2 + 2 + 2 * 2);  // on one host there are none
}

TEST(PlanModel, CountsWhereNothingWasMeasured) {
  const TempFolder folder;
  const auto counted = plan({"resnet50", "--gflops", "50000", "--hosts", "2", "--link",
                             "100Gbit,10us", "--batch", "128", "--json", folder / "p.json"});
  ASSERT_EQ(counted.exit_code, 0) << counted.err;
  const auto rows = json_in(folder / "p.json");
  // 128 x 6 x 4.09 GFLOP at 50 TFLOP/s.
  EXPECT_NEAR(rows[0]["compute_seconds"].get<double>(), 0.0628, 1e-3);
}

}  // namespace
}  // namespace tutti::test
