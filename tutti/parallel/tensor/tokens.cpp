#include "tutti/parallel/tensor/detail/tokens.h"

#include <fmt/format.h>

#include "tutti/base/error.h"

namespace tutti::parallel::detail {

void require_tokens(std::string_view what, const at::Tensor& tokens, int64_t vocabulary) {
  if (!tokens.defined() || !tokens.is_cpu() ||
      (tokens.scalar_type() != at::kLong && tokens.scalar_type() != at::kInt))
    throw UsageError(fmt::format("{}: got {}, expected int64 or int32 on the CPU", what,
                                 tokens.defined() ? tokens.toString() : "no tensor"));
  const at::Tensor bad = at::nonzero(at::logical_or(tokens.lt(0), tokens.ge(vocabulary)).flatten());
  if (bad.numel() == 0) return;
  const auto place = bad.flatten()[0].item<int64_t>();
  throw DataError(fmt::format("{}: element {} is {}, expected 0 to {}", what, place,
                              tokens.flatten()[place].item<int64_t>(), vocabulary - 1));
}

Places places_in(const at::Tensor& tokens, int64_t begin, int64_t size) {
  const at::Tensor place = tokens.to(at::kLong) - begin;
  const at::Tensor outside = at::logical_or(place.lt(0), place.ge(size));
  return {place.masked_fill(outside, 0), outside};
}

}  // namespace tutti::parallel::detail
