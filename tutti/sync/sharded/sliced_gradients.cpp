#include "tutti/sync/sharded/detail/sliced_gradients.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tutti/net/arena.h"
#include "tutti/sync/tensors.h"

namespace tutti::detail {
namespace {

// Buckets that have memory while they travel, beside those that fill.
constexpr int kMostOnTheWay = 2;

}  // namespace

SlicedGradients::SlicedGradients(Group group, Place place, const Slots& layout,
                                 const ShardLayout& shards, std::vector<at::Tensor> parameters,
                                 Millis limit)
    : group_(std::move(group)),
      place_(place),
      layout_(layout),
      shards_(shards),
      parameters_(std::move(parameters)),
      limit_(limit),
      sums_(Array::zeros(
          DType::uint8,
          {place.keep == Keep::row ? shards.row_bytes() : shards.slice_bytes(place.owner)})),
      memory_(static_cast<size_t>(shards.num_buckets())),
      ready_(layout_, [this](int bucket) { send(bucket); }) {
  ready_.cut(shards_.buckets());
  end_step();
  hooks_ = ReadyHooks(parameters_, [this](int parameter) { gradient_ready(parameter); });
}

void SlicedGradients::begin(bool overlap) {
  if (ready_.has_any())
    throw UsageError(
        "a backward pass of this step failed when its gradients were on their way to other "
        "replicas, so that the step cannot begin again");
  listens_ = overlap;
}

void SlicedGradients::end_step() {
  ready_.begin_step();
  used_.assign(layout_.slots.size() + kVoteWords, 0);
  works_.clear();
  retired_ = 0;
}

void SlicedGradients::gradient_ready(int parameter) {
  if (!listens_) return;
  const auto number = static_cast<size_t>(parameter);
  ready_.require_new(parameter);
  at::Tensor& gradient = parameters_[number].mutable_grad();
  check_gradient(layout_.slots[number], gradient);
  place(parameter, &gradient);
  gradient.reset();
  ready_.put(parameter);
  retire_what_is_done();
}

std::byte* SlicedGradients::memory_of(int bucket) {
  const Bucket& about = shards_.bucket(bucket);
  if (place_.keep == Keep::row) return static_cast<std::byte*>(sums_.data()) + about.begin_bytes;
  at::Tensor& memory = memory_[static_cast<size_t>(bucket)];
  if (!memory.defined()) {
    memory = at::empty({about.num_elements * size_of(about.dtype)}, at::kByte);
    open_bytes_ += memory.numel();
    most_open_bytes_ = std::max(most_open_bytes_, open_bytes_);
  }
  return static_cast<std::byte*>(memory.data_ptr());
}

// x + -0.0 is x for every x, 0.0 + x is not.
void SlicedGradients::place(int parameter, const at::Tensor* gradient) {
  const at::NoGradGuard no_grad;
  const auto number = static_cast<size_t>(parameter);
  const ParameterSlot& slot = layout_.slots[number];
  const int bucket = shards_.bucket_of(parameter);
  std::byte* const to =
      memory_of(bucket) + shards_.row_bytes_of(parameter) - shards_.bucket(bucket).begin_bytes;
  const at::Tensor view =
      at::from_blob(to, slot.shape, at::TensorOptions().dtype(scalar_type_of(slot.dtype)));
  gradient != nullptr ? view.copy_(*gradient) : view.fill_(-0.0);
  const int64_t bytes = slot.num_elements * size_of(slot.dtype);
  std::memset(to + bytes, 0, static_cast<size_t>(round_up(bytes, kLineBytes) - bytes));
  used_[number] = gradient != nullptr;
}

void SlicedGradients::retire_what_is_done() {
  while (retired_ < num_sent() && works_[static_cast<size_t>(retired_)].test()) retire(retired_++);
}

void SlicedGradients::send(int bucket) {
  while (place_.keep == Keep::slice && place_.may_wait && num_sent() - retired_ >= kMostOnTheWay) {
    works_[static_cast<size_t>(retired_)].wait(limit_);
    retire(retired_++);
  }
  const Bucket& about = shards_.bucket(bucket);
  const OwnedPart& own = shards_.part(bucket, place_.owner);
  const MemorySpan all{memory_of(bucket), about.num_elements, about.dtype};
  if (!place_.scattered) {
    works_.push_back(group_.all_reduce(all, ReduceOp::sum, limit_));
    return;
  }
  auto* const sums = static_cast<std::byte*>(sums_.data());
  const MemorySpan sum{sums + (place_.keep == Keep::row ? own.row_bytes : own.slice_bytes),
                       own.num_elements, about.dtype};
  works_.push_back(group_.reduce_scatter(all, sum, ReduceOp::sum, shards_.counts(bucket), limit_));
}

void SlicedGradients::retire(int bucket) {
  if (place_.keep == Keep::row) return;
  at::Tensor& memory = memory_[static_cast<size_t>(bucket)];
  const OwnedPart& own = shards_.part(bucket, place_.owner);
  if (!place_.scattered)
    std::memcpy(static_cast<std::byte*>(sums_.data()) + own.slice_bytes,
                static_cast<std::byte*>(memory.data_ptr()) + own.row_bytes -
                    shards_.bucket(bucket).begin_bytes,
                static_cast<size_t>(own.num_elements * size_of(shards_.bucket(bucket).dtype)));
  open_bytes_ -= memory.numel();
  memory.reset();
}

void SlicedGradients::finish(std::span<const at::Tensor> gradients, const Vote& vote) {
  listens_ = false;
  for (size_t i = 0; i < gradients.size(); ++i)
    if (shards_.bucket_of(static_cast<int>(i)) < 0 && gradients[i].defined())
      check_gradient(layout_.slots[i], gradients[i]);
  const bool counts = vote.part == kComputes;
  // In the order of the buckets, so that few of them are open at once.
  for (int bucket = 0; bucket < shards_.num_buckets(); ++bucket) {
    for (const int parameter : shards_.bucket(bucket).parameters) {
      const auto number = static_cast<size_t>(parameter);
      if (number < gradients.size() && gradients[number].defined() && counts) {
        if (ready_.has(parameter))
          throw_second_gradient(layout_.slots[number], ", beside the one of backward()");
        check_gradient(layout_.slots[number], gradients[number]);
        place(parameter, &gradients[number]);
        ready_.put(parameter);
      } else if (!ready_.has(parameter)) {
        place(parameter, nullptr);
        ready_.put(parameter);
      }
    }
    retire_what_is_done();
  }
  std::ranges::copy(vote_words(vote), used_.end() - kVoteWords);
  used_work_ = group_.all_reduce(tutti::span_of(std::span(used_)), ReduceOp::max, limit_);
}

Verdict SlicedGradients::wait() {
  for (; retired_ < num_sent(); retire(retired_++))
    works_[static_cast<size_t>(retired_)].wait(limit_);
  used_work_.wait(limit_);
  return verdict_of(layout_, used_);
}

std::byte* SlicedGradients::sum_of(const OwnedPiece& piece) const {
  return static_cast<std::byte*>(sums_.data()) +
         (place_.keep == Keep::row ? piece.row_bytes : piece.slice_bytes);
}

}  // namespace tutti::detail
