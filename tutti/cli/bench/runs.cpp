#include "tutti/cli/bench/runs.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <system_error>

#include "tutti/base/error.h"
#include "tutti/base/folders.h"
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

std::optional<uint32_t> owner_of(const std::filesystem::path& path) {
  struct stat facts{};
  if (stat(path.c_str(), &facts) != 0) return std::nullopt;
  return facts.st_uid;
}

}  // namespace

std::filesystem::path own_program() { return std::filesystem::read_symlink("/proc/self/exe"); }

std::filesystem::path checkout_above(std::filesystem::path folder,
                                     const std::vector<uint32_t>& owners) {
  for (;; folder = folder.parent_path()) {
    const auto owner = owner_of(folder);
    if (std::filesystem::exists(folder / "bench/peer/step.py") && owner &&
        std::ranges::find(owners, *owner) != owners.end())
      return folder;
    if (folder == folder.parent_path()) return {};
  }
}

std::filesystem::path checkout() {
  const std::filesystem::path program = own_program();
  std::vector<uint32_t> owners = {owner_of(program).value_or(geteuid())};
  auto found = checkout_above(program.parent_path(), owners);
  owners.push_back(geteuid());
  std::error_code removed;  // the working folder, maybe
  if (found.empty()) found = checkout_above(std::filesystem::current_path(removed), owners);
  if (found.empty())
    throw UsageError(
        "bench/peer was not found above this program or the working folder, in a folder of this "
        "user's: run it in a checkout of tutti");
  return found;
}

ScratchFile::ScratchFile() {
  std::string folder = (temporary_folder() / "tutti-bench-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr)
    throw Error(fmt::format("{} cannot be made: {}", folder, errno_words(errno)));
  folder_ = folder;
}

ScratchFile::~ScratchFile() {
  std::error_code gone_already;
  std::filesystem::remove_all(folder_, gone_already);
}

nlohmann::json json_in(const std::string& output) {
  for (size_t at = 0; at < output.size();) {
    const size_t end = std::min(output.find('\n', at), output.size());
    const size_t brace = output.find('{', at);
    if (brace < end) return parse_json(output.substr(brace, end - brace));
    at = end + 1;
  }
  throw Error("expected a line of JSON, got:\n" + output);
}

nlohmann::json run_step(const StepFlags& flags) {
  const JobFlags& job = flags.job;
  std::vector<std::string> command = {own_program().string(),
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

nlohmann::ordered_json surroundings() {
  const HostFacts& host = host_facts();
  return {{"commit", commit_of(checkout())},
          {"machine", host.cpu_model},
          {"cores", host.usable_cores},
          {"compiler", fmt::format("g++ {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__)},
          {"torch", torch_facts().version}};
}

}  // namespace tutti::cli
