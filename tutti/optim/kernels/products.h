/// The products of an instruction set; apart so that tests can compare them.
/// Thread rule: any thread.
#pragma once

#include "tutti/base/cpu_variant.h"
#include "tutti/optim/kernels/product.h"

namespace tutti::optim::detail {

/// Of one that runnable_variants() names.
const Products& products_for(CpuVariant variant) noexcept;

}  // namespace tutti::optim::detail
