#include "tutti/sync/detail/ready_buckets.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/base/error.h"

namespace tutti::detail {

void throw_unread(const ParameterSlot& slot) {
  throw UsageError(
      fmt::format("parameter \"{}\" has a gradient, but no operator has read it since it was "
                  "updated: its loss is of old values; make it after the update before, and call "
                  "require_ready() where code reads memory by itself",
                  slot.name));
}

void throw_second_gradient(const ParameterSlot& slot, std::string_view why) {
  throw UsageError(
      fmt::format("parameter \"{}\" got a second gradient in one step{}", slot.name, why));
}

void ReadyBuckets::cut(std::span<const Bucket> buckets) {
  bucket_of_.assign(layout_.slots.size(), -1);
  sizes_.clear();
  for (const Bucket& bucket : buckets) {
    for (const int parameter : bucket.parameters)
      bucket_of_[static_cast<size_t>(parameter)] = static_cast<int>(sizes_.size());
    sizes_.push_back(static_cast<int>(bucket.parameters.size()));
  }
}

void ReadyBuckets::begin_step() {
  missing_ = sizes_;
  there_.assign(layout_.slots.size(), 0);
  seen_.clear();
  sent_ = 0;
}

bool ReadyBuckets::has_any() const { return std::ranges::find(there_, 1) != there_.end(); }

void ReadyBuckets::require_new(int parameter) const {
  if (has(parameter)) throw_second_gradient(layout_.slots[static_cast<size_t>(parameter)]);
}

void ReadyBuckets::put(int parameter) {
  if (bucket_of(parameter) < 0) return;
  require_new(parameter);
  there_[static_cast<size_t>(parameter)] = 1;
  --missing_[static_cast<size_t>(bucket_of(parameter))];
  if (!agreed_) seen_.push_back(parameter);
  for (; !all_sent() && missing_[static_cast<size_t>(sent_)] == 0; ++sent_) send_(sent_);
}

std::vector<int> ReadyBuckets::agree_on_order(Group group, Millis limit) {
  if (!seen_.empty()) group.broadcast(span_of(std::span(seen_)), 0, limit).wait(limit);
  agreed_ = true;
  return {seen_.begin(), seen_.end()};
}

}  // namespace tutti::detail
