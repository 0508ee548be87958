#include "tutti/base/cpu_variant.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"

namespace tutti {
namespace {

constexpr CpuVariant kAll[] = {CpuVariant::baseline, CpuVariant::avx2, CpuVariant::avx512};

bool cpu_can_run([[maybe_unused]] CpuVariant variant) {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") &&
                    __builtin_cpu_supports("fma");
  if (variant == CpuVariant::avx2) return avx2;
  if (variant == CpuVariant::avx512)
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
  return variant == CpuVariant::baseline;
}

}  // namespace

std::string_view name_of(CpuVariant variant) noexcept {
  constexpr std::string_view kNames[] = {"baseline", "avx2", "avx512"};
  return kNames[static_cast<size_t>(variant)];
}

std::vector<CpuVariant> runnable_variants() {
  std::vector<CpuVariant> runnable;
  std::copy_if(std::begin(kAll), std::end(kAll), std::back_inserter(runnable), cpu_can_run);
  return runnable;
}

CpuVariant choose_variant(std::string_view wanted) {
  const auto runnable = runnable_variants();
  if (wanted.empty()) return runnable.back();
  for (CpuVariant variant : kAll) {
    if (name_of(variant) != wanted) continue;
    if (std::find(runnable.begin(), runnable.end(), variant) != runnable.end()) return variant;
    throw UsageError(fmt::format("TUTTI_CPU_VARIANT={}: this CPU cannot run it; its best is {}",
                                 wanted, name_of(runnable.back())));
  }
  const std::string known[] = {"baseline", "avx2", "avx512"};
  throw UsageError(unknown_message("TUTTI_CPU_VARIANT", wanted, known));
}

CpuVariant best_variant() {
  static const CpuVariant chosen = [] {
    const char* wanted = std::getenv("TUTTI_CPU_VARIANT");
    return choose_variant(wanted == nullptr ? "" : wanted);
  }();
  return chosen;
}

}  // namespace tutti
