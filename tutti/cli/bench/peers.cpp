#include "tutti/cli/bench/peers.h"

#include <fmt/format.h>

#include <sstream>

#include "tutti/base/error.h"
#include "tutti/base/host.h"
#include "tutti/cli/bench/compare.h"
#include "tutti/cli/bench/timing.h"

namespace tutti::cli {
namespace {

constexpr Millis kStartLimit{120'000};

// Compiles the peer; nothing when there is no MPI here.
std::optional<std::string> make_mpi_program(const ScratchFile& program) {
  try {
    Child({"mpirun", "--version"}).finish(kStartLimit);
    Child({"mpicc", "-O2", "-o", program.path(),
           (checkout() / "bench/peer/mpi_collectives.c").string()})
        .finish(kStartLimit);
    return program.path();
  } catch (const Error& error) {
    fmt::print("Open MPI is left out: {}\n", plain_words(error.what()).substr(0, 200));
    return std::nullopt;
  }
}

}  // namespace

struct CollectivePeers::Gloo {
  ScratchFile store;  // through which they meet
  std::vector<Child> children;
};

CollectivePeers::CollectivePeers() {
  python_with_torch();
  mpi_ = make_mpi_program(program_);
}

CollectivePeers::~CollectivePeers() = default;

Times CollectivePeers::gloo(const PeerTrial& trial) {
  auto& group = gloo_[trial.ranks];
  if (!group) {
    group = std::make_unique<Gloo>();
    const auto& cores = host_facts().cores;
    for (int rank = 0; rank < trial.ranks; ++rank) {
      const int core = trial.ranks <= host_facts().usable_cores ? cores[rank] : -1;
      group->children.emplace_back(std::vector<std::string>{
          python_with_torch(), (checkout() / "bench/peer/gloo_collectives.py").string(), "--rank",
          std::to_string(rank), "--ranks", std::to_string(trial.ranks), "--core",
          std::to_string(core), "--store", group->store.path()});
    }
    for (Child& child : group->children) child.hear(kStartLimit);
  }
  const nlohmann::json task = {{"collective", name_of(trial.collective)},
                               {"bytes", trial.bytes},
                               {"iterations", trial.iterations}};
  for (Child& child : group->children) child.say(task.dump());
  Times times;
  for (Child& child : group->children) {
    const auto answer = nlohmann::json::parse(child.hear(kProgramLimit));
    for (const auto& [bytes, figures] : answer.items()) {
      if (!figures.at("correct").get<bool>()) throw Error("Gloo: a wrong result: " + answer.dump());
      times[std::stoll(bytes)] = figures.at("p50_us").get<double>();
    }
  }
  return times;
}

Times CollectivePeers::mpi(const PeerTrial& trial) {
  const bool cores = trial.ranks <= host_facts().usable_cores;
  std::vector<std::string> command = {"mpirun", "-n", std::to_string(trial.ranks), "--bind-to",
                                      cores ? "core" : "none"};
  if (trial.over_tcp)
    command.insert(command.end(), {"--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca",
                                   "btl_tcp_if_include", "lo"});
  command.insert(command.end(), {mpi_.value(), std::string(name_of(trial.collective)),
                                 std::to_string(trial.iterations)});
  for (const int64_t size : trial.bytes) command.push_back(std::to_string(size));
  return times_in(Child(command, {std::begin(kOpenMpiSettings), std::end(kOpenMpiSettings)})
                      .finish(kProgramLimit));
}

Times times_in(const std::string& output, const char* field) {
  Times times;
  std::istringstream text(output);
  for (std::string words; std::getline(text, words);) {
    const size_t brace = words.find('{');
    if (brace == std::string::npos) continue;
    const auto line = nlohmann::json::parse(words.substr(brace));
    if (!line.at("correct").get<bool>()) throw Error("a wrong result: " + line.dump());
    times[line.at("bytes").get<int64_t>()] = line.at(field).get<double>();
  }
  return times;
}

}  // namespace tutti::cli
