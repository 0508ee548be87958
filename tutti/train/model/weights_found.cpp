#include "tutti/train/model/weights_found.h"

#include <algorithm>
#include <iterator>
#include <system_error>

#include "tutti/checkpoint/folder.h"
#include "tutti/ps/snapshot/snapshot.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

// None where it has gone meanwhile, or has lost its manifest.
void add(std::vector<FoundWeights>& found, const fs::path& path, const fs::path& written) {
  std::error_code failure;
  const auto time = fs::last_write_time(written, failure);
  if (!failure) found.push_back({.path = path, .written = time});
}

}  // namespace

std::vector<FoundWeights> weights_in(const fs::path& place) {
  std::vector<FoundWeights> found;
  std::error_code failure;
  if (!fs::is_directory(place, failure)) {
    add(found, place, place);
    if (!found.empty()) found.back().is_end = true;
    return found;
  }
  for (const fs::path& cut : ps::snapshots_in(place)) add(found, cut, cut / store::kManifest);
  const auto snapshots = std::ssize(found);
  std::vector<fs::path> cuts;
  for (const fs::path& folder : {place, place / "checkpoints"})
    std::ranges::copy(trainings_in(folder), std::back_inserter(cuts));
  if (fs::exists(place / store::kManifest, failure)) cuts.push_back(place);
  for (const fs::path& cut : cuts) add(found, cut, cut / store::kManifest);
  std::vector<FoundWeights> end;
  add(end, place / "model.safetensors", place / "model.safetensors");
  if (end.empty()) return found;
  end.back().is_end = true;
  // Servers write their last snapshot when the workers, and with them this file, are done.
  const auto first = found.begin() + snapshots;
  auto at = found.end();
  while (at != first && std::prev(at)->written > end.back().written) --at;
  found.insert(at, std::move(end.back()));
  return found;
}

std::optional<FoundExport> export_beside(const fs::path& weights) {
  std::error_code failure;
  fs::path folder = fs::absolute(weights).lexically_normal();
  for (int up = 0; up < 3 && !fs::exists(folder / kExportFile, failure); ++up)
    folder = folder.parent_path();
  if (!fs::exists(folder / kExportFile, failure)) return std::nullopt;
  FoundExport found{.network = folder / kExportFile};
  if (fs::exists(folder / kEvalExportFile, failure)) found.evaluation = folder / kEvalExportFile;
  return found;
}

}  // namespace tutti
