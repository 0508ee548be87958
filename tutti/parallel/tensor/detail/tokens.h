/// Tokens of a vocabulary that is cut into blocks. Not for users.
#pragma once

#include <torch/types.h>

#include <string_view>

namespace tutti::parallel::detail {

/// UsageError where `tokens` are no integers of the CPU; RowError that names the first token below
/// 0 or beyond the vocabulary.
void require_tokens(std::string_view what, const at::Tensor& tokens, int64_t vocabulary);

/// Where tokens stand among the words [begin, begin + size): at 0 those that are not there, which
/// `outside` marks.
struct Places {
  at::Tensor place;
  at::Tensor outside;
};
Places places_in(const at::Tensor& tokens, int64_t begin, int64_t size);

}  // namespace tutti::parallel::detail
