/// Runs: neighbours in a layout that one operator can take at once. Not for users.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "tutti/sync/slots.h"
#include "tutti/sync/tensors.h"

namespace tutti::detail {

/// Bytes [begin, end) of a layout, of one dtype.
struct Run {
  DType dtype = DType::float32;
  int64_t begin = 0;
  int64_t end = 0;
};

inline int64_t byte_of(const ParameterSlot& slot, int64_t element) {
  return slot.offset_bytes + element * size_of(slot.dtype);
}

/// Adds a stretch that stands behind those of `runs`. Between two parameters there is less than a
/// line of padding, unless one that does not belong to it lies there.
inline void add_to(std::vector<Run>& runs, const Slots& layout, const Stretch& stretch) {
  const ParameterSlot& slot = layout.slots[static_cast<size_t>(stretch.parameter)];
  const int64_t begin = byte_of(slot, stretch.begin), end = byte_of(slot, stretch.end);
  if (!runs.empty() && runs.back().dtype == slot.dtype && begin - runs.back().end < kLineBytes)
    runs.back().end = end;
  else
    runs.push_back({slot.dtype, begin, end});
}

/// Of a flat tensor of bytes by the layout, or of the part of it from byte `first` on.
inline at::Tensor elements_of(const at::Tensor& bytes, const Run& run, int64_t first = 0) {
  return bytes.narrow(0, run.begin - first, run.end - run.begin).view(scalar_type_of(run.dtype));
}

}  // namespace tutti::detail
