// tutti plan MODEL: what a step costs on so many hosts. tutti plan choose: on how many it is best.
#include "tutti/plan/predict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/idle.h"
#include "tutti/base/json.h"
#include "tutti/base/suggest.h"
#include "tutti/base/typed.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/commands.h"
#include "tutti/cli/zoo.h"
#include "tutti/observe/plot.h"
#include "tutti/plan/arithmetic.h"
#include "tutti/plan/choose.h"
#include "tutti/plan/counted_machine.h"
#include "tutti/plan/link.h"
#include "tutti/plan/machine.h"

namespace tutti::cli {
namespace {

constexpr double kMostSamples = 1e18;
constexpr double kMostHours = 1e6;  // a century

/// What both commands ask about.
struct JobsFlags {
  std::string model, machine, link, json;
  std::string hosts = "1..64", replicas = "1", batches;
  std::string strategy = "multi_worker";
  std::vector<int> servers{1};
  std::vector<std::string> staleness{"0"};
  std::vector<std::string> engines{"auto"};
  bool overlap = false;
  std::vector<double> bucket_mib{25};
  std::vector<double> piece_mib{0};
  std::vector<std::string> reductions{"fused"};
  double gflops = 0;
};

struct PredictFlags : JobsFlags {
  std::string svg;
};

struct ChooseFlags : JobsFlags {
  ChooseFlags() {
    bucket_mib = {1, 5, 25, 100};
    piece_mib = {0, 0.25, 1, 4};
    reductions = {"fused", "all_reduce"};
  }
  std::string objective = "time";
  double samples = 0, noise_scale = 0, hours = 0;
};

/// "1,2,4", or "1..1024": doubled from the first to the last, which is the end in any case.
template <class Whole>
std::vector<Whole> whole_numbers(const char* flag, std::string_view text) {
  constexpr double kMost = 1e6;
  const auto number = [&](std::string_view word) {
    const auto value = number_in<Whole>(word);
    if (!value || *value < 1 || static_cast<double>(*value) > kMost)
      throw UsageError(fmt::format(
          "{} \"{}\": expected whole numbers from 1 to {:.0f}, as 1,2,4 or 1..1024 (doubled)", flag,
          text, kMost));
    return *value;
  };
  std::vector<Whole> numbers;
  if (const size_t dots = text.find(".."); dots != text.npos) {
    const Whole last = number(text.substr(dots + 2));
    for (Whole one = number(text.substr(0, dots)); one < last; one *= 2) numbers.push_back(one);
    numbers.push_back(last);
  } else {
    for (std::string_view word : parts_of(text, ',')) numbers.push_back(number(word));
  }
  return numbers;
}

plan::Machine machine_of(const JobsFlags& flags) {
  if (flags.gflops > 0)
    return plan::counted_machine(flags.model, plan::arithmetic_of(zoo_network(flags.model).graph),
                                 1e9 * flags.gflops);
  if (flags.machine.empty())
    throw UsageError(
        "--machine is missing: what `tutti plan measure` wrote for the model; or --gflops, what an "
        "accelerator computes");
  plan::Machine machine = plan::load_machine(flags.machine);
  if (machine.model != flags.model)
    throw UsageError(fmt::format("--machine {}: measured with model {}, asked about {}; measure {}",
                                 flags.machine, machine.model, flags.model, flags.model));
  return machine;
}

int staleness_of(const std::string& word) {
  if (word == "inf") return plan::kAnyStaleness;
  const auto value = number_in<int>(word);
  if (!value || *value < 0)
    throw UsageError(fmt::format("--staleness {}: expected 0, a whole number or inf", word));
  return *value;
}

/// Each exchange with each of its settings.
std::vector<plan::Job> kinds_of(const JobsFlags& flags) {
  std::vector<plan::Job> kinds;
  const bool sums = flags.strategy != "parameter_server";
  const auto in_bytes = [](double mib) { return static_cast<int64_t>(std::ceil(mib * (1 << 20))); };
  if (sums && !flags.overlap)
    for (const std::string& reduction : flags.reductions) {
      if (reduction == "all_reduce") {
        kinds.push_back({.updates_each = true});
        continue;
      }
      for (double mib : flags.piece_mib) kinds.push_back({.piece_bytes = in_bytes(mib)});
    }
  if (sums && flags.overlap)
    for (double mib : flags.bucket_mib)
      kinds.push_back({.overlap = true, .bucket_bytes = in_bytes(mib)});
  if (flags.strategy == "parameter_server" || flags.strategy == "all")
    for (int servers : flags.servers)
      for (const std::string& staleness : flags.staleness)
        for (double mib : flags.piece_mib)
          kinds.push_back({.exchange = plan::Exchange::parameter_server,
                           .servers = servers,
                           .staleness = staleness_of(staleness),
                           .piece_bytes = in_bytes(mib)});
  return kinds;
}

/// Those that --engine names; all: what strategies take, and one group of all replicas.
std::vector<plan::EngineKind> engines_of(const JobsFlags& flags) {
  using enum plan::EngineKind;
  const std::vector<std::pair<std::string, std::vector<plan::EngineKind>>> known{
      {"auto", {fitting}},
      {"shm", {shm}},
      {"tcp", {tcp}},
      {"hier", {hier}},
      {"all", {fitting, tcp}}};
  std::vector<std::string> names;
  for (const auto& [name, meant] : known) names.push_back(name);
  std::vector<plan::EngineKind> engines;
  for (const std::string& word : flags.engines) {
    const auto found = std::ranges::find(names, word);
    if (found == names.end())
      throw UsageError("--engine: " + unknown_message("engine", word, names));
    const bool names_one = word != "auto" && word != "all";
    if (names_one && (flags.overlap || flags.strategy == "parameter_server"))
      throw UsageError(
          fmt::format("--engine {}: {}; leave it out", word,
                      flags.overlap ? "--overlap is NCCL's" : "servers have none to choose"));
    const auto& meant = known[static_cast<size_t>(found - names.begin())].second;
    engines.insert(engines.end(), meant.begin(), meant.end());
  }
  return engines;
}

plan::Search search_of(const JobsFlags& flags, const plan::Machine& machine) {
  plan::Search search{
      .hosts = whole_numbers<int>("--hosts", flags.hosts),
      .replicas_per_host = whole_numbers<int>("--replicas-per-host", flags.replicas),
      .batches = {},
      .kinds = kinds_of(flags),
      .engines = engines_of(flags)};
  if (flags.batches.empty() && flags.gflops > 0) {
    search.batches = {32};
  } else if (flags.batches.empty()) {
    for (const plan::BatchTime& time : machine.compute) search.batches.push_back(time.batch);
  } else {
    search.batches = whole_numbers<int64_t>("--batch", flags.batches);
  }
  if (flags.strategy == "mirrored" && search.hosts != std::vector{1})
    throw UsageError(
        fmt::format("--strategy mirrored is threads of one host; got --hosts {}", flags.hosts));
  const bool all_reduce = flags.strategy == "multi_worker" || flags.strategy == "mirrored";
  const bool alone = search.hosts == std::vector{1} && all_reduce;
  if (!flags.link.empty()) {
    search.link = plan::parse_link(flags.link);
  } else if (machine.link) {
    search.link = machine.link->wire;
  } else if (!alone) {
    throw UsageError(
        "--link is missing: what lies between hosts, as 25Gbit,20us; or measure it: `tutti plan "
        "measure` under `tutti run --nodes`, on two hosts or more, writes it into the machine "
        "file");
  }
  return search;
}

void say_link(const JobsFlags& flags, const plan::Machine& machine) {
  if (flags.link.empty() && machine.link)
    fmt::print("link: {}, measured between {} hosts\n", plan::words_of(machine.link->wire),
               machine.link->hosts);
}

std::string exchange_words(const plan::Job& job) {
  if (job.exchange == plan::Exchange::all_reduce) return job.overlap ? "overlap" : "all_reduce";
  const auto staleness =
      job.staleness == plan::kAnyStaleness ? "inf" : std::to_string(job.staleness);
  return fmt::format("{} servers, s={}", job.servers, staleness);
}

std::string piece_words(const plan::Job& job) {
  return job.piece_bytes == 0
             ? ""
             : fmt::format(", {:.3g} MiB", static_cast<double>(job.piece_bytes) / (1 << 20));
}

/// With what carries the sums.
std::string way_words(const plan::Job& job) {
  if (job.exchange == plan::Exchange::parameter_server)
    return exchange_words(job) + piece_words(job);
  if (job.overlap)
    return fmt::format("nccl, {:.3g} MiB", static_cast<double>(job.bucket_bytes) / (1 << 20));
  if (job.updates_each) return "reduction all_reduce";
  return fmt::format("all_reduce, {}{}", name_of(job.engine), piece_words(job));
}

/// Whether the table says how gradients meet: where they can in several ways.
bool has_choice(const plan::Prediction& row) {
  const plan::Job& job = row.job;
  return job.exchange == plan::Exchange::parameter_server || job.overlap || job.updates_each ||
         job.piece_bytes != 0 || (job.hosts > 1 && job.replicas_per_host > 1);
}

void print(const std::vector<plan::Prediction>& rows) {
  const bool ways = std::ranges::any_of(rows, has_choice);
  fmt::print("{:>6}{:>9}{:>7}", "hosts", "replicas", "batch");
  if (ways) fmt::print("  {:<18}", "exchange");
  fmt::print("{:>11}{:>11}{:>11}{:>11}{:>11}{:>11}{:>22}{:>12}{:>11}  {:<10}{:>9}\n", "t1 ms",
             "t2 ms", "max ms", "exposed ms", "update ms", "step ms", "80 % within", "samples/s",
             "efficient", "bound by", "balance");
  for (const plan::Prediction& row : rows) {
    fmt::print("{:>6}{:>9}{:>7}", row.job.hosts, row.job.replicas(), row.job.batch);
    if (ways) fmt::print("  {:<18}", way_words(row.job));
    fmt::print(
        "{:>11.4g}{:>11.4g}{:>11.4g}{:>11.4g}{:>11.4g}{:>11.4g}{:>22}{:>12.4g}{:>9.1f} %  "
        "{:<10}{:>9}\n",
        1e3 * row.compute, 1e3 * row.exchange, 1e3 * row.rule, 1e3 * row.exposed, 1e3 * row.update,
        1e3 * row.step, fmt::format("{:.4g} to {:.4g}", 1e3 * row.low, 1e3 * row.high),
        row.samples_per_second, 100 * row.efficiency, row.bound_by, row.balance);
  }
  fmt::print(
      "t1: forward and backward of a replica; t2: what crosses between hosts; max(t1, t2): a step "
      "where all of t2 is hidden;\nexposed: what nothing hides; balance: least batch of a replica "
      "whose t1 covers t2; batch: of a replica\n");
}

const char* reduction_word(const plan::Job& job) {
  if (job.exchange == plan::Exchange::parameter_server || job.overlap) return "";
  return job.updates_each ? "all_reduce" : "fused";
}

OrderedJson json_of(const plan::Prediction& row) {
  return {{"hosts", row.job.hosts},
          {"replicas", row.job.replicas()},
          {"batch", row.job.batch},
          {"exchange", exchange_words(row.job)},
          {"engine", name_of(row.job.engine)},
          {"bucket_bytes", row.job.overlap ? row.job.bucket_bytes : 0},
          {"piece_bytes", row.job.piece_bytes},
          {"reduction", reduction_word(row.job)},
          {"compute_seconds", row.compute},
          {"slowest_seconds", row.slowest},
          {"input_seconds", row.input},
          {"exchange_seconds", row.exchange},
          {"exposed_seconds", row.exposed},
          {"update_seconds", row.update},
          {"step_seconds", row.step},
          {"low_seconds", row.low},
          {"high_seconds", row.high},
          {"rule_seconds", row.rule},
          {"balance", row.balance},
          {"samples_per_second", row.samples_per_second},
          {"efficiency", row.efficiency},
          {"memory_bytes", row.memory},
          {"bound_by", row.bound_by}};
}

/// Step time and efficiency over hosts, of each batch of the first kind and number of replicas.
std::string picture(const std::string& model, const std::vector<plan::Prediction>& rows) {
  plots::Panel times{"step", "hosts, as powers of 2", "ms", {}};
  plots::Panel efficiency{"efficiency", "hosts, as powers of 2", "%", {}};
  plots::Curve t1{"t1", {}, {}}, t2{"t2", {}, {}}, step{"step", {}, {}},
      share{"efficiency", {}, {}};
  for (const plan::Prediction& row : rows) {
    const double x = std::log2(row.job.hosts);
    for (auto& [curve, y] : {std::pair<plots::Curve*, double>{&t1, 1e3 * row.compute},
                             {&t2, 1e3 * row.exchange},
                             {&step, 1e3 * row.step},
                             {&share, 100 * row.efficiency}}) {
      curve->x.push_back(x);
      curve->y.push_back(y);
    }
  }
  times.curves = {step, t1, t2};
  efficiency.curves = {share};
  const plots::Panel panels[] = {times, efficiency};
  return plots::svg(fmt::format("{}, batch {} a replica, {}", model, rows.front().job.batch,
                                plan::words_of(rows.front().job.link)),
                    panels);
}

const std::vector<NeededBy<JobsFlags>>& needs_of_predictions() {
  constexpr std::string_view kOfServers =
      "it is of parameter servers, which are not asked about (--strategy parameter_server or all)";
  static const auto has_servers = [](const JobsFlags& flags) {
    return flags.strategy == "parameter_server" || flags.strategy == "all";
  };
  static const std::vector<NeededBy<JobsFlags>> rows = {
      {"--servers", has_servers, kOfServers},
      {"--staleness", has_servers, kOfServers},
      {"--overlap", [](const JobsFlags& flags) { return flags.strategy != "parameter_server"; },
       "it is of all-reduces, which servers do without"},
      {"--bucket-mib", [](const JobsFlags& flags) { return flags.overlap; },
       "buckets are those of --overlap"},
      {"--piece-mib",
       [](const JobsFlags& flags) { return !flags.overlap || flags.strategy == "all"; },
       "with --overlap gradients go in buckets (--bucket-mib)"},
      {"--reduction",
       [](const JobsFlags& flags) {
         return !flags.overlap && flags.strategy != "parameter_server";
       },
       "it is of sums on CPUs, which are not asked about"}};
  return rows;
}

void plan_model(const PredictFlags& flags) {
  if (!flags.json.empty()) require_writable(flags.json, "--json");
  if (!flags.svg.empty()) require_writable(flags.svg, "--svg");
  const plan::Machine machine = machine_of(flags);
  const plan::Search search = search_of(flags, machine);
  if (!flags.svg.empty() && search.hosts.size() < 2)
    throw UsageError("--svg draws over hosts: give several, as --hosts 1..64");
  const std::vector<plan::Job> jobs = plan::jobs_of(search);
  if (!flags.svg.empty() && jobs.size() > search.hosts.size())
    throw UsageError(
        "--svg draws one curve: give one --batch, one number of replicas and servers, one "
        "--engine, "
        "one --bucket-mib, one --piece-mib and one --reduction");
  std::vector<plan::Prediction> rows;
  rows.reserve(jobs.size());
  for (const plan::Job& job : jobs) rows.push_back(plan::predict(machine, job));
  say_link(flags, machine);
  print(rows);
  OrderedJson all = OrderedJson::array();
  for (const plan::Prediction& row : rows) all.push_back(json_of(row));
  if (!flags.json.empty()) write_file_atomically(flags.json, all.dump(2) + "\n");
  if (!flags.svg.empty()) write_file_atomically(flags.svg, picture(flags.model, rows));
}

void plan_choose(const ChooseFlags& flags) {
  if (!flags.json.empty()) require_writable(flags.json, "--json");
  const plan::Machine machine = machine_of(flags);
  plan::Search search = search_of(flags, machine);
  search.objective = flags.objective == "cost" ? plan::Objective::cost : plan::Objective::time;
  search.samples = flags.samples;
  search.noise_scale = flags.noise_scale;
  if (flags.hours > 0) search.within = 3600 * flags.hours;
  const plan::Choice choice = plan::choose(machine, search);
  say_link(flags, machine);
  print({choice.best.prediction});
  fmt::print("\n{}\n{}\n", choice.why, choice.what_changes);
  if (choice.too_large > 0 || choice.too_slow > 0)
    fmt::print("Left out: {} jobs that do not fit into memory, {} that take too long.\n",
               choice.too_large, choice.too_slow);
  if (flags.json.empty()) return;
  OrderedJson all = {{"best", json_of(choice.best.prediction)},
                     {"seconds", choice.best.seconds},
                     {"host_seconds", choice.best.host_seconds},
                     {"tried", choice.tried},
                     {"why", choice.why},
                     {"what_changes", choice.what_changes}};
  write_file_atomically(flags.json, all.dump(2) + "\n");
}

void add_jobs(Command& command, JobsFlags& flags) {
  command.add("model", "MODEL", &flags.model, "That the machine file is of");
  command.add("--machine", "FILE", &flags.machine, "What `tutti plan measure` wrote");
  command
      .add("--gflops", "FLOAT", &flags.gflops, number_between(1e-3, 1e9),
           "Instead of --machine: what a replica computes, 10^9 operations a second, and all "
           "else by counting; of the networks of `tutti plan table`")
      .excludes = {"--machine"};
  command.add("--hosts", "TEXT", &flags.hosts, "That compute: 1,2,4, or 1..1024 (doubled)");
  command.add("--link", "RATE,LATENCY", &flags.link,
              "Of each host, as 25Gbit,20us (default: the machine file's, where it was measured)");
  command.add("--replicas-per-host", "TEXT", &flags.replicas, "As --hosts");
  command.add(
      "--batch", "TEXT", &flags.batches,
      "Samples of a replica, as --hosts (default: those that were measured; 32 with --gflops)");
  command.add("--strategy", "TEXT", &flags.strategy,
              member_of({"multi_worker", "mirrored", "parameter_server", "all"}),
              "multi_worker, mirrored (one host), parameter_server, or all: the first and last");
  command
      .add("--servers", "INT", &flags.servers, in_range(1, 1'000'000),
           "parameter_server: on so many hosts more")
      .several = Several::words_or_commas;
  command.add("--staleness", "TEXT", &flags.staleness, "parameter_server: 0, s or inf").several =
      Several::words_or_commas;
  command.flag("--overlap", &flags.overlap,
               "multi_worker: buckets go while backward goes on, as with NCCL");
  command
      .add("--engine", "NAME,...", &flags.engines,
           "What carries sums: auto, what strategies take (shm on one host, tcp with one "
           "replica a host, else hier); tcp, one group of all replicas in a loop of your "
           "own; all, both")
      .several = Several::words_or_commas;
  command
      .add("--bucket-mib", "FLOAT", &flags.bucket_mib, number_between(0.001, 1e6),
           "--overlap: of a bucket, each of these")
      .several = Several::words_or_commas;
  command
      .add("--piece-mib", "FLOAT", &flags.piece_mib, number_between(0, 1024),
           "Between hosts and to servers: of a piece, each of these (`tutti train --piece-mib`; 0: "
           "as strategies have it)")
      .several = Several::words_or_commas;
  command
      .add("--reduction", "NAME,...", &flags.reductions, member_of({"fused", "all_reduce"}),
           "multi_worker: fused; all_reduce, where every replica updates all parameters")
      .several = Several::words_or_commas;
  command.add("--json", "FILE", &flags.json, "Writes the figures");
}

void add_choose(Command& plan) {
  const auto flags = std::make_shared<ChooseFlags>();
  Command& command =
      plan.command("choose", "Say on how many hosts, with which batch, training is best");
  add_jobs(command, *flags);
  command.at("model").required = true;
  command.add("--objective", "TEXT", &flags->objective, member_of({"time", "cost"}),
              "time: it ends soonest; cost: the fewest hosts times hours");
  command
      .add("--target-images", "FLOAT", &flags->samples, positive_number(kMostSamples),
           "Samples that training takes, with a small batch")
      .required = true;
  command.add("--noise-scale", "FLOAT", &flags->noise_scale, positive_number(kMostSamples),
              "Samples a step from which more stop paying, as `tutti train --noise-scale` "
              "prints (default: no batch is too large)");
  command.add("--within", "FLOAT", &flags->hours, positive_number(kMostHours),
              "Hours that it may take");
  command.footer =
      "Example:\n"
      "  tutti plan choose doodle_cnn --machine here.json --link 10Gbit,50us --objective cost "
      "--target-images 1e9 --within 24";
  command.action = [&command, flags] {
    refuse_idle<JobsFlags>(command.typed(), *flags, needs_of_predictions());
    plan_choose(*flags);
    return 0;
  };
}

}  // namespace

void add_plan_prediction(Command& plan) {
  add_choose(plan);
  const auto flags = std::make_shared<PredictFlags>();
  add_jobs(plan, *flags);
  plan.add("--svg", "FILE", &flags->svg, "Draws step time and efficiency over hosts");
  plan.footer =
      "Examples:\n"
      "  tutti plan measure doodle_cnn --data examples/data/quickdraw --out here.json\n"
      "  tutti plan doodle_cnn --machine here.json --hosts 1..1024 --link 25Gbit,20us --batch 64\n"
      "  tutti plan choose doodle_cnn --machine here.json --link 25Gbit,20us --target-images 1e9\n"
      "  tutti plan resnet50 --gflops 50000 --hosts 1..256 --link 100Gbit,10us --batch 128";
  plan.action = [&plan, flags] {
    if (flags->model.empty())
      throw UsageError("plan: say which model, or one of measure, choose, table, pipeline, replay");
    refuse_idle<JobsFlags>(plan.typed(), *flags, needs_of_predictions());
    plan_model(*flags);
    return 0;
  };
}

}  // namespace tutti::cli
