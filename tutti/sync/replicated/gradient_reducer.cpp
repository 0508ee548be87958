#include "tutti/sync/replicated/detail/gradient_reducer.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <exception>
#include <numeric>

#include "tutti/sync/tensors.h"

namespace tutti::detail {
namespace {

/// Where others see it, engines add it up in place.
MemorySpan memory_of_buckets(Group& group, int64_t bytes, Millis limit,
                             std::shared_ptr<const void>& owner) {
  if (!group.engine().shares_memory()) {
    const Array own = Array::zeros(DType::uint8, {bytes});
    owner = own.owner();
    return {own.data(), bytes, DType::uint8};
  }
  SharedParts shared = group.allocate(bytes, limit);
  owner = std::move(shared.owner);
  return shared.parts[static_cast<size_t>(group.rank())];
}

}  // namespace

GradientReducer::GradientReducer(Group group, const Slots& layout,
                                 std::vector<at::Tensor> parameters, ReduceOp op,
                                 const ReplicatedOptions& options, Millis limit, BucketState state)
    : group_(std::move(group)),
      layout_(layout),
      parameters_(std::move(parameters)),
      limit_(limit),
      reduction_(make_reduction(options)),
      memory_(memory_of_buckets(group_, std::max(layout.total_bytes, kLineBytes), limit, owner_)),
      sums_(layout_, options, group_.reduction_shape(), op, static_cast<std::byte*>(memory_.data),
            std::move(state)),
      ready_(layout_, [this](int bucket) { send(bucket); }) {
  if (options.compression.on()) compare_compression(group_, options.compression, limit_);
  view_buckets();
  if (sums_.buckets().size() > 1 && group_.engine().can_be_lent())
    mover_ = std::make_unique<SumMover>(group_);
  hooks_ = ReadyHooks(parameters_, [this](int parameter) { gradient_ready(parameter); }, true);
}

GradientReducer::~GradientReducer() {
  if (!mover_ || std::uncaught_exceptions() > 0) return;
  try {
    mover_->drain(limit_);
  } catch (const std::exception&) {  // whoever waits in the group is told
  }
}

void GradientReducer::adopt(std::span<const int> order) {
  sums_.adopt(order);
  view_buckets();
}

void GradientReducer::view_buckets() {
  views_.assign(layout_.slots.size(), {});
  for (int i = 0; i < static_cast<int>(views_.size()); ++i)
    if (sums_.bucket_of(i) >= 0)
      views_[i] = view_memory(sums_.gradient_of(i), layout_.slots[i], owner_);
  ready_.cut(sums_.buckets());
  reset();
}

void GradientReducer::reset() {
  ready_.begin_step();
  used_.assign(layout_.slots.size() + kVoteWords, 0);
  works_.clear();
  finishes_ = false;
}

void GradientReducer::gradient_ready(int parameter) {
  if (!listens_) return;
  ready_.require_new(parameter);
  const at::Tensor& gradient = parameters_[parameter].grad();
  check_gradient(layout_.slots[parameter], gradient);
  place(parameter, &gradient);
  if (!works_.empty()) works_.back().test();
}

void GradientReducer::place(int parameter, const at::Tensor* gradient) {
  at::NoGradGuard no_grad;
  if (gradient) {
    views_[parameter].copy_(*gradient);
  } else {
    views_[parameter].zero_();
  }
  used_[parameter] = gradient != nullptr;
  ready_.put(parameter);
}

void GradientReducer::send(int bucket) {
  const Exchange exchange = sums_.begin(bucket, used_);
  const auto start = [this, exchange](Millis limit) {
    return start_exchange(exchange, group_, *reduction_, limit);
  };
  if (mover_ && !finishes_)
    mover_->put_late({.start = start, .num_bytes = exchange.data.num_bytes()}, limit_);
  else
    works_.push_back(start(limit_));
}

void GradientReducer::finish(std::span<const at::Tensor> gradients, const Vote& vote) {
  finishes_ = true;
  if (mover_) {
    const std::vector<SumMover::Sum> left = mover_->take_back(limit_);
    works_.resize(static_cast<size_t>(ready_.num_sent()) - left.size());  // done
    for (const SumMover::Sum& sum : left) works_.push_back(sum.start(limit_));
  }
  for (int parameter = 0; parameter < static_cast<int>(parameters_.size()); ++parameter) {
    if (ready_.bucket_of(parameter) < 0 || ready_.has(parameter)) continue;
    const bool used = vote.part == kComputes && parameter < static_cast<int>(gradients.size()) &&
                      gradients[parameter].defined();
    if (used) check_gradient(layout_.slots[parameter], gradients[parameter]);
    place(parameter, used ? &gradients[parameter] : nullptr);
  }
  if (!works_.empty()) works_.back().test();
  std::ranges::copy(vote_words(vote), used_.end() - kVoteWords);
  used_work_ = group_.all_reduce(span_of(std::span(used_)), ReduceOp::max, limit_);
}

// Buckets go on in rounds, in order of number: an exchange of a later one is in flight while the
// next of an earlier one is made.
void GradientReducer::wait_for_buckets() {
  std::vector<int> open(works_.size());
  std::iota(open.begin(), open.end(), 0);
  while (!open.empty()) {
    std::vector<int> more;
    for (int bucket : open) {
      works_[bucket].wait(limit_);
      const Exchange exchange = sums_.next(bucket);
      if (exchange.kind == Exchange::Kind::none) continue;
      works_[bucket] = start_exchange(exchange, group_, *reduction_, limit_);
      more.push_back(bucket);
    }
    open = std::move(more);
  }
  used_work_.wait(limit_);
}

Verdict GradientReducer::wait() {
  wait_for_buckets();
  const Verdict verdict = verdict_of(layout_, used_);
  verdict.left_out || verdict.overflowed ? sums_.leave_out_step() : sums_.end_step();
  for (int parameter = 0; parameter < static_cast<int>(parameters_.size()); ++parameter) {
    if (sums_.bucket_of(parameter) < 0) continue;
    parameters_[parameter].mutable_grad() = used_[parameter] ? views_[parameter] : at::Tensor();
  }
  ready_.agreed() ? reset() : agree_on_order();
  return verdict;
}

// Buckets move to their new places after the first step, whose reduced gradients are still in use:
// they are copied out first.
void GradientReducer::agree_on_order() {
  const std::vector<int> order = ready_.agree_on_order(group_, limit_);
  for (at::Tensor& parameter : parameters_)
    if (parameter.grad().defined()) parameter.mutable_grad() = parameter.grad().clone();
  adopt(order);
}

}  // namespace tutti::detail
