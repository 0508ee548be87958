#include "tutti/comm/engine/detail/call.h"

#include <fmt/format.h>

#include <numeric>

namespace tutti::detail {

bool is_message(Collective collective) noexcept {
  return collective == Collective::send || collective == Collective::recv;
}

bool reduces(Collective collective) noexcept {
  return collective == Collective::all_reduce || collective == Collective::reduce ||
         collective == Collective::reduce_scatter;
}

bool has_root(Collective collective) noexcept {
  return collective == Collective::broadcast || collective == Collective::reduce ||
         collective == Collective::scatter || collective == Collective::gather;
}

namespace {

// The counts of a call with unequal parts are the same on every rank; its own part is not.
int64_t whole_or(const std::vector<int64_t>& counts, int64_t part) noexcept {
  return counts.empty() ? part : std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

int64_t elements_of(const Operation& operation) noexcept {
  switch (operation.collective) {
    case Collective::barrier: return 0;
    case Collective::all_reduce:
    case Collective::reduce:
    case Collective::broadcast:
    case Collective::all_gather:
    case Collective::recv: return operation.output.num_elements;
    case Collective::reduce_scatter:
    case Collective::all_to_all:
    case Collective::send: return operation.input.num_elements;
    case Collective::scatter:
      return whole_or(operation.input_counts, operation.output.num_elements);
    case Collective::gather: return whole_or(operation.output_counts, operation.input.num_elements);
  }
  return 0;
}

}  // namespace

Call call_of(const Operation& operation) noexcept {
  const Collective collective = operation.collective;
  const bool from_input = collective == Collective::send || collective == Collective::gather;
  Call call{.collective = collective};
  if (reduces(collective)) call.reduce = operation.reduce;
  if (collective != Collective::barrier)
    call.dtype = from_input ? operation.input.dtype : operation.output.dtype;
  if (has_root(collective) || is_message(collective)) call.root = operation.root;
  if (is_message(collective)) call.tag = operation.tag;
  call.elements = elements_of(operation);
  return call;
}

bool agree(const Call& a, const Call& b) noexcept {
  Call other = b;
  if (a.collective == Collective::all_to_all) other.elements = a.elements;
  return a == other;
}

std::string words_of(const Call& call) {
  std::string text(name_of(call.collective));
  if (call.collective == Collective::barrier) return text;
  if (reduces(call.collective)) text += fmt::format(" ({})", name_of(call.reduce));
  text += call.elements < 0 ? fmt::format(" of {}", name_of(call.dtype))
                            : fmt::format(" of {} {}", call.elements, name_of(call.dtype));
  const std::string other = call.root == kAnyRank ? "any rank" : fmt::format("rank {}", call.root);
  switch (call.collective) {
    case Collective::broadcast:
    case Collective::scatter: return text + " from " + other;
    case Collective::reduce:
    case Collective::gather: return text + " to " + other;
    case Collective::send: return fmt::format("{} to {}, tag {}", text, other, call.tag);
    case Collective::recv: return fmt::format("{} from {}, tag {}", text, other, call.tag);
    default: return text;
  }
}

namespace {

// Bits of a packed call.
constexpr int kReduceShift = 4, kDTypeShift = 8, kPartialShift = 12, kCountsShift = 13,
              kRootShift = 16;

}  // namespace

uint32_t pack_call(const Operation& operation) noexcept {
  const Collective collective = operation.collective;
  const auto bits = [](bool given, auto value, int shift) {
    return given ? static_cast<uint32_t>(value) << shift : 0;
  };
  return static_cast<uint32_t>(collective) |
         bits(reduces(collective), operation.reduce, kReduceShift) |
         bits(collective != Collective::barrier, dtype_of(operation), kDTypeShift) |
         bits(operation.partial, 1, kPartialShift) | bits(has_counts(operation), 1, kCountsShift) |
         bits(has_root(collective), operation.root, kRootShift);
}

std::string call_words(uint32_t packed, int64_t num_elements) {
  Call call{.collective = static_cast<Collective>(packed & 0xf),
            .reduce = static_cast<ReduceOp>(packed >> kReduceShift & 0xf),
            .dtype = static_cast<DType>(packed >> kDTypeShift & 0xf),
            .root = static_cast<int>(packed >> kRootShift),
            .elements = num_elements};
  if (call.collective > Collective::recv || call.reduce > ReduceOp::logical_xor ||
      call.dtype > DType::float64)
    return fmt::format("an unknown operation (0x{:08x})", packed);
  const bool counts = (packed >> kCountsShift & 1) != 0;
  const bool partial = (packed >> kPartialShift & 1) != 0;
  if (counts && call.collective == Collective::all_to_all) call.elements = -1;
  return words_of(call) + (counts ? ", in parts of given lengths" : "") +
         (partial ? ", not rounded" : "");
}

bool has_counts(const Operation& operation) noexcept {
  return !operation.input_counts.empty() || !operation.output_counts.empty();
}

std::span<const int64_t> common_counts(const Operation& operation) noexcept {
  if (operation.collective == Collective::all_to_all) return {};
  return operation.input_counts.empty() ? operation.output_counts : operation.input_counts;
}

uint64_t fingerprint(std::span<const int64_t> counts) noexcept {
  uint64_t mixed = 0xcbf2'9ce4'8422'2325;  // FNV-1a over words
  for (int64_t count : counts) mixed = (mixed ^ static_cast<uint64_t>(count)) * 0x100'0000'01b3;
  return mixed;
}

std::string place_words(std::string_view file, uint32_t line) {
  return fmt::format("{}:{}", file.substr(file.find_last_of('/') + 1), line);
}

}  // namespace tutti::detail
