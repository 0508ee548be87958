/// From a Rule's options to a kernel of one instruction set; apart from Rule so that tests can
/// compare the instruction sets.
#pragma once

#include "tutti/base/cpu_variant.h"
#include "tutti/optim/kernels/update.h"
#include "tutti/optim/rule.h"

namespace tutti::optim::detail {

/// The table of an instruction set that runnable_variants() names.
const Kernels& kernels_for(CpuVariant variant) noexcept;

/// Rule::update with the kernels of a given table. The caller has checked dtype and states.
void update_with(const Kernels& kernels, const Rule::Options& options, DType dtype, void* parameter,
                 const void* gradient, std::span<void* const> states, int64_t num_elements,
                 const StepScalars& step);

}  // namespace tutti::optim::detail
