#include "bench/compare/networks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>
#include <set>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/suggest.h"
#include "tutti/cli/bench/runs.h"
#include "tutti/cli/bench/timing.h"

#include "bench/compare/contenders.h"
#include "bench/compare/our_networks.h"

namespace tutti::bench {
using namespace cli;
namespace {

constexpr double kTimedMs = 1500;
constexpr int64_t kLeastTimed = 3, kMostTimed = 500;
constexpr int64_t kComparedLosses = 10;
constexpr int64_t kWarm = 3;  // steps of a process of ours, whose losses nobody reads

// Never slower by more than what a step waits for the others; and no more memory than eager.
constexpr double kAloneBound = 0.95, kAloneAim = 1, kMemoryBound = 0.9, kMemoryAim = 0.7;

const std::string kOurThreads = "ours, 2 threads";
const std::string kOurProcesses = "ours, 2 processes";
const std::string kOurAlone = "ours, 2 that never talk";
const std::string kOurOne = "ours, 1 replica";
const std::string kBestPeer = "best peer";

const std::map<std::string, std::string>& our_strategies() {
  static const std::map<std::string, std::string> all = {{kOurThreads, "mirrored"},
                                                         {kOurProcesses, "multi_worker"},
                                                         {kOurAlone, "independent"},
                                                         {kOurOne, "one_device"}};
  return all;
}

const std::vector<std::string>& network_peers() {
  static const std::vector<std::string> all = {kOneProcess, kCompiled, kDdp, kCompiledRanks, kJax};
  return all;
}

double last_losses(const std::vector<double>& losses) {
  const auto count = std::min<int64_t>(kComparedLosses, static_cast<int64_t>(losses.size()));
  return std::accumulate(losses.end() - count, losses.end(), 0.0) / static_cast<double>(count);
}

// Peers that are here, started on first use.
class NetworkPeers {
 public:
  explicit NetworkPeers(std::string data) : data_(std::move(data)) {}

  // False when it is left out, which is told.
  bool measure(const std::string& name, const NetworkSubject& subject, int64_t warmup,
               int64_t steps, NetworkFigures& figures) {
    PeerProcesses* peer = started(name);
    if (peer == nullptr) return false;
    const int64_t batch = subject.batch / peer->plan().processes;
    figures = {};
    for (const Json& answer : peer->answers({{"model", subject.name},
                                             {"batch", batch},
                                             {"steps", steps},
                                             {"warmup", warmup},
                                             {"each", true}})) {
      if (answer.contains("left_out")) {
        fmt::print("{} is left out of {}: {}\n", name, subject.name,
                   answer.at("left_out").get<std::string>());
        return false;
      }
      add(answer, figures, peer->plan().processes);
    }
    return true;
  }

 private:
  static void add(const Json& answer, NetworkFigures& figures, int processes) {
    figures.step_ms = std::max(figures.step_ms, answer.at("step_ms").get<double>());
    figures.setting = answer.at("setting").get<std::string>();
    figures.peak_mb += answer.value("peak_mb", 0.0);
    const auto losses = losses_in(answer.at("losses"));
    figures.losses.resize(losses.size());
    for (size_t i = 0; i < losses.size(); ++i) figures.losses[i] += losses[i] / processes;
  }

  PeerProcesses* started(const std::string& name) {
    const std::string package = package_of(name);
    if (left_out_.contains(package)) return nullptr;
    auto& peer = peers_[name];
    if (peer) return peer.get();
    try {
      peer = std::make_unique<PeerProcesses>(peer_plans().at(name), data_);
    } catch (const Error& error) {
      if (package.empty()) throw;
      say_left_out(package, error);
      left_out_.insert(package);
    }
    return peer.get();
  }

  std::string data_;
  std::map<std::string, std::unique_ptr<PeerProcesses>> peers_;
  std::set<std::string> left_out_;  // packages
};

// One network: everybody's check, then rounds in turn.
class NetworkComparison {
 public:
  NetworkComparison(const NetworkSubject& subject, const CompareFlags& flags, NetworkPeers& peers,
                    OrderedJson around)
      : subject_(subject),
        flags_(flags),
        peers_(peers),
        around_(std::move(around)),
        work_(subject.name, subject.batch) {}

  std::string run() {
    fmt::print("\n{}, {} samples a step of all replicas\n{:<28} {:>10} {:>9} {:>9}  {}\n",
               subject_.name, subject_.batch, "", "p50 ms", "loss", "peak MB", "setting");
    for (const auto& name : network_peers()) check_peer(name);
    if (subject_.table)
      fmt::print("{} is left out of {}: its table is in one process, or on servers\n",
                 kOurProcesses, subject_.name);
    for (const auto& name : replicas()) check_ours(name);
    if (subject_.batch_norm) check_ours(kOurOne);
    for (int64_t round = 0; round < rounds(); ++round) measure_round();
    for (const auto& [name, figures] : checked_) contender(name, figures);
    fmt::print("{:<28} {:>10.2f}\n", kOurAlone, median(ms_.at(kOurAlone)));
    add_line({{"contender", kOurAlone}, {"step_ms", median(ms_.at(kOurAlone))}});
    claims();
    return lines_;
  }

