/// Spreads the keys of embedding tables over servers, and over the places of an index.
/// Thread rule: a pure function.
#pragma once

#include <cstdint>

namespace tutti::ps::detail {

/// SplitMix64's step and finalizer, a bijection: Steele, Lea & Flood 2014,
/// doi:10.1145/2660193.2660195. Servers are chosen by its high half, places in the index by its low
/// half, so that the keys of one server fill its index evenly.
inline uint64_t mixed(uint64_t key) noexcept {
  uint64_t bits = key + 0x9E3779B97F4A7C15;
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB;
  return bits ^ (bits >> 31);
}

}  // namespace tutti::ps::detail
