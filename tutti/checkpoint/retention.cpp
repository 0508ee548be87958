#include "tutti/checkpoint/retention.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/checkpoint/checkpoint.h"
#include "tutti/checkpoint/folder.h"

namespace tutti {

namespace fs = std::filesystem;

namespace {

// Of an epoch that has just ended, and so of these weights. A damaged one has none: resume() and
// `tutti checkpoint verify` say what is wrong with it. One that cannot be read now may be the best.
std::optional<double> value_of(const fs::path& path, const std::string& monitor) {
  try {
    const CheckpointManifest manifest = TrainingCheckpoint(path).manifest();
    const auto value = manifest.values.find(monitor);
    if (manifest.step_in_epoch == 0 && value != manifest.values.end()) return value->second;
  } catch (const DataError&) {
  }
  return std::nullopt;
}

// The best first; those of equal value, the newer one first.
std::vector<fs::path> best_of(const std::vector<fs::path>& all,
                              const CheckpointRetention& retention) {
  std::vector<std::pair<double, fs::path>> valued;
  for (const fs::path& path : all)
    if (const auto value = value_of(path, retention.monitor))
      valued.emplace_back(retention.higher_is_better ? -*value : *value, path);
  std::ranges::sort(valued, [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first < b.first : a.second > b.second;
  });
  std::vector<fs::path> best;
  for (const auto& [value, path] : valued) best.push_back(path);
  return best;
}

}  // namespace

void remove_old_checkpoints(const fs::path& folder, const CheckpointRetention& retention) {
  const store::NumberedFolder checkpoints = checkpoint_folder(folder);
  const std::vector<fs::path> all = checkpoints.all();
  std::vector<fs::path> stay = store::newest_of(all, std::max(1, retention.newest));
  if (retention.best > 0) {
    const std::vector<fs::path> best = best_of(all, retention);
    stay.insert(stay.end(), best.begin(),
                best.begin() + std::min(std::ssize(best), int64_t{retention.best}));
  }
  checkpoints.keep(stay, all);
}

}  // namespace tutti
