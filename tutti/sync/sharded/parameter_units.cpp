#include "tutti/sync/sharded/detail/parameter_units.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <cstring>

#include "tutti/base/error.h"
#include "tutti/base/event.h"

namespace tutti::detail {
namespace {

// That are there at once, where no operator needs more.
constexpr int64_t kUnits = 2;

int64_t bytes_in(const Bucket& bucket) { return bucket.num_elements * size_of(bucket.dtype); }

int64_t largest_of(const ShardLayout& shards) {
  int64_t most = 0;
  for (int unit = 0; unit < shards.num_buckets(); ++unit)
    most = std::max(most, bytes_in(shards.bucket(unit)));
  return most;
}

}  // namespace

ParameterUnits::ParameterUnits(Group owners, const ShardLayout& shards, std::byte* row,
                               Millis limit)
    : owners_(std::move(owners)),
      shards_(shards),
      row_(row),
      limit_(limit),
      spare_(largest_of(shards)),
      slice_(Array::zeros(DType::uint8, {shards.slice_bytes(owners_.rank())})),
      here_(static_cast<size_t>(shards.num_buckets()), 1),
      needed_in_(here_.size(), 0) {
  std::vector<BeforeUse::Range> ranges;
  for (int unit = 0; unit < shards_.num_buckets(); ++unit) {
    const std::byte* const begin = row_ + shards_.bucket(unit).begin_bytes;
    ranges.push_back({begin, begin + bytes_of(unit), unit});
    unit_bytes_ += bytes_of(unit);
  }
  late_ = std::make_unique<BeforeUse>(std::move(ranges), shards_.num_buckets(), [this](int unit) {
    if (here_[static_cast<size_t>(unit)] != 0) return;
    std::vector<int> needed = late_->read_together();
    needed.push_back(unit);
    round(needed, Said::some_need);
  });
  take_slice();
}

int64_t ParameterUnits::bytes_of(int unit) const { return bytes_in(shards_.bucket(unit)); }

void ParameterUnits::take_slice() {
  for (int unit = 0; unit < shards_.num_buckets(); ++unit) {
    const OwnedPart& own = shards_.part(unit, owners_.rank());
    std::memcpy(static_cast<std::byte*>(slice_.data()) + own.slice_bytes, row_ + own.row_bytes,
                static_cast<size_t>(own.num_elements * size_of(shards_.bucket(unit).dtype)));
  }
}

bool ParameterUnits::whole() const noexcept { return std::ranges::find(here_, 0) == here_.end(); }

void ParameterUnits::give_back() {
  if (!at::isRecordFunctionEnabled())
    throw UsageError(
        "--shard parameters: LibTorch's observers of operators are off "
        "(at::enableRecordFunction), and nothing else says when a parameter is read");
  for (int unit = 0; unit < shards_.num_buckets(); ++unit) drop(unit);
  most_unit_bytes_ = 0;
  late_->watch();
}

void ParameterUnits::drop(int unit) {
  if (here_[static_cast<size_t>(unit)] == 0) return;
  here_[static_cast<size_t>(unit)] = 0;
  late_->give_up(unit);
  spare_.take(row_ + shards_.bucket(unit).begin_bytes, bytes_of(unit));
  unit_bytes_ -= bytes_of(unit);
}

void ParameterUnits::gather(int unit) {
  const OwnedPart& own = shards_.part(unit, owners_.rank());
  const MemorySpan all = shards_.span_of(unit, row_);
  spare_.give(static_cast<std::byte*>(all.data), bytes_of(unit));
  owners_
      .all_gather(
          {static_cast<std::byte*>(slice_.data()) + own.slice_bytes, own.num_elements, all.dtype},
          all, shards_.counts(unit), limit_)
      .wait(limit_);
  here_[static_cast<size_t>(unit)] = 1;
  unit_bytes_ += bytes_of(unit);
  most_unit_bytes_ = std::max(most_unit_bytes_, unit_bytes_);
}

void ParameterUnits::make_room(const std::vector<uint8_t>& needed) {
  int64_t will_be_here = 0;
  std::vector<int> others;
  for (int unit = 0; unit < shards_.num_buckets(); ++unit) {
    const auto number = static_cast<size_t>(unit);
    will_be_here += here_[number] != 0 || needed[number] != 0;
    if (here_[number] != 0 && needed[number] == 0) others.push_back(unit);
  }
  std::ranges::stable_sort(others, {},
                           [&](int unit) { return needed_in_[static_cast<size_t>(unit)]; });
  for (const int unit : others)
    if (will_be_here > kUnits) {
      drop(unit);
      --will_be_here;
    }
}

// What it returns is equal on all ranks, and so is what is there afterwards.
ParameterUnits::Said ParameterUnits::round(const std::vector<int>& needed, Said own) {
  std::vector<uint8_t> all(here_.size(), 0);
  for (const int unit : needed) all[static_cast<size_t>(unit)] = 1;
  all.push_back(static_cast<uint8_t>(own));
  owners_.all_reduce_now(tutti::span_of(std::span(all)), ReduceOp::max, limit_);
  const auto said = static_cast<Said>(all.back());
  all.pop_back();
  ++rounds_;
  if (said != Said::some_need) return said;
  make_room(all);
  for (int unit = 0; unit < shards_.num_buckets(); ++unit) {
    const auto number = static_cast<size_t>(unit);
    if (all[number] == 0) continue;
    needed_in_[number] = rounds_;
    if (here_[number] == 0) gather(unit);
  }
  return said;
}

void ParameterUnits::follow() {
  while (round({}, Said::all_done) != Said::all_done) {
  }
}

void ParameterUnits::after_action() {
  while (round({}, Said::some_go_on) == Said::some_need) {
  }
}

void ParameterUnits::gather_all() {
  follow();
  const int64_t most = most_unit_bytes_;
  for (int unit = 0; unit < shards_.num_buckets(); ++unit)
    if (here_[static_cast<size_t>(unit)] == 0) gather(unit);
  most_unit_bytes_ = most;
  late_->require_all();
}

}  // namespace tutti::detail
