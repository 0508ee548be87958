#include "tutti/sync/on_devices/detail/device_buckets.h"

#include <algorithm>
#include <numeric>

#include "tutti/base/detail/check.h"
#include "tutti/sync/detail/bucket_sums.h"

namespace tutti::detail {

DeviceBuckets::DeviceBuckets(Group group, const Layout& layout, at::Tensor gradients,
                             const DeviceSums& sizes, Millis limit)
    : group_(std::move(group)),
      layout_(layout),
      gradients_(std::move(gradients)),
      sizes_(sizes),
      limit_(limit) {
  std::vector<int> reversed(layout_.slots.size());
  std::iota(reversed.rbegin(), reversed.rend(), 0);
  cut(reversed);
}

void DeviceBuckets::cut(const std::vector<int>& order) {
  std::vector<int64_t> offsets;  // gradients stay where the layout has them
  const auto planned = plan_buckets(
      layout_, order,
      {.bucket_bytes = sizes_.bucket_bytes, .first_bucket_bytes = sizes_.first_bucket_bytes},
      offsets);
  buckets_.clear();
  bucket_of_.assign(layout_.slots.size(), -1);
  for (const detail::Bucket& one : planned) {
    std::vector<int> parameters = one.parameters;
    std::ranges::sort(parameters);
    Bucket& bucket = buckets_.emplace_back();
    bucket.parameters = static_cast<int>(parameters.size());
    for (const int parameter : parameters) {
      const auto place = static_cast<size_t>(parameter);
      bucket_of_[place] = static_cast<int>(buckets_.size()) - 1;
      add_to(bucket.runs, layout_, {parameter, 0, layout_.slots[place].num_elements});
    }
  }
  begin_step();
}

void DeviceBuckets::begin_step() {
  for (Bucket& bucket : buckets_) bucket.missing = bucket.parameters;
  put_.assign(layout_.slots.size(), 0);
  submitted_ = 0;
  works_.clear();
}

void DeviceBuckets::put(int parameter) {
  const auto place = static_cast<size_t>(parameter);
  if (bucket_of_[place] < 0) return;
  if (put_[place] != 0)
    throw UsageError(
        fmt::format("parameter \"{}\" got a second gradient in one step: backward() ran twice "
                    "before the update; add the losses and call it once",
                    layout_.slots[place].name));
  put_[place] = 1;
  --buckets_[static_cast<size_t>(bucket_of_[place])].missing;
  if (!agreed_) seen_.push_back(parameter);
  submit_full();
}

// In order of number on every rank, whatever the order in which gradients become ready.
void DeviceBuckets::submit_full() {
  for (; submitted_ < buckets_.size() && buckets_[submitted_].missing == 0; ++submitted_)
    for (const Run& run : buckets_[submitted_].runs)
      works_.push_back(
          group_.all_reduce(span_of(elements_of(gradients_, run)), ReduceOp::sum, limit_));
  if (!works_.empty()) works_.back().test();  // the engine goes on with those before
}

void DeviceBuckets::join(const DeviceQueue& queue) {
  TUTTI_CHECK(submitted_ == buckets_.size(), "{} of {} buckets", submitted_, buckets_.size());
  for (Work& work : works_) work.wait_on(queue.handle());
  begin_step();
}

void DeviceBuckets::agree_on_order(Group hosts) {
  if (agreed_) return;
  std::vector<int32_t> order(seen_.begin(), seen_.end());
  if (!order.empty()) hosts.broadcast(span_of(std::span(order)), 0, limit_).wait(limit_);
  agreed_ = true;
  seen_.clear();
  cut({order.begin(), order.end()});
}

}  // namespace tutti::detail
