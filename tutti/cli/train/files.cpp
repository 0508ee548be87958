#include "tutti/cli/train/files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <system_error>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/data/spec.h"
#include "tutti/cli/train/checkpoints.h"
#include "tutti/cli/train/flags.h"
#include "tutti/cli/train/options.h"
#include "tutti/cluster/spec/detail/environment.h"

namespace tutti::cli {
namespace {

// Whether servers go on from a snapshot: by a flag here, or by the launcher's.
bool restores(const TrainFlags& flags) {
  const char* const of_launcher = std::getenv(detail::kRestoreVariable);
  return !flags.job.served.snapshots.restore.empty() ||
         (flags.job.uses_servers() && of_launcher != nullptr && *of_launcher != '\0');
}

// "area, town (3 words) for price".
std::string columns_of(const data::TableSpec& table) {
  const auto words = [](const data::TableColumn& column) {
    return column.kind == data::ColumnKind::number
               ? column.name
               : fmt::format("{} ({} words)", column.name, column.vocabulary.size());
  };
  std::vector<std::string> names;
  for (const data::TableColumn& column : table.features) names.push_back(words(column));
  return fmt::format("{}{}", fmt::join(names, ", "),
                     table.target ? " for " + words(*table.target) : "");
}

// Scaled as each data is.
void require_same_columns(const TrainFlags& flags, const data::TableSpec& there,
                          const data::TableSpec& here) {
  const std::string before = columns_of(there), now = columns_of(here);
  if (before != now)
    throw UsageError(
        fmt::format("--from {}: was trained on the columns {}; here they are {}; expected the same "
                    "ones in this order (--columns, --target)",
                    flags.from, before, now));
  for (size_t i = 0; i < there.features.size(); ++i)
    if (there.features[i].vocabulary != here.features[i].vocabulary)
      throw UsageError(fmt::format("--from {}: column \"{}\" had the words {}; here they are {}",
                                   flags.from, there.features[i].name,
                                   fmt::join(there.features[i].vocabulary, ", "),
                                   fmt::join(here.features[i].vocabulary, ", ")));
}

// What has the same shapes, and means something else.
void require_same_meaning(const TrainFlags& flags, const DataSpec& there, const DataSpec& here) {
  auto before = there.classes, now = here.classes;
  std::ranges::sort(before);
  std::ranges::sort(now);
  if (before == now && there.classes != here.classes)
    throw UsageError(
        fmt::format("--from {}: was trained with the classes in another order: {}; here it is {}",
                    flags.from, fmt::join(there.classes, ", "), fmt::join(here.classes, ", ")));
  if (there.table && here.table) require_same_columns(flags, *there.table, *here.table);
  if (!there.gpt || !here.gpt) return;
  if (there.gpt->heads != here.gpt->heads)
    throw UsageError(fmt::format("--from {}: was trained with --heads {}, here it is --heads {}",
                                 flags.from, there.gpt->heads, here.gpt->heads));
  if (there.classes != here.classes)
    throw UsageError(fmt::format(
        "--from {}: was trained on other characters: {} of them, here there are {}; expected a "
        "text of the same ones",
        flags.from, there.classes.size(), here.classes.size()));
}

}  // namespace

void check_from(const TrainFlags& flags, const DataSpec& spec) {
  if (flags.from.empty()) return;
  if (checkpoints_in(flags.from).empty())
    throw UsageError(fmt::format(
        "--from {}: no weights are there; expected a safetensors file, a checkpoint, a snapshot, "
        "or the folder that --out of tutti train was given",
        flags.from));
  if (restores(flags))
    throw UsageError(fmt::format(
        "--from {} with --restore: servers begin with what is in their snapshot; give one of them",
        flags.from));
  const auto there = spec_beside(flags.from);
  if (!there) return;
  require_same_model(*there, flags.job.model, flags.from);
  require_same_meaning(flags, *there, spec);
}

std::filesystem::path weights_to_begin_with(const TrainFlags& flags) {
  return checkpoints_in(flags.from).back().path;
}

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

std::filesystem::path adapters_file(const TrainFlags& flags) {
  return std::filesystem::path(flags.out) / "adapters.safetensors";
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
