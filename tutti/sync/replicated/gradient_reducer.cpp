#include "tutti/sync/replicated/detail/gradient_reducer.h"

#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <limits>
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

bool GradientReducer::has_begun() const {
  return ready_.has_any() || std::ranges::any_of(passes_, [](int passes) { return passes > 0; });
}

void GradientReducer::forget_passes() {
  TUTTI_CHECK(!has_taken(), "gradients are in their buckets, and are sent");
  passes_.assign(layout_.slots.size(), 0);
  unsent_ = false;
}

void GradientReducer::hear(int64_t words) {
  words_ = words;
  reset();
}

void GradientReducer::reset() {
  ready_.begin_step();
  passes_.assign(layout_.slots.size(), 0);
  used_.assign(layout_.slots.size() + kVoteWords, 0);
  works_.clear();
  finishes_ = unsent_ = false;
}

void GradientReducer::gradient_ready(int parameter) {
  if (!listens_) {
    unsent_ = true;
    return;
  }
  const int pass = ++passes_[parameter];
  if (pass < expected_passes_) return;
  if (pass > expected_passes_ && expected_passes_ > 1)
    throw_second_gradient(
        layout_.slots[parameter],
        fmt::format(": backward() ran {} times before step(), and backward_passes_per_step is {}",
                    pass, expected_passes_));
  ready_.require_new(parameter);
  const at::Tensor& gradient = parameters_[parameter].grad();
  check_gradient(layout_.slots[parameter], gradient);
  place(parameter, &gradient);
  if (!works_.empty()) works_.back().test();
}

void GradientReducer::place(int parameter, const at::Tensor* gradient) {
  at::NoGradGuard no_grad;
  if (scale_ == 0) gradient = nullptr;
  if (gradient) {
    views_[parameter].copy_(*gradient);
    if (scale_ != 1) views_[parameter].mul_(scale_);
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

void GradientReducer::finish(std::span<const at::Tensor> gradients, const Vote& vote,
                             std::span<const int32_t> words) {
  TUTTI_CHECK(std::ssize(words) == words_, "ranks say {} words, got {}", words_, words.size());
  finishes_ = true;
  if (mover_) {
    std::vector<Work> left = mover_->take_back(limit_);
    works_.resize(static_cast<size_t>(ready_.num_sent()) - left.size());  // done
    std::ranges::move(left, std::back_inserter(works_));
  }
  for (int parameter = 0; parameter < static_cast<int>(parameters_.size()); ++parameter) {
    if (ready_.bucket_of(parameter) < 0 || ready_.has(parameter)) continue;
    const bool used = vote.part == kComputes && parameter < static_cast<int>(gradients.size()) &&
                      gradients[parameter].defined();
    if (used) check_gradient(layout_.slots[parameter], gradients[parameter]);
    place(parameter, used ? &gradients[parameter] : nullptr);
  }
  if (!works_.empty()) works_.back().test();
  Vote told = vote;
  if (!needs_gradient_) told.part = kAbstains;
  std::ranges::copy(vote_words(told), used_.end() - kVoteWords);
  // The largest of all is what a rank has said in its own place.
  used_.resize(used_.size() + static_cast<size_t>(words_ * group_.size()),
               std::numeric_limits<int32_t>::min());
  std::ranges::copy(words, used_.end() - words_ * (group_.size() - group_.rank()));
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
  heard_.assign(used_.end() - words_ * group_.size(), used_.end());
  any_gradient_ = std::any_of(used_.begin(), used_.begin() + std::ssize(layout_.slots),
                              [](int32_t one) { return one != 0; });
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

at::Tensor rows_of_all(Group& group, const std::string& name, const at::Tensor& parameter,
                       const at::Tensor& gradient, double scale, Millis limit) {
  const at::NoGradGuard no_grad;
  at::Tensor numbers = at::empty({0}, at::kLong), rows = at::empty({0}, parameter.options());
  const bool fits =
      !gradient.defined() || (gradient.layout() == at::kSparse && gradient.sparse_dim() == 1);
  if (gradient.defined() && fits) {
    const at::Tensor mine = gradient.coalesce();
    numbers = mine.indices()[0].contiguous();
    rows = (mine.values() * scale).contiguous();
  }
  constexpr int64_t kNoGradient = -1, kDense = -2;
  int64_t own = !fits ? kDense : gradient.defined() ? numbers.size(0) : kNoGradient;
  std::vector<int64_t> counts(static_cast<size_t>(group.size()));
  group.all_gather(span_of(std::span(&own, 1)), span_of(std::span(counts)), limit).wait(limit);
  if (const auto dense = std::ranges::find(counts, kDense); dense != counts.end())
    throw UsageError(fmt::format(
        "gradient of parameter \"{}\": its embedding is sparse, and it is not, on rank {}; use the "
        "table in that embedding alone, or build it with sparse(false)",
        name, dense - counts.begin()));
  if (std::ranges::max(counts) < 0) return {};
  for (int64_t& count : counts) count = std::max<int64_t>(count, 0);
  const int64_t total = std::reduce(counts.begin(), counts.end());
  std::vector<int64_t> shape = parameter.sizes().vec();
  shape[0] = total;
  const at::Tensor all_numbers = at::empty({total}, at::kLong);
  const at::Tensor all_rows = at::empty(shape, parameter.options());
  group.all_gather(span_of(numbers), span_of(all_numbers), counts, limit).wait(limit);
  std::vector<int64_t> elements = counts;
  for (int64_t& count : elements)
    count *= parameter.numel() / std::max<int64_t>(1, parameter.size(0));
  group.all_gather(span_of(rows), span_of(all_rows), elements, limit).wait(limit);

  const auto [unique, places, _] = at::_unique2(all_numbers, true, true);
  shape[0] = unique.size(0);
  const at::Tensor sums = at::full(shape, -0.0, parameter.options());  // -0 + x has the bits of x
  int64_t begin = 0;
  for (const int64_t count : counts) {  // a rank has each row once, so the order is that of ranks
    sums.index_add_(0, places.narrow(0, begin, count), all_rows.narrow(0, begin, count));
    begin += count;
  }
  return at::sparse_coo_tensor(unique.unsqueeze(0), sums, parameter.sizes())._coalesced_(true);
}

}  // namespace tutti::detail
