/// Which copy of a kernel this CPU runs: kernels are compiled once per instruction set.
///
/// A module that has kernels calls tutti_kernel_variants() in CMake, which compiles one source into
/// the namespaces `baseline`, `avx2` and `avx512`, and picks a table by best_variant(), once.
/// All variants give the same bits; docs/design/optimizer_kernels.md says how.
/// Thread rule: all functions may be called from any thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace tutti {

enum class CpuVariant : uint8_t {
  baseline,  ///< what the compiler assumes of every CPU (x86-64: SSE2)
  avx2,      ///< with F16C and FMA
  avx512,    ///< F, BW, DQ and VL
};

/// Whether the namespaces `avx2` and `avx512` exist in this build (for `if constexpr`).
#if defined(__x86_64__)
inline constexpr bool kHasX86Variants = true;
#else
inline constexpr bool kHasX86Variants = false;
#endif

/// "baseline", "avx2", "avx512".
std::string_view name_of(CpuVariant variant) noexcept;

/// Variants that this build has and this CPU can run, baseline first.
std::vector<CpuVariant> runnable_variants();

/// The variant to use: the last runnable one, or the one that the environment variable
/// TUTTI_CPU_VARIANT names. Read once. Throws UsageError when that is no variant, or not runnable.
CpuVariant best_variant();

/// The choice behind best_variant(), for a given value of TUTTI_CPU_VARIANT (empty: unset).
CpuVariant choose_variant(std::string_view wanted);

}  // namespace tutti
