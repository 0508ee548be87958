// tutti plan replay: what a run would have cost without some of its ranks, from its traces.
#include "tutti/extras/replay/replay.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/commands.h"
#include "tutti/extras/replay/run_record.h"

namespace tutti::cli {
namespace {

struct ReplayFlags {
  std::string folder, without, json;
  int64_t skip = 1;
};

/// What is printed and kept.
struct ReplayAnswer {
  plan::RunRecord record;
  std::vector<int> without;
  plan::Replayed as_it_was, without_them;
  std::vector<plan::RankCost> ranks;
};

plan::RunRecord record_of(const ReplayFlags& flags) {
  plan::RunRecord record = plan::read_run(flags.folder);
  if (flags.skip >= std::ssize(record.steps))
    throw UsageError(fmt::format("--skip {}: the run in {} has {} steps; expected fewer",
                                 flags.skip, flags.folder, record.steps.size()));
  record.steps.erase(record.steps.begin(), record.steps.begin() + flags.skip);
  return record;
}

ReplayAnswer answer_to(const ReplayFlags& flags) {
  ReplayAnswer answer;
  if (!flags.without.empty()) answer.without = plan::parse_ranks(flags.without);
  answer.record = record_of(flags);
  answer.as_it_was = plan::replay(answer.record);
  answer.without_them = plan::replay(answer.record, answer.without);
  answer.ranks = plan::costs_of_ranks(answer.record);
  return answer;
}

void print_times(const ReplayAnswer& answer) {
  const auto row = [](const std::string& name, const plan::Replayed& times) {
    fmt::print("{:<24}{:>14.3f}{:>12.3f}{:>12.3f}{:>12.0f}\n", name, 1e3 * times.mean(),
               1e3 * times.median(), 1e3 * times.exposed, times.samples_per_second());
  };
  fmt::print("{:<24}{:>14}{:>12}{:>12}{:>12}\n", "", "step ms: mean", "median", "exposed",
             "images/s");
  row("as it was", answer.as_it_was);
  if (!answer.without.empty())
    row(fmt::format("without rank {}", fmt::join(answer.without, ", ")), answer.without_them);
}

void print_ranks(const ReplayAnswer& answer) {
  const auto steps = static_cast<double>(answer.record.steps.size());
  fmt::print("\n{:<6}{:>16}{:>10}{:>22}\n", "rank", "there after ms", "last in", "costs ms a step");
  for (size_t rank = 0; rank < answer.ranks.size(); ++rank) {
    const plan::RankCost& cost = answer.ranks[rank];
    fmt::print("{:<6}{:>16.3f}{:>8.1f} %{:>22.3f}\n", rank, 1e3 * cost.there,
               100 * static_cast<double>(cost.last) / steps, 1e3 * cost.seconds);
  }
}

void print(const ReplayAnswer& answer, const ReplayFlags& flags) {
  fmt::print("{}: {} ranks of {}, {} steps (the first {} left out)\n", flags.folder,
             answer.record.ranks(), answer.record.strategy, answer.record.steps.size(), flags.skip);
  if (!answer.record.whole) fmt::print("a trace was full: the steps after these are not known\n");
  print_times(answer);
  print_ranks(answer);
  fmt::print(
      "exposed: behind the last backward pass, what nothing hid; there: the rank had its "
      "gradients; "
      "last: all waited for it; costs: what a step would "
      "be shorter without it\n");
  if (!answer.without.empty())
    fmt::print(
        "assumed: the other {} ranks compute what they did, on their own {:.1f} % of each step's "
        "samples; sum, update and communication take as long as they did for {}\n",
        std::ssize(answer.ranks) - std::ssize(answer.without),
        100 * answer.without_them.samples / answer.as_it_was.samples, answer.ranks.size());
}

OrderedJson json_of(const plan::Replayed& times) {
  return {{"mean_step_ms", 1e3 * times.mean()},
          {"median_step_ms", 1e3 * times.median()},
          {"exposed_ms", 1e3 * times.exposed},
          {"images_per_second", times.samples_per_second()}};
}

OrderedJson json_of(const ReplayAnswer& answer) {
  OrderedJson all{{"strategy", answer.record.strategy},
                  {"ranks", answer.record.ranks()},
                  {"steps", answer.record.steps.size()},
                  {"whole", answer.record.whole},
                  {"as_it_was", json_of(answer.as_it_was)}};
  if (!answer.without.empty()) {
    all["without"] = json_of(answer.without_them);
    all["without"]["ranks"] = answer.without;
  }
  for (size_t rank = 0; rank < answer.ranks.size(); ++rank)
    all["by_rank"].push_back({{"rank", rank},
                              {"there_ms", 1e3 * answer.ranks[rank].there},
                              {"last_in", answer.ranks[rank].last},
                              {"costs_ms", 1e3 * answer.ranks[rank].seconds}});
  return all;
}

void plan_replay(const ReplayFlags& flags) {
  if (!flags.json.empty()) require_writable(flags.json, "--json");
  const ReplayAnswer answer = answer_to(flags);
  print(answer, flags);
  if (!flags.json.empty()) write_file_atomically(flags.json, json_of(answer).dump(2) + "\n");
}

}  // namespace

void add_plan_replay(Command& plan) {
  const auto flags = std::make_shared<ReplayFlags>();
  Command& command = plan.command(
      "replay", "Say from its traces what a run would have cost without some of its ranks");
  command.place("RUN_DIR", &flags->folder, some_name(), "Folder of the traces, one a worker");
  command.add("--without", "rank:N,...", &flags->without, some_name(),
              "Takes these out (default: none; what each cost is said anyway)");
  command.add("--skip", "INT", &flags->skip, whole_number(0, int64_t{1} << 40),
              "Steps of the begin that are left out: in the first, threads and memory are made");
  command.add("--json", "FILE", &flags->json, "Writes the tables");
  command.footer =
      "The traces are those of `tutti train ... --trace RUN_DIR/trace.json`.\n\n"
      "Example:\n  tutti plan replay runs/traced --without rank:3";
  command.action = [flags] {
    plan_replay(*flags);
    return 0;
  };
}

}  // namespace tutti::cli
