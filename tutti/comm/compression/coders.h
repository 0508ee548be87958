/// The kinds of coders, and what they share. Not for users: make_coder() chooses.
/// Thread rule: as coder.h.
#pragma once

#include "tutti/base/cpu_variant.h"
#include "tutti/comm/compression/coder.h"
#include "tutti/comm/engine/kernels/code.h"

namespace tutti::detail {

/// The kernels of a variant that this CPU can run, and of the best one.
const CodeKernels& code_kernels_of(CpuVariant variant) noexcept;
const CodeKernels& code_kernels();

/// The numbers of the k largest |values|, ascending. Among equal ones the first win; NaN counts as
/// the largest. 1 <= k <= n.
void select_largest(const float* values, int64_t n, std::span<uint32_t> indices);

/// Elements that top_k sends of a tensor: ratio of all, rounded up.
int64_t top_k_count(const Compression& compression, int64_t num_elements);

/// What all coders of a bucket are made from.
struct CoderParts {
  Compression compression;
  MemorySpan bucket;
  std::vector<CodedTensor> tensors;
  std::span<CodedState> states;
  ReductionShape shape;

  CodedState& state_of(const CodedTensor& tensor) const { return states[tensor.tensor]; }
};

std::unique_ptr<BucketCoder> make_narrow_coder(const CoderParts& parts);
std::unique_ptr<BucketCoder> make_top_k_coder(CoderParts parts);

/// Whether this build has the two below, which are tutti/extras/coders.
bool extra_coders_available() noexcept;
std::unique_ptr<BucketCoder> make_one_bit_coder(CoderParts parts);
std::unique_ptr<BucketCoder> make_power_sgd_coder(CoderParts parts);

/// Gives a state without residual one of zeros.
void ready_residual(CodedState& state, int64_t num_elements);

}  // namespace tutti::detail
