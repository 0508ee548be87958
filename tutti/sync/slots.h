/// Where every parameter lies in one storage, and which replica owns which slice of it.
///
/// Pure functions of names, shapes and dtypes: threads and processes, and every rank, come to the
/// same layout. Each parameter starts on a 64-byte line (results and speed of matrix kernels depend
/// on alignment). Slices are cut only at the grid of 1,024-element blocks of each parameter.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/dtype.h"
#include "tutti/optim/rule.h"

namespace tutti {

using optim::kBlockElements;
constexpr int64_t kLineBytes = 64;  ///< at a multiple of it each parameter begins

/// A named tensor: {global shape, offset, axis}, whole today (offset 0 of axis 0).
struct ParameterSlot {
  std::string name;
  std::vector<int64_t> shape;  ///< global shape
  DType dtype = DType::float32;
  int64_t num_elements = 0;
  int64_t offset_bytes = 0;  ///< in a storage of Slots::total_bytes
  bool trained = true;       ///< false: frozen when it was bound; it has no optimizer state
  int axis = 0;
  int64_t axis_offset = 0;
};

/// Elements [begin, end) of parameter number `parameter`.
struct Stretch {
  int parameter = 0;
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const Stretch&) const = default;
};

struct Slots {
  std::vector<ParameterSlot> slots;
  int64_t total_bytes = 0;

  /// Fills offset_bytes of each slot, in order, and total_bytes.
  static Slots of(std::vector<ParameterSlot> slots);

  /// Cuts the trained parameters into one list of stretches per owner, balanced by bytes in
  /// proportion to `shares` (all > 0; usually equal). Every element is in exactly one stretch.
  std::vector<std::vector<Stretch>> cut(std::span<const double> shares) const;

  /// Of the parameters that are trained, without padding.
  int64_t trained_bytes() const;

  /// One line a parameter, "name dtype [shape]": ranks compare it to find the first difference.
  std::string describe() const;
};

}  // namespace tutti
