#include "bench/compare/our_networks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <list>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/host.h"
#include "tutti/base/json.h"
#include "tutti/cli/bench/child.h"
#include "tutti/cli/bench/runs.h"
#include "tutti/cli/bench/timing.h"

#include "bench/compare/compare.h"

namespace tutti::bench {
using namespace cli;
namespace {

std::filesystem::path network_program() {
  const auto program = own_program().parent_path() / "bench_network_step";
  if (!std::filesystem::exists(program))
    throw UsageError(fmt::format("{} was not built; make bench builds it", program.string()));
  return program;
}

NetworkFigures figures_in(const std::string& path) {
  const MappedFile file = map_file(path);
  const Json json =
      parse_json({reinterpret_cast<const char*>(file.bytes.data()), file.bytes.size()});
  return {.step_ms = json.at("step_ms").get<double>(),
          .losses = losses_in(json.at("losses")),
          .peak_mb = json.at("peak_mb").get<double>(),
          .setting = ""};
}

struct Running {
  ScratchFile figures;
  std::unique_ptr<Child> child;
};

}  // namespace

NetworkWork::NetworkWork(const std::string& network, int64_t batch) : network_(network) {
  Child({python_with_torch(), (checkout() / "bench/peer/networks.py").string(), network,
         std::to_string(batch), path()})
      .finish(kProgramLimit);
}

std::vector<double> losses_in(const Json& list) {
  std::vector<double> losses;
  for (size_t i = 0; i < list.size(); ++i)
    losses.push_back(list[i].is_null() ? NAN : list[i].get<double>());
  return losses;
}

NetworkFigures run_ours(const NetworkWork& work, const std::string& strategy, int replicas,
                        int64_t warmup, int64_t steps) {
  const bool independent = strategy == "independent";
  const int processes = independent ? replicas : 1;
  std::list<Running> all;
  for (int part = 0; part < processes; ++part) {
    Running& one = all.emplace_back();
    std::vector<std::string> command;
    if (independent)
      command = {"taskset", "-c", std::to_string(host_facts().cores.at(static_cast<size_t>(part)))};
    if (strategy == "multi_worker")
      command = {tutti_program().string(), "run", "-n", std::to_string(replicas), "--"};
    command.insert(command.end(),
                   {network_program().string(), work.network(), work.path(), std::to_string(steps),
                    std::to_string(warmup), one.figures.path()});
    if (independent)
      command.insert(command.end(), {std::to_string(part), std::to_string(processes)});
    command.insert(command.end(), {"--strategy", independent ? "one_device" : strategy});
    if (strategy == "mirrored")
      command.insert(command.end(), {"--replicas", std::to_string(replicas)});
    command.insert(command.end(),
                   {"--threads", std::to_string(strategy == "one_device" ? replicas : 1)});
    one.child = std::make_unique<Child>(std::move(command));
  }
  NetworkFigures figures;
  for (Running& one : all) {
    one.child->finish(kProgramLimit);
    const NetworkFigures part = figures_in(one.figures.path());
    figures.step_ms = std::max(figures.step_ms, part.step_ms);
    figures.peak_mb += part.peak_mb;
    figures.losses = part.losses;
  }
  return figures;
}

}  // namespace tutti::bench
