#include "tutti/ps/partition/partition_counts.h"

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/ps/spec/detail/json_fields.h"

namespace tutti::ps {
namespace {

constexpr int64_t kMostCounted = int64_t{1} << 60;  // a sum of some does not overflow

}  // namespace

std::string to_text(const PartitionCounts& counts) {
  Json bins = Json::array();
  for (const auto& [staleness, updates] : counts.staleness.bins())
    bins.push_back({staleness, updates});
  return dump_json(Json{counts.pushes, counts.updates, counts.dropped, counts.not_finite, bins,
                        counts.sparse_rows, counts.sparse_bytes});
}

PartitionCounts counts_from(std::string_view text) {
  return detail::read_json(text, "counts of a partition", [&](const Json& list) {
    const auto number = [](const Json& value) {
      return detail::whole_number<int64_t>(value, "counts", 0, kMostCounted);
    };
    PartitionCounts counts{
        number(list.at(0)), number(list.at(1)), number(list.at(2)), number(list.at(3)), {},
        number(list.at(5)), number(list.at(6))};
    int64_t room = kMostCounted;  // for the histogram's own sum
    for (const Json& bin : list.at(4)) {
      const int64_t staleness = number(bin.at(0));
      const int64_t updates = number(bin.at(1));
      if (updates > 0 && staleness > room / updates)
        throw Error(fmt::format("counts: {} updates of staleness {}", updates, staleness));
      room -= staleness * updates;
      counts.staleness.add(staleness, updates);
    }
    return counts;
  });
}

std::string to_text(const Restored& restored) {
  return dump_json(Json{restored.num_chunks, restored.step, to_text(restored.counts),
                        restored.tables, restored.cursor});
}

Restored restored_from(std::string_view text) {
  return detail::read_json(
      text, "what a partition goes on from", [&](const Json& list) -> Restored {
        return {list.at(0), list.at(1), counts_from(list.at(2).get<std::string>()),
                list.at(3).get<std::vector<int64_t>>(), list.at(4)};
      });
}

}  // namespace tutti::ps