  int rows() const noexcept { return rows_; }
  int missed() const noexcept { return missed_; }  // rows beyond their bound

 private:
  int64_t rounds() const { return flags_.quick ? 1 : flags_.rounds; }
  int64_t checked_steps() const { return flags_.quick ? kWarm : flags_.checked_steps; }

  std::vector<std::string> replicas() const {
    if (subject_.table) return {kOurThreads};
    return {kOurThreads, kOurProcesses};
  }

  void check_peer(const std::string& name) {
    NetworkFigures figures;
    if (peers_.measure(name, subject_, checked_steps(), kLeastTimed, figures))
      checked_[name] = figures;
  }

  void check_ours(const std::string& name) {
    checked_[name] =
        run_ours(work_, our_strategies().at(name), kReplicas, checked_steps(), kLeastTimed);
  }

  int64_t steps_of(const std::string& name) const {
    if (flags_.steps > 0) return flags_.steps;
    if (flags_.quick) return kLeastTimed;
    const auto place = checked_.find(name == kOurAlone ? kOurThreads : name);
    return std::clamp<int64_t>(std::llround(kTimedMs / place->second.step_ms), kLeastTimed,
                               kMostTimed);
  }

  void measure_round() {
    double best = 0;  // stays so when all of them did other work
    for (const auto& name : network_peers()) {
      if (!checked_.contains(name)) continue;
      NetworkFigures figures;
      peers_.measure(name, subject_, 1, steps_of(name), figures);
      ms_[name].push_back(figures.step_ms);
      if (did_our_work(name) && (best == 0 || figures.step_ms < best)) best = figures.step_ms;
    }
    ms_[kBestPeer].push_back(best);
    auto ours = replicas();
    ours.push_back(kOurAlone);
    for (const auto& name : ours)
      ms_[name].push_back(
          run_ours(work_, our_strategies().at(name), kReplicas, kWarm, steps_of(name)).step_ms);
  }

  // Of one process all the batch has one set of statistics, of two each half its own.
  const NetworkFigures& ours_beside(const std::string& name) const {
    const bool whole =
        subject_.batch_norm && !name.starts_with("ours") && peer_plans().at(name).processes == 1;
    return checked_.at(whole ? kOurOne : kOurThreads);
  }

  // NaN is nobody's work.
  bool did_our_work(const std::string& name) const {
    const auto& losses = checked_.at(name).losses;
    if (name == kOurOne) return true;
    if (name.starts_with("ours")) return losses == checked_.at(kOurThreads).losses;  // bit for bit
    return equal_work(last_losses(ours_beside(name).losses), last_losses(losses));
  }

  void contender(const std::string& name, const NetworkFigures& figures) {
    const double loss = last_losses(figures.losses);
    const double ours = last_losses(ours_beside(name).losses);
    const bool equal = did_our_work(name);
    const double ms = ms_.contains(name) ? median(ms_.at(name)) : figures.step_ms;
    fmt::print("{:<28} {:>10.2f} {:>9.4f} {:>9}  {}{}\n", name, ms, loss,
               figures.peak_mb > 0 ? fmt::format("{:.0f}", figures.peak_mb) : "-", figures.setting,
               equal ? "" : fmt::format("  OTHER WORK: ours has a loss of {:.4f}", ours));
    std::fflush(stdout);
    add_line({{"contender", name},
              {"step_ms", ms},
              {"loss", loss},
              {"our_loss", ours},
              {"equal_work", equal},
              {"peak_mb", figures.peak_mb},
              {"setting", figures.setting}});
  }

  void claims() {
    fmt::print("{:<14} {:<20} {:<24} {:>6} {:>15} {:>6} {:>6}\n", "", "ours", "theirs", "ratio",
               "least to most", "bound", "aim");
    const bool peers = ms_.at(kBestPeer).front() > 0;
    for (const auto& name : replicas())
      claim(name, kBestPeer, ratios(ms_.at(kBestPeer), ms_.at(name)), subject_.bound, subject_.aim,
            peers && did_our_work(name));
    claim(kOurThreads, kOurAlone, ratios(ms_.at(kOurAlone), ms_.at(kOurThreads)), kAloneBound,
          kAloneAim, did_our_work(kOurThreads));
    const double eager = checked_.at(kOneProcess).peak_mb;
    for (const auto& name : replicas())
      if (eager > 0)
        claim(name, "peak memory of eager", {checked_.at(name).peak_mb / eager}, kMemoryBound,
              kMemoryAim, did_our_work(kOneProcess) && did_our_work(name));
  }

  static std::vector<double> ratios(const std::vector<double>& theirs,
                                    const std::vector<double>& ours) {
    std::vector<double> ratios;
    for (size_t i = 0; i < ours.size(); ++i) ratios.push_back(theirs[i] / ours[i]);
    return ratios;
  }

