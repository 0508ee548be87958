#include "tutti/nn/detail/slow_bfloat16.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <mutex>

#include "tutti/base/deadline.h"
#include "tutti/base/log.h"

namespace tutti::detail {
namespace {

// Of matrices that stay in cache; the least of a few times, since others may compute beside.
double seconds_of_product(at::ScalarType type) {
  constexpr int64_t kSide = 256;
  constexpr int kTimes = 5;
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor a = at::ones({kSide, kSide}, type);
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i <= kTimes; ++i) {  // the first one makes the kernel
    const auto begin = Clock::now();
    at::mm(a, a);
    if (i > 0) least = std::min(least, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return least;
}

bool multiplies_in_bfloat16() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") || __builtin_cpu_supports("amx-bf16");
#else
  return true;  // nothing is known of others
#endif
}

}  // namespace

std::string words_of_slow_bfloat16(bool multiplies, const std::function<double()>& measure) {
  if (multiplies) return "";
  return fmt::format(
      "precision bfloat16: this processor has neither AVX512_BF16 nor AMX; a product of matrices "
      "takes {:.1f} times as long as in float32, measured now: use float32, unless memory is short",
      measure());
}

void warn_where_bfloat16_is_slow() {
  static std::once_flag once;
  std::call_once(once, [] {
    const std::string words = words_of_slow_bfloat16(multiplies_in_bfloat16(), [] {
      return seconds_of_product(at::kBFloat16) / seconds_of_product(at::kFloat);
    });
    if (!words.empty()) log_message(LogLevel::warning, words);
  });
}

}  // namespace tutti::detail
