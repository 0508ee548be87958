#include "tutti/comm/group/group.h"

#include "tutti/base/error.h"
#include "tutti/comm/engine/debug_mode.h"
#include "tutti/comm/flight/flight_log.h"
#include "tutti/comm/group/detail/group_checks.h"
#include "tutti/comm/solo/solo.h"

namespace tutti {
namespace {

using detail::Checked;

constexpr int64_t kMostBytes = int64_t{1} << 50;  // so that the sum over all ranks cannot overflow

// What counts on the root alone, as the others' engines see it.
MemorySpan nothing_of(DType dtype) { return {.dtype = dtype}; }

Operation all_reduce_operation(const Engine& engine, MemorySpan data, ReduceOp op, Millis limit) {
  const Checked check{engine, Collective::all_reduce};
  check.span("data", data);
  check.reduction(data.dtype, op);
  check.limit(limit);
  return {.collective = check.call, .reduce = op, .output = data, .limit = limit};
}

Operation reduce_scatter_operation(const Engine& engine, MemorySpan input, MemorySpan output,
                                   ReduceOp op, std::vector<int64_t> counts, Millis limit) {
  const Checked check{engine, Collective::reduce_scatter};
  check.part("output", output, "input", input, counts);
  check.reduction(input.dtype, op);
  check.limit(limit);
  return {.collective = check.call,
          .reduce = op,
          .input = input,
          .output = output,
          .input_counts = std::move(counts),
          .limit = limit};
}

Operation all_gather_operation(const Engine& engine, MemorySpan input, MemorySpan output,
                               std::vector<int64_t> counts, Millis limit) {
  const Checked check{engine, Collective::all_gather};
  check.part("input", input, "output", output, counts);
  check.limit(limit);
  return {.collective = check.call,
          .input = input,
          .output = output,
          .output_counts = std::move(counts),
          .limit = limit};
}

// An empty list would mean equal parts.
void require_counts(const Engine& engine, Collective call, const std::vector<int64_t>& counts) {
  if (counts.empty()) Checked{engine, call}.refuse("no counts; expected one a rank");
}

}  // namespace

Group::Group() : engine_(make_solo()) {}

Group::Group(std::shared_ptr<Engine> engine, std::string name) : engine_(std::move(engine)) {
  if (engine_ == nullptr) throw UsageError("Group: no engine; Group() makes a group of one");
  if (engine_->flight_log_ == nullptr) {
    engine_->flight_log_ = make_flight_log(std::move(name), *engine_);
  }
}

int Group::rank() const noexcept { return engine_->rank(); }
int Group::size() const noexcept { return engine_->size(); }
const ReductionShape& Group::reduction_shape() const noexcept { return engine_->reduction_shape(); }

Work Group::submit(const Operation& operation, const CallSite& site) {
  engine_->require_own();
  FlightLog* log = engine_->flight_log();
  if (log == nullptr) return {engine_, engine_->submit({&operation, 1})};
  const FlightMark mark = log->begin(operation, site, true);
  return noting_failure(*engine_, mark, [&] {
    compare(operation, site, mark);
    return Work(engine_, engine_->submit({&operation, 1}), mark);
  });
}

void Group::run(const Operation& operation, const CallSite& site) {
  engine_->require_own();
  FlightLog* log = engine_->flight_log();
  if (log == nullptr) return engine_->run(operation);
  const FlightMark mark = log->begin(operation, site, false);
  noting_failure(*engine_, mark, [&] {
    compare(operation, site, mark);
    engine_->run(operation);
  });
  log->done_now(mark);
}

void Group::compare(const Operation& operation, const CallSite& site, const FlightMark& mark) {
  if (debug_mode() && mark.number != 0) [[unlikely]]
    detail::compare_calls(*engine_, operation, site, mark.number);
}

Work Group::all_reduce(MemorySpan data, ReduceOp op, Limit limit, CallSite site) {
  return submit(all_reduce_operation(*engine_, data, op, of(limit)), site);
}

void Group::all_reduce_now(MemorySpan data, ReduceOp op, Limit limit, CallSite site) {
  run(all_reduce_operation(*engine_, data, op, of(limit)), site);
}

Work Group::reduce(MemorySpan data, ReduceOp op, int root, Limit limit, CallSite site) {
  const Checked check{*engine_, Collective::reduce};
  check.span("data", data);
  check.reduction(data.dtype, op);
  check.rank("root", root);
  check.limit(of(limit));
  return submit(
      {.collective = check.call, .reduce = op, .root = root, .output = data, .limit = of(limit)},
      site);
}

Work Group::reduce_scatter(MemorySpan input, MemorySpan output, ReduceOp op, Limit limit,
                           CallSite site) {
  return submit(reduce_scatter_operation(*engine_, input, output, op, {}, of(limit)), site);
}

Work Group::reduce_scatter(MemorySpan input, MemorySpan output, ReduceOp op,
                           std::vector<int64_t> counts, Limit limit, CallSite site) {
  require_counts(*engine_, Collective::reduce_scatter, counts);
  return submit(reduce_scatter_operation(*engine_, input, output, op, std::move(counts), of(limit)),
                site);
}

Work Group::all_gather(MemorySpan input, MemorySpan output, Limit limit, CallSite site) {
  return submit(all_gather_operation(*engine_, input, output, {}, of(limit)), site);
}

Work Group::all_gather(MemorySpan input, MemorySpan output, std::vector<int64_t> counts,
                       Limit limit, CallSite site) {
  require_counts(*engine_, Collective::all_gather, counts);
  return submit(all_gather_operation(*engine_, input, output, std::move(counts), of(limit)), site);
}

Work Group::broadcast(MemorySpan data, int root, Limit limit, CallSite site) {
  const Checked check{*engine_, Collective::broadcast};
  check.span("data", data);
  check.limit(of(limit));
  check.rank("root", root);
  return submit({.collective = check.call, .root = root, .output = data, .limit = of(limit)}, site);
}

Work Group::scatter(MemorySpan input, MemorySpan output, int root, std::vector<int64_t> counts,
                    Limit limit, CallSite site) {
  const Checked check{*engine_, Collective::scatter};
  check.limit(of(limit));
  check.rank("root", root);
  if (root == rank())
    check.part("output", output, "input", input, counts);
  else
    check.own_part("output", output, counts);
  return submit({.collective = check.call,
                 .root = root,
                 .input = root == rank() ? input : nothing_of(output.dtype),
                 .output = output,
                 .input_counts = std::move(counts),
                 .limit = of(limit)},
                site);
}

Work Group::gather(MemorySpan input, MemorySpan output, int root, std::vector<int64_t> counts,
                   Limit limit, CallSite site) {
  const Checked check{*engine_, Collective::gather};
  check.limit(of(limit));
  check.rank("root", root);
  if (root == rank())
    check.part("input", input, "output", output, counts);
  else
    check.own_part("input", input, counts);
  return submit({.collective = check.call,
                 .root = root,
                 .input = input,
                 .output = root == rank() ? output : nothing_of(input.dtype),
                 .output_counts = std::move(counts),
                 .limit = of(limit)},
                site);
}

Work Group::all_to_all(MemorySpan input, MemorySpan output, std::vector<int64_t> send_counts,
                       std::vector<int64_t> receive_counts, Limit limit, CallSite site) {
  const Checked check{*engine_, Collective::all_to_all};
  check.span("input", input);
  check.span("output", output);
  check.same_dtype("input", input, "output", output);
  check.limit(of(limit));
  check.apart("input", input, "output", output);
  if (send_counts.empty() != receive_counts.empty())
    check.refuse("one of send_counts and receive_counts is missing; give both or none");
  check.counts("send_counts", send_counts, "input", input);
  check.counts("receive_counts", receive_counts, "output", output);
  if (send_counts.empty())
    check.equal_parts(input, output);
  else if (send_counts[rank()] != receive_counts[rank()])
    check.refuse(fmt::format("{} elements from this rank to itself, {} received",
                             send_counts[rank()], receive_counts[rank()]));
  return submit({.collective = check.call,
                 .input = input,
                 .output = output,
                 .input_counts = std::move(send_counts),
                 .output_counts = std::move(receive_counts),
                 .limit = of(limit)},
                site);
}

Work Group::send(MemorySpan data, int to, int tag, Limit limit, CallSite site) {
  const Checked check{*engine_, Collective::send};
  check.span("data", data);
  check.peer("to", to);
  check.tag(tag);
  check.limit(of(limit));
  return submit(
      {.collective = check.call, .root = to, .tag = tag, .input = data, .limit = of(limit)}, site);
}

Work Group::recv(MemorySpan data, int from, int tag, Limit limit, int* source, CallSite site) {
  const Checked check{*engine_, Collective::recv};
  check.span("data", data);
  if (from != kAnyRank)
    check.peer("from", from);
  else if (size() == 1)
    check.refuse("from any rank, and there is no other");
  check.tag(tag);
  check.limit(of(limit));
  return submit({.collective = check.call,
                 .root = from,
                 .tag = tag,
                 .output = data,
                 .source = source,
                 .limit = of(limit)},
                site);
}

void Group::barrier(Limit limit, CallSite site) {
  Checked{*engine_, Collective::barrier}.limit(of(limit));
  run({.collective = Collective::barrier, .limit = of(limit)}, site);
}

std::optional<Group> Group::split(int color, int key, Limit limit) {
  if (of(limit) <= Millis{0})
    throw UsageError(fmt::format("split, rank {} of {}: limit of {} ms; expected more than 0",
                                 rank(), size(), of(limit).count()));
  FlightLog* log = engine_->flight_log();
  std::string name = log == nullptr ? "" : log->name_of_split(color);
  const Millis patience = of(limit);
  auto engine = noting_failure(*engine_, {}, [&] { return engine_->split(color, key, patience); });
  if (engine == nullptr) return {};
  Group made(std::move(engine), std::move(name));
  made.set_time_limit(limit_);
  return made;
}

void Group::say_members(const std::string& words) const {
  if (FlightLog* log = engine_->flight_log()) log->say_members(words);
}

SharedParts Group::allocate(int64_t bytes, Limit limit) {
  if (bytes < 0 || bytes > kMostBytes)
    throw UsageError(fmt::format("allocate, rank {} of {}: {} bytes; expected 0 to {}", rank(),
                                 size(), bytes, kMostBytes));
  return noting_failure(*engine_, {}, [&] { return engine_->allocate(bytes, of(limit)); });
}

void Group::abort(const std::string& reason) noexcept {
  engine_->abort(FailureKind::aborted, reason);
  if (FlightLog* log = engine_->flight_log()) {
    note_failure(*log, {}, reason, engine_->one_process());
  }
}

}  // namespace tutti
