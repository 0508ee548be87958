#include "tutti/ps/values/detail/sparse_initial.h"

#include <array>
#include <cstring>
#include <variant>

#include "tutti/base/random.h"

namespace tutti::ps::detail {
namespace {

struct InitialBits {
  uint64_t table = 0;
  uint64_t key = 0;

  std::array<uint64_t, 2> block(uint32_t number) const {
    constexpr uint32_t kRow = 0x726F'7700;  // apart from the counters of streams
    const RandomBlock words =
        philox(table, {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32), number, kRow});
    return {words[0] | uint64_t{words[1]} << 32, words[2] | uint64_t{words[3]} << 32};
  }
};

template <class T>
void put(std::byte* row, int64_t element, T value) {
  std::memcpy(row + element * int64_t{sizeof(T)}, &value, sizeof(T));
}

template <class T>
void fill(const ZeroRows&, InitialBits, int64_t width, std::byte* row) {
  std::memset(row, 0, static_cast<size_t>(width) * sizeof(T));
}

template <class T>
void fill(const UniformRows& uniform, InitialBits bits, int64_t width, std::byte* row) {
  const auto low = static_cast<T>(uniform.low), high = static_cast<T>(uniform.high);
  const double range = double{high} - double{low};
  constexpr int64_t kEach = 16 / sizeof(T);  // elements a block
  std::array<uint64_t, 2> block{};
  for (int64_t i = 0; i < width; ++i) {
    const int64_t in_block = i % kEach;
    if (in_block == 0) block = bits.block(static_cast<uint32_t>(i / kEach));
    double unit = 0;
    if constexpr (sizeof(T) == 8)
      unit = uniform_double(block[static_cast<size_t>(in_block)]);
    else
      unit = uniform_float(
          static_cast<uint32_t>(block[static_cast<size_t>(in_block / 2)] >> (32 * (in_block % 2))));
    const T drawn = static_cast<T>(low + range * unit);
    put(row, i, drawn < high ? drawn : low);  // rounding may reach `high`
  }
}

template <class T>
void fill(const NormalRows& normal, InitialBits bits, int64_t width, std::byte* row) {
  // Twelve integers of 21 bits, six of a block; their sum has variance 2^42 (to 12 digits) and
  // is taken to be symmetric about 0. Exact in a double.
  constexpr int kBits = 21;
  constexpr int64_t kCentre = 12 * ((int64_t{1} << kBits) - 1);
  for (int64_t i = 0; i < width; ++i) {
    int64_t sum = 0;
    for (int half = 0; half < 2; ++half)
      for (const uint64_t word : bits.block(static_cast<uint32_t>(2 * i + half)))
        for (int shift = 0; shift < 3 * kBits; shift += kBits)
          sum += static_cast<int64_t>(word >> shift & ((1 << kBits) - 1));
    const double unit = static_cast<double>(2 * sum - kCentre) * 0x1p-22;
    put(row, i, static_cast<T>(normal.mean + normal.std * unit));
  }
}

}  // namespace

uint64_t table_key(uint64_t seed, std::string_view name) {
  uint64_t key = random_key(seed, RandomPurpose::init, {name.size()});
  for (size_t begin = 0; begin < name.size(); begin += 8) {
    uint64_t letters = 0;
    for (const char letter : name.substr(begin, 8))
      letters = letters << 8 | static_cast<unsigned char>(letter);
    key = random_key(key, RandomPurpose::init, {letters});
  }
  return key;
}

void fill_initial(const SparseTableSpec& spec, uint64_t table, uint64_t key, std::byte* row) {
  const InitialBits bits{table, key};
  std::visit(
      [&](const auto& initializer) {
        if (spec.dtype == DType::float64)
          fill<double>(initializer, bits, spec.width, row);
        else
          fill<float>(initializer, bits, spec.width, row);
      },
      spec.initializer);
}

}  // namespace tutti::ps::detail
