#include "bench/compare/contenders.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/error.h"
#include "tutti/base/host.h"
#include "tutti/base/json.h"
#include "tutti/cli/bench/runs.h"
#include "tutti/cli/bench/timing.h"

#include "bench/compare/checkout.h"
#include "bench/compare/compare.h"

namespace tutti::bench {
using namespace cli;
namespace {

// Starting Python with torch on a busy machine, and a whole measurement.
constexpr Millis kStartLimit{120'000};

class Ours final : public Contender {
 public:
  Ours(std::string strategy, std::string data)
      : strategy_(std::move(strategy)), data_(std::move(data)) {}

  int64_t replicas() const { return strategy_ == "one_device" ? 1 : kReplicas; }
  int64_t step_images(const Trial& trial) const override { return replicas() * trial.batch; }

  double images_per_second(const Trial& trial) override {
    StepFlags flags;
    flags.job.model = trial.model;
    flags.job.data = data_;
    flags.job.strategy = strategy_;
    flags.job.replicas = replicas();
    flags.job.threads = 1;
    flags.job.global_batch = step_images(trial);
    flags.steps = trial.steps;
    flags.warmup = trial.warmup;
    flags.preload = true;
    return run_step(tutti_program(), flags).at("images_per_second").get<double>();
  }

 private:
  std::string strategy_, data_;
};

// Cores [first, first + count) of those usable, as "0,1"; empty where there are not enough.
std::string core_list(int first, int count) {
  const auto& cores = host_facts().cores;
  if (first + count > static_cast<int>(cores.size())) return "";
  return fmt::format("{}", fmt::join(cores.begin() + first, cores.begin() + first + count, ","));
}

class Peers final : public Contender {
 public:
  Peers(const PeerPlan& plan, const std::string& data) : processes_(plan, data) {}

  int64_t batch_of_each(const Trial& trial) const {
    return trial.batch * processes_.plan().threads;
  }
  int64_t step_images(const Trial& trial) const override {
    return batch_of_each(trial) * processes_.plan().processes;
  }

  double images_per_second(const Trial& trial) override {
    double total = 0, slowest = 0;
    for (const Json& answer : processes_.answers({{"model", trial.model},
                                                  {"batch", batch_of_each(trial)},
                                                  {"steps", trial.steps},
                                                  {"warmup", trial.warmup}})) {
      const double rate = answer.at("images_per_second").get<double>();
      total += rate;
      slowest = slowest == 0 ? rate : std::min(slowest, rate);
    }
    // Ranks that wait for each other are as fast as the slowest of them.
    return processes_.plan().talk ? slowest * processes_.plan().processes : total;
  }

 private:
  PeerProcesses processes_;
};

class PlainLibTorch final : public Contender {
 public:
  explicit PlainLibTorch(std::string data) : data_(std::move(data)) {
    program_ = own_program().parent_path() / "bench_plain_libtorch";
    if (!std::filesystem::exists(program_))
      throw UsageError(fmt::format("{} was not built; make bench builds it", program_.string()));
  }

  int64_t step_images(const Trial& trial) const override { return trial.batch; }

  double images_per_second(const Trial& trial) override {
    Child child({program_.string(), trial.model, data_, std::to_string(trial.batch),
                 std::to_string(trial.steps), std::to_string(trial.warmup)});
    return json_in(child.finish(kProgramLimit)).at("images_per_second").get<double>();
  }

 private:
  std::string data_;
  std::filesystem::path program_;
};

}  // namespace

const std::map<std::string, PeerPlan>& peer_plans() {
  constexpr int kAll = kReplicas;
  static const std::map<std::string, PeerPlan> plans = {
      {kDdp, {.mode = "ddp", .processes = kAll, .talk = true}},
      {kOneProcess, {.mode = "alone", .threads = kAll}},
      {kSeparate, {.mode = "alone", .processes = kAll}},
      {kCompiled, {.program = "compiled_step.py", .mode = "alone", .threads = kAll}},
      {kCompiledRanks,
       {.program = "compiled_step.py",
        .mode = "ranks",
        .processes = kAll,
        .talk = true,
        .deepspeed = true}},
      {kJax, {.program = "jax_step.py", .threads = kAll}},
      {kJaxDevices, {.program = "jax_step.py", .threads = kAll, .devices = kAll}},
      {kJaxSeparate, {.program = "jax_step.py", .processes = kAll}}};
  return plans;
}

std::string package_of(const std::string& name) {
  if (name.starts_with("JAX")) return "JAX";
  return name == kCompiledRanks ? "DeepSpeed" : "";
}

PeerProcesses::PeerProcesses(PeerPlan plan, const std::string& data) : plan_(std::move(plan)) {
  const std::vector<std::string> environment = {
      fmt::format("OMP_NUM_THREADS={}", plan_.threads), "OMP_PROC_BIND=true",
      "TORCHINDUCTOR_CACHE_DIR=" + (peers_folder() / "inductor").string()};
  for (int rank = 0; rank < plan_.processes; ++rank)
    children_.emplace_back(command_of(rank, data), environment);
  for (Child& child : children_) child.hear(kStartLimit);  // it has imported torch
}

std::vector<Json> PeerProcesses::answers(const Json& command) {
  for (Child& child : children_) child.say(command.dump());
  std::vector<Json> answers;
  for (Child& child : children_) answers.push_back(parse_json(child.hear(kProgramLimit)));
  return answers;
}

std::vector<std::string> PeerProcesses::command_of(int rank, const std::string& data) const {
  std::vector<std::string> command = {
      python_with_torch(), (checkout() / "bench/peer" / plan_.program).string(), "--data", data,
      "--cores",           core_list(rank * plan_.threads, plan_.threads)};
  if (!plan_.mode.empty())
    command.insert(command.end(), {"--threads", std::to_string(plan_.threads), plan_.mode});
  if (plan_.talk)
    command.insert(command.end(), {"--rank", std::to_string(rank), "--ranks",
                                   std::to_string(plan_.processes), "--store", store_.path()});
  if (plan_.devices > 1)
    command.insert(command.end(), {"--devices", std::to_string(plan_.devices)});
  if (plan_.deepspeed) command.insert(command.end(), {"--deepspeed", deepspeed_library()});
  return command;
}

std::unique_ptr<Contender> make_ours(const std::string& strategy, const std::string& data) {
  return std::make_unique<Ours>(strategy, data);
}
std::unique_ptr<Contender> make_peers(const PeerPlan& plan, const std::string& data) {
  return std::make_unique<Peers>(plan, data);
}
std::unique_ptr<Contender> make_plain_libtorch(const std::string& data) {
  return std::make_unique<PlainLibTorch>(data);
}

}  // namespace tutti::bench
