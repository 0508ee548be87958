/// Parts of a parameter for each block of a rank, taken out of its memory and put together again in
/// one pass over it. Not for users. Without autograd; tensors on the CPU, contiguous. Thread rule:
/// pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "tutti/parallel/tensor/tensor_functions.h"

namespace tutti::parallel::detail {

/// Where the blocks of a parameter lie in it.
struct BlockCut {
  std::vector<int64_t> sizes;  ///< of each block
  int64_t axis = 0;            ///< that is cut, 0 or 1
  int64_t stacked = 1;         ///< of axis 0: equal parts one below the other, each of them cut
};

/// The part of each block, contiguous and on a 64-byte line: as aligned_parts(), memory of `whole`
/// where it lies so, else new memory.
Blocks taken_apart(const at::Tensor& whole, const BlockCut& cut);

/// Writes that block's part into `whole`. Parts of a large tensor go by the caches to memory: by
/// the time somebody reads the last of them, the first would have been driven out.
void put_part(const at::Tensor& whole, const BlockCut& cut, size_t block, const at::Tensor& part);

}  // namespace tutti::parallel::detail
