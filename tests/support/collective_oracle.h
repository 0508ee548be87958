/// Collectives as data: buffers of every rank made from a seed, the call itself, and what must come
/// out, worked out rank by rank in the slow and obvious way.
#pragma once

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/comm/group/group.h"

#include "tests/support/reduce_oracle.h"

namespace tutti::test {

/// One collective that all ranks call.
struct Call {
  Collective collective = Collective::barrier;
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  int64_t n = 0;  ///< elements: of the whole (all_reduce, reduce, broadcast), else of each part
  /// Unequal parts instead of n: counts[0][r], for all_to_all counts[sender][receiver].
  std::vector<std::vector<int64_t>> counts{};
  bool in_place = false;  ///< the part lies inside the whole (not for all_to_all)
};

/// Memory of one rank.
struct Buffers {
  Bytes input, output;
};

inline std::string words_of(const Call& call) {
  return fmt::format("{} ({}) of {} {}, root {}{}{}", name_of(call.collective), name_of(call.op),
                     call.n, name_of(call.dtype), call.root,
                     call.counts.empty() ? "" : ", given counts",
                     call.in_place ? ", in place" : "");
}

inline int64_t part_of(const Call& call, int sender, int receiver) {
  if (call.counts.empty()) return call.n;
  const bool all_to_all = call.collective == Collective::all_to_all;
  return call.counts[all_to_all ? sender : 0][receiver];
}

/// Elements of all parts that `sender` gives, before part `end`.
inline int64_t parts_before(const Call& call, int sender, int end) {
  int64_t total = 0;
  for (int r = 0; r < end; ++r) total += part_of(call, sender, r);
  return total;
}

inline int64_t input_elements(const Call& call, int rank, int size) {
  switch (call.collective) {
    case Collective::reduce_scatter:
    case Collective::all_to_all: return parts_before(call, rank, size);
    case Collective::scatter: return call.root == rank ? parts_before(call, rank, size) : 0;
    case Collective::all_gather:
    case Collective::gather: return part_of(call, 0, rank);
    default: return 0;
  }
}

inline int64_t output_elements(const Call& call, int rank, int size) {
  switch (call.collective) {
    case Collective::reduce_scatter:
    case Collective::scatter: return part_of(call, 0, rank);
    case Collective::all_gather: return parts_before(call, 0, size);
    case Collective::gather: return call.root == rank ? parts_before(call, 0, size) : 0;
    case Collective::all_to_all: {
      int64_t total = 0;
      for (int s = 0; s < size; ++s) total += part_of(call, s, rank);
      return total;
    }
    case Collective::barrier: return 0;
    default: return call.n;
  }
}

/// Buffers of `rank` before the call: ordinary values, the same for the same seed.
inline Buffers make_buffers(const Call& call, int rank, int size, uint32_t seed) {
  Buffers buffers;
  buffers.input = ordinary_values(call.dtype, input_elements(call, rank, size), seed, rank);
  buffers.output = ordinary_values(call.dtype, output_elements(call, rank, size), seed + 77, rank);
  return buffers;
}

inline std::vector<Buffers> make_all_buffers(const Call& call, int size, uint32_t seed) {
  std::vector<Buffers> all;
  for (int r = 0; r < size; ++r) all.push_back(make_buffers(call, r, size, seed));
  return all;
}

inline MemorySpan span_of_bytes(Bytes& bytes, DType dtype) {
  return {bytes.data(), static_cast<int64_t>(bytes.size()) / size_of(dtype), dtype};
}

/// Calls it on buffers that stay as they are until the Work is done.
inline Work start(const Call& call, Group& group, MemorySpan input, MemorySpan output) {
  const std::vector<int64_t> common = call.counts.empty() ? std::vector<int64_t>{} : call.counts[0];
  switch (call.collective) {
    case Collective::all_reduce: return group.all_reduce(output, call.op);
    case Collective::reduce: return group.reduce(output, call.op, call.root);
    case Collective::broadcast: return group.broadcast(output, call.root);
    case Collective::reduce_scatter:
      if (common.empty()) return group.reduce_scatter(input, output, call.op);
      return group.reduce_scatter(input, output, call.op, common);
    case Collective::all_gather:
      if (common.empty()) return group.all_gather(input, output);
      return group.all_gather(input, output, common);
    case Collective::scatter: return group.scatter(input, output, call.root, common);
    case Collective::gather: return group.gather(input, output, call.root, common);
    case Collective::all_to_all: {
      if (call.counts.empty()) return group.all_to_all(input, output);
      std::vector<int64_t> received;
      for (int s = 0; s < group.size(); ++s) received.push_back(call.counts[s][group.rank()]);
      return group.all_to_all(input, output, call.counts[group.rank()], received);
    }
    default: group.barrier(); return {};
  }
}

inline Work start(const Call& call, Group& group, Buffers& buffers) {
  return start(call, group, span_of_bytes(buffers.input, call.dtype),
               span_of_bytes(buffers.output, call.dtype));
}

/// The same and waits; in place where the call says so.
inline void carry_out(const Call& call, Group& group, Buffers& buffers) {
  const bool whole_is_here = call.root == group.rank() ||
                             call.collective == Collective::all_gather ||
                             call.collective == Collective::reduce_scatter;
  if (!call.in_place || !whole_is_here) return start(call, group, buffers).wait();
  MemorySpan input = span_of_bytes(buffers.input, call.dtype);
  MemorySpan output = span_of_bytes(buffers.output, call.dtype);
  const int64_t before = parts_before(call, 0, group.rank()) * size_of(call.dtype);
  const auto copy = [](void* to, const MemorySpan& from) {
    if (from.num_elements > 0) std::memcpy(to, from.data, static_cast<size_t>(from.num_bytes()));
  };
  if (call.collective == Collective::all_gather || call.collective == Collective::gather) {
    void* const inside = static_cast<char*>(output.data) + before;
    copy(inside, input);
    input.data = inside;
    start(call, group, input, output).wait();
  } else {
    void* const outside = output.data;
    output.data = static_cast<char*>(input.data) + before;
    start(call, group, input, output).wait();
    copy(outside, output);
  }
}

/// What `rank` must hold in its output afterwards.
inline Bytes expected_output(const Call& call, const std::vector<Buffers>& before, int rank) {
  const int size = static_cast<int>(before.size());
  const auto bytes_of = [&](int64_t elements) { return elements * size_of(call.dtype); };
  const auto slice = [&](const Bytes& whole, int sender, int receiver) {
    const int64_t begin = bytes_of(parts_before(call, sender, receiver));
    return Bytes(whole.begin() + begin,
                 whole.begin() + begin + bytes_of(part_of(call, sender, receiver)));
  };
  const auto reduced = [&](auto member) {
    std::vector<Bytes> inputs;
    for (const auto& each : before) inputs.push_back(each.*member);
    return oracle(call.dtype, call.op, ReductionShape::flat(size), inputs);
  };
  Bytes joined;
  const auto join = [&](const Bytes& part) {
    joined.insert(joined.end(), part.begin(), part.end());
  };
  const Bytes& own = before[rank].output;
  switch (call.collective) {
    case Collective::all_reduce: return reduced(&Buffers::output);
    case Collective::reduce: return rank == call.root ? reduced(&Buffers::output) : own;
    case Collective::broadcast: return before[call.root].output;
    case Collective::reduce_scatter: return slice(reduced(&Buffers::input), 0, rank);
    case Collective::scatter: return slice(before[call.root].input, call.root, rank);
    case Collective::gather:
      if (rank != call.root) return own;
      [[fallthrough]];
    case Collective::all_gather:
      for (const auto& each : before) join(each.input);
      return joined;
    case Collective::all_to_all:
      for (int s = 0; s < size; ++s) join(slice(before[s].input, s, rank));
      return joined;
    default: return own;
  }
}

}  // namespace tutti::test
