// tutti show t1-t2: computing and summing, each alone and both in a step.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "tutti/base/host.h"
#include "tutti/base/threads.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/bench/runs.h"
#include "tutti/cli/bench/timing.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/show/local_members.h"
#include "tutti/cli/show/speed.h"
#include "tutti/cli/show/time_axis.h"
#include "tutti/comm/group/group.h"
#include "tutti/comm/shm/shm.h"

namespace tutti::cli {
namespace {

using drawings::Kind;

constexpr int kSums = 9;  // odd: their median is one of them

/// The one in the middle of a few sums, of the slowest replica, of so many bytes of each.
double sum_of_gradients_ms(int replicas, int64_t bytes) {
  const auto engines = make_shm_threads(replicas);
  std::vector<std::vector<double>> times(static_cast<size_t>(replicas));
  at_once(replicas, "a replica", [&](int rank) {
    std::vector<float> gradients(static_cast<size_t>(bytes / 4), 1e-3F);
    Group group(engines[static_cast<size_t>(rank)]);
    for (int i = 0; i <= kSums; ++i) {
      group.barrier(kShowLimit);
      const TimePoint began = Clock::now();
      group
          .all_reduce({.data = gradients.data(),
                       .num_elements = std::ssize(gradients),
                       .dtype = DType::float32},
                      ReduceOp::mean, kShowLimit)
          .wait();
      if (i > 0)  // the first touches memory for the first time
        times[static_cast<size_t>(rank)].push_back(ms_between(began, Clock::now()));
    }
  });
  std::vector<double> slowest;
  for (size_t i = 0; i < kSums; ++i) {
    double most = 0;
    for (const auto& of_rank : times) most = std::max(most, of_rank[i]);
    slowest.push_back(most);
  }
  return median(slowest);
}

StepParts measure_parts(StepFlags flags) {
  const int64_t replicas = flags.job.replicas.value();
  flags.job.threads = std::max<int64_t>(1, host_facts().usable_cores / replicas);
  StepParts parts{.model = flags.job.model, .replicas = replicas};
  StepFlags alone = flags;
  alone.unfused = false;
  alone.job.strategy = "independent";
  parts.t1_ms = run_step(own_program(), alone).at("median_step").at("compute_ms").get<double>();
  flags.unfused = true;
  flags.job.strategy = "mirrored";
  const Json step = run_step(own_program(), flags);
  parts.gradient_bytes = step.at("gradient_bytes").get<int64_t>();
  const Json& median = step.at("median_step");
  parts.compute_ms = median.at("compute_ms").get<double>();
  parts.sync_ms = median.at("sync_ms").get<double>();
  parts.step_ms = median.at("step_ms").get<double>();
  parts.t2_ms = sum_of_gradients_ms(static_cast<int>(replicas), parts.gradient_bytes);
  return parts;
}

}  // namespace

Shown t1_t2_shown(const StepParts& parts) {
  const double hidden = std::max(parts.t1_ms, parts.t2_ms);
  const double end_us = 1000 * std::max({parts.t1_ms, parts.t2_ms, parts.step_ms});
  const double computed_us = 1000 * (parts.step_ms - parts.sync_ms);
  drawings::Drawing drawing;
  drawing.title = fmt::format("{}, {} replicas: t1 and t2", parts.model, parts.replicas);
  drawing.lanes = {"t1", "t2", "a step"};
  drawing.ticks = clock_ticks(end_us);
  drawing.bars = {
      {.lane = 0, .begin = 0, .end = 1000 * parts.t1_ms, .kind = Kind::first},
      {.lane = 1, .begin = 0, .end = 1000 * parts.t2_ms, .kind = Kind::second},
      {.lane = 2,
       .begin = std::max(0.0, computed_us - 1000 * parts.compute_ms),
       .end = computed_us,
       .kind = Kind::first},
      {.lane = 2, .begin = computed_us, .end = 1000 * parts.step_ms, .kind = Kind::second}};
  drawing.legend = {{Kind::first, "forward and backward; t1: of replicas that never talk"},
                    {Kind::second,
                     "sums gradients; t2: while nobody computes. In a step: what of it "
                     "is not hidden, and the update"}};
  Shown shown{.drawing = std::move(drawing),
              .figures = {{"show", "t1_t2"},
                          {"model", parts.model},
                          {"replicas", parts.replicas},
                          {"gradient_bytes", parts.gradient_bytes},
                          {"t1_ms", parts.t1_ms},
                          {"t2_ms", parts.t2_ms},
                          {"t2_over_t1", parts.t2_ms / parts.t1_ms},
                          {"all_hidden_ms", hidden},
                          {"none_hidden_ms", parts.t1_ms + parts.t2_ms},
                          {"compute_ms", parts.compute_ms},
                          {"sync_ms", parts.sync_ms},
                          {"step_ms", parts.step_ms}},
              .lines = {}};
  shown.lines = {
      fmt::format("t1 {:.2f} ms; t2 {:.2f} ms for {} bytes of gradients: {:.2f} of t1", parts.t1_ms,
                  parts.t2_ms, parts.gradient_bytes, parts.t2_ms / parts.t1_ms),
      fmt::format(
          "a step took {:.2f} ms; {:.2f} were one that hides all sums, {:.2f} one that hides "
          "none",
          parts.step_ms, hidden, parts.t1_ms + parts.t2_ms)};
  for (const std::string& line : shown.lines) shown.drawing.notes.push_back(line + ".");
  shown.drawing.notes.emplace_back(
      "Each column is one step, or sum, that was measured: the median one, by how long it took.");
  return shown;
}

void add_show_t1_t2(Command& show) {
  struct Flags {
    ShowFlags show{.svg = "t1-t2.svg"};
    StepFlags step;
    int64_t replicas = 2, batch = 64;
  };
  auto flags = std::make_shared<Flags>();
  flags->step.steps = 30;
  flags->step.warmup = 5;
  flags->step.preload = true;
  flags->step.job.data = "examples/data/quickdraw";
  Command& command =
      show.command("t1-t2", "What a step is made of: computing, and summing gradients");
  command.place("MODEL", &flags->step.job.model,
                one_of("model", {"mlp", "cnn", "wide", "doodle_cnn", "resnet18"}),
                "mlp, cnn or wide");
  command.add("--data", "DIR", &flags->step.job.data, "Folder of doodles");
  command
      .add("--replicas", "N", &flags->replicas, whole_number(1, int64_t{1} << 31),
           "Threads here, 2 to 12")
      .short_name = "-n";
  command.add("--batch-per-replica", "B", &flags->batch, whole_number(1, 1 << 24),
              "Samples of a step, a replica");
  command.add("--steps", "K", &flags->step.steps, whole_number(1, 100'000), "Timed steps");
  add_show_flags(command, flags->show);
  command.footer = "Example:\n  tutti show t1-t2 wide --data examples/data/quickdraw";
  command.action = [flags] {
    require_on_screen("-n", flags->replicas, 2, 12, "-n 2, or `tutti plan` for many hosts");
    StepFlags& step = flags->step;
    step.job.replicas = flags->replicas;
    step.job.global_batch = flags->replicas * flags->batch;
    ScaleFlags same{.step = step,
                    .replicas = std::to_string(flags->replicas),
                    .batch_per_replica = flags->batch};
    same.step.job.strategy = "mirrored";
    check_scale(same);
    require_outputs(flags->show);
    return present(t1_t2_shown(measure_parts(step)), flags->show);
  };
}

}  // namespace tutti::cli