  // A ratio is at least its bound; where the aim is below the bound, at most. Of other work
  // (`equal` is false) nothing holds.
  void claim(const std::string& ours, const std::string& theirs, const std::vector<double>& ratios,
             double bound, double aim, bool equal) {
    const double ratio = median(ratios), sign = aim < bound ? -1 : 1;
    const auto [least, most] = std::ranges::minmax(ratios);
    const bool holds = equal && sign * ratio >= sign * bound, met = sign * ratio >= sign * aim;
    ++rows_;
    missed_ += !holds;
    fmt::print("{:<14} {:<20} {:<24} {:>6.2f} {:>15} {:>6.2f} {:>6.2f}  {}\n", subject_.name, ours,
               theirs, ratio, fmt::format("{:.2f} to {:.2f}", least, most), bound, aim,
               !equal   ? "OTHER WORK"
               : !holds ? "BELOW BOUND"
               : met    ? "aim met"
                        : "holds");
    std::fflush(stdout);
    add_line({{"ours", ours},
              {"theirs", theirs},
              {"ratio", ratio},
              {"least", least},
              {"most", most},
              {"bound", bound},
              {"aim", aim},
              {"equal_work", equal},
              {"holds", holds},
              {"rounds", rounds()}});
  }

  void add_line(const OrderedJson& figures) {
    OrderedJson line = {
        {"bench", "compare networks"}, {"model", subject_.name}, {"batch", subject_.batch}};
    line.update(figures);
    line.update(around_);
    lines_ += line.dump() + "\n";
  }

  const NetworkSubject& subject_;
  const CompareFlags& flags_;
  NetworkPeers& peers_;
  const OrderedJson around_;
  NetworkWork work_;
  std::map<std::string, NetworkFigures> checked_;
  std::map<std::string, std::vector<double>> ms_;
  std::string lines_;
  int rows_ = 0, missed_ = 0;
};

}  // namespace

const std::vector<NetworkSubject>& network_subjects() {
  static const std::vector<NetworkSubject> all = {
      {"resnet18@64", "resnet18", 64, 1.1, 1.4, false, true},
      {"resnet18@224", "resnet18", 16, 1.1, 1.4, false, true},
      {"resnet50@64", "resnet50", 32, 1.1, 1.4, false, true},
      {"resnet50@224", "resnet50", 8, 1.1, 1.4, false, true},
      {"vit", "vit", 32, 1.05, 1.2},
      {"gpt4x128", "gpt", 24, 1.25, 1.5},
      {"gpt6x384", "gpt", 8, 1.2, 1.3},
      {"lstm", "lstm", 64, 1.1, 1.5},
      {"dlrm", "dlrm", 512, 1.1, 1.5, true},
      {"unet", "unet", 16, 1.05, 1.2, false, true},
  };
  return all;
}

std::vector<NetworkSubject> networks_named(const std::string& name) {
  std::vector<NetworkSubject> chosen;
  for (const auto& subject : network_subjects())
    if (subject.name == name || subject.model == name) chosen.push_back(subject);
  return chosen;
}

std::vector<std::string> network_names() {
  std::vector<std::string> names;
  for (const auto& subject : network_subjects())
    for (const auto& name : {subject.model, subject.name})
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  return names;
}

std::vector<NetworkSubject> networks_in(const std::string& list) {
  std::vector<NetworkSubject> chosen;
  for (const std::string& name : words_of(list)) {
    const auto named = networks_named(name);
    if (named.empty())
      throw UsageError("--models: " + unknown_message("network", name, network_names()));
    for (const auto& subject : named)
      if (std::ranges::find(chosen, subject.name, &NetworkSubject::name) == chosen.end())
        chosen.push_back(subject);
  }
  return chosen;
}

bool equal_work(double ours, double theirs) {
  constexpr double kOfTheLoss = 0.05, kLeast = 0.01;
  return std::abs(ours - theirs) <= kLeast + kOfTheLoss * std::max(ours, theirs);
}

void compare_networks(const std::vector<NetworkSubject>& subjects, const CompareFlags& flags,
                      const std::function<void(const std::string&)>& keep) {
  const OrderedJson around = surroundings();
  NetworkPeers peers(flags.data);
  fmt::print(
      "{} rounds, medians of the rounds' ratios of p50 steps; float32, equal first weights and "
      "batches;\nloss: mean of the last {} of {} steps; peak MB: by which training made the "
      "process "
      "grow\n",
      flags.quick ? 1 : flags.rounds, kComparedLosses, flags.quick ? kWarm : flags.checked_steps);
  int rows = 0, missed = 0;
  for (const auto& subject : subjects) {
    NetworkComparison comparison(subject, flags, peers, around);
    keep(comparison.run());
    rows += comparison.rows();
    missed += comparison.missed();
  }
  fmt::print("\n{} of {} rows miss their bound\n", missed, rows);
}

}  // namespace tutti::bench
