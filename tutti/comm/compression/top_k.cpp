// top_k: the largest elements, and where they stand. Stich et al. 2018, arXiv:1809.07599.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "tutti/base/detail/check.h"
#include "tutti/comm/compression/coders.h"
#include "tutti/comm/compression/detail/gather_coder.h"

namespace tutti::detail {
namespace {

// Payload of a tensor: k indices, ascending, then their k values.
class TopKCoder final : public GatherCoder {
 public:
  explicit TopKCoder(CoderParts parts)
      : GatherCoder(std::move(parts)), cursors_(static_cast<size_t>(replicas())) {}

 private:
  int64_t payload_bytes(int64_t n) const override { return 8 * top_k_count(compression(), n); }

  void encode(float* residual, int64_t n, std::byte* to) override {
    const auto k = static_cast<size_t>(top_k_count(compression(), n));
    const std::span indices(reinterpret_cast<uint32_t*>(to), k);
    auto* values = reinterpret_cast<float*>(to + 4 * k);
    select_largest(residual, n, indices);
    for (size_t i = 0; i < k; ++i) {
      values[i] = residual[indices[i]];
      residual[indices[i]] = 0;
    }
  }

  void decode(int replica, const std::byte* from, int64_t n, int64_t begin, int64_t count,
              float* out) override {
    const int64_t k = top_k_count(compression(), n);
    const auto* indices = reinterpret_cast<const uint32_t*>(from);
    const auto* values = reinterpret_cast<const float*>(from + 4 * k);
    int64_t& cursor = cursors_[replica];
    if (begin == 0) cursor = 0;
    std::fill_n(out, count, 0.0f);
    for (; cursor < k && indices[cursor] < begin + count; ++cursor)
      out[indices[cursor] - begin] = values[cursor];
  }

  std::vector<int64_t> cursors_;  // by replica: entries decoded so far
};

uint32_t size_key(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits & 0x7fffffff;
}

// The k-th largest key of all whose upper bits are those of `prefix`, digit by digit: 31 bits in
// digits of 11, 10 and 10. `wanted` becomes how many of the keys equal to it are among the k.
uint32_t threshold_key(const float* values, int64_t n, int64_t& wanted) {
  struct Digit {
    int shift;
    int bits;
  };
  uint32_t prefix = 0, mask = 0;
  for (const Digit digit : {Digit{20, 11}, Digit{10, 10}, Digit{0, 10}}) {
    std::array<int64_t, 2048> counts{};
    const uint32_t low = (1u << digit.bits) - 1;
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t key = size_key(values[i]);
      if ((key & mask) == prefix) ++counts[(key >> digit.shift) & low];
    }
    uint32_t value = low;
    while (counts[value] < wanted) wanted -= counts[value--];
    prefix |= value << digit.shift;
    mask |= low << digit.shift;
  }
  return prefix;
}

}  // namespace

void select_largest(const float* values, int64_t n, std::span<uint32_t> indices) {
  auto ties = static_cast<int64_t>(indices.size());
  const uint32_t threshold = threshold_key(values, n, ties);
  size_t found = 0;
  for (int64_t i = 0; i < n && found < indices.size(); ++i) {
    const uint32_t key = size_key(values[i]);
    if (key < threshold || (key == threshold && ties-- <= 0)) continue;
    indices[found++] = static_cast<uint32_t>(i);
  }
  TUTTI_CHECK(found == indices.size(), "{} of {} found", found, indices.size());
}

int64_t top_k_count(const Compression& compression, int64_t num_elements) {
  const double exact = compression.ratio * static_cast<double>(num_elements);
  return std::clamp<int64_t>(static_cast<int64_t>(std::ceil(exact)), 1, num_elements);
}

std::unique_ptr<BucketCoder> make_top_k_coder(CoderParts parts) {
  return std::make_unique<TopKCoder>(std::move(parts));
}

}  // namespace tutti::detail
