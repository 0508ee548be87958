// Every benchmark of `tutti bench` for a few steps, so that none rots: figures are there, not how
// good.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>

#include "tutti/base/host.h"

#include "tests/jobs/command_line/bench.h"

namespace tutti::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST(BenchSmoke, StepUnderEachStrategy) {
  for (const Words& how : std::vector<Words>{{"one_device"},
                                             {"mirrored"},
                                             {"central_storage"},
                                             {"multi_worker"},
                                             {"independent"},
                                             {"parameter_server"},
                                             {"parameter_server", "--staleness", "inf"}})
    for (const bool preload : {false, true}) {
      const std::string& strategy = how[0];
      const TempFolder folder;
      Words words = {"step",
                     "--model",
                     "mlp",
                     "--strategy",
                     strategy,
                     "--replicas",
                     "2",
                     "--batch-size",
                     "128",
                     "--steps",
                     "6",
                     "--warmup",
                     "2",
                     "--data",
                     kDoodles,
                     "--json",
                     folder / "f.json"};
      if (preload) words.push_back("--preload");
      words.insert(words.end(), how.begin() + 1, how.end());
      const auto result = bench(words);
      ASSERT_EQ(result.exit_code, 0) << strategy << result.err;
      const auto lines = lines_of(folder / "f.json");
      ASSERT_EQ(lines.size(), 1u);
      const json& line = lines[0];
      EXPECT_EQ(line.at("bench"), "step");
      EXPECT_EQ(line.at("model"), "mlp");
      EXPECT_EQ(line.at("strategy"), strategy);
      EXPECT_EQ(line.at("replicas"), 2);
      EXPECT_EQ(line.at("global_batch"), 128);
      for (const char* name : {"images_per_second", "step_ms_p50", "step_ms_p99", "compute_ms",
                               "sync_ms", "data_ms", "loss"})
        EXPECT_GT(line.at(name).get<double>(), 0) << strategy << name;
      EXPECT_LT(line.at("loss").get<double>(), 3.0) << "about log(10) at the start";
      EXPECT_THAT(result.out, HasSubstr(get_bytes(folder / "f.json"))) << "the same line";
    }
}

TEST(BenchSmoke, StepGivesTheSameLossUnderEachStrategy) {
  const auto loss = [](const std::string& strategy, bool unfused) {
    const TempFolder folder;
    Words words = {"step",
                   "--model",
                   "cnn",
                   "--strategy",
                   strategy,
                   "--replicas",
                   "2",
                   "--threads",
                   "1",
                   "--steps",
                   "3",
                   "--warmup",
                   "1",
                   "--data",
                   kDoodles,
                   "--json",
                   folder / "f.json"};
    if (unfused) words.push_back("--unfused");
    const auto result = bench(words);
    EXPECT_EQ(result.exit_code, 0) << strategy << result.err;
    return lines_of(folder / "f.json").at(0).at("loss").get<double>();
  };
  const double expected = loss("one_device", false);
  for (const bool unfused : {false, true}) {
    EXPECT_EQ(loss("mirrored", unfused), expected);
    EXPECT_EQ(loss("multi_worker", unfused), expected);
  }
  EXPECT_EQ(loss("central_storage", false), expected);
  EXPECT_EQ(loss("parameter_server", false), expected);
}

