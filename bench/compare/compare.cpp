#include "bench/compare/compare.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <set>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/suggest.h"
#include "tutti/cli/bench/child.h"
#include "tutti/cli/bench/runs.h"
#include "tutti/cli/bench/timing.h"
#include "tutti/data/quickdraw.h"

#include "bench/compare/checkout.h"
#include "bench/compare/contenders.h"
#include "bench/compare/networks.h"

namespace tutti::bench {
using namespace cli;
namespace {

constexpr double kTimedSeconds = 1.5;
constexpr int64_t kWarmup = 20;

using Field = std::map<std::string, std::unique_ptr<Contender>>;

const std::string kThreads = "2 thread replicas";
const std::string kProcesses = "2 process replicas";
const std::string kOne = "1 replica";
const std::string kIndependent = "ours, 2 that never talk";
const std::string kPlain = "plain LibTorch";

std::unique_ptr<Contender> make(const std::string& name, const std::string& data) {
  const std::map<std::string, std::string> strategies = {{kThreads, "mirrored"},
                                                         {kProcesses, "multi_worker"},
                                                         {kOne, "one_device"},
                                                         {kIndependent, "independent"}};
  if (const auto ours = strategies.find(name); ours != strategies.end())
    return make_ours(ours->second, data);
  if (const auto theirs = peer_plans().find(name); theirs != peer_plans().end())
    return make_peers(theirs->second, data);
  return make_plain_libtorch(data);
}

std::vector<std::string> names_in(const Subject& subject) {
  std::set<std::string> names;
  for (const Claim& claim : subject.claims) names.insert({claim.ours, claim.theirs});
  return {names.begin(), names.end()};
}

// Steps that take about kTimedSeconds, by a short trial.
int64_t steps_for(const CompareFlags& flags, Contender& contender, Trial trial) {
  if (flags.steps > 0) return flags.steps;
  if (flags.quick) return 5;
  trial.steps = 50;
  const double rate = contender.images_per_second(trial);
  const double steps = kTimedSeconds * rate / static_cast<double>(contender.step_images(trial));
  return std::max<int64_t>(20, std::lround(steps));
}

class Comparison {
 public:
  explicit Comparison(const CompareFlags& flags) : flags_(flags), around_(surroundings()) {}

  void head() const {
    fmt::print("compiled PyTorch compiles each model on first use: up to a minute\n");
    fmt::print(
        "{} rounds, medians; Adam, float32, batch of each replica as said; ratio = ours / theirs\n",
        rounds());
    fmt::print("{:<6} {:>5}  {:<19} {:<27} {:>10} {:>10} {:>6} {:>6} {:>6}\n", "model", "batch",
               "ours", "theirs", "images/s", "images/s", "ratio", "bound", "aim");
    std::fflush(stdout);
  }

  void run(const Subject& subject) {
    auto names = names_in(subject);
    std::erase_if(names, [&](const std::string& name) { return !takes_part(name); });
    std::map<std::string, Trial> trials;
    for (const std::string& name : names) {
      Trial trial{
          .model = subject.model, .batch = subject.batch, .warmup = flags_.quick ? 2 : kWarmup};
      trial.steps = steps_for(flags_, contender(name), trial);
      // Peers stay between rounds and ours start anew: all get time to become warm.
      trial.warmup = std::max(trial.warmup, trial.steps / 10);
      trials[name] = trial;
    }
    std::map<std::string, std::vector<double>> rates;
    for (int64_t round = 0; round < rounds(); ++round)
      for (const std::string& name : names)
        rates[name].push_back(contender(name).images_per_second(trials[name]));
    for (const Claim& claim : subject.claims)
      if (rates.contains(claim.theirs)) row(subject, claim, rates);
  }

  std::string finish() const {
    if (below_ > 0)
      fmt::print("{} of {} rows are below their bound\n", below_, rows_);
    else
      fmt::print("all {} bounds hold\n", rows_);
    return lines_;
  }

 private:
  int64_t rounds() const { return flags_.quick ? 1 : flags_.rounds; }

  Contender& contender(const std::string& name) { return *field_.at(name); }

  // Starts it on first use; false when what it needs is not here, which is said once.
  bool takes_part(const std::string& name) {
    const std::string package = package_of(name);
    if (field_.contains(name)) return true;
    if (left_out_.contains(package)) return false;
    try {
      field_[name] = make(name, flags_.data);
      return true;
    } catch (const Error& error) {
      field_.erase(name);
      if (package.empty()) throw;
      say_left_out(package, error);
      left_out_.insert(package);
      return false;
    }
  }

  void row(const Subject& subject, const Claim& claim,
           const std::map<std::string, std::vector<double>>& rates) {
    const auto& ours = rates.at(claim.ours);
    const auto& theirs = rates.at(claim.theirs);
    std::vector<double> ratios;
    for (size_t i = 0; i < ours.size(); ++i) ratios.push_back(ours[i] / theirs[i]);
    const double ratio = median(ratios);
    const bool holds = ratio >= claim.bound;
    ++rows_;
    below_ += !holds;
    fmt::print("{:<6} {:>5}  {:<19} {:<27} {:>10.0f} {:>10.0f} {:>6.2f} {:>6.2f} {:>6.2f}  {}\n",
               subject.model, subject.batch, claim.ours, claim.theirs, median(ours), median(theirs),
               ratio, claim.bound, claim.aim,
               !holds               ? "BELOW BOUND"
               : ratio >= claim.aim ? "aim met"
                                    : "holds");
    std::fflush(stdout);
    OrderedJson line = {{"bench", "compare"},
                        {"model", subject.model},
                        {"batch_per_replica", subject.batch},
                        {"ours", claim.ours},
                        {"theirs", claim.theirs},
                        {"ours_images_per_second", median(ours)},
                        {"theirs_images_per_second", median(theirs)},
                        {"ratio", ratio},
                        {"bound", claim.bound},
                        {"aim", claim.aim},
                        {"holds", holds},
                        {"rounds", rounds()}};
    line.update(around_);
    lines_ += line.dump() + "\n";
  }

