#include "tutti/comm/group.h"

#include "tutti/base/error.h"
#include "tutti/comm/kernels/dispatch.h"
#include "tutti/comm/solo/solo.h"

namespace tutti {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 50;  // so that the sum over all ranks cannot overflow

[[noreturn]] void refuse(const Engine& engine, Collective call, const std::string& why) {
  throw UsageError(
      fmt::format("{}, rank {} of {}: {}", name_of(call), engine.rank(), engine.size(), why));
}

void check_span(const Engine& engine, Collective call, std::string_view name,
                const MemorySpan& span) {
  if (span.num_elements < 0)
    refuse(engine, call,
           fmt::format("{} has {} elements; expected 0 or more", name, span.num_elements));
  if (span.num_elements > 0 && span.data == nullptr)
    refuse(engine, call, fmt::format("{} has {} elements and no data", name, span.num_elements));
  if (span.num_elements > INT64_MAX / 8 / engine.size())
    refuse(engine, call,
           fmt::format("{} has {} elements, more than memory can hold", name, span.num_elements));
  if (reinterpret_cast<uintptr_t>(span.data) % static_cast<uintptr_t>(size_of(span.dtype)) != 0)
    refuse(engine, call,
           fmt::format("{} at {} is not aligned to its {}", name, span.data, name_of(span.dtype)));
  if (span.place.kind != Place::Kind::host)
    refuse(
        engine, call,
        fmt::format("{} is in device memory, which engine \"{}\" cannot reach; copy it to the host",
                    name, engine.name()));
}

void check_reduction(const Engine& engine, Collective call, DType dtype, ReduceOp op) {
  try {
    detail::require_reducible(dtype, op);
  } catch (const UsageError& error) {
    refuse(engine, call, error.what());
  }
}

// Overlap is allowed only where `part` is exactly rank's share of `whole`.
void check_overlap(const Engine& engine, Collective call, const MemorySpan& whole,
                   const MemorySpan& part, std::string_view whole_name,
                   std::string_view part_name) {
  const auto* whole_begin = static_cast<const char*>(whole.data);
  const auto* part_begin = static_cast<const char*>(part.data);
  if (part.num_bytes() == 0 || whole_begin + whole.num_bytes() <= part_begin ||
      part_begin + part.num_bytes() <= whole_begin)
    return;
  if (part_begin == whole_begin + engine.rank() * part.num_bytes()) return;
  refuse(engine, call,
         fmt::format("{} and {} overlap; allowed only where {} is part {} of {}", whole_name,
                     part_name, part_name, engine.rank(), whole_name));
}

void check_parts(const Engine& engine, Collective call, const MemorySpan& whole,
                 const MemorySpan& part, std::string_view whole_name, std::string_view part_name) {
  check_span(engine, call, whole_name, whole);
  check_span(engine, call, part_name, part);
  if (whole.dtype != part.dtype)
    refuse(engine, call,
           fmt::format("{} is {}, {} is {}", whole_name, name_of(whole.dtype), part_name,
                       name_of(part.dtype)));
  if (whole.num_elements != part.num_elements * engine.size())
    refuse(engine, call,
           fmt::format("{} has {} elements; expected {} times the {} of {}", whole_name,
                       whole.num_elements, engine.size(), part.num_elements, part_name));
  check_overlap(engine, call, whole, part, whole_name, part_name);
}

void check_limit(const Engine& engine, Collective call, Millis limit) {
  if (limit <= Millis{0})
    refuse(engine, call, fmt::format("limit of {} ms; expected more than 0", limit.count()));
}

Operation all_reduce_operation(const Engine& engine, MemorySpan data, ReduceOp op, Millis limit) {
  constexpr auto kCall = Collective::all_reduce;
  check_span(engine, kCall, "data", data);
  check_reduction(engine, kCall, data.dtype, op);
  check_limit(engine, kCall, limit);
  return {.collective = kCall, .reduce = op, .output = data, .limit = limit};
}

}  // namespace

Group::Group() : engine_(make_solo()) {}

Group::Group(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {
  if (engine_ == nullptr) throw UsageError("Group: no engine; Group() makes a group of one");
}

int Group::rank() const noexcept { return engine_->rank(); }
int Group::size() const noexcept { return engine_->size(); }
const ReductionShape& Group::reduction_shape() const noexcept { return engine_->reduction_shape(); }

Work Group::all_reduce(MemorySpan data, ReduceOp op, Millis limit, CallSite /*site*/) {
  const Operation operation = all_reduce_operation(*engine_, data, op, limit);
  return {engine_, engine_->submit({&operation, 1})};
}

void Group::all_reduce_now(MemorySpan data, ReduceOp op, Millis limit, CallSite /*site*/) {
  engine_->run(all_reduce_operation(*engine_, data, op, limit));
}

Work Group::reduce_scatter(MemorySpan input, MemorySpan output, ReduceOp op, Millis limit,
                           CallSite /*site*/) {
  constexpr auto kCall = Collective::reduce_scatter;
  check_parts(*engine_, kCall, input, output, "input", "output");
  check_reduction(*engine_, kCall, input.dtype, op);
  check_limit(*engine_, kCall, limit);
  const Operation operation{
      .collective = kCall, .reduce = op, .input = input, .output = output, .limit = limit};
  return {engine_, engine_->submit({&operation, 1})};
}

Work Group::all_gather(MemorySpan input, MemorySpan output, Millis limit, CallSite /*site*/) {
  constexpr auto kCall = Collective::all_gather;
  check_parts(*engine_, kCall, output, input, "output", "input");
  check_limit(*engine_, kCall, limit);
  const Operation operation{.collective = kCall, .input = input, .output = output, .limit = limit};
  return {engine_, engine_->submit({&operation, 1})};
}

Work Group::broadcast(MemorySpan data, int root, Millis limit, CallSite /*site*/) {
  constexpr auto kCall = Collective::broadcast;
  check_span(*engine_, kCall, "data", data);
  check_limit(*engine_, kCall, limit);
  if (root < 0 || root >= size())
    refuse(*engine_, kCall, fmt::format("root {}; expected 0 to {}", root, size() - 1));
  const Operation operation{.collective = kCall, .root = root, .output = data, .limit = limit};
  return {engine_, engine_->submit({&operation, 1})};
}

void Group::barrier(Millis limit, CallSite /*site*/) {
  check_limit(*engine_, Collective::barrier, limit);
  engine_->run({.collective = Collective::barrier, .limit = limit});
}

SharedParts Group::allocate(int64_t bytes, Millis limit) {
  if (bytes < 0 || bytes > kMostBytes)
    throw UsageError(fmt::format("allocate, rank {} of {}: {} bytes; expected 0 to {}", rank(),
                                 size(), bytes, kMostBytes));
  return engine_->allocate(bytes, limit);
}

void Group::abort(const std::string& reason) noexcept {
  engine_->abort(FailureKind::aborted, reason);
}

}  // namespace tutti
