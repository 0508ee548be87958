// What each operation of the hier engine does. A *region* is a run of elements that every local
// rank has room for; slice s of it is carried by one local rank of each host, on rail s.
//
// all_reduce, for each chunk: add up inside (every local rank gets the partial sums of its slices),
// reduce these over the rails, round and divide once, share them out inside. Over H hosts of L
// ranks 2 (H-1)/H S bytes leave a host, through L ranks at a time, and inside 2 L S bytes are
// moved. The order of summation is that of ReductionShape::hosts: the ranks of a host, then the
// hosts. Little data is added up inside by every local rank, and crosses on every rail: that is one
// exchange less.
#include <algorithm>
#include <numeric>

#include "tutti/base/event.h"
#include "tutti/comm/engine/detail/spans.h"
#include "tutti/comm/engine/reduce_kernels.h"
#include "tutti/comm/hier/hier_engine.h"

namespace tutti::detail {
namespace {

// Slices begin on a line of 64 bytes, as far as the region does.
constexpr int64_t kLineBytes = 64;
// Up to here an exchange inside a host costs more than sending the same on every rail.
constexpr int64_t kWholeBytes = 64 << 10;

/// When a phase of an operation was submitted, for who listens to events; else zero.
TimePoint phase_begins() { return events_wanted() ? Clock::now() : TimePoint{}; }

void phase_is_over(std::string_view name, int rank, int64_t bytes, TimePoint began) {
  if (began == TimePoint{}) return;
  emit(name, {{"rank", int64_t{rank}},
              {"bytes", bytes},
              {"us", std::chrono::duration<double, std::micro>(Clock::now() - began).count()}});
}

}  // namespace

HierEngine::Region HierEngine::region_of(MemorySpan span) const {
  Region region{.span = span};
  const int64_t unit = std::max<int64_t>(1, kLineBytes / size_of(span.dtype));
  const int64_t units = (span.num_elements + unit - 1) / unit;
  for (int s = 0; s <= slices_; ++s)
    region.cuts.push_back(std::min(span.num_elements, units * s / slices_ * unit));
  const int here = parts_.inside->size();
  for (int l = 0; l < here; ++l) {
    const auto [begin, end] = slices_of(l, here, slices_);
    region.local_counts.push_back(region.cuts[static_cast<size_t>(end)] -
                                  region.cuts[static_cast<size_t>(begin)]);
  }
  region.mine_begin = region.cuts[static_cast<size_t>(first_slice_)];
  region.mine_count = region.local_counts[static_cast<size_t>(local_)];
  return region;
}

/// The parts of host `host`'s ranks in a buffer with one part a rank.
HierEngine::Region HierEngine::host_region(const MemorySpan& whole, std::span<const int64_t> counts,
                                           int host) const {
  const auto first = counts.begin() + first_of_host_[static_cast<size_t>(host)];
  const auto last = first + parts_.replicas_per_host[static_cast<size_t>(host)];
  const int64_t begin = std::accumulate(counts.begin(), first, int64_t{0});
  return region_of(part_of(whole, begin, std::accumulate(first, last, int64_t{0})));
}

Array& HierEngine::scratch(int index, DType dtype, int64_t num_elements) {
  Array& array = scratch_[static_cast<size_t>(index)];
  if (array.dtype() != dtype || array.num_elements() < num_elements)
    array = Array::zeros(dtype, {num_elements});
  return array;
}

Operation HierEngine::with_limit(const Entry& entry, Operation operation) const {
  operation.limit = std::max(Millis{1}, entry.deadline.left());
  return operation;
}

/// Partial sums of this host, of the slices that this rank carries.
Ticket HierEngine::reduce_inside(const Entry& entry, const Region& region,
                                 const MemorySpan& partial) {
  const Operation operation = with_limit(entry, {.collective = Collective::reduce_scatter,
                                                 .reduce = entry.operation.reduce,
                                                 .input = region.span,
                                                 .output = partial,
                                                 .input_counts = region.local_counts,
                                                 .partial = true});
  return parts_.inside->submit({&operation, 1});
}

/// Every local rank gives the slices that it carries to the others.
Ticket HierEngine::gather_inside(const Entry& entry, const Region& region) {
  const Operation operation =
      with_limit(entry, {.collective = Collective::all_gather,
                         .input = part_of(region.span, region.mine_begin, region.mine_count),
                         .output = region.span,
                         .output_counts = region.local_counts});
  return parts_.inside->submit({&operation, 1});
}

/// Submits make(begin, count) on each rail of this rank, for its slice of the region.
template <class Make>
std::vector<Program::Until> HierEngine::on_rails(const Region& region, Make&& make) {
  std::vector<Program::Until> waits;
  for (int s = first_slice_; s < end_slice_; ++s) {
    const int64_t begin = region.cuts[static_cast<size_t>(s)];
    const int64_t count = region.cuts[static_cast<size_t>(s) + 1] - begin;
    if (count == 0) continue;  // the same on every rank of the rail
    Engine& rail = *parts_.rails[static_cast<size_t>(s)];
    const Operation operation = make(begin, count);
    waits.push_back({&rail, rail.submit({&operation, 1})});
  }
  return waits;
}

Program HierEngine::program_of(Entry& entry) {
  switch (entry.operation.collective) {
    case Collective::all_reduce:
      return is_little(entry.operation.output) ? all_reduce_whole(entry) : all_reduce(entry);
    case Collective::reduce: return reduce(entry);
    case Collective::reduce_scatter: return reduce_scatter(entry);
    case Collective::all_gather: return all_gather(entry);
    case Collective::broadcast: return broadcast(entry);
    case Collective::barrier: return barrier(entry);
    default: return pass_on(entry);
  }
}

bool HierEngine::is_little(const MemorySpan& data) const {
  const auto& per_host = parts_.replicas_per_host;
  const bool a_rail_a_rank = std::equal(per_host.begin() + 1, per_host.end(), per_host.begin());
  return a_rail_a_rank && data.num_bytes() <= kWholeBytes &&
         accumulator_of(data.dtype) == data.dtype;
}

Program HierEngine::all_reduce_whole(Entry& entry) {
  const MemorySpan data = entry.operation.output;
  if (data.num_elements == 0) co_return;
  for (Engine* engine : {parts_.inside.get(), parts_.rails[static_cast<size_t>(local_)].get()}) {
    Operation sum = with_limit(entry, entry.operation);
    sum.partial = true;
    co_await Program::Until{engine, engine->submit({&sum, 1})};
  }
  finish_partial(data.dtype, entry.operation.reduce, data.data, data.data, data.num_elements,
                 size());
}

/// Where the partial sums of a region lie: in the region, or wider ones in scratch `index`.
MemorySpan HierEngine::partial_of(const Region& region, int index) {
  const DType wide = accumulator_of(region.span.dtype);
  if (wide == region.span.dtype) return part_of(region.span, region.mine_begin, region.mine_count);
  return part_of(scratch(index, wide, region.mine_count).span(), 0, region.mine_count);
}

Program HierEngine::all_reduce(Entry& entry) {
  const Operation& operation = entry.operation;
  const MemorySpan data = operation.output;
  const int64_t per_chunk = std::max<int64_t>(1, parts_.chunk_bytes / size_of(data.dtype));
  const auto chunk = [&](int64_t begin) {
    return region_of(part_of(data, begin, std::min(per_chunk, data.num_elements - begin)));
  };
  if (data.num_elements == 0) co_return;
  Engine& inside = *parts_.inside;
  Ticket gathered = 0;
  int turn = 0;
  Region next = chunk(0);
  MemorySpan next_partial = partial_of(next, turn);
  TimePoint inside_began = phase_begins();
  Ticket reduced = reduce_inside(entry, next, next_partial);
  for (int64_t begin = 0; begin < data.num_elements; begin += per_chunk) {
    const Region region = next;
    const MemorySpan partial = next_partial;
    co_await Program::Until{&inside, reduced};
    if (begin == 0)
      phase_is_over("hier.reduced_inside", rank(), region.span.num_bytes(), inside_began);
    const TimePoint rails_began = phase_begins();
    const auto waits = on_rails(region, [&](int64_t from, int64_t count) {
      return with_limit(entry, {.collective = Collective::all_reduce,
                                .reduce = operation.reduce,
                                .output = part_of(partial, from - region.mine_begin, count),
                                .partial = true});
    });
    turn = 1 - turn;
    if (begin + per_chunk < data.num_elements) {
      next = chunk(begin + per_chunk);
      next_partial = partial_of(next, turn);
      inside_began = phase_begins();
      reduced = reduce_inside(entry, next, next_partial);
      co_await Program::Until{&inside, reduced};
      phase_is_over("hier.reduced_inside", rank(), next.span.num_bytes(), inside_began);
    }
    for (const auto& wait : waits) co_await wait;
    phase_is_over("hier.between", rank(), partial.num_bytes(), rails_began);
    finish_partial(data.dtype, operation.reduce, partial.data,
                   part_of(region.span, region.mine_begin, 0).data, region.mine_count, size());
    inside_began = phase_begins();
    gathered = gather_inside(entry, region);
  }
  co_await Program::Until{&inside, gathered};
  phase_is_over("hier.gathered_inside", rank(), next.span.num_bytes(), inside_began);
}

Program HierEngine::reduce(Entry& entry) {
  // The sum is made in a copy, since only root's buffer may change.
  const MemorySpan data = entry.operation.output;
  const Array copy = Array::zeros(data.dtype, {data.num_elements});
  copy_bytes(copy.data(), data.data, data.num_bytes());
  Entry inner{entry.operation, entry.deadline, std::nullopt};
  inner.operation.output = copy.span();
  Program sum = all_reduce(inner);
  while (!sum.advance()) {
    const auto pending = sum.pending();
    co_await Program::Until{pending.engine, pending.ticket};
  }
  if (entry.operation.root == rank()) copy_bytes(data.data, copy.data(), data.num_bytes());
}

Program HierEngine::reduce_scatter(Entry& entry) {
  const Operation& operation = entry.operation;
  std::vector<int64_t> counts = operation.input_counts;
  if (counts.empty()) counts.assign(static_cast<size_t>(size()), operation.output.num_elements);
  const DType dtype = operation.input.dtype;
  const DType wide = accumulator_of(dtype);
  Array sum;  // of the parts of this host's ranks
  Region own;
  for (int h = 0; h < static_cast<int>(first_of_host_.size()); ++h) {
    const Region region = host_region(operation.input, counts, h);
    const Array partial = scratch(0, wide, region.mine_count);
    co_await Program::Until{
        parts_.inside.get(),
        reduce_inside(entry, region, part_of(partial.span(), 0, region.mine_count))};
    const auto waits = on_rails(region, [&](int64_t from, int64_t count) {
      return with_limit(entry, {.collective = Collective::reduce,
                                .reduce = operation.reduce,
                                .root = h,
                                .output = part_of(partial.span(), from - region.mine_begin, count),
                                .partial = true});
    });
    for (const auto& wait : waits) co_await wait;
    if (h != host_) continue;
    sum = Array::zeros(operation.output.dtype, {region.span.num_elements});
    own = region;  // cut as the input was, whatever the type of the sum
    own.span = sum.span();
    void* const mine = part_of(sum.span(), region.mine_begin, 0).data;
    if (!operation.partial)
      finish_partial(dtype, operation.reduce, partial.data(), mine, region.mine_count, size());
    else
      copy_bytes(mine, partial.data(), region.mine_count * size_of(wide));
  }
  co_await Program::Until{parts_.inside.get(), gather_inside(entry, own)};
  const auto first = counts.begin() + first_of_host_[static_cast<size_t>(host_)];
  const int64_t before = std::accumulate(first, first + local_, int64_t{0});
  copy_bytes(operation.output.data, part_of(sum.span(), before, 0).data,
             operation.output.num_bytes());
}

Program HierEngine::all_gather(Entry& entry) {
  const Operation& operation = entry.operation;
  std::vector<int64_t> counts = operation.output_counts;
  if (counts.empty()) counts.assign(static_cast<size_t>(size()), operation.input.num_elements);
  const auto first = counts.begin() + first_of_host_[static_cast<size_t>(host_)];
  Engine& inside = *parts_.inside;
  const Region mine = host_region(operation.output, counts, host_);
  const Operation together =
      with_limit(entry, {.collective = Collective::all_gather,
                         .input = operation.input,
                         .output = mine.span,
                         .output_counts = std::vector<int64_t>(first, first + inside.size())});
  co_await Program::Until{&inside, inside.submit({&together, 1})};
  std::vector<Program::Until> waits;
  for (int h = 0; h < static_cast<int>(first_of_host_.size()); ++h) {
    const Region region = host_region(operation.output, counts, h);
    const auto more = on_rails(region, [&](int64_t from, int64_t count) {
      return with_limit(entry, {.collective = Collective::broadcast,
                                .root = h,
                                .output = part_of(region.span, from, count)});
    });
    waits.insert(waits.end(), more.begin(), more.end());
  }
  for (const auto& wait : waits) co_await wait;
  for (int h = 0; h < static_cast<int>(first_of_host_.size()); ++h) {
    if (h == host_) continue;
    const Region region = host_region(operation.output, counts, h);
    co_await Program::Until{&inside, gather_inside(entry, region)};
  }
}

Program HierEngine::broadcast(Entry& entry) {
  const Operation& operation = entry.operation;
  Engine& inside = *parts_.inside;
  const auto after = std::upper_bound(first_of_host_.begin(), first_of_host_.end(), operation.root);
  const int root_host = static_cast<int>(after - first_of_host_.begin()) - 1;
  const Region region = region_of(operation.output);
  if (host_ == root_host) {
    Operation here = with_limit(entry, operation);
    here.root = operation.root - first_of_host_[static_cast<size_t>(host_)];
    co_await Program::Until{&inside, inside.submit({&here, 1})};
  }
  const auto waits = on_rails(region, [&](int64_t from, int64_t count) {
    return with_limit(entry, {.collective = Collective::broadcast,
                              .root = root_host,
                              .output = part_of(region.span, from, count)});
  });
  for (const auto& wait : waits) co_await wait;
  if (host_ != root_host) co_await Program::Until{&inside, gather_inside(entry, region)};
}

Program HierEngine::barrier(Entry& entry) {
  const Operation operation = with_limit(entry, entry.operation);
  Engine& inside = *parts_.inside;
  co_await Program::Until{&inside, inside.submit({&operation, 1})};
  if (first_slice_ == 0 && end_slice_ > 0) {
    Engine& rail = *parts_.rails.front();
    co_await Program::Until{&rail, rail.submit({&operation, 1})};
  }
  co_await Program::Until{&inside, inside.submit({&operation, 1})};
}

/// What gains nothing from the hierarchy: every rank has something else for every other.
Program HierEngine::pass_on(Entry& entry) {
  const Operation operation = with_limit(entry, entry.operation);
  co_await Program::Until{parts_.across.get(), parts_.across->submit({&operation, 1})};
}

}  // namespace tutti::detail