TEST(BenchSmoke, StepTellsWhatACompressionSends) {
  const auto figures = [](const std::string& strategy, const std::string& compression) {
    const TempFolder folder;
    const auto result =
        bench({"step", "--model", "mlp", "--strategy", strategy, "--replicas", "2", "--threads",
               "1", "--steps", "3", "--warmup", "1", "--data", kDoodles, "--compression",
               compression, "--json", folder / "f.json"});
    EXPECT_EQ(result.exit_code, 0) << strategy << result.err;
    const json line = lines_of(folder / "f.json").at(0);
    EXPECT_EQ(line.at("compression"), compression);
    return line;
  };
  const auto bytes = [](const json& line) { return line.at("wire_bytes_per_step").get<int64_t>(); };
  // mlp: 784 x 128 and 128 x 10 are compressed, 138 biases in tensors of whole lines are not.
  constexpr int64_t kBiases = 4 * (128 + 16);
  const std::pair<std::string, int64_t> cases[] = {
      {"bf16", 2 * (100'352 + 1'280) + kBiases},
      {"topk:0.01", 8 * (1'004 + 13) + kBiases},
      {"onebit", 4 * (392 + 3'136 + 5 + 40) + kBiases},
      {"powersgd:4", 4 * 4 * (784 + 128 + 128 + 10) + kBiases}};
  EXPECT_EQ(bytes(figures("mirrored", "none")), 4 * (100'352 + 1'280 + 138) / 2) << "fused";
  for (const auto& [compression, expected] : cases) {
    const json in_turn = figures("one_device", compression);
    const json processes = figures("multi_worker", compression);
    EXPECT_EQ(bytes(in_turn), expected) << compression;
    EXPECT_EQ(bytes(processes), expected) << compression;
    EXPECT_EQ(in_turn.at("loss"), processes.at("loss")) << compression;
  }
}

TEST(BenchSmoke, WrongReductionsAndCompressionsAreRefusedWithTheNearestWord) {
  const std::pair<Words, const char*> cases[] = {
      {{"--compression", "power-sgd:4"}, "did you mean \"powersgd\"?"},
      {{"--compression", "topk:2"}, "expected 0 < ratio <= 1"},
      {{"--reduction", "allreduce"}, "did you mean \"all_reduce\"?"},
      {{"--compression", "onebit", "--strategy", "independent"},
       "nothing that could be compressed"},
  };
  for (const auto& [more, says] : cases) {
    Words words = {"step", "--model", "mlp", "--data", kDoodles};
    words.insert(words.end(), more.begin(), more.end());
    const auto result = bench(words);
    EXPECT_EQ(result.exit_code, 2) << says;
    EXPECT_THAT(result.err, HasSubstr(says));
  }
}

void expect_figures(const json& line) {
  EXPECT_EQ(line.at("bench"), "all-reduce");
  EXPECT_EQ(line.at("correct"), true);
  for (const char* name : {"p50_us", "p99_us", "bus_gb_s", "floor_fraction", "floor_p50_us"})
    EXPECT_TRUE(line.at(name).is_number()) << name;
  EXPECT_GT(line.at("p50_us").get<double>(), 0);
}

TEST(BenchSmoke, AllReduce) {
  const TempFolder folder;
  const struct {
    std::string engine;
    int ranks;
    std::string floor;
    Words more;
    std::string members;
  } cases[] = {{"shm", 3, "plain loop", {}, "threads"},
               {"shm", 2, "plain loop", {"--processes"}, "processes"},
               {"solo", 1, "plain loop", {}, "threads"},
               {"tcp", 3, "raw stream", {"--order", "any"}, "threads"},
               {"tcp", 2, "raw stream", {"--processes", "--streams", "2"}, "processes"}};
  for (const auto& c : cases) {
    Words words = {"all-reduce",     "--engine", c.engine,   "--ranks", std::to_string(c.ranks),
                   "--bytes",        "8,1K,1M",  "--rounds", "1",       "--json",
                   folder / "f.json"};
    words.insert(words.end(), c.more.begin(), c.more.end());
    const auto result = bench(words);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const auto lines = lines_of(folder / "f.json");
    ASSERT_EQ(lines.size(), 3u);
    EXPECT_EQ(lines[1].at("bytes"), 1024);
    for (const json& line : lines) {
      expect_figures(line);
      EXPECT_EQ(line.at("engine"), c.engine);
      EXPECT_EQ(line.at("ranks"), c.ranks);
      EXPECT_EQ(line.at("collective"), "all_reduce");
      EXPECT_EQ(line.at("floor"), c.floor);
      EXPECT_EQ(line.at("members"), c.members);
    }
    EXPECT_THAT(result.out, HasSubstr(get_bytes(folder / "f.json"))) << "the same lines, once";
  }
}

TEST(BenchSmoke, EveryCollective) {
  const TempFolder folder;
  for (const std::string engine : {"shm", "tcp"})
    for (const std::string collective :
         {"all_gather", "reduce_scatter", "broadcast", "all_to_all"}) {
      const auto result =
          bench({"all-reduce", "--engine", engine, "--ranks", "3", "--collective", collective,
                 "--bytes", "0,8,64K", "--rounds", "1", "--json", folder / "f.json"});
      ASSERT_EQ(result.exit_code, 0) << engine << collective << result.err;
      const auto lines = lines_of(folder / "f.json");
      ASSERT_EQ(lines.size(), 3u);
      for (const json& line : lines) {
        expect_figures(line);
        EXPECT_EQ(line.at("collective"), collective);
      }
      // Every rank's part is a whole number of elements.
      EXPECT_EQ(lines[1].at("bytes"), collective == "broadcast" ? 8 : 12);
    }
}

// Where mpirun is, the whole; elsewhere the answer names it. It starts itself again under mpirun.
TEST(BenchSmoke, AllReduceOfMpi) {
  const TempFolder folder;
  const Words words = {"all-reduce",     "--engine", "mpi",      "--ranks", "2",
                       "--bytes",        "8,64K",    "--rounds", "1",       "--json",
                       folder / "f.json"};
  const bool here = run_command({"sh", "-c", "command -v mpirun"}).exit_code == 0;
  const auto result = bench(words);
  if (!here || result.exit_code == 2) {
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, testing::AnyOf(HasSubstr("mpirun"), HasSubstr("no MPI library")));
    return;
  }
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto lines = lines_of(folder / "f.json");
  ASSERT_EQ(lines.size(), 2u);
  for (const json& line : lines) {
    expect_figures(line);
    EXPECT_EQ(line.at("engine"), "mpi");
    EXPECT_EQ(line.at("ranks"), 2);
  }
  const auto missing = bench(words, {"PATH=" + std::string(folder / "nothing")});
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(missing.err, HasSubstr("mpirun cannot be started"));
}

TEST(BenchSmoke, TuneWritesATableThatAllReduceReads) {
  const TempFolder folder;
  const std::string table = folder / "table.json";
  const auto tuned =
      bench({"tune", "--ranks", "2,3", "--bytes", "1K,64K", "--rounds", "1", "--out", table});
  ASSERT_EQ(tuned.exit_code, 0) << tuned.err;
  EXPECT_THAT(tuned.out, HasSubstr("halving_doubling"));
  const json written = json::parse(get_bytes(table));
  EXPECT_EQ(written.at("tutti_algorithms"), 1);
  const auto& first = written.at("rows").at(0);
  EXPECT_EQ(first.at("collective"), "all_reduce");
  EXPECT_EQ(first.at("max_ranks"), 2);
  const Words words = {"all-reduce", "--engine", "tcp",      "--ranks", "2",
                       "--bytes",    "1K",       "--rounds", "1",       "--algorithm-table"};
  const auto with = [&](const std::string& file) {
    Words all = words;
    all.push_back(file);
    return bench(all);
  };
  EXPECT_EQ(with(table).exit_code, 0);
  put_bytes(folder / "bad.json", R"({"tutti_algorithms": 1, "rows": [{"collective": "all_reduce",
    "order": "fixed", "algorithm": "rong"}]})");
  const auto bad = with(folder / "bad.json");
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_THAT(bad.err, HasSubstr("did you mean \"ring\"?"));
}

