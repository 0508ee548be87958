// tutti bench: the flags of the benchmarks. What each measures is in its own file.
#include <memory>

#include <CLI/CLI.hpp>

#include "tutti/base/error.h"
#include "tutti/base/idle.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/bench/commands.h"
#include "tutti/cli/bench/compare.h"
#include "tutti/cli/bench/scale.h"
#include "tutti/cli/bench/step.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/commands.h"

namespace tutti::cli {
namespace {

constexpr int64_t kMostSteps = 100'000'000;

void add_model_flag(CLI::App& app, std::string& model) {
  app.add_option("--model", model, "mlp, cnn or wide")
      ->required()
      ->check(one_of("model", {"mlp", "cnn", "wide", "doodle_cnn", "resnet18"}))
      ->type_name("NAME");
}

void add_json_flag(CLI::App& app, std::string& json) {
  app.add_option("--json", json, "File for the figures, a JSON object a line")
      ->check(some_name())
      ->type_name("FILE");
}

void add_step_flags(CLI::App& app, StepFlags& flags) {
  app.add_option("--steps", flags.steps, "Timed steps")
      ->check(whole_number(1, kMostSteps))
      ->type_name("K")
      ->capture_default_str();
  app.add_option("--warmup", flags.warmup, "Steps before the clock starts")
      ->check(whole_number(0, kMostSteps))
      ->type_name("K")
      ->capture_default_str();
  app.add_flag("--preload", flags.preload, "Make batches before the clock starts");
  app.add_flag("--unfused", flags.unfused,
               "All-reduce, then update every replica, instead of the "
               "fused step");
  app.add_flag("--by-autograd", flags.by_autograd,
               "Run the graph layer by layer, as autograd does, instead of as one planned step");
}

void add_step(CLI::App& bench, int& exit_code) {
  auto flags = std::make_shared<StepFlags>();
  CLI::App* command = bench.add_subcommand("step", "What a training step costs, and where it goes");
  add_model_flag(*command, flags->job.model);
  add_job_flags(*command, flags->job, {"independent"});
  add_step_flags(*command, *flags);
  add_json_flag(*command, flags->json);
  command->footer(
      "Strategy `independent` trains as many processes that never talk to each other: the "
      "limit.\n\n"
      "Examples:\n"
      "  tutti bench step --model mlp --strategy mirrored --replicas 2 --data "
      "examples/data/quickdraw\n"
      "  tutti bench step --model wide --strategy multi_worker --replicas 2 --batch-size 128 "
      "--steps 100 --data examples/data/quickdraw --json step.json\n"
      "  tutti bench step --model wide --strategy mirrored --replicas 2 --compression powersgd:4 "
      "--data examples/data/quickdraw");
  command->callback([flags, &exit_code] { exit_code = bench_step(*flags); });
}

void add_scale(CLI::App& bench, int& exit_code) {
  auto flags = std::make_shared<ScaleFlags>();
  JobFlags& job = flags->step.job;
  job.strategy = "mirrored";
  CLI::App* command =
      bench.add_subcommand("scale", "Speed by number of replicas, beside its limit");
  add_model_flag(*command, job.model);
  command->add_option("--data", job.data, "Folder of doodles")->required()->type_name("DIR");
  command->add_option("--strategy", job.strategy, "mirrored or multi_worker")
      ->check(one_of("strategy", {"mirrored", "multi_worker"}))
      ->type_name("NAME")
      ->capture_default_str();
  command->add_option("--replicas", flags->replicas, "How many, one after another")
      ->type_name("N,N,...")
      ->capture_default_str();
  command
      ->add_option("--batch-per-replica", flags->batch_per_replica, "Samples of a step, a replica")
      ->check(whole_number(1, 1 << 24))
      ->type_name("B")
      ->capture_default_str();
  command
      ->add_option("--threads", job.threads,
                   "Of LibTorch in each replica (default: usable cores / most replicas)")
      ->check(whole_number(1, 1024))
      ->type_name("T");
  command->add_option("--rounds", flags->rounds, "Medians of so many rounds")
      ->check(whole_number(1, 1000))
      ->type_name("R")
      ->capture_default_str();
  add_step_flags(*command, flags->step);
  add_json_flag(*command, flags->step.json);
  command->footer(
      "Example:\n  tutti bench scale --model cnn --replicas 1,2,4 --data "
      "examples/data/quickdraw");
  command->callback([flags, &exit_code] { exit_code = bench_scale(*flags); });
}

const std::vector<NeededBy<CompareFlags>>& needs_of_comparisons() {
  constexpr std::string_view kOfSteps = "it is of steps, and --all-reduce compares collectives";
  static const auto of_steps = [](const CompareFlags& flags) { return !flags.all_reduce; };
  static const std::vector<NeededBy<CompareFlags>> rows = {
      {"--data", of_steps, kOfSteps},
      {"--models", of_steps, kOfSteps},
      {"--steps", of_steps, kOfSteps},
      {"--rounds", [](const CompareFlags& flags) { return !flags.quick; }, "--quick is one round"}};
  return rows;
}

void add_compare(CLI::App& bench, int& exit_code) {
  auto flags = std::make_shared<CompareFlags>();
  CLI::App* command =
      bench.add_subcommand("compare", "The same work in PyTorch, JAX and here, in turn");
  command->add_option("--data", flags->data, "Folder of doodles")
      ->type_name("DIR")
      ->capture_default_str();
  command->add_option("--models", flags->models, "Of mlp, cnn, wide")
      ->type_name("NAME,...")
      ->capture_default_str();
  command->add_option("--rounds", flags->rounds, "Medians of so many rounds")
      ->check(whole_number(1, 1000))
      ->type_name("R")
      ->capture_default_str();
  command->add_option("--steps", flags->steps, "Timed steps (default: what takes 1.5 s)")
      ->check(whole_number(1, kMostSteps))
      ->type_name("K");
  command->add_flag("--quick", flags->quick, "A few steps, one round: does it still run?");
  command->add_flag("--all-reduce", flags->all_reduce,
                    "Collectives of shm and tcp against Open MPI, Gloo, DeepSpeed and oneCCL, "
                    "instead of steps");
  add_json_flag(*command, flags->json);
  command->footer(
      "Peers are installed by tools/setup --bench; without PyTorch nothing is compared, the others "
      "are left out by name.\n\n"
      "Examples:\n"
      "  tutti bench compare\n"
      "  tutti bench compare --models mlp --rounds 9 --json compare.json\n"
      "  tutti bench compare --all-reduce");
  command->callback([command, flags, &exit_code] {
    refuse_idle(typed_in(*command), *flags, needs_of_comparisons());
    exit_code = bench_compare(*flags);
  });
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  CLI::App* bench =
      app.add_subcommand("bench", "Measure: all-reduce, tune, step, scale, ps, compare");
  bench->require_subcommand(1);
  bench->footer(
      "Example:\n  tutti bench step --model mlp --strategy mirrored --replicas 2 --data "
      "examples/data/quickdraw");
  add_bench_all_reduce(*bench, exit_code);
  add_bench_tune(*bench, exit_code);
  add_step(*bench, exit_code);
  add_scale(*bench, exit_code);
  add_bench_ps(*bench, exit_code);
  add_compare(*bench, exit_code);
}

}  // namespace tutti::cli
