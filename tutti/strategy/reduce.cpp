// Values of the replicas become one, outside of run().
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "tutti/base/error.h"
#include "tutti/comm/engine/reduce_kernels.h"
#include "tutti/queues/host_copies.h"
#include "tutti/strategy/strategy_state.h"
#include "tutti/sync/tensors.h"

namespace tutti {
namespace {

std::string words_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "an undefined tensor";
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()),
                     fmt::join(tensor.sizes(), ", "));
}

bool is_half(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }

/// On the CPU, where it is brought within the time limit; itself where it is there.
at::Tensor from_device(const at::Tensor& value, const World& world, const char* what) {
  return on_host(value.detach(), Deadline(patience_with_device(world.time_limit)), what);
}

/// In what sums of many are computed: 16 bits would overflow, or stop growing, before the mean.
at::Tensor wide(const at::Tensor& x) { return is_half(x.scalar_type()) ? x.to(at::kFloat) : x; }

}  // namespace

// Values of all replicas from those of the local ones, without a collective: each worker adds what
// all have brought, in the one order, unless somebody is lost.
void StrategyState::add(DType dtype, ReduceOp op, std::span<const void* const> own, void* out,
                        int64_t count) {
  if (membership.alone()) return reduce_inputs(dtype, op, world.shape, own, out, count);
  const int64_t bytes = count * size_of(dtype);
  std::vector<std::byte> mine;
  for (const void* const values : own) {
    const auto* const begin = static_cast<const std::byte*>(values);
    mine.insert(mine.end(), begin, begin + bytes);
  }
  const auto all = membership.exchange_alike("reduce", mine);
  std::vector<const void*> inputs;
  for (const auto& [worker, values] : all)
    for (int local = 0; local < world.local; ++local)
      inputs.push_back(values.data() + local * bytes);
  const auto there = static_cast<int>(inputs.size());
  const auto shape = there == world.size ? world.shape : ReductionShape::flat(there);
  reduce_inputs(dtype, op, shape, inputs, out, count);
}

// Values of all replicas of the world in the one order. One process adds them itself; several let
// each local member take part in the collective.
void Strategy::reduce_doubles(ReduceOp op, std::span<double> values) {
  require_cross_replica("reduce");
  const World& now = world();
  const int64_t count = static_cast<int64_t>(values.size()) / now.local;
  const auto part = [&](int local) { return values.subspan(local * count, count); };
  if (!membership().in_step()) {
    std::vector<const void*> inputs;
    for (int local = 0; local < now.local; ++local) inputs.push_back(part(local).data());
    return state_->add(DType::float64, op, inputs, values.data(), count);
  }
  on_groups([&](ReplicaContext& replica, int local) {
    replica.group().all_reduce_now(span_of(part(local)), op, now.time_limit);
  });
}

double Strategy::reduce(ReduceOp op, const PerReplica<double>& values) {
  require_one_each(values.values().size(), "reduce");
  std::vector<double> flat = values.values();
  reduce_doubles(op, flat);
  return flat[0];
}

at::Tensor Strategy::reduce(ReduceOp op, const PerReplica<at::Tensor>& values) {
  require_cross_replica("reduce");
  require_one_each(values.values().size(), "reduce");
  const World& now = world();
  std::vector<at::Tensor> copies;
  for (const at::Tensor& value : values.values()) {
    const at::Tensor& first = values.local(0);
    if (!value.defined() || !first.defined() || value.sizes() != first.sizes() ||
        value.scalar_type() != first.scalar_type())
      throw UsageError(fmt::format(
          "reduce: replica {} has {}, replica {} has {}; expected one dtype and shape\n  for sizes "
          "that differ along an axis give that axis, or use gather",
          values.first_rank() + static_cast<int>(copies.size()), words_of(value),
          values.first_rank(), words_of(first)));
    copies.push_back(value.is_cpu() ? value.detach().clone(at::MemoryFormat::Contiguous)
                                    : from_device(value, now, "what reduce() adds").contiguous());
  }
  if (!membership().in_step()) {
    std::vector<const void*> inputs;
    for (const auto& copy : copies) inputs.push_back(copy.data_ptr());
    state_->add(dtype_of(copies[0].scalar_type()), op, inputs, copies[0].data_ptr(),
                copies[0].numel());
    return copies[0];
  }
  on_groups([&](ReplicaContext& replica, int local) {
    replica.group().all_reduce(span_of(copies[local]), op, now.time_limit).wait(now.time_limit);
  });
  return copies[0];
}

namespace {

void require_axes(const PerReplica<at::Tensor>& values, at::IntArrayRef axes) {
  for (size_t local = 0; local < values.values().size(); ++local) {
    const at::Tensor& value = values.local(static_cast<int>(local));
    std::set<int64_t> seen;
    for (const int64_t axis : axes) {
      const int64_t dims = value.defined() ? value.dim() : 0;
      const bool there = axis >= -dims && axis < dims;
      if (there && seen.insert(axis < 0 ? axis + dims : axis).second) continue;
      throw UsageError(fmt::format("reduce over axes [{}]: replica {} has {}; {}",
                                   fmt::join(axes, ", "), values.first_rank() + local,
                                   words_of(value),
                                   there ? "an axis is given twice" : "it has no such axis"));
    }
  }
}

}  // namespace

