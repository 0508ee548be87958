/// Compression: how gradients are made smaller before replicas exchange them.
///
///   Compression{.kind = Compression::Kind::top_k, .ratio = 0.01}     compression_from("topk:0.01")
///
///   kind        a step sends, of a tensor of m x n elements    what is left out
///   bfloat16    2 bytes an element                             rounded off
///   float16     2 bytes an element; over 65,504 is infinite    rounded off
///   top_k       8 bytes for each of ratio * m * n elements     kept for the next step
///   one_bit     a sign an element, a scale for each 256        kept for the next step
///   power_sgd   4 bytes for each of rank * (m + n) elements    kept for the next step
///
/// All are deterministic: the same bits on every rank, in every run, and for replicas that take
/// turns. What is *kept* is added to the replica's next gradient (error feedback): in the end the
/// sum of what was sent and what is kept is the sum of the gradients.
///
/// Uncompressed stay tensors that are no float32, that have fewer than min_elements elements, and
/// under power_sgd those of one dimension or where the factors would be no smaller than the tensor.
///
/// Thread rule: pure functions on plain values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tutti/base/dtype.h"

namespace tutti {

/// Fields that a kind does not use are ignored.
struct Compression {
  enum class Kind : uint8_t { none, bfloat16, float16, top_k, one_bit, power_sgd };
  Kind kind = Kind::none;
  double ratio = 0.01;          ///< top_k: part of a tensor's elements, > 0 and <= 1
  int rank = 4;                 ///< power_sgd: 1 to 256
  int64_t start_step = 0;       ///< steps before this one (0-based) are not compressed
  int64_t min_elements = 1024;  ///< smaller tensors are not compressed; >= 1
  uint64_t seed = 0;            ///< power_sgd: of the first factors

  bool on() const noexcept { return kind != Kind::none; }
};

/// Reads "none", "bf16", "fp16", "topk:RATIO", "onebit", "powersgd:RANK"; ratio and rank may be
/// left out. UsageError with what was expected, and the nearest known word.
Compression compression_from(std::string_view text);

/// What compression_from() reads back: "topk:0.01".
std::string to_string(const Compression& compression);

/// UsageError naming the field that is out of range.
void check_compression(const Compression& compression);

/// Whether a tensor of this dtype and shape is compressed.
bool compresses(const Compression& compression, DType dtype, std::span<const int64_t> shape);

/// The same for the log, in words: "power_sgd of rank 4 with error feedback, from step 0 on".
std::string describe(const Compression& compression);

}  // namespace tutti