  CompareFlags flags_;
  OrderedJson around_;
  Field field_;
  std::set<std::string> left_out_;  // packages
  std::string lines_;
  int rows_ = 0, below_ = 0;
};

}  // namespace

std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> words;
  for (size_t at = 0; at <= list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    words.push_back(list.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

std::vector<Subject> subjects_for(const std::vector<std::string>& models) {
  // One replica: "never slower".
  const Claim one{kOne, kPlain, 1.0, 1.0};
  const std::vector<Subject> all = {
      {"mlp",
       64,
       {{kThreads, kSeparate, 1.2, 1.5},
        {kThreads, kDdp, 6, 8},
        {kProcesses, kDdp, 6, 8},
        {kThreads, kOneProcess, 1.15, 1.27},
        {kThreads, kCompiled, 1.1, 1.3},
        {kThreads, kCompiledRanks, 1.15, 1.5},
        {kThreads, kJax, 0.95, 1.1},
        {kThreads, kJaxDevices, 0.95, 1.1},
        {kThreads, kJaxSeparate, 0.6, 0.75},
        {kThreads, kIndependent, 0.92, 1.0},
        one}},
      {"cnn",
       64,
       {{kThreads, kSeparate, 0.95, 1.0},
        {kThreads, kDdp, 1.2, 1.45},
        {kProcesses, kDdp, 1.2, 1.45},
        {kThreads, kOneProcess, 1.05, 1.16},
        {kThreads, kCompiled, 1.1, 1.2},
        {kThreads, kCompiledRanks, 1.1, 1.2},
        {kThreads, kJax, 2.3, 2.6},
        {kThreads, kJaxDevices, 2.3, 2.6},
        {kThreads, kJaxSeparate, 1.6, 1.8},
        {kThreads, kIndependent, 0.97, 1.0},
        one}},
      {"wide",
       64,
       {{kThreads, kSeparate, 0.95, 1.05},
        {kThreads, kDdp, 1.9, 2.2},
        {kProcesses, kDdp, 1.9, 2.2},
        {kThreads, kOneProcess, 1.1, 1.25},
        {kThreads, kCompiled, 1.05, 1.2},
        {kThreads, kCompiledRanks, 1.1, 1.2},
        {kThreads, kJax, 1.0, 1.1},
        {kThreads, kJaxDevices, 1.0, 1.1},
        {kThreads, kJaxSeparate, 1.0, 1.1},
        {kThreads, kIndependent, 1.0, 1.0},
        one}},
      {"wide",
       32,
       {{kThreads, kDdp, 2.2, 2.6},
        {kProcesses, kDdp, 2.2, 2.6},
        {kThreads, kOneProcess, 1.05, 1.25}}},
  };
  std::vector<Subject> chosen;
  for (const std::string& model : models) {
    bool known = false;
    for (const Subject& subject : all)
      if (subject.model == model) chosen.push_back(subject), known = true;
    std::vector<std::string> names = network_names();
    names.insert(names.end(), {"mlp", "cnn", "wide"});
    if (!known) throw UsageError("--models: " + unknown_message("model", model, names));
  }
  return chosen;
}

std::string python_with_torch() {
  static std::string found;  // importing torch takes seconds: once
  if (!found.empty()) return found;
  const auto python = checkout() / ".venv/bin/python";
  bool there = std::filesystem::exists(python);
  if (there) {
    try {
      Child({python.string(), "-c", "import torch, numpy"}).finish(Millis{120'000});
    } catch (const Error&) {
      there = false;
    }
  }
  if (!there)
    throw UsageError(
        "no PyTorch in .venv to compare with; tools/setup --bench (or make bench) installs "
        "it there");
  found = python.string();
  return found;
}

int compare(const CompareFlags& flags) {
  if (!flags.json.empty()) require_writable(flags.json, "--json");
  if (flags.all_reduce) return compare_all_reduce(flags);
  std::vector<Subject> subjects;
  std::string named;  // of words_of() those that are networks
  for (const std::string& model : words_of(flags.models)) {
    if (!networks_named(model).empty()) {
      named += (named.empty() ? "" : ",") + model;
      continue;
    }
    const auto rows = subjects_for({model});
    subjects.insert(subjects.end(), rows.begin(), rows.end());
  }
  if (!subjects.empty()) data::quickdraw(flags.data);
  python_with_torch();
  std::string lines;
  const auto keep = [&](const std::string& more) {
    lines += more;
    if (!flags.json.empty()) write_file_atomically(flags.json, lines);
  };
  if (!subjects.empty()) {
    Comparison comparison(flags);
    comparison.head();
    for (const Subject& subject : subjects) comparison.run(subject);
    keep(comparison.finish());
  }
  if (!named.empty()) compare_networks(networks_in(named), flags, keep);
  fmt::print("{}", lines);
  return 0;
}

}  // namespace tutti::bench
