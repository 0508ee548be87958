#include "tutti/comm/group/more_reductions.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "tutti/base/array.h"
#include "tutti/base/error.h"

namespace tutti {
namespace {

class HookReduction final : public CrossDeviceReduction {
 public:
  HookReduction(BucketHook hook, std::string name)
      : hook_(std::move(hook)), name_(std::move(name)) {}
  std::string_view name() const noexcept override { return name_; }
  Work reduce(Group& group, MemorySpan data, ReduceOp op, Millis limit) override {
    return hook_(group, data, op, limit);
  }
  void reduce_in_turn(std::span<const MemorySpan>, ReduceOp, const ReductionShape&) override {
    throw UsageError(fmt::format(
        "reduction_by: \"{}\" reduces over a group, and replicas that take turns on one thread "
        "(one_device) have none; take threads or processes, or write a CrossDeviceReduction, whose "
        "reduce_in_turn() says what becomes of all parts",
        name_));
  }

 private:
  BucketHook hook_;
  std::string name_;
};

void require_power_of_two(int members) {
  if (!std::has_single_bit(static_cast<unsigned>(members)))
    throw UsageError(fmt::format(
        "adasum: the group has {} members, expected a power of two, since pairs of pairs are "
        "combined; take another reduction, or a group of fewer ranks",
        members));
}

/// The factor of a tensor of squared length `own`, beside another.
double factor(double product, double own) { return own == 0 ? 1 : 1 - product / (2 * own); }

template <class T>
void combine(T* a, const T* b, int64_t n) {
  double product = 0, squares_a = 0, squares_b = 0;
  for (int64_t i = 0; i < n; ++i) {
    product += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    squares_a += static_cast<double>(a[i]) * static_cast<double>(a[i]);
    squares_b += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  const double of_a = factor(product, squares_a), of_b = factor(product, squares_b);
  for (int64_t i = 0; i < n; ++i) a[i] = static_cast<T>(of_a * a[i] + of_b * b[i]);
}

/// Into `a`; `b` is that of the higher ranks, on all members.
void combine(MemorySpan a, MemorySpan b) {
  if (a.dtype == DType::float32)
    return combine(static_cast<float*>(a.data), static_cast<const float*>(b.data), a.num_elements);
  if (a.dtype == DType::float64)
    return combine(static_cast<double*>(a.data), static_cast<const double*>(b.data),
                   a.num_elements);
  throw UsageError(
      fmt::format("adasum: gradients are {}, expected float32 or float64", name_of(a.dtype)));
}

// Recursive doubling: before the round of distance d the ranks of each aligned block of d have the
// same tensor, and then a block and its neighbour exchange theirs.
class Adasum final : public CrossDeviceReduction {
 public:
  std::string_view name() const noexcept override { return "adasum"; }

  Work reduce(Group& group, MemorySpan data, ReduceOp, Millis limit) override {
    require_power_of_two(group.size());
    const Deadline deadline(limit);
    const auto left = [&] { return std::max(Millis{1}, deadline.left()); };
    if (other_.num_elements() < data.num_elements || other_.dtype() != data.dtype)
      other_ = Array::zeros(data.dtype, {data.num_elements});
    const MemorySpan other{other_.data(), data.num_elements, data.dtype};
    for (int distance = 1; distance < group.size(); distance *= 2) {
      const int partner = group.rank() ^ distance;
      const bool lower = group.rank() < partner;
      if (lower) group.send(data, partner, kTag, left()).wait(left());
      group.recv(other, partner, kTag, left()).wait(left());
      if (!lower) group.send(data, partner, kTag, left()).wait(left());
      if (lower) {
        combine(data, other);
      } else {
        combine(other, data);
        std::copy_n(static_cast<const std::byte*>(other.data), data.num_bytes(),
                    static_cast<std::byte*>(data.data));
      }
    }
    return {};
  }

  void reduce_in_turn(std::span<const MemorySpan> parts, ReduceOp, const ReductionShape&) override {
    require_power_of_two(static_cast<int>(parts.size()));
    for (size_t distance = 1; distance < parts.size(); distance *= 2)
      for (size_t at = 0; at < parts.size(); at += 2 * distance)
        combine(parts[at], parts[at + distance]);
    for (const MemorySpan& part : parts.subspan(1))
      std::copy_n(static_cast<const std::byte*>(parts[0].data), part.num_bytes(),
                  static_cast<std::byte*>(part.data));
  }

 private:
  // Below 32768, which every MPI library takes.
  static constexpr int kTag = 0x6164;

  Array other_;
};

}  // namespace

CrossDeviceFactory reduction_by(BucketHook hook, std::string name) {
  if (!hook) throw UsageError("reduction_by: got an empty function, expected one for each bucket");
  return [hook = std::move(hook), name = std::move(name)] {
    return std::make_unique<HookReduction>(hook, name);
  };
}

CrossDeviceFactory adasum() {
  return [] { return std::make_unique<Adasum>(); };
}

}  // namespace tutti