TEST(BenchSmoke, Scale) {
  const TempFolder folder;
  const auto result =
      bench({"scale", "--model", "mlp", "--replicas", "1,2", "--steps", "5", "--warmup", "1",
             "--rounds", "1", "--data", kDoodles, "--json", folder / "f.json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto lines = lines_of(folder / "f.json");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].at("speedup"), 1.0);
  EXPECT_EQ(lines[1].at("global_batch"), 128);
  for (const json& line : lines)
    for (const char* name :
         {"images_per_second", "efficiency", "limit_images_per_second", "share_of_limit"})
      EXPECT_GT(line.at(name).get<double>(), 0) << name;
}

// Where PyTorch is, every row but those of JAX and DeepSpeed where these are not, by name;
// elsewhere the answer says how to get it.
TEST(BenchSmoke, Compare) {
  const bool torch = run_command({".venv/bin/python", "-c", "import torch, numpy"}).exit_code == 0;
  const TempFolder folder;
  const auto result = bench({"compare", "--quick", "--models", "mlp", "--json", folder / "f.json"});
  if (!torch) {
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr("tools/setup --bench"));
    return;
  }
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto lines = lines_of(folder / "f.json");
  const bool no_jax = result.out.find("JAX is left out: ") != std::string::npos;
  const bool no_deepspeed = result.out.find("DeepSpeed is left out: ") != std::string::npos;
  EXPECT_EQ(lines.size(), 10u - 2 * no_jax - no_deepspeed) << result.out;
  for (const json& line : lines) {
    EXPECT_GT(line.at("ratio").get<double>(), 0);
    for (const char* name : {"commit", "machine", "compiler", "torch", "bound", "aim"})
      EXPECT_TRUE(line.contains(name)) << name;
  }
}

// The best of the peers that are here is as fast as the fastest row; DeepSpeed and oneCCL have one
// each or are named.
TEST(BenchSmoke, AllReduceBesidePeers) {
  if (run_command({".venv/bin/python", "-c", "import torch, numpy"}).exit_code != 0) return;
  const TempFolder folder;
  const auto result = bench({"all-reduce", "--ranks", "2", "--bytes", "64K", "--rounds", "1",
                             "--peers", "--json", folder / "f.json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::map<std::string, double> theirs_us;
  for (const json& line : lines_of(folder / "f.json"))
    theirs_us[line.at("theirs")] = line.at("theirs_p50_us").get<double>();
  const double best = theirs_us.at("best peer");
  double fastest = theirs_us.at("Gloo");
  for (const std::string peer : {"Open MPI", "DeepSpeed", "oneCCL"}) {
    if (result.out.find(peer + " is left out: ") != std::string::npos) continue;
    if (peer != "Open MPI" && host_facts().usable_cores < 2) continue;  // they wait in loops
    fastest = std::min(fastest, theirs_us.at(peer));
  }
  EXPECT_EQ(best, fastest) << result.out;
}

TEST(Bench, BadInputIsAnsweredBeforeWork) {
  const struct {
    Words words;
    const char* answer;
  } cases[] = {
      {{"stpe"}, "did you mean \"step\"?"},
      {{"step", "--model", "mpl", "--data", kDoodles}, "did you mean \"mlp\"?"},
      {{"step", "--model", "mlp", "--data", kDoodles, "--steps", "0"}, "--steps"},
      {{"step", "--model", "mlp", "--data", kDoodles, "--stesp", "9"}, "did you mean \"--steps\"?"},
      {{"step", "--model", "mlp", "--data", "not/there"}, "not/there"},
      {{"step", "--model", "mlp", "--data", kDoodles, "--strategy", "mirrored", "--replicas", "9",
        "--batch-size", "8"},
       "9 replicas"},
      {{"step", "--model", "mlp", "--data", kDoodles, "--json", "/not/there/x"}, "/not/there/x"},
      {{"scale", "--model", "mlp", "--data", kDoodles, "--replicas", "1,,2"}, "1,,2"},
      {{"scale", "--model", "mlp", "--data", kDoodles, "--replicas", "0"}, "--replicas"},
      {{"all-reduce", "--engine", "shn"}, "did you mean \"shm\"?"},
      {{"all-reduce", "--engine", "nccl"}, "not in this version"},
      {{"all-reduce", "--engine", "hier"}, "tutti run"},
      {{"all-reduce", "--collective", "all_gahter"}, "did you mean \"all_gather\"?"},
      {{"all-reduce", "--order", "any"}, "shm adds in one order alone"},
      {{"all-reduce", "--order", "some"}, "order"},
      {{"all-reduce", "--streams", "2"}, "--streams 2: shm has none"},
      {{"all-reduce", "--engine", "tcp", "--streams", "0"}, "--streams"},
      {{"all-reduce", "--algorithm-table", "x"}, "tcp and hier have"},
      {{"all-reduce", "--engine", "tcp", "--algorithm-table", "not/there"}, "not/there"},
      {{"all-reduce", "--engine", "mpi", "--peers"}, "--peers"},
      {{"tune", "--ranks", "1"}, "2 to 64"},
      {{"tune", "--ranks", "2,2"}, "each number once"},
      {{"tune", "--bytes", "0"}, "above 0"},
      {{"tune", "--out", "/not/there/x"}, "/not/there/x"},
      {{"all-reduce", "--engine", "solo", "--ranks", "2"}, "solo"},
      {{"all-reduce", "--ranks", "0"}, "--ranks"},
      {{"all-reduce", "--bytes", "8,1KB"}, "1KB"},
      {{"all-reduce", "--bytes", "7"}, "7"},
      {{"ps", "--engine", "tpc"}, "did you mean \"tcp\"?"},
      {{"ps", "--servers", "0"}, "--servers"},
      {{"ps", "--workers", "0"}, "--workers"},
      {{"ps", "--bytes", "0"}, "above 0"},
      {{"ps", "--bytes", "6"}, "--bytes: 6"},
      {{"ps", "--staleness", "0,-1"}, "--staleness"},
      {{"ps", "--rounds", "0"}, "--rounds"},
      {{"ps", "--rows", "0"}, "--rows"},
      {{"ps", "--rows", "8000"}, "--keys: 4096 of each of 2 workers"},
      {{"ps", "--json", "/not/there/x"}, "/not/there/x"},
      {{"compare", "--models", "mlp,cmn"}, "did you mean \"cnn\"?"},
      {{"compare", "--rounds", "0"}, "--rounds"},
      {{"step", "--model", "mlp", "--data", kDoodles, "--json", ""}, "--json"},
      {{"scale", "--model", "mlp", "--data", kDoodles, "--json", ""}, "--json"},
      {{"all-reduce", "--json", ""}, "--json"},
      {{"compare", "--json", ""}, "--json"},
      {{"scale", "--model", "mlp", "--data", "not/there", "--replicas", "1,1025"}, "1 to 1024"},
      {{"step", "--model", "resnet18", "--data", kDoodles, "--strategy", "mirrored", "--replicas",
        "2", "--batch-size", "2"},
       "batch size of 4"},
      {{"step", "--model", "resnet18", "--data", kDoodles, "--strategy", "independent",
        "--replicas", "2", "--batch-size", "2"},
       "batch size of 4"},
      {{"step", "--model", "mlp", "--data", kDoodles, "--strategy", "parameter_server",
        "--unfused"},
       "--unfused"},
  };
  for (const auto& c : cases) {
    const auto result = bench(c.words);
    EXPECT_EQ(result.exit_code, 2) << testing::PrintToString(c.words) << result.err;
    EXPECT_THAT(result.err, HasSubstr(c.answer)) << testing::PrintToString(c.words);
    EXPECT_EQ(result.out, "") << testing::PrintToString(c.words);
  }
}

// The batch is smaller than the replicas there would be: found before any worker starts.
TEST(Bench, IndependentWorkersShareTheBatchToo) {
  const auto result = bench({"step", "--model", "mlp", "--data", kDoodles, "--strategy",
                             "independent", "--replicas", "3", "--batch-size", "2"});
  EXPECT_EQ(result.exit_code, 2) << result.out;
  EXPECT_EQ(result.out, "");
  if (host_facts().usable_cores == 1) return;
  const auto counted = bench({"step", "--model", "mlp", "--data", kDoodles, "--strategy",
                              "independent", "--batch-size", "1"});
  EXPECT_EQ(counted.exit_code, 2) << counted.out;
  EXPECT_EQ(counted.out, "");
  EXPECT_THAT(counted.err, testing::StartsWith("tutti bench: --batch-size 1"));
}

TEST(Bench, HelpShowsExamples) {
  for (const char* name : {"all-reduce", "tune", "step", "scale", "ps", "compare"}) {
    const auto result = bench({name, "--help"});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(result.out, HasSubstr("tutti bench " + std::string(name))) << result.err;
  }
}

}  // namespace
}  // namespace tutti::test
