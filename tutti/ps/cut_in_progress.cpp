#include "tutti/ps/cut_in_progress.h"

#include <fmt/format.h>

namespace tutti::ps {

void CutInProgress::on_written(const Message& message) {
  const auto partitions = static_cast<int>(begun_in_.partitions.size());
  if (message.sequence != number_ || message.partition < 0 || message.partition >= partitions)
    return;
  if ((message.flags & Message::not_written) == 0)
    written_[message.partition] = message.text;
  else if (failure_.empty())
    failure_ = fmt::format("partition {}: {}", message.partition, message.text);
}

void CutInProgress::on_view(const View& view) {
  if (!failure_.empty() || same_primaries(begun_in_, view)) return;
  for (size_t i = 0; i < begun_in_.partitions.size() && failure_.empty(); ++i) {
    const int lost = begun_in_.partitions[i].primary;
    if (lost != view.partitions[i].primary)
      failure_ = fmt::format("{} {}", view.servers[lost].name, view.servers[lost].ending);
  }
}

std::vector<int> CutInProgress::missing() const {
  std::vector<int> missing;
  for (int i = 0; i < static_cast<int>(begun_in_.partitions.size()); ++i)
    if (!written_.contains(i)) missing.push_back(i);
  return missing;
}

}  // namespace tutti::ps
