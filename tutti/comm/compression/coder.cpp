#include "tutti/comm/compression/coder.h"

#include <algorithm>
#include <cstring>

#include "tutti/base/detail/check.h"
#include "tutti/comm/compression/coders.h"
#include "tutti/comm/engine/kernels/dispatch.h"

namespace tutti::detail {
namespace {

// 16 bits on the wire. The sum of 16-bit types is made in float32 and rounded once.
class NarrowCoder final : public BucketCoder {
 public:
  explicit NarrowCoder(const CoderParts& parts)
      : bucket_(parts.bucket),
        dtype_(parts.compression.kind == Compression::Kind::bfloat16 ? DType::bfloat16
                                                                     : DType::float16),
        kernels_(reduce_table_of(best_variant())
                     .kernels[dtype_ == DType::bfloat16 ? kBFloat16 : kFloat16][kSum]),
        narrow_(Array::zeros(dtype_, {bucket_.num_elements})) {}

  Exchange begin(std::span<const uint8_t>) override {
    kernels_.store(narrow_.data(), bucket_.data, bucket_.num_elements, 1);
    coded_ = true;
    return {.kind = Exchange::Kind::sum, .data = narrow_.span()};
  }

  Exchange next() override {
    TUTTI_CHECK(coded_, "next() without begin()");
    kernels_.load(bucket_.data, narrow_.data(), bucket_.num_elements);
    coded_ = false;
    return {};
  }

 private:
  MemorySpan bucket_;
  DType dtype_;
  const ReduceKernels& kernels_;
  Array narrow_;
  bool coded_ = false;
};

}  // namespace

const CodeKernels& code_kernels_of([[maybe_unused]] CpuVariant variant) noexcept {
  if constexpr (kHasX86Variants) {
    if (variant == CpuVariant::avx512) return comm::avx512::code_kernels;
    if (variant == CpuVariant::avx2) return comm::avx2::code_kernels;
  }
  return comm::baseline::code_kernels;
}

const CodeKernels& code_kernels() {
  static const CodeKernels& kernels = code_kernels_of(best_variant());
  return kernels;
}

std::unique_ptr<BucketCoder> make_narrow_coder(const CoderParts& parts) {
  return std::make_unique<NarrowCoder>(parts);
}

std::unique_ptr<BucketCoder> make_coder(const Compression& compression, MemorySpan bucket,
                                        std::vector<CodedTensor> tensors,
                                        std::span<CodedState> states, const ReductionShape& shape) {
  check_compression(compression);
  TUTTI_CHECK(bucket.dtype == DType::float32, "a bucket of {} is coded", name_of(bucket.dtype));
  CoderParts parts{compression, bucket, std::move(tensors), states, shape};
  switch (compression.kind) {
    case Compression::Kind::bfloat16:
    case Compression::Kind::float16: return make_narrow_coder(parts);
    case Compression::Kind::top_k: return make_top_k_coder(std::move(parts));
    case Compression::Kind::one_bit: return make_one_bit_coder(std::move(parts));
    case Compression::Kind::power_sgd: return make_power_sgd_coder(std::move(parts));
    case Compression::Kind::none: break;
  }
  throw UsageError("a coder needs a kind of compression; got none");
}

Work start_exchange(const Exchange& exchange, Group& group, CrossDeviceReduction& reduction,
                    Millis limit) {
  switch (exchange.kind) {
    case Exchange::Kind::none: break;
    case Exchange::Kind::sum: return reduction.reduce(group, exchange.data, exchange.op, limit);
    case Exchange::Kind::gather: return group.all_gather(exchange.data, exchange.all, limit);
  }
  return {};
}

void exchange_in_turn(std::span<const Exchange> parts, CrossDeviceReduction& reduction,
                      const ReductionShape& shape) {
  if (parts[0].kind == Exchange::Kind::none) return;
  if (parts[0].kind == Exchange::Kind::sum) {
    std::vector<MemorySpan> spans;
    for (const Exchange& part : parts) spans.push_back(part.data);
    return reduction.reduce_in_turn(spans, parts[0].op, shape);
  }
  for (const Exchange& to : parts) {
    auto* out = static_cast<std::byte*>(to.all.data);
    for (const Exchange& from : parts) {
      const auto bytes = static_cast<size_t>(from.data.num_bytes());
      if (bytes > 0) std::memcpy(out, from.data.data, bytes);
      out += bytes;
    }
  }
}

int64_t sum_wire_bytes(int64_t bytes, int replicas) {
  return 2 * (replicas - 1) * bytes / replicas;
}

int64_t wire_bytes(const Exchange& exchange, int replicas) {
  switch (exchange.kind) {
    case Exchange::Kind::none: break;
    case Exchange::Kind::sum: return sum_wire_bytes(exchange.data.num_bytes(), replicas);
    case Exchange::Kind::gather: return (replicas - 1) * exchange.data.num_bytes();
  }
  return 0;
}

void fold_residuals(std::span<CodedState> stays, std::span<CodedState> gone) {
  for (size_t i = 0; i < stays.size(); ++i) {
    const Array& from = gone[i].residual;
    if (from.num_elements() == 0) continue;
    ready_residual(stays[i], from.num_elements());
    code_kernels().add(stays[i].residual.as<float>().data(), from.as<float>().data(),
                       from.num_elements());
  }
}

void ready_residual(CodedState& state, int64_t num_elements) {
  if (state.residual.num_elements() == 0)
    state.residual = Array::zeros(DType::float32, {num_elements});
}

std::pair<int64_t, int64_t> matrix_of(std::span<const int64_t> shape) {
  int64_t columns = 1;
  for (size_t i = 1; i < shape.size(); ++i) columns *= shape[i];
  return {shape.empty() ? 1 : shape[0], columns};
}

int64_t factor_rank(const Compression& compression, int64_t rows, int64_t columns) {
  return std::min<int64_t>(compression.rank, std::min(rows, columns));
}

}  // namespace tutti::detail
