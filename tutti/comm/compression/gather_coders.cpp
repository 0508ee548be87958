// Coders whose replicas gather what each sends, decode all of it and add it in the one order: the
// same sum on every rank, without a second rounding.
//
// Error feedback: what a step does not send is added to the next gradient. top_k: Stich et al.
// 2018, arXiv:1809.07599. One bit: Seide et al. 2014, doi:10.21437/Interspeech.2014-274, with one
// scale a block, the mean of |x|, which leaves the least squared error of all symmetric ones.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "tutti/base/detail/check.h"
#include "tutti/comm/compression/coders.h"
#include "tutti/comm/engine/reduce_kernels.h"

namespace tutti::detail {
namespace {

// Elements decoded at once: the replicas' parts of a chunk stay in cache until they are added.
constexpr int64_t kChunk = 4 * kOneBitBlock;

int64_t elements_of(const CodedTensor& tensor) { return tensor.rows * tensor.columns; }

class GatherCoder : public BucketCoder {
 public:
  explicit GatherCoder(CoderParts parts)
      : parts_(std::move(parts)), replicas_(parts_.shape.replicas()) {}

  Exchange begin(std::span<const uint8_t> used) override {
    if (payload_.num_elements() == 0) allocate();
    auto* to = static_cast<std::byte*>(payload_.data());
    for (size_t i = 0; i < parts_.tensors.size(); ++i) {
      const CodedTensor& tensor = parts_.tensors[i];
      const int64_t n = elements_of(tensor);
      if (used[i] != 0) {
        CodedState& state = parts_.state_of(tensor);
        ready_residual(state, n);
        float* const residual = state.residual.as<float>().data();
        code_kernels().add(residual, tensor.values, n);
        encode(residual, n, to);
      } else {
        encode_zeros(n, to);
      }
      to += payload_bytes(n);
    }
    return {.kind = Exchange::Kind::gather, .data = payload_.span(), .all = all_.span()};
  }

  Exchange next() override {
    TUTTI_CHECK(all_.num_elements() > 0, "next() without begin()");
    std::vector<const std::byte*> from(replicas_);
    for (int r = 0; r < replicas_; ++r)
      from[r] = static_cast<const std::byte*>(all_.data()) + r * payload_.num_bytes();
    for (const CodedTensor& tensor : parts_.tensors) {
      const int64_t n = elements_of(tensor);
      add_up(from, tensor.values, n);
      for (const std::byte*& part : from) part += payload_bytes(n);
    }
    return {};
  }

 protected:
  const Compression& compression() const { return parts_.compression; }
  int replicas() const { return replicas_; }

  /// Bytes that a tensor of n elements takes: a multiple of 4.
  virtual int64_t payload_bytes(int64_t n) const = 0;
  /// `residual` holds gradient and residual; what is not sent stays in it.
  virtual void encode(float* residual, int64_t n, std::byte* to) = 0;
  virtual void encode_zeros(int64_t n, std::byte* to) { std::memset(to, 0, payload_bytes(n)); }
  /// Elements [begin, begin + count) of what replica r sent. `begin` grows from call to call.
  virtual void decode(int replica, const std::byte* from, int64_t n, int64_t begin, int64_t count,
                      float* out) = 0;

 private:
  void allocate() {
    int64_t bytes = 0;
    for (const CodedTensor& tensor : parts_.tensors) bytes += payload_bytes(elements_of(tensor));
    payload_ = Array::zeros(DType::uint8, {bytes});
    all_ = Array::zeros(DType::uint8, {replicas_ * bytes});
    scratch_ = Array::zeros(DType::float32, {replicas_, kChunk});
  }

  void add_up(const std::vector<const std::byte*>& from, float* out, int64_t n) {
    std::vector<const void*> inputs(replicas_);
    for (int64_t begin = 0; begin < n; begin += kChunk) {
      const int64_t count = std::min(kChunk, n - begin);
      for (int r = 0; r < replicas_; ++r) {
        float* const chunk = scratch_.as<float>().data() + r * kChunk;
        decode(r, from[r], n, begin, count, chunk);
        inputs[r] = chunk;
      }
      reduce_inputs(DType::float32, ReduceOp::sum, parts_.shape, inputs, out + begin, count);
    }
  }

  CoderParts parts_;
  int replicas_;
  Array payload_;  // this replica's, all tensors
  Array all_;      // every replica's
  Array scratch_;  // a decoded chunk of each
};

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

std::unique_ptr<BucketCoder> make_one_bit_coder(CoderParts parts) {
  return std::make_unique<OneBitCoder>(std::move(parts));
}

}  // namespace tutti::detail
