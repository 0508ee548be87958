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
                 const StepScalars& step, double trust = 1.0, const void* second = nullptr);

/// 0.96^momentum_decay, by arithmetic that gives the same bits on every CPU.
double nadam_decay(const NadamOptions& options);
/// The momentum of a step: beta1 (1 - decay_power / 2).
double nadam_momentum(const NadamOptions& options, double decay_power);

/// Rule::measure in the same way.
void measure_with(const Kernels& kernels, const Rule::Options& options, DType dtype,
                  const void* parameter, const void* gradient, std::span<void* const> states,
                  int64_t num_elements, const StepScalars& step, std::span<Squares> squares);

/// square_blocks in the same way.
void square_blocks_with(const Kernels& kernels, DType dtype, const void* values,
                        int64_t num_elements, std::span<double> sums);

}  // namespace tutti::optim::detail
