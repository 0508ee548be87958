// `tutti plan`: what is answered before it plans or measures.
#include "tests/jobs/command_line/planned_machine.h"
#include "tests/unit/wrong_words/refused.h"

namespace tutti::test {
namespace {

TEST(WrongPlan, Pipelines) {
  expect_refused({"plan", "pipeline"}, {{"--schedule zb-h2", {"did you mean \"zb-h1\"?"}},
                                        {"--svg a.svg", {"name it with --schedule"}},
                                        {"--schedule 1f1b --forward 1,2",
                                         {"costs of 2 stages, expected one, or one for each of 4"}},
                                        {"--schedule none.csv", {"none.csv"}}});
}

TEST(WrongPlan, Tables) {
  expect_refused({"plan", "table"}, {{"alexnt", {"did you mean \"alexnet\"?"}},
                                     {"--link 10,50us", {"the rate has no unit"}},
                                     {"--hosts 0", {"--hosts"}},
                                     {"--batch 0", {"--batch"}},
                                     {"--gflops 0", {"--gflops"}},
                                     {"--link 1Gbit", {"link \"1Gbit\""}}});
}

TEST(WrongPlan, ModelsMachinesAndJobs) {
  const TempFolder folder;
  const std::string file = machine_in(folder);
  put_bytes(folder / "old.json", R"({"tutti_machine": 0})");
  const std::string linked =
      linked_machine_in(folder, R"({"bytes_per_second": 1.25e7, "latency": -1, "hosts": 3})");
  const std::string machine = "--machine", link = "--link";
  expect_refused(
      {"plan"},
      {{{}, {"say which model"}},
       {"mlp", {"--machine is missing"}},
       {"nlp --gflops 1", {"did you mean \"mlp\"?"}},
       {{"mlp", "--gflops", "1", machine, file}, {"excludes"}},
       {{"cnn", machine, file}, {"measured with model mlp, asked about cnn; measure cnn"}},
       {{"mlp", machine, folder / "old.json"}, {"tutti_machine is 0; expected 1: measure again"}},
       {{"mlp", machine, folder / "none.json"}, {"none.json"}},
       {{"mlp", machine, file}, {"--link is missing: what lies between hosts, as 25Gbit,20us"}},
       {{"mlp", machine, file}, {"or measure it: `tutti plan measure` under `tutti run --nodes`"}},
       {{"mlp", machine, linked}, {"linked.json: link.latency is -1; expected a number from 0"}},
       {{"mlp", machine, file, link, "25,20us"}, {"the rate has no unit"}},
       {{"mlp", machine, file, link, "1Gbit,1us", "--json", folder / "no/p.json"},
        {"no/p.json: cannot be written"}},
       {{"mlp", machine, file, link, "1Gbit,1us", "--hosts", "0"},
        {"--hosts \"0\": expected whole"}},
       {{"mlp", machine, file, link, "1Gbit,1us", "--hosts", "1..x"}, {"--hosts \"1..x\""}},
       {{"mlp", machine, file, link, "1Gbit,1us", "--batch", "1000"},
        {"1000 samples a replica, 1 replicas a host: 1.0 GiB of 0.9 GiB; the largest that fits "
         "is "
         "900"}},
       {{"mlp", machine, file, link, "1Gbit,1us", "--engine", "heir"}, {"did you mean \"hier\"?"}},
       {{"mlp", machine, file, link, "1Gbit,1us", "--engine", "shm", "--hosts", "4"},
        {"engine shm: it is for the ranks of one host, not of 4"}},
       {{"mlp", machine, file, link, "1Gbit,1us", "--engine", "hier", "--overlap"},
        {"--engine hier: --overlap is NCCL's; leave it out"}},
       {{"mlp", machine, file, link, "1Gbit,1us", "--strategy", "parameter_server", "--engine",
         "tcp"},
        {"--engine tcp: servers have none to choose"}},
       {{"mlp", machine, file, link, "1Gbit,1us", "--overlap", "--bucket-mib", "25,0"},
        {"--bucket-mib"}},
       {{"mlp", machine, file, link, "1Gbit,1us", "--svg", "a.svg", "--overlap", "--bucket-mib",
         "1,25"},
        {"--svg draws one curve"}},
       {{"mlp", machine, file, link, "1Gbit,1us", "--hosts", "4", "--svg", "a.svg"},
        {"--svg draws over hosts: give several"}},
       {{"choose", "mlp", machine, file, link, "1Gbit,1us", "--target-images", "1e9", "--within",
         "1e-6"},
        {"no job ends within"}},
       {{"measure", "mlp", "--data", "nowhere", "--out", folder / "m.json"}, {"nowhere"}},
       {{"measure", "mlp", "--data", kDoodles, "--context", "2", "--out", folder / "m.json"},
        {"--context 2: is for text"}},
       {{"measure", "nlp", "--data", "examples/data/quickdraw", "--out", folder / "m.json"},
        {"mlp"}},
       {{"measure", "mlp", "--data", "examples/data/quickdraw", "--out", folder / "m.json",
         "--batches", "10000000"},
        {"--batches"}},
       {{"measure", "mlp", "--data", "examples/data/quickdraw", "--out", folder / "m.json",
         "--link-seconds", "0"},
        {"--link-seconds"}}});
}

TEST(WrongPlan, Replays) {
  const TempFolder folder;
  const std::string path = folder.path();
  expect_refused({"plan", "replay"},
                 {{{path}, {"RUN_DIR " + path, "got a folder without a record", "--trace " + path}},
                  {{path + "/none"}, {"RUN_DIR " + path + "/none", "got nothing there"}},
                  {{path, "--without", "3"}, {"got \"3\"", "expected rank:N, as rank:3"}},
                  {{path, "--skip", "-1"}, {"--skip"}},
                  {{path, "--json", "/no/such/folder/a.json"}, {"--json", "/no/such/folder"}}});
  const auto trained =
      run_here({"train", "mlp", "--data", kDoodles, "--threads", "1", "--batch-size", "96",
                "--max-steps", "9", "--epochs", "1", "--trace", folder / "trace.json", "--strategy",
                "mirrored", "--replicas", "2"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  expect_refused({"plan", "replay", path},
                 {{"--without rank:2", {"rank:2", "expected rank:0 to rank:1"}},
                  {"--without rank:0,rank:1", {"leave one in"}},
                  {"--skip 9", {"--skip 9", "has 9 steps", "expected fewer"}}});
}

}  // namespace
}  // namespace tutti::test
