#include "tutti/train/watch/detail/checkpoint_read.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tutti/base/json.h"
#include "tutti/store/numbered_folder.h"

namespace tutti::detail {

CheckpointTensors CheckpointRead::under(const std::string& prefix) const {
  CheckpointTensors found;
  for (auto at = tensors.lower_bound(prefix); at != tensors.end() && at->first.starts_with(prefix);
       ++at)
    found.emplace(at->first.substr(prefix.size()), at->second);
  return found;
}

DataError CheckpointRead::damaged(const std::string& name, const std::string& why) const {
  return DataError(fmt::format("{}: {}: kept: {}: {}", what, store::kManifest, name, why));
}

std::vector<double> CheckpointRead::numbers(const std::string& name, size_t count) const {
  const std::string& words = manifest.kept.at(name);
  const auto list = parse_json(words);
  const auto is_finite = [](const Json& number) {
    return number.is_number() && std::isfinite(number.get<double>());
  };
  if (!list.is_array() || list.size() != count || !std::ranges::all_of(list, is_finite))
    throw damaged(name, fmt::format("{}, expected {} finite numbers", words, count));
  return list.get<std::vector<double>>();
}

std::string words_of(const std::vector<double>& numbers) { return dump_json(Json(numbers)); }

}  // namespace tutti::detail
