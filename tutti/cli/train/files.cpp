#include "tutti/cli/train/files.h"

#include <fmt/format.h>

#include <system_error>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/data/spec.h"
#include "tutti/cli/train/flags.h"
#include "tutti/cli/train/options.h"

namespace tutti::cli {
std::filesystem::path weights_file(const TrainFlags& flags) {
  return std::filesystem::path(flags.out) / "model.safetensors";
}

bool keeps_checkpoints(const TrainFlags& flags) {
  return !flags.out.empty() && !flags.job.uses_servers();  // these keep snapshots instead
}

std::vector<std::filesystem::path> spec_files(const TrainFlags& flags) {
  std::vector<std::filesystem::path> files = {std::filesystem::path(flags.out) / kDataSpecFile};
  if (keeps_checkpoints(flags)) files.push_back(checkpoint_options(flags).folder / kDataSpecFile);
  return files;
}

std::filesystem::path history_file(const TrainFlags& flags) {
  return std::filesystem::path(flags.out) / "history.csv";
}

std::filesystem::path picture_file(const TrainFlags& flags) {
  return std::filesystem::path(flags.out) / "history.svg";
}

void check_outputs(const TrainFlags& flags) {
  if (!flags.json.empty()) require_writable(flags.json, "--json");
  if (!flags.trace.empty()) require_writable(flags.trace, "--trace");
  if (flags.out.empty()) return;
  std::error_code failure;
  std::filesystem::create_directories(flags.out, failure);
  if (failure)
    throw UsageError(
        fmt::format("--out {}: the folder cannot be made: {}", flags.out, failure.message()));
  require_writable(weights_file(flags), "--out");
  require_writable(std::filesystem::path(flags.out) / kDataSpecFile, "--out");
  require_writable(history_file(flags), "--out");
  require_writable(picture_file(flags), "--out");
}

}  // namespace tutti::cli