at::Tensor Strategy::reduce(ReduceOp op, const PerReplica<at::Tensor>& values,
                            at::IntArrayRef axes) {
  if (op != ReduceOp::sum && op != ReduceOp::mean)
    throw UsageError(
        fmt::format("reduce over an axis: reduction {}, expected sum or mean", name_of(op)));
  require_one_each(values.values().size(), "reduce");
  if (axes.empty()) return reduce(op, values);  // to LibTorch's sum these would be all of them
  require_axes(values, axes);
  std::vector<at::Tensor> sums;
  std::vector<double> counts;
  const at::ScalarType dtype = values.local(0).scalar_type();
  for (const at::Tensor& value : values.values()) {
    sums.push_back(wide(value.detach()).sum(axes));
    counts.push_back(1);
    for (const int64_t axis : axes) counts.back() *= static_cast<double>(value.size(axis));
  }
  at::Tensor sum = reduce(ReduceOp::sum, PerReplica<at::Tensor>(sums, values.first_rank()));
  const auto rounded = [&](const at::Tensor& result) {
    return is_half(dtype) ? result.to(dtype) : result;
  };
  if (op == ReduceOp::sum) return rounded(sum);
  reduce_doubles(ReduceOp::sum, counts);
  return counts[0] == 0 ? at::zeros_like(rounded(sum)) : rounded(sum / counts[0]);
}

namespace {

constexpr int64_t kHead = 2;  // dtype and dimensions come before the sizes

// A tensor as bytes, so that tensors of unlike sizes travel together.
std::vector<std::byte> packed(const at::Tensor& tensor, const World& world) {
  const at::Tensor values =
      from_device(tensor, world, "what gather() brings together").contiguous();
  std::vector<int64_t> head{static_cast<int64_t>(values.scalar_type()), values.dim()};
  head.insert(head.end(), values.sizes().begin(), values.sizes().end());
  const auto head_bytes = std::as_bytes(std::span(head));
  std::vector<std::byte> bytes(head_bytes.begin(), head_bytes.end());
  const auto* const data = static_cast<const std::byte*>(values.const_data_ptr());
  bytes.insert(bytes.end(), data, data + values.nbytes());
  return bytes;
}

at::Tensor unpacked(std::span<const std::byte> bytes) {
  std::vector<int64_t> head(kHead);
  std::memcpy(head.data(), bytes.data(), sizeof(int64_t) * kHead);
  head.resize(kHead + static_cast<size_t>(head[1]));
  std::memcpy(head.data(), bytes.data(), sizeof(int64_t) * head.size());
  const at::Tensor tensor =
      at::empty(at::IntArrayRef(head).slice(kHead), static_cast<at::ScalarType>(head[0]));
  const auto data = bytes.subspan(sizeof(int64_t) * head.size());
  std::ranges::copy(data, static_cast<std::byte*>(tensor.data_ptr()));
  return tensor;
}

// Several values as one: before each, how long it is.
void append_framed(const std::vector<std::byte>& value, std::vector<std::byte>& all) {
  const auto size = static_cast<int64_t>(value.size());
  const auto prefix = std::as_bytes(std::span(&size, 1));
  all.insert(all.end(), prefix.begin(), prefix.end());
  all.insert(all.end(), value.begin(), value.end());
}

std::vector<std::span<const std::byte>> framed_parts(std::span<const std::byte> all) {
  std::vector<std::span<const std::byte>> parts;
  while (!all.empty()) {
    int64_t size = 0;
    std::memcpy(&size, all.data(), sizeof size);
    parts.push_back(all.subspan(sizeof size, static_cast<size_t>(size)));
    all = all.subspan(sizeof size + static_cast<size_t>(size));
  }
  return parts;
}

void require_one_shape_but_for(int64_t axis, const std::vector<at::Tensor>& all) {
  if (axis < -all[0].dim() || axis >= all[0].dim())
    throw UsageError(fmt::format("gather along axis {}: replica 0 has {}, which has no such axis{}",
                                 axis, words_of(all[0]),
                                 all[0].dim() == 0 ? "; give scalars one, by unsqueeze(0)" : ""));
  for (size_t r = 0; r < all.size(); ++r) {
    const at::Tensor &one = all[r], &first = all[0];
    bool fits = one.scalar_type() == first.scalar_type() && one.dim() == first.dim();
    const int64_t free = axis < 0 ? axis + first.dim() : axis;
    for (int64_t d = 0; fits && d < first.dim(); ++d)
      fits = d == free || one.size(d) == first.size(d);
    if (!fits)
      throw Mismatch(fmt::format(
          "gather along axis {}: replica {} has {}, replica 0 has {}; expected one dtype, and one "
          "shape but for that axis",
          axis, r, words_of(one), words_of(first)));
  }
}

}  // namespace

at::Tensor Strategy::gather(const PerReplica<at::Tensor>& values, int64_t axis) {
  require_cross_replica("gather");
  require_one_each(values.values().size(), "gather");
  for (const at::Tensor& value : values.values())
    if (!value.defined()) throw UsageError("gather: a replica returned an undefined tensor");
  const World& now = world();
  std::vector<at::Tensor> all;
  if (membership().alone()) {
    for (const at::Tensor& value : values.values())
      all.push_back(from_device(value, now, "what gather() brings together"));
  } else if (!membership().in_step()) {
    std::vector<std::byte> own;
    for (const at::Tensor& value : values.values()) append_framed(packed(value, now), own);
    for (const auto& [worker, bytes] : membership().exchange(own))
      for (const auto& part : framed_parts(bytes)) all.push_back(unpacked(part));
  } else {
    on_groups([&](ReplicaContext& replica, int local) {
      auto own = packed(values.local(local), now);
      const auto parts = detail::bytes_of_all(replica.group(), own, now.time_limit);
      if (local != 0) return;
      for (const auto& part : parts) all.push_back(unpacked(part));
    });
  }
  require_one_shape_but_for(axis, all);
  return at::cat(all, axis);
}

}  // namespace tutti
