#include "bench/compare/peers.h"

#include <fmt/format.h>

#include <cstdio>
#include <sstream>

#include "tutti/base/host.h"
#include "tutti/base/json.h"
#include "tutti/cli/bench/child.h"
#include "tutti/cli/bench/runs.h"
#include "tutti/cli/bench/timing.h"

#include "bench/compare/checkout.h"
#include "bench/compare/compare.h"

namespace tutti::bench {
using namespace cli;
namespace {

constexpr Millis kPeerStartLimit{120'000};
constexpr Millis kCompileLimit{300'000};

std::string peer_file(const std::string& name) {
  return (checkout() / "bench/peer" / name).string();
}

bool has_cores_for(const PeerTrial& trial) { return trial.ranks <= host_facts().usable_cores; }

void append_sizes(std::vector<std::string>& command, const PeerTrial& trial) {
  command.push_back(std::to_string(trial.iterations));
  for (const int64_t size : trial.bytes) command.push_back(std::to_string(size));
}

// Ranks of a program in Python, which stay between trials.
class Staying final : public CollectivePeer {
 public:
  Staying(const std::string& program, std::vector<std::string> more_words)
      : program_(peer_file(program)), more_words_(std::move(more_words)) {}

  Times times(const PeerTrial& trial) override {
    auto& group = groups_[trial.ranks];
    if (!group) group = start(trial);
    const Json task = {{"collective", name_of(trial.collective)},
                       {"bytes", trial.bytes},
                       {"iterations", trial.iterations}};
    for (Child& child : group->children) child.say(task.dump());
    Times times;
    for (Child& child : group->children) {
      const auto answer = parse_json(child.hear(kProgramLimit));
      for (const auto& [bytes, figures] : answer.items()) {
        if (!figures.at("correct").get<bool>())
          throw Error(program_ + ": a wrong result: " + answer.dump());
        times[std::stoll(bytes)] = figures.at("p50_us").get<double>();
      }
    }
    return times;
  }

 private:
  struct Ranks {
    ScratchFile store;  // through which they meet
    std::vector<Child> children;
  };

  std::unique_ptr<Ranks> start(const PeerTrial& trial) const {
    auto group = std::make_unique<Ranks>();
    const auto& cores = host_facts().cores;
    for (int rank = 0; rank < trial.ranks; ++rank) {
      const int core = has_cores_for(trial) ? cores[rank] : -1;
      std::vector<std::string> command = {python_with_torch(),
                                          program_,
                                          "--rank",
                                          std::to_string(rank),
                                          "--ranks",
                                          std::to_string(trial.ranks),
                                          "--core",
                                          std::to_string(core),
                                          "--store",
                                          group->store.path()};
      command.insert(command.end(), more_words_.begin(), more_words_.end());
      group->children.emplace_back(std::move(command));
    }
    for (Child& child : group->children) child.hear(kPeerStartLimit);
    return group;
  }

  std::string program_;
  std::vector<std::string> more_words_;
  std::map<int, std::unique_ptr<Ranks>> groups_;
};

class OpenMpi final : public CollectivePeer {
 public:
  OpenMpi() {
    Child({"mpirun", "--version"}).finish(kPeerStartLimit);
    Child({"mpicc", "-O2", "-o", program_.path(), peer_file("mpi_collectives.c")})
        .finish(kCompileLimit);
  }

  Times times(const PeerTrial& trial) override {
    std::vector<std::string> command = {"mpirun", "-n", std::to_string(trial.ranks), "--bind-to",
                                        has_cores_for(trial) ? "core" : "none"};
    if (trial.over_tcp)
      command.insert(command.end(), {"--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca",
                                     "btl_tcp_if_include", "lo"});
    command.insert(command.end(), {program_.path(), std::string(name_of(trial.collective))});
    append_sizes(command, trial);
    return times_in(Child(command, {std::begin(kOpenMpiSettings), std::end(kOpenMpiSettings)})
                        .finish(kProgramLimit));
  }

 private:
  ScratchFile program_;
};

// oneCCL over Intel's MPI, as its packages install both into .venv.
class OneCcl final : public CollectivePeer {
 public:
  OneCcl() {
    if (!std::filesystem::exists(venv_ / "include/oneapi/ccl.hpp"))
      throw Error("it is not in .venv; tools/setup --bench installs it there");
    Child({"c++", "-std=c++20", "-O2", "-o", program_.path(), peer_file("oneccl_collectives.cpp"),
           "-I" + (venv_ / "include").string(), "-L" + (venv_ / "lib").string(), "-lccl"})
        .finish(kCompileLimit);
  }

  Times times(const PeerTrial& trial) override {
    const ScratchFile meeting;
    std::vector<std::string> command = {(venv_ / "bin/mpiexec.hydra").string(), "-n",
                                        std::to_string(trial.ranks), program_.path(),
                                        meeting.path()};
    append_sizes(command, trial);
    // A thread of its own for progress would share the rank's core. MPI's own all-reduce is the
    // faster one up to 4 MB, and the slower by far beyond.
    return times_in(Child(command, {"LD_LIBRARY_PATH=" + (venv_ / "lib").string(),
                                    "CCL_ATL_TRANSPORT=mpi", "CCL_WORKER_OFFLOAD=0",
                                    "CCL_ALLREDUCE=direct:0-4194304;rabenseifner:4194305-max",
                                    "I_MPI_FABRICS=shm", "I_MPI_PIN=off"})
                        .finish(kProgramLimit));
  }

 private:
  const std::filesystem::path venv_ = checkout() / ".venv";
  ScratchFile program_;
};

std::unique_ptr<CollectivePeer> make(const std::string& name) {
  if (name == kGloo)
    return std::make_unique<Staying>("gloo_collectives.py", std::vector<std::string>{});
  if (name == kDeepSpeed)
    return std::make_unique<Staying>("deepspeed_collectives.py",
                                     std::vector<std::string>{"--deepspeed", deepspeed_library()});
  if (name == kOneCcl) return std::make_unique<OneCcl>();
  return std::make_unique<OpenMpi>();
}

// The two wait in a loop, so ranks without a core of their own would wait for their time slices.
bool fits(const std::string& name, const PeerTrial& trial) {
  if (name != kDeepSpeed && name != kOneCcl) return true;
  return trial.collective == Collective::all_reduce && !trial.over_tcp && has_cores_for(trial);
}

}  // namespace

CollectivePeers::CollectivePeers() { python_with_torch(); }

std::vector<std::string> CollectivePeers::names(const PeerTrial& trial) {
  std::vector<std::string> names;
  for (const std::string name : {kMpi, kGloo, kDeepSpeed, kOneCcl}) {
    if (!fits(name, trial)) continue;
    if (!peers_.contains(name)) {
      try {
        peers_[name] = make(name);
      } catch (const Error& error) {
        if (name == kGloo) throw;
        say_left_out(name, error);
        peers_[name] = nullptr;
      }
    }
    if (peers_.at(name)) names.push_back(name);
  }
  return names;
}

Times CollectivePeers::times(const std::string& name, const PeerTrial& trial) {
  return peers_.at(name)->times(trial);
}

std::filesystem::path peers_folder() { return checkout() / ".venv/peers"; }

std::string deepspeed_library() {
  static std::string library;
  if (!library.empty()) return library;
  Child builder({python_with_torch(), peer_file("deepspeed_shm.py"), peers_folder().string()});
  std::string line = builder.hear(kCompileLimit);
  for (; !line.ends_with(".so"); line = builder.hear(kCompileLimit)) {
    fmt::print("{}\n", line);
    std::fflush(stdout);
  }
  builder.finish(kPeerStartLimit);
  library = line;
  return library;
}

void say_left_out(const std::string& name, const Error& error) {
  std::istringstream what(plain_words(error.what()));
  std::string reason;
  for (std::string line; std::getline(what >> std::ws, line);) reason = line;
  fmt::print("{} is left out: {}\n", name, reason.substr(0, 200));
  std::fflush(stdout);
}

Times times_in(const std::string& output, const char* field) {
  Times times;
  std::istringstream text(output);
  for (std::string words; std::getline(text, words);) {
    const size_t brace = words.find('{');
    if (brace == std::string::npos) continue;
    const auto line = parse_json(words.substr(brace));
    if (!line.at("correct").get<bool>()) throw Error("a wrong result: " + line.dump());
    times[line.at("bytes").get<int64_t>()] = line.at(field).get<double>();
  }
  return times;
}

}  // namespace tutti::bench
