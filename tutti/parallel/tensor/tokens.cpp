#include "tutti/parallel/tensor/detail/tokens.h"

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/nn/detail/graph_step.h"

namespace tutti::parallel::detail {

void require_tokens(std::string_view what, const at::Tensor& tokens, int64_t vocabulary) {
  if (!tokens.defined() || !tokens.is_cpu() ||
      (tokens.scalar_type() != at::kLong && tokens.scalar_type() != at::kInt))
    throw UsageError(fmt::format("{}: got {}, expected int64 or int32 on the CPU", what,
                                 tokens.defined() ? tokens.toString() : "no tensor"));
  nn::detail::require_tokens(std::string(what), tokens, vocabulary);
}

Places places_in(const at::Tensor& tokens, int64_t begin, int64_t size) {
  const at::Tensor place = tokens.to(at::kLong) - begin;
  const at::Tensor outside = at::logical_or(place.lt(0), place.ge(size));
  return {place.masked_fill(outside, 0), outside};
}

}  // namespace tutti::parallel::detail
