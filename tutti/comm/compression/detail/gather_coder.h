/// Coders whose replicas gather what each sends, decode all of it and add it in the one order: the
/// same sum on every rank, without a second rounding.
///
/// Error feedback: what a step does not send is added to the next gradient. Not for users.
/// Thread rule: as coder.h.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "tutti/base/detail/check.h"
#include "tutti/comm/compression/coders.h"
#include "tutti/comm/engine/reduce_kernels.h"

namespace tutti::detail {

/// What such coders share; a kind says how a tensor is written and read.
class GatherCoder : public BucketCoder {
 public:
  explicit GatherCoder(CoderParts parts)
      : parts_(std::move(parts)), replicas_(parts_.shape.replicas()) {}

  Exchange begin(std::span<const uint8_t> used) override {
    if (payload_.num_elements() == 0) allocate();
    auto* to = static_cast<std::byte*>(payload_.data());
    for (size_t i = 0; i < parts_.tensors.size(); ++i) {
      const CodedTensor& tensor = parts_.tensors[i];
      const int64_t n = tensor.rows * tensor.columns;
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
      const int64_t n = tensor.rows * tensor.columns;
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
    for (const CodedTensor& tensor : parts_.tensors)
      bytes += payload_bytes(tensor.rows * tensor.columns);
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

  /// Elements decoded at once: the replicas' parts of a chunk stay in cache until they are added.
  static constexpr int64_t kChunk = 4 * kOneBitBlock;

  CoderParts parts_;
  int replicas_;
  Array payload_;  ///< this replica's, all tensors
  Array all_;      ///< every replica's
  Array scratch_;  ///< a decoded chunk of each
};

}  // namespace tutti::detail
