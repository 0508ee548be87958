#include "tutti/cli/bench/compare.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <set>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/suggest.h"
#include "tutti/cli/bench/child.h"
#include "tutti/cli/bench/contenders.h"
#include "tutti/cli/bench/runs.h"
#include "tutti/cli/bench/timing.h"
#include "tutti/data/quickdraw.h"

namespace tutti::cli {
namespace {

constexpr double kTimedSeconds = 1.5;
constexpr int64_t kWarmup = 20;

using Field = std::map<std::string, std::unique_ptr<Contender>>;

const std::string kThreads = "2 thread replicas";
const std::string kProcesses = "2 process replicas";
const std::string kOne = "1 replica";
const std::string kDdp = "PyTorch DDP, Gloo";
const std::string kOneProcess = "PyTorch, 2 threads";
const std::string kSeparate = "PyTorch, 2 that never talk";
const std::string kPlain = "plain LibTorch";

std::unique_ptr<Contender> make(const std::string& name, const std::string& data) {
  if (name == kThreads) return make_ours("mirrored", data);
  if (name == kProcesses) return make_ours("multi_worker", data);
  if (name == kOne) return make_ours("one_device", data);
  if (name == kDdp) return make_ddp(data);
  if (name == kOneProcess) return make_one_process(data);
  if (name == kSeparate) return make_separate(data);
  return make_plain_libtorch(data);
}

std::vector<std::string> names_in(const Subject& subject) {
  std::set<std::string> names;
  for (const Claim& claim : subject.claims) names.insert({claim.ours, claim.theirs});
  return {names.begin(), names.end()};
}

std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> words;
  for (size_t at = 0; at <= list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    words.push_back(list.substr(at, end - at));
    at = end + 1;
  }
  return words;
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
    fmt::print(
        "{} rounds, medians; Adam, float32, batch of each replica as said; ratio = ours / theirs\n",
        rounds());
    fmt::print("{:<6} {:>5}  {:<19} {:<27} {:>10} {:>10} {:>6} {:>6} {:>6}\n", "model", "batch",
               "ours", "theirs", "images/s", "images/s", "ratio", "bound", "aim");
  }

  void run(const Subject& subject) {
    const auto names = names_in(subject);
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
    for (const Claim& claim : subject.claims) row(subject, claim, rates);
  }

  void finish() const {
    fmt::print("{}", lines_);
    if (below_ > 0)
      fmt::print("{} of {} rows are below their bound\n", below_, rows_);
    else
      fmt::print("all {} bounds hold\n", rows_);
    if (!flags_.json.empty()) write_file_atomically(flags_.json, lines_);
  }

 private:
  int64_t rounds() const { return flags_.quick ? 1 : flags_.rounds; }

  Contender& contender(const std::string& name) {
    auto& place = field_[name];
    if (!place) place = make(name, flags_.data);
    return *place;
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
    nlohmann::ordered_json line = {{"bench", "compare"},
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
  nlohmann::ordered_json around_;
  Field field_;
  std::string lines_;
  int rows_ = 0, below_ = 0;
};

}  // namespace

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
        one}},
      {"cnn",
       64,
       {{kThreads, kSeparate, 0.95, 1.0},
        {kThreads, kDdp, 1.2, 1.45},
        {kProcesses, kDdp, 1.2, 1.45},
        {kThreads, kOneProcess, 1.05, 1.16},
        one}},
      {"wide",
       64,
       {{kThreads, kSeparate, 0.95, 1.05},
        {kThreads, kDdp, 1.6, 1.9},
        {kProcesses, kDdp, 1.4, 1.9},
        {kThreads, kOneProcess, 0.93, 1.02},
        one}},
      {"wide",
       32,
       {{kThreads, kDdp, 1.9, 2.3},
        {kProcesses, kDdp, 1.7, 2.3},
        {kThreads, kOneProcess, 0.9, 0.99}}},
  };
  std::vector<Subject> chosen;
  for (const std::string& model : models) {
    bool known = false;
    for (const Subject& subject : all)
      if (subject.model == model) chosen.push_back(subject), known = true;
    const std::vector<std::string> names = {"mlp", "cnn", "wide"};
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

int bench_compare(const CompareFlags& flags) {
  if (!flags.json.empty()) require_writable(flags.json, "--json");
  if (flags.all_reduce) return compare_all_reduce(flags);
  const auto subjects = subjects_for(words_of(flags.models));
  data::quickdraw(flags.data);
  python_with_torch();
  Comparison comparison(flags);
  comparison.head();
  for (const Subject& subject : subjects) comparison.run(subject);
  comparison.finish();
  return 0;
}

}  // namespace tutti::cli
