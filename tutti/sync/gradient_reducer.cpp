#include "tutti/sync/gradient_reducer.h"

#include <torch/torch.h>

#include <cstring>
#include <numeric>

#include "tutti/sync/tensors.h"

namespace tutti::detail {
namespace {

constexpr int64_t kLineBytes = 64;

int64_t padded_bytes(const ParameterSlot& slot) {
  return (slot.num_elements * size_of(slot.dtype) + kLineBytes - 1) / kLineBytes * kLineBytes;
}

}  // namespace

std::vector<Bucket> plan_buckets(const Layout& layout, std::span<const int> order,
                                 const ReplicatedOptions& options, std::vector<int64_t>& offsets) {
  offsets.assign(layout.slots.size(), 0);
  std::vector<Bucket> buckets;
  int64_t end_bytes = 0;
  for (int parameter : order) {
    const ParameterSlot& slot = layout.slots[parameter];
    if (!slot.trained) continue;
    const int64_t limit = buckets.size() <= 1 ? options.first_bucket_bytes : options.bucket_bytes;
    if (buckets.empty() || buckets.back().dtype != slot.dtype ||
        end_bytes - buckets.back().begin_bytes >= limit)
      buckets.push_back({.begin_bytes = end_bytes, .dtype = slot.dtype});
    buckets.back().parameters.push_back(parameter);
    offsets[parameter] = end_bytes;
    end_bytes += padded_bytes(slot);
    buckets.back().num_elements = (end_bytes - buckets.back().begin_bytes) / size_of(slot.dtype);
  }
  return buckets;
}

GradientReducer::GradientReducer(Group group, const Layout& layout,
                                 std::vector<at::Tensor> parameters, ReduceOp op,
                                 const ReplicatedOptions& options, Millis limit)
    : group_(std::move(group)),
      layout_(layout),
      parameters_(std::move(parameters)),
      op_(op),
      options_(options),
      limit_(limit),
      memory_(group_.allocate(std::max(layout.total_bytes, kLineBytes), limit)) {
  base_ = static_cast<std::byte*>(memory_.parts[group_.rank()].data);
  std::vector<int> reverse(layout_.slots.size());
  std::iota(reverse.rbegin(), reverse.rend(), 0);
  adopt(reverse);
  hooks_ = ReadyHooks(parameters_, [this](int parameter) { gradient_ready(parameter); });
}

void GradientReducer::adopt(std::span<const int> order) {
  buckets_ = plan_buckets(layout_, order, options_, offsets_);
  bucket_of_.assign(layout_.slots.size(), -1);
  views_.assign(layout_.slots.size(), {});
  for (int b = 0; b < static_cast<int>(buckets_.size()); ++b)
    for (int parameter : buckets_[b].parameters) {
      bucket_of_[parameter] = b;
      views_[parameter] =
          view_memory(base_ + offsets_[parameter], layout_.slots[parameter], memory_.owner);
    }
  // Padding between gradients is reduced with them; zeros keep it harmless.
  std::memset(base_, 0, static_cast<size_t>(layout_.total_bytes));
  reset();
}

void GradientReducer::reset() {
  missing_.clear();
  for (const Bucket& bucket : buckets_)
    missing_.push_back(static_cast<int>(bucket.parameters.size()));
  placed_.assign(layout_.slots.size(), 0);
  used_.assign(layout_.slots.size(), 0);
  works_.clear();
  submitted_ = 0;
}

void GradientReducer::gradient_ready(int parameter) {
  const ParameterSlot& slot = layout_.slots[parameter];
  if (placed_[parameter])
    throw UsageError(
        fmt::format("parameter \"{}\" got a second gradient in one step: backward() ran "
                    "twice before step(); add the losses and call it once",
                    slot.name));
  const at::Tensor& gradient = parameters_[parameter].grad();
  check_gradient(slot, gradient);
  place(parameter, &gradient);
  submit_full_buckets();
}

void GradientReducer::place(int parameter, const at::Tensor* gradient) {
  at::NoGradGuard no_grad;
  if (gradient) {
    views_[parameter].copy_(*gradient);
  } else {
    views_[parameter].zero_();
  }
  placed_[parameter] = 1;
  used_[parameter] = gradient != nullptr;
  --missing_[bucket_of_[parameter]];
  if (!order_agreed_) observed_order_.push_back(parameter);
}

// In order of number on every rank, whatever the order in which gradients become ready.
void GradientReducer::submit_full_buckets() {
  while (submitted_ < buckets_.size() && missing_[submitted_] == 0) {
    const Bucket& bucket = buckets_[submitted_++];
    const MemorySpan span{base_ + bucket.begin_bytes, bucket.num_elements, bucket.dtype};
    works_.push_back(group_.all_reduce(span, op_, limit_));
  }
  if (!works_.empty()) works_.back().test();
}

void GradientReducer::finish(std::span<const at::Tensor> gradients, double weight) {
  for (int parameter = 0; parameter < static_cast<int>(parameters_.size()); ++parameter) {
    if (bucket_of_[parameter] < 0 || placed_[parameter]) continue;
    const bool used = weight != 0 && parameter < static_cast<int>(gradients.size()) &&
                      gradients[parameter].defined();
    if (used) check_gradient(layout_.slots[parameter], gradients[parameter]);
    place(parameter, used ? &gradients[parameter] : nullptr);
  }
  submit_full_buckets();
  works_.push_back(group_.all_reduce(span_of(std::span(used_)), ReduceOp::max, limit_));
}

void GradientReducer::wait() {
  for (Work& work : works_) work.wait(limit_);
  for (int parameter = 0; parameter < static_cast<int>(parameters_.size()); ++parameter) {
    if (bucket_of_[parameter] < 0) continue;
    parameters_[parameter].mutable_grad() = used_[parameter] ? views_[parameter] : at::Tensor();
  }
  if (!order_agreed_) {
    agree_on_order();
  } else {
    reset();
  }
}

// Buckets move to their new places after the first step, whose reduced gradients are still in use:
// they are copied out first.
void GradientReducer::agree_on_order() {
  std::vector<int32_t> order(observed_order_.begin(), observed_order_.end());
  if (!order.empty()) group_.broadcast(span_of(std::span(order)), 0, limit_).wait(limit_);
  order_agreed_ = true;
  for (at::Tensor& parameter : parameters_)
    if (parameter.grad().defined()) parameter.mutable_grad() = parameter.grad().clone();
  adopt(std::vector<int>(order.begin(), order.end()));
}

}  // namespace tutti::detail
