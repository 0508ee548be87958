// `tutti run --nodes` trains over several hosts (network namespaces): the weights are those of one
// host, whatever the hosts are.
#include <algorithm>
#include <filesystem>

#include "tutti/comm/schedule/schedule_choice.h"

#include "tests/jobs/command_line/over_hosts.h"

namespace tutti::test {
namespace {

Words training(const Words& more) {
  const Words words = Words{TUTTI_PROGRAM, "train", "mlp", "--data", kDoodles} +
                      words_of("--epochs 1 --batch-size 120 --seed 7 --threads 1") + more;
  const bool cut = std::ranges::find(more, "--max-steps") != more.end();
  return cut ? words : words + Words{"--max-steps", "12"};
}

std::string train_here(const Words& more) { return sha_of(figures_of(training(more))); }

/// Each of `hosts` starts `workers` workers. `more`: flags for each host; `shell`: what starts the
/// program there.
std::vector<CommandResult> run_over(const TestHosts& hosts, int workers, const std::string& file,
                                    const std::vector<Words>& more, const Words& shell = {}) {
  std::vector<Words> programs;
  for (int h = 0; h < hosts.count(); ++h)
    programs.push_back(training(Words{"--strategy", "multi_worker", "--json", file} +
                                (more.empty() ? Words{} : more.at(static_cast<size_t>(h)))));
  return test::run_over(hosts, workers, programs, shell);
}

std::string train_over(const TestHosts& hosts, int workers, const std::vector<Words>& more = {}) {
  const TempFolder folder;
  const std::string file = folder / "figures.json";
  bool good = true;
  for (const CommandResult& result : run_over(hosts, workers, file, more)) {
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    good = good && result.exit_code == 0;
  }
  return good ? sha_of(json_in(file)) : "";
}

using TrainOverHosts = OverHosts;

TEST_F(TrainOverHosts, TwoOfTwoGiveTheWeightsOfFourLocalRanks) {
  const TestHosts hosts(2);
  const std::string weights = train_over(hosts, 2);
  EXPECT_EQ(weights, train_here({"--strategy", "mirrored", "--replicas", "4"}));
  EXPECT_EQ(weights, train_over(hosts, 2)) << "from run to run";
}

TEST_F(TrainOverHosts, UnevenTreesGiveTheWeightsOfOneDeviceWithTheirShape) {
  EXPECT_EQ(train_over(TestHosts(3), 2), train_here({"--strategy", "one_device", "--replicas", "6",
                                                     "--reduction-shape", "3x2"}));
  EXPECT_EQ(train_over(TestHosts(2), 3), train_here({"--strategy", "one_device", "--replicas", "6",
                                                     "--reduction-shape", "2x3"}));
}

// Its norms are of whole tensors, of which each host's workers update parts.
TEST_F(TrainOverHosts, NormsOfTensorsAreThoseOfOneDevice) {
  const Words lamb = {"--optimizer", "lamb", "--learning-rate", "0.01"};
  const Words in_turn = {"--strategy", "one_device", "--replicas", "6", "--reduction-shape", "2x3"};
  EXPECT_EQ(train_over(TestHosts(2), 3, {lamb, lamb}), train_here(in_turn + lamb));
}

// Each host writes its part, and any goes on with all of them.
TEST_F(TrainOverHosts, CheckpointsOfTwoGoOnThereAndOnOne) {
  const TestHosts hosts(2);
  const std::string straight = train_over(hosts, 2);
  const TempFolder folder, copy;
  const Words out = {"--out", folder / "out"};
  const Words cut = out + Words{"--max-steps", "5"}, resumed = out + Words{"--resume"};
  EXPECT_NE(train_over(hosts, 2, {cut, cut}), straight);
  std::filesystem::copy(folder.path(), copy.path(), std::filesystem::copy_options::recursive);
  EXPECT_EQ(train_over(hosts, 2, {resumed, resumed}), straight);
  EXPECT_EQ(
      train_here({"--strategy", "mirrored", "--replicas", "4", "--out", copy / "out", "--resume"}),
      straight);
}

// Hosts that have nothing in common but a folder, mounted where each has a disk of its own; what
// one does there the other sees when NFS would show it.
TEST_F(TrainOverHosts, CheckpointsNeedNoMoreThanNfsGives) {
  const TestHosts hosts(2);
  const TempFolder shared, place;
  const std::string mount =
      "mount -t tmpfs none \"$2\" && mkdir \"$2/nfs\" && mount --bind \"$1\" \"$2/nfs\" && "
      "export LD_PRELOAD=\"$0\" TUTTI_TEST_NFS=\"$2/nfs\" && shift 2 && exec \"$@\"";
  const Words shell = {"sh", "-c", mount, TUTTI_CLOSE_TO_OPEN, shared.path(), place.path()};
  const Words flags = {"--out", place / "nfs/out", "--checkpoint-every", "4"};
  const auto results = run_over(hosts, 1, place / "nfs/figures.json", {flags, flags}, shell);
  for (const CommandResult& result : results) {
    ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
    EXPECT_THAT(result.err, Not(HasSubstr("not written")));
  }
  EXPECT_TRUE(std::filesystem::is_empty(place.path())) << "the hosts have mounted nothing";
  const auto verified = tutti({"checkpoint", "verify", shared / "out"});
  EXPECT_EQ(verified.exit_code, 0) << verified.out << verified.err;
  for (const char* step : {"04", "08", "12"})
    EXPECT_THAT(verified.out, HasSubstr(fmt::format("step-0000000000{}: whole", step)));
  EXPECT_EQ(sha_of(json_in(shared / "figures.json")),
            train_here({"--strategy", "mirrored", "--replicas", "2"}));
}

TEST_F(TrainOverHosts, CheckpointsWantOneFolderForAll) {
  const TempFolder folder, other;
  const auto results = run_over(TestHosts(2), 1, folder / "none.json",
                                {{"--out", folder / "out"}, {"--out", other / "out"}});
  for (const CommandResult& result : results) EXPECT_NE(result.exit_code, 0) << result.out;
  EXPECT_THAT(results[1].err, HasSubstr("give one that all hosts share"));
  EXPECT_THAT(results[0].err, HasSubstr("not all workers see the same folder"));
}

// A table may choose any algorithm that keeps the order of summation.
TEST_F(TrainOverHosts, TheTableOfAlgorithmsChangesNoBit) {
  const TempFolder folder;
  const std::string file = folder / "table.json";
  save_table({.rows = {{Collective::all_reduce, Order::fixed, 0, 0, Algorithm::halving_doubling},
                       {Collective::broadcast, Order::fixed, 0, 0, Algorithm::binomial}}},
             file);
  const Words table = {"--algorithm-table", file};
  const TestHosts hosts(2);
  EXPECT_EQ(train_over(hosts, 2, {table, table}), train_over(hosts, 2));
  // That it is read at all: hosts that disagree are told so.
  for (const CommandResult& result : run_over(hosts, 2, folder / "none.json", {table, {}})) {
    EXPECT_NE(result.exit_code, 0);
    EXPECT_THAT(result.err, HasSubstr("give every rank the same shape, order, table"));
  }
}

// What a step hides is told where there is something to hide.
TEST_F(TrainOverHosts, BenchStepTellsWhatAStepIsMadeOf) {
  const TempFolder folder;
  const std::string file = folder / "figures.json";
  const Words words = Words{TUTTI_PROGRAM, "bench",      "step",         "--model", "mlp", "--data",
                            kDoodles,      "--strategy", "multi_worker", "--json",  file} +
                      words_of("--batch-size 128 --steps 6 --warmup 2 --threads 1");
  for (const CommandResult& result : test::run_over(TestHosts(2), 2, {words, words}))
    ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const json figures = json_in(file);
  const auto of = [&](const char* name) { return figures.at(name).get<double>(); };
  EXPECT_EQ(of("hosts"), 2);
  EXPECT_EQ(of("replicas"), 4);
  EXPECT_GT(of("t1_ms"), 0);
  EXPECT_GT(of("t2_ms"), 0);
  EXPECT_EQ(of("max_ms"), std::max(of("t1_ms"), of("t2_ms")));
  EXPECT_EQ(of("exposed_ms"), std::max(0.0, of("step_ms_p50") - of("t1_ms")));
  EXPECT_THAT(tutti(words_of("run -n 2") + words).out, Not(HasSubstr("t1")));
  EXPECT_FALSE(json_in(file).contains("t1_ms"));
}

}  // namespace
}  // namespace tutti::test
