#include "tutti/comm/group/detail/group_checks.h"

#include <numeric>

#include "tutti/base/error.h"
#include "tutti/comm/engine/kernels/dispatch.h"

namespace tutti::detail {
namespace {

bool overlap(const MemorySpan& a, const MemorySpan& b) {
  const auto* a_begin = static_cast<const char*>(a.data);
  const auto* b_begin = static_cast<const char*>(b.data);
  return a.num_elements > 0 && b.num_elements > 0 && a_begin < b_begin + b.num_bytes() &&
         b_begin < a_begin + a.num_bytes();
}

// So that neither bytes nor the sum over all ranks, up to 65,536, overflow.
constexpr int64_t kMostElements = INT64_MAX / 8 >> 16;

}  // namespace

void Checked::refuse(const std::string& why) const {
  throw UsageError(
      fmt::format("{}, rank {} of {}: {}", name_of(call), engine.rank(), engine.size(), why));
}

void Checked::limit(Millis limit) const {
  if (limit <= Millis{0})
    refuse(fmt::format("limit of {} ms; expected more than 0", limit.count()));
}

void Checked::rank(std::string_view name, int rank) const {
  if (rank < 0 || rank >= engine.size())
    refuse(fmt::format("{} {}; expected 0 to {}", name, rank, engine.size() - 1));
}

void Checked::peer(std::string_view name, int rank) const {
  this->rank(name, rank);
  if (rank == engine.rank())
    refuse(fmt::format("{} {} is this rank itself; messages go to another", name, rank));
}

void Checked::tag(int tag) const {
  if (tag < 0) refuse(fmt::format("tag {}; expected 0 or more", tag));
}

void Checked::span(std::string_view name, const MemorySpan& span) const {
  if (span.num_elements < 0)
    refuse(fmt::format("{} has {} elements; expected 0 or more", name, span.num_elements));
  if (span.num_elements > 0 && span.data == nullptr)
    refuse(fmt::format("{} has {} elements and no data", name, span.num_elements));
  if (span.num_elements > kMostElements)
    refuse(fmt::format("{} has {} elements, more than memory can hold", name, span.num_elements));
  const auto element_bytes = static_cast<uintptr_t>(size_of(span.dtype));  // a power of two
  if ((reinterpret_cast<uintptr_t>(span.data) & (element_bytes - 1)) != 0)
    refuse(fmt::format("{} at {} is not aligned to its {}", name, span.data, name_of(span.dtype)));
  if (engine.reaches(span.place)) return;
  const bool host = span.place.kind == Place::Kind::host;
  refuse(fmt::format("{} is in {} memory, which engine \"{}\" cannot reach; copy it to the {}",
                     name, host ? "host" : "device", engine.name(), host ? "device" : "host"));
}

void Checked::reduction(DType dtype, ReduceOp op) const {
  try {
    require_reducible(dtype, op);
  } catch (const UsageError& error) {
    refuse(error.what());
  }
}

void Checked::same_dtype(std::string_view name, const MemorySpan& span, std::string_view other_name,
                         const MemorySpan& other) const {
  if (span.dtype != other.dtype)
    refuse(fmt::format("{} is {}, {} is {}", name, name_of(span.dtype), other_name,
                       name_of(other.dtype)));
}

void Checked::list(std::string_view name, std::span<const int64_t> counts) const {
  if (counts.empty()) return;
  if (static_cast<int>(counts.size()) != engine.size())
    refuse(fmt::format("{} {}; expected one a rank: {}", counts.size(), name, engine.size()));
  for (int64_t count : counts)
    if (count < 0 || count > kMostElements)
      refuse(fmt::format("{} hold {}; expected 0 to {}", name, count, kMostElements));
}

void Checked::counts(std::string_view name, std::span<const int64_t> counts,
                     std::string_view whole_name, const MemorySpan& whole) const {
  if (counts.empty()) return;
  list(name, counts);
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  if (total != whole.num_elements)
    refuse(fmt::format("{} has {} elements; expected {}, as many as all {}", whole_name,
                       whole.num_elements, total, name));
}

void Checked::part(std::string_view part_name, const MemorySpan& part, std::string_view whole_name,
                   const MemorySpan& whole, std::span<const int64_t> counts) const {
  span(whole_name, whole);
  span(part_name, part);
  same_dtype(whole_name, whole, part_name, part);
  this->counts("counts", counts, whole_name, whole);
  const int rank = engine.rank();
  if (counts.empty() && whole.num_elements != part.num_elements * engine.size())
    refuse(fmt::format("{} has {} elements; expected {} times the {} of {}", whole_name,
                       whole.num_elements, engine.size(), part.num_elements, part_name));
  if (!counts.empty() && part.num_elements != counts[rank])
    refuse(fmt::format("{} has {} elements; expected {}, the count of rank {}", part_name,
                       part.num_elements, counts[rank], rank));
  if (!overlap(whole, part)) return;
  const int64_t before = counts.empty()
                             ? rank * part.num_elements
                             : std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
  if (static_cast<const char*>(part.data) ==
      static_cast<const char*>(whole.data) + before * size_of(whole.dtype))
    return;
  refuse(fmt::format("{} and {} overlap; allowed only where {} is part {} of {}", whole_name,
                     part_name, part_name, rank, whole_name));
}

void Checked::own_part(std::string_view part_name, const MemorySpan& part,
                       std::span<const int64_t> counts) const {
  span(part_name, part);
  list("counts", counts);
  if (!counts.empty() && part.num_elements != counts[engine.rank()])
    refuse(fmt::format("{} has {} elements; expected {}, the count of rank {}", part_name,
                       part.num_elements, counts[engine.rank()], engine.rank()));
}

void Checked::equal_parts(const MemorySpan& input, const MemorySpan& output) const {
  if (input.num_elements != output.num_elements)
    refuse(fmt::format("input has {} elements, output {}; expected the same", input.num_elements,
                       output.num_elements));
  if (input.num_elements % engine.size() != 0)
    refuse(fmt::format("{} elements cannot be cut into {} equal parts; give counts",
                       input.num_elements, engine.size()));
}

void Checked::apart(std::string_view name, const MemorySpan& span, std::string_view other_name,
                    const MemorySpan& other) const {
  if (overlap(span, other)) refuse(fmt::format("{} and {} overlap", name, other_name));
}

}  // namespace tutti::detail
