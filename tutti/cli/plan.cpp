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

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/commands.h"
#include "tutti/layout/check.h"
#include "tutti/layout/picture.h"
#include "tutti/layout/schedule.h"
#include "tutti/layout/simulate.h"

namespace tutti::cli {
namespace {

struct PipelineFlags {
  layout::Plan plan{.ranks = 4, .microbatches = 8};
  std::string schedule = "all";
  std::vector<double> forward{1}, backward{1}, weight{1};
  double send = 0;
  std::string svg, csv, json;
};

// A name, a file, or "all" that can be had.
std::vector<layout::Schedule> schedules_of(const PipelineFlags& flags) {
  if (std::filesystem::path(flags.schedule).extension() == ".csv") {
    auto own = layout::from_csv(read_file(flags.schedule), flags.schedule);
    layout::check(own);
    return {own};
  }
  if (flags.schedule != "all") return {layout::schedule_by_name(flags.schedule, flags.plan)};
  std::vector<layout::Schedule> all;
  for (const std::string& name : layout::schedule_names()) {
    if (name == "interleaved" && flags.plan.microbatches % flags.plan.ranks != 0) continue;
    layout::Plan plan = flags.plan;
    if (name != "interleaved") plan.chunks = 1;
    all.push_back(layout::schedule_by_name(name, plan));
  }
  return all;
}

// One number is of all layers of a rank, whatever they are cut into.
layout::Costs costs_of(const PipelineFlags& flags, const layout::Schedule& schedule) {
  const size_t count = std::max({flags.forward.size(), flags.backward.size(), flags.weight.size()});
  const auto cost = [&](const char* name, const std::vector<double>& given, size_t stage) {
    if (given.size() != 1 && given.size() != count)
      throw UsageError(fmt::format("--{}: {} numbers, expected 1, or {}: one a stage", name,
                                   given.size(), count));
    return count == 1 ? given[0] / schedule.chunks : given[given.size() == 1 ? 0 : stage];
  };
  layout::Costs costs{.send = flags.send};
  for (size_t stage = 0; stage < count; ++stage)
    costs.stages.push_back({.forward = cost("forward", flags.forward, stage),
                            .backward = cost("backward", flags.backward, stage),
                            .weight = cost("weight", flags.weight, stage)});
  return costs;
}

struct Row {
  layout::Schedule schedule;
  layout::Simulation simulation;
  double kept = 0;  // microbatches of a whole rank, on the rank that keeps most
};

Row row_of(layout::Schedule schedule, const PipelineFlags& flags) {
  layout::Simulation simulation = layout::simulate(schedule, costs_of(flags, schedule));
  const double kept =
      static_cast<double>(std::ranges::max(layout::peak_activations(schedule))) / schedule.chunks;
  return {std::move(schedule), std::move(simulation), kept};
}

void print_table(const std::vector<Row>& rows) {
  fmt::print("{:<14}{:>8}{:>12}{:>10}{:>18}\n", "schedule", "chunks", "time", "idle",
             "kept microbatches");
  for (const Row& row : rows)
    fmt::print("{:<14}{:>8}{:>12.6g}{:>8.1f} %{:>18.1f}\n", row.schedule.name, row.schedule.chunks,
               row.simulation.seconds, 100 * row.simulation.bubble(), row.kept);
}

nlohmann::json json_of(const std::vector<Row>& rows) {
  nlohmann::json all = nlohmann::json::array();
  for (const Row& row : rows)
    all.push_back({{"schedule", row.schedule.name},
                   {"ranks", row.schedule.ranks()},
                   {"chunks", row.schedule.chunks},
                   {"microbatches", row.schedule.microbatches},
                   {"time", row.simulation.seconds},
                   {"bubble", row.simulation.bubble()},
                   {"peak_activations", layout::peak_activations(row.schedule)}});
  return all;
}

void plan_pipeline(const PipelineFlags& flags) {
  if ((!flags.svg.empty() || !flags.csv.empty()) && flags.schedule == "all")
    throw UsageError("--svg and --csv are of one schedule: name it with --schedule");
  std::vector<Row> rows;
  for (auto& schedule : schedules_of(flags)) rows.push_back(row_of(std::move(schedule), flags));
  print_table(rows);
  const Row& first = rows.front();
  if (!flags.svg.empty())
    write_file_atomically(flags.svg, layout::to_svg(first.schedule, first.simulation));
  if (!flags.csv.empty()) write_file_atomically(flags.csv, layout::to_csv(first.schedule));
  if (!flags.json.empty()) write_file_atomically(flags.json, json_of(rows).dump(2) + "\n");
}

}  // namespace

void add_plan(CLI::App& app, int& exit_code) {
  CLI::App* const plan =
      app.add_subcommand("plan", "Say what a training would cost, and measure what that takes");
  plan->require_subcommand(0, 1);
  add_plan_prediction(*plan, exit_code);
  add_plan_measure(*plan, exit_code);
  add_plan_table(*plan, exit_code);
  add_plan_replay(*plan, exit_code);
  CLI::App* const command = plan->add_subcommand(
      "pipeline", "Compare the schedules of a pipeline: idle time, microbatches kept");
  const auto flags = std::make_shared<PipelineFlags>();
  command->add_option("--ranks", flags->plan.ranks, "That the model is cut over")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--microbatches", flags->plan.microbatches, "Of a step")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command->add_option("--chunks", flags->plan.chunks, "Of layers a rank: for \"interleaved\"")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command
      ->add_option("--schedule", flags->schedule,
                   fmt::format("One of {}; all of them; or a file of your own, NAME.csv",
                               fmt::join(layout::schedule_names(), ", ")))
      ->capture_default_str();
  const auto add_cost = [&](const char* name, std::vector<double>& to, const char* help) {
    command->add_option(name, to, help)->delimiter(',')->check(CLI::NonNegativeNumber);
  };
  add_cost("--forward", flags->forward,
           "Time of a microbatch through a rank's layers; or one number a stage, with commas");
  add_cost("--backward", flags->backward, "The same of the gradient of a stage's input");
  add_cost("--weight", flags->weight, "The same of the gradients of its parameters");
  command->add_option("--send", flags->send, "Time from one rank to another")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--svg", flags->svg, "Draws the schedule")->type_name("FILE");
  command->add_option("--csv", flags->csv, "Writes it as text, to be changed by hand")
      ->type_name("FILE");
  command->add_option("--json", flags->json, "Writes the table")->type_name("FILE");
  command->footer(
      "Examples:\n"
      "  tutti plan pipeline --ranks 4 --microbatches 8\n"
      "  tutti plan pipeline --ranks 2 --microbatches 8 --schedule zb-h1 --svg zb-h1.svg\n"
      "  tutti plan pipeline --schedule own.csv --forward 1,1,2 --backward 1,1,2 --weight 1,1,2");
  command->callback([flags, &exit_code] {
    plan_pipeline(*flags);
    exit_code = 0;
  });
}

}  // namespace tutti::cli
