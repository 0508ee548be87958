/// What all ranks of a TensorGroup call alike is compared before it begins. Not for users.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "tutti/parallel/tensor/tensor_functions.h"

namespace tutti::parallel::detail {

enum class Function : uint8_t {
  copy_to,
  sum_of,
  part_of,
  whole_of,
  sequence_all_gather,
  sequence_reduce_scatter,
};
std::string_view name_of(Function function) noexcept;

/// One tensor, and whether this rank's blocks are parts of it.
enum class Given : uint8_t {
  whole,   ///< one tensor, the same on all ranks
  copies,  ///< one a block, all of one shape
  parts,   ///< one a block, of one shape but for the size along the axis
};

/// How large the tensor is along the axis, of which blocks have, or get, parts; 0 without an axis.
struct Agreed {
  int64_t axis = 0;  ///< from 0 on
  int64_t length = 0;
};

/// Collective. Throws what tensor_functions.h says, a Mismatch on every rank alike.
Agreed agree(const TensorGroup& group, Function function, Given given, const Blocks& tensors,
             std::optional<int64_t> axis = {});

}  // namespace tutti::parallel::detail
