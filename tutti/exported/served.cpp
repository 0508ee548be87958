#include "tutti/exported/detail/served.h"

#include <algorithm>

namespace tutti::exported::detail {
namespace {

enum class Match : uint8_t { whole, prefix, suffix };

struct Refused {
  std::string_view word;
  Match match;
  std::string_view reason;
};

constexpr std::string_view kFiles = "it reads or writes files";
constexpr std::string_view kStorage = "it puts other memory under a tensor";
constexpr std::string_view kUnchecked = "it trusts sizes or indices that the file gives";
constexpr std::string_view kOpaque = "its tensors hold pointers that the file could forge";
constexpr std::string_view kBackward = "gradients come from autograd, not from the graph";
constexpr std::string_view kPrints = "it writes to the terminal";

// Of namespace aten, with a reason; what is on no list is refused, too. Found by reading the
// schemas of LibTorch 2.13 for what takes a file's name, a storage or a stream, and the kernels
// that are called by others which have checked for them.
constexpr Refused kRefused[] = {
    {"from_file", Match::whole, kFiles},
    {"save", Match::whole, kFiles},
    {"load", Match::whole, kFiles},
    {"_print", Match::whole, kPrints},
    {"set_", Match::whole, kStorage},
    {"set", Match::whole, kStorage},
    {"set_data", Match::whole, kStorage},
    {"_lazy_clone", Match::whole, kStorage},
    {"_resize_output", Match::prefix, kStorage},
    {"resize_storage_bytes", Match::prefix, kStorage},
    {"record_stream", Match::whole, kStorage},
    {"_reshape_alias", Match::prefix, kUnchecked},
    {"_reinterpret_tensor", Match::prefix, kUnchecked},
    {"_unsafe_index", Match::prefix, kUnchecked},
    {"_unsafe_masked_index", Match::prefix, kUnchecked},
    {"segment_reduce", Match::whole, kUnchecked},
    {"_segment_reduce", Match::prefix, kUnchecked},
    {"fractional_max_pool", Match::prefix, kUnchecked},
    {"ctc_loss", Match::whole, kUnchecked},
    {"_ctc_loss", Match::prefix, kUnchecked},
    {"_nested", Match::prefix, kUnchecked},
    {"_sparse_", Match::prefix, kUnchecked},
    {"_coalesced", Match::prefix, kUnchecked},
    {"_validate_", Match::prefix, kUnchecked},
    {"_convert_indices", Match::prefix, kUnchecked},
    {"_foreach_", Match::prefix, "an optimizer is not part of a model"},
    {"_fused_", Match::prefix, "an optimizer is not part of a model"},
    {"_cudnn_init_dropout_state", Match::prefix, kOpaque},
    {"fbgemm_", Match::prefix, kOpaque},
    {"mkldnn_", Match::prefix, kOpaque},
    {"_mkldnn_", Match::prefix, kOpaque},
    {"to_mkldnn", Match::prefix, kOpaque},
    {"quantized_", Match::prefix, kOpaque},
    {"quantize_per_", Match::prefix, kOpaque},
    {"_make_per_", Match::prefix, kOpaque},
    {"_empty_affine_quantized", Match::prefix, kOpaque},
    {"_empty_per_channel_affine_quantized", Match::prefix, kOpaque},
    {"empty_quantized", Match::prefix, kOpaque},
    {"_test_", Match::prefix, "it is a test of LibTorch's own"},
    {"_backward", Match::suffix, kBackward},
    {"backward", Match::whole, kBackward},
};

bool matches(const Refused& refused, std::string_view name) {
  switch (refused.match) {
    case Match::whole: return name == refused.word;
    case Match::prefix: return name.starts_with(refused.word);
    case Match::suffix: return name.ends_with(refused.word);
  }
  return false;
}

}  // namespace

std::string OperatorWords::text() const {
  if (space == "higher_order") return space + "." + name;
  return space + "::" + name + (overload.empty() ? "" : "." + overload);
}

OperatorWords operator_words(std::string_view target) {
  constexpr std::string_view kBegin = "torch.ops.";
  if (!target.starts_with(kBegin)) return {};
  target.remove_prefix(kBegin.size());
  const size_t first = target.find('.');
  if (first == target.npos) return {};
  const size_t last = target.rfind('.');
  OperatorWords words{.space = std::string(target.substr(0, first)), .name = {}, .overload = {}};
  if (words.space == "higher_order" || last == first) {
    words.name = target.substr(first + 1);
    return words;
  }
  words.name = target.substr(first + 1, last - first - 1);
  words.overload = target.substr(last + 1);
  if (words.overload == "default") words.overload.clear();
  return words;
}

bool is_region(const OperatorWords& words) {
  return words.space == "higher_order" &&
         (words.name == "cond" || words.name == "wrap_with_set_grad_enabled" ||
          words.name == "wrap_with_autocast");
}

std::string why_refused(const OperatorWords& words) {
  if (words.space == "higher_order")
    return is_region(words) ? "" : "of higher order, cond, no_grad and autocast alone are run";
  if (words.space != "aten") return "operators of aten alone are called";
  const auto* found =
      std::ranges::find_if(kRefused, [&](const Refused& one) { return matches(one, words.name); });
  if (found != std::end(kRefused)) return std::string(found->reason);
  return is_served_name(words.name) ? "" : "it is not on the list of operators that are served";
}

}  // namespace tutti::exported::detail
