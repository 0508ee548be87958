// tutti bench: the flags of the benchmarks. What each measures is in its own file.
#include <fmt/format.h>

#include <memory>

#include "tutti/base/error.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/bench/commands.h"
#include "tutti/cli/bench/scale.h"
#include "tutti/cli/bench/step.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/commands.h"

namespace tutti::cli {
namespace {

constexpr int64_t kMostSteps = 100'000'000;

void add_model_flag(Command& command, std::string& model) {
  command
      .add("--model", "NAME", &model,
           one_of("model", {"mlp", "cnn", "wide", "doodle_cnn", "resnet18"}), "mlp, cnn or wide")
      .required = true;
}

void add_json_flag(Command& command, std::string& json) {
  command.add("--json", "FILE", &json, some_name(), "File for the figures, a JSON object a line");
}

void add_step_flags(Command& command, StepFlags& flags) {
  command.add("--steps", "K", &flags.steps, whole_number(1, kMostSteps), "Timed steps");
  command.add("--warmup", "K", &flags.warmup, whole_number(0, kMostSteps),
              "Steps before the clock starts");
  command.flag("--preload", &flags.preload, "Make batches before the clock starts");
  command.flag("--unfused", &flags.unfused,
               "All-reduce, then update every replica, instead of the "
               "fused step");
  command.flag("--by-autograd", &flags.by_autograd,
               "Run the graph layer by layer, as autograd does, instead of as one planned step");
}

void add_step(Command& bench) {
  auto flags = std::make_shared<StepFlags>();
  Command& command = bench.command("step", "What a training step costs, and where it goes");
  add_model_flag(command, flags->job.model);
  add_job_flags(command, flags->job, {"independent"});
  add_step_flags(command, *flags);
  add_json_flag(command, flags->json);
  command.footer =
      "Strategy `independent` trains as many processes that never talk to each other: the "
      "limit.\n\n"
      "Examples:\n"
      "  tutti bench step --model mlp --strategy mirrored --replicas 2 --data "
      "examples/data/quickdraw\n"
      "  tutti bench step --model wide --strategy multi_worker --replicas 2 --batch-size 128 "
      "--steps 100 --data examples/data/quickdraw --json step.json\n"
      "  tutti bench step --model wide --strategy mirrored --replicas 2 --compression powersgd:4 "
      "--data examples/data/quickdraw";
  command.action = [flags] { return bench_step(*flags); };
}

void add_scale(Command& bench) {
  auto flags = std::make_shared<ScaleFlags>();
  JobFlags& job = flags->step.job;
  job.strategy = "mirrored";
  Command& command = bench.command("scale", "Speed by number of replicas, beside its limit");
  add_model_flag(command, job.model);
  command.add("--data", "DIR", &job.data, "Folder of doodles").required = true;
  command.add("--strategy", "NAME", &job.strategy, one_of("strategy", {"mirrored", "multi_worker"}),
              "mirrored or multi_worker");
  command.add("--replicas", "N,N,...", &flags->replicas, "How many, one after another");
  command.add("--batch-per-replica", "B", &flags->batch_per_replica, whole_number(1, 1 << 24),
              "Samples of a step, a replica");
  command.add("--threads", "T", &job.threads, whole_number(1, 1024),
              "Of LibTorch in each replica (default: usable cores / most replicas)");
  command.add("--rounds", "R", &flags->rounds, whole_number(1, 1000), "Medians of so many rounds");
  add_step_flags(command, flags->step);
  add_json_flag(command, flags->step.json);
  command.add("--svg", "FILE", &flags->svg, some_name(), "A picture, with the ideal line");
  command.footer =
      "Example:\n  tutti bench scale --model cnn --replicas 1,2,4 --data "
      "examples/data/quickdraw";
  command.action = [flags] { return bench_scale(*flags); };
}

// What compares with programs of others is one of bench/. Answered for one release.
void add_moved(Command& bench, const std::string& name, const std::string& now) {
  Command& command = bench.command(name, "Moved to tutti_bench");
  command.hidden = true;
  command.starts_program = true;
  command.action = [name, now]() -> int { throw UsageError(moved(name, now)); };
}

}  // namespace

std::string moved(const std::string& name, const std::string& now) {
  return fmt::format(
      "bench {} is `tutti_bench {}` now: a program for checkouts, build/bin/tutti_bench, that "
      "`make bench` builds",
      name, now);
}

void add_bench(Command& program) {
  Command& bench = program.command("bench", "Measure: all-reduce, tune, step, scale");
  bench.footer =
      "Example:\n  tutti bench step --model mlp --strategy mirrored --replicas 2 --data "
      "examples/data/quickdraw";
  add_bench_all_reduce(bench);
  add_bench_tune(bench);
  add_step(bench);
  add_scale(bench);
  add_moved(bench, "ps", "servers");
  add_moved(bench, "compare", "compare");
}

}  // namespace tutti::cli
