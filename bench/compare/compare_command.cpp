// tutti_bench compare and all-reduce: their flags.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/idle.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/bench/all_reduce_flags.h"
#include "tutti/cli/checks.h"

#include "bench/compare/commands.h"
#include "bench/compare/compare.h"
#include "bench/compare/networks.h"

namespace tutti::bench {
using namespace cli;
namespace {

constexpr int64_t kMostSteps = 100'000'000;

const std::vector<NeededBy<CompareFlags>>& needs_of_comparisons() {
  constexpr std::string_view kOfSteps = "it is of steps, and --all-reduce compares collectives";
  static const auto of_steps = [](const CompareFlags& flags) { return !flags.all_reduce; };
  static const std::vector<NeededBy<CompareFlags>> rows = {
      {"--data", of_steps, kOfSteps},
      {"--models", of_steps, kOfSteps},
      {"--steps", of_steps, kOfSteps},
      {"--ranks", [](const CompareFlags& flags) { return flags.all_reduce; },
       "it is of --all-reduce; steps are those of two replicas, tutti_bench scale has more"},
      {"--rounds", [](const CompareFlags& flags) { return !flags.quick; }, "--quick is one round"},
      {"--checked-steps", of_steps, kOfSteps}};
  return rows;
}

int beside_peers(const AllReduceFlags& flags) {
  const AllReduceBench bench = bench_of(flags);
  if (flags.engine != "shm" && flags.engine != "tcp")
    throw UsageError(fmt::format("--engine {}: peers are measured beside shm and tcp, on one host",
                                 flags.engine));
  if (!flags.json.empty()) require_writable(flags.json, "--json");
  require_memory(flags, bench);
  CollectiveComparison comparison{.engine = flags.engine,
                                  .ranks = flags.num_ranks(),
                                  .collective = bench.collective,
                                  .bytes = bench.bytes,
                                  .rounds = flags.rounds};
  if (bench.own_memory)
    comparison.memories = {"own"};
  else if (bench.collective == Collective::all_reduce)
    comparison.memories = {"engine", "own"};
  auto& words = comparison.more_words;
  words = {"--order", flags.order, "--streams", std::to_string(flags.streams)};
  if (flags.processes && !bench.own_memory) words.emplace_back("--processes");
  if (flags.no_pin) words.emplace_back("--no-pin");
  if (!flags.table.empty()) words.insert(words.end(), {"--algorithm-table", flags.table});
  CollectivePeers peers;
  const std::string lines = compare_collective(comparison, peers);
  if (!flags.json.empty()) write_file_atomically(flags.json, lines);
  return 0;
}

}  // namespace

void add_compare(Command& program) {
  auto flags = std::make_shared<CompareFlags>();
  Command& command = program.command("compare", "The same work in PyTorch, JAX and here, in turn");
  command.add("--data", "DIR", &flags->data, "Folder of doodles");
  command.add("--models", "NAME,...", &flags->models,
              fmt::format("Of mlp, cnn, wide, {}", fmt::join(network_names(), ", ")));
  command.add("--rounds", "R", &flags->rounds, whole_number(1, 1000), "Medians of so many rounds");
  command.add("--steps", "K", &flags->steps, whole_number(1, kMostSteps),
              "Timed steps (default: what takes 1.5 s)");
  command.add("--checked-steps", "K", &flags->checked_steps, whole_number(1, kMostSteps),
              "Of networks: after so many steps losses must be equal (default: 50)");
  command.add("--ranks", "N,N,...", &flags->ranks,
              "Of --all-reduce: how many, one after another, 2 to 64; "
              "those without a core of their own share cores");
  command.flag("--quick", &flags->quick, "A few steps, one round: does it still run?");
  command.flag("--all-reduce", &flags->all_reduce,
               "Collectives of shm and tcp against Open MPI, Gloo, DeepSpeed and oneCCL, "
               "instead of steps");
  command.add("--json", "FILE", &flags->json, some_name(),
              "File for the figures, a JSON object a line");
  command.footer =
      "mlp, cnn and wide are of doodles: samples a second, a row for each peer. The others are "
      "networks on\nsamples drawn once, in memory on both sides: resnet18 and resnet50 of photos "
      "(64 or 224 a side), vit,\ngpt (4 blocks of 128 features and 64 tokens, 6 of 384 and 256), "
      "lstm (2 layers of 256 units), dlrm (26\nsparse tables), unet. There the median step of two "
      "threads and of two processes stands beside the best\nof all peers in each round, beside two "
      "of ours that never talk, and its peak memory beside eager's. All\nbegin with equal weights, "
      "and after 50 steps must have the same loss within 5 %, or OTHER WORK is said.\n\n"
      "Peers are installed by tools/setup --bench; without PyTorch nothing is compared, the others "
      "are left out\nby name, and so is what a peer cannot do (PyTorch compiles no lstm and no "
      "sparse table).\n\n"
      "Examples:\n"
      "  tutti_bench compare\n"
      "  tutti_bench compare --models mlp --rounds 9 --json compare.json\n"
      "  tutti_bench compare --models resnet18@64,gpt,lstm --rounds 3\n"
      "  tutti_bench compare --all-reduce --ranks 2,4,8,16";
  command.action = [&command, flags] {
    refuse_idle(command.typed(), *flags, needs_of_comparisons());
    return compare(*flags);
  };
}

void add_scale(Command& program) {
  auto flags = std::make_shared<ScaleNetworksFlags>();
  Command& command =
      program.command("scale", "Steps of networks by number of replicas, beside their limit");
  command.add("--models", "NAME,...", &flags->models,
              fmt::format("Of {}", fmt::join(network_names(), ", ")));
  command.add("--replicas", "N,N,...", &flags->replicas,
              "How many, one after another; each has a core of its own");
  command.add("--rounds", "R", &flags->rounds, whole_number(1, 1000), "Medians of so many rounds");
  command.add("--steps", "K", &flags->steps, whole_number(1, kMostSteps),
              "Timed steps (default: what takes 1.5 s)");
  command.add("--json", "FILE", &flags->json, some_name(),
              "File for the figures, a JSON object a line");
  command.footer =
      "Each replica has the samples that one of two has in `tutti_bench compare`. Shares are the "
      "median step of as\nmany that never talk, over that of threads and of processes: 1 is a "
      "step that costs nothing to\nsynchronise. For mlp, cnn and wide: tutti bench scale.\n\n"
      "Examples:\n"
      "  tutti_bench scale --models gpt4x128 --replicas 1,2\n"
      "  tutti_bench scale --models resnet18@64,gpt,lstm --replicas 1,2,4,8,16 --json scale.json";
  command.action = [flags] { return scale_networks(*flags); };
}

void add_all_reduce(Command& program) {
  auto flags = std::make_shared<AllReduceFlags>();
  Command& command = program.command(
      "all-reduce", "A collective of shm or tcp beside Open MPI, Gloo, DeepSpeed and oneCCL");
  add_all_reduce_flags(command, *flags);
  command.footer =
      "Each round measures here and every peer in turn; the rows are medians of the rounds' "
      "ratios.\n"
      "All-reduce of shm is measured twice, with vectors in memory of the engine and in the ranks' "
      "own, as\npeers have them (--memory own: that alone).\n\n"
      "Examples:\n"
      "  tutti_bench all-reduce --engine tcp --ranks 2\n"
      "  tutti_bench all-reduce --ranks 4 --collective all_gather --bytes 64K,1M --json "
      "gather.json";
  command.action = [flags] { return beside_peers(*flags); };
}

}  // namespace tutti::bench
