/// Counter-based random numbers: a pure function of a key and a place, with no state to share.
///
/// Every stream in the library (shuffles, dropout masks, initial weights) is keyed by what it is
/// for, so it does not depend on the number of replicas, on threads, or on what was drawn before.
/// The same numbers come out on every platform. Not for secrets.
/// Thread rule: pure functions; a RandomStream belongs to one thread.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <vector>

namespace tutti {

using RandomBlock = std::array<uint32_t, 4>;

/// Philox4x32-10 of Salmon et al. SC'11, doi:10.1145/2063384.2063405: 128 random bits for each of
/// the 2^128 counters under each of the 2^64 keys (word 0 is the low half).
constexpr RandomBlock philox(uint64_t key, RandomBlock counter) noexcept {
  constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;  // golden ratio, sqrt(3) - 1
  auto key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0], product1 = kMultiplier1 * counter[2];
    counter = {
        static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(product1),
        static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(product0)};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return counter;
}

/// What a stream is for, so that equal seeds never give two uses the same numbers. Values are part
/// of what a seed means: they never change, new ones are added at the end.
enum class RandomPurpose : uint64_t {
  init = 1,
  shuffle = 2,
  dropout = 3,
  augment = 4,
  test = 5,
  mix = 6,        // of datasets, and of samples in a batch
  replace = 7,    // damaged samples by others
  generate = 8,   // tokens of a text
  operators = 9,  // of LibTorch, which a network of a .pt2 file calls
};

/// A key for one use: random_key(seed, RandomPurpose::dropout, {step, layer, row}). Any difference
/// in any part, or in their number, gives an unrelated key.
uint64_t random_key(uint64_t seed, RandomPurpose purpose,
                    std::initializer_list<uint64_t> parts = {}) noexcept;

/// Uniform in [0, 1): a multiple of 2^-24 from 32 random bits; of 2^-53 from 64.
constexpr float uniform_float(uint32_t bits) noexcept {
  return static_cast<float>(bits >> 8) * 0x1p-24f;
}
constexpr double uniform_double(uint64_t bits) noexcept {
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

/// Numbers of one key in order: counters 0, 1, 2, ... A UniformRandomBitGenerator of 32 bits; note
/// that the distributions of `<random>` differ between standard libraries, those here do not.
class RandomStream {
 public:
  using result_type = uint32_t;

  explicit RandomStream(uint64_t key) noexcept : key_(key) {}

  static constexpr result_type min() noexcept { return 0; }
  static constexpr result_type max() noexcept { return std::numeric_limits<uint32_t>::max(); }

  uint32_t operator()() noexcept {
    if (used_ == 4) refill();
    return block_[used_++];
  }
  uint64_t next64() noexcept;

  float uniform() noexcept { return uniform_float((*this)()); }  ///< in [0, 1)
  /// Uniform in [0, n), without bias. n >= 1.
  uint64_t below(uint64_t n) noexcept;

 private:
  void refill() noexcept;

  uint64_t key_;
  uint64_t counter_ = 0;
  RandomBlock block_{};
  unsigned used_ = 4;
};

/// The numbers 0 .. n-1 in an order drawn uniformly by `key`; n >= 0. Takes about 10 ns an element.
std::vector<int64_t> random_permutation(int64_t n, uint64_t key);

}  // namespace tutti
