/// What PowerSGD makes of its left factor. Not for users. Thread rule: a pure function.
#pragma once

#include <cstdint>

namespace tutti::detail {

/// Makes the rows of `matrix` (`count` rows of `length`) orthonormal, in order. A row that adds
/// nothing to those before it becomes zeros. A row that is not finite becomes NaN.
void orthonormalise(float* matrix, int64_t count, int64_t length);

}  // namespace tutti::detail
