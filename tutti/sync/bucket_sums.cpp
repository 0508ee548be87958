#include "tutti/sync/detail/bucket_sums.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "tutti/base/detail/check.h"
#include "tutti/net/arena.h"

namespace tutti {

void check_replicated(const ReplicatedOptions& options) {
  check_compression(options.compression);
  const auto kind = options.compression.kind;
  if (options.reduction && (kind == Compression::Kind::top_k || kind == Compression::Kind::one_bit))
    throw UsageError(
        fmt::format("compression {} gathers what the replicas send and adds it everywhere, so that "
                    "no other reduction takes part; leave one of the two out",
                    to_string(options.compression)));
}

namespace detail {
namespace {

// Bytes of a compression in words: a word and four numbers of at most 20 digits fit.
constexpr size_t kWordsOfCompression = 160;

int64_t padded_bytes(const ParameterSlot& slot) {
  return round_up(slot.num_elements * size_of(slot.dtype), kLineBytes);
}

// An Array is a handle: its elements go into memory of the copy's own, the same in every step.
void copy_into(Array& copy, const Array& from) {
  if (copy.num_bytes() != from.num_bytes() || copy.dtype() != from.dtype())
    copy = Array::zeros(from.dtype(), from.shape());
  if (from.num_bytes() > 0)
    std::memcpy(copy.data(), from.data(), static_cast<size_t>(from.num_bytes()));
}

}  // namespace

std::unique_ptr<CrossDeviceReduction> make_reduction(const ReplicatedOptions& options) {
  auto made = options.reduction ? options.reduction() : cross_device_by_name("all_reduce")();
  if (!made) throw UsageError("the factory of the cross-device reduction returned null");
  return made;
}

// Ranks that differ in the first factor alone would make the same calls and the wrong sums.
void compare_compression(Group group, const Compression& compression, Millis limit) {
  std::string mine =
      fmt::format("{}, start_step {}, min_elements {}, seed {}", to_string(compression),
                  compression.start_step, compression.min_elements, compression.seed);
  mine.resize(kWordsOfCompression, ' ');
  std::vector<char> bytes(mine.begin(), mine.end());
  std::vector<char> all(bytes.size() * static_cast<size_t>(group.size()));
  group.all_gather(span_of(std::span(bytes)), span_of(std::span(all)), limit).wait(limit);
  const auto words_of = [&](int rank) {
    const std::string_view words(all.data() + rank * kWordsOfCompression, kWordsOfCompression);
    return words.substr(0, words.find_last_not_of(' ') + 1);
  };
  for (int rank = 1; rank < group.size(); ++rank)
    if (words_of(rank) != words_of(0))
      throw Mismatch(
          fmt::format("the replicas compress gradients differently:\n  rank 0: {}\n  rank {}: {}\n"
                      "  give every worker the same options",
                      words_of(0), rank, words_of(rank)));
}

std::vector<int> reverse_order(const Slots& layout) {
  std::vector<int> order(layout.slots.size());
  std::iota(order.rbegin(), order.rend(), 0);
  return order;
}

std::vector<Bucket> plan_buckets(const Slots& layout, std::span<const int> order,
                                 const ReplicatedOptions& options, std::vector<int64_t>& offsets) {
  const auto coded = [&](int parameter) {
    const ParameterSlot& slot = layout.slots[parameter];
    return compresses(options.compression, slot.dtype, slot.shape);
  };
  std::vector<int> sorted(order.begin(), order.end());
  std::stable_partition(sorted.begin(), sorted.end(), coded);
  offsets.assign(layout.slots.size(), 0);
  std::vector<Bucket> buckets;
  int64_t end_bytes = 0;
  for (int parameter : sorted) {
    const ParameterSlot& slot = layout.slots[parameter];
    if (!slot.trained) continue;
    const int64_t limit = buckets.size() <= 1 ? options.first_bucket_bytes : options.bucket_bytes;
    if (buckets.empty() || buckets.back().dtype != slot.dtype ||
        buckets.back().coded != coded(parameter) || end_bytes - buckets.back().begin_bytes >= limit)
      buckets.push_back({.begin_bytes = end_bytes, .dtype = slot.dtype, .coded = coded(parameter)});
    buckets.back().parameters.push_back(parameter);
    offsets[parameter] = end_bytes;
    end_bytes += padded_bytes(slot);
    buckets.back().num_elements = (end_bytes - buckets.back().begin_bytes) / size_of(slot.dtype);
  }
  return buckets;
}

BucketSums::BucketSums(const Slots& layout, const ReplicatedOptions& options,
                       const ReductionShape& shape, ReduceOp op, std::byte* memory,
                       BucketState state)
    : layout_(layout),
      options_(options),
      shape_(shape),
      op_(op),
      memory_(memory),
      state_(std::move(state)) {
  state_.tensors.resize(layout_.slots.size());
  adopt(reverse_order(layout_));
}

// Coders know the places of the tensors' states.
void BucketSums::restore(BucketState state) {
  TUTTI_CHECK(state.tensors.size() == state_.tensors.size(), "states of {} parameters, not {}",
              state.tensors.size(), state_.tensors.size());
  std::ranges::move(state.tensors, state_.tensors.begin());
  state_.step = state.step;
}

void BucketSums::adopt(std::span<const int> order) {
  buckets_ = plan_buckets(layout_, order, options_, offsets_);
  bucket_of_.assign(layout_.slots.size(), -1);
  coders_.clear();
  for (const Bucket& bucket : buckets_) {
    for (int parameter : bucket.parameters)
      bucket_of_[parameter] = static_cast<int>(coders_.size());
    coders_.push_back(bucket.coded ? coder_of(bucket) : nullptr);
  }
  // Padding between gradients is reduced with them; zeros keep it harmless.
  std::memset(memory_, 0, static_cast<size_t>(layout_.total_bytes));
}

MemorySpan BucketSums::span_of_bucket(const Bucket& bucket) const {
  return {memory_ + bucket.begin_bytes, bucket.num_elements, bucket.dtype};
}

std::unique_ptr<BucketCoder> BucketSums::coder_of(const Bucket& bucket) {
  std::vector<CodedTensor> tensors;
  for (int parameter : bucket.parameters) {
    const auto [rows, columns] = matrix_of(layout_.slots[parameter].shape);
    tensors.push_back({parameter, reinterpret_cast<float*>(gradient_of(parameter)), rows, columns});
  }
  return make_coder(options_.compression, span_of_bucket(bucket), std::move(tensors),
                    state_.tensors, shape_);
}

bool BucketSums::codes_now(int number) const {
  return coders_[number] && state_.step >= options_.compression.start_step;
}

Exchange BucketSums::counted(Exchange exchange) {
  wire_bytes_ += detail::wire_bytes(exchange, shape_.replicas());
  return exchange;
}

Exchange BucketSums::begin(int number, std::span<const int32_t> used) {
  const Bucket& bucket = buckets_[number];
  if (!codes_now(number))
    return counted({.kind = Exchange::Kind::sum, .op = op_, .data = span_of_bucket(bucket)});
  used_.clear();
  before_.resize(state_.tensors.size());
  for (int parameter : bucket.parameters) {
    used_.push_back(used[parameter] != 0);
    copy_into(before_[parameter].residual, state_.tensors[parameter].residual);
    copy_into(before_[parameter].factor, state_.tensors[parameter].factor);
  }
  return counted(coders_[number]->begin(used_));
}

Exchange BucketSums::next(int number) {
  if (!codes_now(number)) return {};
  const Exchange exchange = coders_[number]->next();
  if (exchange.kind != Exchange::Kind::none || op_ != ReduceOp::mean) return counted(exchange);
  const MemorySpan sum = span_of_bucket(buckets_[number]);
  const auto replicas = static_cast<float>(shape_.replicas());
  for (float& value : std::span(static_cast<float*>(sum.data), sum.num_elements)) value /= replicas;
  return {};
}

void BucketSums::end_step() {
  ++state_.step;
  last_wire_bytes_ = std::exchange(wire_bytes_, 0);
}

void BucketSums::leave_out_step() {
  for (size_t number = 0; number < buckets_.size(); ++number)
    if (codes_now(static_cast<int>(number)))
      for (int parameter : buckets_[number].parameters)
        std::swap(state_.tensors[parameter], before_[parameter]);
  wire_bytes_ = 0;
}

void sum_in_turn(std::span<BucketSums* const> replicas, std::span<const std::vector<int32_t>> used,
                 CrossDeviceReduction& reduction, const ReductionShape& shape) {
  std::vector<Exchange> parts(replicas.size());
  for (int bucket = 0; bucket < static_cast<int>(replicas[0]->buckets().size()); ++bucket) {
    for (size_t r = 0; r < replicas.size(); ++r) parts[r] = replicas[r]->begin(bucket, used[r]);
    while (parts[0].kind != Exchange::Kind::none) {
      exchange_in_turn(parts, reduction, shape);
      for (size_t r = 0; r < replicas.size(); ++r) parts[r] = replicas[r]->next(bucket);
    }
  }
  for (BucketSums* replica : replicas) replica->end_step();
}

}  // namespace detail
}  // namespace tutti
