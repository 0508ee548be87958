#include "tutti/base/random.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <span>
#include <utility>

#include "tutti/base/detail/check.h"

namespace tutti {
namespace {

uint64_t mixed(uint64_t key, uint64_t part, uint32_t position) noexcept {
  // The last word keeps these counters apart from those that streams and callers count through.
  constexpr uint32_t kKeyDerivation = 0x7475'7474;
  const RandomBlock block = philox(
      key,
      {static_cast<uint32_t>(part), static_cast<uint32_t>(part >> 32), position, kKeyDerivation});
  return block[0] | uint64_t{block[1]} << 32;
}

// Fisher-Yates (Durstenfeld 1964, doi:10.1145/364520.364540).
void shuffle(std::span<int64_t> elements, RandomStream& random) {
  for (size_t i = elements.size(); i > 1; --i)
    std::swap(elements[i - 1], elements[random.below(i)]);
}

}  // namespace

uint64_t random_key(uint64_t seed, RandomPurpose purpose,
                    std::initializer_list<uint64_t> parts) noexcept {
  uint32_t position = 0;
  uint64_t key = mixed(seed, static_cast<uint64_t>(purpose), position);
  for (uint64_t part : parts) key = mixed(key, part, ++position);
  return key;
}

uint64_t RandomStream::next64() noexcept {
  const uint64_t low = (*this)();
  return low | uint64_t{(*this)()} << 32;
}

uint64_t RandomStream::below(uint64_t n) noexcept {
  if (n > uint64_t{1} << 32) {
    const uint64_t mask = ~uint64_t{0} >> std::countl_zero(n - 1);
    uint64_t drawn = next64() & mask;
    while (drawn >= n) drawn = next64() & mask;
    return drawn;
  }
  // Lemire 2019, doi:10.1145/3230636: the high half of a product; the few low halves that would
  // make some results likelier are drawn again.
  uint64_t product = (*this)() * n;
  if (static_cast<uint32_t>(product) < n) {
    const uint64_t surplus = (uint64_t{1} << 32) % n;
    while (static_cast<uint32_t>(product) < surplus) product = (*this)() * n;
  }
  return product >> 32;
}

void RandomStream::refill() noexcept {
  block_ =
      philox(key_, {static_cast<uint32_t>(counter_), static_cast<uint32_t>(counter_ >> 32), 0, 0});
  ++counter_;
  used_ = 0;
}

std::vector<int64_t> random_permutation(int64_t n, uint64_t key) {
  TUTTI_CHECK(n >= 0, "permutation of {} elements", n);
  // Beyond the cache Fisher-Yates waits for memory at every swap. So each element first draws one
  // of 256 bins, and the bins, which fit, are shuffled one by one; the order stays uniform. Rao
  // 1961; Sandelius 1962, doi:10.1111/j.2517-6161.1962.tb00474.x
  constexpr int64_t kFitsCache = 1 << 16;
  constexpr size_t kBins = 256;
  const auto length = static_cast<size_t>(n);
  std::vector<int64_t> order(length);
  RandomStream random(key);
  if (n <= kFitsCache) {
    std::iota(order.begin(), order.end(), int64_t{0});
    shuffle(order, random);
    return order;
  }
  std::vector<uint8_t> bin_of(length);
  std::array<size_t, kBins + 1> begin{};
  for (size_t i = 0; i < length; i += 4) {
    const uint32_t bits = random();
    for (size_t j = i; j < std::min(i + 4, length); ++j) {
      bin_of[j] = static_cast<uint8_t>(bits >> (8 * (j - i)));
      ++begin[bin_of[j] + 1];
    }
  }
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  auto next = begin;
  for (size_t i = 0; i < length; ++i) order[next[bin_of[i]]++] = static_cast<int64_t>(i);
  for (size_t bin = 0; bin < kBins; ++bin)
    shuffle(std::span(order).subspan(begin[bin], begin[bin + 1] - begin[bin]), random);
  return order;
}

}  // namespace tutti
