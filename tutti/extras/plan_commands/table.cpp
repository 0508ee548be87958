// tutti plan table: what the networks of the zoo compute for each byte that they send.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/idle.h"
#include "tutti/base/json.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/commands.h"
#include "tutti/cli/zoo.h"
#include "tutti/plan/arithmetic.h"
#include "tutti/plan/collective_time.h"
#include "tutti/plan/link.h"

namespace tutti::cli {
namespace {

struct PlanTableFlags {
  std::vector<std::string> models;
  std::string link, json;
  int hosts = 8;
  int64_t batch = 32;
  double gflops = 1000;
};

std::vector<ZooNetwork> chosen(const std::vector<std::string>& names) {
  if (names.empty()) return zoo();
  std::vector<ZooNetwork> some;
  for (const std::string& name : names) some.push_back(zoo_network(name));
  return some;
}

/// A step of one host, by max(compute, communication).
struct StepTimes {
  double compute = 0, send = 0;
  int64_t balance = 0;  ///< samples of a host from which compute takes as long as sending
  double efficiency() const { return compute / std::max(compute, send); }
};

struct TableRow {
  std::string name, input;
  plan::Arithmetic counted;
  StepTimes times;
};

StepTimes times_of(const plan::Arithmetic& counted, const PlanTableFlags& flags,
                   const plan::Link& link) {
  const double sample = counted.operations() / (flags.gflops * 1e9);
  StepTimes times{
      .compute = sample * static_cast<double>(flags.batch),
      .send = plan::least_seconds(flags.hosts, 4 * static_cast<double>(counted.parameters), link)};
  times.balance = std::max<int64_t>(1, std::llround(std::ceil(times.send / sample)));
  return times;
}

std::vector<TableRow> rows_of(const PlanTableFlags& flags, const plan::Link& link) {
  std::vector<TableRow> rows;
  for (const auto& [name, graph] : chosen(flags.models)) {
    const plan::Arithmetic counted = plan::arithmetic_of(graph);
    rows.push_back(
        {name, nn::to_string(graph.input_shape()), counted, times_of(counted, flags, link)});
  }
  std::ranges::sort(rows, std::ranges::greater(),
                    [](const TableRow& row) { return row.counted.ratio(); });
  return rows;
}

void print(const std::vector<TableRow>& rows, const PlanTableFlags& flags, const plan::Link& link) {
  fmt::print("{:<14}{:<16}{:>15}{:>13}{:>8}{:>9}", "model", "input", "multiply-adds", "parameters",
             "ratio", "MB");
  if (!flags.link.empty())
    fmt::print("{:>12}{:>12}{:>12}  {:<14}{:>8}", "compute ms", "send ms", "efficiency", "bound by",
               "balance");
  fmt::print("\n");
  for (const TableRow& row : rows) {
    fmt::print("{:<14}{:<16}{:>15}{:>13}{:>8.1f}{:>9.1f}", row.name, row.input,
               row.counted.multiply_adds, row.counted.parameters, row.counted.ratio(),
               4e-6 * static_cast<double>(row.counted.parameters));
    if (!flags.link.empty())
      fmt::print("{:>12.4g}{:>12.4g}{:>10.1f} %  {:<14}{:>8}", 1e3 * row.times.compute,
                 1e3 * row.times.send, 100 * row.times.efficiency(),
                 row.times.compute < row.times.send ? "communication" : "compute",
                 row.times.balance);
    fmt::print("\n");
  }
  fmt::print("ratio: multiply-adds of a sample for each parameter; MB: gradients of a step\n");
  if (!flags.link.empty())
    fmt::print(
        "{} hosts of {:g} GFLOP/s, {} samples each, {}: a step is max(compute, send); balance: "
        "samples of a host from which compute covers sending\n",
        flags.hosts, flags.gflops, flags.batch, plan::words_of(link));
}

OrderedJson json_of(const std::vector<TableRow>& rows, const PlanTableFlags& flags) {
  OrderedJson all = OrderedJson::array();
  for (const TableRow& row : rows) {
    all.push_back({{"model", row.name},
                   {"multiply_adds", row.counted.multiply_adds},
                   {"parameters", row.counted.parameters},
                   {"ratio", row.counted.ratio()}});
    if (flags.link.empty()) continue;
    all.back()["compute_seconds"] = row.times.compute;
    all.back()["send_seconds"] = row.times.send;
    all.back()["efficiency"] = row.times.efficiency();
    all.back()["balance"] = row.times.balance;
  }
  return all;
}

const std::vector<NeededBy<PlanTableFlags>>& needs_of_tables() {
  constexpr std::string_view kOfSteps = "it is of steps over a link, and there is none (--link)";
  static const auto has_link = [](const PlanTableFlags& flags) { return !flags.link.empty(); };
  static const std::vector<NeededBy<PlanTableFlags>> rows = {{"--hosts", has_link, kOfSteps},
                                                             {"--batch", has_link, kOfSteps},
                                                             {"--gflops", has_link, kOfSteps}};
  return rows;
}

void plan_table(const PlanTableFlags& flags) {
  const plan::Link link = flags.link.empty() ? plan::Link{} : plan::parse_link(flags.link);
  const auto rows = rows_of(flags, link);
  print(rows, flags, link);
  if (!flags.json.empty()) write_file_atomically(flags.json, json_of(rows, flags).dump(2) + "\n");
}

}  // namespace

void add_plan_table(Command& plan) {
  const auto flags = std::make_shared<PlanTableFlags>();
  Command& command =
      plan.command("table", "Compare networks: what they compute for each byte that they send");
  command.add("models", "TEXT", &flags->models, "Of the zoo (default: all)");
  command.add("--link", "RATE,LATENCY", &flags->link,
              "Between hosts, as 25Gbit,20us: how long a step takes");
  command.add("--hosts", "INT", &flags->hosts, in_range(1, 1'000'000), "That share a step");
  command.add("--batch", "INT", &flags->batch, in_range(1, int64_t{1} << 30),
              "Samples of a host in a step");
  command.add("--gflops", "FLOAT", &flags->gflops, number_between(1e-3, 1e9),
              "That a host computes, in 10^9 operations a second");
  command.add("--json", "FILE", &flags->json, "Writes the table");
  command.footer =
      "Examples:\n"
      "  tutti plan table\n"
      "  tutti plan table alexnet resnet50 inception_v3 --link 10Gbit,50us --hosts 16 --batch 32";
  command.action = [&command, flags] {
    refuse_idle(command.typed(), *flags, needs_of_tables());
    plan_table(*flags);
    return 0;
  };
}

}  // namespace tutti::cli
