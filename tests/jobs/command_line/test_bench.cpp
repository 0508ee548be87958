// Every benchmark of `tutti bench` for a few steps, so that none rots: figures are there, not how
// good.
#include <stdexcept>

#include "tutti/base/host.h"

#include "tests/jobs/command_line/bench.h"

namespace tutti::test {
namespace {

// The line that `bench step` writes of a batch of 128 for two replicas.
json step_line(const std::string& strategy, const Words& more) {
  const TempFolder folder;
  const auto result =
      bench(words_of("step --replicas 2 --batch-size 128") +
            Words{"--data", kDoodles, "--json", folder / "f.json", "--strategy", strategy} + more);
  if (result.exit_code != 0) throw std::runtime_error(strategy + result.err);
  const auto lines = lines_of(folder / "f.json");
  EXPECT_EQ(lines.size(), 1u);
  const json& line = lines.at(0);
  EXPECT_EQ(line.at("bench"), "step");
  EXPECT_EQ(line.at("strategy"), strategy);
  EXPECT_EQ(line.at("replicas"), 2);
  EXPECT_EQ(line.at("global_batch"), 128);
  for (const char* name : {"images_per_second", "step_ms_p50", "step_ms_p99", "compute_ms",
                           "sync_ms", "data_ms", "loss"})
    EXPECT_GT(line.at(name).get<double>(), 0) << strategy << name;
  // Parts of one step, which replicas that take turns end together.
  const json& median = line.at("median_step");
  EXPECT_LE(median.at("data_ms").get<double>() + median.at("compute_ms").get<double>() +
                median.at("sync_ms").get<double>(),
            median.at("step_ms").get<double>() + 1e-6);
  EXPECT_LE(median.at("step_ms"), line.at("step_ms_p50"));
  EXPECT_LT(line.at("loss").get<double>(), 3.0) << "about log(10) at the start";
  EXPECT_THAT(result.out, HasSubstr(get_bytes(folder / "f.json"))) << "the same line";
  return line;
}

// Without --preload the others do in StepGivesTheSameLossUnderEachStrategy.
TEST(BenchSmoke, StepUnderEachStrategy) {
  const Words few = words_of("--model mlp --steps 6 --warmup 2"), free = {"--staleness", "inf"};
  for (const char* strategy : {"one_device", "mirrored", "central_storage", "multi_worker",
                               "independent", "parameter_server"}) {
    const json line = step_line(strategy, few + Words{"--preload"});
    EXPECT_EQ(line.at("model"), "mlp");
    // Of a replica at least the gradient of its largest weight.
    const json& memory = line.at("memory");
    for (const char* name : {"planned_bytes", "by_autograd_bytes"})
      EXPECT_GE(memory.at(name).get<int64_t>(), 4 * 784 * 128) << strategy << name;
    EXPECT_TRUE(memory.at("resident_bytes").is_number_integer());
  }
  step_line("parameter_server", few + free + Words{"--preload"});
  step_line("parameter_server", few + free);
  step_line("independent", few);
}

TEST(BenchSmoke, StepGivesTheSameLossUnderEachStrategy) {
  const auto loss = [](const std::string& strategy, bool unfused) {
    Words few = words_of("--model cnn --threads 1 --steps 3 --warmup 1");
    if (unfused) few.push_back("--unfused");
    return step_line(strategy, few).at("loss").get<double>();
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
    std::string members, memory = "engine";
  } cases[] = {{"shm", 3, "plain loop", {}, "threads"},
               {"shm", 2, "plain loop", {"--processes"}, "processes"},
               {"shm", 2, "plain loop", {"--processes", "--memory", "own"}, "processes", "own"},
               {"solo", 1, "plain loop", {}, "threads"},
               {"tcp", 3, "raw stream", {"--order", "any"}, "threads", "own"},
               {"tcp", 2, "raw stream", {"--processes", "--streams", "2"}, "processes", "own"}};
  for (const auto& c : cases) {
    const auto result =
        bench(words_of("all-reduce --bytes 8,1K,1M --rounds 1 --engine " + c.engine) +
              Words{"--ranks", std::to_string(c.ranks), "--json", folder / "f.json"} + c.more);
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
      EXPECT_EQ(line.at("memory"), c.memory);
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
  const Words words = words_of("all-reduce --engine mpi --ranks 2 --bytes 8,64K --rounds 1") +
                      Words{"--json", folder / "f.json"};
  const bool here = run_command({"sh", "-c", "command -v mpirun"}).exit_code == 0;
  const auto result = bench(words);
  if (!here || result.exit_code == 2) {
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, AnyOf(HasSubstr("mpirun"), HasSubstr("no MPI library")));
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
  EXPECT_THAT(bench(words, {"PATH=" + std::string(folder / "nothing")}),
              Exits(2, Err(HasSubstr("mpirun cannot be started"))));
}

TEST(BenchSmoke, TuneWritesATableThatAllReduceReads) {
  const TempFolder folder;
  const std::string table = folder / "table.json";
  ASSERT_THAT(
      bench({"tune", "--ranks", "2,3", "--bytes", "1K,64K", "--rounds", "1", "--out", table}),
      Exits(0, Out(HasSubstr("halving_doubling"))));
  const json written = json_in(table);
  EXPECT_EQ(written.at("tutti_algorithms"), 1);
  const auto& first = written.at("rows").at(0);
  EXPECT_EQ(first.at("collective"), "all_reduce");
  EXPECT_EQ(first.at("max_ranks"), 2);
  const auto with = [&](const std::string& file) {
    return bench(words_of("all-reduce --engine tcp --ranks 2 --bytes 1K --rounds 1") +
                 Words{"--algorithm-table", file});
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
  const auto result = bench({"scale", "--model", "mlp", "--replicas", "1,2", "--steps", "5",
                             "--warmup", "1", "--rounds", "1", "--data", kDoodles, "--json",
                             folder / "f.json", "--svg", folder / "d.svg"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(get_bytes(folder / "d.svg"), HasSubstr("ideal: as many times the first"));
  const auto lines = lines_of(folder / "f.json");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].at("speedup"), 1.0);
  EXPECT_EQ(lines[1].at("global_batch"), 128);
  for (const json& line : lines)
    for (const char* name :
         {"images_per_second", "efficiency", "limit_images_per_second", "share_of_limit"})
      EXPECT_GT(line.at(name).get<double>(), 0) << name;
}

// The batch is smaller than the replicas there would be: found before any worker starts.
TEST(Bench, IndependentWorkersShareTheBatchToo) {
  EXPECT_THAT(bench({"step", "--model", "mlp", "--data", kDoodles, "--strategy", "independent",
                     "--replicas", "3", "--batch-size", "2"}),
              Exits(2, Out("")));
}

TEST(Bench, IndependentWorkersAreAsManyAsCoresAndShareTheBatchToo) {
  if (host_facts().usable_cores == 1) GTEST_SKIP() << "needs two cores";
  EXPECT_THAT(bench({"step", "--model", "mlp", "--data", kDoodles, "--strategy", "independent",
                     "--batch-size", "1"}),
              Exits(2, Out(""), Err(StartsWith("tutti bench: --batch-size 1"))));
}

// It writes no checkpoints, so only workers that it starts take time to end.
TEST(Bench, GraceIsRefusedWhereNobodyHasIt) {
  const Words step = {"step",       "--model", "mlp",     "--data", kDoodles,
                      "--replicas", "2",       "--grace", "3"};
  EXPECT_THAT(bench(step + words_of("--strategy mirrored")),
              Exits(2, Err(HasSubstr("--grace 3 under mirrored: "))));
  EXPECT_THAT(tutti(Words{"run", "-n", "2", TUTTI_PROGRAM, "bench"} + step +
                    words_of("--strategy multi_worker")),
              Exits(2, Err(HasSubstr("--grace 3 under multi_worker: "))));
}

TEST(Bench, HelpShowsExamples) {
  for (const char* name : {"all-reduce", "tune", "step", "scale"}) {
    EXPECT_THAT(bench({name, "--help"}),
                Exits(0, Out(HasSubstr("tutti bench " + std::string(name)))));
  }
}

}  // namespace
}  // namespace tutti::test
