/// What members of a group compare of a call: everything that has to be the same on all of them.
/// Thread rule: values and pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tutti/comm/engine/engine.h"

namespace tutti::detail {

struct Call {
  Collective collective = Collective::barrier;
  ReduceOp reduce = ReduceOp::sum;  ///< of those that reduce
  DType dtype = DType::uint8;       ///< of those that have data
  int root = 0;                     ///< of those that have one; send, recv: the other rank
  int tag = 0;                      ///< send, recv
  int64_t elements = 0;             ///< the same on every rank; all_to_all: this rank's input, or
                                    ///< -1, unknown
  bool operator==(const Call&) const = default;
};

bool is_message(Collective collective) noexcept;
bool reduces(Collective collective) noexcept;
bool has_root(Collective collective) noexcept;

Call call_of(const Operation& operation) noexcept;

/// Of the data that is reduced or moved; partial results of a reduce_scatter are of another type.
inline DType dtype_of(const Operation& operation) noexcept {
  return operation.collective == Collective::reduce_scatter ? operation.input.dtype
                                                            : operation.output.dtype;
}

/// The same call, as far as members of a group have to agree: in all_to_all lengths are their own.
bool agree(const Call& a, const Call& b) noexcept;

/// "all_reduce (sum) of 1000 float32", "broadcast of 10 int64 from rank 2".
std::string words_of(const Call& call);

/// A collective's operation, reduction, dtype, root and flags in one word that ranks compare, and
/// back as words. Any word has words, since it may come from a peer.
uint32_t pack_call(const Operation& operation) noexcept;
std::string call_words(uint32_t packed, int64_t num_elements);

bool has_counts(const Operation& operation) noexcept;
/// The same list on every rank, so one that ranks compare; empty for all_to_all.
std::span<const int64_t> common_counts(const Operation& operation) noexcept;
/// A number that differs where lists of counts do.
uint64_t fingerprint(std::span<const int64_t> counts) noexcept;

/// "train.cpp:88": the file without its folders.
std::string place_words(std::string_view file, uint32_t line);

}  // namespace tutti::detail
