#include "tutti/cli/bench/runs.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/host.h"
#include "tutti/base/json.h"
#include "tutti/cli/bench/child.h"
#include "tutti/cli/run/torch_facts.h"

namespace tutti::cli {
namespace {

// Far beyond any measurement; a program that hangs ends the benchmark.
constexpr Millis kRunLimit{10 * 60'000};

std::string commit_of(const std::filesystem::path& folder) {
  try {
    std::string commit = Child({"git", "-C", folder.string(), "describe", "--always", "--dirty"})
                             .finish(Millis{10'000});
    while (!commit.empty() && commit.back() == '\n') commit.pop_back();
    return commit;
  } catch (const Error&) {  // no git, or no repository: a release archive
    return "unknown";
  }
}

}  // namespace

std::filesystem::path own_program() { return std::filesystem::read_symlink("/proc/self/exe"); }

Json json_in(const std::string& output) {
  for (size_t at = 0; at < output.size();) {
    const size_t end = std::min(output.find('\n', at), output.size());
    const size_t brace = output.find('{', at);
    if (brace < end) return parse_json(output.substr(brace, end - brace));
    at = end + 1;
  }
  throw Error("expected a line of JSON, got:\n" + output);
}

Json run_step(const std::filesystem::path& program, const StepFlags& flags) {
  const JobFlags& job = flags.job;
  std::vector<std::string> command = {program.string(),
                                      "bench",
                                      "step",
                                      "--model",
                                      job.model,
                                      "--data",
                                      job.data,
                                      "--strategy",
                                      job.strategy,
                                      "--replicas",
                                      std::to_string(job.replicas.value_or(1)),
                                      "--batch-size",
                                      std::to_string(job.global_batch),
                                      "--steps",
                                      std::to_string(flags.steps),
                                      "--warmup",
                                      std::to_string(flags.warmup),
                                      "--optimizer",
                                      job.optimizer.name,
                                      "--seed",
                                      std::to_string(job.seed)};
  if (job.threads) command.insert(command.end(), {"--threads", std::to_string(*job.threads)});
  if (flags.preload) command.push_back("--preload");
  if (flags.unfused) command.push_back("--unfused");
  return json_in(Child(std::move(command)).finish(kRunLimit));
}

OrderedJson surroundings() {
  const HostFacts& host = host_facts();
  return {{"commit", commit_of(own_program().parent_path())},
          {"machine", host.cpu_model},
          {"cores", host.usable_cores},
          {"compiler", fmt::format("g++ {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__)},
          {"torch", torch_facts().version}};
}

}  // namespace tutti::cli
