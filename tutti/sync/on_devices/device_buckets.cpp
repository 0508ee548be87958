#include "tutti/sync/on_devices/detail/device_buckets.h"

#include <algorithm>
#include <utility>

#include "tutti/base/detail/check.h"

namespace tutti::detail {

DeviceBuckets::DeviceBuckets(Group group, const Slots& layout, at::Tensor gradients,
                             const DeviceSums& sizes, Millis limit)
    : group_(std::move(group)),
      layout_(layout),
      gradients_(std::move(gradients)),
      sizes_(sizes),
      limit_(limit),
      ready_(layout_, [this](int bucket) { send(bucket); }) {
  cut(reverse_order(layout_));
  ready_.begin_step();
}

void DeviceBuckets::cut(const std::vector<int>& order) {
  std::vector<int64_t> offsets;  // gradients stay where the layout has them
  const auto buckets = plan_buckets(
      layout_, order,
      {.bucket_bytes = sizes_.bucket_bytes, .first_bucket_bytes = sizes_.first_bucket_bytes},
      offsets);
  runs_.clear();
  for (const Bucket& bucket : buckets) {
    std::vector<int> parameters = bucket.parameters;
    std::ranges::sort(parameters);
    runs_.emplace_back();
    for (const int parameter : parameters)
      add_to(runs_.back(), layout_,
             {parameter, 0, layout_.slots[static_cast<size_t>(parameter)].num_elements});
  }
  ready_.cut(buckets);
}

void DeviceBuckets::put(int parameter) {
  ready_.put(parameter);
  if (!works_.empty()) works_.back().test();  // the engine goes on with those before
}

void DeviceBuckets::send(int bucket) {
  for (const Run& run : runs_[static_cast<size_t>(bucket)])
    works_.push_back(
        group_.all_reduce(span_of(elements_of(gradients_, run)), ReduceOp::sum, limit_));
}

void DeviceBuckets::join(const DeviceQueue& queue) {
  TUTTI_CHECK(ready_.all_sent(), "{} of {} buckets", ready_.num_sent(), runs_.size());
  for (Work& work : works_) work.wait_on(queue.handle());
}

void DeviceBuckets::end_step(Group hosts) {
  works_.clear();
  if (!ready_.agreed()) cut(ready_.agree_on_order(std::move(hosts), limit_));
  ready_.begin_step();
}

}  // namespace tutti::detail
