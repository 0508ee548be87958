// tutti plan: what a training would do, before it does it. Of pipelines here.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/idle.h"
#include "tutti/base/json.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/commands.h"
#include "tutti/mesh/check.h"
#include "tutti/mesh/picture.h"
#include "tutti/mesh/schedule.h"
#include "tutti/mesh/simulate.h"

namespace tutti::cli {
namespace {

constexpr double kLongest = 1e12;  // of a time, in whatever unit

struct PipelineFlags {
  mesh::Plan plan{.ranks = 4, .microbatches = 8};
  std::string schedule = "all";
  std::vector<double> forward{1}, backward{1}, weight{1};
  double send = 0;
  std::string svg, csv, json;
};

bool is_ours(const PipelineFlags& flags) {
  return std::filesystem::path(flags.schedule).extension() != ".csv";
}

// A row takes about 0.6 KB for each: 0.6 GB.
constexpr int64_t kMostParts = 1 << 20;

void require_small(const mesh::Plan& plan) {
  const int64_t parts = int64_t{plan.ranks} * plan.microbatches * plan.chunks;
  if (parts > kMostParts)
    throw UsageError(fmt::format(
        "--ranks {} times --microbatches {} times --chunks {} are {} parts of a step; expected at "
        "most {}: idle time and memory are told by fewer as well",
        plan.ranks, plan.microbatches, plan.chunks, parts, kMostParts));
}

// "all" are those that can be had.
std::vector<std::string> names_of(const PipelineFlags& flags) {
  if (flags.schedule != "all") return {flags.schedule};
  std::vector<std::string> names = mesh::schedule_names();
  if (flags.plan.microbatches % flags.plan.ranks != 0) std::erase(names, "interleaved");
  return names;
}

mesh::Schedule schedule_of(const PipelineFlags& flags, const std::string& name) {
  if (!is_ours(flags)) {
    auto own = mesh::from_csv(read_file(name), name);
    mesh::check(own);
    return own;
  }
  mesh::Plan plan = flags.plan;
  if (flags.schedule == "all" && name != "interleaved") plan.chunks = 1;
  return mesh::schedule_by_name(name, plan);
}

// One number is of all layers of a rank, whatever they are cut into.
mesh::Costs costs_of(const PipelineFlags& flags, const mesh::Schedule& schedule) {
  const size_t count = std::max({flags.forward.size(), flags.backward.size(), flags.weight.size()});
  const auto cost = [&](const char* name, const std::vector<double>& given, size_t stage) {
    if (given.size() != 1 && given.size() != count)
      throw UsageError(fmt::format("--{}: {} numbers, expected 1, or {}: one a stage", name,
                                   given.size(), count));
    return count == 1 ? given[0] / schedule.chunks : given[given.size() == 1 ? 0 : stage];
  };
  mesh::Costs costs{.send = flags.send};
  for (size_t stage = 0; stage < count; ++stage)
    costs.stages.push_back({.forward = cost("forward", flags.forward, stage),
                            .backward = cost("backward", flags.backward, stage),
                            .weight = cost("weight", flags.weight, stage)});
  return costs;
}

struct Row {
  std::string name;
  int ranks = 0, chunks = 0, microbatches = 0;
  double seconds = 0, bubble = 0;
  std::vector<int> kept;  // by rank, activations at most
  /// Microbatches of a whole rank, on the rank that keeps most.
  double most_kept() const { return static_cast<double>(std::ranges::max(kept)) / chunks; }
};

// And the files that show it: the actions themselves are let go.
Row row_of(const mesh::Schedule& schedule, const PipelineFlags& flags) {
  const mesh::Simulation simulation = mesh::simulate(schedule, costs_of(flags, schedule));
  if (!flags.svg.empty()) write_file_atomically(flags.svg, mesh::to_svg(schedule, simulation));
  if (!flags.csv.empty()) write_file_atomically(flags.csv, mesh::to_csv(schedule));
  return {.name = schedule.name,
          .ranks = schedule.ranks(),
          .chunks = schedule.chunks,
          .microbatches = schedule.microbatches,
          .seconds = simulation.seconds,
          .bubble = simulation.bubble(),
          .kept = mesh::peak_activations(schedule)};
}

void print_table(const std::vector<Row>& rows) {
  fmt::print("{:<14}{:>8}{:>12}{:>10}{:>18}\n", "schedule", "chunks", "time", "idle",
             "kept microbatches");
  for (const Row& row : rows)
    fmt::print("{:<14}{:>8}{:>12.6g}{:>8.1f} %{:>18.1f}\n", row.name, row.chunks, row.seconds,
               100 * row.bubble, row.most_kept());
}

Json json_of(const std::vector<Row>& rows) {
  Json all = Json::array();
  for (const Row& row : rows)
    all.push_back({{"schedule", row.name},
                   {"ranks", row.ranks},
                   {"chunks", row.chunks},
                   {"microbatches", row.microbatches},
                   {"time", row.seconds},
                   {"bubble", row.bubble},
                   {"peak_activations", row.kept}});
  return all;
}

const std::vector<NeededBy<PipelineFlags>>& needs_of_pipelines() {
  constexpr std::string_view kInTheFile = "the schedule of a file has its own";
  static const std::vector<NeededBy<PipelineFlags>> rows = {
      {"--ranks", is_ours, kInTheFile},
      {"--microbatches", is_ours, kInTheFile},
      {"--chunks",
       [](const PipelineFlags& flags) {
         return flags.schedule == "all" || flags.schedule == "interleaved";
       },
       "only schedule interleaved has a choice of them"}};
  return rows;
}

void plan_pipeline(const PipelineFlags& flags) {
  if ((!flags.svg.empty() || !flags.csv.empty()) && flags.schedule == "all")
    throw UsageError("--svg and --csv are of one schedule: name it with --schedule");
  if (is_ours(flags)) require_small(flags.plan);
  std::vector<Row> rows;
  for (const std::string& name : names_of(flags))
    rows.push_back(row_of(schedule_of(flags, name), flags));
  print_table(rows);
  if (!flags.json.empty()) write_file_atomically(flags.json, json_of(rows).dump(2) + "\n");
}

}  // namespace

void add_plan(Command& program) {
  Command& plan =
      program.command("plan", "Say what a training would cost, and measure what that takes");
  add_plan_prediction(plan);
  add_plan_measure(plan);
  add_plan_table(plan);
  add_plan_replay(plan);
  add_plan_hlo(plan);
  Command& command =
      plan.command("pipeline", "Compare the schedules of a pipeline: idle time, microbatches kept");
  const auto flags = std::make_shared<PipelineFlags>();
  command.add("--ranks", "INT", &flags->plan.ranks, in_range(1, 4096),
              "That the model is cut over");
  command.add("--microbatches", "INT", &flags->plan.microbatches, in_range(1, 1 << 16),
              "Of a step");
  command.add("--chunks", "INT", &flags->plan.chunks, in_range(1, 64),
              "Of layers a rank: for \"interleaved\"");
  command.add("--schedule", "TEXT", &flags->schedule,
              fmt::format("One of {}; all of them; or a file of your own, NAME.csv",
                          fmt::join(mesh::schedule_names(), ", ")));
  const auto add_cost = [&](const char* name, std::vector<double>& to, const char* help) {
    Argument& cost = command.add(name, "FLOAT", &to, number_between(0, kLongest), help);
    cost.several = Several::words_or_commas;
    cost.preset = "";
  };
  add_cost("--forward", flags->forward,
           "Time of a microbatch through a rank's layers; or one number a stage, with commas");
  add_cost("--backward", flags->backward, "The same of the gradient of a stage's input");
  add_cost("--weight", flags->weight, "The same of the gradients of its parameters");
  command.add("--send", "FLOAT", &flags->send, number_between(0, kLongest),
              "Time from one rank to another");
  command.add("--svg", "FILE", &flags->svg, "Draws the schedule");
  command.add("--csv", "FILE", &flags->csv, "Writes it as text, to be changed by hand");
  command.add("--json", "FILE", &flags->json, "Writes the table");
  command.footer =
      "Examples:\n"
      "  tutti plan pipeline --ranks 4 --microbatches 8\n"
      "  tutti plan pipeline --ranks 2 --microbatches 8 --schedule zb-h1 --svg zb-h1.svg\n"
      "  tutti plan pipeline --schedule own.csv --forward 1,1,2 --backward 1,1,2 --weight 1,1,2";
  command.action = [&command, flags] {
    refuse_idle(command.typed(), *flags, needs_of_pipelines());
    plan_pipeline(*flags);
    return 0;
  };
}

}  // namespace tutti::cli
