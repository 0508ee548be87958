// tutti bench: the flags of the benchmarks. What each measures is in its own file.
#include <fmt/format.h>

#include <memory>

#include <CLI/CLI.hpp>

#include "tutti/base/error.h"
#include "tutti/cli/bench/commands.h"
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

// What compares with programs of others is one of bench/. Answered for one release.
void add_moved(CLI::App& bench, const std::string& name, const std::string& now) {
  CLI::App* command = bench.add_subcommand(name, "Moved to tutti_bench")->group("");
  command->prefix_command();
  command->callback([name, now] { throw UsageError(moved(name, now)); });
}

}  // namespace

std::string moved(const std::string& name, const std::string& now) {
  return fmt::format(
      "bench {} is `tutti_bench {}` now: a program for checkouts, build/bin/tutti_bench, that "
      "`make bench` builds",
      name, now);
}

void add_bench(CLI::App& app, int& exit_code) {
  CLI::App* bench = app.add_subcommand("bench", "Measure: all-reduce, tune, step, scale");
  bench->require_subcommand(1);
  bench->footer(
      "Example:\n  tutti bench step --model mlp --strategy mirrored --replicas 2 --data "
      "examples/data/quickdraw");
  add_bench_all_reduce(*bench, exit_code);
  add_bench_tune(*bench, exit_code);
  add_step(*bench, exit_code);
  add_scale(*bench, exit_code);
  add_moved(*bench, "ps", "servers");
  add_moved(*bench, "compare", "compare");
}

}  // namespace tutti::cli
