#include "tutti/cli/bench/scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <functional>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/host.h"
#include "tutti/cli/bench/runs.h"
#include "tutti/cli/bench/timing.h"
#include "tutti/cli/checks.h"
#include "tutti/data/quickdraw.h"

namespace tutti::cli {
namespace {

// One step of `replicas` replicas, each with one share of the cores that all sizes can have.
StepFlags with_replicas(const ScaleFlags& flags, int64_t replicas, int64_t threads) {
  StepFlags step = flags.step;
  step.job.replicas = replicas;
  step.job.global_batch = replicas * flags.batch_per_replica;
  step.job.threads = threads;
  // One replica alone is what every strategy is compared with: nothing to wait for, no launcher.
  if (replicas == 1) step.job.strategy = "one_device";
  return step;
}

}  // namespace

ScaleRow measure_scale(const ScaleFlags& flags, int64_t replicas, int64_t threads) {
  std::vector<double> ours, limits, ratios;
  for (int64_t round = 0; round < flags.rounds; ++round) {
    const StepFlags step = with_replicas(flags, replicas, threads);
    StepFlags alone = step;
    alone.job.strategy = "independent";
    ours.push_back(run_step(own_program(), step).at("images_per_second").get<double>());
    limits.push_back(run_step(own_program(), alone).at("images_per_second").get<double>());
    ratios.push_back(ours.back() / limits.back());
  }
  return {replicas, median(ours), median(limits), median(ratios)};
}

std::vector<int64_t> check_scale(const ScaleFlags& flags) {
  const auto counts = parse_numbers("--replicas", flags.replicas, 1, 4096);
  if (!flags.step.json.empty()) require_writable(flags.step.json, "--json");
  if (!flags.svg.empty()) require_writable(flags.svg, "--svg");
  for (const int64_t count : counts) {
    const StepFlags step = with_replicas(flags, count, 1);
    strategy_options(step.job, kTimed);
    check_shares(step.job);
    check_given_shares(step.job);
  }
  const auto train = data::quickdraw(flags.step.job.data, {.split = "train"});
  for (const int64_t count : counts) {
    StepFlags step = with_replicas(flags, count, 1);
    check_batch(step.job, train);
    const nn::Graph graph = model_for(step.job, train);
    check_batch_norm(step.job, graph, train, step.drawn_steps());
    step.job.strategy = "independent";  // the limit, measured beside it
    check_batch_norm(step.job, graph, train, step.drawn_steps());
  }
  return counts;
}

int64_t threads_of_scale(const ScaleFlags& flags, const std::vector<int64_t>& counts) {
  const int64_t most = std::ranges::max(counts);
  return flags.step.job.threads.value_or(std::max<int64_t>(1, host_facts().usable_cores / most));
}

drawings::Speeds speeds_of(const ScaleFlags& flags, const std::vector<ScaleRow>& rows) {
  drawings::Speeds speeds{
      .title = fmt::format("{} under {}: what more replicas give", flags.step.job.model,
                           flags.step.job.strategy),
      .speeds = {},
      .notes = {fmt::format("{}, {} cores; {} samples a replica and step.", host_facts().cpu_model,
                            host_facts().usable_cores, flags.batch_per_replica)}};
  for (const ScaleRow& row : rows)
    speeds.speeds.push_back({row.replicas, row.images_per_second, row.limit});
  return speeds;
}

int bench_scale(const ScaleFlags& flags) {
  const std::vector<int64_t> counts = check_scale(flags);
  if (!flags.svg.empty() && !std::ranges::is_sorted(counts, std::less_equal()))
    throw UsageError(fmt::format("--svg: got --replicas {}, expected numbers that ascend; try 1,2",
                                 flags.replicas));
  const int64_t threads = threads_of_scale(flags, counts);
  fmt::print("{} under {}, {} samples a replica, {} thread{} each, medians of {} rounds\n",
             flags.step.job.model, flags.step.job.strategy, flags.batch_per_replica, threads,
             threads == 1 ? "" : "s", flags.rounds);
  fmt::print("{:>8} {:>10} {:>8} {:>10} {:>15} {:>14}\n", "replicas", "images/s", "speedup",
             "efficiency", "limit images/s", "share of limit");
  std::string lines;
  double first = 0;
  std::vector<ScaleRow> rows;
  for (const int64_t count : counts) {
    const ScaleRow& row = rows.emplace_back(measure_scale(flags, count, threads));
    const double ours = row.images_per_second;
    if (first == 0) first = ours / static_cast<double>(counts[0]);
    const double speedup = ours / first;
    const double efficiency = speedup / static_cast<double>(count);
    fmt::print("{:>8} {:>10.0f} {:>8.2f} {:>10.2f} {:>15.0f} {:>14.2f}\n", count, ours, speedup,
               efficiency, row.limit, row.share_of_limit);
    std::fflush(stdout);
    OrderedJson line = {{"bench", "scale"},
                        {"model", flags.step.job.model},
                        {"strategy", flags.step.job.strategy},
                        {"replicas", count},
                        {"global_batch", count * flags.batch_per_replica},
                        {"images_per_second", ours},
                        {"speedup", speedup},
                        {"efficiency", efficiency},
                        {"limit_images_per_second", row.limit},
                        {"share_of_limit", row.share_of_limit}};
    line.update(surroundings());
    lines += line.dump() + "\n";
  }
  fmt::print("{}", lines);
  if (!flags.step.json.empty()) write_file_atomically(flags.step.json, lines);
  if (!flags.svg.empty()) write_file_atomically(flags.svg, drawings::svg(speeds_of(flags, rows)));
  return 0;
}

}  // namespace tutti::cli
