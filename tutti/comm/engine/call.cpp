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
  text += fmt::format(" of {} {}", call.elements, name_of(call.dtype));
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

std::string place_words(std::string_view file, uint32_t line) {
  return fmt::format("{}:{}", file.substr(file.find_last_of('/') + 1), line);
}

}  // namespace tutti::detail
