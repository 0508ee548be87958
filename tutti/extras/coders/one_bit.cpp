// One bit an element: Seide et al. 2014, doi:10.21437/Interspeech.2014-274, with one scale a block,
// the mean of |x|, which leaves the least squared error of all symmetric ones.
#include <algorithm>

#include "tutti/comm/compression/detail/gather_coder.h"

namespace tutti::detail {
namespace {

// Payload of a tensor: the scale of each block, then the signs, 32 to a word.
class OneBitCoder final : public GatherCoder {
 public:
  using GatherCoder::GatherCoder;

 private:
  static int64_t blocks_of(int64_t n) { return (n + kOneBitBlock - 1) / kOneBitBlock; }
  static constexpr int64_t kWordsOfBlock = kOneBitBlock / 32;

  int64_t payload_bytes(int64_t n) const override { return 4 * (blocks_of(n) + (n + 31) / 32); }

  void encode(float* residual, int64_t n, std::byte* to) override {
    auto* scales = reinterpret_cast<float*>(to);
    auto* words = reinterpret_cast<uint32_t*>(to + 4 * blocks_of(n));
    for (int64_t block = 0; block < blocks_of(n); ++block) {
      const int64_t begin = block * kOneBitBlock;
      scales[block] =
          code_kernels().one_bit_encode(residual + begin, words + block * kWordsOfBlock,
                                        residual + begin, std::min(kOneBitBlock, n - begin));
    }
  }

  void decode(int, const std::byte* from, int64_t n, int64_t begin, int64_t count,
              float* out) override {
    const auto* scales = reinterpret_cast<const float*>(from);
    const auto* words = reinterpret_cast<const uint32_t*>(from + 4 * blocks_of(n));
    for (int64_t at = 0; at < count; at += kOneBitBlock) {
      const int64_t block = (begin + at) / kOneBitBlock;
      code_kernels().one_bit_decode(words + block * kWordsOfBlock, scales[block], out + at,
                                    std::min(kOneBitBlock, count - at));
    }
  }
};

}  // namespace

bool extra_coders_available() noexcept { return true; }

std::unique_ptr<BucketCoder> make_one_bit_coder(CoderParts parts) {
  return std::make_unique<OneBitCoder>(std::move(parts));
}

}  // namespace tutti::detail
