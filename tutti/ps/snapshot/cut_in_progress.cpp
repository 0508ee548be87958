#include "tutti/ps/snapshot/cut_in_progress.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/base/error.h"

namespace tutti::ps {

void CutInProgress::on_written(const Message& message) {
  const auto partitions = static_cast<int>(begun_in_.partitions.size());
  if (message.sequence != number_ || message.partition < 0 || message.partition >= partitions ||
      written_.contains(message.partition) || !failure_.empty())
    return;
  if ((message.flags & Message::not_written) != 0) {
    failure_ = fmt::format("partition {}: {}", message.partition, message.text);
    return;
  }
  try {
    parts_.push_back(cut_part_from(message.text));
  } catch (const Error& error) {
    failure_ = fmt::format("partition {}: {}", message.partition, error.what());
    return;
  }
  written_[message.partition] = message.text;
  if (!missing().empty()) return;
  if (const std::string why = objection_to_cut(parts_); !why.empty())
    failure_ = why + (parts_.front().marks ? ": a worker went or came while it was made"
                      : lost_worker()      ? ": a worker was lost in a step"
                                           : ": the workers ended within a step");
}

void CutInProgress::on_view(const View& view) {
  const View before = std::exchange(last_, view);
  for (size_t i = 0; i < begun_in_.partitions.size() && failure_.empty(); ++i) {
    const int lost = begun_in_.partitions[i].primary;
    if (lost == view.partitions[i].primary) continue;
    if (lost < 0)
      failure_ = fmt::format("partition {} had no server when it began", i);
    else
      failure_ = fmt::format("{} {}", view.servers[lost].name, view.servers[lost].ending);
  }
  for (int worker = 0; worker < std::ssize(view.workers) && failure_.empty(); ++worker) {
    const ProcessView& now = view.workers[worker];
    const bool was_here = worker < std::ssize(before.workers) && before.workers[worker].alive;
    if (!was_here || (now.alive && !was_lost_between(before, view, worker))) continue;
    in_order_ = now.finished;
    failure_ = fmt::format("{} {} meanwhile", now.name, now.alive ? "was lost" : now.ending);
  }
}

int64_t CutInProgress::step() const {
  const auto most = std::ranges::max_element(parts_, {}, &CutPart::step);
  return most == parts_.end() ? 0 : std::max<int64_t>(0, most->step);
}

const ProcessView* CutInProgress::lost_worker() const {
  const auto lost = std::ranges::find_if(last_.workers, [](const ProcessView& worker) {
    return worker.comings > 0 && !worker.alive && !worker.ending.empty() && !worker.finished;
  });
  return lost == last_.workers.end() ? nullptr : &*lost;
}

std::string CutInProgress::remark() const {
  const ProcessView* const lost = lost_worker();
  if (lost == nullptr || parts_.empty() || !parts_.front().marks) return "";
  return fmt::format("{} {}: what it did last may be in some of its partitions only", lost->name,
                     lost->ending);
}

std::vector<int> CutInProgress::missing() const {
  std::vector<int> missing;
  for (int i = 0; i < static_cast<int>(begun_in_.partitions.size()); ++i)
    if (!written_.contains(i)) missing.push_back(i);
  return missing;
}

}  // namespace tutti::ps
